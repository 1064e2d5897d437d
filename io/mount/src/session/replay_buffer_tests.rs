//! Tests of what is written once more, and of who waits for room.

use super::*;
use crate::nodes::Nodes;
use ninep::Attributes;
use std::time::Duration;

const MIB: u64 = 1 << 20;

struct Bench {
    kept: ReplayBuffer,
    nodes: Nodes,
}

impl Bench {
    fn new(limit: u64) -> Bench {
        Bench { kept: ReplayBuffer::new(limit), nodes: Nodes::new(b"root", Duration::ZERO) }
    }

    fn write(&self, offset: u64, data: &[u8]) -> SentWrite {
        let node = self.nodes.lookup(b"file", &Attributes::default());
        let fid = ninep::Fid(7);
        let message = ExtRequest::Write { fid, offset, flags: WRITE_KILL_PRIV, data };
        let frame = CallFrame::new(HandleList::NONE, message);
        let place = offset..offset + data.len() as u64;
        SentWrite { node, payer: SessionIdentity::known(1, 64, 1 << 22), frame, range: place }
    }

    /// Keeps a write; true if a commit is to be asked for.
    fn keep(&self, epoch: u64, number: u64, data: &[u8]) -> bool {
        self.kept.insert(epoch, number, self.write(number * 100, data))
    }

    fn heard(&self, epoch: u64, verifier: u64, committed: u64) -> Changed {
        self.kept.handle_header(
            epoch,
            ReplyHeader { verifier, commit_watermark: committed, ..ReplyHeader::default() },
        )
    }
}

fn waiter(thread: u32) -> CallWaiter {
    CallWaiter { request: fuse::FuseRequestId(1), thread }
}

#[test]
fn what_the_machine_lost_is_written_once_more_by_its_handle_in_order() {
    let bench = Bench::new(MIB);
    bench.heard(1, 9, 0);
    for (number, data) in [(1, &b"one"[..]), (2, b"two"), (3, b"three")] {
        bench.keep(1, number, data);
    }
    bench.heard(1, 9, 1);
    let losses = bench.kept.losses();
    let lost = bench.heard(1, 10, 1).lost_writes;
    assert_ne!(bench.kept.losses(), losses);
    let again: Vec<_> = lost
        .iter()
        .map(|lost| {
            let (_, header, message) = decode_request(lost.frame.bytes()).unwrap();
            assert_eq!(header.handles, HandleList::one(b"file"));
            match message {
                AnyRequest::Ext(ExtRequest::Write { fid, offset, flags, data }) => {
                    assert_eq!((fid, flags), (handle_fid(0), WRITE_KILL_PRIV));
                    (offset, data.to_vec())
                }
                other => panic!("{other:?}"),
            }
        })
        .collect();
    assert_eq!(again, [(200, b"two".to_vec()), (300, b"three".to_vec())]);
    assert_eq!(lost[1].range, 300..305);
    assert!(bench.kept.oldest().is_none() && !bench.kept.is_full());
    assert!(bench.heard(1, 10, 1).lost_writes.is_empty(), "once");
}

#[test]
fn an_append_is_written_once_more_where_it_was() {
    let bench = Bench::new(MIB);
    bench.heard(1, 9, 0);
    let message = ExtRequest::Append { fid: ninep::Fid(7), flags: 0, data: b"line" };
    let frame = CallFrame::new(HandleList::NONE, message);
    bench.kept.insert(1, 1, SentWrite { frame, range: 40..44, ..bench.write(0, b"") });
    let lost = bench.heard(1, 10, 0).lost_writes;
    let (_, _, message) = decode_request(lost[0].frame.bytes()).unwrap();
    let expected = ExtRequest::Write { fid: handle_fid(0), offset: 40, flags: 0, data: b"line" };
    assert_eq!(message, expected.into());
}

#[test]
fn who_finds_no_room_waits_for_the_commit_or_dies() {
    let bench = Bench::new(10);
    bench.heard(1, 9, 0);
    assert!(!bench.keep(1, 1, b"12345"));
    assert!(bench.keep(1, 2, b"67890"));
    assert!(bench.kept.is_full());
    let told = Arc::new(Mutex::new(Vec::new()));
    for thread in [7, 8] {
        let told = told.clone();
        let then = Box::new(move |_| lock(&told).push(thread));
        assert!(bench.kept.wait(waiter(thread), then).is_none());
    }
    let now = Instant::now();
    bench.kept.detach_killed(now, |thread| thread == 8).into_iter().for_each(|then| then(Ok(())));
    assert!(bench.kept.detach_killed(now, |_| true).is_empty(), "it looks once in a while");
    assert_eq!(*lock(&told), [8]);
    bench.heard(1, 9, 2).ready.into_iter().for_each(|then| then(Ok(())));
    assert_eq!(*lock(&told), [8, 7]);
    // A commit that fails holds nobody up.
    bench.kept.committed(1, false);
    bench.keep(1, 3, b"0123456789");
    let then = Box::new(|_| {});
    assert!(bench.kept.wait(waiter(7), then).is_none());
    assert_eq!(bench.kept.committed(1, false).len(), 1);
    assert!(bench.kept.wait(waiter(7), Box::new(|_| {})).is_some());
}
