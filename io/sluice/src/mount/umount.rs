//! `sluice umount`: unmounts and waits until the process has written everything back.
//!
//! umount(2) alone returns as soon as the mount is out of the table, while its process may still
//! have writes that are not durable at the proxy.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use serde_json::json;

use super::place::{self, MountCopy, MountEntry};
use super::record::{FOLDER, OtherMount};
use crate::log;

/// Unmount a directory of `sluice mount`
///
/// Returns when the mount's process has written everything back and ended. If another mount
/// namespace, such as a container's, has a copy of the mount, the process continues to serve the
/// copy. The command then names the copies and returns.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Mount point.
    dir: PathBuf,
    /// Forced unmount, also if the mount is in use or its proxy does not answer: open files get
    /// errors, and writes that were not written back are lost.
    #[arg(long)]
    force: bool,
    /// JSON output.
    #[arg(long)]
    json: bool,
}

/// Runs `sluice umount`: unmounts and waits for the end of the mount's process.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let place = place::absolute(&args.dir).with_context(|| args.dir.display().to_string())?;
    let mounted = MountEntry::at(&place)?.filter(MountEntry::is_sluice);
    let Some(mounted) = mounted else {
        bail!("{} is not a mount of sluice", place.display());
    };
    // Before the mount is gone: a new mount at this path has a run file of its own.
    let process = OtherMount::open(Path::new(FOLDER), &place);
    // With --force the copies end with the connection.
    let before = if args.force { Vec::new() } else { mounted.copies() };
    unmount_path(&place, args.force)?;
    let copies = if args.force { Vec::new() } else { mounted.remaining_copies(&before) };
    let written_back = match &process {
        Some(process) if !copies.is_empty() => {
            print_copies(process, &copies);
            false
        }
        Some(process) if args.force => {
            end(process)?;
            false
        }
        Some(process) => {
            wait(process);
            process.ended_normally()
        }
        None => false,
    };
    if args.json {
        let outcome = json!({
            "dir": place.to_string_lossy(),
            "source": mounted.source,
            "forced": args.force,
            "written_back": written_back,
            "copies": copies.iter().map(in_json).collect::<Vec<_>>(),
        });
        writeln!(io::stdout(), "{outcome:#}")?;
    }
    match process {
        None => log::print_line(&format!(
            "sluice: unmounted {}; its process had ended, so writes not written back are lost",
            place.display()
        )),
        Some(_) => ensure!(
            written_back || args.force || !copies.is_empty(),
            "unmounted {}, but its process was killed: writes not written back are lost",
            place.display()
        ),
    }
    Ok(())
}

fn unmount_path(place: &Path, force: bool) -> anyhow::Result<()> {
    let mut flags = UnmountFlags::NOFOLLOW;
    if force {
        // FORCE ends the connection, so waiting calls get an error; DETACH works despite users.
        flags |= UnmountFlags::FORCE | UnmountFlags::DETACH;
    }
    match unmount(place, flags) {
        Err(Errno::BUSY) => bail!(
            "{0} is in use (`fuser -vm {0}` shows by whom); use --force to unmount it anyway",
            place.display()
        ),
        other => other.with_context(|| format!("cannot unmount {}", place.display())),
    }
}

/// Prints the copies of an unmounted mount in other name spaces.
fn print_copies(process: &OtherMount, copies: &[MountCopy]) {
    log::print_line(&format!(
        "sluice: unmounted here; closed files are written back. Process {} still serves:",
        process.pid()
    ));
    for MountCopy { process, at, .. } in copies {
        let name = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        log::print_line(&format!(
            "  {} in the mount namespace of process {process} ({})",
            at.display(),
            name.trim()
        ));
    }
    log::print_line("It ends when these are unmounted or their namespaces end.");
}

fn in_json(copy: &MountCopy) -> serde_json::Value {
    json!({ "process": copy.process, "dir": copy.at.to_string_lossy() })
}

/// Waits without a limit for the process of an unmounted mount.
fn wait(process: &OtherMount) {
    if !process.wait(Some(Instant::now() + QUIET_WAIT)) {
        log::print_line(&format!(
            "sluice: unmounted; process {} is still writing back, or waiting for its proxy; kill \
             it to discard its writes",
            process.pid()
        ));
        process.wait(None);
    }
}

/// Waits for the process of a forcibly unmounted mount, and kills it after [`GRACE`].
fn end(process: &OtherMount) -> anyhow::Result<()> {
    if !process.wait(Some(Instant::now() + GRACE)) {
        process.kill();
        let ended = process.wait(Some(Instant::now() + GRACE));
        ensure!(ended, "unmounted, but process {} has not ended", process.pid());
    }
    Ok(())
}

/// Time to wait before a message explains the wait.
const QUIET_WAIT: Duration = Duration::from_secs(2);
/// Time limit for a process to end by itself, and after a kill.
const GRACE: Duration = Duration::from_secs(5);
