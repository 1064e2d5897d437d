//! The reservation of a rule: `reservation`, and a limit that is a reservation too.
//!
//! ```text
//!                        ceiling   reservation   spare service by
//!   limit = R            R                       weight            (never beyond R)
//!   … realtime = true    R         R             weight            (never beyond R)
//!   … spare = true                 R             R
//!   reservation = R                R             weight
//! ```
//!
//! A reservation in bytes does not count requests without bytes, such as opens. `reservation_metadata`
//! is the part of its device time by which they go before weights.
//!
//! `realtime` is Lustre's word for a rule with hard token compensation: service that was missed is
//! made up for. `spare` is the proportional sharing of spare bandwidth; both are of Lustre's TBF
//! (Qian et al., SC'17).

use model::{Rate, Weight};

use super::dependency::{PercentRange, part_of, ppm_of_part};
use super::error::{RuleFault, RuleProblem};
use super::limit::default_kinds;
use super::section::{Section, SectionEntry};
use super::{Limit, Rule};

/// The meaning of a rule's limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitMode {
    /// A ceiling on the rate.
    #[default]
    Hard,
    /// A ceiling and a reservation: `realtime = true`.
    Realtime,
    /// A reservation, and the weight for spare service: `spare = true`.
    Spare,
}

impl Rule {
    /// The default part for requests without bytes: 10 % of a reservation's device time. So files
    /// of some megabytes can be opened as fast as their bytes are reserved.
    pub const RESERVATION_METADATA_PPM: u32 = 100_000;

    /// The reserved rate of each class: its reservation, or a limit that is one.
    pub fn reserved_rate(&self) -> Option<Rate> {
        match self.limit_mode {
            LimitMode::Hard => self.reservation,
            LimitMode::Realtime | LimitMode::Spare => self.limits.first().map(|limit| limit.rate),
        }
    }

    /// The part of the reservation by which requests without bytes go before shares, in parts per
    /// million of its device time. `None` where nothing is reserved in bytes.
    pub fn reservation_metadata(&self) -> Option<u32> {
        let in_bytes = self.reserved_rate().is_some_and(Rate::is_bytes);
        in_bytes.then(|| self.reservation_metadata_ppm.unwrap_or(Rule::RESERVATION_METADATA_PPM))
    }

    /// The ceilings of each class, without a limit that is only a reservation.
    pub fn ceilings(&self) -> &[Limit] {
        if self.limit_mode == LimitMode::Spare { &[] } else { &self.limits }
    }

    /// The weight of a class: the rule's weight, or with `spare` its rate in operations or in 100
    /// kB a second.
    pub fn effective_weight(&self) -> Weight {
        let by_rate = self.reserved_rate().filter(|_| self.limit_mode == LimitMode::Spare);
        let Some(rate) = by_rate else { return self.weight };
        let unit = if rate.is_bytes() { 100_000 } else { 1 };
        let weight = (rate.per_sec() / unit).clamp(1, Weight::MAX.get().into());
        u32::try_from(weight).ok().and_then(Weight::new).unwrap_or(Weight::MAX)
    }
}

/// Reads `realtime` and `spare` of a rule with these limits.
pub(super) fn limit_mode(section: &Section<'_>, limits: &[Limit]) -> Result<LimitMode, RuleFault> {
    let said = |key| -> Result<Option<SectionEntry<'_>>, RuleFault> {
        let Some(entry) = section.get(key) else { return Ok(None) };
        Ok(entry.truth()?.then_some(entry))
    };
    let (mode, entry) = match (said("realtime")?, said("spare")?) {
        (None, None) => return Ok(LimitMode::Hard),
        (Some(realtime), None) => (LimitMode::Realtime, realtime),
        (None, Some(spare)) => (LimitMode::Spare, spare),
        (Some(_), Some(spare)) => return Err(spare.fault(RuleProblem::SpareRealtime)),
    };
    match limits {
        [one] if one.kinds == default_kinds(one.rate) => {}
        _ => return Err(entry.fault(RuleProblem::ReservationLimit { key: mode.key() })),
    }
    let clashes: &[&'static str] = match mode {
        LimitMode::Spare => &["reservation", "weight", "depends_on"],
        LimitMode::Hard | LimitMode::Realtime => &["reservation"],
    };
    for with in clashes {
        if let Some(clash) = section.get(with) {
            return Err(clash.fault(RuleProblem::ConflictsWithLimitMode { key: mode.key(), with }));
        }
    }
    Ok(mode)
}

/// Reads `min_local_service`, in parts per million.
pub(super) fn min_local_service(section: &Section<'_>) -> Result<Option<u32>, RuleFault> {
    let part = section.get("min_local_service").map(|entry| part_of(entry, PercentRange::OfOne));
    part.transpose()
}

/// Reads `reservation_metadata`, in parts per million; `0%` is one.
pub(super) fn reservation_metadata(section: &Section<'_>) -> Result<Option<u32>, RuleFault> {
    let Some(entry) = section.get("reservation_metadata") else { return Ok(None) };
    let text = entry.text("a text such as \"10%\"")?;
    if text == "0%" {
        return Ok(Some(0));
    }
    let wrong = |_| entry.fault(RuleProblem::ReserveMetadata(text.into()));
    ppm_of_part(text, PercentRange::OfOne).map(Some).map_err(wrong)
}

/// Checks the keys that need a reservation.
pub(super) fn check(rule: &Rule, section: &Section<'_>) -> Result<(), RuleFault> {
    let promised = rule.reserved_rate();
    if rule.reserved_slots.is_some() && promised.is_none() {
        return Err(section.need("reserved_slots")?.fault(RuleProblem::SlotsWithoutReservation));
    }
    let problem = match promised {
        _ if rule.reservation_metadata_ppm.is_none() => return Ok(()),
        Some(Rate::Bytes(_)) => return Ok(()),
        Some(rate) => RuleProblem::ReserveMetadataOps { rate: rate.to_string() },
        None => RuleProblem::ReserveMetadataAlone,
    };
    Err(section.need("reservation_metadata")?.fault(problem))
}

impl LimitMode {
    /// The key of the mode, empty for the default.
    pub const fn key(self) -> &'static str {
        match self {
            LimitMode::Hard => "",
            LimitMode::Realtime => "realtime",
            LimitMode::Spare => "spare",
        }
    }
}
