//! Replies of a server: the R messages, and Rlerror for them all.

use crate::attributes::{Attributes, Statfs};
use crate::error::FrameError;
use crate::lists::Qids;
use crate::lock::{LockKind, LockStatus};
use crate::table::messages;
use crate::types::{Qid, Tag};
use crate::wire::{FrameReader, FrameWriter};

messages! {
    /// A server's reply, borrowing strings and payload.
    Reply;

    /// The request failed with an errno.
    7 Error {
        ecode: u32 = u32, "A Linux errno.";
    }
    /// The parameters of the session.
    101 Version {
        msize: u32 = u32, "The largest message either side sends, in bytes.";
        version: &'a [u8] = raw, "The protocol agreed on, or `unknown`.";
    }
    /// The new fid is for authentication.
    103 Auth {
        aqid: Qid = qid, "The authentication file.";
    }
    /// The export is attached.
    105 Attach {
        qid: Qid = qid, "The export's root.";
    }
    /// No reply to the flushed request will follow.
    109 Flush
    /// The files that were found, in order; the new fid exists only if every name was found.
    111 Walk {
        qids: Qids = qids, "One for each name found.";
    }
    /// The fid is free.
    121 Clunk
    /// The file is gone and the fid free.
    123 Remove

    /// The file is open.
    13 Lopen {
        qid: Qid = qid, "The file.";
        iounit: u32 = u32, "Good size of one read or write in bytes; 0 for msize − 24.";
    }
    /// The file is created and open.
    15 Lcreate {
        qid: Qid = qid, "The file.";
        iounit: u32 = u32, "Good size of one read or write in bytes; 0 for msize − 24.";
    }
    /// The data that was read; nothing at the end of the file.
    117 Read {
        data: &'a [u8] = data, "The bytes.";
    }
    /// The amount that was written.
    119 Write {
        count: u32 = u32, "Bytes written; may be fewer than asked.";
    }
    /// The data is durable.
    51 Fsync
    /// Directory entries; none at the end of the directory.
    41 Readdir {
        data: &'a [u8] = data, "Whole entries, for `DirEntries`.";
    }

    /// The file system's figures.
    9 Statfs(figures: Statfs = statfs)
    /// The attributes of the file.
    25 Getattr(attributes: Attributes = attributes)
    /// The attributes are changed.
    27 Setattr
    /// The target of the link.
    23 Readlink {
        target: &'a [u8] = text, "Its target.";
    }
    /// The attribute can be read from the new fid.
    31 Xattrwalk {
        size: u64 = u64, "Its length in bytes.";
    }
    /// The attribute can be written.
    33 Xattrcreate

    /// The outcome of the lock request.
    53 Lock {
        status: LockStatus = lock_status, "Granted or not.";
    }
    /// The lock that is in the way.
    55 Getlock {
        kind: LockKind = lock_kind, "Its kind; `Unlock` if none is in the way.";
        start: u64 = u64, "First byte.";
        length: u64 = u64, "Bytes; 0 for all up to the end.";
        proc_id: u32 = u32, "The owner's process in its client.";
        client_id: &'a [u8] = text, "The owner's client.";
    }

    /// The symbolic link is made.
    17 Symlink {
        qid: Qid = qid, "The new file.";
    }
    /// The special file is made.
    19 Mknod {
        qid: Qid = qid, "The new file.";
    }
    /// The hard link is made.
    71 Link
    /// The directory is made.
    73 Mkdir {
        qid: Qid = qid, "The new directory.";
    }
    /// The file is renamed.
    21 Rename
    /// The file is renamed.
    75 Renameat
    /// The name is removed.
    77 Unlinkat
}
