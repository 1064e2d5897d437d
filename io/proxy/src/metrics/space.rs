//! How full the backends are, asked without waiting for them.
//!
//! ```text
//!   scrape ─► older than 15 s and no query? ─► a thread: statvfs of each target's directory
//!      └────► what was answered last, and its age         one at a time, ends when it has asked
//! ```
//!
//! A parallel file system may take half a minute for it, or not answer at all. Then the figures
//! grow old, which their age says, and one thread hangs: never more.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

/// Last replies, by target.
#[derive(Debug, Default)]
pub(super) struct Space {
    figures: Mutex<FxHashMap<String, SpaceFigures>>,
    is_querying: AtomicBool,
}

/// How full a target is.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpaceFigures {
    pub(super) size_bytes: u64,
    pub(super) free_bytes: u64,
    pub(super) files_max: u64,
    pub(super) files_free: u64,
    pub(super) queried_at: Instant,
}

/// Younger figures are good enough.
const FRESH: Duration = Duration::from_secs(15);

impl Space {
    /// Returns what is known, by target, and starts a new query if that is old.
    pub(super) fn get_or_refresh(
        self: &Arc<Space>,
        targets: Vec<(String, PathBuf)>,
    ) -> FxHashMap<String, SpaceFigures> {
        let mut known = self.figures.lock().expect("not poisoned").clone();
        known.retain(|name, _| targets.iter().any(|(target, _)| target == name));
        let is_fresh = |(name, _): &(String, PathBuf)| {
            known.get(name).is_some_and(|figures| figures.queried_at.elapsed() < FRESH)
        };
        if !targets.iter().all(is_fresh) && !self.is_querying.swap(true, Ordering::AcqRel) {
            let space = self.clone();
            let ask = move || {
                space.query(&targets);
                space.is_querying.store(false, Ordering::Release);
            };
            if let Err(error) =
                std::thread::Builder::new().name("space".into()).spawn(api::critical(ask))
            {
                tracing::warn!("cannot start the thread that reads free space: {error}");
                self.is_querying.store(false, Ordering::Release);
            }
        }
        known
    }

    fn query(&self, targets: &[(String, PathBuf)]) {
        for (name, dir) in targets {
            let stat = match rustix::fs::statvfs(dir) {
                Ok(stat) => stat,
                Err(error) => {
                    tracing::debug!("cannot read the free space of {}: {error}", dir.display());
                    continue;
                }
            };
            let figures = SpaceFigures {
                size_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
                free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
                files_max: stat.f_files,
                files_free: stat.f_favail,
                queried_at: Instant::now(),
            };
            self.figures.lock().expect("not poisoned").insert(name.clone(), figures);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_gets_what_was_answered_and_does_not_wait() {
        let space = Arc::new(Space::default());
        let targets = vec![("t".to_owned(), std::env::temp_dir())];
        let deadline = Instant::now() + Duration::from_secs(30);
        let figures = loop {
            if let Some(figures) = space.get_or_refresh(targets.clone()).get("t") {
                break *figures;
            }
            assert!(Instant::now() < deadline, "nothing was ever answered");
            std::thread::yield_now();
        };
        assert!(figures.size_bytes >= figures.free_bytes && figures.size_bytes > 0, "{figures:?}");
        assert!(space.get_or_refresh(vec![]).is_empty());
    }

    #[test]
    fn while_one_asks_nobody_else_does() {
        let space = Arc::new(Space::default());
        space.is_querying.store(true, Ordering::Release);
        assert!(space.get_or_refresh(vec![("t".into(), std::env::temp_dir())]).is_empty());
        // The thread that asks would be the one that ends this.
        assert!(space.is_querying.load(Ordering::Acquire));
        assert_eq!(Arc::strong_count(&space), 1);
    }
}
