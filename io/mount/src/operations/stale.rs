//! Replies for files and directories that do not exist any more.
//!
//! ```text
//!   the proxy says ESTALE ─┬─ for the first time ─► ESTALE: the kernel walks again by every name
//!                          └─ to a thread that did ─► ENOENT, as on a local disk
//! ```
//!
//! A thread that returns (`crate::retries`) was not led here by a name that was only cached. It has
//! the file open, works in it, or has found it by a name that was taken from it since. For a file
//! that may mean that another was put in its place, and that is not reported as `ENOENT`.

use fuse::{Errno, FuseRequest};

use crate::filesystem::MountFs;
use crate::jobs::makes_a_name;
use crate::nodes::MountNode;
use crate::retries::RetriedCall;

/// A request about names in directories, which may be gone.
#[derive(Clone, Copy)]
pub(super) struct NameWalk {
    thread: u32,
    /// The thread has walked again, in this call.
    retried: Option<RetriedCall>,
}

impl NameWalk {
    /// A request that has just come.
    pub(super) fn new(
        export: &MountFs,
        request: &FuseRequest,
        directories: &[&MountNode],
    ) -> NameWalk {
        let thread = request.thread;
        // All are asked: they count as gone through.
        let call = |node: &MountNode| export.retries.call_through(thread, node.id);
        NameWalk {
            thread,
            retried: directories.iter().fold(None, |anew, node| call(node).or(anew)),
        }
    }

    /// Returns the error if one of the directories is gone.
    pub(super) fn stale_error(&self, export: &MountFs, directories: &[&MountNode]) -> Errno {
        for directory in directories {
            expect_retry(
                export,
                self.thread,
                directory,
                self.retried.unwrap_or(RetriedCall::Other),
            );
            export.expire_names(directory);
        }
        if self.retried.is_some() { Errno::NOENT } else { Errno::STALE }
    }

    /// Returns the error for a look-up whose directory is gone. A look-up before the creation of a
    /// name gets `ENOENT`: the kernel then walks again for the creation.
    pub(super) fn lookup_error(&self, export: &MountFs, directory: &MountNode) -> Errno {
        match self.retried.is_none() && makes_a_name(self.thread) {
            true => Errno::NOENT,
            false => self.stale_error(export, &[directory]),
        }
    }

    /// A name has led to this file.
    pub(super) fn found(&self, export: &MountFs, node: &MountNode) {
        if let Some(call) = self.retried {
            export.retries.found(self.thread, node.id, call);
        }
    }

    /// Notes that the name does not exist, and that the call ends with that.
    pub(super) fn note_not_found(&self, export: &MountFs) {
        if self.retried == Some(RetriedCall::OfFile) {
            export.retries.end_call(self.thread);
        }
    }
}

/// A request about a file that the kernel may have come to by a name.
#[derive(Clone, Copy)]
pub(super) struct FileWalk {
    thread: u32,
    call: RetriedCall,
    /// The thread got `ESTALE` and was led here by a name since: this file is meant, wherever it
    /// is.
    pub(super) found: bool,
    /// It is a directory, and the thread got `ESTALE` on its way here.
    is_stale_directory: bool,
}

impl FileWalk {
    /// A request that has just come, to open or change a file.
    pub(super) fn to_use(export: &MountFs, request: &FuseRequest, node: &MountNode) -> FileWalk {
        let found = export.retries.end_if_found(request.thread, node.id);
        let gone_directory = found && node.is_directory();
        FileWalk {
            thread: request.thread,
            call: RetriedCall::OfFile,
            found,
            is_stale_directory: gone_directory,
        }
    }

    /// A request that has just come, to look at a file.
    pub(super) fn for_lookup(
        export: &MountFs,
        request: &FuseRequest,
        node: &MountNode,
    ) -> FileWalk {
        let expected = export.retries.call_at(request.thread, node.id).is_some();
        let gone_directory = expected && node.is_directory();
        FileWalk {
            thread: request.thread,
            call: RetriedCall::Other,
            found: false,
            is_stale_directory: gone_directory,
        }
    }

    /// Returns the error if the file is gone or does not have the cached names. A directory that is
    /// gone was removed. A file may have been replaced, its name never gone: that is `ESTALE`,
    /// however often.
    pub(super) fn stale_error(self, export: &MountFs, node: &MountNode) -> Errno {
        expect_retry(export, self.thread, node, self.call);
        // By a descriptor the kernel comes to it again.
        export.retries.found(self.thread, node.id, self.call);
        export.expire_names(node);
        if self.is_stale_directory { Errno::NOENT } else { Errno::STALE }
    }
}

/// Notes that the kernel will walk again to where it was, for this thread.
fn expect_retry(export: &MountFs, thread: u32, node: &MountNode, call: RetriedCall) {
    for inode in export.nodes.ancestors_of(node) {
        export.retries.expect(thread, inode, call);
    }
}
