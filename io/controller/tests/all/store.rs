//! One body, two arms: every store keeps the same promises.

#![allow(clippy::unwrap_used, reason = "what fails here is the test")]

use std::time::Duration;

use crate::etcd::{self, etcd};
use controller::store::{
    EtcdStore, History, RECORD_BYTES_MAX, Revision, SNAPSHOT_BYTES_MAX, SqliteStore, Store,
    StoreError,
};
use testkit::{Cluster, PATIENCE, TestFolder};

/// Opens the same store again and again.
type Open<'a> = &'a dyn Fn() -> Box<dyn Store>;

/// One promise, checked on a store that is empty at first.
type Promise = fn(Open<'_>);

/// What every store promises.
const PROMISES: &[(&str, Promise)] = &[
    ("an_empty_store_begins_at_revision_zero", an_empty_store_begins_at_revision_zero),
    ("records_come_back_in_order", records_come_back_in_order),
    ("an_append_upon_an_old_revision_is_refused", an_append_upon_an_old_revision_is_refused),
    ("of_two_appends_at_once_one_wins", of_two_appends_at_once_one_wins),
    ("a_snapshot_stands_for_the_records_in_it", a_snapshot_stands_for_the_records_in_it),
    ("an_older_snapshot_changes_nothing", an_older_snapshot_changes_nothing),
    ("a_snapshot_of_what_is_not_there_is_refused", a_snapshot_of_what_is_not_there_is_refused),
    ("a_snapshot_may_be_larger_than_a_record", a_snapshot_may_be_larger_than_a_record),
    ("what_is_too_large_is_refused_with_the_bound", what_is_too_large_is_refused_with_the_bound),
    ("many_large_records_are_loaded_whole", many_large_records_are_loaded_whole),
    ("who_waits_hears_of_an_append", who_waits_hears_of_an_append),
    ("who_waits_in_vain_is_told_the_newest", who_waits_in_vain_is_told_the_newest),
    ("random_calls_do_what_a_list_would", random_calls_do_what_a_list_would),
];

#[test]
fn sqlite_keeps_every_promise_of_a_store() {
    for (name, promise) in PROMISES {
        println!("sqlite: {name}");
        // On a disk that others keep busy one of several writers may find it locked for seconds.
        let folder = TestFolder::in_memory();
        let path = folder.path().join("store.db");
        promise(&|| Box::new(SqliteStore::open(&path).unwrap()));
    }
}

#[test]
fn etcd_keeps_every_promise_of_a_store() {
    let Some(cluster) = Cluster::start() else { return };
    for (name, promise) in PROMISES {
        println!("etcd: {name}");
        let etcd = etcd(&cluster, &format!("/test/{name}"));
        promise(&|| Box::new(etcd::store(&etcd, None)));
    }
}

#[test]
fn with_one_member_of_three_dead_everything_goes_on_and_with_two_nothing_is_acknowledged() {
    let Some(mut cluster) = Cluster::start() else { return };
    let etcd = etcd(&cluster, "/test/members");
    let mut store = etcd::store(&etcd, None);
    let mut newest = store.append(Revision::ZERO, b"all").unwrap();
    for at in 0..3 {
        cluster.kill_member(at);
        newest = store.append(newest, format!("without {at}").as_bytes()).unwrap();
        cluster.start_member(at);
        newest = store.append(newest, b"again").unwrap();
    }
    let before = store.load(Revision::ZERO).unwrap();
    cluster.kill_member(0);
    cluster.kill_member(1);
    let mut alone = EtcdStore::open(&etcd, None).unwrap().with_patience(Duration::from_secs(1));
    let error = alone.append(newest, b"alone").unwrap_err();
    assert!(matches!(error, StoreError::Uncertain { .. }), "{error}");
    let error = alone.load(Revision::ZERO).unwrap_err().to_string();
    assert!(error.contains(&etcd.endpoints[2]), "{error}");

    cluster.start_member(0);
    cluster.start_member(1);
    let after = store.load(Revision::ZERO).unwrap();
    assert_eq!(after.records[..before.records.len()], before.records);
    assert!(after.records.len() <= before.records.len() + 1);
}

#[test]
fn two_prefixes_of_one_etcd_know_nothing_of_each_other() {
    let Some(cluster) = Cluster::start() else { return };
    let open = |prefix| etcd::store(&etcd(&cluster, prefix), None);
    let (mut one, mut other) = (open("/fs/one"), open("/fs/one2"));
    one.append(Revision::ZERO, b"a").unwrap();
    other.append(Revision::ZERO, b"b").unwrap();
    other.snapshot(Revision::new(1), b"state").unwrap();
    assert_eq!(bodies(&one.load(Revision::ZERO).unwrap()), [b"a"]);
}

fn bodies(history: &History) -> Vec<&[u8]> {
    history.records.iter().map(|record| record.body.as_slice()).collect()
}

/// Appends each text after the newest; the newest revision then.
fn fill(store: &mut dyn Store, texts: &[&str]) -> Revision {
    let newest = store.newest(Revision::ZERO, Duration::ZERO).unwrap();
    texts.iter().fold(newest, |newest, text| store.append(newest, text.as_bytes()).unwrap())
}

fn an_empty_store_begins_at_revision_zero(open: Open<'_>) {
    let mut store = open();
    assert_eq!(store.load(Revision::ZERO).unwrap(), History::default());
    assert_eq!(store.newest(Revision::ZERO, Duration::ZERO).unwrap(), Revision::ZERO);
    assert_eq!(store.append(Revision::ZERO, b"first").unwrap(), Revision::new(1));
}

fn records_come_back_in_order(open: Open<'_>) {
    assert_eq!(fill(&mut *open(), &["a", "", "c"]), Revision::new(3));
    let mut again = open();
    let history = again.load(Revision::ZERO).unwrap();
    assert_eq!(bodies(&history), [&b"a"[..], b"", b"c"]);
    assert_eq!(history.newest(), Some(Revision::new(3)));
    assert_eq!(bodies(&again.load(Revision::new(2)).unwrap()), [b"c"]);
    assert_eq!(again.load(Revision::new(3)).unwrap(), History::default());
}

fn an_append_upon_an_old_revision_is_refused(open: Open<'_>) {
    let mut store = open();
    let newest = fill(&mut *store, &["a", "b"]);
    for expected in [0, 1, 3].map(Revision::new) {
        match store.append(expected, b"late") {
            Err(StoreError::RevisionConflict { newest: told, .. }) => assert_eq!(told, newest),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(store.load(Revision::ZERO).unwrap().records.len(), 2);
}

fn of_two_appends_at_once_one_wins(open: Open<'_>) {
    const APPENDS: u64 = 40;
    let stores = [open(), open(), open()];
    std::thread::scope(|scope| {
        for (name, mut store) in stores.into_iter().enumerate() {
            scope.spawn(move || {
                let mut newest = Revision::ZERO;
                let mut left = APPENDS;
                while left > 0 {
                    match store.append(newest, &[name as u8]) {
                        Ok(revision) => (newest, left) = (revision, left - 1),
                        Err(StoreError::RevisionConflict { newest: told, .. }) => newest = told,
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    let history = open().load(Revision::ZERO).unwrap();
    assert_eq!(history.newest(), Some(Revision::new(3 * APPENDS)));
    for name in 0..3u8 {
        let count = bodies(&history).iter().filter(|body| **body == [name]).count();
        assert_eq!(count as u64, APPENDS);
    }
}

fn a_snapshot_stands_for_the_records_in_it(open: Open<'_>) {
    let mut store = open();
    fill(&mut *store, &["a", "b", "c"]);
    store.snapshot(Revision::new(2), b"ab").unwrap();
    for mut store in [store, open()] {
        let history = store.load(Revision::ZERO).unwrap();
        let snapshot = history.snapshot.as_ref().unwrap();
        assert_eq!((snapshot.revision, &snapshot.state[..]), (Revision::new(2), &b"ab"[..]));
        assert_eq!(bodies(&history), [b"c"]);
        assert!(store.load(Revision::new(1)).unwrap().snapshot.is_some());
        let history = store.load(Revision::new(2)).unwrap();
        assert_eq!((history.snapshot.is_none(), bodies(&history)), (true, vec![&b"c"[..]]));
    }
    let mut store = open();
    store.snapshot(Revision::new(3), b"abc").unwrap();
    assert_eq!(store.load(Revision::ZERO).unwrap().newest(), Some(Revision::new(3)));
    assert_eq!(store.append(Revision::new(3), b"d").unwrap(), Revision::new(4));
}

fn an_older_snapshot_changes_nothing(open: Open<'_>) {
    let mut store = open();
    fill(&mut *store, &["a", "b", "c"]);
    store.snapshot(Revision::new(2), b"ab").unwrap();
    store.snapshot(Revision::new(1), b"wrong").unwrap();
    store.snapshot(Revision::new(2), b"wrong").unwrap();
    assert_eq!(store.load(Revision::ZERO).unwrap().snapshot.unwrap().state, b"ab");
}

fn a_snapshot_of_what_is_not_there_is_refused(open: Open<'_>) {
    let mut store = open();
    fill(&mut *store, &["a"]);
    let error = store.snapshot(Revision::new(2), b"ab").unwrap_err();
    assert!(matches!(error, StoreError::RevisionConflict { .. }), "{error}");
    assert!(store.load(Revision::ZERO).unwrap().snapshot.is_none());
}

fn a_snapshot_may_be_larger_than_a_record(open: Open<'_>) {
    let mut store = open();
    fill(&mut *store, &["a", "b"]);
    for (revision, bytes) in [(1, 3 * RECORD_BYTES_MAX + 7), (2, 0)] {
        let state: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
        store.snapshot(Revision::new(revision), &state).unwrap();
        assert_eq!(open().load(Revision::ZERO).unwrap().snapshot.unwrap().state, state);
    }
}

fn what_is_too_large_is_refused_with_the_bound(open: Open<'_>) {
    let mut store = open();
    let error = store.append(Revision::ZERO, &vec![0; RECORD_BYTES_MAX + 1]).unwrap_err();
    let StoreError::TooLarge { what: "record", bytes, bytes_max, .. } = error else {
        panic!("{error}")
    };
    assert_eq!((bytes, bytes_max), (RECORD_BYTES_MAX + 1, RECORD_BYTES_MAX));
    let newest = store.append(Revision::ZERO, &vec![7; RECORD_BYTES_MAX]).unwrap();
    let error = store.snapshot(newest, &vec![0; SNAPSHOT_BYTES_MAX + 1]).unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { what: "snapshot", .. }), "{error}");
}

fn many_large_records_are_loaded_whole(open: Open<'_>) {
    let mut store = open();
    let mut newest = Revision::ZERO;
    for fill in 0..70 {
        newest = store.append(newest, &vec![fill; 200_000]).unwrap();
    }
    let history = open().load(Revision::ZERO).unwrap();
    assert_eq!(history.records.len(), 70);
    let right = |(fill, record): (usize, &[u8])| record == vec![fill as u8; 200_000];
    assert!(bodies(&history).into_iter().enumerate().all(right));
}

fn who_waits_hears_of_an_append(open: Open<'_>) {
    let (mut waiter, mut writer) = (open(), open());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || waiter.newest(Revision::ZERO, PATIENCE).unwrap());
        writer.append(Revision::ZERO, b"news").unwrap();
        assert_eq!(waiting.join().unwrap(), Revision::new(1));
    });
}

fn who_waits_in_vain_is_told_the_newest(open: Open<'_>) {
    let mut store = open();
    let newest = fill(&mut *store, &["a"]);
    assert_eq!(store.newest(newest, Duration::from_millis(50)).unwrap(), newest);
}

fn random_calls_do_what_a_list_would(open: Open<'_>) {
    let mut random = Xorshift(0x5eed_0005);
    let mut store = open();
    let (mut list, mut snapshot): (Vec<Vec<u8>>, (usize, Vec<u8>)) = Default::default();
    for step in 0..200u32 {
        let newest = list.len();
        match random.below(10) {
            0..5 => {
                let expected = newest.saturating_sub(random.below(2));
                let body = step.to_be_bytes().to_vec();
                let appended = store.append(Revision::new(expected as u64), &body);
                assert_eq!(appended.is_ok(), expected == newest, "step {step}");
                if expected == newest {
                    list.push(body);
                }
            }
            5..7 => {
                let at = random.below(newest + 1);
                store.snapshot(Revision::new(at as u64), &[at as u8]).unwrap();
                if at > snapshot.0 {
                    snapshot = (at, vec![at as u8]);
                }
            }
            7 => store = open(),
            _ => {
                let after = random.below(newest + 1);
                let history = store.load(Revision::new(after as u64)).unwrap();
                let whole = snapshot.0 > after;
                let from = if whole { snapshot.0 } else { after };
                let told = history.snapshot.as_ref().map(|s| (s.revision.get() as usize, &s.state));
                assert_eq!(told, whole.then_some((snapshot.0, &snapshot.1)), "step {step}");
                assert_eq!(bodies(&history), list[from..].iter().collect::<Vec<_>>());
            }
        }
    }
}

/// Numbers that look random and are the same each time.
struct Xorshift(u64);

impl Xorshift {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }
}
