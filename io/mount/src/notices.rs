//! Notices about pages and names, sent from threads that answer no requests.
//!
//! ```text
//!   drop_pages(inode, then) ───► queue ─► a thread: notice ─ waits for pages under read,
//!   expire_names(names, each) ─►           │                 has dirty ones written (requests of the kernel)
//!                                          └─► then, each
//! ```
//!
//! Such a notice takes the locks of pages and directories, and requests that are still to be
//! answered hold them. So it must not be sent by a thread of the session (see `fuse`'s notify.rs), and
//! one that waits for its proxy must not keep others from theirs.
//!
//! The queue is bounded: by the kernel's requests, each of which waits for one notice at most, and by the
//! names that it believes, each of which is here once.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use fuse::{InodeId, Notifier};

use crate::nodes::DoubtedName;
use crate::session::lock;

/// Queue of notices to the kernel. Dropping it lets its threads end.
#[derive(Debug)]
pub(crate) struct Notices(Arc<NoticeQueue>);

#[derive(Debug, Default)]
struct NoticeQueue {
    state: Mutex<NoticeState>,
    added: Condvar,
}

#[derive(Default)]
struct NoticeState {
    waiting: VecDeque<Notice>,
    threads: usize,
    idle: usize,
    ended: bool,
}

/// A notice, with its callback.
type Notice = Box<dyn FnOnce() + Send>;

impl Notices {
    /// Makes a queue without threads: the first notice starts one.
    pub(crate) fn new() -> Notices {
        Notices(Arc::default())
    }

    /// Has the kernel drop what it has of a file, dirty pages written first, and then goes on.
    pub(crate) fn drop_pages(
        &self,
        notifier: &Notifier,
        inode: InodeId,
        then: impl FnOnce() + Send + 'static,
    ) {
        let notifier = notifier.clone();
        self.send(Box::new(move || {
            // What the kernel does not know it has no pages of.
            if let Err(error) = notifier.inval_inode(inode, 0, 0) {
                tracing::debug!(inode = inode.0, %error, "cannot drop cached pages");
            }
            then();
        }));
    }

    /// Sends notices from a thread that may wait.
    pub(crate) fn run(&self, notice: impl FnOnce() + Send + 'static) {
        self.send(Box::new(notice));
    }

    /// Makes the kernel look up names again before it uses them; `each` is called with every name
    /// that the kernel no longer caches.
    pub(crate) fn expire_names(
        &self,
        notifier: &Notifier,
        names: Vec<DoubtedName>,
        each: impl Fn(&DoubtedName) + Send + 'static,
    ) {
        let notifier = notifier.clone();
        self.send(Box::new(move || {
            for name in &names {
                // What it does not know it does not believe.
                let _ = notifier.expire_entry(name.directory, &name.name);
                each(name);
            }
        }));
    }

    fn send(&self, notice: Notice) {
        let mut state = lock(&self.0.state);
        state.waiting.push_back(notice);
        if state.idle >= state.waiting.len() || state.threads == THREADS_MAX {
            drop(state);
            return self.0.added.notify_one();
        }
        state.threads += 1;
        drop(state);
        let queue = self.0.clone();
        let begun = thread::Builder::new()
            .name("notices".to_owned())
            .spawn(api::critical(move || queue.serve()));
        if let Err(error) = begun {
            tracing::warn!(%error, "cannot start another notification thread");
            let mut state = lock(&self.0.state);
            state.threads -= 1;
            // The threads that are there come to it; if there is none, nobody ever does.
            let left = if state.threads == 0 {
                std::mem::take(&mut state.waiting)
            } else {
                VecDeque::new()
            };
            drop(state);
            left.into_iter().for_each(|notice| notice());
        }
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        lock(&self.0.state).ended = true;
        self.0.added.notify_all();
    }
}

impl NoticeQueue {
    fn serve(&self) {
        loop {
            let mut state = lock(&self.state);
            let notice = loop {
                match state.waiting.pop_front() {
                    Some(notice) => break notice,
                    None if state.ended => return,
                    None => {}
                }
                state.idle += 1;
                state = self.added.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
                state.idle -= 1;
            };
            drop(state);
            notice();
        }
    }
}

impl fmt::Debug for NoticeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "State({} wait, {} threads)", self.waiting.len(), self.threads)
    }
}

/// Enough for one to wait for each proxy of many; each is a thread only once it was needed.
const THREADS_MAX: usize = 16;
