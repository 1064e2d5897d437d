//! The ledger counts everything once, whatever happens to reports, and keeps its sums as
//! they grow old.

#![allow(clippy::unwrap_used, reason = "what fails here is the test")]

use crate::proxies::{
    MINUTE_NS, Proxy, Xorshift, bytes_by, bytes_of_all, open, tick_through, time,
};
use controller::ledger::{
    Ledger, LedgerBounds, LedgerError, LedgerStats, OTHER, Retention, RetentionTier, SubjectKind,
};
use model::Time;
use testkit::TestFolder;
use usage::UsageReport;

#[test]
fn usage_is_told_apart_by_every_kind_of_subject() {
    let folder = TestFolder::new();
    let mut ledger = open(&folder.path().join("l"));
    let mut proxy = Proxy::new("p1");
    proxy.serve(2, 100);
    proxy.serve(3, 50);
    proxy.serve(6, 1);
    proxy.report(&mut ledger, time(0));
    for written in [false, true] {
        let mut told = |kind, name: &str| bytes_by(&mut ledger, kind).get(name).copied();
        assert_eq!(told(SubjectKind::Job, "job3"), Some(50));
        assert_eq!(told(SubjectKind::User, "1000"), Some(51));
        assert_eq!(told(SubjectKind::Group, "100"), Some(151));
        assert_eq!(told(SubjectKind::Project, "7"), Some(101));
        assert_eq!(told(SubjectKind::Class, "default"), Some(151));
        assert_eq!(told(SubjectKind::Export, "scratch"), Some(151));
        assert_eq!(told(SubjectKind::Proxy, "p1"), Some(151));
        assert_eq!(told(SubjectKind::OpKind, "read"), Some(151), "written: {written}");
        assert_eq!(told(SubjectKind::Job, OTHER), None);
        ledger.flush(time(0)).unwrap();
    }
    let sums = ledger.sums_by(SubjectKind::User, time(0), time(1)).unwrap()["1002"];
    assert_eq!((sums.read_bytes, sums.cost_ns, sums.ops.iter().sum::<u64>()), (100, 1_000, 1));
}

#[test]
fn reports_that_are_lost_late_or_doubled_change_nothing() {
    let folder = TestFolder::new();
    let mut ledger = open(&folder.path().join("l"));
    let mut proxy = Proxy::new("p1");
    proxy.serve(1, 10);
    proxy.report(&mut ledger, time(0));
    assert!(proxy.report_again(&mut ledger, time(0)).stale);
    let mut late = Proxy::new("p1");
    late.serve(1, 10);
    late.sequence = 1;
    proxy.serve(1, 5);
    proxy.sequence += 7; // six were lost
    proxy.report(&mut ledger, time(1));
    assert!(late.report_again(&mut ledger, time(1)).stale);
    assert_eq!(bytes_by(&mut ledger, SubjectKind::Job)["job1"], 15);
}

#[test]
fn a_proxy_that_begins_anew_counts_from_zero_and_its_old_reports_are_stale() {
    let folder = TestFolder::new();
    let mut ledger = open(&folder.path().join("l"));
    let mut proxy = Proxy::new("p1");
    proxy.serve(1, 100);
    proxy.report(&mut ledger, time(0));
    let mut old = Proxy::new("p1");
    old.serve(1, 1_000);
    proxy.restart();
    proxy.serve(1, 150);
    proxy.report(&mut ledger, time(0));
    old.sequence = 99;
    assert!(old.report_again(&mut ledger, time(0)).stale);
    assert_eq!(bytes_by(&mut ledger, SubjectKind::Job)["job1"], 250);
}

#[test]
fn counters_that_restart_or_vanish_are_never_subtracted() {
    let folder = TestFolder::new();
    let mut ledger = open(&folder.path().join("l"));
    let mut proxy = Proxy::new("oss1");
    proxy.serve(1, 100);
    proxy.report(&mut ledger, time(0));
    proxy.lines.clear(); // the server forgot an idle job
    proxy.report(&mut ledger, time(0));
    proxy.serve(1, 30); // and counts it from zero
    proxy.report(&mut ledger, time(0));
    assert_eq!(bytes_by(&mut ledger, SubjectKind::Job)["job1"], 130);
}

#[test]
fn what_no_line_has_is_among_the_others() {
    let folder = TestFolder::new();
    let bounds = LedgerBounds { lines_of_proxy_max: 3, ..LedgerBounds::default() };
    let path = folder.path().join("l");
    let mut ledger = Ledger::open(&path, Retention::default(), bounds, time(0)).unwrap();
    let mut proxy = Proxy::new("p1");
    for round in 0..3 {
        (0..10).for_each(|job| proxy.serve(job, 10));
        let received = proxy.report(&mut ledger, time(round));
        assert_eq!(received.refused, 7);
    }
    let jobs = bytes_by(&mut ledger, SubjectKind::Job);
    assert_eq!((jobs["job0"], jobs["job2"], jobs[OTHER], jobs.len()), (30, 30, 210, 4));
    for kind in [SubjectKind::User, SubjectKind::Proxy, SubjectKind::OpKind, SubjectKind::Export] {
        assert_eq!(bytes_of_all(&mut ledger, kind), 300);
    }
    // room again: what a line told as others before is not counted twice
    ledger.flush(time(3)).unwrap();
    (0..3).for_each(|job| proxy.drop_line(job));
    assert_eq!(proxy.report(&mut ledger, time(3)).refused, 7);
    proxy.report(&mut ledger, time(3));
    assert_eq!(ledger.stats().lines, 3);
    for round in 4..8 {
        (3..6).for_each(|job| proxy.serve(job, 100));
        proxy.report(&mut ledger, time(round));
        ledger.tick(time(round)).unwrap();
    }
    assert_eq!(bytes_of_all(&mut ledger, SubjectKind::Proxy), 300 + 4 * 300);
    assert_eq!(bytes_of_all(&mut ledger, SubjectKind::Job), 300 + 4 * 300);
}

#[test]
fn names_without_end_do_not_fill_the_memory() {
    let folder = TestFolder::new();
    let bounds = LedgerBounds { subjects_max: 100, lines_max: 5_000, ..LedgerBounds::default() };
    let path = folder.path().join("l");
    let mut ledger = Ledger::open(&path, Retention::default(), bounds, time(0)).unwrap();
    let mut proxy = Proxy::new("p1");
    (0..2_000).for_each(|job| proxy.serve(job, 1));
    proxy.report(&mut ledger, time(0));
    let LedgerStats { subjects, lines, .. } = ledger.stats();
    assert!(subjects <= 100 && lines == 2_000, "{subjects} subjects, {lines} lines");
    assert_eq!(bytes_of_all(&mut ledger, SubjectKind::Job), 2_000);
    assert!(bytes_by(&mut ledger, SubjectKind::Job)[OTHER] > 1_900);
    // subjects that end make room
    proxy.restart();
    proxy.report(&mut ledger, time(1));
    ledger.flush(time(1)).unwrap();
    assert_eq!(ledger.stats().lines, 0);
    assert!(ledger.stats().subjects < 50, "{:?}", ledger.stats());
}

#[test]
fn what_a_proxy_did_before_the_ledger_began_is_not_the_ledgers() {
    let folder = TestFolder::new();
    let mut ledger = open(&folder.path().join("l"));
    let mut old = Proxy { epoch_ns: time(0).as_nanos() - 1, ..Proxy::new("old") };
    old.serve(1, 1_000_000);
    old.report(&mut ledger, time(0));
    assert_eq!(bytes_of_all(&mut ledger, SubjectKind::Proxy), 0);
    old.serve(1, 5);
    old.serve(2, 6);
    old.report(&mut ledger, time(0));
    assert_eq!(bytes_of_all(&mut ledger, SubjectKind::Proxy), 11);
    assert_eq!(bytes_of_all(&mut ledger, SubjectKind::Job), 11);
}

#[test]
fn a_proxy_that_was_silent_for_hours_is_still_known() {
    let folder = TestFolder::new();
    let path = folder.path().join("l");
    let mut ledger = open(&path);
    let mut proxy = Proxy::new("p1");
    proxy.serve(1, 100);
    proxy.report(&mut ledger, time(0));
    tick_through(&mut ledger, 0..200);
    assert_eq!(ledger.stats().proxies, 0);
    proxy.serve(1, 1);
    proxy.report(&mut ledger, time(200));
    assert_eq!(bytes_by(&mut ledger, SubjectKind::Job)["job1"], 101);
}

#[test]
fn a_ledger_that_died_goes_on_from_its_last_minute() {
    let folder = TestFolder::new();
    let path = folder.path().join("l");
    let mut ledger = open(&path);
    let mut proxy = Proxy::new("p1");
    proxy.serve(1, 100);
    proxy.report(&mut ledger, time(0));
    ledger.tick(time(0)).unwrap();
    assert!(ledger.tick(time(1)).unwrap());
    proxy.serve(1, 20);
    proxy.serve(2, 3);
    proxy.report(&mut ledger, time(1));
    drop(ledger); // what was told in minute 1 is not written

    let mut ledger = open(&path);
    assert_eq!(bytes_of_all(&mut ledger, SubjectKind::Job), 100);
    proxy.serve(1, 1);
    proxy.report(&mut ledger, time(2));
    assert_eq!(bytes_of_all(&mut ledger, SubjectKind::Job), 124);
    assert_eq!(bytes_of_all(&mut ledger, SubjectKind::Proxy), 124);
}

#[test]
fn a_period_holds_the_minutes_that_begin_in_it() {
    let folder = TestFolder::new();
    let mut ledger = open(&folder.path().join("l"));
    let mut proxy = Proxy::new("p1");
    for minute in 0..5 {
        ledger.tick(time(minute)).unwrap();
        proxy.serve(1, 1 << minute);
        proxy.report(&mut ledger, time(minute));
    }
    let mut over = |from: Time, to: Time| {
        let sums = ledger.sums_by(SubjectKind::Job, from, to).unwrap();
        sums.get("job1").map_or(0, |sums| sums.read_bytes)
    };
    assert_eq!(over(time(1), time(3)), 0b110);
    assert_eq!(over(time(3), time(3)), 0);
    assert_eq!(over(time(4), time(5)), 0b1_0000);
    assert_eq!(over(time(0), time(5)), 0b1_1111);
    let points = ledger.series(SubjectKind::Job, "job1", time(0), time(9)).unwrap();
    let told: Vec<(u64, u64)> =
        points.iter().map(|p| (p.at.since(time(0)).get() / MINUTE_NS, p.sums.read_bytes)).collect();
    assert_eq!(told, [(0, 1), (1, 2), (2, 4), (3, 8), (4, 16)]);
}

#[test]
fn a_clock_that_goes_back_loses_nothing() {
    let folder = TestFolder::new();
    let mut ledger = open(&folder.path().join("l"));
    let mut proxy = Proxy::new("p1");
    for minute in [10, 11, 12, 3, 4, 5, 12, 13, 14] {
        ledger.tick(time(minute)).unwrap();
        proxy.serve(1, 1);
        proxy.report(&mut ledger, time(minute));
    }
    ledger.flush(time(14)).unwrap();
    assert_eq!(bytes_of_all(&mut ledger, SubjectKind::Job), 9);
}

#[test]
fn sums_grow_coarser_with_age_and_lose_nothing_until_they_are_dropped() {
    let folder = TestFolder::new();
    let age = |resolution: &str, keep: &str| RetentionTier {
        resolution: resolution.parse().unwrap(),
        max_age: keep.parse().unwrap(),
    };
    let ages = vec![age("1min", "2h"), age("10min", "12h"), age("1h", "60h")];
    let path = folder.path().join("l");
    let open = || {
        Ledger::open(&path, Retention::new(ages.clone()).unwrap(), LedgerBounds::default(), time(0))
    };
    let mut ledger = open().unwrap();
    let mut proxy = Proxy::new("p1");
    const MINUTES: u64 = 40 * 60;
    for minute in 0..MINUTES {
        ledger.tick(time(minute)).unwrap();
        if minute.is_multiple_of(7) {
            proxy.serve(minute % 5, 1);
            proxy.report(&mut ledger, time(minute));
        }
        if minute == MINUTES / 2 {
            drop(ledger);
            ledger = open().unwrap();
        }
    }
    ledger.flush(time(MINUTES)).unwrap();
    let served = MINUTES.div_ceil(7);
    for kind in SubjectKind::ALL.iter().filter(|kind| {
        !matches!(kind, SubjectKind::Project | SubjectKind::Decay | SubjectKind::Owner)
    }) {
        assert_eq!(bytes_of_all(&mut ledger, *kind), served, "{kind:?}");
    }
    let points = ledger.series(SubjectKind::Proxy, "p1", time(0), time(MINUTES)).unwrap();
    assert_eq!(points.iter().map(|point| point.sums.read_bytes).sum::<u64>(), served);
    let hour = 60 * MINUTE_NS;
    // the oldest points are of an hour, those of now of a minute, each at a multiple of its span
    assert_eq!((points[0].at, points[0].span.get()), (time(0), hour));
    assert_eq!(points.last().unwrap().span.get(), MINUTE_NS);
    assert!(points.iter().all(|point| point.at.as_nanos() % point.span.get() == 0));
    let of = |span: u64| points.iter().filter(|point| point.span.get() == span).count();
    assert!(of(hour) > 10 && of(hour / 6) > 50 && of(MINUTE_NS) > 10, "{}", points.len());
    let within = ledger.sums_by(SubjectKind::Proxy, time(60), time(180)).unwrap()["p1"];
    assert_eq!(
        within.read_bytes,
        (60u64..180).filter(|minute| minute.is_multiple_of(7)).count() as u64
    );

    // and then they are dropped
    tick_through(&mut ledger, (MINUTES..MINUTES + 200 * 60).step_by(30));
    assert_eq!(bytes_of_all(&mut ledger, SubjectKind::Proxy), 0);
}

#[test]
fn random_reports_restarts_and_deaths_give_the_sums_of_a_plain_list() {
    let folder = TestFolder::new();
    let path = folder.path().join("l");
    let mut random = Xorshift(0x5eed_1ed9);
    let mut ledger = open(&path);
    let mut proxies: Vec<Proxy> = (0..3).map(|i| Proxy::new(&format!("p{i}"))).collect();
    let mut served = [0u64; 3];
    let mut minute = 0;
    for step in 0..3_000 {
        let at = random.below(3) as usize;
        match random.below(20) {
            0..12 => {
                let bytes = random.below(1_000);
                proxies[at].serve(random.below(20), bytes);
                served[at] += bytes;
            }
            12..16 => drop(proxies[at].report(&mut ledger, time(minute))),
            16 => drop(proxies[at].report_again(&mut ledger, time(minute))),
            17 => {
                proxies[at].report(&mut ledger, time(minute));
                proxies[at].restart();
            }
            18 => {
                minute += 1 + random.below(3);
                ledger.tick(time(minute)).unwrap();
            }
            _ if step % 3 == 0 => {
                // a death: a proxy that was told to restart has been heard before
                ledger.flush(time(minute)).unwrap();
                drop(ledger);
                ledger = open(&path);
            }
            _ => {}
        }
    }
    proxies.iter_mut().for_each(|proxy| drop(proxy.report(&mut ledger, time(minute))));
    let told = bytes_by(&mut ledger, SubjectKind::Proxy);
    assert_eq!(told.into_values().collect::<Vec<_>>(), served);
    let all = served.iter().sum::<u64>();
    assert_eq!(bytes_of_all(&mut ledger, SubjectKind::Job), all);
    assert_eq!(bytes_of_all(&mut ledger, SubjectKind::User), all);
}

#[test]
fn a_proxy_too_many_is_refused_by_name() {
    let folder = TestFolder::new();
    let bounds = LedgerBounds { proxies_max: 1, ..LedgerBounds::default() };
    let path = folder.path().join("l");
    let mut ledger = Ledger::open(&path, Retention::default(), bounds, time(0)).unwrap();
    Proxy::new("p1").report(&mut ledger, time(0));
    let empty = UsageReport { sequence: 1, ..UsageReport::default() };
    let error = ledger.report("p2", 1, &empty, time(0)).unwrap_err();
    assert!(matches!(&error, LedgerError::TooManyProxies { name, .. } if name == "p2"), "{error}");
    let nameless = ledger.report("", 1, &empty, time(0));
    assert!(matches!(nameless, Err(LedgerError::BadProxy { .. })));
}
