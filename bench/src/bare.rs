//! `sluice-bench bare`: the least a server can do, as a ceiling for real ones.
//!
//!   file    request ─► header (11 bytes, MSG_MORE) + splice file → pipe → socket
//!   memory  many requests ─► many replies in one send, from one page of memory
//!
//! Messages are 9P's Tread, Twrite and Tgetattr, but nothing around them: no version,
//! attach, walk or open, every fid is the one file, and a peer that sends anything
//! else is dropped. One thread serves each connection.

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use ninep::{Attributes, HEADER_LEN, Reply, Request, Tag};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use rustix::pipe::SpliceFlags;

use super::socket::BenchAddress;

/// Serve one file, or memory, with the least code there can be
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to listen: tcp://HOST:PORT or unix:///path; may be given several times
    #[arg(long, required = true)]
    listen: Vec<BenchAddress>,
    /// The file to serve; without it replies come from memory
    #[arg(long)]
    file: Option<PathBuf>,
}

/// Serves until it is killed.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let file = match &args.file {
        Some(path) => {
            let file =
                File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
            Some(Arc::new(file))
        }
        None => None,
    };
    let listeners: Result<Vec<_>, _> = args.listen.iter().map(BenchAddress::listen).collect();
    std::thread::scope(|scope| {
        for listener in listeners? {
            let file = file.clone();
            scope.spawn(move || {
                while let Ok(socket) = listener.accept() {
                    let file = file.clone();
                    std::thread::spawn(move || serve(socket, file));
                }
            });
        }
        Ok(())
    })
}

/// Serves one connection to its end.
pub(crate) fn serve(socket: OwnedFd, file: Option<Arc<File>>) {
    let served = match file {
        Some(file) => Splicer::new(socket.as_fd(), &file).and_then(|mut splicer| splicer.serve()),
        None => BareMemory::new(socket.as_fd()).serve(),
    };
    if let Err(error) = served {
        eprintln!("sluice-bench: bare: {error:#}");
    }
}

// ---- a file ----

struct Splicer<'a> {
    socket: BorrowedFd<'a>,
    file: &'a File,
    pipe_out: OwnedFd,
    pipe_in: OwnedFd,
}

impl<'a> Splicer<'a> {
    fn new(socket: BorrowedFd<'a>, file: &'a File) -> anyhow::Result<Splicer<'a>> {
        let (pipe_out, pipe_in) = rustix::pipe::pipe().context("pipe")?;
        rustix::pipe::fcntl_setpipe_size(&pipe_in, PIPE_LEN).context("cannot widen a pipe")?;
        Ok(Splicer { socket, file, pipe_out, pipe_in })
    }

    fn serve(&mut self) -> anyhow::Result<()> {
        let mut input = BareInput::new();
        while input.receive(self.socket)? {
            while let Some(frame) = input.next_small()? {
                match Request::decode(frame)? {
                    (tag, Request::Read { offset, count, .. }) => {
                        self.answer(tag, offset, count)?
                    }
                    (_, other) => bail!("cannot serve {other:?}"),
                }
            }
        }
        Ok(())
    }

    fn answer(&mut self, tag: Tag, mut offset: u64, count: u32) -> anyhow::Result<()> {
        let header = ninep::read_reply_header(tag, count);
        let flags = SendFlags::MORE | SendFlags::NOSIGNAL;
        let sent = rustix::net::send(self.socket, &header, flags).context("sending")?;
        ensure!(sent == header.len(), "the socket took {sent} bytes of a header");
        let mut left = count as usize;
        while left > 0 {
            let at = Some(&mut offset);
            let mut held =
                rustix::pipe::splice(self.file, at, &self.pipe_in, None, left, SpliceFlags::MOVE)
                    .context("file to pipe")?;
            ensure!(held > 0, "the file ends {left} bytes too early");
            left -= held;
            while held > 0 {
                let more = if left > 0 { SpliceFlags::MORE } else { SpliceFlags::empty() };
                let flags = SpliceFlags::MOVE | more;
                held -= rustix::pipe::splice(&self.pipe_out, None, self.socket, None, held, flags)
                    .context("pipe to socket")?;
            }
        }
        Ok(())
    }
}

// ---- memory ----

struct BareMemory<'a> {
    socket: BorrowedFd<'a>,
    payload: Vec<u8>,
    heads: Vec<u8>,
    /// End of each head in `heads`, and the payload's length behind it.
    pieces: Vec<(usize, usize)>,
}

impl BareMemory<'_> {
    fn new(socket: BorrowedFd<'_>) -> BareMemory<'_> {
        BareMemory {
            socket,
            payload: vec![0x5a; PAYLOAD_LEN],
            heads: Vec::new(),
            pieces: Vec::new(),
        }
    }

    fn serve(&mut self) -> anyhow::Result<()> {
        let mut input = BareInput::new();
        while input.receive(self.socket)? {
            while let Some(head) = input.next_head()? {
                self.prepare(&head)?;
            }
            self.send()?;
        }
        Ok(())
    }

    fn prepare(&mut self, head: &[u8; REQUEST_LEN]) -> anyhow::Result<()> {
        if let Some((tag, _, _, count)) = ninep::write_header(head) {
            Reply::Write { count }.encode(tag, &mut self.heads);
            self.pieces.push((self.heads.len(), 0));
            return Ok(());
        }
        let len = ninep::frame_len(head).map_or(0, |len| len as usize);
        let mut payload_len = 0;
        match Request::decode(head.get(..len).context("not a small request")?)? {
            (tag, Request::Read { count, .. }) => {
                payload_len = count as usize;
                ensure!(payload_len <= self.payload.len(), "cannot serve {count} bytes at once");
                self.heads.extend_from_slice(&ninep::read_reply_header(tag, count));
            }
            (tag, Request::Getattr { .. }) => {
                Reply::Getattr(Attributes::default()).encode(tag, &mut self.heads);
            }
            (_, other) => bail!("cannot serve {other:?}"),
        }
        self.pieces.push((self.heads.len(), payload_len));
        Ok(())
    }

    fn send(&mut self) -> anyhow::Result<()> {
        let mut start = 0;
        for batch in self.pieces.chunks(SLICES_MAX / 2) {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            for (pair, (end, payload_len)) in slices.chunks_exact_mut(2).zip(batch) {
                pair[0] = IoSlice::new(&self.heads[start..*end]);
                pair[1] = IoSlice::new(&self.payload[..*payload_len]);
                start = *end;
            }
            let mut rest = &mut slices[..batch.len() * 2];
            IoSlice::advance_slices(&mut rest, 0);
            while !rest.is_empty() {
                let control = &mut SendAncillaryBuffer::default();
                let sent = rustix::net::sendmsg(self.socket, rest, control, SendFlags::NOSIGNAL)
                    .context("sending")?;
                IoSlice::advance_slices(&mut rest, sent);
            }
        }
        self.heads.clear();
        self.pieces.clear();
        Ok(())
    }
}

// ---- what both share ----

/// Requests on their way in; the payload of writes is passed over.
struct BareInput {
    buffer: Vec<u8>,
    at: usize,
    filled: usize,
    skip: usize,
}

impl BareInput {
    fn new() -> BareInput {
        BareInput { buffer: vec![0; INPUT_LEN], at: 0, filled: 0, skip: 0 }
    }

    /// Waits for more; false at the end.
    fn receive(&mut self, socket: BorrowedFd<'_>) -> anyhow::Result<bool> {
        self.buffer.copy_within(self.at..self.filled, 0);
        self.filled -= self.at;
        self.at = 0;
        let free = &mut self.buffer[self.filled..];
        let (got, _) = rustix::net::recv(socket, free, RecvFlags::empty()).context("receiving")?;
        self.filled += got;
        Ok(got > 0)
    }

    /// The next whole request, which has no payload.
    fn next_small(&mut self) -> anyhow::Result<Option<&[u8]>> {
        let bytes = &self.buffer[self.at..self.filled];
        let Some(len) = ninep::frame_len(bytes) else { return Ok(None) };
        let len = len as usize;
        ensure!((HEADER_LEN..=REQUEST_LEN).contains(&len), "a request of {len} bytes");
        let Some(frame) = bytes.get(..len) else { return Ok(None) };
        self.at += len;
        Ok(Some(frame))
    }

    /// The beginning of the next request, once all of it has come.
    fn next_head(&mut self) -> anyhow::Result<Option<[u8; REQUEST_LEN]>> {
        let step = self.skip.min(self.filled - self.at);
        self.at += step;
        self.skip -= step;
        let bytes = &self.buffer[self.at..self.filled];
        let Some(len) = ninep::frame_len(bytes) else { return Ok(None) };
        let len = len as usize;
        ensure!(len >= HEADER_LEN, "a request of {len} bytes");
        let Some(start) = bytes.get(..len.min(REQUEST_LEN)) else { return Ok(None) };
        let mut head = [0; REQUEST_LEN];
        head[..start.len()].copy_from_slice(start);
        self.at += start.len();
        self.skip = len - start.len();
        Ok(Some(head))
    }
}

/// A Tread, and a Twrite up to its payload.
const REQUEST_LEN: usize = 23;
const INPUT_LEN: usize = 256 << 10;
const PIPE_LEN: usize = 1 << 20;
/// The largest message of the proxy.
const PAYLOAD_LEN: usize = 4 << 20;
const SLICES_MAX: usize = 64;
