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
    anew: Option<RetriedCall>,
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
        NameWalk { thread, anew: directories.iter().fold(None, |anew, node| call(node).or(anew)) }
    }

    /// Returns the error if one of the directories is gone.
    pub(super) fn gone(&self, export: &MountFs, directories: &[&MountNode]) -> Errno {
        for directory in directories {
            expect_again(export, self.thread, directory, self.anew.unwrap_or(RetriedCall::Other));
            export.doubt_names(directory);
        }
        if self.anew.is_some() { Errno::NOENT } else { Errno::STALE }
    }

    /// Returns the error for a look-up whose directory is gone. A look-up before the creation of a
    /// name gets `ENOENT`: the kernel then walks again for the creation.
    pub(super) fn gone_at_look_up(&self, export: &MountFs, directory: &MountNode) -> Errno {
        match self.anew.is_none() && makes_a_name(self.thread) {
            true => Errno::NOENT,
            false => self.gone(export, &[directory]),
        }
    }

    /// A name has led to this file.
    pub(super) fn found(&self, export: &MountFs, node: &MountNode) {
        if let Some(call) = self.anew {
            export.retries.found(self.thread, node.id, call);
        }
    }

    /// Notes that the name does not exist, and that the call ends with that.
    pub(super) fn found_nothing(&self, export: &MountFs) {
        if self.anew == Some(RetriedCall::OfFile) {
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
    gone_directory: bool,
}

impl FileWalk {
    /// A request that has just come, to open or change a file.
    pub(super) fn to_use(export: &MountFs, request: &FuseRequest, node: &MountNode) -> FileWalk {
        let found = export.retries.take_found(request.thread, node.id);
        let gone_directory = found && node.is_directory();
        FileWalk { thread: request.thread, call: RetriedCall::OfFile, found, gone_directory }
    }

    /// A request that has just come, to look at a file.
    pub(super) fn to_look(export: &MountFs, request: &FuseRequest, node: &MountNode) -> FileWalk {
        let expected = export.retries.call_at(request.thread, node.id).is_some();
        let gone_directory = expected && node.is_directory();
        FileWalk { thread: request.thread, call: RetriedCall::Other, found: false, gone_directory }
    }

    /// Returns the error if the file is gone or does not have the cached names. A directory that is
    /// gone was removed. A file may have been replaced, its name never gone: that is `ESTALE`,
    /// however often.
    pub(super) fn gone(self, export: &MountFs, node: &MountNode) -> Errno {
        expect_again(export, self.thread, node, self.call);
        // By a descriptor the kernel comes to it again.
        export.retries.found(self.thread, node.id, self.call);
        export.doubt_names(node);
        if self.gone_directory { Errno::NOENT } else { Errno::STALE }
    }
}

/// Notes that the kernel will walk again to where it was, for this thread.
fn expect_again(export: &MountFs, thread: u32, node: &MountNode, call: RetriedCall) {
    for inode in export.nodes.way_to(node) {
        export.retries.expect(thread, inode, call);
    }
}
