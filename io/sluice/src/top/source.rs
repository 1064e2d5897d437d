//! The sources of samples for `sluice top`, and its recordings.
//!
//! ```text
//!   a proxy ────── status, subjects, classes ─┐
//!   a controller ─ a sample of each proxy ────┼─► TopFrame ─┬─► TopWatch
//!   --play FILE ── one frame a line ──────────┘             └─► --record FILE
//! ```
//!
//! A recording is JSON: a head line, then one frame a line. A frame has the proxies' counters, so
//! that a recording can be shown by job, user, class and node, in any order. Frames of a controller
//! have its clock: a proxy's sample may be a few milliseconds older.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use api::{LiveSample, LiveUsage, ProxyStatus};
use serde::{Deserialize, Serialize};

use super::rates::TopSample;
use crate::server_args::ApiServer;

/// A source of samples.
pub(super) enum TopSource {
    Live(ApiServer),
    Recording(TopPlayer),
}

/// One sample and a remark on it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct TopFrame {
    pub(super) status: ProxyStatus,
    #[serde(flatten)]
    pub(super) sample: TopSample,
    pub(super) note: Option<String>,
}

/// The reader of a recording.
pub(super) struct TopPlayer {
    path: PathBuf,
    lines: BufReader<File>,
    /// The number of the last line that was read, from 1.
    line: u64,
    next: Option<TopFrame>,
    /// The speed relative to the original, in percent.
    speed_percent: u64,
}

/// The writer of a recording.
pub(super) struct TopRecorder {
    path: PathBuf,
    file: File,
}

/// The first line of a recording.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordingHead {
    sluice_top: u32,
}

/// The remark for a proxy without scheduling.
const NOT_SCHEDULING: &str = "not scheduling (--no-schedule): each connection counts for its first \
                              user and job; queue, latency, slots and classes are unknown";

impl TopSource {
    /// Returns the next sample; `None` at the end of a recording.
    pub(super) fn next(&mut self) -> anyhow::Result<Option<TopFrame>> {
        match self {
            TopSource::Live(ApiServer::Proxy(client)) => {
                let status = client.status()?;
                let (sample, note) = if status.scheduling {
                    let (subjects, classes) = (client.subjects()?, client.classes()?);
                    (TopSample { subjects, classes, of_connections: false }, None)
                } else {
                    let sample = TopSample::of_connections(client.connections()?);
                    (sample, Some(NOT_SCHEDULING.to_owned()))
                };
                Ok(Some(TopFrame { status, sample, note }))
            }
            TopSource::Live(ApiServer::Controller(client)) => Ok(Some(merged(client.live()?))),
            TopSource::Recording(player) => player.advance(),
        }
    }

    /// Returns the time to wait before the next sample: `interval` for live samples.
    pub(super) fn pause(&self, shown: u64, interval: Duration) -> Duration {
        match self {
            TopSource::Live(_) => interval,
            TopSource::Recording(player) => player.pause(shown),
        }
    }
}

impl TopPlayer {
    /// Opens a recording, to be shown at `speed` times its original speed.
    ///
    /// # Errors
    /// If the file cannot be read or is not a recording.
    pub(super) fn open(path: &Path, speed: f64) -> anyhow::Result<TopPlayer> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let (path, lines) = (path.to_owned(), BufReader::new(file));
        // 0.1 to 100, checked by the flag's parser.
        let speed_percent = (speed * 100.0) as u64;
        let mut player = TopPlayer { path, lines, line: 0, next: None, speed_percent };
        let head: Option<RecordingHead> = player.read()?;
        match head {
            Some(RecordingHead { sluice_top: VERSION }) => {}
            Some(RecordingHead { sluice_top }) => bail!(
                "{} is a recording of format {sluice_top}; this program reads format {VERSION}",
                player.path.display()
            ),
            None => bail!("{} is empty and not a recording", player.path.display()),
        }
        player.next = player.read()?;
        Ok(player)
    }

    fn advance(&mut self) -> anyhow::Result<Option<TopFrame>> {
        let Some(frame) = self.next.take() else { return Ok(None) };
        self.next = self.read()?;
        Ok(Some(frame))
    }

    /// Returns the time between the frame that is shown and the next one.
    fn pause(&self, shown: u64) -> Duration {
        let next = self.next.as_ref().map_or(shown, |next| next.sample.subjects.t_ns);
        let nanos = u128::from(next.saturating_sub(shown)) * 100 / u128::from(self.speed_percent);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(PAUSE_MAX)
    }

    fn read<T: serde::de::DeserializeOwned>(&mut self) -> anyhow::Result<Option<T>> {
        let mut line = Vec::new();
        let place = |line: u64| format!("{}, line {line}", self.path.display());
        let mut bounded = (&mut self.lines).take(LINE_BYTES_MAX);
        let read = bounded.read_until(b'\n', &mut line).with_context(|| place(self.line + 1))?;
        self.line += 1;
        if read == 0 {
            return Ok(None);
        }
        if line.last() != Some(&b'\n') {
            let at = place(self.line);
            bail!("{at} is incomplete or longer than {LINE_BYTES_MAX} bytes");
        }
        let value = serde_json::from_slice(&line);
        value
            .map(Some)
            .with_context(|| format!("{} is not a frame of a recording", place(self.line)))
    }
}

impl TopRecorder {
    /// Starts a recording in a new file.
    ///
    /// # Errors
    /// If the file exists or cannot be written.
    pub(super) fn new(path: &Path) -> anyhow::Result<TopRecorder> {
        let file = File::options().write(true).create_new(true).open(path);
        let file = file.with_context(|| format!("cannot make {}", path.display()))?;
        let mut recorder = TopRecorder { path: path.to_owned(), file };
        recorder.write(&RecordingHead { sluice_top: VERSION })?;
        Ok(recorder)
    }

    /// Writes a frame to the file.
    pub(super) fn write<T: Serialize>(&mut self, value: &T) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(value).context("cannot write JSON")?;
        line.push(b'\n');
        self.file.write_all(&line).with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// Merges the samples of all proxies; each target gets its proxy's name as a prefix.
fn merged(live: LiveUsage) -> TopFrame {
    let LiveUsage { t_ns, version, pid, samples, unanswered: silent } = live;
    let mut all = TopFrame {
        status: ProxyStatus { version, pid, t_ns, ..ProxyStatus::default() },
        ..TopFrame::default()
    };
    (all.sample.subjects.t_ns, all.sample.classes.t_ns) = (t_ns, t_ns);
    for LiveSample { proxy, status, subjects, classes } in samples {
        let named = |target: &str| format!("{proxy}/{target}");
        let sum = &mut all.status;
        sum.scheduling |= status.scheduling;
        sum.connections += status.connections;
        sum.threads.started += status.threads.started;
        sum.threads.max += status.threads.max;
        for mut target in status.targets {
            target.name = named(&target.name);
            sum.targets.push(target);
        }
        for mut subject in subjects.subjects {
            subject.target = named(&subject.target);
            all.sample.subjects.subjects.push(subject);
        }
        for mut class in classes.classes {
            class.target = named(&class.target);
            all.sample.classes.classes.push(class);
        }
    }
    if !silent.is_empty() {
        all.note = Some(format!("no answer in time from {}", silent.join(", ")));
    }
    all
}

/// The format of recordings that this program writes and reads.
const VERSION: u32 = 1;
/// Maximum length of a line: a frame of a hundred thousand subjects.
const LINE_BYTES_MAX: u64 = 64 << 20;
/// Maximum pause in a gap of a recording.
const PAUSE_MAX: Duration = Duration::from_secs(10);
