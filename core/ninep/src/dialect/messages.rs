//! The dialect's own messages: what the mount needs in one round trip, and what
//! 9P2000.L has no word for. The replies are in the same order below.

use super::groups::GroupList;
use crate::attributes::{Attributes, SetAttributes};
use crate::error::FrameError;
use crate::table::messages;
use crate::types::{Fid, Tag};
use crate::wire::{FrameReader, FrameWriter};

messages! {
    /// A request that only the dialect has.
    ExtRequest;

    /// Begins or goes on with a session over this connection.
    200 Session {
        id: u128 = u128, "The client's own random number for the session.";
        channel: u16 = u16, "Which of the session's connections this is, from 0.";
        slots: u16 = u16, "Slots that the client would like for the channel.";
        aname: &'a [u8] = text, "The export.";
    }
    /// Says who an identity number is, for all channels of the session.
    202 Identity {
        identity: u32 = u32, "The number; one that is known is given anew.";
        uid: u32 = u32, "The user.";
        gid: u32 = u32, "The group of what it makes.";
        groups: GroupList<'a> = groups, "Supplementary groups.";
        job: &'a [u8] = text, "The job; empty if there is none.";
        proof: &'a [u8] = raw, "What shows that the job is its own; empty for a mere claim.";
    }
    /// Forgets an identity number.
    204 Retire {
        identity: u32 = u32, "The number.";
    }
    /// Looks one name up.
    206 Lookup {
        fid: Fid = fid, "The directory.";
        name: &'a [u8] = name, "The name; `..` is the directory above.";
    }
    /// Opens a file, or a name in a directory, or makes it: walk and open in one.
    208 Open {
        fid: Fid = fid, "The file, or with a name its directory.";
        newfid: Fid = fid, "A new fid for the open file.";
        name: &'a [u8] = name, "The name; empty for `fid` itself.";
        flags: u32 = u32, "Bits of `open`; with CREATE the name is made if it is missing.";
        mode: u32 = u32, "Permission bits of a new file.";
    }
    /// Reads directory entries with their attributes and handles.
    210 List {
        fid: Fid = fid, "The open directory.";
        offset: u64 = u64, "0, or the offset of the last entry read.";
        count: u32 = u32, "How many bytes of entries at most.";
    }
    /// Makes a directory, a special file or a symbolic link.
    212 Make {
        fid: Fid = fid, "The directory.";
        name: &'a [u8] = name, "The new name.";
        mode: u32 = u32, "Type and permission bits.";
        rdev: u64 = u64, "A device's number, as the kernel encodes `st_rdev`.";
        target: &'a [u8] = text, "Where a symbolic link points; empty for others.";
    }
    /// Changes attributes.
    214 Change {
        fid: Fid = fid, "The file.";
        set: SetAttributes = set_attributes, "The changes.";
    }
    /// Writes to an open file.
    216 Write {
        fid: Fid = fid, "The open file.";
        offset: u64 = u64, "Where to begin, in bytes.";
        flags: u32 = u32, "WRITE_KILL_PRIV, WRITE_DONATED.";
        data: &'a [u8] = data, "What to write.";
    }
    /// Writes at the end of an open file, wherever that is by then.
    218 Append {
        fid: Fid = fid, "The open file.";
        flags: u32 = u32, "WRITE_KILL_PRIV.";
        data: &'a [u8] = data, "What to write; whole or not at all.";
    }
    /// Takes or gives back space.
    220 Allocate {
        fid: Fid = fid, "The open file.";
        mode: u32 = u32, "Bits of fallocate(2).";
        offset: u64 = u64, "First byte.";
        length: u64 = u64, "Bytes.";
    }
    /// Looks for data or a hole.
    222 Seek {
        fid: Fid = fid, "The open file.";
        offset: u64 = u64, "Where to begin, in bytes.";
        whence: u32 = u32, "SEEK_DATA (3) or SEEK_HOLE (4).";
    }
    /// Copies between two open files within the server.
    224 Copy {
        fid: Fid = fid, "The file to read.";
        offset: u64 = u64, "Where to begin in it, in bytes.";
        tofid: Fid = fid, "The file to write.";
        tooffset: u64 = u64, "Where to begin in that, in bytes.";
        length: u64 = u64, "Bytes.";
    }
    /// Asks for an extended attribute, or with an empty name for the list of them.
    226 Getxattr {
        fid: Fid = fid, "The file.";
        name: &'a [u8] = text, "The attribute's name.";
        count: u32 = u32, "How many bytes at most; 0 asks for the length only.";
    }
    /// Sets an extended attribute.
    228 Setxattr {
        fid: Fid = fid, "The file.";
        name: &'a [u8] = text, "The attribute's name.";
        flags: u32 = u32, "XATTR_CREATE or XATTR_REPLACE.";
        data: &'a [u8] = data, "The value.";
    }
    /// Removes an extended attribute.
    230 Removexattr {
        fid: Fid = fid, "The file.";
        name: &'a [u8] = text, "The attribute's name.";
    }
    /// Asks for a sign of life: answered at once, before anything that is queued.
    232 Ping
    /// Waits for news: answered when there are any. One per channel 0 is outstanding.
    234 Wait
    /// Makes durable what the session has written so far, to any file.
    236 Commit {
        fid: Fid = fid, "A file of the export, such as its root.";
    }
    /// Asks for text about whoever the header's identity is.
    238 Tell {
        what: u8 = u8, "0: what holds it, 1: what it used, 2: what it has to pay.";
        count: u32 = u32, "How many bytes at most.";
    }
    /// The header's identity waits for an earlier write of this connection: it goes in that one's lane.
    240 Donate {
        fid: Fid = fid, "The open file that is written.";
        oldtag: Tag = tag, "The write's tag.";
    }
}

messages! {
    /// A reply that only the dialect has.
    ExtReply;

    /// The session's terms.
    201 Session {
        slots: u16 = u16, "Slots of this channel.";
        resumed: u8 = u8, "1: fids, identities, locks and remembered replies are as they were.";
        keep: u32 = u32, "How long a session without connections is kept, in seconds.";
        root: &'a [u8] = handle, "The export's root.";
    }
    /// The identity may be used.
    203 Identity {
        requests: u32 = u32, "How many requests of it each channel may have under way.";
        bytes: u64 = u64, "And how many bytes of payload, asked for or sent.";
    }
    /// The identity is forgotten.
    205 Retire
    /// What the name is.
    207 Lookup {
        handle: &'a [u8] = handle, "The file.";
        attributes: Attributes = attributes, "Its attributes.";
    }
    /// Opened.
    209 Open {
        handle: &'a [u8] = handle, "The file.";
        created: u8 = u8, "1: it was made by this message.";
        attributes: Attributes = attributes, "Its attributes.";
    }
    /// Directory entries; none at the end of the directory.
    211 List {
        data: &'a [u8] = data, "Whole entries, for `Entries`.";
    }
    /// Made.
    213 Make {
        handle: &'a [u8] = handle, "The new file.";
        attributes: Attributes = attributes, "Its attributes.";
    }
    /// Changed.
    215 Change {
        attributes: Attributes = attributes, "As they are now.";
    }
    /// Written.
    217 Write {
        count: u32 = u32, "Bytes written; may be fewer than asked.";
        number: u64 = u64, "Durable once a reply's `committed` is as high.";
    }
    /// Appended.
    219 Append {
        offset: u64 = u64, "Where the data begins, in bytes.";
        number: u64 = u64, "Durable once a reply's `committed` is as high.";
    }
    /// Done.
    221 Allocate
    /// Found.
    223 Seek {
        offset: u64 = u64, "Where it begins, in bytes.";
    }
    /// Copied.
    225 Copy {
        count: u64 = u64, "Bytes copied; may be fewer than asked.";
        number: u64 = u64, "Durable once a reply's `committed` is as high.";
    }
    /// The value, or the names, each ended by NUL.
    227 Getxattr {
        length: u32 = u32, "Its length in bytes.";
        data: &'a [u8] = data, "The bytes; none if only the length was asked for.";
    }
    /// Set.
    229 Setxattr
    /// Removed.
    231 Removexattr
    /// Alive.
    233 Ping
    /// Durable: the reply's `committed` says so.
    237 Commit
    /// News.
    235 Wait {
        data: &'a [u8] = data, "Whole events, for `Events`.";
    }
    /// Known: whether the write waited still, and goes sooner so, is not said.
    241 Donate
    /// Told: whole lines.
    239 Tell {
        data: &'a [u8] = data, "The text, UTF-8.";
    }
}
