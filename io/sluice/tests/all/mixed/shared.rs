//! Workers that meet in one file: processes that append lines to it, and those that count in it
//! under a lock.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Checks, Obeying, Work};

/// Makes what they share.
pub(super) fn prepare(root: &Path) {
    fs::create_dir(root.join(SHARED)).unwrap();
    fs::write(root.join(SHARED).join("lines"), "").unwrap();
    fs::write(root.join(SHARED).join("count"), "0").unwrap();
    fs::write(root.join(SHARED).join("lock"), "").unwrap();
}

/// Appends numbered lines by another process, each acknowledged before the next one.
pub(super) fn appends(work: Work) -> Checks {
    let lines = work.root.join(SHARED).join("lines");
    let mut writer = Obeying::shell();
    writer.tell(&format!("exec 3>>{}", lines.display()));
    let mut count = 0u64;
    while work.goes_on() {
        writer.tell(&format!("printf '%s\\n' '{} {count}' >&3", work.name));
        count += 1;
    }
    writer.end();
    Box::new(move |root| {
        let lines = fs::read_to_string(root.join(SHARED).join("lines")).unwrap();
        let mut next = 0;
        for line in lines.lines() {
            let (who, number) = line.split_once(' ').expect("a whole line");
            assert!(who.starts_with("appends-"), "{line:?}");
            if who == work.name {
                assert_eq!(number.parse(), Ok(next), "of {count} lines of {who}");
                next += 1;
            }
        }
        assert_eq!(next, count, "lines of {}", work.name);
    })
}

/// Adds one to a number that others count up too, under a lock. `counted` is by all of them.
pub(super) fn counts(work: Work, counted: Arc<AtomicU64>) -> Checks {
    let shared = work.root.join(SHARED);
    let lock = OpenOptions::new().read(true).write(true).open(shared.join("lock")).unwrap();
    while work.goes_on() {
        lock.lock().unwrap();
        let count: u64 = fs::read_to_string(shared.join("count")).unwrap().parse().unwrap();
        fs::write(shared.join("count"), (count + 1).to_string()).unwrap();
        counted.fetch_add(1, Ordering::SeqCst);
        lock.unlock().unwrap();
    }
    Box::new(move |root| {
        let count = fs::read_to_string(root.join(SHARED).join("count")).unwrap();
        assert_eq!(count.parse(), Ok(counted.load(Ordering::SeqCst)));
    })
}

const SHARED: &str = "shared";
