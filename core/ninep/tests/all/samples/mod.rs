//! One of every message, made from a handful of values: what the properties turn
//! round and what the fuzzer starts from.
//!
//! The lists of types on the wire are written out here rather than taken from the
//! codec, so that a message lost from its table is missed.

#![allow(dead_code, reason = "each test, and the fuzzer's seeds, use a part of this")]

pub(crate) mod dialect;

use sluice_ninep::{
    Attributes, DirEntry, Fid, LockKind, LockStatus, NameList, QTDIR, QTFILE, QTSYMLINK, Qid, Qids,
    Reply, Request, SetAttributes, Statfs, Tag, Timestamp,
};

/// The types of all requests, in the order of [`requests`].
pub(crate) const REQUEST_TYPES: [u8; 28] = [
    100, 102, 104, 108, 110, 120, 122, 12, 14, 116, 118, 50, 40, 8, 24, 26, 22, 30, 32, 52, 54, 16,
    18, 70, 72, 20, 74, 76,
];

/// The types of all replies, in the order of [`replies`].
pub(crate) const REPLY_TYPES: [u8; 29] = [
    7, 101, 103, 105, 109, 111, 121, 123, 13, 15, 117, 119, 51, 41, 9, 25, 27, 23, 31, 33, 53, 55,
    17, 19, 71, 73, 21, 75, 77,
];

/// Has the size field say how long the frame is, if there is one.
pub(crate) fn set_size(frame: &mut [u8]) {
    let size = frame.len() as u32;
    if let Some(field) = frame.first_chunk_mut::<4>() {
        *field = size.to_le_bytes();
    }
}

/// The values that messages are filled with.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    /// For every field of 32 bits or fewer.
    pub(crate) word: u32,
    /// For every field of 64 bits.
    pub(crate) long: u64,
    /// The name of a file: no NUL, no `/`.
    pub(crate) name: Vec<u8>,
    /// Another string: no NUL.
    pub(crate) text: Vec<u8>,
    /// Payload.
    pub(crate) data: Vec<u8>,
    /// Names of a walk, at most 16.
    pub(crate) names: Vec<Vec<u8>>,
}

impl Values {
    /// Something plain.
    pub(crate) fn plain() -> Values {
        Values {
            word: 7,
            long: 4096,
            name: b"name".to_vec(),
            text: b"some/text".to_vec(),
            data: b"payload".to_vec(),
            names: vec![b"a".to_vec(), b"..".to_vec(), b"c.txt".to_vec()],
        }
    }

    fn fid(&self) -> Fid {
        Fid(self.word)
    }

    fn newfid(&self) -> Fid {
        Fid(self.word.wrapping_add(1))
    }

    fn qid(&self, nth: u32) -> Qid {
        let kind = [QTDIR, QTFILE, QTSYMLINK][(self.word.wrapping_add(nth) % 3) as usize];
        Qid { kind, version: self.word, path: self.long.wrapping_add(nth.into()) }
    }

    fn lock(&self) -> LockKind {
        [LockKind::Read, LockKind::Write, LockKind::Unlock][(self.word % 3) as usize]
    }

    fn status(&self) -> LockStatus {
        use LockStatus::{Blocked, Error, Grace, Success};
        [Success, Blocked, Error, Grace][(self.word % 4) as usize]
    }

    fn time(&self, nth: u64) -> Timestamp {
        Timestamp { sec: self.long.wrapping_add(nth), nsec: u64::from(self.word) }
    }

    fn attributes(&self) -> Attributes {
        let long = |nth: u64| self.long.rotate_left(nth as u32);
        Attributes {
            valid: long(1),
            qid: self.qid(0),
            mode: self.word,
            uid: self.word.wrapping_add(1),
            gid: self.word.wrapping_add(2),
            nlink: long(2),
            rdev: long(3),
            size: long(4),
            blksize: long(5),
            blocks: long(6),
            atime: self.time(1),
            mtime: self.time(2),
            ctime: self.time(3),
            btime: self.time(4),
            generation: long(7),
            data_version: long(8),
        }
    }

    fn set_attributes(&self) -> SetAttributes {
        SetAttributes {
            valid: self.word,
            mode: self.word.wrapping_add(1),
            uid: self.word.wrapping_add(2),
            gid: self.word.wrapping_add(3),
            size: self.long,
            atime: self.time(1),
            mtime: self.time(2),
        }
    }

    fn statfs(&self) -> Statfs {
        let long = |nth: u64| self.long.wrapping_add(nth);
        Statfs {
            kind: self.word,
            bsize: self.word.wrapping_add(1),
            blocks: long(1),
            bfree: long(2),
            bavail: long(3),
            files: long(4),
            ffree: long(5),
            fsid: long(6),
            namelen: self.word.wrapping_add(2),
        }
    }
}

/// Calls `each` with one of every request, in the order of [`REQUEST_TYPES`].
pub(crate) fn requests(v: &Values, mut each: impl FnMut(Tag, Request<'_>)) {
    let mut space = Vec::new();
    let walked = v.names.iter().map(Vec::as_slice);
    let names = NameList::pack(walked, &mut space).expect("at most 16 names");
    let (fid, newfid, word, long) = (v.fid(), v.newfid(), v.word, v.long);
    let (name, text, data) = (v.name.as_slice(), v.text.as_slice(), v.data.as_slice());
    let (kind, proc_id, client_id) = (v.lock(), v.word, text);
    let (start, length, offset) = (v.long, v.long.wrapping_add(1), v.long);
    let (mode, gid, flags) = (word, word.wrapping_add(1), word.wrapping_add(2));
    let all = [
        Request::Version { msize: word, version: text },
        Request::Auth { afid: fid, uname: text, aname: name, n_uname: word },
        Request::Attach { fid, afid: newfid, uname: text, aname: name, n_uname: word },
        Request::Flush { oldtag: Tag(word as u16) },
        Request::Walk { fid, newfid, names },
        Request::Clunk { fid },
        Request::Remove { fid },
        Request::Lopen { fid, flags },
        Request::Lcreate { fid, name, flags, mode, gid },
        Request::Read { fid, offset, count: word },
        Request::Write { fid, offset, data },
        Request::Fsync { fid, datasync: word },
        Request::Readdir { fid, offset, count: word },
        Request::Statfs { fid },
        Request::Getattr { fid, mask: long },
        Request::Setattr { fid, set: v.set_attributes() },
        Request::Readlink { fid },
        Request::Xattrwalk { fid, newfid, name: text },
        Request::Xattrcreate { fid, name: text, size: long, flags },
        Request::Lock { fid, kind, flags, start, length, proc_id, client_id },
        Request::Getlock { fid, kind, start, length, proc_id, client_id },
        Request::Symlink { fid, name, target: text, gid },
        Request::Mknod { dfid: fid, name, mode, major: word, minor: flags, gid },
        Request::Link { dfid: fid, fid: newfid, name },
        Request::Mkdir { dfid: fid, name, mode, gid },
        Request::Rename { fid, dfid: newfid, name },
        Request::Renameat { olddirfid: fid, oldname: name, newdirfid: newfid, newname: name },
        Request::Unlinkat { dirfid: fid, name, flags },
    ];
    for request in all {
        each(Tag(word as u16), request);
    }
}

/// Calls `each` with one of every reply, in the order of [`REPLY_TYPES`].
pub(crate) fn replies(v: &Values, mut each: impl FnMut(Tag, Reply<'_>)) {
    let (word, long, qid, text, data) = (v.word, v.long, v.qid(0), &v.text[..], &v.data[..]);
    let qids: Qids = (0..v.names.len() as u32).map(|nth| v.qid(nth)).collect();
    let mut entries = Vec::new();
    for name in &v.names {
        DirEntry { qid, offset: long, kind: word as u8, name }.encode(&mut entries);
    }
    let (kind, length, proc_id) = (v.lock(), long.wrapping_add(1), word);
    let all = [
        Reply::Error { ecode: word },
        Reply::Version { msize: word, version: text },
        Reply::Auth { aqid: qid },
        Reply::Attach { qid },
        Reply::Flush,
        Reply::Walk { qids },
        Reply::Clunk,
        Reply::Remove,
        Reply::Lopen { qid, iounit: word },
        Reply::Lcreate { qid, iounit: word },
        Reply::Read { data },
        Reply::Write { count: word },
        Reply::Fsync,
        Reply::Readdir { data: &entries },
        Reply::Statfs(v.statfs()),
        Reply::Getattr(v.attributes()),
        Reply::Setattr,
        Reply::Readlink { target: text },
        Reply::Xattrwalk { size: long },
        Reply::Xattrcreate,
        Reply::Lock { status: v.status() },
        Reply::Getlock { kind, start: long, length, proc_id, client_id: text },
        Reply::Symlink { qid },
        Reply::Mknod { qid },
        Reply::Link,
        Reply::Mkdir { qid },
        Reply::Rename,
        Reply::Renameat,
        Reply::Unlinkat,
    ];
    for reply in all {
        each(Tag(word as u16), reply);
    }
}
