//! Pipes that carry payload from a file to a socket without a copy in user space.
//!
//! A read fills a pipe while it holds its slots. The pipe empties into the socket after they are
//! released, so a slow reader holds a pipe and nothing else. The number of pipes is bounded; a read
//! without a pipe copies.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::pipe::{PipeFlags, SpliceFlags};

/// Bytes that a pipe holds: the most that any process may ask for by default.
const PIPE_BYTES: usize = 1 << 20;
/// The least that makes a pipe of use. Beyond the user's share (fs.pipe-user-pages-soft) the kernel
/// makes pipes of two pages, through which a read goes to the backend in pieces.
const PIPE_BYTES_MIN: usize = 64 << 10;

static IDLE: Mutex<Vec<Pipe>> = Mutex::new(Vec::new());
static MADE: AtomicUsize = AtomicUsize::new(0);
/// The kernel has no more pages for pipes of this user: what is there is used again.
static REFUSED: AtomicBool = AtomicBool::new(false);

struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    bytes: usize,
}

/// A pipe with payload in it; an empty one goes back to be used again.
pub(crate) struct PipeLoad {
    pipe: Option<Pipe>,
    left: usize,
}

impl PipeLoad {
    /// Moves up to `count` bytes from `offset` of a file into a pipe. `None` when
    /// `pipes_max` pipes are in use or none can be had. Waits for the backend if it must.
    pub(crate) fn fill(
        file: impl AsFd,
        mut offset: u64,
        count: usize,
        pipes_max: usize,
    ) -> io::Result<Option<PipeLoad>> {
        let Some(pipe) = acquire(pipes_max) else { return Ok(None) };
        let mut load = PipeLoad { pipe: Some(pipe), left: 0 };
        while load.left < count.min(load.room()) {
            let want = count - load.left;
            let pipe = load.pipe.as_ref().expect("a load has its pipe until it is dropped");
            // A pipe counts pages: an unaligned read fills it before its bytes are used up.
            let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
            match rustix::pipe::splice(&file, Some(&mut offset), &pipe.write, None, want, flags) {
                Ok(0) | Err(rustix::io::Errno::AGAIN) => break,
                Ok(moved) => load.left += moved,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) if load.left == 0 => return Err(error.into()),
                Err(_) => break,
            }
        }
        Ok(Some(load))
    }

    /// Bytes still in the pipe.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Moves bytes to a socket that does not wait; `Ok(0)` when the socket is full.
    pub(crate) fn drain(&mut self, socket: impl AsFd, more: bool) -> io::Result<usize> {
        let pipe = self.pipe.as_ref().expect("a load has its pipe until it is dropped");
        let mut flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        if more {
            flags |= SpliceFlags::MORE;
        }
        match rustix::pipe::splice(&pipe.read, None, socket, None, self.left, flags) {
            Ok(moved) => {
                self.left -= moved;
                Ok(moved)
            }
            Err(rustix::io::Errno::AGAIN) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    fn room(&self) -> usize {
        self.pipe.as_ref().map_or(0, |pipe| pipe.bytes)
    }
}

impl Drop for PipeLoad {
    fn drop(&mut self) {
        match self.pipe.take() {
            Some(pipe) if self.left == 0 => IDLE.lock().expect("not poisoned").push(pipe),
            // What is left in it belongs to a connection that is gone.
            Some(_) => drop(MADE.fetch_sub(1, Ordering::Relaxed)),
            None => {}
        }
    }
}

fn acquire(pipes_max: usize) -> Option<Pipe> {
    if let Some(pipe) = IDLE.lock().expect("not poisoned").pop() {
        return Some(pipe);
    }
    if REFUSED.load(Ordering::Relaxed) {
        return None;
    }
    if MADE.fetch_add(1, Ordering::Relaxed) >= pipes_max {
        MADE.fetch_sub(1, Ordering::Relaxed);
        return None;
    }
    let made = make();
    if made.is_none() {
        MADE.fetch_sub(1, Ordering::Relaxed);
    }
    made
}

fn make() -> Option<Pipe> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
    let bytes = rustix::pipe::fcntl_setpipe_size(&write, PIPE_BYTES)
        .or_else(|_| rustix::pipe::fcntl_getpipe_size(&write))
        .ok()?;
    if bytes < PIPE_BYTES_MIN {
        REFUSED.store(true, Ordering::Relaxed);
        return None;
    }
    Some(Pipe { read, write, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn payload_passes_through_a_pipe_unchanged_and_the_pipe_is_used_again() {
        let payload: Vec<u8> = (0..300_001u32).map(|i| (i % 251) as u8).collect();
        let path = std::env::temp_dir().join(format!("sluice-pipe-{}", std::process::id()));
        std::fs::File::create(&path).unwrap().write_all(&payload).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for _ in 0..3 {
            let mut load = PipeLoad::fill(&file, 1, 400_000, 1).unwrap().unwrap();
            assert_eq!(load.left(), 300_000);
            assert!(PipeLoad::fill(&file, 1, 1, 1).unwrap().is_none());
            let (mut to, from) = std::os::unix::net::UnixStream::pair().unwrap();
            let reader = std::thread::spawn(move || {
                let mut got = Vec::new();
                to.read_to_end(&mut got).unwrap();
                got
            });
            while load.left() > 0 {
                load.drain(&from, false).unwrap();
            }
            drop(from);
            assert_eq!(reader.join().unwrap(), payload[1..]);
        }
    }
}
