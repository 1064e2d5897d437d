//! Definitions of a trace: subjects and classes, each defined once, before or soon after the first
//! request that refers to it.
//!
//! A subject is one attach, or a peer for whom nobody is known: who asks before or
//! without an attach. Its number stands in its `User` or `Connection`, so that a request
//! finds it without looking anything up. Classes are known to the dispatcher only; asking it
//! takes its lock for as long as `sluice top` does, so the writer asks, twice a second
//! at most, and only when a number was met for the first time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use model::{Identity, JobId, Time};
use trace::{Definitions, ID_UNKNOWN};

use super::TraceState;
use crate::connection::Connection;
use crate::fids::ProxyUser;
use crate::target::Target;

/// Caller of a request.
#[derive(Clone, Copy)]
pub(crate) enum TraceCaller<'a> {
    /// A user with an attach.
    User(&'a ProxyUser),
    /// A caller at this connection without an attach.
    Peer(&'a Connection),
}

/// Definitions that are not yet written.
#[derive(Default)]
pub(super) struct DefinitionBatch {
    last_subject: u32,
    subjects: Definitions,
    /// When the proxy's clock showed zero, in nanoseconds since 1970.
    origin_unix_ns: u64,
    classes: Vec<(Arc<Target>, BTreeSet<u64>)>,
}

/// Definitions that may wait for a slow disk, in bytes; about a thousandth of what a
/// proxy with as many attached users needs anyway.
const WAITING_BYTES_MAX: usize = 1 << 20;

impl TraceState {
    /// Returns the number of a subject, defined if it is new; `None` without room.
    pub(super) fn subject(&self, who: TraceCaller<'_>, now: Time) -> Option<u32> {
        match who.trace_number().load(Ordering::Acquire) {
            0 => self.define(who, now),
            known => Some(known),
        }
    }

    #[cold]
    fn define(&self, who: TraceCaller<'_>, now: Time) -> Option<u32> {
        let mut definitions = self.definitions.lock().expect("not poisoned");
        match who.trace_number().load(Ordering::Acquire) {
            0 => {}
            known => return Some(known),
        }
        let number = match who {
            TraceCaller::User(user) => {
                let (export, target) = (&user.export.name, &user.export.target.name);
                definitions.define(&user.identity, export, target, now)
            }
            TraceCaller::Peer(connection) => {
                let uid = connection.peer.uid.unwrap_or(ID_UNKNOWN);
                let (job, nid) = (JobId::default(), connection.peer.nid.clone());
                let who = Identity { job, uid, gid: ID_UNKNOWN, projid: None, nid };
                definitions.define(&who, "", "", now)
            }
        }?;
        who.trace_number().store(number, Ordering::Release);
        Some(number)
    }

    /// Asks for the name of a class.
    #[cold]
    pub(super) fn want_class(&self, target: &Arc<Target>, class: u64) {
        let classes = &mut self.definitions.lock().expect("not poisoned").classes;
        let at = classes.iter().position(|(known, _)| Arc::ptr_eq(known, target));
        let at = at.unwrap_or_else(|| {
            classes.push((target.clone(), BTreeSet::new()));
            classes.len() - 1
        });
        classes[at].1.insert(class);
    }

    /// Moves the subjects that wait to the end of `to`; returns the clock's origin.
    pub(super) fn take_subjects(&self, to: &mut Definitions) -> u64 {
        let mut definitions = self.definitions.lock().expect("not poisoned");
        let new = std::mem::take(&mut definitions.subjects);
        to.append(new);
        definitions.origin_unix_ns
    }

    /// Definitions of the classes that were asked for. One that is gone has no name.
    pub(super) fn take_classes(&self) -> Definitions {
        let wanted = std::mem::take(&mut self.definitions.lock().expect("not poisoned").classes);
        let mut batch = Definitions::default();
        for (target, numbers) in wanted {
            let reports = target.gate.with_dispatcher(|dispatcher, _| {
                let wanted = |report: &sched::ClassReport| numbers.contains(&report.id.to_bits());
                dispatcher.classes().filter(wanted).collect::<Vec<_>>()
            });
            for report in reports.into_iter().flatten() {
                let key = report.key.iter().map(|value| format!(" {value}"));
                let name = report.rule.clone() + &key.collect::<String>();
                batch.put_class(report.id.to_bits(), &target.name, &name);
            }
        }
        batch
    }
}

impl<'a> TraceCaller<'a> {
    /// Where its number stands.
    fn trace_number(self) -> &'a AtomicU32 {
        match self {
            TraceCaller::User(user) => &user.traced,
            TraceCaller::Peer(connection) => &connection.traced,
        }
    }
}

impl DefinitionBatch {
    pub(super) fn define(
        &mut self,
        who: &Identity,
        export: &str,
        target: &str,
        now: Time,
    ) -> Option<u32> {
        if self.subjects.len() > WAITING_BYTES_MAX {
            return None;
        }
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.origin_unix_ns = (unix.as_nanos() as u64).saturating_sub(now.as_nanos());
        let number = self.last_subject.checked_add(1)?;
        self.last_subject = number;
        self.subjects.put_subject(number, who, export, target);
        Some(number)
    }
}
