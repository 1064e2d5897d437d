//! The store of several controllers: keys of one etcd.
//!
//! ```text
//!   PREFIX/head                    the newest revision
//!   PREFIX/record/000000000000002a its writer (16 bytes), then the record
//!   PREFIX/snapshot                revision, size, writer; its parts below part/REVISION/WRITER/
//!   PREFIX/leader                  the leader's name, on its lease (election.rs)
//!
//!   append: if head = expected and leader is still the one of our term
//!           then put head, put record     else return head, leader and the record at our place
//! ```
//!
//! An append is one transaction of etcd. If its reply is lost it is sent again, and the writer's
//! mark in the record shows whether the first one was stored. A load reads all its keys at one
//! revision of etcd, so it shows one moment.
//!
//! Compacting the history of keys in etcd is up to the administrator, because etcd may serve
//! others, too (`--auto-compaction-retention`); the keys here stay few.

use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, Error, GetOptions, GetResponse, SortOrder,
    SortTarget, Txn, TxnOp, TxnOpResponse, WatchOptions,
};
use tokio::runtime::Runtime;
use tokio::time::{Instant, timeout};

use super::{
    History, RECORD_BYTES_MAX, Revision, SNAPSHOT_BYTES_MAX, Snapshot, Store, StoreError,
    StoreRecord, check_size,
};
use crate::election::FencingToken;
use crate::etcd::{EtcdClient, EtcdError, EtcdMembers, runtime, wait_for};

/// The store of records in etcd.
pub struct EtcdStore {
    runtime: Runtime,
    members: EtcdMembers,
    fence: Option<FencingToken>,
    /// The mark of what this value wrote.
    writer: EtcdWriter,
    /// The number of records that this value tried to write: each has its own mark.
    written: u64,
    /// The longest time that a call may look for a member.
    patience: Duration,
}

/// The mark of one attempt: 8 random bytes and a count.
type EtcdWriter = [u8; 16];

impl EtcdStore {
    /// Opens the store. With a fencing token, nothing is stored once its term is over; without one
    /// it is for a single controller or for reading only.
    pub fn open(etcd: &EtcdClient, fence: Option<FencingToken>) -> Result<EtcdStore, StoreError> {
        let mut writer = [0; 16];
        let random = rustix::rand::getrandom(&mut writer, rustix::rand::GetRandomFlags::empty());
        random.map_err(|errno| EtcdError::Runtime { source: errno.into() })?;
        Ok(EtcdStore {
            runtime: runtime()?,
            members: EtcdMembers::new(etcd)?,
            fence,
            writer,
            written: 0,
            patience: PATIENCE,
        })
    }

    /// Opens the store with another time limit for finding a member.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> EtcdStore {
        EtcdStore { patience, ..self }
    }

    fn location(&self) -> String {
        self.members.etcd().description()
    }

    /// Makes a mark that no other attempt has.
    fn mark(&mut self) -> EtcdWriter {
        self.written += 1;
        let mut mark = self.writer;
        mark[8..].copy_from_slice(&self.written.to_be_bytes());
        mark
    }

    /// Returns the condition of a transaction that our term is not over.
    fn fence_compare(&self) -> Option<Compare> {
        let fence = self.fence.as_ref()?;
        Some(Compare::create_revision(fence.key(), CompareOp::Equal, fence.create_revision()))
    }

    fn damaged(&self, problem: String) -> StoreError {
        StoreError::Damaged { location: self.location(), problem }
    }
}

impl Store for EtcdStore {
    fn load(&mut self, after: Revision) -> Result<History, StoreError> {
        let keys = EtcdKeys::new(self.members.etcd());
        let (members, patience) = (&mut self.members, self.patience);
        let read =
            members.call("load", patience, async |client, _| read_all(client, &keys, after).await);
        let loaded = wait_for(&self.runtime, read)?.map_err(|problem| self.damaged(problem))?;
        loaded.history.checked(&self.location(), after, loaded.newest)
    }

    fn append(&mut self, expected: Revision, record: &[u8]) -> Result<Revision, StoreError> {
        check_size(&self.location(), "record", record.len(), RECORD_BYTES_MAX)?;
        let keys = EtcdKeys::new(self.members.etcd());
        let (mark, revision) = (self.mark(), expected.next());
        let mut conditions = vec![head_is(&keys, expected)];
        conditions.extend(self.fence_compare());
        let body = [&mark[..], record].concat();
        let txn = Txn::new()
            .when(conditions)
            .and_then([
                TxnOp::put(keys.head.clone(), revision.get().to_be_bytes(), None),
                TxnOp::put(keys.record(revision), body, None),
            ])
            .or_else([
                TxnOp::get(keys.head.clone(), None),
                TxnOp::get(keys.record(revision), None),
                TxnOp::get(keys.leader.clone(), None),
            ]);
        let (members, patience) = (&mut self.members, self.patience);
        let asked = members.call("append", patience, async |mut client, tries| {
            Ok((client.txn(txn.clone()).await?, tries))
        });
        let (answer, tries) = match wait_for(&self.runtime, asked) {
            Ok(answered) => answered,
            Err(source @ EtcdError::Unavailable { .. }) => {
                let source = Box::new(source);
                return Err(StoreError::Uncertain { location: self.location(), revision, source });
            }
            Err(error) => return Err(error.into()),
        };
        if answer.succeeded() {
            return Ok(revision);
        }
        let found = found_by(answer.op_responses());
        let newest = match found.first().and_then(Option::as_ref) {
            Some(head) => parse_head(&head.value).map_err(|problem| self.damaged(problem))?,
            None => Revision::ZERO,
        };
        let ours = found.get(1).and_then(Option::as_ref);
        if ours.is_some_and(|record| record.value.starts_with(&mark)) {
            return Ok(revision); // an earlier try whose answer was lost
        }
        if tries > 0 && ours.is_none() && newest >= revision {
            let source = Box::new(EtcdError::Unavailable {
                endpoints: self.location(),
                what: "append",
                waited: self.patience,
                last: format!("records up to {newest} are in a snapshot already"),
            });
            return Err(StoreError::Uncertain { location: self.location(), revision, source });
        }
        self.deposed(found.get(2).and_then(Option::as_ref))?;
        Err(StoreError::RevisionConflict { location: self.location(), expected, newest })
    }

    fn snapshot(&mut self, at: Revision, state: &[u8]) -> Result<(), StoreError> {
        check_size(&self.location(), "snapshot", state.len(), SNAPSHOT_BYTES_MAX)?;
        let keys = EtcdKeys::new(self.members.etcd());
        let mark = self.mark();
        let (found, newest) = self.read_pointer(&keys)?;
        if newest < at {
            return Err(StoreError::RevisionConflict {
                location: self.location(),
                expected: at,
                newest,
            });
        }
        if found.pointer.as_ref().is_some_and(|pointer| pointer.revision >= at) {
            return Ok(());
        }
        let pointer = Pointer { revision: at, bytes: state.len() as u64, writer: mark };
        self.put_parts(&keys, &pointer, state)?;
        self.replace_pointer(&keys, &pointer, found.etcd_revision)
    }

    fn newest(&mut self, after: Revision, patience: Duration) -> Result<Revision, StoreError> {
        let keys = EtcdKeys::new(self.members.etcd());
        let (members, most) = (&mut self.members, self.patience);
        let waited = wait_for(&self.runtime, wait_for_head(members, &keys, after, patience, most))?;
        waited.map_err(|problem| self.damaged(problem))
    }
}

impl EtcdStore {
    /// Fails if the leader's key is not the one of our term.
    fn deposed(&self, leader: Option<&FoundState>) -> Result<(), StoreError> {
        let Some(fence) = &self.fence else { return Ok(()) };
        if leader.is_some_and(|leader| leader.create_revision == fence.create_revision()) {
            return Ok(());
        }
        let leader = leader.map_or("nobody".into(), |l| String::from_utf8_lossy(&l.value).into());
        Err(StoreError::Deposed { location: self.location(), leader, term: fence.term() })
    }

    fn read_pointer(&mut self, keys: &EtcdKeys) -> Result<(FoundPointer, Revision), StoreError> {
        let asked = self.members.call("read the snapshot", self.patience, async |mut client, _| {
            let head = client.get(keys.head.clone(), None).await?;
            let pointer = client.get(keys.snapshot.clone(), None).await?;
            Ok((head, pointer))
        });
        let (head, pointer) = wait_for(&self.runtime, asked)?;
        let parsed = || {
            let newest = head.kvs().first().map_or(Ok(Revision::ZERO), |kv| parse_head(kv.value()));
            let etcd_revision = pointer.kvs().first().map_or(0, |kv| kv.mod_revision());
            let pointer = pointer.kvs().first().map(|kv| Pointer::parse(kv.value())).transpose()?;
            Ok((FoundPointer { pointer, etcd_revision }, newest?))
        };
        parsed().map_err(|problem: String| self.damaged(problem))
    }

    /// Puts the parts of a snapshot that no pointer names yet, so that they are not read.
    fn put_parts(
        &mut self,
        keys: &EtcdKeys,
        pointer: &Pointer,
        state: &[u8],
    ) -> Result<(), StoreError> {
        for (index, part) in state.chunks(PART_BYTES).enumerate() {
            let conditions: Vec<Compare> = self.fence_compare().into_iter().collect();
            let txn = Txn::new()
                .when(conditions)
                .and_then([TxnOp::put(keys.part(pointer, index), part, None)])
                .or_else([TxnOp::get(keys.leader.clone(), None)]);
            let asked =
                self.members.call("keep a snapshot", self.patience, async |mut client, _| {
                    client.txn(txn.clone()).await
                });
            let answer = wait_for(&self.runtime, asked)?;
            if !answer.succeeded() {
                let found = found_by(answer.op_responses());
                self.deposed(found.first().and_then(Option::as_ref))?;
            }
        }
        Ok(())
    }

    /// Makes the parts the snapshot, and drops the records in it and all other parts, at once; does
    /// nothing if another was made since `etcd_revision`.
    fn replace_pointer(
        &mut self,
        keys: &EtcdKeys,
        pointer: &Pointer,
        etcd_revision: i64,
    ) -> Result<(), StoreError> {
        let mut conditions =
            vec![Compare::mod_revision(keys.snapshot.clone(), CompareOp::Equal, etcd_revision)];
        conditions.extend(self.fence_compare());
        let range = |from: String, to: String| {
            TxnOp::delete(from, Some(DeleteOptions::new().with_range(to)))
        };
        let ours = keys.parts_of(pointer);
        let txn = Txn::new()
            .when(conditions)
            .and_then([
                TxnOp::put(keys.snapshot.clone(), pointer.to_bytes(), None),
                range(keys.record(Revision::ZERO), keys.record(pointer.revision.next())),
                range(keys.parts.clone(), ours.clone()),
                range(after_prefix(&ours), after_prefix(&keys.parts)),
            ])
            .or_else([TxnOp::get(keys.leader.clone(), None)]);
        let asked = self.members.call("keep a snapshot", self.patience, async |mut client, _| {
            client.txn(txn.clone()).await
        });
        let answer = wait_for(&self.runtime, asked)?;
        if !answer.succeeded() {
            let found = found_by(answer.op_responses());
            self.deposed(found.first().and_then(Option::as_ref))?;
        }
        Ok(())
    }
}

/// The names of all keys.
struct EtcdKeys {
    head: String,
    snapshot: String,
    leader: String,
    records: String,
    parts: String,
}

/// Which parts make the snapshot.
struct Pointer {
    revision: Revision,
    bytes: u64,
    writer: EtcdWriter,
}

/// The previous pointer, and when etcd last changed it (0 for never).
struct FoundPointer {
    pointer: Option<Pointer>,
    etcd_revision: i64,
}

/// The content of a load.
struct Loaded {
    history: History,
    newest: Revision,
}

/// A key that a transaction returned.
struct FoundState {
    value: Vec<u8>,
    create_revision: i64,
}

impl EtcdKeys {
    fn new(etcd: &EtcdClient) -> EtcdKeys {
        EtcdKeys {
            head: etcd.key("head"),
            snapshot: etcd.key("snapshot"),
            leader: etcd.key(crate::election::LEADER),
            records: etcd.key("record/"),
            parts: etcd.key("part/"),
        }
    }

    fn record(&self, revision: Revision) -> String {
        format!("{}{:016x}", self.records, revision.get())
    }

    fn parts_of(&self, pointer: &Pointer) -> String {
        let writer: String = pointer.writer.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}{:016x}/{writer}/", self.parts, pointer.revision.get())
    }

    fn part(&self, pointer: &Pointer, index: usize) -> String {
        format!("{}{index:04}", self.parts_of(pointer))
    }
}

impl Pointer {
    fn to_bytes(&self) -> Vec<u8> {
        let revision = self.revision.get().to_be_bytes();
        [&revision[..], &self.bytes.to_be_bytes(), &self.writer].concat()
    }

    fn parse(bytes: &[u8]) -> Result<Pointer, String> {
        let wrong = || format!("the key snapshot holds {} bytes instead of 32", bytes.len());
        let bytes: [u8; 32] = bytes.try_into().map_err(|_| wrong())?;
        let (revision, rest) = bytes.split_at(8);
        let (size, writer) = rest.split_at(8);
        let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("8 bytes"));
        let writer = writer.try_into().expect("16 bytes");
        Ok(Pointer { revision: Revision::new(number(revision)), bytes: number(size), writer })
    }
}

/// Reads the whole store at one revision of etcd; an inner error reports damage.
async fn read_all(
    client: Client,
    keys: &EtcdKeys,
    after: Revision,
) -> Result<Result<Loaded, String>, Error> {
    let mut kv = client.kv_client().max_decoding_message_size(ANSWER_BYTES_MAX);
    let head = kv.get(keys.head.clone(), None).await?;
    let moment = head.header().map_or(0, |header| header.revision());
    let at_moment = || GetOptions::new().with_revision(moment);
    let newest = match head.kvs().first().map(|kv| parse_head(kv.value())) {
        None => Revision::ZERO,
        Some(Ok(newest)) => newest,
        Some(Err(problem)) => return Ok(Err(problem)),
    };
    let mut history = History::default();
    let found = kv.get(keys.snapshot.clone(), Some(at_moment())).await?;
    let pointer = match found.kvs().first().map(|kv| Pointer::parse(kv.value())).transpose() {
        Ok(pointer) => pointer.filter(|pointer| pointer.revision > after),
        Err(problem) => return Ok(Err(problem)),
    };
    if let Some(pointer) = &pointer {
        let mut state = Vec::new();
        let mut from = keys.parts_of(pointer);
        let end = after_prefix(&from);
        while let Some(page) = next_page(&mut kv, &mut from, &end, at_moment()).await? {
            page.kvs().iter().for_each(|part| state.extend_from_slice(part.value()));
        }
        if state.len() as u64 != pointer.bytes {
            let (found, want) = (state.len(), pointer.bytes);
            return Ok(Err(format!("the snapshot's parts hold {found} bytes instead of {want}")));
        }
        history.snapshot = Some(Snapshot { revision: pointer.revision, state });
    }
    let start = pointer.map_or(after, |pointer| pointer.revision).next();
    let mut from = keys.record(start);
    let end = after_prefix(&keys.records);
    while let Some(page) = next_page(&mut kv, &mut from, &end, at_moment()).await? {
        for record in page.kvs() {
            match parse_record(keys, record.key(), record.value()) {
                Ok(record) => history.records.push(record),
                Err(problem) => return Ok(Err(problem)),
            }
        }
    }
    Ok(Ok(Loaded { history, newest }))
}

/// Reads up to [`PAGE_KEYS`] keys of `[from, end)`, and moves `from` beyond them.
async fn next_page(
    kv: &mut etcd_client::KvClient,
    from: &mut String,
    end: &str,
    options: GetOptions,
) -> Result<Option<GetResponse>, Error> {
    let options =
        options.with_range(end).with_limit(PAGE_KEYS).with_sort(SortTarget::Key, SortOrder::Ascend);
    let page = kv.get(from.clone(), Some(options)).await?;
    let Some(last) = page.kvs().last() else { return Ok(None) };
    *from = format!("{}\0", String::from_utf8_lossy(last.key()));
    Ok(Some(page))
}

/// Reads the head, and watches it while it is not newer than `after`.
async fn wait_for_head(
    members: &mut EtcdMembers,
    keys: &EtcdKeys,
    after: Revision,
    patience: Duration,
    most: Duration,
) -> Result<Result<Revision, String>, EtcdError> {
    let deadline = Instant::now() + patience;
    loop {
        let asked = members.call("read the newest revision", most, async |mut client, _| {
            client.get(keys.head.clone(), None).await
        });
        let answer = asked.await?;
        let newest = match answer.kvs().first().map(|kv| parse_head(kv.value())).transpose() {
            Ok(newest) => newest.unwrap_or_default(),
            Err(problem) => return Ok(Err(problem)),
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if newest > after || left.is_zero() {
            return Ok(Ok(newest));
        }
        let moment = answer.header().map_or(0, |header| header.revision());
        watch_once(members, &keys.head, moment, left.min(WATCH)).await;
    }
}

/// Returns when the key changed after etcd's revision `moment`, after `patience`, or when the
/// member failed; the caller checks which.
pub(crate) async fn watch_once(
    members: &mut EtcdMembers,
    key: &str,
    moment: i64,
    patience: Duration,
) {
    let Some(mut client) = members.client() else { return };
    let options = WatchOptions::new().with_start_revision(moment + 1);
    let watched = timeout(patience, async {
        let mut stream = client.watch(key, Some(options)).await?;
        while let Some(message) = stream.message().await? {
            if message.canceled() || !message.events().is_empty() {
                return Ok(!message.canceled());
            }
        }
        Ok::<bool, Error>(false)
    })
    .await;
    if let Ok(Err(_) | Ok(false)) = watched {
        members.next_member();
    }
}

/// The default time in which a call may look for a member: longer than an election among them,
/// shorter than a caller of `sluice rule` waits.
const PATIENCE: Duration = Duration::from_secs(8);
/// The longest time of one watch before the key is read again.
const WATCH: Duration = Duration::from_secs(2);
/// Bytes of a snapshot in one key: etcd refuses requests above 1.5 MiB.
const PART_BYTES: usize = 1 << 20;
/// Keys in one answer of a load, and the size that allows for.
const PAGE_KEYS: i64 = 32;
const ANSWER_BYTES_MAX: usize = 40 << 20;

fn head_is(keys: &EtcdKeys, expected: Revision) -> Compare {
    if expected == Revision::ZERO {
        return Compare::version(keys.head.clone(), CompareOp::Equal, 0);
    }
    Compare::value(keys.head.clone(), CompareOp::Equal, expected.get().to_be_bytes())
}

fn parse_head(bytes: &[u8]) -> Result<Revision, String> {
    let bytes: [u8; 8] = bytes
        .try_into()
        .map_err(|_| format!("the key head holds {} bytes instead of 8", bytes.len()))?;
    Ok(Revision::new(u64::from_be_bytes(bytes)))
}

fn parse_record(keys: &EtcdKeys, key: &[u8], value: &[u8]) -> Result<StoreRecord, String> {
    let name = String::from_utf8_lossy(key);
    let number = name.strip_prefix(&keys.records).and_then(|n| u64::from_str_radix(n, 16).ok());
    let number = number.ok_or_else(|| format!("the key {name} is not a record"))?;
    let body = value.get(size_of::<EtcdWriter>()..);
    let body = body.ok_or_else(|| format!("the record {name} has only {} bytes", value.len()))?;
    Ok(StoreRecord { revision: Revision::new(number), body: body.to_vec() })
}

/// The first key after all that begin with `prefix`, which ends with `/`.
fn after_prefix(prefix: &str) -> String {
    format!("{}0", prefix.trim_end_matches('/'))
}

/// The first key of each read in a transaction.
fn found_by(answers: Vec<TxnOpResponse>) -> Vec<Option<FoundState>> {
    let first = |answer: TxnOpResponse| match answer {
        TxnOpResponse::Get(answer) => answer.kvs().first().map(|kv| FoundState {
            value: kv.value().to_vec(),
            create_revision: kv.create_revision(),
        }),
        _ => None,
    };
    answers.into_iter().map(first).collect()
}
