//! Metadata service of clients that cannot report remote service themselves.
//!
//! ```text
//!   a mount's request         reports remote service ─► delay (remote_delay.rs)
//!   a plain client's request  ends ─► sum by class ─► take_unreported ─► a controller ─► the others
//! ```
//!
//! Nothing is counted before the first call of `take_unreported`.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Nanos, Scope};

use crate::classify::ClassKey;
use crate::dispatcher::Dispatcher;
use crate::ids::{ClassId, RequestId};

/// Unreported service by class; `None` until it is taken for the first time.
#[derive(Debug, Default)]
pub(crate) struct UnreportedMetadata(Option<BTreeMap<ClassId, (Arc<ClassKey>, Nanos)>>);

impl Dispatcher {
    /// Counts what a running metadata request was charged, since its client reports it to no other
    /// server. To be called before `complete`.
    ///
    /// # Panics
    /// If the request is not running.
    pub fn count_unreported(&mut self, id: RequestId) {
        let index = self.running(id);
        let Some(sums) = &mut self.unreported.0 else { return };
        let request = &self.requests[index];
        let class = &self.classes[request.class];
        // Service beyond the bound is not reported: fairness over servers loses a little, nothing
        // else.
        if sums.len() < CLASSES_MAX || sums.contains_key(&class.id) {
            let sum = sums.entry(class.id).or_insert_with(|| (class.key.clone(), Nanos::ZERO));
            sum.1 += Nanos::new(request.cost);
        }
    }

    /// Takes what [`Dispatcher::count_unreported`] counted since the last call, by class.
    pub fn take_unreported(&mut self) -> Vec<(Scope, Nanos)> {
        let sums = self.unreported.0.replace(BTreeMap::new()).unwrap_or_default();
        let scope = |key: &ClassKey| Scope::rule(&key.rule, &key.values);
        sums.into_values().map(|(key, sum)| (scope(&key), sum)).collect()
    }
}

/// The most classes that are counted between two calls.
const CLASSES_MAX: usize = 65_536;
