//! A slow backend: a proxy with a meter over memory, mounted, to be exported again.
//!
//! ```text
//!   jobs ─► proxy under test ─► dir() ══ sluice mount ══► store: proxy, meter 150 MB/s ─► tmpfs
//!                 └────────── payload of both, compared: ────────┘
//!                     what a page cache answered is void
//! ```
//!
//! The store and its mount stand for other machines and run before everything else. Three settings
//! keep what the proxy serves and what the store serves equal, within 1 %:
//!
//! - Files that are read are dropped from the mount's page cache ([`SlowBackend::keep_cold`]): the
//!   proxy reads through it.
//! - The kernel reads ahead 1 MiB, as much as the largest request. With less, it cuts a large read
//!   and reads a piece more behind each.
//! - The store copies, without pipes: all proxies of a user have `fs.pipe-user-pages-soft` pages in
//!   common, and beyond it a pipe of the proxy under test holds two pages. It then reads in two
//!   pieces, which the kernel takes for a sequential reader.

use std::ffi::CString;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use model::Bytes;
use rustix::mount::MountFlags;

use super::super::files::make_file;
use super::super::place::RunDir;
use super::bed::{KeepCold, QosProxy, QosSetup, QosTestBed, elsewhere};
use super::mounted::QosMount;

/// A directory behind which reads and writes have a rate.
pub(crate) struct SlowBackend {
    // Dropped in this order: the mount lies over the stores.
    mount: QosMount,
    stores: Vec<QosProxy>,
    files: RunDir,
}

/// The rate of a slow backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlowRate {
    /// Payload in bytes per second.
    Bytes(u64),
    /// Reads and writes per second, whatever their size.
    Ops(u64),
}

/// Payload that the store and the proxy under test had served at one moment, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServedBelow {
    store: u64,
    proxy: u64,
}

impl SlowBackend {
    /// Makes one of that name, of some stores of that rate each; a file is in one of them.
    pub(crate) fn start(
        bed: &QosTestBed,
        name: &str,
        rate: SlowRate,
        stores: usize,
    ) -> anyhow::Result<SlowBackend> {
        let free = free_memory()?;
        ensure!(free >= SPACE, "{free} of memory are free, the slow backend needs {SPACE}");
        // In the mount namespace of the bench: the memory is free again however it ends.
        let files = RunDir::make(Some(bed.dir()), "memory")?;
        let served = files.path().join(SERVED);
        std::fs::create_dir(&served).context("cannot make a directory")?;
        let size = CString::new(format!("size={}", SPACE.get())).context("a size")?;
        rustix::mount::mount("bench", &served, "tmpfs", MountFlags::empty(), Some(size.as_c_str()))
            .context("cannot mount a tmpfs")?;
        let setup = QosSetup {
            top: STORE,
            target: "slots_max = 512\nwrite_mode = \"cached\"",
            rules: &rate.rules(),
            dir: Some(served),
            is_elsewhere: true,
            ..QosSetup::default()
        };
        let start = |at: usize| bed.proxy(&format!("{name}-store{at}"), &setup);
        let stores = (0..stores).map(start).collect::<anyhow::Result<Vec<_>>>()?;
        let options = "allow_other,threads=4,replay_buffer=0B";
        let mount = QosMount::start_behind(
            bed,
            &stores.iter().collect::<Vec<_>>(),
            name,
            options,
            elsewhere(),
        )?;
        read_ahead(mount.root(), READ_AHEAD_KIB)?;
        Ok(SlowBackend { mount, stores, files })
    }

    /// The directory that is slow.
    pub(crate) fn dir(&self) -> &Path {
        self.mount.root()
    }

    /// Lets the kernel read ahead no more than this, as long as no request is larger.
    pub(crate) fn read_ahead(&self, kib: u64) -> anyhow::Result<()> {
        read_ahead(self.dir(), kib)
    }

    /// Makes a file in it, beside the meter.
    pub(crate) fn file(&self, name: &str, len: Bytes) -> anyhow::Result<()> {
        let path = self.files.path().join(SERVED).join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).context("cannot make a job's directory")?;
        }
        make_file(&path, len)
    }

    /// Keeps a file out of the mount's page cache. Random reads need a short interval, sequential
    /// ones a longer one, or what was read ahead is dropped before it is used.
    pub(crate) fn keep_cold(&self, name: &str, every: Duration) -> anyhow::Result<KeepCold> {
        let path = self.dir().join(name);
        let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        KeepCold::every(&file, every)
    }

    /// Reads what was served until now.
    pub(crate) fn served(&self, proxy: &QosProxy) -> anyhow::Result<ServedBelow> {
        let stores = self.stores.iter().map(QosProxy::payload).sum::<anyhow::Result<u64>>()?;
        Ok(ServedBelow { store: stores, proxy: proxy.payload()? })
    }
}

impl ServedBelow {
    /// The payload that the store served in parts of what the proxy did, between two moments.
    pub(crate) fn ratio(&self, later: &ServedBelow) -> f64 {
        (later.store - self.store) as f64 / (later.proxy - self.proxy).max(1) as f64
    }

    /// Why nothing follows from what was measured between two moments, if so.
    pub(crate) fn void(&self, later: &ServedBelow) -> Option<String> {
        let percent = (self.ratio(later) - 1.0) * 100.0;
        (percent.abs() > APART_MAX_PERCENT).then(|| {
            format!("the backend served {percent:+.2} % more than the proxy: at most ± {APART_MAX_PERCENT} %")
        })
    }
}

impl SlowRate {
    /// Every read and write pays: also those that a page cache of the store would answer.
    fn rules(self) -> String {
        let (rate, burst): (String, String) = match self {
            // An idle moment is worth 7 ms: without any, a delay of this machine's scheduler would
            // be lost to the rate.
            SlowRate::Bytes(rate) => (format!("{rate}B/s"), "1MiB".into()),
            SlowRate::Ops(rate) => {
                (format!("{rate}ops/s"), format!("{}ops", (rate * 7 / 1000).max(2)))
            }
        };
        format!(
            "[[meter]]\nname = \"device\"\nkinds = [\"read\", \"write\"]\nrate = \"{rate}\"\n\
             burst = \"{burst}\"\n"
        )
    }
}

/// Measures the costs of a directory into a file for `[[target]] costs`.
pub(crate) fn calibrate(
    bed: &QosTestBed,
    dir: &Path,
    time: Duration,
    out: &Path,
) -> anyhow::Result<()> {
    let result = Command::new(bed.sluice())
        .arg("calibrate")
        .arg(dir)
        .args(["--time", &format!("{}ms", time.as_millis()), "--out"])
        .arg(out)
        .stdin(Stdio::null())
        .output()
        .context("cannot run sluice calibrate")?;
    let text = String::from_utf8_lossy(&result.stderr);
    let last = text.lines().last().unwrap_or_default();
    ensure!(result.status.success(), "sluice calibrate: {}: {last}", result.status);
    Ok(())
}

fn read_ahead(root: &Path, kib: u64) -> anyhow::Result<()> {
    let device = std::fs::metadata(root)?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let setting = PathBuf::from(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"));
    std::fs::write(&setting, kib.to_string())
        .with_context(|| format!("cannot write {}", setting.display()))
}

fn free_memory() -> anyhow::Result<Bytes> {
    let text = std::fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse().ok());
    Ok(Bytes::kib(kib.context("/proc/meminfo has no MemAvailable")?))
}

/// The directory of the store, a file system of its own.
const SERVED: &str = "served";
const SPACE: Bytes = Bytes::mib(9 << 10);
/// As much as the largest request.
pub(crate) const READ_AHEAD_KIB: u64 = 1024;
/// What is under way at both ends of a round, and files that are read twice by chance.
const APART_MAX_PERCENT: f64 = 1.0;
const STORE: &str = "pipes_max = 0\nthreads_max = 512\nwindow_requests = 1024\n\
                     window_bytes = \"256MiB\"\nopen_files_max = 16384";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_meters_of_reads_and_writes() {
        for rate in [SlowRate::Bytes(150_000_000), SlowRate::Ops(500)] {
            let rules = rules::RuleSet::parse(&rate.rules()).unwrap();
            assert_eq!((rules.rules.len(), rules.meters.len()), (0, 1));
        }
    }

    #[test]
    fn a_round_that_a_cache_answered_is_void() {
        let at = |store, proxy| ServedBelow { store, proxy };
        assert_eq!(at(5, 10).void(&at(1005, 1010)), None);
        assert_eq!(at(0, 0).void(&at(991, 1000)), None);
        assert!(at(0, 0).void(&at(980, 1000)).unwrap().contains("-2.00 %"));
        assert!(at(0, 0).void(&at(1020, 1000)).unwrap().contains("+2.00 %"));
    }
}
