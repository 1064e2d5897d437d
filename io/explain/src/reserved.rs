//! The sentences about reservations: which serve the requests, what went by them, and which leave a
//! proxy a share of a target's slots.

use std::fmt::Write as _;

use api::{
    LateRate, SlotHolder, Why, WhyDivision, WhyReservation, WireRate, WireReservation,
    WireReservationState, WireWait, WireWaitKind,
};

use super::{amount, named, payer, per_second, percent, span, target_label};

/// Explains the reservations that serve the requests, at each proxy and in the calendar.
pub(super) fn explain_reservations(why: &Why, out: &mut String) {
    for of in &why.reservations {
        explain_at_proxy(of, why, out);
    }
    if let Some(calendar) = &why.calendar {
        for of in &calendar.reservations {
            explain_in_calendar(of, calendar.at_ns, out);
        }
        if calendar.omitted > 0 {
            let _ = writeln!(out, "{} further reservations are omitted.", calendar.omitted);
        }
    }
}

/// Returns the division of slots because of which the requests of a wait have fewer of them, if
/// there is one.
pub(super) fn division_of<'w>(wait: &WireWait, why: &'w Why) -> Option<&'w WhyDivision> {
    let is_for_slots = matches!(wait.kind, WireWaitKind::Weight | WireWaitKind::Busy);
    let is_there = |of: &&WhyDivision| (&of.proxy, &of.target) == (&wait.proxy, &wait.target);
    why.divisions.iter().find(is_there).filter(|_| is_for_slots)
}

/// Says which share of the slots is here, and for whose reservations.
pub(super) fn explain_division(of: &WhyDivision, out: &mut String) {
    let share = percent(of.share_ppb.into(), 1_000_000_000);
    let _ = write!(
        out,
        "  While something is reserved at target {}, its slots are divided: {share} of them are here.",
        of.target
    );
    let holder = |of: &SlotHolder| match &of.job {
        Some(job) => format!("{} of {}", of.id, payer(job, of.user)),
        None => format!("{} of user {}", of.id, of.user),
    };
    let mut active: Vec<_> = of.holders.iter().map(holder).collect();
    match (of.others, active.is_empty()) {
        (0, _) => {}
        (others, true) => active.push(format!("{others} of other users")),
        (others, false) => active.push(format!("{others} more")),
    }
    match active.is_empty() {
        true => out.push('\n'),
        false => {
            let _ = writeln!(out, " Active reservations: {}.", active.join(", "));
        }
    }
}

fn explain_at_proxy(of: &WhyReservation, why: &Why, out: &mut String) {
    let (WireRate::Bytes(per_s) | WireRate::Ops(per_s)) = of.rate;
    let in_bytes = matches!(of.rate, WireRate::Bytes(_));
    let mut whose = match (&of.job, of.user) {
        (Some(job), Some(user)) => payer(job, user),
        (Some(job), None) => format!("job {job}"),
        (None, Some(user)) => format!("user {user}"),
        (None, None) => "all users".into(),
    };
    if let Some(directory) = &of.directory {
        let _ = write!(whose, " in {directory}");
    }
    let (rate, direction) = (per_second(per_s, in_bytes), noun(&of.direction));
    let _ = write!(
        out,
        "{}Reservation {} serves {whose}: {rate} of {direction}",
        target_label(&of.proxy, &of.target),
        of.id,
    );
    if of.share_ppb < 1_000_000_000 {
        let share = percent(of.share_ppb.into(), 1_000_000_000);
        let here = per_second(of.here_per_s(), in_bytes);
        let _ = write!(out, " over all proxies, {share} of it here ({here})");
    }
    match of.ends_ns {
        Some(ends) => drop(writeln!(out, "; it ends in {}.", span(ends))),
        None => out.push_str(".\n"),
    }
    let quantity = |units: u64| match in_bytes {
        true => amount(units),
        false => format!("{units} operations"),
    };
    let all = of.total.max(of.served);
    let (served, total) = (quantity(of.served), quantity(all));
    let part = percent(of.served, all);
    let _ = write!(out, "  {served} went by it here, {part} of the {total} of {direction} in all.");
    let counting = limits_of(of, why);
    match counting.is_empty() {
        true => out.push('\n'),
        false => {
            let _ = writeln!(
                out,
                " They count for {}, which does not delay them.",
                counting.join(", ")
            );
        }
    }
}

/// The limits that count what a reservation serves at a proxy.
fn limits_of(of: &WhyReservation, why: &Why) -> Vec<String> {
    let subjects = why.subjects.iter().filter(|subject| {
        (&subject.proxy, &subject.target) == (&of.proxy, &of.target)
            && of.job.as_ref().is_none_or(|job| *job == subject.job)
            && of.user.is_none_or(|user| user == subject.uid)
    });
    let mut names: Vec<_> = subjects.flat_map(|subject| &subject.limits).map(named).collect();
    names.sort();
    names.dedup();
    names.truncate(NAMES_MAX);
    names
}

fn explain_in_calendar(of: &WireReservation, at_ns: u64, out: &mut String) {
    let until = |at: Option<u64>| at.map(|at| span(at.saturating_sub(at_ns)));
    let _ = write!(out, "Reservation {} of target {} is ", of.id, of.target);
    let text = match (of.state, &of.reduced) {
        (WireReservationState::Active, Some(less)) => {
            let part = percent(less.ppm.into(), 1_000_000);
            format!("ACTIVE, reduced to {part}: {}", less.because)
        }
        (WireReservationState::Active, None) => "ACTIVE".into(),
        (WireReservationState::Scheduled, _) => match until(of.start_ns) {
            Some(start) => format!("SCHEDULED; it starts in {start}"),
            None => "SCHEDULED; it waits in the queue and starts when it fits".into(),
        },
        (WireReservationState::Undefined, _) => "UNDEFINED".into(),
    };
    out.push_str(&text);
    if let Some(claim) = until(of.claim_by_ns) {
        let _ = write!(out, "; it lapses in {claim} unless it is claimed");
    } else if let Some(end) = until(of.end_ns).filter(|_| of.state == WireReservationState::Active)
    {
        let _ = write!(out, "; it ends in {end}");
    }
    for late in of.late.iter().map(late) {
        let _ = write!(out, "; late: {late}");
    }
    out.push_str(".\n");
}

/// Formats what a late reservation was served, such as `48.2 MB/s of 100 MB/s of writes were served in
/// the last 5.00 s while its requests waited`.
pub fn late(of: &LateRate) -> String {
    let rate = |rate: WireRate| match rate {
        WireRate::Bytes(bytes) => per_second(bytes, true),
        WireRate::Ops(ops) => per_second(ops, false),
    };
    let what = match &*of.direction {
        "all" => String::new(),
        direction => format!(" of {}", noun(direction)),
    };
    let (served, reserved, span) = (rate(of.served), rate(of.reserved), span(of.span_ns));
    format!("{served} of {reserved}{what} were served in the last {span} while its requests waited")
}

fn noun(direction: &str) -> &str {
    match direction {
        "read" => "reads",
        "write" => "writes",
        other => other,
    }
}

/// The most limits that are named in one sentence.
const NAMES_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use api::{LimitState, ReducedReservation, WhySubject, WireReservations};

    use super::*;

    fn reserved() -> Why {
        let limit = LimitState {
            section: "rule".into(),
            name: "slow".into(),
            key: "jobid=ck.1".into(),
            ..LimitState::default()
        };
        let subject = WhySubject {
            proxy: "a".into(),
            target: "fs".into(),
            job: "ck.1".into(),
            uid: 1001,
            limits: vec![limit],
            ..WhySubject::default()
        };
        let reservation = WhyReservation {
            proxy: "a".into(),
            target: "fs".into(),
            id: 7,
            direction: "write".into(),
            rate: WireRate::Bytes(20_000_000),
            share_ppb: 500_000_000,
            ends_ns: Some(123_000_000_000),
            job: Some("ck.1".into()),
            user: Some(1001),
            directory: None,
            served: 1_200_000_000,
            total: 1_500_000_000,
        };
        let (subjects, reservations) = (vec![subject], vec![reservation]);
        Why { scheduling: true, subjects, reservations, ..Why::default() }
    }

    #[test]
    fn a_reservation_is_explained_with_its_rate_span_and_what_went_by_it() {
        let mut text = String::new();
        explain_reservations(&reserved(), &mut text);
        assert_eq!(
            text,
            "[a fs] Reservation 7 serves job ck.1 of user 1001: 20.0 MB/s of writes over all \
             proxies, 50 % of it here (10.0 MB/s); it ends in 2 min 03 s.\n  \
             1.20 GB went by it here, 80 % of the 1.50 GB of writes in all. They count for the \
             limit of rule slow (jobid=ck.1), which does not delay them.\n"
        );
    }

    #[test]
    fn a_calendar_entry_says_when_it_starts_and_by_what_it_is_reduced() {
        let of = |id, state| WireReservation {
            id,
            state,
            target: "fs".into(),
            start_ns: Some(11_000_000_000),
            end_ns: Some(21_000_000_000),
            ..WireReservation::default()
        };
        let because = "unreachable: b; may still use 50 % of fs".into();
        let reduced = Some(ReducedReservation { ppm: 500_000, because });
        let queued = WireReservation { start_ns: None, ..of(3, WireReservationState::Scheduled) };
        let reservations = vec![
            WireReservation { reduced, ..of(1, WireReservationState::Active) },
            of(2, WireReservationState::Scheduled),
            queued,
        ];
        let calendar =
            WireReservations { at_ns: 1_000_000_000, reservations, ..Default::default() };
        let mut text = String::new();
        let why = Why { calendar: Some(calendar), ..Why::default() };
        explain_reservations(&why, &mut text);
        assert_eq!(
            text,
            "Reservation 1 of target fs is ACTIVE, reduced to 50 %: unreachable: b; may still use \
             50 % of fs; it ends in 20.0 s.\n\
             Reservation 2 of target fs is SCHEDULED; it starts in 10.0 s.\n\
             Reservation 3 of target fs is SCHEDULED; it waits in the queue and starts when it \
             fits.\n"
        );
    }

    #[test]
    fn a_wait_for_slots_names_the_reservations_that_others_may_see() {
        let holders = vec![SlotHolder { id: 7, job: Some("ck.1".into()), user: 1001 }];
        let division = WhyDivision {
            proxy: "a".into(),
            target: "fs".into(),
            share_ppb: 250_000_000,
            holders,
            others: 2,
        };
        let wait =
            |kind| WireWait { proxy: "a".into(), target: "fs".into(), kind, ..WireWait::default() };
        let why = Why { divisions: vec![division.clone()], ..Why::default() };
        assert_eq!(division_of(&wait(WireWaitKind::Busy), &why), Some(&division));
        assert_eq!(division_of(&wait(WireWaitKind::Limit), &why), None);
        let mut text = String::new();
        explain_division(&division, &mut text);
        explain_division(&WhyDivision { holders: Vec::new(), ..division }, &mut text);
        let share = "  While something is reserved at target fs, its slots are divided: 25 % of \
                     them are here. Active reservations: ";
        let expected =
            format!("{share}7 of job ck.1 of user 1001, 2 more.\n{share}2 of other users.\n");
        assert_eq!(text, expected);
    }
}
