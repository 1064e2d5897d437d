//! What a proxy under test is in front of: the slow backend, or the disk.
//!
//! ```text
//!   QosBackend ─┬─ Slow: a mounted proxy with a meter ─┐
//!               └─ Disk: the bed's directory ──────────┴─► files, calibrated costs, a proxy over it
//! ```

use std::path::PathBuf;
use std::time::Duration;

use model::Bytes;

use super::super::figures::groups::FigureRun;
use super::bed::{KeepCold, QosProxy, QosSetup, QosTestBed};
use super::slow::{ServedBelow, SlowBackend, SlowRate, calibrate};

/// A directory that is served, and what it costs.
pub(crate) struct QosBackend<'a> {
    bed: &'a QosTestBed,
    name: String,
    slow: Option<SlowBackend>,
    /// The file of measured costs, once there is one.
    costs: Option<PathBuf>,
}

/// Which of both it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackendKind {
    Slow,
    /// Four stores with a quarter of its rate each, and files divided over them.
    SlowFour,
    Disk,
}

/// How files are read that are to come from the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColdFile {
    Random,
    Sequential,
}

/// What was served between two moments.
pub(crate) struct BackendWatch<'a> {
    backend: &'a QosBackend<'a>,
    began: Option<ServedBelow>,
}

impl<'a> QosBackend<'a> {
    /// A slow backend, or the disk of the bed.
    pub(crate) fn start(bed: &'a QosTestBed, kind: BackendKind) -> anyhow::Result<QosBackend<'a>> {
        match kind {
            BackendKind::Slow => QosBackend::slow(bed, kind.name(), SlowRate::Bytes(SLOW)),
            BackendKind::SlowFour => {
                let rate = SlowRate::Bytes(SLOW / 4);
                let slow = Some(SlowBackend::start(bed, kind.name(), rate, 4)?);
                Ok(QosBackend { bed, name: kind.name().into(), slow, costs: None })
            }
            BackendKind::Disk => {
                Ok(QosBackend { bed, name: kind.name().into(), slow: None, costs: None })
            }
        }
    }

    /// A slow backend of that rate.
    pub(crate) fn slow(
        bed: &'a QosTestBed,
        name: &str,
        rate: SlowRate,
    ) -> anyhow::Result<QosBackend<'a>> {
        let slow = Some(SlowBackend::start(bed, name, rate, 1)?);
        Ok(QosBackend { bed, name: name.into(), slow, costs: None })
    }

    /// Measures its costs, once in a pass, for all proxies that are started from now on.
    pub(crate) fn calibrate(&mut self, run: &FigureRun<'_>) -> anyhow::Result<()> {
        let out = run.costs.join(format!("{}.costs", self.name));
        if !out.exists() {
            calibrate(self.bed, &self.dir(), run.calibration(), &out)?;
        }
        self.costs = Some(out);
        Ok(())
    }

    /// Starts a proxy over it.
    pub(crate) fn proxy(&self, name: &str, setup: &QosSetup<'_>) -> anyhow::Result<QosProxy> {
        let mut target = String::from(setup.target);
        if let Some(costs) = &self.costs {
            target.push_str(&format!("\ncosts = {costs:?}"));
        }
        let (dir, mut top) = (Some(self.dir()), String::from(setup.top));
        if self.is_slow() {
            top.push_str(FEW_PIPES);
        }
        self.bed.proxy(name, &QosSetup { dir, top: &top, target: &target, ..setup.clone() })
    }

    /// Makes a file in it, with what loads expect in it, on the backend.
    pub(crate) fn file(&self, name: &str, len: Bytes) -> anyhow::Result<()> {
        match &self.slow {
            Some(slow) => slow.file(name, len),
            None => self.bed.file(name, len).map(drop),
        }
    }

    /// Keeps a file out of the page cache.
    pub(crate) fn keep_cold(&self, name: &str, read: ColdFile) -> anyhow::Result<KeepCold> {
        match (&self.slow, read) {
            // What arrives in the moment of a drop is read twice, and of 4 GiB at 150 MB/s less than
            // 1 % is found again in between: the shorter, the more of the one.
            (Some(slow), ColdFile::Random) => slow.keep_cold(name, Duration::from_millis(400)),
            (Some(slow), ColdFile::Sequential) => slow.keep_cold(name, Duration::from_secs(5)),
            (None, _) => KeepCold::start(&std::fs::File::open(self.bed.export().join(name))?),
        }
    }

    /// Lets the kernel below the proxy read ahead no more than this; of the disk nothing changes.
    pub(crate) fn read_ahead(&self, kib: u64) -> anyhow::Result<()> {
        self.slow.as_ref().map_or(Ok(()), |slow| slow.read_ahead(kib))
    }

    /// Begins to compare what the proxy serves with what the backend does.
    pub(crate) fn watch(&'a self, proxy: &QosProxy) -> anyhow::Result<BackendWatch<'a>> {
        let began = self.slow.as_ref().map(|slow| slow.served(proxy)).transpose()?;
        Ok(BackendWatch { backend: self, began })
    }

    /// The directory that proxies export.
    pub(crate) fn dir(&self) -> PathBuf {
        self.slow.as_ref().map_or_else(|| self.bed.export(), |slow| slow.dir().into())
    }

    /// The bed that it is on.
    pub(crate) fn bed(&self) -> &'a QosTestBed {
        self.bed
    }

    /// The length of a file that is read at random: so large that what was read once is hardly
    /// asked for again before it is dropped.
    pub(crate) fn cold_len(&self) -> Bytes {
        Bytes::mib(if self.is_slow() { 4096 } else { 2048 })
    }

    /// Whether its time is known from bytes alone.
    pub(crate) fn is_slow(&self) -> bool {
        self.slow.is_some()
    }
}

impl BackendWatch<'_> {
    /// The payload below in parts of the proxy's, and why the round is void, if it is. Nothing is
    /// known of the disk.
    pub(crate) fn end(&self, proxy: &QosProxy) -> anyhow::Result<(Option<f64>, Option<String>)> {
        let (Some(slow), Some(began)) = (&self.backend.slow, &self.began) else {
            return Ok((None, None));
        };
        let ended = slow.served(proxy)?;
        Ok((Some(began.ratio(&ended)), began.void(&ended)))
    }
}

impl BackendKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            BackendKind::Slow => "slow",
            BackendKind::SlowFour => "slow-four",
            BackendKind::Disk => "disk",
        }
    }
}

/// 64 pipes of 1 MiB, the default, are all that `fs.pipe-user-pages-soft` allows a user: the last ones
/// hold two pages. A read through such a pipe is cut, which makes the kernel read ahead of it.
const FEW_PIPES: &str = "\npipes_max = 16";

/// More threads than there are requests in service: where all of them wait for the backend, none
/// reads the sockets, and the dispatcher does not see what waits there.
pub(crate) const MANY_THREADS: &str = "threads_max = 1024";
/// The rate of the slow backend in bytes per second.
pub(crate) const SLOW: u64 = 150_000_000;
