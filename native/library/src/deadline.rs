//! The time limit of a call, and waiting within it.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::cancel::CancellableCall;
use crate::error::{CallError, CallErrorCode};

/// When a call must have ended, and what cancels it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline<'a> {
    at: Instant,
    cancelled: &'a CancellableCall<'a>,
}

impl<'a> Deadline<'a> {
    /// A limit from now on, in milliseconds: 1 to 2^32 − 1.
    pub(crate) fn new(limit_ms: u32, cancelled: &'a CancellableCall<'a>) -> Deadline<'a> {
        Deadline { at: Instant::now() + Duration::from_millis(limit_ms.into()), cancelled }
    }

    /// The same, but no later than this span from now on.
    pub(crate) fn within(self, span: Duration) -> Deadline<'a> {
        Deadline { at: self.at.min(Instant::now() + span), ..self }
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Waits until `fd` is ready.
    pub(crate) fn wait_for(&self, fd: BorrowedFd<'_>, flags: PollFlags) -> Result<(), CallError> {
        self.poll(Some((fd, flags)))
    }

    /// Waits for a span, or until the time limit is over, which is an error.
    pub(crate) fn pause(&self, span: Duration) -> Result<(), CallError> {
        match self.within(span).poll(None) {
            Err(error) if error.code == CallErrorCode::TimedOut && !self.is_over() => Ok(()),
            outcome => outcome,
        }
    }

    fn poll(&self, wanted: Option<(BorrowedFd<'_>, PollFlags)>) -> Result<(), CallError> {
        loop {
            let mut fds = vec![PollFd::from_borrowed_fd(self.cancelled.as_fd(), PollFlags::IN)];
            fds.extend(wanted.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)));
            let remaining = self.remaining();
            let limit = Timespec::try_from(remaining).map_err(CallError::argument)?;
            match poll(&mut fds, Some(&limit)) {
                Ok(_) if !fds[0].revents().is_empty() => {
                    return Err(CallError::new(CallErrorCode::Cancelled, "the call was cancelled"));
                }
                // Also if it is ready: a peer that always has more must not outlast the limit.
                Ok(_) if remaining.is_zero() => {
                    let text = "the time limit of the call has passed";
                    return Err(CallError::new(CallErrorCode::TimedOut, text));
                }
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => {
                    let text = format!("poll failed: {error}");
                    return Err(CallError::new(CallErrorCode::Internal, text));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cancel::CallsUnderWay;

    #[test]
    fn nothing_is_ready_after_the_time_limit_and_a_cancelled_call_is_cancelled() {
        let calls = CallsUnderWay::default();
        let call = calls.begin().unwrap();
        let (ready, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let deadline = Deadline::new(u32::MAX, &call);
        deadline.wait_for(ready.as_fd(), PollFlags::OUT).unwrap();
        let over = deadline.within(Duration::ZERO);
        let error = over.wait_for(ready.as_fd(), PollFlags::OUT).unwrap_err();
        assert_eq!(error.code, CallErrorCode::TimedOut);
        calls.cancel();
        for at in [deadline, over] {
            let error = at.wait_for(ready.as_fd(), PollFlags::OUT).unwrap_err();
            assert_eq!(error.code, CallErrorCode::Cancelled);
        }
    }
}
