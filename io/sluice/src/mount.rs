//! `sluice mount` and `sluice umount`: a proxy's export as a directory of this machine.
//!
//! ```text
//!   sluice mount ─┬─ check SOURCE, DIR, OPTIONS
//!                 └─ start itself again ─► new process session ─► connect, mount ─► serve …
//!                        ◄── one line of JSON on its stdout ─────────┘
//!   mount(8) ─► mount.sluice ─► the same
//!   SIGTERM, SIGINT, SIGHUP ─► unmount; exit after the last user
//!      again                ─► exit at once
//! ```
//!
//! The process of a mount is this program, started with `--foreground`: a process with threads
//! cannot be forked into the background. The mount itself is in crate `mount`, its run file and log
//! in `record.rs`, unmounting in `umount.rs`.

mod mount8;
pub(crate) mod place;
mod record;
mod umount;

use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ::mount::{MountDaemon, MountSettings};
use anyhow::{Context, bail};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::setsid;
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::{info, warn};

use crate::log;
use place::MountEntry;
use record::{FOLDER, MountRunFile};

pub(crate) use mount8::{is_called_by_mount8, run_for_mount8};
pub(crate) use umount::{Args as UmountArgs, run as run_umount};

/// Mount a proxy's export at a directory of this machine
///
/// Returns when the directory can be used; a background process serves it until it is unmounted.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:\n  sluice mount tcp://192.0.2.7:5640/scratch /mnt/scratch -o \
                        allow_other,attr_timeout=5s\n  sluice umount /mnt/scratch\n\n\
                        docs/MOUNT.md describes every option and the line for /etc/fstab.")]
pub(crate) struct Args {
    /// Export: tcp://HOST:PORT/NAME, or unix:///path/of/socket//NAME, where two slashes end the
    /// socket's path; with commas between the proxies of one export.
    source: String,
    /// Mount point.
    dir: PathBuf,
    /// Mount options separated by commas, as for mount(8); may be repeated.
    #[arg(short, long, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Operation in the foreground until the directory is unmounted, with the log on stderr.
    #[arg(long)]
    foreground: bool,
    /// Log file of the background process, emptied at the start [default: a file in /run/sluice]
    #[arg(long, value_name = "FILE", conflicts_with = "foreground")]
    log: Option<PathBuf>,
    /// Outcome of the start on stdout, for the parent process.
    #[arg(long, hide = true, requires = "foreground")]
    tells: bool,
}

/// The outcome of the start that a background process reports to its parent.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StartupStatus {
    /// The directory can be used.
    Mounted,
    /// The mount failed; the error.
    Failed(String),
}

/// Runs `sluice mount`: mounts an export in the background or in this process.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let place = place::absolute(&args.dir).with_context(|| args.dir.display().to_string())?;
    let settings = MountSettings::new(&args.source, &place, &args.options.join(","))?;
    if args.tells {
        return serve_and_report(&settings);
    }
    prepare(&place)?;
    if args.foreground {
        return serve(&settings, || {
            log::announce("ready");
            Ok(())
        });
    }
    start_in_background(&args, &place)
}

/// Checks that the directory exists and has no sluice mount; removes a dead one.
fn prepare(place: &Path) -> anyhow::Result<()> {
    while let Some(mounted) = MountEntry::at(place)?.filter(MountEntry::is_sluice) {
        if !mounted.is_dead() {
            bail!("{} is mounted already: {}", place.display(), mounted.source);
        }
        unmount(place, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
            .with_context(|| format!("cannot remove the dead mount at {}", place.display()))?;
        let place = place.display();
        log::print_line(&format!(
            "sluice: removed a dead mount, whose process had ended, from {place}"
        ));
    }
    let found = place.metadata().with_context(|| format!("cannot mount at {}", place.display()))?;
    if !found.is_dir() {
        bail!("{} is not a directory", place.display());
    }
    Ok(())
}

/// Starts the background process of the mount and waits until the directory can be used.
fn start_in_background(args: &Args, place: &Path) -> anyhow::Result<()> {
    let (log, log_path) = record::open_log(Path::new(FOLDER), place, args.log.as_deref())
        .context("cannot open the log (choose another with --log FILE)")?;
    let mut daemon = Command::new("/proc/self/exe")
        .arg0("sluice")
        .args(["mount", "--foreground", "--tells", "--options"])
        .arg(args.options.join(","))
        .args([OsString::from("--"), OsString::from(&args.source), place.into()])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("cannot start the process of the mount")?;
    let mut line = String::new();
    let stdout = daemon.stdout.take().expect("it is piped");
    BufReader::new(stdout).read_line(&mut line)?;
    match serde_json::from_str(&line) {
        Ok(StartupStatus::Mounted) => Ok(()),
        Ok(StartupStatus::Failed(why)) => {
            daemon.wait()?;
            bail!(why)
        }
        Err(_) => {
            let status = daemon.wait()?;
            bail!("the process of the mount ended ({status}); see {}", log_path.display())
        }
    }
}

/// Serves in the background and reports the outcome of the start to the parent.
fn serve_and_report(settings: &MountSettings) -> anyhow::Result<()> {
    // Without a new session the terminal's signals would reach this process, too. The call fails
    // only for the leader of a process group, which does not share a terminal with the parent.
    let _ = setsid();
    let served = serve(settings, || {
        report_status(&StartupStatus::Mounted)?;
        // From here on the parent does not read stdout.
        let nowhere = std::fs::File::options().write(true).open("/dev/null")?;
        Ok(rustix::stdio::dup2_stdout(nowhere)?)
    });
    if let Err(error) = &served {
        // Has no effect after a successful start or when the parent has ended.
        let _ = report_status(&StartupStatus::Failed(format!("{error:#}")));
    }
    served
}

fn report_status(told: &StartupStatus) -> anyhow::Result<()> {
    let mut line = serde_json::to_string(told)?;
    line.push('\n');
    let mut stdout = io::stdout();
    stdout.write_all(line.as_bytes())?;
    Ok(stdout.flush()?)
}

/// Mounts, reports success and serves until it is unmounted.
fn serve(
    settings: &MountSettings,
    say_ready: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if let Some(at) = settings.metrics.as_ref().filter(|at| at.is_open_to_others()) {
        warn!("anybody who can connect to {at} can read the metrics of this mount");
    }
    // Before any thread starts: a signal must not find the default action.
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot watch for signals")?;
    // Each cached thread keeps a descriptor open.
    api::raise_descriptor_limit();
    let record = MountRunFile::write(Path::new(FOLDER), &settings.at, &settings.source);
    let record = record.inspect_err(|error| {
        warn!(%error, "cannot write a run file in {FOLDER}; `sluice umount` will not wait");
    });
    let ready = Arc::new(AtomicBool::new(false));
    let (place, is_ready) = (settings.at.clone(), ready.clone());
    let signals = api::critical(move || unmount_on_signal(signals, &place, &is_ready));
    std::thread::Builder::new().name("signals".into()).spawn(signals)?;
    let mut mount = match MountDaemon::start(settings) {
        Ok(mount) => mount,
        Err(error) => {
            record.into_iter().for_each(MountRunFile::remove);
            return Err(error.into());
        }
    };
    ready.store(true, Ordering::Release);
    if let Err(error) = say_ready() {
        mount.unmount().context("the parent process is gone, and unmounting failed")?;
        record.into_iter().for_each(MountRunFile::remove);
        // Without the cause as a source: a closed stdout would count as success.
        bail!("the parent process is gone: {error:#}");
    }
    info!(source = settings.source, at = %settings.at.display(), "mounted");
    mount.join();
    info!("unmounted");
    record.into_iter().for_each(MountRunFile::remove);
    Ok(())
}

/// Unmounts at the first signal and exits at the second. Before the mount is ready the first signal
/// exits: the mount may be waiting for a proxy that does not answer.
fn unmount_on_signal(mut signals: Signals, place: &Path, is_ready: &AtomicBool) {
    let mut signals = signals.forever();
    if signals.next().is_some() {
        info!("unmounting; a second signal exits at once");
        let is_ours = matches!(MountEntry::at(place), Ok(Some(mounted)) if mounted.is_sluice());
        let unmounted = if is_ours { unmount_or_hide(place) } else { Ok(()) };
        if let Err(error) = unmounted {
            warn!(at = %place.display(), %error, "cannot unmount");
        }
        if !is_ready.load(Ordering::Acquire) {
            std::process::exit(1);
        }
    }
    if signals.next().is_some() {
        std::process::exit(1);
    }
}

fn unmount_or_hide(place: &Path) -> Result<(), Errno> {
    match unmount(place, UnmountFlags::NOFOLLOW) {
        Err(Errno::BUSY) => {
            warn!("mount is in use; detached, and served until its last user is done");
            unmount(place, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct MountCli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn options_may_come_in_several_words() {
        let words = ["mount", "s", "/d", "-o", "ro,attr_timeout=2s", "-o", "hard"];
        let MountCli { args } = MountCli::try_parse_from(words).unwrap();
        assert_eq!(args.options.join(","), "ro,attr_timeout=2s,hard");
        assert!(MountCli::try_parse_from(["mount", "s", "/d", "--tells"]).is_err());
    }

    #[test]
    fn what_is_told_is_one_line_whatever_the_error() {
        for told in [StartupStatus::Mounted, StartupStatus::Failed("two\nlines \"quoted\"".into())]
        {
            let line = serde_json::to_string(&told).unwrap();
            assert!(!line.contains('\n'));
            assert_eq!(serde_json::from_str::<StartupStatus>(&line).unwrap(), told);
        }
    }

    #[test]
    fn a_directory_that_is_missing_or_none_is_refused() {
        let missing = prepare(Path::new("/proc/self/none")).unwrap_err();
        assert_eq!(
            format!("{missing:#}"),
            "cannot mount at /proc/self/none: No such file or directory (os error 2)"
        );
        let file = prepare(Path::new("/proc/self/status")).unwrap_err();
        assert_eq!(file.to_string(), "/proc/self/status is not a directory");
    }
}
