//! Total service: what each class had from all proxies, so that each proxy learns the remote
//! service.
//!
//! ```text
//!   proxy a: 40, 41, 45 … ─┐                        ┌─► a: what b and c served
//!   proxy b:  7,  9, 12 … ─┴─► in all, by class ────┴─► b: what a and c served
//!             counted up        each increase once       counted up, applied once
//! ```
//!
//! Both directions carry totals and not increments. A lost total is part of the next, and a
//! duplicate adds nothing. A total restarts from zero with a greater generation, and a receiver
//! that knows an older generation does the same. Clients that are mounts report to each proxy
//! themselves what they had from the others (docs/protocol.md section 10). This is for clients that
//! cannot.

use std::collections::BTreeMap;

use model::{Nanos, Scope, Time};

use crate::messages::{RemoteService, ServiceTotal};

/// The controller's totals of all classes.
#[derive(Debug, Default)]
pub(crate) struct TotalService {
    classes: BTreeMap<Scope, ClassService>,
    generations: u64,
}

#[derive(Debug, Default)]
struct ClassService {
    /// What all proxies served of it.
    total: u64,
    accounts: BTreeMap<u32, ServiceAccount>,
    /// When a proxy reported it last.
    last_reported: Time,
}

/// One proxy's account with one class.
#[derive(Debug)]
struct ServiceAccount {
    /// The latest known total of the proxy's own service.
    own: ServiceTotal,
    /// The generation in which remote service is sent to it.
    generation: u64,
    /// The others' service when that generation began, and its own since.
    began: u64,
    served: u64,
}

impl TotalService {
    /// Handles what a proxy reports to have served in total.
    pub(crate) fn receive(&mut self, id: u32, served: &[(Scope, ServiceTotal)], now: Time) {
        for (scope, sum) in served {
            let room = self.classes.len() < CLASSES_MAX;
            if !room && !self.classes.contains_key(scope) {
                continue;
            }
            let class = self.classes.entry(scope.clone()).or_default();
            class.last_reported = now;
            let account = class.accounts.entry(id).or_insert_with(|| {
                self.generations += 1;
                ServiceAccount {
                    own: ServiceTotal::default(),
                    generation: self.generations,
                    began: class.total,
                    served: 0,
                }
            });
            let more = account.own.advance(*sum).get();
            account.served = account.served.saturating_add(more);
            class.total = class.total.saturating_add(more);
        }
    }

    /// The remote service to send to a proxy, of each class that it reported.
    pub(crate) fn remote_service(&self, id: u32) -> Vec<(Scope, RemoteService)> {
        let of = |(scope, class): (&Scope, &ClassService)| {
            let account = class.accounts.get(&id)?;
            let others = class.total - account.began - account.served;
            let elsewhere =
                ServiceTotal { generation: account.generation, cost: Nanos::new(others) };
            Some((scope.clone(), RemoteService { total: elsewhere, own: account.own }))
        };
        self.classes.iter().filter_map(of).collect()
    }

    /// Handles that a proxy is gone or was restarted; what it served stays counted.
    pub(crate) fn remove_proxy(&mut self, id: u32) {
        for class in self.classes.values_mut() {
            class.accounts.remove(&id);
        }
    }

    /// Forgets classes that no proxy has reported for a time.
    pub(crate) fn drop_unused(&mut self, keep: Nanos, now: Time) {
        self.classes.retain(|_, class| now.since(class.last_reported) < keep);
    }
}

/// A proxy's totals: what it served, and the remote service that it received.
#[derive(Debug, Default)]
pub(crate) struct LocalService {
    classes: BTreeMap<Scope, LocalClass>,
    generations: u64,
    /// Remote service that is to be applied here.
    due: BTreeMap<Scope, Nanos>,
}

#[derive(Debug)]
struct LocalClass {
    served: ServiceTotal,
    /// What the controller has acknowledged.
    known: ServiceTotal,
    remote: ServiceTotal,
    used: Time,
}

impl LocalService {
    /// Counts service to a class; a class beyond the bound is not counted.
    pub(crate) fn serve(&mut self, scope: &Scope, cost: Nanos, now: Time) {
        if !self.classes.contains_key(scope) {
            if self.classes.len() >= CLASSES_MAX {
                return;
            }
            self.generations += 1;
            let served = ServiceTotal { generation: self.generations, cost: Nanos::ZERO };
            let none = ServiceTotal::default();
            self.classes
                .insert(scope.clone(), LocalClass { served, known: none, remote: none, used: now });
        }
        if let Some(class) = self.classes.get_mut(scope) {
            class.served.cost += cost;
            class.used = now;
        }
    }

    /// The totals for a report. Forgets what is acknowledged and was not used for long.
    pub(crate) fn report(&mut self, now: Time) -> Vec<(Scope, ServiceTotal)> {
        let keeps = |class: &LocalClass| {
            class.known != class.served || now.since(class.used) < REPORT_IDLE_MAX
        };
        self.classes.retain(|_, class| keeps(class));
        self.classes.iter().map(|(scope, class)| (scope.clone(), class.served)).collect()
    }

    /// Handles the remote service of an assignment.
    pub(crate) fn receive(&mut self, told: &[(Scope, RemoteService)]) {
        for (scope, RemoteService { total: elsewhere, own }) in told {
            let Some(class) = self.classes.get_mut(scope) else { continue };
            class.known = class.known.max(*own);
            let more = class.remote.advance(*elsewhere);
            if more > Nanos::ZERO {
                *self.due.entry(scope.clone()).or_default() += more;
            }
        }
    }

    /// Takes remote service of a class that was not given to the dispatcher yet.
    pub(crate) fn poll(&mut self) -> Option<(Scope, Nanos)> {
        self.due.pop_first()
    }

    /// Restarts the remote totals for another controller, which counts from zero.
    pub(crate) fn reset(&mut self) {
        self.classes.clear();
    }
}

impl ServiceTotal {
    /// Adopts a later total and returns the difference; an older total changes nothing.
    fn advance(&mut self, sum: ServiceTotal) -> Nanos {
        if sum <= *self {
            return Nanos::ZERO;
        }
        let before = if sum.generation == self.generation { self.cost } else { Nanos::ZERO };
        *self = sum;
        sum.cost - before
    }
}

/// How many classes are accounted for at once.
const CLASSES_MAX: usize = 65_536;
/// A class that was not served for this time is not reported. Less than the controller keeps it.
const REPORT_IDLE_MAX: Nanos = Nanos::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    fn class() -> Scope {
        Scope::rule("jobs", &[])
    }

    fn sums(own: &mut LocalService) -> Vec<(Scope, ServiceTotal)> {
        own.report(Time::ZERO)
    }

    fn due(own: &mut LocalService) -> u64 {
        std::iter::from_fn(|| own.poll()).map(|(_, cost)| cost.get()).sum()
    }

    #[test]
    fn each_service_is_counted_once_whatever_is_lost_or_comes_twice() {
        let (mut all, mut a, mut b) =
            (TotalService::default(), LocalService::default(), LocalService::default());
        a.serve(&class(), Nanos::new(10), Time::ZERO);
        b.serve(&class(), Nanos::new(1), Time::ZERO);
        all.receive(1, &sums(&mut a), Time::ZERO);
        all.receive(2, &sums(&mut b), Time::ZERO);
        a.serve(&class(), Nanos::new(20), Time::ZERO);
        let lost = sums(&mut a);
        a.serve(&class(), Nanos::new(30), Time::ZERO);
        for report in [sums(&mut a), lost, sums(&mut a)] {
            all.receive(1, &report, Time::ZERO);
        }
        let old = all.remote_service(2);
        b.receive(&old);
        a.serve(&class(), Nanos::new(40), Time::ZERO);
        all.receive(1, &sums(&mut a), Time::ZERO);
        for told in [all.remote_service(2), old, all.remote_service(2)] {
            b.receive(&told);
        }
        // The 10 were before b reported the class: it had no request to be delayed then.
        assert_eq!((due(&mut b), due(&mut b)), (20 + 30 + 40, 0));
        a.receive(&all.remote_service(1));
        assert_eq!(due(&mut a), 1);
    }

    #[test]
    fn a_member_that_begins_anew_counts_from_zero_and_is_told_nothing_old() {
        let (mut all, mut a, mut b) =
            (TotalService::default(), LocalService::default(), LocalService::default());
        a.serve(&class(), Nanos::new(5), Time::ZERO);
        b.serve(&class(), Nanos::new(5), Time::ZERO);
        all.receive(1, &sums(&mut a), Time::ZERO);
        all.receive(2, &sums(&mut b), Time::ZERO);
        all.remove_proxy(1);
        let mut a = LocalService::default();
        a.serve(&class(), Nanos::new(7), Time::ZERO);
        all.receive(1, &sums(&mut a), Time::ZERO);
        a.receive(&all.remote_service(1));
        b.receive(&all.remote_service(2));
        assert_eq!((due(&mut a), due(&mut b)), (0, 7));
    }

    #[test]
    fn a_class_that_rests_is_spoken_of_until_the_controller_knows_it() {
        let (mut all, mut a) = (TotalService::default(), LocalService::default());
        let late = Time::ZERO + REPORT_IDLE_MAX;
        a.serve(&class(), Nanos::new(5), Time::ZERO);
        let report = a.report(late);
        assert_eq!(report.len(), 1);
        all.receive(1, &report, late);
        a.receive(&all.remote_service(1));
        assert_eq!(a.report(late), []);
        a.serve(&class(), Nanos::new(3), late);
        all.receive(1, &a.report(late), late);
        assert_eq!(all.classes[&class()].total, 8, "a new lap is not taken for an old sum");
    }
}
