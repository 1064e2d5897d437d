//! One connection under load: many requests per send, many replies per receive.
//!
//!   slots ─encode─► heads + pieces ─sendmsg─► server ─recv─► input ─► slot by tag ─► next step
//!
//! Of a reply only its first bytes are read; the rest is skipped in the buffer.
//! A reply counts when its last byte has arrived, or large replies would overlap
//! their successors and the depth would not be what was asked for.
//!
//! Invariant: a tag is in flight exactly while its slot is `waiting`.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use hdrhistogram::Histogram;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

use super::session::{RERROR, RLERROR};
use super::work::{BenchWork, WorkSlot};

/// One connection with `slots` requests in flight.
pub(crate) struct PeerConnection {
    fd: OwnedFd,
    work: BenchWork,
    slots: Vec<WorkSlot>,
    in_flight: usize,
    issuing: bool,
    output: SendBuffer,
    input: ReplyBuffer,
    /// What was achieved since it was last taken.
    pub(crate) score: Score,
}

/// What a load achieved in some span.
#[derive(Clone, Debug)]
pub(crate) struct Score {
    pub(crate) ops: u64,
    pub(crate) bytes: u64,
    /// Rlerror replies by errno.
    pub(crate) errors: BTreeMap<u32, u64>,
    /// Replies with another count or other data than was asked for.
    pub(crate) wrong: u64,
    /// Nanoseconds from an operation's first request to its last reply.
    pub(crate) latency_ns: Histogram<u64>,
}

impl PeerConnection {
    pub(crate) fn new(
        fd: OwnedFd,
        work: BenchWork,
        depth: usize,
        payload: Arc<[u8]>,
    ) -> PeerConnection {
        let slots = (0..depth).map(|_| work.slot()).collect();
        let output = SendBuffer { payload, ..SendBuffer::default() };
        let input = ReplyBuffer { buffer: vec![0; INPUT_LEN].into(), ..ReplyBuffer::default() };
        let score = Score::new();
        PeerConnection { fd, work, slots, in_flight: 0, issuing: true, output, input, score }
    }

    /// Puts every slot to work; call [`PeerConnection::flush`] afterwards.
    pub(crate) fn start(&mut self, now_ns: u64) {
        for index in 0..self.slots.len() {
            self.begin(index, now_ns);
        }
    }

    /// Begins one operation; false if as many as there may be are under way. Call
    /// [`PeerConnection::flush`] afterwards.
    pub(crate) fn begin_one(&mut self, now_ns: u64) -> bool {
        let Some(index) = self.slots.iter().position(|slot| !slot.waiting) else { return false };
        self.begin(index, now_ns);
        true
    }

    /// Lets operations under way finish and begins no more.
    pub(crate) fn finish(&mut self) {
        self.issuing = false;
    }

    /// Nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    /// Sends what is ready; false when the socket takes no more for now.
    pub(crate) fn flush(&mut self) -> anyhow::Result<bool> {
        self.output.send(self.fd.as_fd())
    }

    /// Takes what has arrived, waiting for it if `wait`, and readies the requests that
    /// follow; the number of bytes taken, 0 for none yet.
    pub(crate) fn receive(
        &mut self,
        wait: bool,
        now_ns: impl Fn() -> u64,
    ) -> anyhow::Result<usize> {
        let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let free = &mut self.input.buffer[self.input.filled..];
        let got = match rustix::net::recv(&self.fd, free, flags) {
            Ok((0, _)) => bail!("the server closed the connection"),
            Ok((got, _)) => got,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(0),
            Err(error) => return Err(error).context("receiving"),
        };
        self.input.filled += got;
        let now_ns = now_ns();
        while let Some(reply) = self.input.next_reply()? {
            self.take(&reply, now_ns)?;
        }
        self.input.compact();
        Ok(got)
    }

    fn take(&mut self, reply: &ReplyHead, now_ns: u64) -> anyhow::Result<()> {
        let index = usize::from(reply.tag);
        let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.waiting) else {
            bail!("the server answers tag {}, which is not in flight", reply.tag);
        };
        slot.waiting = false;
        self.in_flight -= 1;
        if matches!(reply.kind, RLERROR | RERROR) {
            *self.score.errors.entry(reply.count).or_default() += 1;
            slot.failed = true;
        } else if reply.kind != slot.step().reply_kind() {
            bail!("the server answers {:?} with a message of type {}", slot.step(), reply.kind);
        } else if !self.work.accepts(slot, reply.count, &reply.data[..reply.data_len]) {
            self.score.wrong += 1;
            slot.failed = true;
        }
        if slot.advance() {
            self.send_step(index);
            return Ok(());
        }
        if !slot.failed {
            self.score.ops += 1;
            self.score.bytes += self.work.bytes(slot);
            self.score.latency_ns.saturating_record(now_ns.saturating_sub(slot.began_ns));
        }
        if self.issuing {
            self.begin(index, now_ns);
        }
        Ok(())
    }

    fn begin(&mut self, index: usize, now_ns: u64) {
        self.work.begin(&mut self.slots[index], now_ns);
        self.send_step(index);
    }

    fn send_step(&mut self, index: usize) {
        let at = self.output.heads.len();
        let payload = self.work.encode(&self.slots[index], index, &mut self.output.heads);
        self.output.push(at, payload);
        self.slots[index].waiting = true;
        self.in_flight += 1;
    }
}

impl AsFd for PeerConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Score {
    pub(crate) fn new() -> Score {
        let latency_ns = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)
            .expect("bounds and digits are within what the histogram allows");
        Score { ops: 0, bytes: 0, errors: BTreeMap::new(), wrong: 0, latency_ns }
    }

    pub(crate) fn add(&mut self, other: &Score) {
        self.ops += other.ops;
        self.bytes += other.bytes;
        self.wrong += other.wrong;
        for (errno, count) in &other.errors {
            *self.errors.entry(*errno).or_default() += count;
        }
        self.latency_ns.add(&other.latency_ns).expect("all scores have the same bounds");
    }
}

/// Requests on their way out: heads in one buffer, each run of them followed by the
/// shared payload or not.
#[derive(Default)]
struct SendBuffer {
    heads: Vec<u8>,
    pieces: Vec<SendPiece>,
    payload: Arc<[u8]>,
    /// Pieces that are out.
    sent: usize,
    /// Bytes of the piece `sent` that are out.
    sent_bytes: usize,
}

#[derive(Clone, Copy)]
struct SendPiece {
    start: usize,
    end: usize,
    payload: bool,
}

impl SendBuffer {
    fn push(&mut self, start: usize, payload: bool) {
        let end = self.heads.len();
        match self.pieces[self.sent..].last_mut() {
            Some(last) if !last.payload => (last.end, last.payload) = (end, payload),
            _ => self.pieces.push(SendPiece { start, end, payload }),
        }
    }

    fn send(&mut self, fd: BorrowedFd<'_>) -> anyhow::Result<bool> {
        while self.sent < self.pieces.len() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let used = self.gather(&mut slices);
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let control = &mut SendAncillaryBuffer::default();
            match rustix::net::sendmsg(fd, &slices[..used], control, flags) {
                Ok(bytes) => self.note_sent(bytes),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("sending"),
            }
        }
        self.heads.clear();
        self.pieces.clear();
        self.sent = 0;
        Ok(true)
    }

    fn gather<'o>(&'o self, slices: &mut [IoSlice<'o>; SLICES_MAX]) -> usize {
        let mut used = 0;
        let mut skip = self.sent_bytes;
        for piece in &self.pieces[self.sent..] {
            if used + 2 > SLICES_MAX {
                break;
            }
            let head = &self.heads[piece.start..piece.end];
            let payload = if piece.payload { &self.payload[..] } else { &[] };
            for part in [head, payload] {
                let part_skip = skip.min(part.len());
                skip -= part_skip;
                if part_skip < part.len() {
                    slices[used] = IoSlice::new(&part[part_skip..]);
                    used += 1;
                }
            }
        }
        used
    }

    fn note_sent(&mut self, bytes: usize) {
        let mut left = self.sent_bytes + bytes;
        while let Some(piece) = self.pieces.get(self.sent) {
            let payload_len = if piece.payload { self.payload.len() } else { 0 };
            let len = piece.end - piece.start + payload_len;
            if left < len {
                break;
            }
            left -= len;
            self.sent += 1;
        }
        self.sent_bytes = left;
    }
}

/// Replies on their way in.
#[derive(Default)]
struct ReplyBuffer {
    buffer: Box<[u8]>,
    filled: usize,
    at: usize,
    /// A reply whose head was seen, and how many of its bytes are still to pass.
    current: Option<(ReplyHead, usize)>,
}

/// The beginning of a reply.
#[derive(Clone, Copy, Debug)]
struct ReplyHead {
    kind: u8,
    tag: u16,
    /// The first four bytes of the body: the count of Rread and Rwrite, the errno of Rlerror.
    count: u32,
    data: [u8; 8],
    data_len: usize,
}

impl ReplyBuffer {
    fn next_reply(&mut self) -> anyhow::Result<Option<ReplyHead>> {
        if self.current.is_none() {
            self.current = self.look_at_head()?;
        }
        let Some((head, left)) = &mut self.current else { return Ok(None) };
        let step = (*left).min(self.filled - self.at);
        self.at += step;
        *left -= step;
        if *left > 0 {
            return Ok(None);
        }
        let head = *head;
        self.current = None;
        Ok(Some(head))
    }

    fn look_at_head(&self) -> anyhow::Result<Option<(ReplyHead, usize)>> {
        let bytes = &self.buffer[self.at..self.filled];
        let Some(len) = ninep::frame_len(bytes) else { return Ok(None) };
        let len = len as usize;
        if !(ninep::HEADER_LEN..=REPLY_LEN_MAX).contains(&len) {
            bail!("the server sent a message of {len} bytes");
        }
        let Some(bytes) = bytes.get(..len.min(HEAD_LEN)) else { return Ok(None) };
        let tag = u16::from_le_bytes([bytes[5], bytes[6]]);
        let mut head = ReplyHead { kind: bytes[4], tag, count: 0, data: [0; 8], data_len: 0 };
        if let Some((count, data)) = bytes[ninep::HEADER_LEN..].split_first_chunk::<4>() {
            head.count = u32::from_le_bytes(*count);
            head.data_len = data.len();
            head.data[..data.len()].copy_from_slice(data);
        }
        Ok(Some((head, len)))
    }

    fn compact(&mut self) {
        self.buffer.copy_within(self.at..self.filled, 0);
        self.filled -= self.at;
        self.at = 0;
    }
}

/// Large enough for 60 replies of 4 KiB, small enough to stay in the processor's cache.
const INPUT_LEN: usize = 256 << 10;
/// Size, type, tag, count and the first eight bytes of data.
const HEAD_LEN: usize = ninep::HEADER_LEN + 4 + 8;
const REPLY_LEN_MAX: usize = 64 << 20;
const SLICES_MAX: usize = 64;
const LATENCY_NS_MAX: u64 = 600_000_000_000;

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use ninep::{Fid, Reply, Request, Tag};

    use super::super::work::{WorkFids, WorkOp, WorkSettings};
    use super::*;

    const SIZE: usize = 4096;

    fn pair(op: WorkOp, depth: usize) -> (PeerConnection, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let one = || vec![Fid(1)];
        let fids = WorkFids { dirs: one(), read: one(), write: one(), spare: 2 };
        let work = BenchWork::new(WorkSettings {
            op,
            size: SIZE as u32,
            file_size: 1 << 20,
            connection: 0,
            connections: 1,
            name: "x".into(),
            unlinkat: true,
            pattern: false,
            fids,
        });
        (PeerConnection::new(ours.into(), work, depth, vec![0x5a; SIZE].into()), theirs)
    }

    fn reply(tag: u16, reply: Reply<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        reply.encode(Tag(tag), &mut out);
        out
    }

    #[test]
    fn a_reply_cut_anywhere_counts_once_and_when_it_is_whole() {
        let (mut link, mut server) = pair(WorkOp::Read, 1);
        link.start(0);
        link.finish();
        let whole = reply(0, Reply::Read { data: &[7; SIZE] });
        for (at, byte) in whole.iter().enumerate() {
            assert_eq!(link.score.ops, 0, "after {at} bytes");
            server.write_all(&[*byte]).unwrap();
            assert_eq!(link.receive(true, || 1500).unwrap(), 1);
        }
        assert_eq!((link.score.ops, link.score.bytes), (1, SIZE as u64));
        assert_eq!(link.score.latency_ns.max(), 1500);
        assert!(link.is_idle());
    }

    #[test]
    fn errors_are_counted_by_errno_and_short_reads_as_wrong() {
        let (mut link, mut server) = pair(WorkOp::Read, 3);
        link.start(0);
        link.finish();
        let mut replies = reply(2, Reply::Error { ecode: 5 });
        replies.extend(reply(0, Reply::Read { data: &[7; SIZE - 1] }));
        replies.extend(reply(1, Reply::Read { data: &[7; SIZE] }));
        server.write_all(&replies).unwrap();
        link.receive(true, || 1).unwrap();
        assert_eq!(link.score.errors, BTreeMap::from([(5, 1)]));
        assert_eq!((link.score.wrong, link.score.ops), (1, 1));
    }

    #[test]
    fn a_reply_to_nothing_or_of_another_type_ends_the_load() {
        let (mut link, mut server) = pair(WorkOp::Read, 1);
        link.start(0);
        server.write_all(&reply(9, Reply::Clunk)).unwrap();
        let error = link.receive(true, || 1).unwrap_err().to_string();
        assert_eq!(error, "the server answers tag 9, which is not in flight");

        let (mut link, mut server) = pair(WorkOp::Read, 1);
        link.start(0);
        server.write_all(&reply(0, Reply::Write { count: 4096 })).unwrap();
        let error = link.receive(true, || 1).unwrap_err().to_string();
        assert_eq!(error, "the server answers Read with a message of type 119");
    }

    #[test]
    fn writes_stay_whole_when_the_socket_takes_them_in_pieces() {
        let depth = 300;
        let (mut link, mut server) = pair(WorkOp::Write, depth);
        rustix::net::sockopt::set_socket_send_buffer_size(&link, 4096).unwrap();
        link.start(0);
        assert!(!link.flush().unwrap(), "the socket must be too small for this test");
        let len = ninep::WRITE_HEADER_LEN + SIZE;
        let mut frame = vec![0; len];
        for tag in 0..depth {
            let mut filled = 0;
            while filled < len {
                let got = server.read(&mut frame[filled..]).unwrap();
                filled += got;
                link.flush().unwrap();
            }
            let (seen, request) = Request::decode(&frame).unwrap();
            let Request::Write { data, .. } = request else { panic!("{request:?}") };
            assert_eq!((seen, data), (Tag(tag as u16), &[0x5a; SIZE][..]));
        }
        assert!(link.flush().unwrap());
    }
}
