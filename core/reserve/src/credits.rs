//! Credits for reservations that end early, and what guards them against gaming.
//!
//! ```text
//!   finished early ─► claimed? used enough? ─► min(unused, used) · credit_share ─► balance ≤ credit_max
//!                                              balance(t) = balance · 2^(−t / half_life)
//!   spontaneous request that spends ◄───────── its reserved bytes
//! ```
//!
//! The freed capacity returns to the calendar at once, so a credit is never capacity: it buys a place
//! in the queue. Without the bounds on use, an owner could reserve much, use nothing, end early and
//! be first the next time. Just after the claim hardly anything had to be used, so a credit is never
//! for more than was used.

use std::collections::{BTreeMap, BTreeSet};

use model::{Bytes, Nanos, Share, Time};

use crate::ceilings::CeilingSubject;
use crate::record::{ChangedSet, CreditRecord};

/// What credits are given, and how long they last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditSettings {
    /// The share of unused bytes, or of the used ones if these are less, that becomes credit.
    pub share: Share,
    /// The share of the bytes reserved until the early end that must have been used.
    pub used_min: Share,
    /// The time in which a balance halves, not zero.
    pub half_life: Nanos,
    /// The greatest balance of an account.
    pub balance_max: Bytes,
}

impl Default for CreditSettings {
    /// Half of what is unused if half was used, halved each week, at most 1 PB.
    fn default() -> CreditSettings {
        CreditSettings {
            share: Share::ratio(1, 2),
            used_min: Share::ratio(1, 2),
            half_life: Nanos::from_secs(7 * 86_400),
            balance_max: Bytes::new(1_000_000_000_000_000),
        }
    }
}

#[derive(Debug)]
pub(crate) struct CreditAccounts {
    settings: CreditSettings,
    balances: BTreeMap<CeilingSubject, Balance>,
    changed: ChangedSet<CeilingSubject>,
}

#[derive(Clone, Copy, Debug)]
struct Balance {
    bytes: u64,
    at: Time,
}

impl CreditAccounts {
    pub(crate) fn new(settings: CreditSettings) -> CreditAccounts {
        CreditAccounts { settings, balances: BTreeMap::new(), changed: ChangedSet::default() }
    }

    /// Sets a balance as it was recorded.
    pub(crate) fn restore(&mut self, record: CreditRecord) {
        let CreditRecord { subject, bytes, at } = record;
        self.set(subject, bytes, at);
    }

    /// The record of a balance; of zero bytes if there is none.
    pub(crate) fn record(&self, subject: &CeilingSubject) -> CreditRecord {
        let balance = self.balances.get(subject);
        let (bytes, at) = balance.map_or((0, Time::ZERO), |balance| (balance.bytes, balance.at));
        CreditRecord { subject: subject.clone(), bytes: Bytes::new(bytes), at }
    }

    /// Who has a balance.
    pub(crate) fn subjects(&self) -> impl Iterator<Item = &CeilingSubject> {
        self.balances.keys()
    }

    /// The subjects whose balances were given or spent since the last call. Nothing is noted before
    /// the first one.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<CeilingSubject> {
        self.changed.take()
    }

    /// Gives credit for an early end. `reserved` is what was reserved until now, `used` what was
    /// used of it, `unused` what was reserved from now on. Returns what was added.
    pub(crate) fn grant(
        &mut self,
        subject: CeilingSubject,
        reserved: Bytes,
        used: Bytes,
        unused: Bytes,
        now: Time,
    ) -> Bytes {
        if used.get() < self.settings.used_min.of(reserved.get()) {
            return Bytes::ZERO;
        }
        let earned = self.settings.share.of(unused.min(used).get());
        self.add(subject, Bytes::new(earned), now)
    }

    /// Adds to a balance, up to the greatest one. Returns what was added.
    pub(crate) fn add(&mut self, subject: CeilingSubject, more: Bytes, now: Time) -> Bytes {
        let has = self.balance(&subject, now);
        if self.balances.len() >= ACCOUNTS_MAX && !self.balances.contains_key(&subject) {
            self.forget_smallest(now);
        }
        let bytes = (has + more).min(self.settings.balance_max).max(has);
        self.set(subject, bytes, now);
        bytes - has
    }

    /// Takes from a balance.
    ///
    /// # Errors
    /// The balance, if it is less.
    pub(crate) fn spend(
        &mut self,
        subject: &CeilingSubject,
        cost: Bytes,
        now: Time,
    ) -> Result<(), Bytes> {
        let has = self.balance(subject, now);
        if has < cost {
            return Err(has);
        }
        self.set(subject.clone(), has - cost, now);
        Ok(())
    }

    pub(crate) fn balance(&self, subject: &CeilingSubject, now: Time) -> Bytes {
        let decayed = |balance: &Balance| {
            halved(balance.bytes, now.since(balance.at).get(), self.settings.half_life.get())
        };
        Bytes::new(self.balances.get(subject).map_or(0, decayed))
    }

    fn forget_smallest(&mut self, now: Time) {
        let least = self.balances.keys().min_by_key(|subject| self.balance(subject, now)).cloned();
        if let Some(subject) = least {
            self.set(subject, Bytes::ZERO, now);
        }
    }

    fn set(&mut self, subject: CeilingSubject, bytes: Bytes, at: Time) {
        self.changed.note(subject.clone());
        match bytes.get() {
            0 => self.balances.remove(&subject),
            bytes => self.balances.insert(subject, Balance { bytes, at }),
        };
    }
}

/// `amount` · 2^(−span / half_life) in whole numbers, rounded down: halvings by a shift, the rest by
/// the binary digits of the fraction, each a factor 2^(−1/2), 2^(−1/4), …
fn halved(amount: u64, span: u64, half_life: u64) -> u64 {
    let half_life = half_life.max(1);
    let whole = span / half_life;
    if whole >= 64 {
        return 0;
    }
    let mut rest = u128::from(span % half_life);
    let (mut amount, mut factor) = (amount >> whole, 1u64 << 31);
    for _ in 0..16 {
        // the root of the last factor, in units of 2^-32
        factor = (factor << 32).isqrt();
        rest *= 2;
        if rest >= u128::from(half_life) {
            rest -= u128::from(half_life);
            amount = ((u128::from(amount) * u128::from(factor)) >> 32) as u64;
        }
    }
    amount
}

/// How many balances there are; beyond it the smallest is forgotten.
const ACCOUNTS_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    fn days(days: u64) -> Time {
        Time::ZERO + Nanos::from_secs(days * 86_400)
    }

    #[test]
    fn balance_halves_in_its_half_life_and_falls_smoothly() {
        assert_eq!(halved(1_000_000, 7, 7), 500_000);
        assert_eq!(halved(1_000_000, 21, 7), 125_000);
        // 10^6 · 2^(−1/2) = 707,106.8 and 10^6 · 2^(−1/7) = 905,723.7, to 16 binary digits
        assert!((707_105..=707_106).contains(&halved(1_000_000, 35, 70)));
        assert!((905_715..=905_740).contains(&halved(1_000_000, 10, 70)));
        assert_eq!(halved(u64::MAX, 64, 1), 0);
    }

    #[test]
    fn credit_needs_use_and_is_bounded_and_spent_once() {
        let settings =
            CreditSettings { balance_max: Bytes::new(1_000), ..CreditSettings::default() };
        let mut credits = CreditAccounts::new(settings);
        let user = CeilingSubject::User(7);
        let mut grant = |used, unused| {
            let [reserved, used, unused] = [800, used, unused].map(Bytes::new);
            credits.grant(user.clone(), reserved, used, unused, days(0)).get()
        };
        let granted =
            [(399, 600), (400, 600), (400, 200)].map(|(used, unused)| grant(used, unused));
        assert_eq!((granted, grant(2_000, 9_000)), ([0, 200, 100], 700));
        assert_eq!(credits.balance(&user, days(7)).get(), 500);
        assert_eq!(credits.spend(&user, Bytes::new(501), days(7)), Err(Bytes::new(500)));
        assert_eq!(credits.spend(&user, Bytes::new(500), days(7)), Ok(()));
        assert_eq!(credits.balance(&user, days(7)), Bytes::ZERO);
    }
}
