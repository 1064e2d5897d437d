//! Reads a trace back, request by request.
//!
//! The file is not trusted: whatever its bytes are, reading ends with the last record
//! that makes sense, and with an error that names the place if what follows does not.
//! One chunk is in memory at a time, and what was defined.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::{Identity, JobId, Kind, Nid, Time};
use rustc_hash::FxHashMap;

use super::format::{self, CHUNK_HEADER_LEN, ChunkType, Cursor, PAYLOAD_MAX, TraceRequest};
use super::subjects::ID_UNKNOWN;

/// The requests of a trace, in the order in which they were noted.
///
/// Requests of different threads are interleaved by chunks, so arrival times go back
/// and forth by up to about a second. After the last record, [`TraceReader::cut`] and
/// [`TraceReader::lost`] say what is missing.
pub struct TraceReader<R = BufReader<File>> {
    input: R,
    /// Where the next chunk begins in the file.
    offset: u64,
    kinds: Vec<Kind>,
    subjects: FxHashMap<u32, Arc<TraceSubject>>,
    classes: BTreeMap<(String, u64), String>,
    origin_unix_ns: u64,
    payload: Vec<u8>,
    /// Bytes of the payload that have been read.
    at: usize,
    /// Requests of the payload that have not.
    left: u32,
    previous: Time,
    read: u64,
    lost: u64,
    state: State,
}

/// One request of a trace and who asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// Who asked.
    pub who: Arc<TraceSubject>,
    /// What, when and how it ended.
    pub request: TraceRequest,
}

/// One attach, an identity at work in an export; or a peer who asked without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSubject {
    /// Who pays.
    pub who: Identity,
    /// The export's name; empty without an attach.
    pub export: String,
    /// The name of the target whose dispatcher it waited for; empty without an attach.
    pub target: String,
}

impl TraceSubject {
    /// The user; `None` where nobody has attached and the system does not know the peer.
    pub fn uid(&self) -> Option<u32> {
        known(self.who.uid)
    }

    /// The user's group, likewise.
    pub fn gid(&self) -> Option<u32> {
        known(self.who.gid)
    }
}

/// Why a trace cannot be read, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The system cannot read the file.
    #[error("cannot read at byte {offset}")]
    Read {
        /// The byte at which the unread chunk begins.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// It is something else.
    #[error("no trace of sluice proxy --record: it begins with \"{begin}\"")]
    Foreign {
        /// Its first bytes, escaped.
        begin: String,
    },
    /// It was written by another version.
    #[error("a trace of format {found}; this sluice reads format {}", format::VERSION)]
    Version {
        /// The format's number.
        found: u16,
    },
    /// It names a kind of request that is not known here.
    #[error(transparent)]
    Kind(#[from] model::ParseKindError),
    /// Its bytes make no sense from some place on.
    #[error("damaged at byte {offset}: {what}")]
    Damaged {
        /// The byte at which the chunk begins.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Reading,
    /// The file's last chunk was read.
    Complete,
    /// The file ended before.
    Cut,
    Failed,
}

impl TraceReader {
    /// Opens a trace that `sluice proxy --record` wrote, or is still writing.
    ///
    /// # Errors
    /// If the file cannot be read or is no trace.
    pub fn open(path: &Path) -> Result<TraceReader, TraceError> {
        let failed = |source| TraceError::Open { path: path.into(), source };
        let file = File::open(path).map_err(failed)?;
        TraceReader::new(BufReader::with_capacity(1 << 20, file))
    }
}

impl<R: Read> TraceReader<R> {
    /// Reads a trace from anything that gives its bytes.
    ///
    /// # Errors
    /// If it cannot be read or is no trace.
    pub fn new(input: R) -> Result<TraceReader<R>, TraceError> {
        let mut reader = TraceReader {
            input,
            offset: 0,
            kinds: Vec::new(),
            subjects: FxHashMap::default(),
            classes: BTreeMap::new(),
            origin_unix_ns: 0,
            payload: Vec::new(),
            at: 0,
            left: 0,
            previous: Time::ZERO,
            read: 0,
            lost: 0,
            state: State::Reading,
        };
        reader.header()?;
        Ok(reader)
    }

    /// Requests that were not recorded, as far as the file has been read.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Whether the file ended without its last chunk: the proxy was killed, or still
    /// writes it.
    pub fn cut(&self) -> bool {
        self.state == State::Cut
    }

    /// When the proxy's clock showed zero, in nanoseconds since 1970; 0 before the
    /// first record.
    pub fn origin_unix_ns(&self) -> u64 {
        self.origin_unix_ns
    }

    /// The name of a class of a target, its rule and key, once it was read: up to a
    /// second of requests after the first of the class. `None` also for one that went
    /// before it was asked for.
    pub fn class(&self, target: &str, number: u64) -> Option<&str> {
        self.classes.get(&(target.to_owned(), number)).map(String::as_str)
    }

    fn header(&mut self) -> Result<(), TraceError> {
        let mut fixed = [0; 12];
        let len = self.fill(&mut fixed)?;
        let magic = format::MAGIC;
        if len < fixed.len() || fixed[..8] != magic {
            let begin = fixed[..len.min(magic.len())].escape_ascii().to_string();
            return Err(TraceError::Foreign { begin });
        }
        let number = |at: usize| u16::from_le_bytes([fixed[at], fixed[at + 1]]);
        if number(8) != format::VERSION {
            return Err(TraceError::Version { found: number(8) });
        }
        for _ in 0..number(10) {
            let (mut len, mut name) = ([0], [0; 127]);
            let mut whole = self.fill(&mut len)? == 1;
            let wanted = usize::from(len[0]).min(name.len());
            whole &= self.fill(&mut name[..wanted])? == wanted;
            if !whole {
                return Err(self.damaged("it ends within its header"));
            }
            self.kinds.push(String::from_utf8_lossy(&name[..wanted]).parse()?);
        }
        Ok(())
    }

    /// Reads as much as there is, and says how much that was.
    fn fill(&mut self, mut into: &mut [u8]) -> Result<usize, TraceError> {
        let wanted = into.len();
        while !into.is_empty() {
            match self.input.read(into) {
                Ok(0) => break,
                Ok(len) => into = &mut into[len..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(TraceError::Read { offset: self.offset, source }),
            }
        }
        let len = wanted - into.len();
        self.offset += len as u64;
        Ok(len)
    }

    fn damaged(&self, what: &'static str) -> TraceError {
        TraceError::Damaged { offset: self.offset, what }
    }

    /// The next record; `None` at the end.
    fn advance(&mut self) -> Result<Option<TraceRecord>, TraceError> {
        while self.left == 0 {
            if self.state != State::Reading {
                return Ok(None);
            }
            self.next_chunk()?;
        }
        let mut from = Cursor(&self.payload[self.at..]);
        let request = format::take_request(&mut from, &self.kinds, self.previous);
        let request = request.ok_or_else(|| self.damaged("a request before it makes no sense"))?;
        self.at = self.payload.len() - from.0.len();
        let who = self.subjects.get(&request.subject).cloned();
        let who = who.ok_or_else(|| self.damaged("a request before it is of nobody"))?;
        self.previous = request.arrived;
        self.left -= 1;
        self.read += 1;
        Ok(Some(TraceRecord { who, request }))
    }

    fn next_chunk(&mut self) -> Result<(), TraceError> {
        let mut header = [0; CHUNK_HEADER_LEN];
        let len = self.fill(&mut header)?;
        // A file system that crashed may have the length of the file but not its bytes.
        if len < header.len() || header == [0; CHUNK_HEADER_LEN] {
            self.state = State::Cut;
            return Ok(());
        }
        let number = |at: usize| header[at..].first_chunk().map_or(0, |n| u32::from_le_bytes(*n));
        if header[..4] != format::MARKER {
            return Err(self.damaged("what ends here is no chunk"));
        }
        let (len, count) = (number(8) as usize, number(12));
        if len > PAYLOAD_MAX {
            return Err(self.damaged("a chunk that claims to be longer than any is"));
        }
        let mut payload = std::mem::take(&mut self.payload);
        payload.resize(len, 0);
        let whole = self.fill(&mut payload)? == len;
        self.payload = payload;
        if !whole {
            self.state = State::Cut;
            return Ok(());
        }
        match self.understand(header[4], count) {
            Some(()) => Ok(()),
            None => Err(self.damaged("the chunk before it makes no sense")),
        }
    }

    /// Types that are not known are passed over: later versions may write more.
    fn understand(&mut self, what: u8, count: u32) -> Option<()> {
        let payload = std::mem::take(&mut self.payload);
        let mut from = Cursor(&payload);
        match what {
            what if what == ChunkType::Requests as u8 => {
                self.previous = Time::from_nanos(from.u64()?);
                (self.at, self.left) = (8, count);
            }
            what if what == ChunkType::Subjects as u8 => {
                self.origin_unix_ns = from.u64()?;
                for _ in 0..count {
                    let (number, subject) = take_subject(&mut from)?;
                    self.subjects.insert(number, Arc::new(subject));
                }
            }
            what if what == ChunkType::Classes as u8 => {
                for _ in 0..count {
                    let (number, target) = (from.varint()?, from.text()?);
                    self.classes.insert((target.into(), number), from.text()?.into());
                }
            }
            what if what == ChunkType::Lost as u8 => {
                self.lost = self.lost.checked_add(from.u64()?)?;
            }
            what if what == ChunkType::End as u8 => {
                let sums = (from.u64()?, from.u64()?);
                self.state = State::Complete;
                return (sums == (self.read, self.lost)).then_some(());
            }
            _ => {}
        }
        self.payload = payload;
        Some(())
    }
}

impl<R: Read> Iterator for TraceReader<R> {
    type Item = Result<TraceRecord, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.state == State::Failed {
            return None;
        }
        let next = self.advance();
        if next.is_err() {
            self.state = State::Failed;
        }
        next.transpose()
    }
}

fn take_subject(from: &mut Cursor<'_>) -> Option<(u32, TraceSubject)> {
    let number = from.varint32()?;
    let (uid, gid) = (from.varint32()?, from.varint32()?);
    let projid = match from.varint()? {
        0 => None,
        more => Some(u32::try_from(more - 1).ok()?),
    };
    let job = JobId::new(from.text()?)?;
    let nid = nid(from.text()?)?;
    let who = Identity { job, uid, gid, projid, nid };
    let (export, target) = (from.text()?.to_owned(), from.text()?.to_owned());
    Some((number, TraceSubject { who, export, target }))
}

fn known(id: u32) -> Option<u32> {
    (id != ID_UNKNOWN).then_some(id)
}

/// The node's name, of the two forms that there are.
fn nid(text: &str) -> Option<Nid> {
    match text.strip_suffix("@tcp") {
        Some(address) => Some(Nid::tcp(address.parse().ok()?)),
        None => (text == Nid::local().as_str()).then(Nid::local),
    }
}
