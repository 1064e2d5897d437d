//! Bytes from a socket, cut into messages.
//!
//! Many small messages come with one system call into a scratch buffer of the
//! thread. A message that is not whole yet gets a buffer of its own size, and the
//! next call reads straight into it: the payload of a large write is never moved
//! again. Nothing but unfinished input is kept between calls, so an idle
//! connection holds no buffer.

use std::io::{self, IoSliceMut};
use std::os::fd::AsFd;

use ninep::{HEADER_LEN, frame_len};

use crate::buffers::{FrameBuffer, PooledBuffer};

/// The scratch buffer of a thread that reads sockets.
pub(crate) const SCRATCH: usize = 128 << 10;
/// Maximum that is read past the end of a large message: it will be moved.
const BEHIND_LARGE: usize = 4 << 10;
const LARGE: usize = 16 << 10;
/// The most of a large message that one call takes: copying a mebibyte keeps every other
/// connection waiting for 250 µs.
const AT_ONCE: usize = 256 << 10;
const TREAD: u8 = 116;
const TREADDIR: u8 = 40;
const TLIST: u8 = 210;

/// Received bytes of a connection that are incomplete or may not be taken in yet.
#[derive(Default)]
pub(crate) struct ReceiveBuffer {
    buffered: Vec<u8>,
    partial: Option<Partial>,
    expect_large: bool,
}

struct Partial {
    buffer: PooledBuffer,
    received: usize,
}

/// One reading of a socket.
pub(crate) struct Round<'a> {
    input: &'a mut ReceiveBuffer,
    scratch: &'a mut [u8],
    start: usize,
    end: usize,
}

/// One whole message of a client.
pub(crate) enum IncomingMessage<'a> {
    /// Among others in the scratch buffer.
    Borrowed(&'a [u8]),
    /// In its own buffer.
    Owned(PooledBuffer),
    /// Kept from an earlier reading.
    Buffered(FrameBuffer),
}

/// A message whose size field is below the header's or above what was agreed.
#[derive(Debug, thiserror::Error)]
#[error("a message of {size} bytes is not between {HEADER_LEN} and {limit}")]
pub(crate) struct BadSize {
    size: u32,
    limit: u32,
}

impl IncomingMessage<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            IncomingMessage::Borrowed(bytes) => bytes,
            IncomingMessage::Owned(buffer) => buffer.bytes(),
            IncomingMessage::Buffered(frame) => frame.bytes(),
        }
    }

    /// Bytes that it and its reply take at most, of a session with such messages. What asks for an
    /// amount of data has it at its end.
    pub(crate) fn memory(&self, msize: u32) -> usize {
        let bytes = self.bytes();
        let asked = match (ninep::frame_kind(bytes), bytes.last_chunk()) {
            (Some(TREAD | TREADDIR | TLIST), Some(count)) => u32::from_le_bytes(*count).min(msize),
            _ => 0,
        };
        bytes.len() + asked as usize
    }

    /// Keeps the message beyond the reading.
    pub(crate) fn into_frame(self) -> FrameBuffer {
        match self {
            IncomingMessage::Borrowed(bytes) => FrameBuffer::copy(bytes),
            IncomingMessage::Owned(buffer) => FrameBuffer::Large(buffer),
            IncomingMessage::Buffered(frame) => frame,
        }
    }
}

impl ReceiveBuffer {
    /// Bytes kept between calls.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.buffered.capacity() + self.partial.as_ref().map_or(0, |p| p.buffer.len())
    }

    /// Begins a reading with what was held back.
    pub(crate) fn round<'a>(&'a mut self, scratch: &'a mut [u8]) -> Round<'a> {
        let end = self.buffered.len();
        scratch[..end].copy_from_slice(&self.buffered);
        self.buffered = Vec::new();
        Round { input: self, scratch, start: 0, end }
    }
}

impl Round<'_> {
    /// Reads once, without waiting. `Ok(None)`: nothing there; `Ok(Some(0))`: the peer has closed.
    pub(crate) fn fill(&mut self, socket: impl AsFd) -> io::Result<Option<usize>> {
        let window = if self.input.expect_large { BEHIND_LARGE } else { SCRATCH };
        let window = (self.end + window).min(self.scratch.len());
        let behind = &mut self.scratch[self.end..window];
        let (read, rest) = match &mut self.input.partial {
            None => (rustix::io::readv(socket, &mut [IoSliceMut::new(behind)]), 0),
            Some(partial) => {
                let rest = &mut partial.buffer.bytes_mut()[partial.received..];
                let len = rest.len().min(AT_ONCE);
                let behind = if len < rest.len() { &mut [] } else { behind };
                let mut both = [IoSliceMut::new(&mut rest[..len]), IoSliceMut::new(behind)];
                (rustix::io::readv(socket, &mut both), len)
            }
        };
        let count = match read {
            Ok(count) => count,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if let Some(partial) = &mut self.input.partial {
            partial.received += count.min(rest);
        }
        self.end += count.saturating_sub(rest);
        Ok(Some(count))
    }

    /// Bytes of a message that is not whole yet.
    pub(crate) fn pending(&self) -> usize {
        self.input.partial.as_ref().map_or(0, |partial| partial.buffer.len())
    }

    /// The next whole message of at most `limit` bytes.
    pub(crate) fn next(&mut self, limit: u32) -> Result<Option<IncomingMessage<'_>>, BadSize> {
        if let Some(partial) = self.input.partial.take_if(|p| p.received == p.buffer.len()) {
            return Ok(Some(IncomingMessage::Owned(partial.buffer)));
        }
        let bytes = &self.scratch[self.start..self.end];
        let Some(size) = frame_len(bytes) else { return Ok(None) };
        if (size as usize) < HEADER_LEN || size > limit {
            return Err(BadSize { size, limit });
        }
        let len = size as usize;
        self.input.expect_large = len >= LARGE;
        if bytes.len() >= len {
            self.start += len;
            return Ok(Some(IncomingMessage::Borrowed(
                &self.scratch[self.start - len..self.start],
            )));
        }
        let mut buffer = PooledBuffer::for_message(len);
        buffer.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        self.input.partial = Some(Partial { buffer, received: bytes.len() });
        self.start = self.end;
        Ok(None)
    }
}

impl Drop for Round<'_> {
    /// Bytes that were not taken wait for the next reading.
    fn drop(&mut self) {
        if self.start < self.end {
            self.input.buffered = self.scratch[self.start..self.end].to_vec();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    fn message(len: usize, fill: u8) -> Vec<u8> {
        let mut message = vec![fill; len];
        message[..4].copy_from_slice(&(len as u32).to_le_bytes());
        message
    }

    /// Sends `bytes` in pieces of `piece` and collects the messages that come out.
    fn pass(bytes: &[u8], piece: usize) -> Vec<Vec<u8>> {
        let (mut from, to) = UnixStream::pair().unwrap();
        to.set_nonblocking(true).unwrap();
        let (mut input, mut scratch, mut got) =
            (ReceiveBuffer::default(), vec![0; SCRATCH * 2], vec![]);
        for part in bytes.chunks(piece) {
            from.write_all(part).unwrap();
            loop {
                let mut round = input.round(&mut scratch);
                let read = round.fill(&to).unwrap();
                while let Some(incoming) = round.next(1 << 20).unwrap() {
                    got.push(incoming.bytes().to_vec());
                }
                if read.is_none() {
                    break;
                }
            }
        }
        assert_eq!(input.bytes(), 0);
        got
    }

    #[test]
    fn messages_come_out_whole_however_they_are_cut() {
        let all: Vec<_> = [7, 30, 40_000, 8, 100_000, 19, 65_559]
            .iter()
            .enumerate()
            .map(|(i, len)| message(*len, i as u8))
            .collect();
        for piece in [1_000, 4_096, 65_536, 1 << 20] {
            assert_eq!(pass(&all.concat(), piece), all);
        }
        assert_eq!(pass(&all[..2].concat(), 1), all[..2]);
    }

    #[test]
    fn a_size_beyond_the_limit_is_named_before_memory_is_taken() {
        let mut input =
            ReceiveBuffer { buffered: message(8, 0)[..4].to_vec(), ..ReceiveBuffer::default() };
        input.buffered[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut scratch = vec![0; SCRATCH];
        let mut round = input.round(&mut scratch);
        let error = round.next(8192).err().unwrap().to_string();
        assert_eq!(error, "a message of 4294967295 bytes is not between 7 and 8192");
    }
}
