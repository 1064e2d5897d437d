//! Metadata service of clients that cannot report remote service themselves.
//!
//! ```text
//!   a mount's request         reports remote service ─► delay (lanes/remote_delay.rs)
//!   a plain client's request  ends ─► sum by class ─► take_unreported ─► a controller ─► the others
//! ```
//!
//! Nothing is counted before the first call of `take_unreported`.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Nanos, Scope, TargetId};

use crate::ids::ClassId;
use crate::keys::ClassKey;

/// Unreported service by class; `None` until it is taken for the first time.
#[derive(Debug, Default)]
pub(super) struct UnreportedMetadata(Option<BTreeMap<ClassId, (Arc<ClassKey>, Nanos)>>);

impl UnreportedMetadata {
    pub(super) fn count(&mut self, id: ClassId, key: &Arc<ClassKey>, cost: Nanos) {
        let Some(sums) = &mut self.0 else { return };
        // Service beyond the bound is not reported: fairness over servers loses a little, nothing
        // else.
        if sums.len() < CLASSES_MAX || sums.contains_key(&id) {
            let sum = sums.entry(id).or_insert_with(|| (key.clone(), Nanos::ZERO));
            sum.1 += cost;
        }
    }

    pub(super) fn take(&mut self, target: TargetId) -> Vec<(Scope, Nanos)> {
        let sums = self.0.get_or_insert_default();
        let mut taken = Vec::new();
        sums.retain(|_, (key, sum)| {
            let stays = key.target != target;
            if !stays {
                taken.push((key.scope(), *sum));
            }
            stays
        });
        taken
    }
}

/// The most classes that are counted between two calls.
const CLASSES_MAX: usize = 65_536;
