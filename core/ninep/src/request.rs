//! Requests of a client: the T messages.
//!
//! The table is in the order of a session's life: begin, names, data, attributes, locks, changes to
//! directories. docs/protocol.md describes what the server does.

use crate::attributes::SetAttributes;
use crate::error::FrameError;
use crate::lists::NameList;
use crate::lock::LockKind;
use crate::table::messages;
use crate::types::{Fid, Tag};
use crate::wire::{FrameReader, FrameWriter};

messages! {
    /// A client's request, borrowing strings and payload from its frame.
    Request;

    /// Begins a session, ending any before it: the only message without a tag of its own.
    100 Version {
        msize: u32 = u32, "The largest message the client takes, in bytes.";
        version: &'a [u8] = raw, "The protocol offered.";
    }
    /// Begins authentication of a user.
    102 Auth {
        afid: Fid = fid, "A new fid for it.";
        uname: &'a [u8] = text, "The user's name.";
        aname: &'a [u8] = text, "The export.";
        n_uname: u32 = u32, "The user's number, or NONUNAME.";
    }
    /// Begins to use an export as a user.
    104 Attach {
        fid: Fid = fid, "A new fid for the export's root.";
        afid: Fid = fid, "An authenticated fid, or NOFID.";
        uname: &'a [u8] = text, "The user's name.";
        aname: &'a [u8] = text, "The export.";
        n_uname: u32 = u32, "The user's number, or NONUNAME.";
    }
    /// Cancels a request that has not been answered.
    108 Flush {
        oldtag: Tag = tag, "The request's tag.";
    }
    /// Looks names up, one below the other; with none it copies the fid.
    110 Walk {
        fid: Fid = fid, "Where it begins.";
        newfid: Fid = fid, "The fid for what is found; may be `fid`.";
        names: NameList<'a> = names, "At most 16 names.";
    }
    /// Forgets a fid, closing its file.
    120 Clunk {
        fid: Fid = fid, "The fid.";
    }
    /// Removes a fid's file, and forgets the fid whether or not that worked.
    122 Remove {
        fid: Fid = fid, "The file.";
    }

    /// Opens a fid's file.
    12 Lopen {
        fid: Fid = fid, "The file.";
        flags: u32 = u32, "Bits of `open`.";
    }
    /// Creates a file and opens it; the directory's fid becomes the file's.
    14 Lcreate {
        fid: Fid = fid, "The directory, then the new file.";
        name: &'a [u8] = name, "The new name.";
        flags: u32 = u32, "Bits of `open`.";
        mode: u32 = u32, "Permission bits.";
        gid: u32 = u32, "The caller's group.";
    }
    /// Reads from an open file, or from an extended attribute.
    116 Read {
        fid: Fid = fid, "The open file.";
        offset: u64 = u64, "Where to begin, in bytes.";
        count: u32 = u32, "How many bytes at most.";
    }
    /// Writes to an open file, or to an extended attribute.
    118 Write {
        fid: Fid = fid, "The open file.";
        offset: u64 = u64, "Where to begin, in bytes.";
        data: &'a [u8] = data, "What to write.";
    }
    /// Makes a file's data durable.
    50 Fsync {
        fid: Fid = fid, "The open file.";
        datasync: u32 = u32, "Not 0: leave out attributes that reading does not need.";
    }
    /// Reads entries of a directory.
    40 Readdir {
        fid: Fid = fid, "The open directory.";
        offset: u64 = u64, "0, or the offset of the last entry read.";
        count: u32 = u32, "How many bytes of entries at most.";
    }

    /// Reads the file system's figures.
    8 Statfs {
        fid: Fid = fid, "Any file in it.";
    }
    /// Reads a file's attributes.
    24 Getattr {
        fid: Fid = fid, "The file.";
        mask: u64 = u64, "Which ones: bits of `getattr`.";
    }
    /// Changes a file's attributes.
    26 Setattr {
        fid: Fid = fid, "The file.";
        set: SetAttributes = set_attributes, "The changes.";
    }
    /// Reads the target of a symbolic link.
    22 Readlink {
        fid: Fid = fid, "The link.";
    }
    /// Makes a new fid from which an extended attribute, or the list of them, can be read.
    30 Xattrwalk {
        fid: Fid = fid, "The file.";
        newfid: Fid = fid, "A new fid for the attribute.";
        name: &'a [u8] = text, "The attribute's name; empty for the list of names.";
    }
    /// Turns a fid into one to which an extended attribute is written, and set at clunk.
    32 Xattrcreate {
        fid: Fid = fid, "The file, then its attribute.";
        name: &'a [u8] = text, "The attribute's name.";
        size: u64 = u64, "Its length in bytes.";
        flags: u32 = u32, "XATTR_CREATE or XATTR_REPLACE.";
    }

    /// Takes or releases a byte-range lock.
    52 Lock {
        fid: Fid = fid, "The open file.";
        kind: LockKind = lock_kind, "What to do.";
        flags: u32 = u32, "LOCK_BLOCK, LOCK_RECLAIM.";
        start: u64 = u64, "First byte.";
        length: u64 = u64, "Bytes; 0 for all up to the end.";
        proc_id: u32 = u32, "The owner's process in the client.";
        client_id: &'a [u8] = text, "The client's name.";
    }
    /// Tests which lock would be in the way of this one.
    54 Getlock {
        fid: Fid = fid, "The open file.";
        kind: LockKind = lock_kind, "The lock that might be taken.";
        start: u64 = u64, "First byte.";
        length: u64 = u64, "Bytes; 0 for all up to the end.";
        proc_id: u32 = u32, "The owner's process in the client.";
        client_id: &'a [u8] = text, "The client's name.";
    }

    /// Makes a symbolic link.
    16 Symlink {
        fid: Fid = fid, "The directory.";
        name: &'a [u8] = name, "The new name.";
        target: &'a [u8] = text, "Where it points.";
        gid: u32 = u32, "The caller's group.";
    }
    /// Makes a special file.
    18 Mknod {
        dfid: Fid = fid, "The directory.";
        name: &'a [u8] = name, "The new name.";
        mode: u32 = u32, "Type and permission bits.";
        major: u32 = u32, "The device's major number.";
        minor: u32 = u32, "The device's minor number.";
        gid: u32 = u32, "The caller's group.";
    }
    /// Makes a hard link.
    70 Link {
        dfid: Fid = fid, "The directory of the new name.";
        fid: Fid = fid, "The file.";
        name: &'a [u8] = name, "The new name.";
    }
    /// Makes a new directory.
    72 Mkdir {
        dfid: Fid = fid, "The directory above.";
        name: &'a [u8] = name, "The new name.";
        mode: u32 = u32, "Permission bits.";
        gid: u32 = u32, "The caller's group.";
    }
    /// Renames a fid's file.
    20 Rename {
        fid: Fid = fid, "The file.";
        dfid: Fid = fid, "The new directory.";
        name: &'a [u8] = name, "The new name.";
    }
    /// Renames by directory and name.
    74 Renameat {
        olddirfid: Fid = fid, "The old directory.";
        oldname: &'a [u8] = name, "The old name.";
        newdirfid: Fid = fid, "The new directory.";
        newname: &'a [u8] = name, "The new name.";
    }
    /// Removes by directory and name; fids of the file live on.
    76 Unlinkat {
        dirfid: Fid = fid, "The directory.";
        name: &'a [u8] = name, "The name.";
        flags: u32 = u32, "REMOVE_DIR for a directory.";
    }
}
