//! A folder for one test, gone with the value.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A new empty folder below the system's temporary one.
#[derive(Debug)]
pub struct TestFolder(PathBuf);

impl TestFolder {
    /// Makes a folder below the system's temporary one.
    #[expect(clippy::new_without_default, reason = "it is made, not a value that is like another")]
    pub fn new() -> TestFolder {
        TestFolder::below(&std::env::temp_dir())
    }

    /// Makes it in memory where this machine has such a place: for servers that wait for a disk
    /// with each write, which other tests keep busy.
    pub fn in_memory() -> TestFolder {
        match Path::new("/dev/shm").is_dir() {
            true => TestFolder::below(Path::new("/dev/shm")),
            false => TestFolder::new(),
        }
    }

    fn below(place: &Path) -> TestFolder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = place.join(format!("sluice-test-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path); // of a process of the same number, long dead
        std::fs::create_dir_all(&path).expect("a temporary folder can be made");
        TestFolder(path)
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The path of a test's own file or folder below the system's temporary one, which nobody has
/// made: the same for the same `name` in the same test, and another in any other.
pub fn place(name: &str) -> PathBuf {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or_default();
    // FNV-1a: sockets have too short names for that of a test
    let hash = test
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    std::env::temp_dir().join(format!("sluice-{}-{name}-{hash:08x}", std::process::id()))
}
