//! Reservations, refusals and credits as text.

use std::fmt::Write as _;

use api::{
    LateRate, WireCredit, WirePhase, WireRefusal, WireReservation, WireReservationState,
    WireReservations,
};
use explain::{amount, late, percent, span};

use crate::decay::rate;
use crate::token::now_s;
use crate::top::table;
use crate::when::utc;

/// Formats a reservation as one line: number, state and times.
pub(super) fn sentence(held: &WireReservation) -> String {
    sentence_at(held, now_s())
}

fn sentence_at(held: &WireReservation, now_s: u64) -> String {
    let mut text = format!("reservation {} is {}: ", held.id, state(held));
    text += &match (&held.ended, held.start_ns, held.end_ns) {
        (Some(reason), ..) => format!("it has ended ({reason})"),
        (None, Some(start), Some(end)) => {
            format!("from {} to {}", at(start, now_s), at(end, now_s))
        }
        (None, Some(start), None) => format!("from {}", at(start, now_s)),
        (None, None, _) => "it is in the queue and starts when it fits".into(),
    };
    if let Some(claim) = held.claim_by_ns {
        let _ = write!(text, "; claim it by {}", at(claim, now_s));
    }
    if let Some(bytes) = held.credit {
        let _ = write!(text, "; credit {}", amount(bytes));
    }
    text + "\n"
}

/// Formats all that is known of a reservation, one line each.
pub(super) fn lines(held: &WireReservation) -> String {
    let now_s = now_s();
    let time = |at_ns: Option<u64>| at_ns.map(|at_ns| at(at_ns, now_s));
    let reduced = held.reduced.as_ref();
    let is_queued = held.state == WireReservationState::Scheduled;
    let rows = [
        ("Reservation", Some(held.id.to_string())),
        ("Phase of", held.phase_of.map(|parent| parent.to_string())),
        ("State", Some(state(held))),
        ("Ended", held.ended.clone()),
        ("Reduced", reduced.map(|less| format!("{} ({})", part(less.ppm), less.because))),
        ("Late", (!held.late.is_empty()).then(|| late_rates(&held.late))),
        ("User", Some(held.user.to_string())),
        ("Job", held.job.clone()),
        ("Account", held.account.clone()),
        ("Project", held.project.map(|project| project.to_string())),
        ("Target", Some(held.target.clone())),
        ("Directory", held.directory.clone()),
        ("Read", held.read.map(rate)),
        ("Write", held.write.map(rate)),
        ("Metadata", held.metadata.map(rate)),
        ("Start", time(held.start_ns).or_else(|| is_queued.then(|| "when it fits".into()))),
        ("Guaranteed", time(held.guaranteed_ns)),
        ("Claim by", time(held.claim_by_ns)),
        ("Claimed", time(held.claimed_ns)),
        ("End", time(held.end_ns)),
        ("Spontaneous", held.spontaneous.then(|| "yes".into())),
        ("Used", held.used_bytes.map(amount)),
        ("Credit", held.credit.map(amount)),
    ];
    let phases = held.phases.iter().map(|phase| ("Phase", Some(of_phase(phase, now_s))));
    let given = rows
        .into_iter()
        .chain(phases)
        .filter_map(|(name, value)| Some(format!("{name:<12} {}\n", value?)));
    given.collect()
}

/// Formats what of a reservation, or of a resource, is late.
pub(super) fn late_rates(rates: &[LateRate]) -> String {
    rates.iter().map(late).collect::<Vec<_>>().join("; ")
}

/// Formats a phase: number, start, how much later it may start, length and rates.
fn of_phase(phase: &WirePhase, now_s: u64) -> String {
    let mut text = format!("{} from {}", phase.id, at(phase.start_ns, now_s));
    let tolerance = phase.last_start_ns.saturating_sub(phase.start_ns);
    if tolerance > 0 {
        let _ = write!(text, ", at most {} later", span(tolerance));
    }
    let _ = write!(text, ", for {}", span(phase.end_ns.saturating_sub(phase.start_ns)));
    for (name, of) in [("read", phase.read), ("write", phase.write), ("metadata", phase.metadata)] {
        if let Some(of) = of {
            let _ = write!(text, ", {name} {}", rate(of));
        }
    }
    text
}

/// Formats reservations as a table by start, the first `rows` of them.
pub(super) fn list(found: &WireReservations, rows: usize) -> String {
    if found.reservations.is_empty() {
        return "no reservations\n".into();
    }
    let mut sorted: Vec<_> = found.reservations.iter().collect();
    sorted.sort_by_key(|held| (held.start_ns.unwrap_or(u64::MAX), held.id));
    let head =
        ["ID", "STATE", "START", "END", "USER", "JOB", "TARGET", "READ", "WRITE", "METADATA"];
    let time = |at_ns: Option<u64>| at_ns.map_or_else(|| "-".into(), |ns| utc(ns / SECOND_NS));
    let shown = sorted.iter().take(rows).map(|held| {
        let rate = |form: Option<_>| form.map_or_else(|| "-".into(), rate);
        vec![
            number(held),
            held.ended.as_ref().map_or_else(|| state(held), |reason| format!("ended: {reason}")),
            time(held.start_ns),
            time(held.end_ns),
            held.user.to_string(),
            held.job.clone().unwrap_or_else(|| "-".into()),
            held.target.clone(),
            rate(held.read),
            rate(held.write),
            rate(held.metadata),
        ]
    });
    let mut text = table::aligned(&head, &[0, 7, 8, 9], shown);
    let more = found.omitted + sorted.len().saturating_sub(rows) as u64;
    if more > 0 {
        let _ = writeln!(text, "({more} more rows omitted)");
    }
    text
}

/// Formats the credit of a subject.
pub(super) fn credit(found: &WireCredit) -> String {
    let WireCredit { subject, bytes, outstanding_bytes, outstanding } = found;
    let (has, left) = (amount(*bytes), amount(*outstanding_bytes));
    format!("{subject}: credit {has}; {outstanding} reservations of {left} have not ended\n")
}

/// Adds to the message of a refusal what has the resource, and the next start.
pub(super) fn refusal(message: &str, refusal: &WireRefusal, now_s: u64) -> String {
    let mut text = message.to_owned();
    if !refusal.taken_by.is_empty() {
        let _ = write!(text, "; taken by {}", refusal.taken_by.join(", "));
    }
    if let Some(start) = refusal.next_start_ns {
        // `--at` takes whole seconds.
        let start_s = start.div_ceil(SECOND_NS);
        let _ = write!(text, "; all of it fits at {}", at(start_s * SECOND_NS, now_s));
    }
    text
}

/// Formats the number of a reservation; of a phase with that of its reservation.
fn number(held: &WireReservation) -> String {
    match held.phase_of {
        Some(parent) => format!("{} of {parent}", held.id),
        None => held.id.to_string(),
    }
}

fn state(held: &WireReservation) -> String {
    let name = match held.state {
        WireReservationState::Undefined => "UNDEFINED",
        WireReservationState::Scheduled => "SCHEDULED",
        WireReservationState::Active => "ACTIVE",
    };
    let less = held.reduced.as_ref().map(|less| format!(" {}", part(less.ppm)));
    let late = if held.late.is_empty() { "" } else { ", late" };
    format!("{name}{}{late}", less.unwrap_or_default())
}

fn part(ppm: u32) -> String {
    percent(u64::from(ppm), 1_000_000)
}

/// Formats a time, and how far ahead it is.
fn at(at_ns: u64, now_s: u64) -> String {
    let at_s = at_ns / SECOND_NS;
    match at_s.checked_sub(now_s) {
        Some(ahead) if ahead > 0 => format!("{} (in {})", utc(at_s), span(ahead * SECOND_NS)),
        _ => utc(at_s),
    }
}

pub(super) const SECOND_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use api::{ReducedReservation, WireRate};

    use super::*;

    fn held() -> WireReservation {
        WireReservation {
            id: 7,
            state: WireReservationState::Scheduled,
            start_ns: Some(100 * SECOND_NS),
            end_ns: Some(200 * SECOND_NS),
            user: 5,
            target: "fs".into(),
            write: Some(WireRate::Bytes(500_000_000)),
            ..WireReservation::default()
        }
    }

    #[test]
    fn a_reservation_is_a_line() {
        assert_eq!(
            sentence_at(&held(), 90),
            "reservation 7 is SCHEDULED: from 1970-01-01T00:01:40Z (in 10.0 s) to \
             1970-01-01T00:03:20Z (in 1 min 50 s)\n"
        );
        let reduced = Some(ReducedReservation { ppm: 600_000, because: "b".into() });
        let active = WireReservation {
            state: WireReservationState::Active,
            claim_by_ns: Some(130 * SECOND_NS),
            reduced,
            ..held()
        };
        assert!(sentence_at(&active, 300).starts_with("reservation 7 is ACTIVE 60 %: from "));
        assert!(sentence_at(&active, 300).ends_with("; claim it by 1970-01-01T00:02:10Z\n"));
        let waiting = WireReservation { start_ns: None, end_ns: None, ..held() };
        assert!(sentence_at(&waiting, 0).contains("queue"));
        let ended = WireReservation { ended: Some("removed".into()), ..held() };
        assert!(sentence_at(&ended, 0).contains("(removed)"));
    }

    #[test]
    fn a_reservation_has_its_phases_and_what_was_used() {
        let phase = WirePhase {
            id: 8,
            start_ns: 110 * SECOND_NS,
            last_start_ns: 115 * SECOND_NS,
            end_ns: 120 * SECOND_NS,
            write: Some(WireRate::Bytes(900_000_000)),
            ..WirePhase::default()
        };
        let used_bytes = Some(5_000_000);
        let text = lines(&WireReservation { phases: vec![phase], used_bytes, ..held() });
        for part in [
            "Used         5.00 MB\n",
            "Phase        8 from 1970-01-01T00:01:50Z, at most 5.00 s later, for 10.0 s, write 900MB/s\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let late = LateRate {
            direction: "write".into(),
            served: WireRate::Bytes(48_200_000),
            reserved: WireRate::Bytes(500_000_000),
            span_ns: 5 * SECOND_NS,
        };
        let text = lines(&WireReservation { late: vec![late], ..held() });
        assert!(
            text.contains(
                "State        SCHEDULED, late\nLate         48.2 MB/s of 500 MB/s of writes were \
                 served in the last 5.00 s while its requests waited\n"
            ),
            "{text}"
        );
        let of_phase = WireReservation { phase_of: Some(7), id: 8, ..held() };
        assert!(lines(&of_phase).contains("Phase of     7"));
        let found =
            WireReservations { reservations: vec![of_phase], ..WireReservations::default() };
        assert!(list(&found, 1).contains("8 of 7"));
    }

    #[test]
    fn a_list_is_by_start_and_counts_what_it_omits() {
        let earlier = WireReservation { id: 9, start_ns: Some(50 * SECOND_NS), ..held() };
        let found = WireReservations {
            at_ns: 0,
            reservations: vec![held(), earlier],
            omitted: 3,
            next: None,
        };
        assert_eq!(
            list(&found, 1),
            "ID  STATE      START                 END                   USER  JOB  TARGET  READ    WRITE  METADATA\n \
             9  SCHEDULED  1970-01-01T00:00:50Z  1970-01-01T00:03:20Z  5     -    fs         -  500MB/s         -\n\
             (4 more rows omitted)\n"
        );
        let ended = WireReservation { ended: Some("lapsed".into()), ..held() };
        let found =
            WireReservations { at_ns: 0, reservations: vec![ended], omitted: 0, next: None };
        assert!(list(&found, 1).contains("ended: lapsed"));
        assert_eq!(list(&WireReservations::default(), 1), "no reservations\n");
    }

    #[test]
    fn a_refusal_has_the_next_start_and_what_takes_the_resource() {
        let mut refused = WireRefusal {
            kind: "target".into(),
            bottleneck: "fs".into(),
            taken_by: vec!["rule jobs: 100MB/s".into(), "best effort: 15%".into()],
            next_start_ns: Some(100 * SECOND_NS + 1),
            fits_now_ppm: 620_000,
        };
        assert_eq!(
            refusal("no", &refused, 41),
            "no; taken by rule jobs: 100MB/s, best effort: 15%; all of it fits at \
             1970-01-01T00:01:41Z (in 1 min 00 s)"
        );
        refused.next_start_ns = None;
        refused.taken_by.clear();
        assert_eq!(refusal("no", &refused, 41), "no");
    }
}
