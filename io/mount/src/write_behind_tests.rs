//! Tests of writes that are acknowledged early.

use super::*;
use crate::files::OpenFiles;
use crate::nodes::Nodes;
use crate::session::SessionIdentity;
use fuse::FuseRequestId;
use ninep::dialect::{AnyRequest, decode_request, handle_fid};
use ninep::{Attributes, open};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

const PAYLOAD: u32 = 1 << 20;

struct Bench {
    all: WriteBehind,
    files: OpenFiles,
    nodes: Nodes,
}

impl Bench {
    fn new() -> Bench {
        let (all, files) = Default::default();
        Bench { all, files, nodes: Nodes::new(b"root", Duration::ZERO) }
    }

    fn open(&self, name: &[u8]) -> Arc<OpenFile> {
        let node = self.nodes.lookup(name, &Attributes::default());
        let fid = self.files.reserve().unwrap();
        self.files.opened(fid, node, SessionIdentity::known(1, 64, 1 << 22), open::WRONLY)
    }

    fn executed(&self, file: &OpenFile, number: u64) -> Vec<OnReady> {
        self.all.executed(&file.node, &file.payer, number)
    }

    fn put(&self, file: &Arc<OpenFile>, offset: u64, data: &[u8]) -> BufferOutcome {
        self.all.put(file, WritePiece { offset, data, kill_set_id: false }, PAYLOAD)
    }
}

/// Where a run writes, and what.
fn message(run: &WriteRun) -> (u64, Vec<u8>) {
    match decode_request(run.write.frame.bytes()).unwrap().2 {
        AnyRequest::Ext(ExtRequest::Write { offset, data, .. }) => (offset, data.to_vec()),
        other => panic!("{other:?}"),
    }
}

/// Counts how often it may continue.
fn held(until: WaitUntil, thread: u32) -> (WriteWaiter, Arc<AtomicU32>) {
    let told = Arc::new(AtomicU32::new(0));
    let count = told.clone();
    let then = Box::new(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let waiter = Some(CallWaiter { request: FuseRequestId(1), thread });
    (WriteWaiter { until, waiter, then }, told)
}

fn go(ready: Vec<OnReady>) {
    ready.into_iter().for_each(|then| then(Ok(())));
}

#[test]
fn what_continues_the_last_write_travels_with_it_while_others_are_under_way() {
    let bench = Bench::new();
    let file = bench.open(b"a");
    let behind = &file.node.write_behind;
    for piece in 0..DEPTH as u64 {
        assert_eq!(bench.put(&file, piece * 4, b"aaaa"), BufferOutcome::Buffered);
        assert_eq!(message(&behind.begin().unwrap()), (piece * 4, b"aaaa".to_vec()));
    }
    bench.put(&file, 16, b"bbbb");
    assert!(behind.begin().is_none(), "enough is in flight");
    bench.put(&file, 20, b"cc");
    bench.put(&file, 30, b"dd");
    go(bench.executed(&file, NEW + 2));
    assert_eq!(message(&behind.begin().unwrap()), (16, b"bbbbcc".to_vec()));
    assert!(behind.begin().is_none());
    go(bench.executed(&file, NEW + 1));
    assert_eq!(message(&behind.begin().unwrap()), (30, b"dd".to_vec()));
}

#[test]
fn what_overlaps_waits_for_what_was_written_before() {
    let bench = Bench::new();
    let (file, other) = (bench.open(b"a"), bench.open(b"a"));
    let behind = &file.node.write_behind;
    bench.put(&file, 0, b"first");
    behind.begin().unwrap();
    bench.put(&other, 4, b"second");
    bench.put(&other, 100, b"third");
    assert!(behind.begin().is_none(), "the second changes a byte of the first");
    go(bench.executed(&file, NEW + 1));
    assert_eq!(message(&behind.begin().unwrap()), (4, b"second".to_vec()));
    assert_eq!(message(&behind.begin().unwrap()), (100, b"third".to_vec()));
}

#[test]
fn who_waits_goes_on_when_what_was_written_before_is_executed_and_no_later() {
    let bench = Bench::new();
    let file = bench.open(b"a");
    let behind = &file.node.write_behind;
    let (nothing, told) = held(WaitUntil::Executed, 7);
    assert!(behind.wait(nothing).is_err(), "nothing is to be waited for");
    bench.put(&file, 0, b"one");
    let first = behind.begin().unwrap();
    bench.put(&file, 50, b"two");
    let (waits, later) = held(WaitUntil::Executed, 7);
    assert!(behind.wait(waits).is_ok());
    // What comes now is not waited for, and does not make what is waited for larger.
    bench.put(&file, 53, b"three");
    let second = behind.begin().unwrap();
    assert_eq!(message(&second).1, b"two");
    let third = behind.begin().unwrap();
    assert_eq!(message(&third).1, b"three");
    go(bench.executed(&file, second.number));
    assert_eq!(later.load(Ordering::SeqCst), 0);
    go(bench.executed(&file, first.number));
    assert_eq!((later.load(Ordering::SeqCst), told.load(Ordering::SeqCst)), (1, 0));
    assert!(!behind.is_idle());
    go(bench.executed(&file, third.number));
    assert!(behind.is_idle() && !bench.all.any());
}

#[test]
fn a_file_and_a_payer_have_bounds() {
    let bench = Bench::new();
    let large = vec![0; PAYLOAD as usize];
    let mut files: Vec<_> = (0..4).map(|number| bench.open(&[number])).collect();
    for file in &files {
        for piece in 0..4 {
            assert_eq!(
                bench.put(file, piece * u64::from(PAYLOAD), &large),
                BufferOutcome::Buffered
            );
        }
        assert_eq!(bench.put(file, 1 << 30, b"x"), BufferOutcome::Full);
    }
    files.push(bench.open(b"another"));
    let [first, .., another] = &files[..] else { unreachable!() };
    // Each payer here is an identity of its own, as `SessionIdentity::known` makes them.
    assert_eq!(bench.put(another, 0, b"x"), BufferOutcome::Buffered);
    let (waits, told) = held(WaitUntil::Room(1), 7);
    assert!(first.node.write_behind.wait(waits).is_ok());
    let run = first.node.write_behind.begin().unwrap();
    go(bench.executed(first, run.number));
    assert_eq!(told.load(Ordering::SeqCst), 1);
    assert_eq!(bench.put(first, 1 << 30, b"x"), BufferOutcome::Buffered);
    another.payer.write_behind.store(PAYER_MAX, Ordering::SeqCst);
    assert_eq!(bench.put(another, 9, b"x"), BufferOutcome::NoRoom);
}

#[test]
fn who_is_killed_waits_no_longer_and_what_was_written_goes_on() {
    let bench = Bench::new();
    let file = bench.open(b"a");
    bench.put(&file, 0, b"one");
    let run = file.node.write_behind.begin().unwrap();
    let ((killed, dead), (waits, alive)) =
        (held(WaitUntil::Executed, 7), held(WaitUntil::Executed, 8));
    assert!(
        file.node.write_behind.wait(killed).is_ok() && file.node.write_behind.wait(waits).is_ok()
    );
    let now = Instant::now();
    go(bench.all.detach_killed(now, |thread| thread == 7));
    assert!(bench.all.detach_killed(now, |_| true).is_empty(), "it looks once in a while");
    assert_eq!((dead.load(Ordering::SeqCst), alive.load(Ordering::SeqCst)), (1, 0));
    go(bench.executed(&file, run.number));
    assert_eq!((dead.load(Ordering::SeqCst), alive.load(Ordering::SeqCst)), (1, 1));
}

fn written(end: u64) -> WaitingSince {
    WaitingSince::Written { end, kill_set_id: false }
}

#[test]
fn set_id_bits_are_gone_once_who_may_not_keep_them_has_written() {
    let bench = Bench::new();
    let file = bench.open(b"a");
    let behind = &file.node.write_behind;
    let mode = |then, mode| {
        let told = Attributes { mode, ..Attributes::default() };
        behind.since(then).applied_to(told).attributes.mode
    };
    let first = bench.all.now();
    bench.put(&file, 0, b"kept");
    assert_eq!(mode(first, 0o106_777), 0o106_777);
    let piece = WritePiece { offset: 4, data: b"killed", kill_set_id: true };
    assert_eq!(bench.all.put(&file, piece, PAYLOAD), BufferOutcome::Buffered);
    for waits in [true, false] {
        assert_eq!(mode(bench.all.now(), 0o106_777), 0o100_777, "waits: {waits}");
        assert_eq!(
            mode(bench.all.now(), 0o106_767),
            0o102_767,
            "of a group without x the bit means locking"
        );
        if waits {
            let runs = [behind.begin().unwrap(), behind.begin().unwrap()];
            go(bench.executed(&file, runs[0].number));
            go(bench.executed(&file, runs[1].number));
            assert_eq!(mode(first, 0o106_777), 0o100_777, "asked for before it was executed");
            // The attributes that are asked for now have it.
            assert_eq!(mode(bench.all.now(), 0o106_777), 0o106_777);
            bench.all.put(&file, piece, PAYLOAD);
            behind.begin().unwrap();
        }
    }
}

#[test]
fn attributes_that_were_asked_for_before_a_write_was_executed_are_old() {
    let bench = Bench::new();
    let file = bench.open(b"a");
    let behind = &file.node.write_behind;
    let asked = bench.all.now();
    assert_eq!(behind.since(asked), WaitingSince::Same);
    bench.put(&file, 7, b"one");
    assert_eq!(behind.since(bench.all.now()), written(10), "it is not executed");
    let run = behind.begin().unwrap();
    assert_eq!(behind.since(bench.all.now()), written(10), "nor is it now");
    go(bench.executed(&file, run.number));
    assert_eq!((behind.since(asked), behind.reach(asked)), (written(10), 10));
    assert_eq!(behind.since(bench.all.now()), WaitingSince::Same);
    let asked = bench.all.now();
    bench.all.changed(&file.node);
    assert_eq!(behind.since(asked), WaitingSince::Changed);
    let told = Attributes { size: 12, ..Attributes::default() };
    let size = |since: WaitingSince| since.applied_to(told).attributes.size;
    assert_eq!((size(written(10)), size(written(14)), size(WaitingSince::Same)), (12, 14, 12));
}

#[test]
fn ends_of_runs_are_known_to_who_asked_before_each_and_bounded() {
    let bench = Bench::new();
    let file = bench.open(b"a");
    let execute = |offset| {
        bench.put(&file, offset, b"x");
        let run = file.node.write_behind.begin().unwrap();
        go(bench.executed(&file, run.number));
    };
    let behind = &file.node.write_behind;
    let first = bench.all.now();
    execute(99);
    let second = bench.all.now();
    execute(49);
    assert_eq!((behind.reach(first), behind.reach(second)), (100, 50));
    execute(59);
    assert_eq!((behind.reach(first), behind.reach(second)), (100, 60));
    let third = bench.all.now();
    (0..=ENDED_MAX as u64).rev().for_each(execute);
    assert_eq!(behind.since(first), WaitingSince::Changed, "the furthest end is forgotten");
    assert_eq!(behind.since(third), WaitingSince::Changed);
    assert_eq!(lock(&behind.state).ended.len(), ENDED_MAX);
}

#[test]
fn who_reads_waits_for_what_was_written_there_alone() {
    let bench = Bench::new();
    let file = bench.open(b"a");
    let behind = &file.node.write_behind;
    bench.put(&file, 0, b"first");
    let first = behind.begin().unwrap();
    bench.put(&file, 100, b"second");
    let second = behind.begin().unwrap();
    let (elsewhere, _) = held(WaitUntil::Read(5..100), 1);
    assert!(behind.wait(elsewhere).is_err(), "nothing is written there");
    let (there, told) = held(WaitUntil::Read(4..50), 1);
    assert!(behind.wait(there).is_ok());
    bench.put(&file, 0, b"again");
    go(bench.executed(&file, second.number));
    assert_eq!(told.load(Ordering::SeqCst), 0);
    go(bench.executed(&file, first.number));
    assert_eq!(told.load(Ordering::SeqCst), 1, "what was written later is not waited for");
}

#[test]
fn what_was_lost_goes_before_what_is_new_in_the_order_in_which_it_was_written() {
    let bench = Bench::new();
    let file = bench.open(b"a");
    let behind = &file.node.write_behind;
    for piece in 0..DEPTH as u64 {
        bench.put(&file, piece * 100, b"under way");
        behind.begin().unwrap();
    }
    bench.put(&file, 2, b"new");
    let (waits, told) = held(WaitUntil::Executed, 7);
    assert!(behind.wait(waits).is_ok());
    for data in [&b"older"[..], b"old"] {
        let (node, payer) = (file.node.clone(), file.payer.clone());
        let message = ExtRequest::Write { fid: handle_fid(0), offset: 1000, flags: 0, data };
        let frame = CallFrame::new(HandleList::one(b"a"), message);
        bench.all.requeue_lost(SentWrite {
            node,
            payer,
            frame,
            range: 1000..1000 + data.len() as u64,
        });
    }
    for number in 1..=DEPTH as u64 {
        go(bench.executed(&file, NEW + number));
    }
    let older = behind.begin().unwrap();
    assert_eq!(message(&older).1, b"older");
    assert!(behind.begin().is_none(), "the other one overlaps it");
    go(bench.executed(&file, older.number));
    let old = behind.begin().unwrap();
    assert_eq!(message(&old).1, b"old");
    let new = behind.begin().unwrap();
    assert_eq!(message(&new).1, b"new");
    go(bench.executed(&file, new.number));
    assert_eq!(told.load(Ordering::SeqCst), 0, "who waits wants what was lost too");
    go(bench.executed(&file, old.number));
    assert_eq!(told.load(Ordering::SeqCst), 1);
    assert!(behind.is_idle() && !bench.all.any());
}

#[test]
fn what_others_write_before_goes_in_the_lane_of_who_waits() {
    let bench = Bench::new();
    let file = bench.open(b"a");
    let behind = &file.node.write_behind;
    for piece in 0..DEPTH as u64 + 3 {
        bench.put(&file, piece * 100, b"aaaa");
        behind.begin();
    }
    let donor = SessionIdentity::known(2, 64, 1 << 22);
    let (there, _) = held(WaitUntil::Read(500..504), 7);
    let until = behind.wait(there).unwrap();
    assert!(behind.donate(&until, &file.payer).is_empty(), "it has a queue of its own");
    let begun = behind.donate(&until, &donor);
    assert_eq!(begun, [0..4, 100..104, 200..204, 300..304]);
    (1..=DEPTH as u64).for_each(|run| go(bench.executed(&file, NEW + run)));
    let donors = std::iter::from_fn(|| behind.begin()).map(|run| run.donor.is_some());
    assert_eq!(donors.collect::<Vec<_>>(), [true, true, false], "the last is not waited for");
}
