//! Clients and proxies that mean harm to the calendar of reservations: others are served meanwhile,
//! what cannot be is refused, and all of it comes back.
//!
//! ```text
//!   user 1001: huge numbers, floods, calls that never end ─► POST, GET, DELETE /v1/reservations
//!   proxy evil: claims all slots, uses others' rows ───────► POST /v1/proxies/evil/report
//!   user 1002, proxy a, an administrator ──────────────────► are answered, and lose nothing
//! ```

#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use api::{
    DescribedCapacity, ErrorCode, NewReservation, ProxyDescription, ProxyReply, ProxyReport,
    QueryReply, ReservationExtension, TargetDescription, Why, WhyReservation, WireRate,
    WireReservation, WireReservationState,
};
use http::ApiClient;
use model::{Scope, ScopeUsage, Share, SlotsClaim};
use plan::ShareReport;

use crate::common::{PATIENCE, resident, until};
use crate::controlled::{Reader, api_of};
use crate::site::Site;

const SECOND: u64 = 1_000_000_000;
const HOSTILE: u32 = 1001;
const OTHER: u32 = 1002;

/// A controller with tokens and a proxy `a`.
fn start(test: &str) -> Site<1> {
    Site::start(test, ["a"], "")
}

/// Whether nothing is promised and nothing waits.
fn is_empty(site: &Site<1>) -> bool {
    let promised = site.admin.calendar("").unwrap().resources.into_iter().flat_map(|of| of.steps);
    let nothing = |step: api::CalendarStep| (step.read_per_sec, step.write_per_sec) == (0, 0);
    promised.into_iter().all(nothing)
        && site.admin.reservations("").unwrap().reservations.is_empty()
}

fn small(job: &str) -> NewReservation {
    NewReservation {
        read: Some(WireRate::Bytes(1_000)),
        duration_ns: 600 * SECOND,
        job: Some(job.into()),
        ..NewReservation::default()
    }
}

/// Asks for and removes one, as a user who means well.
fn reserves(by: &ApiClient) {
    let made = by.reserve(&small("other.1")).unwrap();
    assert_eq!(by.reservation(made.id, "").unwrap().id, made.id);
    by.remove_reservation(made.id).unwrap();
}

#[test]
fn huge_numbers_are_refused_and_reserve_nothing() {
    let site = start("huge-numbers");
    let user = site.client_of(&site.token_of(HOSTILE));
    type Change = fn(&mut NewReservation, u64);
    let changes: [Change; 8] = [
        |of, value| of.read = Some(WireRate::Bytes(value)),
        |of, value| of.write = Some(WireRate::Bytes(value)),
        |of, value| of.metadata = Some(WireRate::Ops(value)),
        |of, value| of.duration_ns = value,
        |of, value| of.not_before_ns = Some(value),
        |of, value| of.by_ns = Some(value),
        |of, value| of.claim_window_ns = value,
        |of, value| of.after = Some(value),
    ];
    let values = [1 << 60, (1 << 60) + 1, i64::MAX as u64, 1 << 63, u64::MAX - 1, u64::MAX];
    let expected = [
        ErrorCode::InvalidArgument,
        ErrorCode::DoesNotFit,
        ErrorCode::LimitReached,
        ErrorCode::NotFound,
    ];
    for (nth, change) in changes.iter().enumerate() {
        for value in values {
            for flags in 0..4 {
                let mut asked = small("huge.1");
                (asked.spontaneous, asked.exact) = (flags & 1 > 0, flags & 2 > 0);
                change(&mut asked, value);
                // 2^60 ns are in 2006, so it may begin now; and a deadline in a far future is one.
                match user.reserve(&asked) {
                    Ok(made) => {
                        let is_right = (nth == 4 && value <= (1 << 60) + 1) || nth == 5;
                        assert!(is_right, "field {nth} with {value} was taken: {made:?}");
                        user.remove_reservation(made.id).unwrap();
                    }
                    Err(error) => {
                        assert!(expected.contains(&error.code()), "field {nth}, {value}: {error}");
                    }
                }
            }
        }
    }
    let held = user.reserve(&small("huge.2")).unwrap();
    let held = user.reservation(held.id, "until=active&wait=30s").unwrap();
    for more_ns in values {
        let error =
            user.extend_reservation(held.id, &ReservationExtension { more_ns }).unwrap_err();
        assert!(expected.contains(&error.code()), "{more_ns}: {error}");
    }
    assert_eq!(user.reservation(held.id, "").unwrap().end_ns, held.end_ns);
    for id in [0, u64::MAX / 4, u64::MAX / 4 + 1, u64::MAX] {
        assert_eq!(user.reservation(id, "").unwrap_err().code(), ErrorCode::NotFound);
        assert_eq!(user.remove_reservation(id).unwrap_err().code(), ErrorCode::NotFound);
    }
    user.remove_reservation(held.id).unwrap();
    assert!(is_empty(&site));
}

#[test]
fn one_user_takes_its_part_of_the_calendar_and_gives_it_back_and_others_reserve_meanwhile() {
    let site = start("all-places");
    let hostile = site.token_of(HOSTILE);
    let other = site.client_of(&site.token_of(OTHER));
    let before = resident(site.controller.process());
    let made: Vec<u64> = std::thread::scope(|threads| {
        let fill = || {
            let client = site.client_of(&hostile);
            let far = NewReservation { spontaneous: true, ..small("same.name") };
            let mut made = Vec::new();
            loop {
                match client.reserve(&far) {
                    Ok(one) => made.push(one.id),
                    Err(error) if error.code() == ErrorCode::Overloaded => {}
                    Err(error) => {
                        assert_eq!(error.code(), ErrorCode::LimitReached, "{error}");
                        return made;
                    }
                }
                assert!(made.len() <= 4_096, "a user has no bound");
            }
        };
        let fillers: Vec<_> = (0..8).map(|_| threads.spawn(fill)).collect();
        while !fillers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            reserves(&other);
        }
        fillers.into_iter().flat_map(|filler| filler.join().unwrap()).collect()
    });
    assert_eq!(made.len(), 4_096, "the ceiling of a user");
    reserves(&other);
    let grown = resident(site.controller.process()).saturating_sub(before);
    assert!(grown < 256 << 20, "{} MiB more", grown >> 20);
    // Others remove none of them, and a storm of cancels removes each once.
    assert!(other.remove_reservation(made[0]).is_err());
    let removed = AtomicU64::new(0);
    std::thread::scope(|threads| {
        for half in 0..2 {
            for part in made.chunks(made.len() / 4) {
                let (removed, client) = (&removed, site.client_of(&hostile));
                threads.spawn(move || {
                    let ids: Box<dyn Iterator<Item = &u64>> = match half {
                        0 => Box::new(part.iter()),
                        _ => Box::new(part.iter().rev()),
                    };
                    for id in ids {
                        let gone =
                            client.remove_reservation(*id).is_ok_and(|one| one.ended.is_some());
                        removed.fetch_add(u64::from(gone), Ordering::Relaxed);
                    }
                });
            }
        }
        reserves(&other);
    });
    assert!(removed.load(Ordering::Relaxed) >= made.len() as u64);
    assert!(is_empty(&site));
}

#[test]
fn floods_of_waiting_calls_and_bodies_that_do_not_come_delay_nobody() {
    let site = start("floods");
    let hostile = site.token_of(HOSTILE);
    let (user, other) = (site.client_of(&hostile), site.client_of(&site.token_of(OTHER)));
    // It starts in an hour, so the calls wait.
    let at = site.admin.reservations("").unwrap().at_ns + 3_600 * SECOND;
    let later = user.reserve(&NewReservation { not_before_ns: Some(at), ..small("w.1") }).unwrap();
    let host = site.controller.url.strip_prefix("http://").unwrap();
    let call = |line: &str, rest: &str| {
        let mut stream = TcpStream::connect(host).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head =
            format!("{line} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {hostile}\r\n");
        stream.write_all(format!("{head}{rest}").as_bytes()).unwrap();
        stream
    };
    let watch = format!("GET /v1/reservations/{}?until=active&wait=60s", later.id);
    let watchers: Vec<_> = (0..300).map(|_| call(&watch, "connection: close\r\n\r\n")).collect();
    let slow: Vec<_> = (0..100)
        .map(|_| {
            let head = "content-type: application/json\r\ncontent-length: 60000\r\n\r\n{";
            call("POST /v1/reservations", head)
        })
        .collect();
    (0..10).for_each(|_| reserves(&other));
    // Those who went away are forgotten, and the others get their answer when it ends.
    let mut watchers = watchers.into_iter();
    drop(watchers.by_ref().take(150).collect::<Vec<_>>());
    user.remove_reservation(later.id).unwrap();
    for mut stream in watchers {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("removed"), "{answer}");
    }
    drop(slow);
    // More queries to the proxies than are made at a time are refused, and nothing else is.
    std::thread::scope(|threads| {
        for _ in 0..32 {
            threads.spawn(|| {
                let why = user.why(&api::WhyQuery::default());
                assert!(why.err().is_none_or(|error| error.code() == ErrorCode::Overloaded));
            });
        }
    });
    reserves(&other);
    assert!(is_empty(&site));
}

fn share_report(claim: SlotsClaim, uses: Vec<(Scope, ScopeUsage)>, sequence: u64) -> ShareReport {
    ShareReport {
        from: "evil".into(),
        epoch: now_ns(),
        sequence,
        term: Default::default(),
        last_assignment: 0,
        revision: 0,
        lease_expired: false,
        holdings: None,
        uses: Some(uses),
        slots: Some(claim),
        waited: Vec::new(),
        served: Vec::new(),
        parents: Vec::new(),
        scopes: None,
    }
}

fn now_ns() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64
}

fn described(read_per_sec: u64, write_per_sec: u64) -> Option<Arc<ProxyDescription>> {
    let bytes = Some(DescribedCapacity { read_per_sec, write_per_sec, is_configured: true });
    let target = TargetDescription { name: "fs".into(), bytes, metadata: None, unseen_ppm: 0 };
    Some(Arc::new(ProxyDescription {
        targets: vec![target],
        exports: Vec::new(),
        ..ProxyDescription::default()
    }))
}

#[test]
fn a_proxy_that_claims_everything_leaves_the_others_slots_and_every_promise() {
    let site = start("evil-proxy");
    let user = site.client_of(&site.token_of(OTHER));
    let held: WireReservation = user
        .reserve(&NewReservation {
            read: None,
            write: Some(WireRate::Bytes(10_000_000)),
            ..small("ck.1")
        })
        .unwrap();
    let held = user.reservation(held.id, "until=active&wait=30s").unwrap();
    let unclaimed = NewReservation { claim_window_ns: 3_600 * SECOND, ..small("ck.2") };
    let at = held.start_ns.unwrap() + 3_600 * SECOND;
    let later = user.reserve(&NewReservation { not_before_ns: Some(at), ..unclaimed }).unwrap();
    let _writer = Reader::writing(&site.proxies[0], ("ck.1", OTHER), 16);
    let own = |why: &Why| why.reservations.iter().find(|of| of.id == held.id).cloned();
    let at_a = || -> Option<WhyReservation> {
        own(&api_of(&site.proxies[0]).why(&api::WhyQuery::default()).unwrap())
    };
    until("proxy a serves it", || at_a().is_some_and(|of| of.served > 0));

    let evil = site.client_of(&site.proxy_token);
    let all = SlotsClaim {
        reserved: Share::WHOLE,
        reserved_weight: u64::MAX,
        weight: u64::MAX,
        used: Share::WHOLE,
        waiting: true,
        lag: model::ReservationLag::Growing,
    };
    let uses = |of: u64| {
        let usage = ScopeUsage { used: Some(Share::WHOLE), waiting: true };
        (0..4).map(move |nth| (Scope::entitlement(of.wrapping_mul(4).wrapping_add(nth)), usage))
    };
    let epoch = now_ns();
    let send = |sequence: u64, description| {
        let uses = [held.id, later.id, u64::MAX].into_iter().flat_map(uses).collect();
        let report = ShareReport { epoch, ..share_report(all, uses, sequence) };
        let what = QueryReply::Why(Box::default());
        let report = ProxyReport {
            epoch,
            targets: vec![("fs".into(), report)],
            replies: vec![ProxyReply { number: u64::MAX, what }],
            description,
            ..ProxyReport::default()
        };
        evil.report("evil", &report)
    };
    for (nth, wrong) in
        [(0, 1), (1, 0), ((1 << 60) + 1, 1), (u64::MAX, u64::MAX)].iter().enumerate()
    {
        let error = send(nth as u64 + 1, described(wrong.0, wrong.1)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{wrong:?}: {error}");
    }
    // What it says of the capacity is not more than what the others say.
    for sequence in 10..40 {
        send(sequence, described(1 << 60, 1 << 60)).unwrap();
    }
    let resources = site.admin.calendar("target=fs").unwrap().resources;
    let bytes = resources.iter().find(|of| of.kind == "target").unwrap();
    assert_eq!((bytes.read_per_sec, bytes.write_per_sec), (1_000_000_000, 1_000_000_000));

    // It has a share of the slots, and so has proxy a, which goes on serving the job.
    let served = at_a().unwrap().served;
    let mut sequence = 100;
    until("proxy a serves the job beside it", || {
        sequence += 1;
        send(sequence, None).unwrap();
        at_a().is_some_and(|of| of.served > served && of.share_ppb > 0)
    });
    let why = site.admin.why(&api::WhyQuery::default()).unwrap();
    for division in why.divisions.iter().filter(|of| of.proxy == "a") {
        assert!(division.share_ppb > 0, "{division:?}");
    }
    // What has not begun is not claimed by whoever says that it was used.
    let after = user.reservation(later.id, "").unwrap();
    assert_eq!((after.state, after.start_ns), (WireReservationState::Scheduled, later.start_ns));
    assert_eq!(user.reservation(held.id, "").unwrap().end_ns, held.end_ns);
    site.admin.forget_proxy("evil").unwrap();
    until("all slots are proxy a's again", || {
        let why = site.admin.why(&api::WhyQuery::default()).unwrap();
        why.divisions.is_empty()
    });
}
