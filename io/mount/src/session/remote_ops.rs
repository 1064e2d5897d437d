//! Service that each identity had of every proxy, to send each proxy the service of the others.
//!
//! ```text
//!   metadata message ─► all += 1, here += 1 ─► remote = all − here ─► sent: what is new of it
//! ```
//!
//! With it a proxy charges a job for its remote service (total service; Wang and Merchant,
//! FAST'07), and no proxy has to ask another. Reads and writes are not counted: the weights of
//! each proxy divide its own payload.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;

use super::identities::IdentityKey;
use super::lock;

/// The sums over all sessions, by identity; only with several proxies.
#[derive(Debug, Default)]
pub(super) struct RemoteOpsTable {
    all: Mutex<FxHashMap<IdentityKey, Arc<AtomicU64>>>,
}

/// Service of an identity at one session.
#[derive(Debug)]
pub(super) struct RemoteOps {
    all: Arc<AtomicU64>,
    here: AtomicU64,
    reported: AtomicU64,
}

impl RemoteOpsTable {
    pub(super) fn of(&self, key: &IdentityKey) -> RemoteOps {
        let mut all = lock(&self.all);
        if all.len() >= KEYS_MAX {
            all.retain(|_, sum| Arc::strong_count(sum) > 1);
        }
        let all = all.entry(key.clone()).or_default().clone();
        // What was before it came here is not held against it.
        let told = AtomicU64::new(all.load(Ordering::Relaxed));
        RemoteOps { all, here: AtomicU64::new(0), reported: told }
    }
}

impl RemoteOps {
    /// Counts a message to the proxy of this session. Returns what its identity had of the others since the last.
    pub(super) fn count(&self) -> u32 {
        let all = self.all.fetch_add(1, Ordering::Relaxed) + 1;
        let here = self.here.fetch_add(1, Ordering::Relaxed) + 1;
        let remote = all.saturating_sub(here);
        let told = self.reported.fetch_max(remote, Ordering::Relaxed);
        u32::try_from(remote.saturating_sub(told)).unwrap_or(u32::MAX)
    }
}

/// Number of entries above which unused ones are dropped.
const KEYS_MAX: usize = 8192;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_proxy_is_told_once_what_the_others_served() {
        let (services, key) = (RemoteOpsTable::default(), IdentityKey::of_user(1));
        let (one, two) = (services.of(&key), services.of(&key));
        assert_eq!([one.count(), one.count(), one.count()], [0, 0, 0]);
        assert_eq!([two.count(), two.count()], [3, 0]);
        assert_eq!([one.count(), two.count()], [2, 1]);
        let other = services.of(&IdentityKey::of_user(2));
        assert_eq!(other.count(), 0, "another identity");
        let late = services.of(&key);
        assert_eq!(late.count(), 0, "what was before it came is not held against it");
    }
}
