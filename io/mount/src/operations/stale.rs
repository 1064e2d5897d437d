//! What is answered of files and directories that are not there any more.
//!
//! ```text
//!   the proxy says ESTALE ─┬─ for the first time ─► ESTALE: the kernel walks anew, and asks for every name
//!                          └─ to a thread that did ─► ENOENT, as on a local disk
//! ```
//!
//! Who comes again (`crate::retries`) has not been led here by a name that was only believed: he has it
//! open, works in it, or has found it by a name that was taken from it since. Of a file that may mean that
//! another was put in its place, and is not told as `ENOENT`.

use fuse::{Errno, FuseRequest};

use crate::filesystem::MountFs;
use crate::jobs::makes_a_name;
use crate::nodes::MountNode;
use crate::retries::RetriedCall;

/// A request about names in directories, which may be gone.
#[derive(Clone, Copy)]
pub(super) struct NameWalk {
    thread: u32,
    /// The thread has walked anew, in this call.
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

    /// What is answered if one of the directories is gone.
    pub(super) fn gone(&self, export: &MountFs, directories: &[&MountNode]) -> Errno {
        for directory in directories {
            expect_again(export, self.thread, directory, self.anew.unwrap_or(RetriedCall::Other));
            export.doubt_names(directory);
        }
        if self.anew.is_some() { Errno::NOENT } else { Errno::STALE }
    }

    /// What is answered to a look-up if its directory is gone. Who looks up a name before he makes it is
    /// told that there is none: the making is what the kernel walks anew for.
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

    /// There is no such name, and the call ends with that.
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
    /// The thread was told `ESTALE`, and was led here by a name since: this file is meant, wherever it is.
    pub(super) found: bool,
    /// It is a directory, and the thread was told `ESTALE` on its way here.
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

    /// What is answered if the file is gone or has not the names that are believed. A directory that is gone
    /// was removed. A file may have been replaced, its name never gone: that is `ESTALE`, however often.
    pub(super) fn gone(self, export: &MountFs, node: &MountNode) -> Errno {
        expect_again(export, self.thread, node, self.call);
        // By a descriptor the kernel comes to it again.
        export.retries.found(self.thread, node.id, self.call);
        export.doubt_names(node);
        if self.gone_directory { Errno::NOENT } else { Errno::STALE }
    }
}

/// The kernel will walk anew to where it was, for this thread.
fn expect_again(export: &MountFs, thread: u32, node: &MountNode, call: RetriedCall) {
    for inode in export.nodes.way_to(node) {
        export.retries.expect(thread, inode, call);
    }
}
