//! fio on one file of a mount: what is asked of it, and what it said.
//!
//! ```text
//!   random      4 KiB, O_DIRECT or buffered, for a span of time ─► operations per second
//!   sequential  1 MiB, buffered, the file once, repeated   ─► bytes per second
//!               reads: with nothing of the file cached; writes: with their fsync
//! ```
//!
//! Several jobs share the file: random ones all of it, sequential ones in equal parts.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::tool::MountTools;

/// A job description for fio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FioShape {
    /// Small, or large and in order.
    pub(crate) random: bool,
    pub(crate) writes: bool,
    /// Through the page cache; what is large always goes there.
    pub(crate) buffered: bool,
    pub(crate) jobs: u64,
}

/// What came of it.
pub(crate) struct FioOutcome {
    /// Operations per second of random ones, MB/s of the others.
    pub(crate) rate: f64,
    /// O_DIRECT was refused: it went through the page cache.
    pub(crate) buffered_instead: bool,
}

/// Runs fio for about `time` on `file`; `prepare` comes before each pass.
pub(crate) fn run(
    shape: FioShape,
    file: &Path,
    time: Duration,
    tools: &MountTools<'_>,
    prepare: &dyn Fn() -> anyhow::Result<()>,
) -> anyhow::Result<FioOutcome> {
    prepare()?;
    if shape.random {
        let direct = pass(shape, file, time, tools, !shape.buffered);
        let (done, buffered_instead) = match direct {
            Err(error) if error.to_string().contains("Invalid argument") => {
                (pass(shape, file, time, tools, false)?, true)
            }
            other => (other?, false),
        };
        return Ok(FioOutcome { rate: done.operations / done.seconds, buffered_instead });
    }
    let began = Instant::now();
    let mut all = FioResult::default();
    for _ in 0..PASSES_MAX {
        let done = pass(shape, file, time, tools, false)?;
        all.bytes += done.bytes;
        all.seconds += done.seconds;
        if began.elapsed() > time {
            break;
        }
        prepare()?;
    }
    Ok(FioOutcome { rate: all.bytes / all.seconds / 1e6, buffered_instead: false })
}

/// What one run of fio did.
#[derive(Debug, Default, PartialEq)]
struct FioResult {
    operations: f64,
    bytes: f64,
    seconds: f64,
}

fn pass(
    shape: FioShape,
    file: &Path,
    time: Duration,
    tools: &MountTools<'_>,
    direct: bool,
) -> anyhow::Result<FioResult> {
    let arguments = arguments(shape, file, time, direct);
    let said = tools.run(Command::new("fio").args(arguments))?.text;
    parse(&said, shape.writes).with_context(|| format!("fio on {}", file.display()))
}

fn arguments(shape: FioShape, file: &Path, time: Duration, direct: bool) -> Vec<String> {
    let FioShape { random, writes, jobs, buffered: _ } = shape;
    let kind = match (random, writes) {
        (true, false) => "randread",
        (true, true) => "randwrite",
        (false, false) => "read",
        (false, true) => "write",
    };
    let mut all = vec![
        "--name=bench".into(),
        format!("--filename={}", file.display()),
        "--ioengine=psync".into(),
        "--output-format=json".into(),
        "--group_reporting".into(),
        // The file is there; one that fio would make is a mistake.
        "--allow_file_create=0".into(),
        format!("--rw={kind}"),
        format!("--numjobs={jobs}"),
    ];
    if random {
        let runtime = time.as_millis().max(1);
        let more = ["--bs=4k", "--norandommap", "--randrepeat=0", "--time_based"];
        all.extend(more.map(String::from));
        all.push(format!("--direct={}", u8::from(direct)));
        all.push(format!("--size={FILE_LEN}"));
        all.push(format!("--runtime={runtime}ms"));
        if writes && !direct {
            all.push("--end_fsync=1".into());
        }
    } else {
        let part = FILE_LEN / jobs;
        all.push("--bs=1m".into());
        all.push(format!("--size={part}"));
        all.push(format!("--offset_increment={part}"));
        // Drops what this machine has cached of the file, which the server's cache outlives.
        all.push("--invalidate=1".into());
        if writes {
            all.push("--end_fsync=1".into());
        }
    }
    all
}

fn parse(said: &str, writes: bool) -> anyhow::Result<FioResult> {
    // Warnings come first.
    let json = said.find('{').map_or(said, |start| &said[start..]);
    let whole: Value = serde_json::from_str(json).context("its output is not JSON")?;
    let job = &whole["jobs"][0];
    ensure!(job["error"] == 0, "error {}", job["error"]);
    let figures = &job[if writes { "write" } else { "read" }];
    let figure = |name: &str| figures[name].as_f64().with_context(|| format!("it tells no {name}"));
    let done = FioResult {
        operations: figure("total_ios")?,
        bytes: figure("io_bytes")?,
        // In milliseconds, rounded; a pass may be shorter than one.
        seconds: figure("runtime")?.max(1.0) / 1e3,
    };
    ensure!(done.operations > 0.0, "nothing was done");
    Ok(done)
}

/// Bytes of the file.
pub(crate) const FILE_LEN: u64 = 256 << 20;
/// Enough to even out milliseconds.
const PASSES_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fio_says_is_read_past_its_warnings() {
        let said = "fio: a warning\n{\"jobs\": [{\"error\": 0, \"read\": {\"total_ios\": 100, \
                    \"io_bytes\": 409600, \"runtime\": 500}, \"write\": {\"total_ios\": 0, \
                    \"io_bytes\": 0, \"runtime\": 0}}]}\n";
        let done = parse(said, false).unwrap();
        assert_eq!(done, FioResult { operations: 100.0, bytes: 409_600.0, seconds: 0.5 });
        assert!(parse(said, true).is_err());
    }

    #[test]
    fn jobs_in_order_take_equal_parts() {
        let shape = FioShape { random: false, writes: true, jobs: 4, buffered: true };
        let all = arguments(shape, Path::new("/at/data"), Duration::from_secs(3), false);
        for word in ["--size=67108864", "--offset_increment=67108864", "--end_fsync=1"] {
            assert!(all.iter().any(|given| given == word), "{word} in {all:?}");
        }
    }
}
