//! The report of one proxy: its epoch, its description, and what it says of each target.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use api::ALL_TARGETS;
use plan::{AllocatorSettings, EpochCheck, ShareAllocator};

use super::{
    MEMBERS_MAX, PlanActor, REPLY_DELAY_MAX, ReportMsg, Superseded, TARGETS_MAX, WaitingReport,
};
use crate::process::calendar::CalendarMsg;

impl PlanActor {
    pub(super) fn report(&mut self, said: ReportMsg) {
        let now = self.now();
        let is_new = |name: &Arc<str>| !self.known.keys().any(|(_, known)| known == name);
        let check = match self.known.len() >= MEMBERS_MAX && is_new(&said.name) {
            true => None,
            false => self.lives.check(&said.name, said.epoch, now),
        };
        let duplicate = match check {
            None => {
                tracing::warn!(
                    proxy = &*said.name,
                    MEMBERS_MAX,
                    "rejected a report: the table of proxies is full"
                );
                self.counts.refused.add(1);
                return;
            }
            Some(EpochCheck::Superseded { may_restart: again, first_sign: news }) => {
                if news {
                    self.publish_duplicate(&said.name);
                }
                self.counts.duplicate.add(1);
                // The caller may have gone.
                let _ = said.answer.send(Err(Superseded { may_restart: again }));
                return;
            }
            Some(EpochCheck::Current { duplicate }) => duplicate,
        };
        self.answer(&said.name);
        self.counts.reports.add(1);
        if let Some(description) = said.description {
            // Without room it is taken when the proxy describes itself again, within a minute: its
            // shares are not to wait for the calendar.
            let describe = CalendarMsg::Describe(said.name.clone(), description);
            if self.calendar.try_send(describe).is_err() {
                tracing::warn!(
                    proxy = &*said.name,
                    "the calendar is overloaded: a description is left out"
                );
            }
        }
        let mut targets = BTreeMap::new();
        for (target, report) in said.reports {
            if !self.targets.contains_key(&target) {
                let others = self.targets.keys().filter(|known| ***known != *ALL_TARGETS);
                if *target != *ALL_TARGETS && others.count() >= TARGETS_MAX {
                    tracing::warn!(
                        target = &*target,
                        TARGETS_MAX,
                        "ignored a target: the table of targets is full"
                    );
                    continue;
                }
                let settings = AllocatorSettings::default();
                let rules = self.rules.set.clone();
                let mut new = ShareAllocator::new(settings, self.term, &[], rules, now);
                // Decays limit, and limits are one over all targets.
                let rates = self.rates.iter().filter(|_| *target == *ALL_TARGETS);
                rates.for_each(|(scope, rate)| new.set_rate(scope, Some(*rate), now));
                if let Some(reservations) = self.reservations.get(&target) {
                    new.set_rows(reservations.rows.all(now), now);
                }
                self.targets.insert(target.clone(), new);
            }
            targets.insert(target.clone(), (report.term, report.revision));
            if let Some(controller) = self.targets.get_mut(&target) {
                controller.report(&report, now);
                let ignored = controller.take_ignored();
                if ignored > 0 && self.ignored.insert(said.name.clone()) {
                    tracing::warn!(
                        proxy = &*said.name,
                        target = &*target,
                        ignored,
                        "ignored what a proxy reports of rows that it does not have"
                    );
                }
            }
        }
        if self.rules.is_stored && said.rules.as_ref() != Some(&self.rules.version) {
            self.ready.insert(said.name.clone());
        }
        let ReportMsg { name, epoch, rules, answer, answers, .. } = said;
        self.fan_out.receive(&name, answers);
        self.fan_out.end(Instant::now());
        if self.fan_out.has_query_for(&name) {
            self.ready.insert(name.clone());
        }
        let until = Instant::now() + REPLY_DELAY_MAX;
        let orders = BTreeMap::new();
        let said = targets;
        self.waiting.insert(
            name,
            WaitingReport {
                answer,
                duplicate,
                epoch,
                rules,
                reported: said,
                assignments: orders,
                until,
            },
        );
    }
}
