//! `sluice umount`: takes a mount away and waits until its process has written everything back.
//!
//! umount(2) alone returns as soon as the mount is out of the table, while its process may
//! still hold writes that the proxy has not confirmed.

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

/// Unmounts what `sluice mount` has mounted.
///
/// Returns when its process has written everything back and is gone. Where another mount name space, of
/// a container or a service, has a copy of the mount, it is served on for that: then this says
/// which process has it, and returns.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory.
    dir: PathBuf,
    /// Take it away although it is in use or its proxy does not answer: open files give errors,
    /// and what was not written back is lost.
    #[arg(long)]
    force: bool,
    /// Print the outcome as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs `sluice umount`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let place = place::absolute(&args.dir).with_context(|| args.dir.display().to_string())?;
    let mounted = MountEntry::at(&place)?.filter(MountEntry::is_sluice);
    let Some(mounted) = mounted else {
        bail!("no mount of sluice is at {}", place.display());
    };
    // Before the mount is gone: a new one there would have a record of its own.
    let process = OtherMount::open(Path::new(FOLDER), &place);
    take_away(&place, args.force)?;
    // Those end with the connection.
    let copies = if args.force { Vec::new() } else { mounted.copies() };
    let written_back = match &process {
        Some(process) if !copies.is_empty() => {
            say_where(process, &copies);
            false
        }
        Some(process) if args.force => {
            end(process)?;
            false
        }
        Some(process) => {
            wait(process);
            process.ended_well()
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
        None => log::say(&format!(
            "sluice: {} is unmounted; no process was behind it any more, so what it held is lost",
            place.display()
        )),
        Some(_) => ensure!(
            written_back || args.force || !copies.is_empty(),
            "{} is unmounted, but its process was killed: what it held is lost",
            place.display()
        ),
    }
    Ok(())
}

fn take_away(place: &Path, force: bool) -> anyhow::Result<()> {
    let mut flags = UnmountFlags::NOFOLLOW;
    if force {
        // FORCE ends the connection, so whoever waits gets an error; DETACH does not mind users.
        flags |= UnmountFlags::FORCE | UnmountFlags::DETACH;
    }
    match unmount(place, flags) {
        Err(Errno::BUSY) => bail!(
            "{0} is in use (`fuser -vm {0}` shows by whom); --force takes it away all the same",
            place.display()
        ),
        other => other.with_context(|| format!("cannot unmount {}", place.display())),
    }
}

/// Says who keeps a mount that is gone here.
fn say_where(process: &OtherMount, copies: &[MountCopy]) {
    log::say(&format!(
        "sluice: unmounted here; what was closed is written. Process {} serves on, for:",
        process.pid()
    ));
    for MountCopy { process, at } in copies {
        let name = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        log::say(&format!(
            "  {} in the mount name space of process {process} ({})",
            at.display(),
            name.trim()
        ));
    }
    log::say("It ends when these are unmounted too or their name spaces end.");
}

fn in_json(copy: &MountCopy) -> serde_json::Value {
    json!({ "process": copy.process, "dir": copy.at.to_string_lossy() })
}

/// Waits for the process behind a mount that is gone, however long that takes.
fn wait(process: &OtherMount) {
    if !process.wait(Some(Instant::now() + SILENCE)) {
        log::say(&format!(
            "sluice: unmounted; process {} still writes back (it waits for its proxy if that \
             is gone; kill it to give up)",
            process.pid()
        ));
        process.wait(None);
    }
}

/// Ends the process behind a mount whose connection has been ended.
fn end(process: &OtherMount) -> anyhow::Result<()> {
    if !process.wait(Some(Instant::now() + GRACE)) {
        process.kill();
        let ended = process.wait(Some(Instant::now() + GRACE));
        ensure!(ended, "unmounted, but process {} does not end", process.pid());
    }
    Ok(())
}

/// How long waiting needs no explanation.
const SILENCE: Duration = Duration::from_secs(2);
/// How long a process may take to end by itself, and to be killed.
const GRACE: Duration = Duration::from_secs(5);
