//! Memory for messages: small ones inline, large ones in buffers that are kept and used again.
//!
//! A fresh mebibyte costs 256 page faults, more than the copy into it, so large
//! buffers go back to a pool of bounded size. Every buffer is initialised once
//! and stays so. The payload of a write lies aligned to a page, so that it can
//! go to a file opened with O_DIRECT as it is.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const INLINE: usize = 56;
const POOLED_MIN: usize = 64 << 10;
const POOL_BYTES_MAX: usize = 64 << 20;
const PAGE: usize = 4096;

/// One whole message as it came from the peer.
pub(crate) enum FrameBuffer {
    /// A short message of at most 56 bytes, kept without an allocation.
    Small { bytes: [u8; INLINE], len: u8 },
    /// Long, most often a write with its payload.
    Large(PooledBuffer),
}

/// Initialised memory of a stated length.
#[derive(Default)]
pub(crate) struct PooledBuffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl FrameBuffer {
    /// A buffer without a message.
    pub(crate) const EMPTY: FrameBuffer = FrameBuffer::Small { bytes: [0; INLINE], len: 0 };

    /// Keeps a copy of a message.
    pub(crate) fn copy(message: &[u8]) -> FrameBuffer {
        if message.len() <= INLINE {
            let mut bytes = [0; INLINE];
            bytes[..message.len()].copy_from_slice(message);
            return FrameBuffer::Small { bytes, len: message.len() as u8 };
        }
        let mut buffer = PooledBuffer::for_message(message.len());
        buffer.bytes_mut().copy_from_slice(message);
        FrameBuffer::Large(buffer)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            FrameBuffer::Small { bytes, len } => &bytes[..*len as usize],
            FrameBuffer::Large(buffer) => buffer.bytes(),
        }
    }
}

impl PooledBuffer {
    /// Memory of `len` bytes, whatever is in it.
    pub(crate) fn new(len: usize) -> PooledBuffer {
        PooledBuffer { memory: acquire(len), start: 0, len }
    }

    /// Memory for a message of `len` bytes, placed so that a write's payload is page-aligned.
    pub(crate) fn for_message(len: usize) -> PooledBuffer {
        let aligned = len >= PAGE + ninep::WRITE_HEADER_LEN;
        let memory = acquire(len + if aligned { PAGE } else { 0 });
        let start = if aligned {
            let payload = memory.as_ptr() as usize + ninep::WRITE_HEADER_LEN;
            payload.next_multiple_of(PAGE) - payload
        } else {
            0
        };
        PooledBuffer { memory, start, len }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        recycle(std::mem::take(&mut self.memory));
    }
}

static POOL: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
static POOLED: AtomicUsize = AtomicUsize::new(0);

/// At least `len` initialised bytes.
fn acquire(len: usize) -> Vec<u8> {
    if len < POOLED_MIN {
        return vec![0; len];
    }
    let size = len.next_multiple_of(POOLED_MIN);
    {
        let mut pool = POOL.lock().expect("no code panics while holding the pool");
        // The newest first: its memory is still in the processor's cache.
        if let Some(at) = pool.iter().rposition(|m| m.len() == size) {
            POOLED.fetch_sub(size, Ordering::Relaxed);
            return pool.swap_remove(at);
        }
    }
    vec![0; size]
}

fn recycle(memory: Vec<u8>) {
    let size = memory.len();
    if size < POOLED_MIN {
        return;
    }
    let mut pool = POOL.lock().expect("no code panics while holding the pool");
    if POOLED.load(Ordering::Relaxed) + size <= POOL_BYTES_MAX {
        POOLED.fetch_add(size, Ordering::Relaxed);
        pool.push(memory);
    }
}

/// Returns unused buffers to the allocator.
pub(crate) fn release() {
    let kept = std::mem::take(&mut *POOL.lock().expect("no code panics while holding the pool"));
    POOLED.fetch_sub(kept.iter().map(Vec::len).sum(), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_of_a_write_lies_on_a_page() {
        for payload in [4096, 65536, 1 << 20] {
            let buffer = PooledBuffer::for_message(payload + ninep::WRITE_HEADER_LEN);
            let at = buffer.bytes()[ninep::WRITE_HEADER_LEN..].as_ptr() as usize;
            assert_eq!(at % PAGE, 0);
            assert_eq!(buffer.bytes().len(), payload + ninep::WRITE_HEADER_LEN);
        }
    }

    #[test]
    fn frames_keep_every_byte_at_every_length() {
        for len in [7, INLINE, INLINE + 1, 5000, 70_000] {
            let message: Vec<u8> = (0..len).map(|i| i as u8).collect();
            assert_eq!(FrameBuffer::copy(&message).bytes(), message);
        }
    }
}
