//! Accounts and events of decays as the API shows them.
//!
//! ```text
//!   DecayEvent ─► ControllerEvent: kind, subject, numbers, sentence
//!   DecayStatus ─► WireDecayAccount, those with the most of their entitlement first
//! ```

use api::{ControllerEvent, DecayAccountTable, DecayChange, EventKind, WireDecayAccount, WireKey};
use model::{Scope, Time};
use plan::{DecayEvent, DecayLevel, DecayStatus};
use rules::DecayRule;

pub(super) fn controller_event(event: &DecayEvent) -> Option<ControllerEvent> {
    let kind = match event.stage {
        _ if event.is_release() => EventKind::Released,
        DecayLevel::Warned => EventKind::Warned,
        DecayLevel::Throttled => EventKind::Throttled,
        DecayLevel::Floor => EventKind::Floor,
        DecayLevel::Free => return None,
    };
    let change = DecayChange {
        name: event.scope.name.to_string(),
        key: event.scope.key.iter().map(WireKey::from).collect(),
        used: event.used,
        entitlement: event.entitlement,
        limit: event.limit.map(Into::into),
        factor_ppm: event.factor_ppm,
        until_ns: event.release.map(Time::as_nanos),
    };
    Some(ControllerEvent {
        sequence: 0,
        at_ns: event.at.as_nanos(),
        kind,
        subject: subject_of(&event.scope),
        decay: Some(change),
        text: event.to_string(),
    })
}

pub(super) fn accounts_of(decay: &DecayRule, mut reports: Vec<DecayStatus>) -> DecayAccountTable {
    let part = |report: &DecayStatus| {
        u128::from(report.used) * 1_000_000 / u128::from(report.entitlement.max(1))
    };
    reports.sort_by(|a, b| part(b).cmp(&part(a)).then_with(|| a.scope.cmp(&b.scope)));
    let account = |report: &DecayStatus| WireDecayAccount {
        subject: subject_of(&report.scope),
        key: report.scope.key.iter().map(WireKey::from).collect(),
        level: level(report.stage).into(),
        used: report.used,
        entitlement: report.entitlement,
        limit: report.limit.map(Into::into),
        until_ns: report.release.map(Time::as_nanos),
        pattern: report.pattern_factor.as_ref().map(|(pattern, _)| pattern.to_string()),
        pattern_factor_ppm: report.pattern_factor.as_ref().map(|(_, factor_ppm)| *factor_ppm),
    };
    DecayAccountTable {
        rule: decay.into(),
        accounts: reports.iter().take(ACCOUNTS_MAX).map(account).collect(),
        omitted: reports.len().saturating_sub(ACCOUNTS_MAX) as u64,
    }
}

/// A key as people write it: `uid=1000`.
pub(super) fn subject_of(scope: &Scope) -> String {
    match scope.key.is_empty() {
        true => "all".into(),
        false => scope.key.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
    }
}

pub(super) fn level(stage: DecayLevel) -> &'static str {
    match stage {
        DecayLevel::Free => "free",
        DecayLevel::Warned => "warned",
        DecayLevel::Throttled => "throttled",
        DecayLevel::Floor => "floor",
    }
}

pub(super) fn stage_of(level: &str) -> Option<DecayLevel> {
    [DecayLevel::Warned, DecayLevel::Throttled, DecayLevel::Floor]
        .into_iter()
        .find(|stage| self::level(*stage) == level)
}

/// Accounts of one policy that are shown.
const ACCOUNTS_MAX: usize = 1_000;
