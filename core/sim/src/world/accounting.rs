//! Usage in the world: what proxies report, what a controller has counted, and its decays.
//!
//! ```text
//!   scheduler ─ accounts ─► UsageReporter ─ UsageReport ─► UsageCollector ─ growth ─► SimLedger
//!                                ▲                               │                        │ each minute
//!                                └───── acknowledgement ◄────────┘                        ▼
//!   grants ◄─ ShareAllocator ◄─ rates ─ DecayAccounts ◄─ growth            what a new leader reads
//! ```
//!
//! A leader that crashes loses what it had counted since the last whole minute; published levels of
//! decays survive, as events do. Proxies report everything again to the next one.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Amount, Nanos, OpKind, Rate, Scope, Service, Time};
use plan::{DecayAccounts, DecayEvent, DecayLevel, UsageMinute};
use rules::{RuleSet, key_of};
use usage::{AccountTotals, UsageCollector, UsageReport, UsageReporter};

use super::World;
use super::control::{ControlMsg, SimPool};
use crate::checks::{CountedUsage, ProxyEpoch, check_account, check_level};
use crate::faults::{AccountFate, FaultKind, SimFault};

/// The usage that the controller has counted.
#[derive(Debug)]
pub(super) struct SimAccounting {
    pub(super) ledger: SimLedger,
    /// The ledger as of the last whole minute.
    durable: SimLedger,
    minute: u64,
    pub(super) decays: DecayAccounts,
    /// Levels that are not free, with their limits, as published.
    levels: BTreeMap<Scope, (DecayLevel, Option<Rate>)>,
    /// Until when requests count as waiting for one another.
    contended_until: Time,
    /// Until then a new leader releases no key.
    pub(super) settled_at: Time,
    /// When all accounts are to be checked next.
    next_check: Time,
}

/// A controller's record of usage.
#[derive(Clone, Debug, Default)]
pub(super) struct SimLedger {
    collector: UsageCollector,
    pub(super) counted: CountedUsage,
    /// Units of each key of a decay, by minute.
    pub(super) minutes: BTreeMap<(Scope, u64), u64>,
}

/// A usage report in transit.
#[derive(Clone, Debug)]
pub(super) struct SimUsageReport {
    pub(super) epoch: u64,
    pub(super) contended: bool,
    pub(super) report: UsageReport,
}

/// A proxy's reporter, and the greatest term of a controller that answered it.
#[derive(Debug, Default)]
pub(super) struct SimReporter {
    reporter: UsageReporter,
    term: u64,
    /// The accounts of the scheduler, by its number of the subject and the class.
    accounts: BTreeMap<(u64, Arc<str>), SimAccount>,
    last_account: u64,
    #[cfg(test)]
    pub(super) bug: Option<ReporterBug>,
}

/// An account of a scheduler, which may be closed though the scheduler still has it.
#[derive(Debug)]
struct SimAccount {
    /// Its number, never used twice: another one after it was closed.
    id: u64,
    /// The service of the former numbers.
    before: Service,
    /// The service at the last check.
    noted: Service,
}

/// A fault of a reporter, for tests of the checks.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(super) enum ReporterBug {
    /// Gives a line another number when it is reported again.
    CountsTwice,
    /// Takes a report for acknowledged when it is sent.
    Loses,
    /// Forgets the sum of accounts that were closed.
    LosesRest,
}

impl SimAccounting {
    pub(super) fn new(rules: Arc<RuleSet>, now: Time) -> SimAccounting {
        SimAccounting {
            ledger: SimLedger::default(),
            durable: SimLedger::default(),
            minute: now.as_nanos() / MINUTE,
            decays: DecayAccounts::new(rules, now),
            levels: BTreeMap::new(),
            contended_until: now + CONTENDED,
            settled_at: now,
            next_check: now,
        }
    }

    /// Begins again as another leader, from the record of the last minute.
    pub(super) fn restart(&mut self, rules: &Arc<RuleSet>, now: Time) {
        self.ledger = self.durable.clone();
        self.decays = DecayAccounts::new(rules.clone(), now);
        self.contended_until = now + CONTENDED;
        self.settled_at = now + SETTLING;
        let is_known = |scope: &Scope| rules.decays.iter().any(|decay| *decay.name == *scope.name);
        self.levels.retain(|scope, _| is_known(scope));
        let levels = self.levels.iter();
        let levels = levels.map(|(scope, (level, limit))| (scope.clone(), *level, *limit));
        self.decays.resume(levels, self.settled_at, now);
        self.minute = now.as_nanos() / MINUTE;
        let rows = self.ledger.minutes.iter().filter(|((scope, _), _)| is_known(scope));
        let rows = rows.map(|((scope, minute), used)| UsageMinute {
            scope: scope.clone(),
            minute: *minute,
            used: *used,
        });
        let (past, open): (Vec<_>, Vec<_>) = rows.partition(|row| row.minute < self.minute);
        self.decays.restore(past, now);
        for row in open {
            self.decays.charge(&row.scope, row.used, now);
        }
    }

    /// Counts a report. What comes in a minute is written with it.
    fn count(&mut self, proxy: u32, msg: &SimUsageReport, rules: &RuleSet, now: Time) {
        self.end_minute(now);
        if msg.contended {
            self.contended_until = now + CONTENDED;
        }
        let name = format!("proxy{proxy}").into();
        let ledger = &mut self.ledger;
        let Some(grown) = ledger.collector.receive(&name, msg.epoch, &msg.report) else { return };
        ledger.counted.totals.insert((proxy, msg.epoch), msg.report.total);
        for line in grown {
            let of = &msg.report.lines[line.nth];
            let who = &of.subject.identity;
            let key = (proxy, msg.epoch, who.clone());
            ledger.counted.lines.entry(key).or_default().add(&line.growth);
            for kind in OpKind::ALL {
                let amount = Amount::new(line.growth.bytes_of(*kind), line.growth.ops_of(*kind));
                for at in rules.decays_for(who, *kind, of.subject.paths) {
                    let decay = &rules.decays[at];
                    let units = decay.entitlement.units_of(amount);
                    if units > 0 {
                        let key = key_of(&decay.per, who, *kind);
                        let scope = Scope::decay(&decay.name, &key);
                        *ledger.minutes.entry((scope.clone(), self.minute)).or_default() += units;
                        self.decays.charge(&scope, units, now);
                    }
                }
            }
        }
    }

    fn end_minute(&mut self, now: Time) {
        let minute = now.as_nanos() / MINUTE;
        if minute != self.minute {
            self.minute = minute;
            self.durable = self.ledger.clone();
        }
    }

    /// Does what is due; returns changed limits, and changed levels.
    fn advance(&mut self, now: Time) -> (Vec<(Scope, Option<Rate>)>, Vec<DecayEvent>) {
        self.end_minute(now);
        self.decays.set_contention(now < self.contended_until, now);
        let rates = std::iter::from_fn(|| self.decays.poll_rate(now)).collect();
        let events: Vec<DecayEvent> = std::iter::from_fn(|| self.decays.poll_event(now)).collect();
        // They are in the ledger at once.
        while self.decays.poll_ledger(now).is_some() {}
        for event in &events {
            match event.stage {
                DecayLevel::Free => self.levels.remove(&event.scope),
                level => self.levels.insert(event.scope.clone(), (level, event.limit)),
            };
        }
        (rates, events)
    }
}

impl SimReporter {
    /// Restarts with the process: nothing is remembered.
    pub(super) fn restart(&mut self) {
        (self.reporter, self.term) = (UsageReporter::default(), 0);
        self.accounts.clear();
    }

    /// Handles the term of a message from a controller; false if it is of a former one.
    pub(super) fn handle_term(&mut self, term: u64) -> bool {
        if term > self.term {
            self.term = term;
            self.reporter.reset();
        }
        term == self.term
    }

    /// Notes an account of the scheduler; returns its growth if that has no line.
    fn note(&mut self, of: AccountTotals, fate: AccountFate, now: Time) -> Option<Service> {
        let last = &mut self.last_account;
        let key = (of.id, of.subject.class.clone());
        let own = self.accounts.entry(key.clone()).or_insert_with(|| {
            *last += 1;
            SimAccount { id: *last, before: Service::default(), noted: Service::default() }
        });
        let growth = of.service.since(&own.noted);
        own.noted = of.service;
        let account = AccountTotals { id: own.id, service: of.service.since(&own.before), ..of };
        if fate != AccountFate::Kept {
            *last += 1;
            (own.id, own.before) = (*last, own.noted);
        }
        match fate {
            AccountFate::Kept => self.reporter.note(account, now),
            AccountFate::Closed => self.reporter.note_closed(account, now),
            AccountFate::Folded => {
                self.add_rest(&account.service);
                return Some(growth);
            }
        }
        None
    }

    fn add_rest(&mut self, rest: &Service) {
        #[cfg(test)]
        if matches!(self.bug, Some(ReporterBug::LosesRest)) {
            return;
        }
        self.reporter.add_rest(rest);
    }

    #[cfg(test)]
    fn inject(&mut self, report: &mut UsageReport) {
        match self.bug {
            Some(ReporterBug::CountsTwice) => {
                let sequence = report.sequence;
                report.lines.iter_mut().for_each(|line| line.id += sequence << 32);
            }
            Some(ReporterBug::Loses) => self.reporter.acknowledge(report.sequence),
            Some(ReporterBug::LosesRest) | None => {}
        }
    }
}

impl World {
    /// Reports the usage of a proxy if it is due.
    pub(super) fn report_usage(&mut self, proxy: u32) {
        let own = &mut self.proxies[proxy as usize];
        let clock = own.clock(self.now);
        let control = &mut self.proxy_controls[proxy as usize];
        if !control.usage.reporter.is_due(!self.rules.decays.is_empty(), clock) {
            return;
        }
        let accounts = own.sched.accounts(clock);
        for account in accounts.open {
            let fate = self.network_faults.account_fate(&self.scenario.faults, proxy);
            let identity = account.subject.identity.clone();
            if let Some(growth) = control.usage.note(account, fate, clock) {
                let of = ProxyEpoch { proxy, epoch: control.epoch };
                self.usage_checks.folded(of, identity, &growth);
            }
        }
        for account in accounts.closed {
            control.usage.note(account, AccountFate::Closed, clock);
        }
        control.usage.add_rest(&accounts.rest);
        let contended = own.sched.is_contended();
        let Some(report) = control.usage.reporter.end_sweep(clock) else { return };
        #[cfg(test)]
        let report = {
            let mut report = report;
            control.usage.inject(&mut report);
            report
        };
        let msg = SimUsageReport { epoch: control.epoch, contended, report };
        self.send_control_msg(proxy, ControlMsg::Usage(Box::new(msg)));
    }

    /// Handles a usage report at the controller.
    pub(super) fn receive_usage(&mut self, proxy: u32, msg: &SimUsageReport) {
        let limits = self.control_of(proxy, SimPool::Limits);
        let term = self.controls[limits].term;
        let Some(accounting) = &mut self.accounting else { return };
        accounting.count(proxy, msg, &self.rules, self.now);
        let collector = &accounting.ledger.collector;
        let sequence = collector.last_counted(&format!("proxy{proxy}"), msg.epoch);
        self.check_counted(proxy, msg.epoch);
        if let Some(sequence) = sequence {
            let epoch = msg.epoch;
            self.send_control_msg(proxy, ControlMsg::UsageCounted { term, epoch, sequence });
        }
        self.send_assignments(limits);
    }

    /// Handles an acknowledgement at the proxy.
    pub(super) fn usage_counted(&mut self, proxy: u32, term: u64, epoch: u64, sequence: u64) {
        let control = &mut self.proxy_controls[proxy as usize];
        let is_current = self.proxies[proxy as usize].up && control.usage.handle_term(term);
        if is_current && epoch == control.epoch {
            control.usage.reporter.acknowledge(sequence);
        }
    }

    /// Passes the limits of decays on to the shares of limits.
    pub(super) fn advance_decays(&mut self) {
        let (Some(accounting), Some(limits)) = (&mut self.accounting, self.controls.last_mut())
        else {
            return;
        };
        let (rates, events) = accounting.advance(self.now);
        for (scope, rate) in &rates {
            limits.controller.set_rate(scope, *rate, self.now);
        }
        self.check_decays(&rates, &events);
    }

    /// Checks what is counted of a proxy's epoch.
    fn check_counted(&mut self, proxy: u32, epoch: u64) {
        let Some(accounting) = self.accounting.as_ref().filter(|_| self.checks.is_some()) else {
            return;
        };
        let counted = &accounting.ledger.counted;
        let owners = &self.identities;
        if let Some(what) =
            self.usage_checks.check_counted(ProxyEpoch { proxy, epoch }, counted, owners, false)
        {
            self.violate(what);
        }
    }

    /// Checks changed limits and levels of decays, and all accounts.
    fn check_decays(&mut self, rates: &[(Scope, Option<Rate>)], events: &[DecayEvent]) {
        let Some(accounting) = self.accounting.as_mut().filter(|_| self.checks.is_some()) else {
            return;
        };
        let begins = |event: &&DecayEvent| {
            event.before < DecayLevel::Throttled && event.stage >= DecayLevel::Throttled
        };
        self.tally.throttlings += events.iter().filter(begins).count() as u64;
        for (scope, rate) in rates {
            self.usage_checks.limited(scope, *rate, self.now);
        }
        let (rules, minutes, now) = (&self.rules, &accounting.ledger.minutes, self.now);
        let mut wrong = Vec::new();
        if now >= accounting.next_check || !events.is_empty() {
            let accounts = accounting.decays.reports();
            wrong.extend(accounts.filter_map(|of| check_account(rules, minutes, &of, now)));
        }
        if now >= accounting.settled_at {
            let levels = events.iter().filter_map(|event| check_level(rules, minutes, event, now));
            wrong.extend(levels);
        }
        if now >= accounting.next_check {
            accounting.next_check = now + CHECK_INTERVAL;
        }
        wrong.into_iter().for_each(|what| self.violate(what));
    }

    /// Checks each second that the limits of decays are kept, where no fault makes them late.
    pub(super) fn check_throttled_keys(&mut self) {
        let is_late = |fault: &SimFault| {
            !matches!(fault.what, FaultKind::Slow { .. } | FaultKind::Duplicate { .. })
        };
        let late = self.scenario.faults.iter().any(is_late);
        if self.checks.is_none() || self.controls.is_empty() || late {
            return;
        }
        let proxies = self.proxies.len() as u64;
        if let Some(what) = self.usage_checks.check_limits(proxies, self.now) {
            self.violate(what);
        }
    }

    /// After the load: waits until every proxy has reported, and compares all that was served with
    /// all that was counted.
    pub(super) fn settle_usage(&mut self) {
        if self.accounting.is_none() || self.checks.is_none() {
            return;
        }
        let faults = self.scenario.faults.iter().map(|fault| fault.at + fault.span);
        let until = faults.fold(self.now, Time::max) + LAST_REPORTS;
        self.run_until(until);
        for proxy in 0..self.proxies.len() as u32 {
            let Some(accounting) = &self.accounting else { return };
            let counted = &accounting.ledger.counted;
            for epoch in 1..=self.proxy_controls[proxy as usize].epoch {
                let last = epoch == self.proxy_controls[proxy as usize].epoch;
                let owners = &self.identities;
                let of = ProxyEpoch { proxy, epoch };
                if let Some(what) = self.usage_checks.check_counted(of, counted, owners, last) {
                    return self.violate(what);
                }
            }
        }
    }
}

const MINUTE: u64 = 60_000_000_000;
/// How often all accounts are checked, though no level changes.
const CHECK_INTERVAL: Nanos = Nanos::from_secs(1);
/// As long as a controller of production takes requests for contended after a report said so.
const CONTENDED: Nanos = Nanos::from_secs(15);
/// As long as a new leader of production releases no key.
const SETTLING: Nanos = Nanos::from_secs(8);
/// The time within which every proxy has reported everything once messages arrive: two intervals
/// of reports and two timeouts of an acknowledgement.
const LAST_REPORTS: Nanos = Nanos::from_secs(30);
