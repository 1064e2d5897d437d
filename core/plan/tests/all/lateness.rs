//! Which reservations are late, as the reports of proxies say.

use std::sync::Arc;

use model::{KindSet, Nanos, Rate, Scope, ScopeUsage, Share, Time, WaitedService};
use rules::{Entitlement, EntitlementId, EntitlementScope, EntitlementSource, Grantable, RuleSet};
use sluice_plan::{
    AllocatorSettings, ControllerSession, ProxyScopes, ScopeName, SessionSettings, ShareAllocator,
};

const RULES: &str = "[[rule]]\nname = \"parent\"\nmatch = \"jobid={a}\"\nlimit = \"50ops/s\"\n\
                     [[rule]]\nname = \"fixed\"\nmatch = \"jobid={b}\"\nlimit = \"100ops/s\"\n\
                     realtime = true\n\
                     [[rule]]\nname = \"child\"\nmatch = \"jobid={c}\"\nlimit = \"100ops/s\"\n\
                     realtime = true\n\
                     depends_on = { rule = \"parent\", remainder_of = \"80ops/s\", min = \"1ops/s\" }\n";

fn row(uid: u32) -> Entitlement {
    let grants = Grantable::Reservation(Rate::ops_per_sec(100).unwrap());
    let scope = EntitlementScope { uid: Some(uid), ..EntitlementScope::default() };
    Entitlement::new(scope, grants, KindSet::ALL, EntitlementSource::Reservation).unwrap()
}

/// Proxies `a` and `b` of user 1 report for some seconds, ten times each, with what `waited` says.
fn run(
    controller: &mut ShareAllocator,
    seconds: u64,
    waited: impl Fn(&str) -> Vec<(Scope, WaitedService)>,
) {
    let mut proxies = ["a", "b"].map(|name| {
        let mut proxy = ControllerSession::new(name, 1, SessionSettings::default(), Time::ZERO);
        let scopes = ProxyScopes::named([ScopeName::User(1)]);
        proxy.set_scopes(&Arc::new(scopes));
        (name, proxy)
    });
    for tick in 0..seconds * 10 {
        let now = Time::ZERO + Nanos::from_millis(tick * 100);
        for (name, proxy) in &mut proxies {
            // In the first second they are registered.
            let waited = if tick < 10 { vec![] } else { waited(name) };
            proxy.add_waited(waited.clone());
            let usage = ScopeUsage { used: Some(Share::ratio(1, 4)), waiting: true };
            let uses = waited.into_iter().map(|(scope, _)| (scope, usage)).collect();
            let report = proxy.report(Some(uses), now);
            report.into_iter().for_each(|report| controller.report(&report, now));
        }
        while let Some(assignment) = controller.poll_assignment(now) {
            let to = proxies.iter_mut().find(|(name, _)| **name == *assignment.to);
            to.unwrap().1.receive(&assignment, now);
        }
    }
}

fn allocator() -> ShareAllocator {
    let rules = Arc::new(RuleSet::parse(RULES).unwrap());
    let mut controller =
        ShareAllocator::new(AllocatorSettings::default(), 1, &[], rules, Time::ZERO);
    let rows = [(1, 1), (2, 2)].map(|(id, uid)| (EntitlementId(id), Some(row(uid))));
    controller.set_rows(rows.into(), Time::ZERO);
    controller
}

#[test]
fn each_of_two_proxies_is_judged_by_its_share_and_a_rate_that_depends_on_others_is_not() {
    let mut controller = allocator();
    // Each has half of the rate, and waits all the time; proxy a is served too little.
    run(&mut controller, 15, |name| {
        let of = match name {
            "a" => WaitedService { owed: 5, served: 1 },
            _ => WaitedService::default(),
        };
        vec![
            (Scope::entitlement(1), of),
            (Scope::rule("fixed", &[]), of),
            (Scope::rule("child", &[]), of),
        ]
    });
    let late: Vec<_> = controller.late_reservations().map(|late| late.scope.to_string()).collect();
    let expected = [Scope::rule("fixed", &[]), Scope::entitlement(1)].map(|of| of.to_string());
    assert_eq!(late, expected);
    let served =
        |late: sluice_plan::LateReservation| (late.served_per_sec, late.reserved.per_sec());
    assert!(controller.late_reservations().map(served).all(|of| of == (10, 50)));
}

#[test]
fn what_is_said_of_rows_that_a_proxy_does_not_have_is_ignored() {
    let mut controller = allocator();
    let of = WaitedService { owed: 5, served: 1 };
    run(&mut controller, 15, |_| vec![(Scope::entitlement(1), of)]);
    assert_eq!(controller.take_ignored(), 0);
    assert_eq!(controller.take_used_rows(), [EntitlementId(1)]);
    assert!(controller.late_reservations().next().is_some());

    let mut controller = allocator();
    run(&mut controller, 15, |_| (2..5_000).map(|row| (Scope::entitlement(row), of)).collect());
    assert!(controller.take_ignored() > 0);
    assert_eq!(controller.take_used_rows(), []);
    assert_eq!(controller.late_reservations().next(), None);
    assert_eq!(controller.scopes(), 0);
}
