//! What a load asks next: each operation is a cycle of steps, each step one 9P request.
//!
//!   randread   Read                                  create   CloneDir Create Stat Clunk Unlink
//!   fsync      Write Fsync                           (diod)   CloneDir Create Stat Clunk Find Remove
//!
//! A slot is one tag in flight. It goes round its cycle alone, so a load of depth D
//! is D cycles side by side, and an operation's latency is that of its whole cycle.
//! A step that fails does not end its cycle: later steps free what earlier ones made.

use ninep::{Fid, NameList, Request, Tag, getattr, open};

/// An operation, or a cycle or mix of operations, to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WorkOp {
    /// Sequential reads; the requests of one connection follow each other through the file.
    Read,
    /// Reads at random offsets.
    Randread,
    /// Sequential writes to a file of the connection's own.
    Write,
    /// Writes at random offsets of a file of the connection's own.
    Randwrite,
    /// Attributes of an open file.
    Getattr,
    /// Cycles of create, getattr, close and unlink.
    Create,
    /// Cycles of a write at a random offset and fsync.
    Fsync,
    /// Of ten operations five random reads, two random writes and three getattrs.
    Mixed,
    /// Of a hundred operations 80 random reads, 15 getattrs, four cycles of create and one of fsync.
    Interactive,
    /// Cycles of create, write, read, close and unlink, as of a job with many small files.
    Smallfile,
}

/// One request of a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkStep {
    Read,
    Write,
    Getattr,
    Fsync,
    CloneDir,
    Create,
    Stat,
    Clunk,
    Unlink,
    Find,
    Remove,
    WriteNew,
    ReadNew,
}

/// One tag in flight.
#[derive(Clone, Debug)]
pub(crate) struct WorkSlot {
    cycle: &'static [WorkStep],
    at: usize,
    offset: u64,
    sequence: u64,
    /// When the running operation began, in nanoseconds since the load's start.
    pub(crate) began_ns: u64,
    /// A step of the running operation failed.
    pub(crate) failed: bool,
    /// A request of this slot is under way.
    pub(crate) waiting: bool,
}

/// The fids one connection works with, those of job j at index j.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkFids {
    pub(crate) dirs: Vec<Fid>,
    pub(crate) read: Vec<Fid>,
    pub(crate) write: Vec<Fid>,
    /// The first of a run of fids, one for each slot.
    pub(crate) spare: u32,
}

/// The source of one connection's requests.
pub(crate) struct BenchWork {
    op: WorkOp,
    size: u32,
    file_blocks: u64,
    next_block: u64,
    random: u64,
    connection: usize,
    unlinkat: bool,
    pattern: bool,
    fids: WorkFids,
    name: Vec<u8>,
    walk_space: Vec<u8>,
    write_head: Vec<u8>,
}

/// What a [`BenchWork`] is made from.
pub(crate) struct WorkSettings {
    pub(crate) op: WorkOp,
    pub(crate) size: u32,
    pub(crate) file_size: u64,
    pub(crate) connection: usize,
    pub(crate) connections: usize,
    /// Whose load it is: jobs with other names read other places.
    pub(crate) name: String,
    pub(crate) unlinkat: bool,
    /// Blocks of the file that is read begin with their offset.
    pub(crate) pattern: bool,
    pub(crate) fids: WorkFids,
}

impl BenchWork {
    pub(crate) fn new(settings: WorkSettings) -> BenchWork {
        let WorkSettings { op, size, file_size, connection, connections, ref name, .. } = settings;
        let file_blocks = (file_size / u64::from(size.max(1))).max(1);
        let payload = vec![0; size as usize];
        let mut write_head = Vec::new();
        let request = Request::Write { fid: Fid(0), offset: 0, data: &payload };
        request.encode(Tag(0), &mut write_head);
        write_head.truncate(ninep::WRITE_HEADER_LEN);
        BenchWork {
            op,
            size,
            file_blocks,
            // Connections read different parts, or all but the first would find warm cache lines.
            next_block: file_blocks * connection as u64 / connections.max(1) as u64,
            random: seed(name, connection),
            connection,
            unlinkat: settings.unlinkat,
            pattern: settings.pattern,
            fids: settings.fids,
            name: Vec::new(),
            walk_space: Vec::new(),
            write_head,
        }
    }

    /// A slot with nothing under way.
    pub(crate) fn slot(&self) -> WorkSlot {
        let cycle = &[];
        WorkSlot {
            cycle,
            at: 0,
            offset: 0,
            sequence: 0,
            began_ns: 0,
            failed: false,
            waiting: false,
        }
    }

    /// Lets `slot` begin its next operation.
    pub(crate) fn begin(&mut self, slot: &mut WorkSlot, now_ns: u64) {
        slot.cycle = self.choose();
        slot.at = 0;
        slot.sequence += 1;
        slot.began_ns = now_ns;
        slot.failed = false;
        let block = match self.op {
            WorkOp::Read | WorkOp::Write => {
                self.next_block = (self.next_block + 1) % self.file_blocks;
                self.next_block
            }
            _ => self.random() % self.file_blocks,
        };
        slot.offset = block * u64::from(self.size);
    }

    /// Writes the request `slot` stands at; true when the payload is to follow it.
    pub(crate) fn encode(&mut self, slot: &WorkSlot, index: usize, out: &mut Vec<u8>) -> bool {
        let tag = Tag(index as u16);
        let spare = Fid(self.fids.spare + index as u32);
        let job = index + slot.sequence as usize;
        let dir = of_job(&self.fids.dirs, job);
        let request = match slot.step() {
            WorkStep::Write => {
                let fid = of_job(&self.fids.write, job);
                self.encode_write_head(fid, slot.offset, tag, out);
                return true;
            }
            WorkStep::WriteNew => {
                self.encode_write_head(spare, 0, tag, out);
                return true;
            }
            WorkStep::ReadNew => Request::Read { fid: spare, offset: 0, count: self.size },
            WorkStep::Read => Request::Read {
                fid: of_job(&self.fids.read, job),
                offset: slot.offset,
                count: self.size,
            },
            WorkStep::Getattr => {
                Request::Getattr { fid: of_job(&self.fids.read, job), mask: getattr::BASIC }
            }
            WorkStep::Fsync => Request::Fsync { fid: of_job(&self.fids.write, job), datasync: 0 },
            WorkStep::CloneDir => Request::Walk { fid: dir, newfid: spare, names: NameList::EMPTY },
            WorkStep::Stat => Request::Getattr { fid: spare, mask: getattr::BASIC },
            WorkStep::Clunk => Request::Clunk { fid: spare },
            WorkStep::Remove => Request::Remove { fid: spare },
            WorkStep::Create | WorkStep::Unlink | WorkStep::Find => {
                self.set_name(slot, index);
                self.named(slot.step(), dir, spare, tag, out);
                return false;
            }
        };
        request.encode(tag, out);
        false
    }

    /// Whether the `count` and first bytes of a good reply are what the step asked for.
    pub(crate) fn accepts(&self, slot: &WorkSlot, count: u32, head: &[u8]) -> bool {
        match slot.step() {
            WorkStep::Write | WorkStep::WriteNew | WorkStep::ReadNew => count == self.size,
            WorkStep::Read if count != self.size => false,
            WorkStep::Read => match head.first_chunk::<8>() {
                Some(stamp) if self.pattern && slot.offset.is_multiple_of(4096) => {
                    u64::from_le_bytes(*stamp) == slot.offset
                }
                _ => true,
            },
            _ => true,
        }
    }

    /// Bytes one finished operation of this step moved.
    pub(crate) fn bytes(&self, slot: &WorkSlot) -> u64 {
        match slot.cycle[0] {
            WorkStep::Read | WorkStep::Write => u64::from(self.size),
            _ if slot.cycle.contains(&WorkStep::WriteNew) => 2 * u64::from(self.size),
            _ => 0,
        }
    }

    fn encode_write_head(&self, fid: Fid, offset: u64, tag: Tag, out: &mut Vec<u8>) {
        // The payload goes out from one shared buffer, so only the head is made here,
        // from one the codec made: tag at byte 5, fid at 7, offset at 11.
        let at = out.len();
        out.extend_from_slice(&self.write_head);
        let head = &mut out[at..];
        head[5..7].copy_from_slice(&tag.0.to_le_bytes());
        head[7..11].copy_from_slice(&fid.0.to_le_bytes());
        head[11..19].copy_from_slice(&offset.to_le_bytes());
    }

    fn named(&mut self, step: WorkStep, dir: Fid, spare: Fid, tag: Tag, out: &mut Vec<u8>) {
        let name = &self.name[..];
        let request = match step {
            WorkStep::Create => {
                let flags = open::RDWR | open::CREATE;
                Request::Lcreate { fid: spare, name, flags, mode: 0o644, gid: 0 }
            }
            WorkStep::Unlink => Request::Unlinkat { dirfid: dir, name, flags: 0 },
            _ => {
                let names =
                    NameList::pack([name], &mut self.walk_space).expect("one name is not too many");
                return Request::Walk { fid: dir, newfid: spare, names }.encode(tag, out);
            }
        };
        request.encode(tag, out);
    }

    fn set_name(&mut self, slot: &WorkSlot, index: usize) {
        use std::io::Write as _;
        self.name.clear();
        let (connection, sequence) = (self.connection, slot.sequence);
        write!(self.name, "c{connection}s{index}n{sequence}").expect("writing to memory succeeds");
    }

    fn choose(&mut self) -> &'static [WorkStep] {
        match self.op {
            WorkOp::Read | WorkOp::Randread => READ,
            WorkOp::Write | WorkOp::Randwrite => WRITE,
            WorkOp::Getattr => GETATTR,
            WorkOp::Create => self.create(),
            WorkOp::Fsync => WRITE_FSYNC,
            WorkOp::Smallfile => SMALL_FILE,
            WorkOp::Mixed => match self.random() % 10 {
                0..5 => READ,
                5..7 => WRITE,
                _ => GETATTR,
            },
            WorkOp::Interactive => match self.random() % 100 {
                0..80 => READ,
                80..95 => GETATTR,
                95..99 => self.create(),
                _ => WRITE_FSYNC,
            },
        }
    }

    fn create(&self) -> &'static [WorkStep] {
        if self.unlinkat { CREATE } else { CREATE_WITHOUT_UNLINKAT }
    }

    /// xorshift64*: good enough to scatter offsets, and cheap.
    fn random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }
}

impl WorkSlot {
    /// The step under way or about to be.
    pub(crate) fn step(&self) -> WorkStep {
        self.cycle[self.at]
    }

    /// Goes on to the next step; false at the end of the cycle.
    pub(crate) fn advance(&mut self) -> bool {
        self.at += 1;
        self.at < self.cycle.len()
    }
}

impl WorkOp {
    /// Whether it reads the common file.
    pub(crate) fn reads(self) -> bool {
        matches!(
            self,
            WorkOp::Read | WorkOp::Randread | WorkOp::Getattr | WorkOp::Mixed | WorkOp::Interactive
        )
    }

    /// Whether it writes a file of each connection.
    pub(crate) fn writes(self) -> bool {
        matches!(
            self,
            WorkOp::Write | WorkOp::Randwrite | WorkOp::Fsync | WorkOp::Mixed | WorkOp::Interactive
        )
    }
}

/// The beginning of a sequence of its own for each connection of each name, never zero (FNV-1a).
fn seed(name: &str, connection: usize) -> u64 {
    let bytes = name.bytes().chain((connection as u64).to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash | 1
}

/// Operations go round all jobs, also when there are more of them than slots.
fn of_job(fids: &[Fid], job: usize) -> Fid {
    fids[job % fids.len()]
}

const READ: &[WorkStep] = &[WorkStep::Read];
const WRITE: &[WorkStep] = &[WorkStep::Write];
const GETATTR: &[WorkStep] = &[WorkStep::Getattr];
const WRITE_FSYNC: &[WorkStep] = &[WorkStep::Write, WorkStep::Fsync];
const CREATE: &[WorkStep] =
    &[WorkStep::CloneDir, WorkStep::Create, WorkStep::Stat, WorkStep::Clunk, WorkStep::Unlink];
const SMALL_FILE: &[WorkStep] = &[
    WorkStep::CloneDir,
    WorkStep::Create,
    WorkStep::WriteNew,
    WorkStep::ReadNew,
    WorkStep::Clunk,
    WorkStep::Unlink,
];
const CREATE_WITHOUT_UNLINKAT: &[WorkStep] = &[
    WorkStep::CloneDir,
    WorkStep::Create,
    WorkStep::Stat,
    WorkStep::Clunk,
    WorkStep::Find,
    WorkStep::Remove,
];

impl WorkStep {
    /// The message type of a good reply.
    pub(crate) fn reply_kind(self) -> u8 {
        match self {
            WorkStep::Read | WorkStep::ReadNew => 117,
            WorkStep::Write | WorkStep::WriteNew => 119,
            WorkStep::Getattr | WorkStep::Stat => 25,
            WorkStep::Fsync => 51,
            WorkStep::CloneDir | WorkStep::Find => 111,
            WorkStep::Create => 15,
            WorkStep::Clunk => 121,
            WorkStep::Unlink => 77,
            WorkStep::Remove => 123,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(op: WorkOp, unlinkat: bool) -> BenchWork {
        let fids = WorkFids {
            dirs: vec![Fid(1)],
            read: vec![Fid(2), Fid(3)],
            write: vec![Fid(4)],
            spare: 100,
        };
        BenchWork::new(WorkSettings {
            op,
            size: 4096,
            file_size: 16 * 4096,
            connection: 0,
            connections: 1,
            name: "job".into(),
            unlinkat,
            pattern: true,
            fids,
        })
    }

    /// One operation of slot `index`, as the server sees it.
    fn operation(work: &mut BenchWork, slot: &mut WorkSlot, index: usize) -> Vec<String> {
        work.begin(slot, 0);
        let mut seen = Vec::new();
        loop {
            let mut frame = Vec::new();
            if work.encode(slot, index, &mut frame) {
                frame.resize(frame.len() + 4096, 0x5a);
            }
            let (tag, request) = Request::decode(&frame).unwrap();
            assert_eq!(tag, Tag(index as u16));
            let text = match request {
                Request::Write { fid, offset, data } => {
                    format!("Write {} {} {}", fid.0, offset, data.len())
                }
                Request::Lcreate { fid, name, .. } => {
                    format!("Lcreate {} {}", fid.0, name.escape_ascii())
                }
                Request::Unlinkat { dirfid, name, .. } => {
                    format!("Unlinkat {} {}", dirfid.0, name.escape_ascii())
                }
                Request::Walk { fid, newfid, names } => {
                    format!("Walk {} {} {names:?}", fid.0, newfid.0)
                }
                other => format!("{other:?}"),
            };
            seen.push(text);
            if !slot.advance() {
                return seen;
            }
        }
    }

    #[test]
    fn a_create_cycle_leaves_neither_a_file_nor_a_fid() {
        let mut work = work(WorkOp::Create, true);
        let mut slot = work.slot();
        let seen = operation(&mut work, &mut slot, 7);
        assert_eq!(seen[0], "Walk 1 107 []");
        assert_eq!(seen[1], "Lcreate 107 c0s7n1");
        assert_eq!(seen[2], "Getattr { fid: Fid(107), mask: 2047 }");
        assert_eq!(seen[3], "Clunk { fid: Fid(107) }");
        assert_eq!(seen[4], "Unlinkat 1 c0s7n1");
        assert_eq!(operation(&mut work, &mut slot, 7)[1], "Lcreate 107 c0s7n2");
    }

    #[test]
    fn a_small_file_is_written_and_read_before_it_goes() {
        let mut work = work(WorkOp::Smallfile, true);
        let mut slot = work.slot();
        let seen = operation(&mut work, &mut slot, 7);
        assert_eq!(seen[1], "Lcreate 107 c0s7n1");
        assert_eq!(seen[2], "Write 107 0 4096");
        assert_eq!(seen[3], "Read { fid: Fid(107), offset: 0, count: 4096 }");
        assert_eq!(seen[5], "Unlinkat 1 c0s7n1");
        assert_eq!(work.bytes(&slot), 2 * 4096);
    }

    #[test]
    fn a_server_without_unlinkat_gets_walk_and_remove() {
        let mut work = work(WorkOp::Create, false);
        let mut slot = work.slot();
        let seen = operation(&mut work, &mut slot, 0);
        assert_eq!(seen[4], "Walk 1 100 [\"c0s0n1\"]");
        assert_eq!(seen[5], "Remove { fid: Fid(100) }");
    }

    #[test]
    fn writes_are_whole_messages_once_their_payload_follows() {
        let mut work = work(WorkOp::Fsync, true);
        let mut slot = work.slot();
        let seen = operation(&mut work, &mut slot, 3);
        assert_eq!(seen[0], format!("Write 4 {} 4096", slot.offset));
        assert_eq!(seen[1], "Fsync { fid: Fid(4), datasync: 0 }");
    }

    #[test]
    fn slots_share_one_sequence_and_go_round_the_jobs() {
        let mut work = work(WorkOp::Read, true);
        let (mut one, mut two) = (work.slot(), work.slot());
        let read = |fid: u32, block: u32| {
            vec![format!("Read {{ fid: Fid({fid}), offset: {}, count: 4096 }}", block * 4096)]
        };
        assert_eq!(operation(&mut work, &mut one, 0), read(3, 1));
        assert_eq!(operation(&mut work, &mut two, 1), read(2, 2));
        assert_eq!(operation(&mut work, &mut one, 0), read(2, 3));
        for _ in 4..16 {
            operation(&mut work, &mut one, 0);
        }
        assert_eq!(operation(&mut work, &mut two, 1), read(3, 0));
    }

    #[test]
    fn every_connection_of_every_name_reads_other_places() {
        let seeds = [("a", 0), ("a", 1), ("b", 0)].map(|(name, at)| seed(name, at));
        assert!(seeds[0] != seeds[1] && seeds[0] != seeds[2] && seeds[1] != seeds[2]);
    }

    #[test]
    fn a_read_is_accepted_only_with_all_of_its_own_data() {
        let mut work = work(WorkOp::Read, true);
        let mut slot = work.slot();
        operation(&mut work, &mut slot, 0);
        slot.at = 0;
        assert!(work.accepts(&slot, 4096, &4096u64.to_le_bytes()));
        assert!(!work.accepts(&slot, 4096, &8192u64.to_le_bytes()));
        assert!(!work.accepts(&slot, 4095, &4096u64.to_le_bytes()));
    }
}
