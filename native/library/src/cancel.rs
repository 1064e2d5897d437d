//! The calls of a handle that are under way, so that another thread can cancel them.
//!
//! ```text
//!   call begins ─► eventfd in the list ─► each wait polls it ─► call ends, out of the list
//!                        ▲ sluice_cancel writes to all of them
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::error::{CallError, CallErrorCode};

/// The calls under way of one handle.
#[derive(Debug, Default)]
pub(crate) struct CallsUnderWay(Mutex<Vec<Arc<OwnedFd>>>);

/// One call; it is out of the list when this is dropped.
#[derive(Debug)]
pub(crate) struct CancellableCall<'a> {
    calls: &'a CallsUnderWay,
    event: Arc<OwnedFd>,
}

impl CallsUnderWay {
    pub(crate) fn begin(&self) -> Result<CancellableCall<'_>, CallError> {
        let event =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| {
                CallError::new(CallErrorCode::Internal, format!("cannot make an eventfd: {error}"))
            })?;
        let event = Arc::new(event);
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if calls.len() >= CALLS_MAX {
            let text = format!("{CALLS_MAX} calls of this handle are under way, which is the most");
            return Err(CallError::argument(text));
        }
        calls.push(event.clone());
        Ok(CancellableCall { calls: self, event })
    }

    /// Cancels all calls that are under way, and returns how many.
    pub(crate) fn cancel(&self) -> usize {
        let calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for event in calls.iter() {
            // It fails only if it is readable already.
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
        calls.len()
    }
}

impl AsFd for CancellableCall<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Drop for CancellableCall<'_> {
    fn drop(&mut self) {
        let mut calls = self.calls.0.lock().unwrap_or_else(PoisonError::into_inner);
        calls.retain(|event| !Arc::ptr_eq(event, &self.event));
    }
}

/// The most calls of one handle at once: each has two descriptors.
const CALLS_MAX: usize = 4_096;
