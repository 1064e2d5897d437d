//! Tests of the gate without sockets and devices: requests that are chosen during a fetch.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Weak;

use ninep::Tag;
use rustix::fs::{MemfdFlags, OFlags};
use sched::Costs;

use super::*;
use crate::connection::{Connection, ConnectionPeer};
use crate::credentials::FsCredentials;
use crate::export::{Export, ExportNode};
use crate::fids::{FidState, OpenFid, ProxyUser};
use crate::handles::{HandleKey, HandleTable};
use crate::location::Location;
use crate::writes::{Backing, Writes};

/// One target with one device slot, and an open file of an export that it schedules.
struct GateBed {
    gate: Arc<Gate>,
    fid: Arc<OpenFid>,
    connection: Arc<Connection>,
    peer: UnixStream,
}

fn directory() -> std::os::fd::OwnedFd {
    rustix::fs::open("/tmp", OFlags::DIRECTORY, rustix::fs::Mode::empty()).unwrap()
}

impl GateBed {
    fn new() -> GateBed {
        let dir = directory();
        let backing = Backing { memory_fs: false, ..Backing::probe(dir.as_fd()).unwrap() };
        let writes = Writes::start(backing, None, Bytes::mib(4)).unwrap();
        let costs = Costs::default();
        let settings = sched::TargetParams {
            name: "disk".into(),
            slots_max: 1,
            threads: 1,
            costs,
            latency: None,
            recalibrate: false,
        };
        let gate = Arc::new(Gate::new(Arc::default(), ProxyClock::start(), true));
        let target = Arc::new(Target::new(&gate, settings, true, writes));
        let root = Arc::new(ExportNode::new(directory(), None).unwrap());
        let handles = HandleTable::new(&HandleKey::random().unwrap(), "x", dir, 16);
        let export = Export {
            name: "x".into(),
            dir: "/tmp".into(),
            leases: Default::default(),
            readonly: false,
            root,
            open: directory(),
            target,
            handles,
            project: None,
            projects: api::ProjectsKnown::NoProjects,
            links: Arc::default(),
        };
        let (uid, gid, groups) = (1000, 1000, Arc::from([1000]));
        let credentials = FsCredentials { uid, gid, groups, gid_trusted: false };
        let nid = model::Nid::local();
        let job = model::JobId::default();
        let identity = Identity { job, uid, gid, projid: None, nid: nid.clone() };
        let user = Arc::new(ProxyUser::new(Arc::new(export), credentials, identity, b""));
        let file = rustix::fs::memfd_create("read", MemfdFlags::CLOEXEC).unwrap();
        let node = Arc::new(ExportNode::new(file, None).unwrap());
        let subject = user.subject(Location::default());
        let fid = Arc::new(OpenFid::new(user, node, None, FidState::Path, subject));
        let (socket, client) = UnixStream::pair().unwrap();
        let peer = ConnectionPeer { nid, uid: None, trusted: false };
        let connection = Arc::new(Connection::new(7, socket.into(), peer, Weak::new()));
        GateBed { gate, fid, connection, peer: client }
    }

    /// Enqueues `count` reads of 4 KiB.
    fn enqueue(&self, count: u16) {
        let mut session = self.connection.session.lock().unwrap();
        let read = |tag| {
            let request = ninep::Request::Read { fid: ninep::Fid(1), offset: 0, count: 4096 };
            let asked = crate::parsed_request::ParsedRequest::of(&request).unwrap();
            let file = RequestFile::Fid(self.fid.clone());
            let asked = asked.meta(&file, Location::default());
            let to = session.reply_to(&self.connection, Tag(tag));
            let (frame, looked) = (FrameBuffer::EMPTY, Time::from_nanos(500));
            (
                PendingRequest {
                    to,
                    file,
                    frame,
                    once: None,
                    donor: None,
                    read_after: looked,
                    begun: None,
                },
                asked,
            )
        };
        self.gate.enqueue((0..count).map(read), |_, _| {});
    }

    fn next(&self, finished: &mut Vec<Completion>) -> Vec<RunningRequest> {
        let mut chosen = Vec::new();
        self.gate.next(finished, &mut chosen);
        chosen
    }
}

#[test]
fn a_short_read_that_misses_holds_its_slot_until_it_was_fetched() {
    let bed = GateBed::new();
    // Its file is not in the page cache: reads go to the device from the start.
    (0..3).for_each(|_| bed.fid.misses.count());
    bed.enqueue(64);
    for done in 0..64 {
        let mut chosen = bed.next(&mut Vec::new());
        assert_eq!(chosen.len(), 1, "one slot, {done} done");
        let running = chosen.pop().unwrap();
        assert_eq!((running.meta.lane, running.quick), (Lane::Device, true));
        let tag = running.operation.to.tag;
        bed.gate.miss(running);
        // The kernel is fetching it, and nobody else gets its slot: it comes back, to be
        // waited for.
        let mut chosen = bed.next(&mut Vec::new());
        assert_eq!(chosen.len(), 1, "one slot, {done} done");
        let running = chosen.pop().unwrap();
        assert_eq!((running.operation.to.tag, running.quick), (tag, false));
        assert!(bed.next(&mut Vec::new()).is_empty(), "while it is waited for");
        let finished = running.finished(Amount::new(4096, 1));
        bed.gate.finish(&mut vec![finished]);
    }
    assert!(bed.next(&mut Vec::new()).is_empty());
    assert!(!bed.gate.has_work());
}

#[test]
fn a_file_whose_reads_hit_again_is_read_in_the_cached_lane_again() {
    let bed = GateBed::new();
    let lane = || {
        bed.enqueue(1);
        let running = bed.next(&mut Vec::new()).pop().unwrap();
        let lane = running.meta.lane;
        bed.gate.finish(&mut vec![running.finished(Amount::new(4096, 1))]);
        lane
    };
    assert_eq!(lane(), Lane::Cached);
    (0..2).for_each(|_| bed.fid.misses.count());
    assert_eq!(lane(), Lane::Cached, "two misses may be the end of what was read ahead");
    bed.fid.misses.count();
    assert_eq!(lane(), Lane::Device);
    // What a fast device fetched looks like a hit now and then.
    (0..20).for_each(|_| bed.fid.misses.count());
    (0..8).for_each(|_| bed.fid.misses.make_up());
    assert_eq!(lane(), Lane::Device);
    bed.fid.misses.make_up();
    assert_eq!(lane(), Lane::Cached);
}

#[test]
fn only_what_has_waited_for_long_is_abandoned_with_its_client() {
    let bed = GateBed::new();
    bed.enqueue(1);
    let running = bed.next(&mut Vec::new()).pop().unwrap();
    let abandoned = |now| running.operation.is_abandoned(now);
    let (soon, late) = (Time::from_nanos(1_000_000_500), Time::from_nanos(1_000_000_501));
    assert!(!abandoned(soon) && !abandoned(late), "the client waits");
    bed.peer.shutdown(std::net::Shutdown::Both).unwrap();
    assert!(!abandoned(soon), "the socket is not asked");
    assert!(abandoned(late));
}
