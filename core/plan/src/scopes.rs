//! Which rows of entitlements a proxy is to have: those whose scope it has.
//!
//! ```text
//!   proxy: jobs, users, targets, exports ─► reports, until one is answered ─► controller
//!   row of a job that came ─► unacknowledged, whatever was acknowledged ─► next assignment
//! ```
//!
//! Rows of jobs and users are most of all rows and concern few proxies. A class may have requests at
//! any proxy, so a row that names nothing else is for all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::JobId;
use rules::{EntitlementId, EntitlementScope};

use crate::messages::Assignment;

/// The name of something that a proxy has or has not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ScopeName {
    /// A job that has subjects there.
    Job(JobId),
    /// A user that has subjects there.
    User(u32),
    /// The name of a target.
    Target(Arc<str>),
    /// The name of an export, whose directories rows name.
    Export(Arc<str>),
}

/// What a proxy has of that which rows name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProxyScopes {
    /// Anything: nothing was reported, or there is too much to name.
    #[default]
    All,
    /// These, and nothing else.
    Named(BTreeSet<ScopeName>),
}

/// The rows that name something, by it.
#[derive(Debug, Default)]
pub(crate) struct RowsByName(BTreeMap<ScopeName, BTreeSet<EntitlementId>>);

/// What a session reports of its proxy's scopes.
#[derive(Debug, Default)]
pub(crate) struct ScopeReport {
    scopes: Arc<ProxyScopes>,
    delivery: Delivery,
}

/// How far the controller of this term has received the scopes.
#[derive(Debug, Default)]
enum Delivery {
    #[default]
    Due,
    /// In the report of this number, and in all since.
    Sent(u64),
    Received,
}

impl ScopeName {
    /// The most that a name takes in a report.
    fn bytes(&self) -> usize {
        match self {
            ScopeName::Job(job) => NAME_BYTES + job.as_str().len(),
            ScopeName::User(_) => NAME_BYTES,
            ScopeName::Target(name) | ScopeName::Export(name) => NAME_BYTES + name.len(),
        }
    }

    /// All that a scope names of these.
    pub(crate) fn of(scope: &EntitlementScope) -> impl Iterator<Item = ScopeName> {
        let EntitlementScope { job, uid, class: _, directory, target } = scope;
        let names = [
            job.clone().map(ScopeName::Job),
            uid.map(ScopeName::User),
            target.clone().map(ScopeName::Target),
            directory.as_ref().map(|of| ScopeName::Export(of.export().into())),
        ];
        names.into_iter().flatten()
    }
}

impl ProxyScopes {
    /// The most bytes of names in a report: some 2,000 jobs.
    pub const BYTES_MAX: usize = 64 << 10;
    /// The most names in as many bytes.
    pub const NAMES_MAX: usize = ProxyScopes::BYTES_MAX / NAME_BYTES;

    /// These names; all, if they take more than [`ProxyScopes::BYTES_MAX`].
    pub fn named(names: impl IntoIterator<Item = ScopeName>) -> ProxyScopes {
        let (mut bytes, mut named) = (0, BTreeSet::new());
        for name in names {
            let more = name.bytes();
            if named.insert(name) {
                bytes += more;
            }
            if bytes > ProxyScopes::BYTES_MAX {
                return ProxyScopes::All;
            }
        }
        ProxyScopes::Named(named)
    }

    /// What is reported after these when the proxy has `next`: all stays all until the names take
    /// half of [`ProxyScopes::BYTES_MAX`]. Near the bound every row would come and go.
    pub fn followed_by(&self, next: ProxyScopes) -> ProxyScopes {
        let half = ProxyScopes::BYTES_MAX / 2;
        match (self, &next) {
            (ProxyScopes::All, ProxyScopes::Named(names))
                if names.iter().map(ScopeName::bytes).sum::<usize>() > half =>
            {
                ProxyScopes::All
            }
            _ => next,
        }
    }

    /// Whether a proxy has all that a scope names.
    pub fn has(&self, scope: &EntitlementScope) -> bool {
        self.has_all(&ScopeName::of(scope).collect::<Vec<_>>())
    }

    /// Whether a proxy has all of these.
    pub(crate) fn has_all(&self, wanted: &[ScopeName]) -> bool {
        match self {
            ProxyScopes::All => true,
            ProxyScopes::Named(names) => wanted.iter().all(|name| names.contains(name)),
        }
    }
}

impl RowsByName {
    pub(crate) fn insert(&mut self, id: EntitlementId, names: &[ScopeName]) {
        for name in names {
            self.0.entry(name.clone()).or_default().insert(id);
        }
    }

    pub(crate) fn remove(&mut self, id: EntitlementId, names: &[ScopeName]) {
        for name in names {
            let rows = self.0.get_mut(name).expect("it was inserted by each name");
            rows.remove(&id);
            if rows.is_empty() {
                self.0.remove(name);
            }
        }
    }

    /// The rows that a proxy may get or lose by a change of its scopes; `None`: any.
    pub(crate) fn between(
        &self,
        before: &ProxyScopes,
        after: &ProxyScopes,
    ) -> Option<BTreeSet<EntitlementId>> {
        let (before, after) = match (before, after) {
            (ProxyScopes::Named(before), ProxyScopes::Named(after)) => (before, after),
            (ProxyScopes::All, ProxyScopes::All) => return Some(BTreeSet::new()),
            _ => return None,
        };
        let differ = before.symmetric_difference(after);
        Some(differ.filter_map(|name| self.0.get(name)).flatten().copied().collect())
    }
}

impl ScopeReport {
    /// Sets the scopes; true if they are others.
    pub(crate) fn set(&mut self, scopes: &Arc<ProxyScopes>) -> bool {
        let differ = self.scopes != *scopes;
        if differ {
            *self = ScopeReport { scopes: scopes.clone(), delivery: Delivery::Due };
        }
        differ
    }

    /// Another controller, or another membership: it knows nothing.
    pub(crate) fn reset(&mut self) {
        self.delivery = Delivery::Due;
    }

    /// What the report of that number says of them, if anything.
    pub(crate) fn report(&mut self, sequence: u64) -> Option<Arc<ProxyScopes>> {
        match self.delivery {
            Delivery::Due => self.delivery = Delivery::Sent(sequence),
            Delivery::Sent(_) => {}
            Delivery::Received => return None,
        }
        Some(self.scopes.clone())
    }

    /// Handles an assignment of this term: reports of its had been received up to one.
    pub(crate) fn receive(&mut self, order: &Assignment) {
        if let Delivery::Sent(first) = self.delivery
            && order.in_reply_to >= first
        {
            self.delivery = Delivery::Received;
        }
    }
}

/// What a name takes beside its letters.
const NAME_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use model::{Directory, Scope};

    use super::*;

    fn job(name: &str) -> ScopeName {
        ScopeName::Job(JobId::new(name).unwrap())
    }

    #[test]
    fn a_scope_is_of_a_proxy_that_has_all_that_it_names() {
        let export = ScopeName::Export("x".into());
        let some = ProxyScopes::named([job("a.1"), ScopeName::User(5), export]);
        let scope = EntitlementScope::default();
        let of_job = |name| EntitlementScope { job: JobId::new(name), ..Default::default() };
        let class = EntitlementScope { class: Some(Scope::rule("r", &[])), ..of_job("a.1") };
        let both = |uid| EntitlementScope { uid: Some(uid), ..of_job("a.1") };
        let in_export = |text: &[u8]| EntitlementScope {
            directory: Directory::new(text),
            ..EntitlementScope::default()
        };
        let at = EntitlementScope { target: Some("fs".into()), ..EntitlementScope::default() };
        for scope in [&scope, &of_job("a.1"), &class, &both(5), &in_export(b"x/a")] {
            assert!(some.has(scope), "{scope}");
        }
        for scope in [&of_job("a.2"), &both(6), &in_export(b"y/a"), &at] {
            assert!(!some.has(scope) && ProxyScopes::All.has(scope), "{scope}");
        }
    }

    #[test]
    fn too_many_names_are_all() {
        let jobs = |count| ProxyScopes::named((0..count).map(|id| job(&format!("{id:>024}"))));
        assert!(matches!(jobs(2_048), ProxyScopes::Named(names) if names.len() == 2_048));
        assert_eq!(jobs(2_049), ProxyScopes::All);
        assert_eq!(ProxyScopes::All.followed_by(jobs(1_025)), ProxyScopes::All);
        assert_eq!(ProxyScopes::All.followed_by(jobs(1_024)), jobs(1_024));
        assert_eq!(jobs(1).followed_by(jobs(2_048)), jobs(2_048));
    }
}
