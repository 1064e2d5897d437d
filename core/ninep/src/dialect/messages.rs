//! The messages of the dialect: operations of the mount in one round trip, and those that 9P2000.L
//! lacks. The replies are in the same order below.

use super::groups::GroupList;
use super::proxies::WireGroup;
use crate::attributes::{Attributes, SetAttributes};
use crate::error::FrameError;
use crate::table::messages;
use crate::types::{Fid, Tag};
use crate::wire::{FrameReader, FrameWriter};

messages! {
    /// A request of the dialect.
    ExtRequest;

    /// Begins or resumes a session over this connection.
    200 Session {
        id: u128 = u128, "A random number of the client's for the session.";
        channel: u16 = u16, "Which of the session's connections this is, from 0.";
        slots: u16 = u16, "Reply slots that the client requests for the channel.";
        aname: &'a [u8] = text, "The export.";
    }
    /// Defines an identity number, for all channels of the session.
    202 Identity {
        identity: u32 = u32, "The number; a known number is defined again.";
        uid: u32 = u32, "The user.";
        gid: u32 = u32, "The group of files that it creates.";
        groups: GroupList<'a> = groups, "Supplementary groups.";
        job: &'a [u8] = text, "The job; empty if there is none.";
        proof: &'a [u8] = raw, "The proof that the job is its own; empty for a mere claim.";
    }
    /// Forgets an identity number.
    204 Retire {
        identity: u32 = u32, "The number.";
    }
    /// Looks up one name.
    206 Lookup {
        fid: Fid = fid, "The directory.";
        name: &'a [u8] = name, "The name; `..` is the directory above.";
    }
    /// Opens a file, or a name in a directory, or creates it: walk and open in one.
    208 Open {
        fid: Fid = fid, "The file, or with a name its directory.";
        newfid: Fid = fid, "A new fid for the open file.";
        name: &'a [u8] = name, "The name; empty for `fid` itself.";
        flags: u32 = u32, "Bits of `open`; with CREATE a missing name is created.";
        mode: u32 = u32, "Permission bits of a new file.";
    }
    /// Reads directory entries with their attributes and handles.
    210 List {
        fid: Fid = fid, "The open directory.";
        offset: u64 = u64, "0, or the offset of the last entry read.";
        count: u32 = u32, "How many bytes of entries at most.";
    }
    /// Creates a directory, a special file or a symbolic link.
    212 Mknode {
        fid: Fid = fid, "The directory.";
        name: &'a [u8] = name, "The new name.";
        mode: u32 = u32, "Type and permission bits.";
        rdev: u64 = u64, "A device's number, as the kernel encodes `st_rdev`.";
        target: &'a [u8] = text, "Where a symbolic link points; empty for others.";
    }
    /// Changes attributes of a file.
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
    /// Appends to an open file, at its end at that time.
    218 Append {
        fid: Fid = fid, "The open file.";
        flags: u32 = u32, "WRITE_KILL_PRIV.";
        data: &'a [u8] = data, "What to write; whole or not at all.";
    }
    /// Allocates or releases space.
    220 Allocate {
        fid: Fid = fid, "The open file.";
        mode: u32 = u32, "Bits of fallocate(2).";
        offset: u64 = u64, "First byte.";
        length: u64 = u64, "Bytes.";
    }
    /// Searches for data or a hole.
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
    /// Reads an extended attribute, or with an empty name the list of them.
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
    /// Tests the connection: answered at once, before anything that is queued.
    232 Ping
    /// Waits for events: answered when there are any. At most one is in flight, on channel 0.
    234 Events
    /// Makes durable what the session has written so far, to any file.
    236 Commit {
        fid: Fid = fid, "A file of the export, such as its root.";
    }
    /// Reads a text about the header's identity.
    238 Info {
        what: u8 = u8, "0: its wait causes, 1: its usage, 2: its limits.";
        count: u32 = u32, "How many bytes at most.";
    }
    /// Donates an earlier write of this connection: the header's identity waits for it, so it goes
    /// in that identity's lane.
    240 Donate {
        fid: Fid = fid, "The open file that is written.";
        oldtag: Tag = tag, "The write's tag.";
    }
    /// Joins the holders of leases, or has their term begin again: answered at once.
    242 Renew {
        life: u32 = u32, "The client's life as a holder, from 1: one more each time it lost its leases.";
        what: u8 = u8, "RENEW_TERM, RENEW_JOIN or RENEW_LEAVE.";
    }
    /// Answers a recall.
    244 Return {
        access: u64 = u64, "The number of the access that waits.";
        done: u8 = u8, "1: what was recalled is not used any more; 0: it is worked on.";
    }
    /// Gives leases back that were not recalled.
    246 GiveBack {
        data: &'a [u8] = data, "Whole items, for `ReturnedLeases`.";
    }
    /// Asks for the group of the proxy; also before Session.
    248 Proxies
}

messages! {
    /// A reply of the dialect.
    ExtReply;

    /// The parameters of the session.
    201 Session {
        slots: u16 = u16, "Reply slots of this channel.";
        resumed: u8 = u8, "1: fids, identities, locks and kept replies are as they were.";
        keep: u32 = u32, "The time for which a session without connections is kept, in seconds.";
        root: &'a [u8] = handle, "The export's root.";
    }
    /// The identity may be used.
    203 Identity {
        requests: u32 = u32, "The most requests of it in flight on each channel.";
        bytes: u64 = u64, "The most bytes of payload in flight, requested or sent.";
    }
    /// The identity is forgotten.
    205 Retire
    /// The file of the name.
    207 Lookup {
        handle: &'a [u8] = handle, "The file.";
        attributes: Attributes = attributes, "Its attributes.";
    }
    /// The file is open.
    209 Open {
        handle: &'a [u8] = handle, "The file.";
        created: u8 = u8, "1: it was created by this message.";
        attributes: Attributes = attributes, "Its attributes.";
    }
    /// Directory entries; none at the end of the directory.
    211 List {
        data: &'a [u8] = data, "Whole entries, for `Entries`.";
    }
    /// The file is created.
    213 Mknode {
        handle: &'a [u8] = handle, "The new file.";
        attributes: Attributes = attributes, "Its attributes.";
    }
    /// The attributes are changed.
    215 Change {
        attributes: Attributes = attributes, "The current attributes.";
    }
    /// The data is written.
    217 Write {
        count: u32 = u32, "Bytes written; may be fewer than asked.";
        number: u64 = u64, "The write's number; durable once a reply's `committed` is as high.";
    }
    /// The data is appended.
    219 Append {
        offset: u64 = u64, "Where the data begins, in bytes.";
        number: u64 = u64, "The write's number; durable once a reply's `committed` is as high.";
    }
    /// The space is allocated or released.
    221 Allocate
    /// The offset that was found.
    223 Seek {
        offset: u64 = u64, "Where it begins, in bytes.";
    }
    /// The data is copied.
    225 Copy {
        count: u64 = u64, "Bytes copied; may be fewer than asked.";
        number: u64 = u64, "The write's number; durable once a reply's `committed` is as high.";
    }
    /// The value, or the names, each ended by NUL.
    227 Getxattr {
        length: u32 = u32, "Its length in bytes.";
        data: &'a [u8] = data, "The bytes; none if only the length was asked for.";
    }
    /// The attribute is set.
    229 Setxattr
    /// The attribute is removed.
    231 Removexattr
    /// The server is alive.
    233 Ping
    /// The writes are durable, up to the reply's `committed`.
    237 Commit
    /// The events since the last reply.
    235 Events {
        data: &'a [u8] = data, "Whole events, for `SessionEvents`.";
    }
    /// The donation is accepted. The reply does not contain whether the write still waited and now
    /// goes sooner.
    241 Donate
    /// The text, in whole lines.
    239 Info {
        data: &'a [u8] = data, "The text, UTF-8.";
    }
    /// Whether the term has begun again.
    243 Renew {
        outcome: u8 = u8, "RENEW_DONE, RENEW_OVER or RENEW_REFUSED.";
        term: u64 = u64, "The term from when the request was sent, in nanoseconds.";
    }
    /// The access goes on, if it waits for nothing else.
    245 Return
    /// The leases are free.
    247 GiveBack
    /// The group of the proxy, or that it has none.
    249 Proxies (group: WireGroup<'a> = proxy_group)
}
