//! Requests as bytes in, answers as bytes out: the server without a kernel.

use std::ffi::CStr;
use std::os::unix::net::UnixDatagram;
use std::sync::Mutex;
use std::time::Duration;

use super::*;
use crate::answer::{InodeEntry, WrittenBytes};
use crate::fields::FieldWriter;
use crate::reply::DataReply;

/// A file system that records its calls and the requests that it keeps waiting.
#[derive(Default)]
struct Probe {
    told: Mutex<Vec<String>>,
    waiting: Mutex<Vec<Reply<DataReply>>>,
}

impl Probe {
    fn tell(&self, what: String) {
        self.told.lock().unwrap().push(what);
    }
}

impl FileSystem for Arc<Probe> {
    fn lookup(&self, request: &FuseRequest, name: &CStr, reply: Reply<InodeEntry>) {
        self.tell(format!("lookup {} {name:?}", request.inode.0));
        assert!(name != c"panic", "as the test wants it");
        if name != c"drop" {
            reply.ok(&InodeEntry::absent(Duration::ZERO));
        }
    }

    fn write(&self, _request: &FuseRequest, write: FuseWrite<'_>, reply: Reply<WrittenBytes>) {
        self.tell(format!("write {:?} at {}", write.data, write.offset));
        reply.ok(&WrittenBytes(write.data.len() as u32));
    }

    fn read(&self, _request: &FuseRequest, _read: FuseRead, reply: Reply<DataReply>) {
        self.waiting.lock().unwrap().push(reply);
    }

    fn forget(&self, inode: InodeId, lookups: u64) {
        self.tell(format!("forget {} {lookups}", inode.0));
    }

    fn interrupt(&self, id: FuseRequestId) {
        self.tell(format!("interrupt {}", id.0));
        let mut waiting = self.waiting.lock().unwrap();
        if let Some(at) = waiting.iter().position(|reply| reply.id() == id) {
            waiting.remove(at).error(Errno::INTR);
        }
    }

    fn destroy(&self) {
        self.tell("destroy".to_string());
    }
}

struct Fixture {
    server: Option<FuseServer<Arc<Probe>>>,
    probe: Arc<Probe>,
    device: Arc<FuseDevice>,
    kernel: UnixDatagram,
}

impl Fixture {
    fn new() -> Fixture {
        let (ours, kernel) = UnixDatagram::pair().unwrap();
        kernel.set_nonblocking(true).unwrap();
        let probe = Arc::new(Probe::default());
        let server = Some(FuseServer::new(probe.clone(), true));
        Fixture { server, probe, device: Arc::new(FuseDevice::new(ours.into(), 4096)), kernel }
    }

    /// Serves one request and returns the calls that it caused.
    fn serve(&self, opcode: u32, unique: u64, body: &[u8]) -> Vec<String> {
        let mut put = FieldWriter::new();
        put.u32((IN_HEADER_LEN + body.len()) as u32);
        put.u32(opcode);
        put.u64(unique);
        put.u64(1);
        put.zeros(16);
        let bytes = [put.as_slice(), body].concat();
        self.server.as_ref().unwrap().serve_bytes(&bytes, &self.device);
        std::mem::take(&mut *self.probe.told.lock().unwrap())
    }

    /// The next answer: its error, its unique and the length behind its header.
    fn answer(&self) -> Option<(i32, u64, usize)> {
        let mut packet = [0; 4096];
        let len = self.kernel.recv(&mut packet).ok()?;
        let mut from = FieldReader::new(&packet[..len], &[]);
        assert_eq!(from.u32("len").unwrap() as usize, len);
        Some((from.u32("error").unwrap() as i32, from.u64("unique").unwrap(), len - 16))
    }
}

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const READ: u32 = 15;
const WRITE: u32 = 16;
const INTERRUPT: u32 = 36;
const POLL: u32 = 40;
const BATCH_FORGET: u32 = 42;

#[test]
fn a_request_reaches_its_method_and_its_answer_the_kernel() {
    let fixture = Fixture::new();
    assert_eq!(fixture.serve(LOOKUP, 2, b"name\0"), ["lookup 1 \"name\""]);
    assert_eq!(fixture.answer(), Some((0, 2, 128)));
    let mut body = vec![0; 40];
    (body[8], body[16]) = (9, 3);
    body.extend(b"abc");
    assert_eq!(fixture.serve(WRITE, 4, &body), ["write [97, 98, 99] at 9"]);
    assert_eq!(fixture.answer(), Some((0, 4, 8)));
}

#[test]
fn every_request_is_answered_whatever_becomes_of_it() {
    let fixture = Fixture::new();
    fixture.serve(LOOKUP, 2, b"drop\0");
    assert_eq!(fixture.answer(), Some((-5, 2, 0)));
    fixture.serve(LOOKUP, 4, b"panic\0");
    assert_eq!(fixture.answer(), Some((-5, 4, 0)));
    assert_eq!(fixture.serve(LOOKUP, 6, b"without NUL"), [""; 0]);
    assert_eq!(fixture.answer(), Some((-5, 6, 0)));
    assert_eq!(fixture.serve(WRITE, 8, &[0; 7]), [""; 0]);
    assert_eq!(fixture.answer(), Some((-5, 8, 0)));
    fixture.serve(POLL, 10, &[0; 24]);
    assert_eq!(fixture.answer(), Some((-38, 10, 0)));
    fixture.serve(9999, 12, &[]);
    assert_eq!(fixture.answer(), Some((-38, 12, 0)));
    assert_eq!(fixture.server.as_ref().unwrap().inflight.len(), 0);
}

#[test]
fn what_is_forgotten_is_not_answered() {
    let fixture = Fixture::new();
    assert_eq!(fixture.serve(FORGET, 2, &3u64.to_ne_bytes()), ["forget 1 3"]);
    let mut batch = FieldWriter::new();
    batch.u32(2);
    batch.zeros(4);
    for (inode, lookups) in [(7, 1), (8, 2)] {
        batch.u64(inode);
        batch.u64(lookups);
    }
    assert_eq!(fixture.serve(BATCH_FORGET, 4, batch.as_slice()), ["forget 7 1", "forget 8 2"]);
    // One that says it has more than it brings stops there.
    assert_eq!(fixture.serve(BATCH_FORGET, 6, &batch.as_slice()[..24]), ["forget 7 1"]);
    assert_eq!(fixture.answer(), None);
}

#[test]
fn an_interrupt_finds_its_request_before_and_after_it_came() {
    let fixture = Fixture::new();
    let id = |id: u64| id.to_ne_bytes();
    fixture.serve(READ, 2, &[0; 40]);
    assert_eq!(fixture.answer(), None);
    assert_eq!(fixture.serve(INTERRUPT, 3, &id(2)), ["interrupt 2"]);
    assert_eq!(fixture.answer(), Some((-4, 2, 0)));
    // Overtaken by its interrupt: delivered when the method has stored it.
    assert_eq!(fixture.serve(INTERRUPT, 5, &id(4)), [""; 0]);
    assert_eq!(fixture.serve(READ, 4, &[0; 40]), ["interrupt 4"]);
    assert_eq!(fixture.answer(), Some((-4, 4, 0)));
    // Answered before: nobody is bothered.
    fixture.serve(LOOKUP, 6, b"x\0");
    assert_eq!(fixture.answer(), Some((0, 6, 128)));
    assert_eq!(fixture.serve(INTERRUPT, 7, &id(6)), [""; 0]);
    assert_eq!(fixture.answer(), None);
}

#[test]
fn a_reply_may_be_answered_later_and_elsewhere() {
    let fixture = Fixture::new();
    let mut body = [0; 40];
    body[16] = 3;
    fixture.serve(READ, 2, &body);
    assert_eq!(fixture.server.as_ref().unwrap().inflight.len(), 1);
    let reply = fixture.probe.waiting.lock().unwrap().pop().unwrap();
    assert_eq!(reply.room(), 3);
    std::thread::spawn(move || reply.bytes(b"abcdef")).join().unwrap();
    assert_eq!(fixture.answer(), Some((0, 2, 3)));
    assert_eq!(fixture.server.as_ref().unwrap().inflight.len(), 0);
}

#[test]
fn the_end_is_told_once() {
    let mut fixture = Fixture::new();
    fixture.server = None;
    assert_eq!(*fixture.probe.told.lock().unwrap(), ["destroy"]);
}
