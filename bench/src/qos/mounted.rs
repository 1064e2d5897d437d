//! Real mounts of a bed's proxy, and fio as the program that uses them.
//!
//!   fio ─► directory ─► kernel ─► sluice mount ─► Unix socket ─► proxy ─► the bed's export
//!
//! Both are processes that end with the bench, whichever way it ends.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rustix::mount::{MountFlags, UnmountFlags, unmount};
use serde_json::Value;

use super::super::process::BenchProcess;
use super::super::socket::BenchAddress;
use super::bed::{QosProxy, QosTestBed};

/// The export `x` of a proxy, mounted; unmounted when dropped.
pub(crate) struct QosMount {
    process: Option<BenchProcess>,
    root: PathBuf,
}

impl QosMount {
    /// Mounts with `options` as `sluice mount -o` takes them, and waits until it can be used.
    pub(crate) fn start(
        bed: &QosTestBed,
        proxy: &QosProxy,
        name: &str,
        options: &str,
    ) -> anyhow::Result<QosMount> {
        QosMount::start_behind(bed, &[proxy], name, options, Vec::new())
    }

    /// Mounts the export of several proxies, by a program behind the words `before`.
    pub(crate) fn start_behind(
        bed: &QosTestBed,
        proxies: &[&QosProxy],
        name: &str,
        options: &str,
        before: Vec<String>,
    ) -> anyhow::Result<QosMount> {
        let root = bed.dir().join(name);
        std::fs::create_dir(&root).context("cannot make a mount point")?;
        let log = bed.dir().join(format!("{name}.log"));
        let sources = proxies.iter().map(|proxy| match &proxy.address {
            BenchAddress::Unix(_) => format!("{}//x", proxy.address),
            BenchAddress::Tcp(_) => format!("{}/x", proxy.address),
        });
        let (source, at) = (sources.collect::<Vec<_>>().join(","), root.display().to_string());
        let words = ["mount", "--foreground", "-o", options, &source, &at].map(String::from);
        let arguments: Vec<String> =
            before.into_iter().chain([bed.sluice()]).chain(words).collect();
        let process = BenchProcess::start(name, &arguments, &log)?;
        let mut mount = QosMount { process: Some(process), root };
        let is_ready = || {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            said.lines().any(|line| line == "ready")
        };
        mount.process.as_mut().expect("it was started").wait_until(is_ready)?;
        Ok(mount)
    }

    /// Returns the directory that it is mounted on.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Lets that many requests be under way that no thread waits for: by default the kernel holds
    /// back all but 64.
    pub(crate) fn allow_background(&self, requests: usize) -> anyhow::Result<()> {
        let settings = Path::new("/sys/fs/fuse/connections");
        let number = rustix::fs::minor(std::fs::metadata(&self.root)?.dev()).to_string();
        if !settings.join(&number).exists() {
            // In the mount namespace of the bench, with which it ends.
            rustix::mount::mount("bench", settings, "fusectl", MountFlags::empty(), None)
                .context("cannot mount the settings of FUSE")?;
        }
        for name in ["max_background", "congestion_threshold"] {
            let setting = settings.join(&number).join(name);
            std::fs::write(&setting, requests.min(usize::from(u16::MAX)).to_string())
                .with_context(|| format!("cannot write {}", setting.display()))?;
        }
        Ok(())
    }

    /// Returns the process that serves it.
    pub(crate) fn process(&self) -> &BenchProcess {
        self.process.as_ref().expect("it runs until it is dropped")
    }

    /// A path in it.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }
}

impl Drop for QosMount {
    fn drop(&mut self) {
        drop(self.process.take());
        // What is left if the process had to be killed; else there is nothing to unmount.
        let _ = unmount(&self.root, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        let _ = std::fs::remove_dir(&self.root);
    }
}

/// fio at work; killed when dropped.
pub(crate) struct QosFio {
    child: Child,
    out: PathBuf,
}

/// What a fio that ended did.
pub(crate) struct QosFioResult(Value);

impl QosFio {
    /// Starts it with the words that are particular to it, as a process of `job`. A negative
    /// `nice` puts it before the proxy's threads.
    pub(crate) fn start(
        bed: &QosTestBed,
        job: &str,
        nice: i32,
        words: &str,
    ) -> anyhow::Result<QosFio> {
        let out = bed.dir().join(format!("fio-{job}.json"));
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "nice", "-n"])
            .arg(nice.to_string())
            .arg("fio")
            .args(COMMON.split_whitespace())
            .arg(format!("--name={job}"))
            .arg(format!("--output={}", out.display()))
            .args(words.split_whitespace())
            .env("SLURM_JOB_ID", job)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start fio through setpriv and nice")?;
        Ok(QosFio { child, out })
    }

    /// An error if it has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait().context("cannot wait for fio")? {
            None => Ok(()),
            Some(status) => bail!("fio has ended: {status}: {}", self.said()),
        }
    }

    /// Waits for its end.
    pub(crate) fn finish(mut self, bed: &QosTestBed) -> anyhow::Result<QosFioResult> {
        loop {
            if let Some(status) = self.child.try_wait().context("cannot wait for fio")? {
                ensure!(status.success(), "fio: {status}: {}", self.said());
                return QosFioResult::parse(&self.said());
            }
            bed.wait(LOOK_EVERY)?;
        }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.out).unwrap_or_default()
    }
}

impl Drop for QosFio {
    fn drop(&mut self) {
        // It fails only when it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl QosFioResult {
    fn parse(said: &str) -> anyhow::Result<QosFioResult> {
        // Warnings come first.
        let json = said.find('{').map_or(said, |start| &said[start..]);
        let whole: Value = serde_json::from_str(json).context("the output of fio is not JSON")?;
        let job = whole["jobs"][0].clone();
        ensure!(job["error"] == 0, "fio: error {}", job["error"]);
        Ok(QosFioResult(job))
    }

    /// Operations per second: reads and writes.
    pub(crate) fn ops_per_sec(&self) -> f64 {
        ["read", "write"].iter().filter_map(|kind| self.0[kind]["iops"].as_f64()).sum()
    }

    /// Megabytes per second: reads and writes.
    pub(crate) fn mb_per_sec(&self) -> f64 {
        let bytes = ["read", "write"].iter().filter_map(|kind| self.0[kind]["bw_bytes"].as_f64());
        bytes.sum::<f64>() / 1e6
    }

    /// A percentile, such as `99.000000`, of the latency of reads or syncs, in microseconds.
    pub(crate) fn latency_us(&self, of: QosLatency, percentile: &str) -> anyhow::Result<f64> {
        let latencies = match of {
            QosLatency::Read => &self.0["read"]["clat_ns"],
            QosLatency::Sync => &self.0["sync"]["lat_ns"],
        };
        let found = latencies["percentile"][percentile].as_f64();
        Ok(found.with_context(|| format!("fio tells no {percentile} of {of:?}"))? / 1e3)
    }
}

/// What a latency is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QosLatency {
    /// Completion latency of reads.
    Read,
    /// Duration of fsync and fdatasync.
    Sync,
}

/// For a span of time in seconds, after some that do not count.
pub(crate) fn for_time(ramp: Duration, time: Duration) -> String {
    format!("--ramp_time={}ms --runtime={}ms", ramp.as_millis(), time.as_millis().max(1))
}

/// Until it is killed.
pub(crate) const ENDLESS: &str = "--runtime=1d";
/// Makes a file where `at` is, as long as fio expects it.
pub(crate) fn on(at: &Path) -> String {
    format!("--filename={}", at.display())
}

const COMMON: &str = "--output-format=json --group_reporting --thread --time_based \
    --fallocate=none --norandommap --randrepeat=0 --invalidate=0";
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_told_in_microseconds_and_an_error_of_fio_is_one() {
        let said = "fio: a warning\n{\"jobs\": [{\"error\": 0, \"read\": {\"iops\": 10, \"bw_bytes\": \
                    2e6, \"clat_ns\": {\"percentile\": {\"99.000000\": 5000}}}, \"write\": \
                    {\"iops\": 1, \"bw_bytes\": 1e6}, \"sync\": {\"lat_ns\": {}}}]}";
        let done = QosFioResult::parse(said).unwrap();
        assert_eq!((done.ops_per_sec(), done.mb_per_sec()), (11.0, 3.0));
        assert_eq!(done.latency_us(QosLatency::Read, "99.000000").unwrap(), 5.0);
        assert!(done.latency_us(QosLatency::Sync, "99.000000").is_err());
        assert!(QosFioResult::parse("{\"jobs\": [{\"error\": 5}]}").is_err());
    }
}
