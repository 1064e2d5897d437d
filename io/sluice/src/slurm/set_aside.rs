//! Slurm's reservations of licences: what others have promised in the calendar.
//!
//! ```text
//!   pool.rs: spans ─► those that are there already are left, others deleted, missing ones created
//! ```
//!
//! A reservation is known by its name, `sluice_FROM_UNTIL_LICENCES` in seconds since 1970.

use anyhow::Context as _;
use model::{Nanos, Time};

use super::command;
use super::pool::PoolSpan;

/// A reservation of licences that Slurm has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeldLicences {
    from_s: u64,
    until_s: u64,
    licences: u64,
}

impl HeldLicences {
    fn of(span: &PoolSpan) -> HeldLicences {
        let seconds = |at: Time| at.as_nanos().div_ceil(Nanos::from_secs(1).get());
        let (from_s, until_s) = (seconds(span.from), seconds(span.until));
        HeldLicences { from_s, until_s, licences: span.licences }
    }

    fn parse(name: &str) -> Option<HeldLicences> {
        let mut numbers = name.strip_prefix(PREFIX)?.split('_').map(|text| text.parse().ok());
        let [from_s, until_s, licences] = [numbers.next()??, numbers.next()??, numbers.next()??];
        Some(HeldLicences { from_s, until_s, licences }).filter(|_| numbers.next().is_none())
    }

    fn name(&self) -> String {
        format!("{PREFIX}{}_{}_{}", self.from_s, self.until_s, self.licences)
    }

    /// Whether it is what `wanted` is from now on: what it was before does not matter.
    fn is(&self, wanted: &HeldLicences, now_s: u64) -> bool {
        let from = |held: &HeldLicences| held.from_s.max(now_s);
        from(self) == from(wanted)
            && (self.until_s, self.licences) == (wanted.until_s, wanted.licences)
    }
}

/// Makes Slurm's reservations of licences those that are wanted.
///
/// # Errors
/// If `scontrol` cannot list or delete them.
pub(super) fn set_aside(licence: &str, wanted: &[PoolSpan], now: Time) -> anyhow::Result<()> {
    let now_s = now.as_nanos().div_ceil(Nanos::from_secs(1).get());
    let shown = command::scontrol(&["show", "reservations", "--oneliner"])?;
    let names = shown.lines().filter_map(|line| command::value(line, "ReservationName"));
    let mut held: Vec<HeldLicences> = names.filter_map(HeldLicences::parse).collect();
    let mut missing = Vec::new();
    for span in wanted {
        let wanted = HeldLicences::of(span);
        match held.iter().position(|held| held.is(&wanted, now_s)) {
            Some(at) => drop(held.swap_remove(at)),
            None => missing.push((wanted, span)),
        }
    }
    for held in held {
        let name = held.name();
        let deleted = command::scontrol(&["delete", &format!("ReservationName={name}")]);
        deleted.with_context(|| format!("cannot delete the reservation {name} of licences"))?;
    }
    for (made, span) in missing {
        let start = if made.from_s <= now_s { "now".into() } else { command::moment(span.from) };
        let created = command::scontrol(&[
            "create",
            "reservation",
            &format!("ReservationName={}", made.name()),
            &format!("StartTime={start}"),
            &format!("EndTime={}", command::moment(span.until)),
            "Users=root",
            &format!("Licenses={licence}:{}", span.licences),
            "Flags=LICENSE_ONLY",
        ]);
        // Running jobs may hold them: then there is less to set aside until they end.
        if let Err(error) = created {
            let name = made.name();
            tracing::warn!(name, error = %format!("{error:#}"), "cannot set licences aside");
        }
    }
    Ok(())
}

/// The beginning of the names.
const PREFIX: &str = "sluice_";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_has_begun_is_the_same_and_one_that_starts_elsewhere_is_not() {
        let held = |from_s, until_s| HeldLicences { from_s, until_s, licences: 5 };
        assert!(held(100, 200).is(&held(150, 200), 150));
        assert!(!held(160, 200).is(&held(150, 200), 150));
        assert!(!held(100, 200).is(&held(150, 201), 150));
        assert!(held(300, 400).is(&held(300, 400), 150));
        assert!(!held(300, 400).is(&held(320, 400), 150));
        assert_eq!(HeldLicences::parse(&held(1, 2).name()), Some(held(1, 2)));
        for name in ["sluice_1_2", "sluice_1_2_3_4", "sluice_x_2_3", "other_1_2_3"] {
            assert_eq!(HeldLicences::parse(name), None, "{name}");
        }
    }
}
