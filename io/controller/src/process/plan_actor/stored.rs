//! What the store is to know of the proxies, and what it has.

use std::collections::BTreeSet;

use std::sync::Arc;
use std::sync::mpsc::TrySendError;
use std::time::Instant;

use plan::ProxySnapshot;

use super::{PlanActor, RECORD_PROXIES_MAX, RESTORE};
use crate::process::records::{self, ProxyRecord};

impl PlanActor {
    /// Sends changes of the proxies to the store, one at a time. Smaller shares may wait: a record
    /// of more than the current share is safe.
    pub(super) fn store_proxies(&mut self) {
        let now = Instant::now();
        if self.storing.is_some_and(|since| now < since + RESTORE) {
            return;
        }
        let mut gone: BTreeSet<_> = self.known.keys().cloned().collect();
        let mut changed = Vec::new();
        for (target, controller) in &self.targets {
            for ProxySnapshot { name, epoch, fallback, .. } in controller.proxies() {
                let place = (target.clone(), name.clone());
                gone.remove(&place);
                if self.known.get(&place) != Some(&(epoch, fallback)) {
                    let fallback = Some(fallback.billionths());
                    let (target, name) = (target.to_string(), name.to_string());
                    changed.push(ProxyRecord { target, name, epoch, fallback });
                }
            }
        }
        let forgotten = |(target, name): (Arc<str>, Arc<str>)| ProxyRecord {
            target: target.to_string(),
            name: name.to_string(),
            epoch: 0,
            fallback: None,
        };
        changed.extend(gone.into_iter().map(forgotten));
        self.stored = now;
        if changed.is_empty() {
            return;
        }
        changed.truncate(RECORD_PROXIES_MAX);
        match self.store.try_send(records::StoreMsg::Proxies(changed)) {
            Ok(()) => self.storing = Some(now),
            // It is retried with the next tick, or the controller ends.
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }

    pub(super) fn note_stored(&mut self, members: Vec<ProxyRecord>) {
        self.storing = None;
        for ProxyRecord { target, name, epoch, fallback } in members {
            let place = (target.into(), name.into());
            match fallback.and_then(model::Share::from_billionths) {
                Some(part) => self.known.insert(place, (epoch, part)),
                None => self.known.remove(&place),
            };
        }
        for (place, order) in std::mem::take(&mut self.withheld) {
            // If a proxy is still not on record, its next report brings the assignment again.
            if self.known.contains_key(&place) {
                self.route(place.0, order);
            }
        }
    }
}
