//! Shows a directory at another place, until that is unmounted.
//!
//!   cargo run --release -p sluice-fuse --example mirror -- DIRECTORY MOUNTPOINT [WORD…]
//!
//! Words: `device`, `ring` (transport), `direct` (past the page cache), `cached` (names,
//! attributes and data are believed for ever), `passthrough` (the kernel reads and writes the
//! directory's files by itself), `threads=N`. Prints `mounted` and how, when it can be used, and
//! at the end how many reads and writes it was asked for.

mod backing;
mod filesystem;
mod inodes;
mod owners;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fuse::{Capabilities, FuseSession, MountFlags, OpenFlags, Options, Transport};

use filesystem::{Mirror, Settings};

fn main() -> Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, mount_point, words @ ..] = arguments.as_slice() else {
        bail!(
            "usage: mirror DIRECTORY MOUNTPOINT [device|ring] [direct|cached|passthrough] [threads=N]"
        );
    };
    let (mut options, mut settings) = (options(), Settings::default());
    for word in words {
        match word.split_once('=').unwrap_or((word, "")) {
            ("device", "") => options.transport = Transport::Device,
            ("ring", "") => options.transport = Transport::Ring,
            ("direct", "") => {
                settings.open_flags = OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES;
            }
            ("cached", "") => {
                settings.cached = Duration::from_secs(86_400);
                settings.open_flags = OpenFlags::KEEP_CACHE;
            }
            ("passthrough", "") => {
                settings.passthrough = true;
                options.capabilities |= Capabilities::PASSTHROUGH;
            }
            ("threads", number) => options.threads = number.parse().context(word.clone())?,
            _ => bail!("no such word: {word}"),
        }
    }
    raise_open_files()?;
    // The kernel has taken the caller's away from each mode; ours has no say in it.
    rustix::process::umask(rustix::fs::Mode::empty());
    let asked = settings.asked.clone();
    let mirror = Mirror::new(Path::new(directory), settings).with_context(|| directory.clone())?;
    let mut session = FuseSession::mount(Path::new(mount_point), mirror, &options)?;
    let connection = session.connection();
    println!("mounted {:?} {:?}", connection.transport, connection.capabilities);
    session.join();
    println!("asked for {} reads and writes", asked.load(Ordering::Relaxed));
    Ok(())
}

/// What a directory of this machine can do, and users expect of it.
fn options() -> Options {
    Options {
        source: "mirror".to_string(),
        flags: MountFlags::empty(),
        capabilities: Capabilities::DEFAULT
            | Capabilities::READDIRPLUS
            | Capabilities::READDIRPLUS_AUTO
            | Capabilities::HANDLE_KILLPRIV_V2
            | Capabilities::DIRECT_IO_ALLOW_MMAP
            | Capabilities::CACHE_SYMLINKS,
        ..Options::default()
    }
}

/// Each inode that the kernel knows holds a descriptor.
fn raise_open_files() -> Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("raising the limit of open files")
}
