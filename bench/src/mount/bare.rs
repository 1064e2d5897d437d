//! `sluice-bench mount-bare`: the least that can stand between a program and a remote file, as
//! a ceiling for real mounts.
//!
//! ```text
//!   program ─► kernel ─► one thread: FUSE request ─► Unix socket ─► pread, pwrite ─► reply
//!                        (--at)                      (--file)
//! ```
//!
//! One directory with one file whose length never changes. No names, sessions, jobs, rules,
//! reconnecting: every request is sent and its answer awaited on the thread that took it. What
//! the kernel may cache is what it may cache of `sluice mount`.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use fuse::{
    Attr, Attributes, Capabilities, DataReply, Errno, FileSystem, FuseOpen, FuseRead, FuseRequest,
    FuseSession, FuseWrite, Handle, InodeEntry, InodeId, OpenFlags, OpenedFile, Options, Reply,
    Transport, WrittenBytes,
};
use http::Listening;
use rustix::fs::OFlags;

use super::super::servers::DATA;

/// Mount one remote file with the least code there can be
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The Unix socket between the two processes
    #[arg(long)]
    socket: PathBuf,
    /// Serve this file
    #[arg(long, conflicts_with = "at")]
    file: Option<PathBuf>,
    /// Mount here what is served
    #[arg(long)]
    at: Option<PathBuf>,
}

/// Runs one of the two processes, until it is killed or unmounted.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match (&args.file, &args.at) {
        (Some(file), None) => serve_file(&args.socket, file),
        (None, Some(at)) => mount(&args.socket, at),
        _ => bail!("--file FILE or --at DIR says which of the two processes this is"),
    }
}

// ---- the server ----

fn serve_file(socket: &Path, path: &Path) -> anyhow::Result<()> {
    let file = File::options().read(true).write(true).open(path);
    let file = Arc::new(file.with_context(|| format!("cannot open {}", path.display()))?);
    // One that was killed leaves its socket, which is replaced.
    let listening = Listening::at(socket, 0o600)?;
    loop {
        let (stream, _) = listening.listener().accept().context("accept")?;
        let file = Arc::clone(&file);
        std::thread::spawn(move || {
            if let Err(error) = serve(stream, &file) {
                eprintln!("sluice-bench: bare: {error}");
            }
        });
    }
}

/// Serves one connection to its end.
fn serve(mut stream: UnixStream, file: &File) -> io::Result<()> {
    let mut buffer = vec![0; COUNT_LEN + PAYLOAD_MAX];
    let mut head = [0; HEAD_LEN];
    loop {
        match stream.read_exact(&mut head) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        let ask = BareAsk::decode(head);
        let size = (ask.size as usize).min(PAYLOAD_MAX);
        let payload = &mut buffer[COUNT_LEN..COUNT_LEN + size];
        let done = match ask.op {
            BareOp::READ => file.read_at(payload, ask.offset),
            BareOp::LEN => file.metadata().map(|found| {
                payload.copy_from_slice(&found.len().to_ne_bytes());
                size
            }),
            BareOp::WRITE => {
                stream.read_exact(payload)?;
                file.write_all_at(payload, ask.offset).map(|()| size)
            }
            _ => file.sync_all().map(|()| 0),
        };
        let sent = if matches!(ask.op, BareOp::READ | BareOp::LEN) {
            *done.as_ref().unwrap_or(&0)
        } else {
            0
        };
        let count = match done {
            Ok(count) => count as i32,
            Err(error) => -error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
        };
        buffer[..COUNT_LEN].copy_from_slice(&count.to_ne_bytes());
        stream.write_all(&buffer[..COUNT_LEN + sent])?;
    }
}

// ---- what they say to each other ----

/// What is asked; numbers of the wire.
struct BareOp;

impl BareOp {
    const READ: u32 = 0;
    const WRITE: u32 = 1;
    const SYNC: u32 = 2;
    const LEN: u32 = 3;
}

/// A request; of a write the payload follows. The answer is a count, or an errno below zero, and
/// what was read.
struct BareAsk {
    op: u32,
    size: u32,
    offset: u64,
}

impl BareAsk {
    fn encode(&self) -> [u8; HEAD_LEN] {
        let mut head = [0; HEAD_LEN];
        head[0..4].copy_from_slice(&self.op.to_ne_bytes());
        head[4..8].copy_from_slice(&self.size.to_ne_bytes());
        head[8..16].copy_from_slice(&self.offset.to_ne_bytes());
        head
    }

    fn decode(head: [u8; HEAD_LEN]) -> BareAsk {
        let [a, b, c, d, e, f, g, h, offset @ ..] = head;
        let op = u32::from_ne_bytes([a, b, c, d]);
        let size = u32::from_ne_bytes([e, f, g, h]);
        BareAsk { op, size, offset: u64::from_ne_bytes(offset) }
    }
}

const HEAD_LEN: usize = 16;
const COUNT_LEN: usize = 4;
/// The largest read and write of the kernel.
const PAYLOAD_MAX: usize = 1 << 20;

/// The mount's end of the socket.
struct BareSocket(Mutex<UnixStream>);

impl BareSocket {
    /// Sends a request and waits for its answer, whose bytes go `into`.
    fn ask(&self, ask: &BareAsk, payload: &[u8], into: &mut [u8]) -> Result<usize, Errno> {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = exchange(&mut stream, ask, payload, into);
        asked.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

fn exchange(
    stream: &mut UnixStream,
    ask: &BareAsk,
    payload: &[u8],
    into: &mut [u8],
) -> io::Result<usize> {
    let head = ask.encode();
    let sent = stream.write_vectored(&[IoSlice::new(&head), IoSlice::new(payload)])?;
    stream.write_all(&head[sent.min(HEAD_LEN)..])?;
    stream.write_all(&payload[sent.saturating_sub(HEAD_LEN)..])?;
    let mut count = [0; COUNT_LEN];
    stream.read_exact(&mut count)?;
    let count = i32::from_ne_bytes(count);
    if count < 0 {
        return Err(io::Error::from_raw_os_error(-count));
    }
    let count = count as usize;
    if !into.is_empty() {
        let room = into.get_mut(..count).ok_or(ErrorKind::InvalidData)?;
        stream.read_exact(room)?;
    }
    Ok(count)
}

// ---- the mount ----

fn mount(socket: &Path, at: &Path) -> anyhow::Result<()> {
    let stream = UnixStream::connect(socket);
    let stream = stream.with_context(|| format!("cannot connect to {}", socket.display()))?;
    let wire = BareSocket(Mutex::new(stream));
    let mut len = [0; 8];
    wire.ask(&BareAsk { op: BareOp::LEN, size: 8, offset: 0 }, &[], &mut len)?;
    let one = One { wire, len: u64::from_ne_bytes(len) };
    let options = Options {
        source: "bare".into(),
        capabilities: Capabilities::DEFAULT
            | Capabilities::HANDLE_KILLPRIV_V2
            | Capabilities::DIRECT_IO_ALLOW_MMAP,
        transport: Transport::Device,
        threads: 1,
        ..Options::default()
    };
    let mut session = FuseSession::mount(at, one, &options)?;
    session.join();
    Ok(())
}

/// A directory with one file.
struct One {
    wire: BareSocket,
    /// Bytes of the file.
    len: u64,
}

impl One {
    fn attributes(&self, inode: InodeId) -> Attributes {
        let is_root = inode == InodeId::ROOT;
        Attributes {
            number: inode.0,
            size: if is_root { 0 } else { self.len },
            mode: if is_root { 0o040_755 } else { 0o100_644 },
            links: 1,
            ..Attributes::default()
        }
    }
}

impl FileSystem for One {
    fn lookup(&self, request: &FuseRequest, name: &CStr, reply: Reply<InodeEntry>) {
        if request.inode != InodeId::ROOT || name.to_bytes() != DATA.as_bytes() {
            return reply.ok(&InodeEntry::absent(TTL));
        }
        reply.ok(&InodeEntry {
            inode: FILE,
            generation: 0,
            attributes: self.attributes(FILE),
            ttl: TTL,
            attributes_ttl: TTL,
        });
    }

    fn getattr(&self, request: &FuseRequest, _: Option<Handle>, reply: Reply<Attr>) {
        reply.ok(&Attr { attributes: self.attributes(request.inode), ttl: TTL });
    }

    fn open(&self, _: &FuseRequest, open: FuseOpen, reply: Reply<OpenedFile>) {
        let flags = match open.flags & OFlags::DIRECT.bits() {
            0 => OpenFlags::KEEP_CACHE,
            _ => OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES,
        };
        reply.ok(&OpenedFile { flags, ..OpenedFile::default() });
    }

    fn read(&self, _: &FuseRequest, read: FuseRead, reply: Reply<DataReply>) {
        let ask = BareAsk { op: BareOp::READ, size: read.size, offset: read.offset };
        reply.fill(|buffer| self.wire.ask(&ask, &[], buffer));
    }

    fn write(&self, _: &FuseRequest, write: FuseWrite<'_>, reply: Reply<WrittenBytes>) {
        let size = write.data.len() as u32;
        let ask = BareAsk { op: BareOp::WRITE, size, offset: write.offset };
        let written = self.wire.ask(&ask, write.data, &mut []);
        reply.send(written.map(|count| WrittenBytes(count as u32)));
    }

    fn fsync(&self, _: &FuseRequest, _: Handle, _data_only: bool, reply: Reply<()>) {
        let ask = BareAsk { op: BareOp::SYNC, size: 0, offset: 0 };
        reply.send(self.wire.ask(&ask, &[], &mut []).map(drop));
    }
}

const FILE: InodeId = InodeId(2);
/// What `sluice mount` lets the kernel believe.
const TTL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_over_the_wire_is_read_back_and_errors_arrive() {
        let path = std::env::temp_dir().join(format!("sluice-bare-{}", std::process::id()));
        std::fs::write(&path, [1; 100]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let read_only = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let wire_to = |file: File| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            std::thread::spawn(move || serve(theirs, &file));
            BareSocket(Mutex::new(ours))
        };
        let wire = wire_to(file);
        let write = BareAsk { op: BareOp::WRITE, size: 3, offset: 50 };
        assert_eq!(wire.ask(&write, &[7, 8, 9], &mut []), Ok(3));
        let mut read = [0; 60];
        assert_eq!(
            wire.ask(&BareAsk { op: BareOp::READ, size: 60, offset: 49 }, &[], &mut read),
            Ok(51)
        );
        assert_eq!(read[..5], [1, 7, 8, 9, 1]);
        let mut len = [0; 8];
        assert_eq!(
            wire.ask(&BareAsk { op: BareOp::LEN, size: 8, offset: 0 }, &[], &mut len),
            Ok(8)
        );
        assert_eq!(u64::from_ne_bytes(len), 100);
        assert_eq!(
            wire.ask(&BareAsk { op: BareOp::SYNC, size: 0, offset: 0 }, &[], &mut []),
            Ok(0)
        );
        assert_eq!(wire_to(read_only).ask(&write, &[7, 8, 9], &mut []), Err(Errno::BADF));
    }
}
