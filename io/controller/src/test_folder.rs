//! A folder for one test, gone with the value.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A new empty folder below the system's temporary one.
pub(crate) struct TestFolder(PathBuf);

impl TestFolder {
    /// Makes it.
    pub(crate) fn new() -> TestFolder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("sluice-controller-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path); // of a process of the same number, long dead
        std::fs::create_dir_all(&path).expect("a temporary folder can be made");
        TestFolder(path)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
