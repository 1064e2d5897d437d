//! Sessions of 9P2000.L: what a client has open, until nothing of it is executed any more.
//!
//! ```text
//!   connection ─ Form::Plain ─► PlainSession: fids ◄─ Form::Plain ─ its requests and replies
//!        │ gone, or a Tversion: lets go of it           │ queued: taken back
//!        ▼                                              ▼ executing: ends
//!   the last of them lets go ─► EndedSessions ─► Server::leave: locks given back, files closed
//! ```
//!
//! A write that hangs in the backend goes on after its client is gone. Were the locks given back
//! meanwhile, it could overwrite what the next holder has written.
//!
//! Invariant: no fid of a session leaves while a request of it is executed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

use crate::fids::{FidTable, OpenFid};
use crate::server::Server;

/// One session of 9P2000.L; see the file's essay.
pub(crate) struct PlainSession {
    pub(crate) fids: FidTable,
    server: Weak<Server>,
}

/// The files of sessions that are over, until they leave.
#[derive(Default)]
pub(crate) struct EndedSessions(Mutex<VecDeque<Vec<Arc<OpenFid>>>>);

impl PlainSession {
    pub(crate) fn new(server: Weak<Server>) -> PlainSession {
        PlainSession { fids: FidTable::default(), server }
    }

    /// Ends the session: its client is gone or begins another. From now on its locks cannot be
    /// changed, until they are released.
    pub(crate) fn end(&self) {
        self.fids.lock().expect("not poisoned").values().for_each(|fid| fid.end_locks());
    }
}

impl Drop for PlainSession {
    /// Leaving may take its time, and the last owner may hold a lock.
    fn drop(&mut self) {
        let fids = std::mem::take(&mut *self.fids.lock().expect("not poisoned"));
        if let (false, Some(server)) = (fids.is_empty(), self.server.upgrade()) {
            server.ended.push(fids.into_values().collect());
            server.poke_leader();
        }
    }
}

impl EndedSessions {
    fn push(&self, files: Vec<Arc<OpenFid>>) {
        self.0.lock().expect("not poisoned").push_back(files);
    }

    /// The files of one of them, to [leave](Server::close_deferred).
    pub(crate) fn next(&self) -> Option<Vec<Arc<OpenFid>>> {
        self.0.lock().expect("not poisoned").pop_front()
    }

    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        !self.0.lock().expect("not poisoned").is_empty()
    }
}
