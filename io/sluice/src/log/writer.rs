//! Writes lines to stderr with a bounded wait; lines that cannot be written are counted.
//!
//! A pipe whose reader is stuck would block the thread that logs, and the requests that the thread
//! serves. So stderr is polled before each write, and after the first lost line without a timeout
//! until it can be written again.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// The writer to stderr that never fails.
pub(super) struct LogWriter;

impl io::Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes whole lines to stderr, or counts them as lost.
pub(super) fn write(lines: &[u8]) {
    STDERR.lock().unwrap_or_else(PoisonError::into_inner).write(rustix::stdio::stderr(), lines);
}

static STDERR: Mutex<LostLines> = Mutex::new(LostLines { count: 0, why: None, cut: false });

/// The count of lines that could not be written.
#[derive(Debug, Default)]
struct LostLines {
    count: u64,
    why: Option<Errno>,
    /// The last lost line was written in part.
    cut: bool,
}

impl LostLines {
    fn write(&mut self, to: BorrowedFd<'_>, lines: &[u8]) {
        let told = match self.why {
            None => Ok(()),
            Some(why) => {
                let end = if self.cut { "\n" } else { "" };
                let note = format!("{end}sluice: {} log lines lost: {why}\n", self.count);
                put(to, note.as_bytes(), AT_ONCE).inspect(|()| *self = LostLines::default())
            }
        };
        if let Err((done, why)) = told.and_then(|()| put(to, lines, PATIENCE)) {
            let cut = self.cut || done > 0;
            *self = LostLines { count: self.count + 1, why: Some(why), cut };
        }
    }
}

/// Writes all bytes, or returns how many were written and the error.
fn put(to: BorrowedFd<'_>, bytes: &[u8], patience: Timespec) -> Result<(), (usize, Errno)> {
    let mut at = 0;
    while at < bytes.len() {
        let mut ready = [PollFd::new(&to, PollFlags::OUT)];
        if matches!(poll(&mut ready, Some(&patience)), Ok(0)) {
            return Err((at, Errno::AGAIN));
        }
        let end = bytes.len().min(at + AT_A_TIME);
        match rustix::io::write(to, &bytes[at..end]) {
            Ok(0) => return Err((at, Errno::IO)),
            Ok(count) => at += count,
            Err(Errno::INTR) => {}
            Err(why) => return Err((at, why)),
        }
    }
    Ok(())
}

/// Bytes that a writable pipe accepts without blocking: PIPE_BUF.
const AT_A_TIME: usize = 4096;
/// Time that a slow reader gets before a line is lost.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn a_full_disk_costs_the_line_and_nothing_else() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut lost = LostLines::default();
        (0..3).for_each(|_| lost.write(full.as_fd(), b"line\n"));
        assert_eq!((lost.count, lost.why, lost.cut), (3, Some(Errno::NOSPC), false));
        let (mut reader, writer) = std::io::pipe().unwrap();
        lost.write(writer.as_fd(), b"next\n");
        assert_eq!((lost.count, lost.why), (0, None));
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert!(text.contains(" 3 ") && text.ends_with("\nnext\n"), "{text}");
    }

    #[test]
    fn a_pipe_that_nobody_reads_holds_nobody() {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut lost = LostLines::default();
        // More than any pipe can buffer; a blocking writer would never return.
        (0..1000).for_each(|_| lost.write(writer.as_fd(), &[b'x'; 5000]));
        assert_eq!(lost.why, Some(Errno::AGAIN));
        drop(reader);
        lost.write(writer.as_fd(), b"line\n");
        assert_eq!(lost.why, Some(Errno::PIPE));
    }
}
