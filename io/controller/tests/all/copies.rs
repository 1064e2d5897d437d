//! A standing controller copies the leader's ledger, and goes on from it when the leader
//! is dead.

#![allow(clippy::unwrap_used, reason = "what fails here is the test")]

use std::path::Path;

use crate::proxies::{Proxy, Xorshift, bytes_by, bytes_of_all, open, tick_through, time};
use controller::ledger::{
    Ledger, LedgerBounds, LedgerError, ReplicationBatch, Retention, SubjectKind,
};
use testkit::TestFolder;

/// Brings `copy` up to `leader`, as a standing controller does each second.
fn follow(leader: &mut Ledger, copy: &mut Ledger, path: &Path) {
    match leader.copy_since(&copy.cursor()).unwrap() {
        ReplicationBatch::Changes(changes) => copy.apply(&changes).unwrap(),
        ReplicationBatch::CopyFile => {
            let _ = std::fs::remove_file(path);
            leader.save_to(path).unwrap();
            *copy = open(path);
            let ReplicationBatch::Changes(changes) = leader.copy_since(&copy.cursor()).unwrap()
            else {
                panic!("the whole file was not enough");
            };
            copy.apply(&changes).unwrap();
        }
    }
}

#[test]
fn a_copy_answers_as_the_leader_does() {
    let folder = TestFolder::new();
    let path = folder.path().join("copy");
    let mut leader = open(&folder.path().join("leader"));
    let mut copy = open(&folder.path().join("empty"));
    let mut proxy = Proxy::new("p1");
    for minute in 0..20 {
        leader.tick(time(minute)).unwrap();
        proxy.serve(minute % 4, 10);
        proxy.report(&mut leader, time(minute));
        if minute > 0 {
            follow(&mut leader, &mut copy, &path);
            for kind in SubjectKind::ALL {
                assert_eq!(bytes_by(&mut copy, *kind), bytes_by(&mut leader, *kind), "{kind:?}");
            }
        }
    }
    let over = |ledger: &mut Ledger| ledger.series(SubjectKind::Proxy, "p1", time(0), time(18));
    assert_eq!(over(&mut copy).unwrap(), over(&mut leader).unwrap());
}

#[test]
fn with_a_leader_no_usage_dies_that_a_proxy_still_knows() {
    // three controllers in turn: whoever leads dies, another goes on from its own copy
    let folder = TestFolder::new();
    let mut random = Xorshift(0x5eed_c0b1);
    let path = |name: usize, turn: u64| folder.path().join(format!("{name}-{turn}"));
    let mut ledgers: Vec<Ledger> = (0..3).map(|i| open(&path(i, 0))).collect();
    let mut proxies: Vec<Proxy> = (0..3).map(|i| Proxy::new(&format!("p{i}"))).collect();
    let (mut served, mut minute, mut leader, mut wholes) = (0, 0, 0, 0);
    for turn in 1..=20 {
        ledgers[leader].lead(turn);
        for _ in 0..60 {
            let at = random.below(3) as usize;
            let bytes = random.below(100);
            proxies[at].serve(random.below(10), bytes);
            served += bytes;
            match random.below(6) {
                0..3 => drop(proxies[at].report(&mut ledgers[leader], time(minute))),
                3 => {
                    minute += 1;
                    ledgers[leader].tick(time(minute)).unwrap();
                }
                _ => {
                    let standing = (leader + 1 + random.below(2) as usize) % 3;
                    let mut copy = std::mem::replace(
                        &mut ledgers[standing],
                        open(&folder.path().join("placeholder")),
                    );
                    let place = path(standing, turn * 1_000 + wholes);
                    follow(&mut ledgers[leader], &mut copy, &place);
                    wholes += 1;
                    ledgers[standing] = copy;
                }
            }
        }
        // the leader dies with what it had not passed on; its own file stays for later
        leader = (leader + 1 + random.below(2) as usize) % 3;
        for proxy in &mut proxies {
            proxy.report(&mut ledgers[leader], time(minute));
        }
        assert_eq!(bytes_of_all(&mut ledgers[leader], SubjectKind::Proxy), served, "turn {turn}");
        assert_eq!(bytes_of_all(&mut ledgers[leader], SubjectKind::Job), served, "turn {turn}");
        minute += 1;
        ledgers[leader].lead(turn + 1);
        ledgers[leader].flush(time(minute)).unwrap();
    }
}

#[test]
fn a_copy_whose_process_dies_goes_on_from_its_last_commit() {
    let folder = TestFolder::new();
    let path = folder.path().join("copy");
    let mut leader = open(&folder.path().join("leader"));
    let mut copy = open(&folder.path().join("empty"));
    let mut proxy = Proxy::new("p1");
    for minute in 0..10 {
        leader.tick(time(minute)).unwrap();
        proxy.serve(1, 1 << minute);
        proxy.report(&mut leader, time(minute));
        if minute > 0 {
            follow(&mut leader, &mut copy, &path);
        }
        if minute == 5 {
            drop(copy);
            copy = open(&path);
        }
    }
    assert_eq!(bytes_of_all(&mut copy, SubjectKind::Job), 1_023);
    drop(copy);
    let mut alone = open(&path);
    proxy.report(&mut alone, time(10));
    assert_eq!(bytes_of_all(&mut alone, SubjectKind::Job), 1_023);
}

#[test]
fn sums_of_a_line_that_is_gone_outlive_the_leader_and_its_copys_process() {
    let folder = TestFolder::new();
    let path = folder.path().join("copy");
    let mut leader = open(&folder.path().join("leader"));
    let mut copy = open(&folder.path().join("empty"));
    let mut proxy = Proxy::new("p1");
    leader.flush(time(0)).unwrap();
    follow(&mut leader, &mut copy, &path);
    leader.flush(time(1)).unwrap();
    proxy.serve(1, 30);
    proxy.report(&mut leader, time(1));
    proxy.drop_line(1);
    proxy.report(&mut leader, time(1));
    follow(&mut leader, &mut copy, &path);
    assert_eq!(bytes_by(&mut copy, SubjectKind::Job)["job1"], 30);
    drop((leader, copy));
    let mut alone = open(&path);
    proxy.report(&mut alone, time(2));
    assert_eq!(bytes_by(&mut alone, SubjectKind::Job)["job1"], 30);
    assert_eq!(bytes_of_all(&mut alone, SubjectKind::Proxy), 30);
}

#[test]
fn a_deposed_leader_forgets_what_its_successor_never_heard() {
    let folder = TestFolder::new();
    let path = folder.path().join("second");
    let mut first = open(&folder.path().join("first"));
    let mut second = open(&folder.path().join("empty"));
    let mut proxy = Proxy::new("p1");
    first.lead(1);
    first.flush(time(0)).unwrap();
    follow(&mut first, &mut second, &path);
    proxy.serve(1, 30);
    proxy.report(&mut first, time(1));
    proxy.drop_line(1);
    proxy.report(&mut first, time(1));
    second.lead(2);
    follow(&mut second, &mut first, &folder.path().join("again"));
    assert_eq!(bytes_of_all(&mut first, SubjectKind::Proxy), 0);
    first.lead(3);
    proxy.report(&mut first, time(2));
    assert_eq!(bytes_of_all(&mut first, SubjectKind::Proxy), 30);
}

#[test]
fn a_copy_of_another_history_or_far_behind_takes_the_whole() {
    let folder = TestFolder::new();
    let mut leader = open(&folder.path().join("leader"));
    let mut other = open(&folder.path().join("other"));
    leader.lead(2);
    other.lead(1);
    for minute in 0..5 {
        leader.tick(time(minute)).unwrap();
        other.tick(time(minute)).unwrap();
    }
    assert_eq!(leader.cursor().commit, other.cursor().commit);
    assert_eq!(leader.copy_since(&other.cursor()).unwrap(), ReplicationBatch::CopyFile);
    let behind = leader.cursor();
    assert!(matches!(leader.copy_since(&behind).unwrap(), ReplicationBatch::Changes(_)));
    tick_through(&mut leader, 5..50);
    assert_eq!(leader.copy_since(&behind).unwrap(), ReplicationBatch::CopyFile);
}

#[test]
fn a_copy_that_is_cut_off_or_follows_something_else_is_refused() {
    let folder = TestFolder::new();
    let mut leader = open(&folder.path().join("leader"));
    let mut proxy = Proxy::new("p1");
    leader.flush(time(0)).unwrap();
    let path = folder.path().join("copy");
    leader.save_to(&path).unwrap();
    proxy.serve(1, 100);
    proxy.report(&mut leader, time(0));
    leader.flush(time(1)).unwrap();
    let cursor = open(&path).cursor();
    let ReplicationBatch::Changes(changes) = leader.copy_since(&cursor).unwrap() else {
        panic!("whole")
    };
    for length in 0..changes.len() {
        let cut = folder.path().join(format!("cut{length}"));
        std::fs::copy(&path, &cut).unwrap();
        let error = open(&cut).apply(&changes[..length]).unwrap_err();
        assert!(matches!(error, LedgerError::Copy { .. }), "{length}: {error}");
        std::fs::remove_file(&cut).unwrap();
    }
    let mut copy = open(&path);
    copy.apply(&changes).unwrap();
    assert_eq!(bytes_of_all(&mut copy, SubjectKind::Job), 100);
    let error = copy.apply(&changes).unwrap_err().to_string();
    assert!(error.contains("it follows commit 1"), "{error}");
}

#[test]
fn a_copy_with_a_wrong_byte_is_taken_or_refused_and_the_file_stays_whole() {
    let folder = TestFolder::new();
    let mut leader = open(&folder.path().join("leader"));
    leader.flush(time(0)).unwrap();
    let path = folder.path().join("copy");
    leader.save_to(&path).unwrap();
    let mut proxy = Proxy::new("p1");
    (0..3).for_each(|job| proxy.serve(job, 100));
    proxy.report(&mut leader, time(0));
    leader.flush(time(1)).unwrap();
    proxy.serve(1, 7);
    proxy.report(&mut leader, time(1));
    let cursor = open(&path).cursor();
    let ReplicationBatch::Changes(changes) = leader.copy_since(&cursor).unwrap() else {
        panic!("whole")
    };
    let (mut refused, mut random) = (0, Xorshift(0x5eed_f11b));
    for at in 0..changes.len() {
        let mut wrong = changes.clone();
        wrong[at] ^= 1 + random.below(255) as u8;
        let place = folder.path().join(format!("wrong{at}"));
        std::fs::copy(&path, &place).unwrap();
        refused += u32::from(open(&place).apply(&wrong).is_err());
        let mut after = open(&place);
        bytes_of_all(&mut after, SubjectKind::Job);
        proxy.report(&mut after, time(2));
        after.flush(time(2)).unwrap();
    }
    assert!(refused as usize > changes.len() / 4, "{refused} of {}", changes.len());
}

#[test]
fn a_copy_with_less_room_says_so() {
    let folder = TestFolder::new();
    let mut leader = open(&folder.path().join("leader"));
    leader.flush(time(0)).unwrap();
    let path = folder.path().join("copy");
    leader.save_to(&path).unwrap();
    let mut proxy = Proxy::new("p1");
    (0..10).for_each(|job| proxy.serve(job, 1));
    proxy.report(&mut leader, time(0));
    let bounds = LedgerBounds { lines_max: 5, ..LedgerBounds::default() };
    let mut copy = Ledger::open(&path, Retention::default(), bounds, time(0)).unwrap();
    let ReplicationBatch::Changes(changes) = leader.copy_since(&copy.cursor()).unwrap() else {
        panic!()
    };
    let error = copy.apply(&changes).unwrap_err().to_string();
    assert!(error.contains("proxy p1 exceeds the bounds"), "{error}");
}
