//! One method for each message: what it asks, and what came back or the errno.
//!
//! Files are named by handle, open ones by fid. [`P9Channel::call`] takes what does not fit.

#![allow(missing_docs, reason = "most methods are named after the message that they send")]

use ninep::dialect::{ExtReply, ExtRequest, HandleList, LeaseGrant, ListEntries, handle_fid};
use ninep::{Attributes, Fid, LockKind, LockStatus, Reply, Request, SetAttributes, getattr};

use super::{P9Channel, P9Frame};

/// A file as the server names and describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct P9File {
    pub handle: Vec<u8>,
    pub attributes: Attributes,
}

/// A file with what Ropen says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct P9Opened {
    pub file: P9File,
    pub created: bool,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct P9Listed {
    pub name: String,
    pub offset: u64,
    pub kind: u8,
    pub file: Option<P9File>,
    pub lease: LeaseGrant,
}

/// The fid that stands for a message's first handle.
const FIRST: usize = 0;

fn file(handle: &[u8], attributes: Attributes) -> P9File {
    P9File { handle: handle.to_vec(), attributes }
}

impl P9Channel {
    // ---- names ----

    pub fn lookup(&mut self, dir: &[u8], name: &str) -> Result<P9File, u32> {
        let request = ExtRequest::Lookup { fid: handle_fid(FIRST), name: name.as_bytes() };
        match self.call(HandleList::one(dir), request).own()? {
            ExtReply::Lookup { handle, attributes } => Ok(file(handle, attributes)),
            other => panic!("{other:?}"),
        }
    }

    /// A name of the export's root.
    pub fn find(&mut self, name: &str) -> Result<P9File, u32> {
        self.lookup(&self.root.clone(), name)
    }

    /// Opens a handle, or with a name what is or becomes of it in that directory.
    pub fn open(
        &mut self,
        handle: &[u8],
        newfid: u32,
        name: &str,
        flags: u32,
        mode: u32,
    ) -> Result<P9Opened, u32> {
        opened(&self.call(HandleList::one(handle), open_request(newfid, name, flags, mode)))
    }

    /// Opens a name of the export's root.
    pub fn open_name(&mut self, newfid: u32, name: &str, flags: u32) -> Result<P9Opened, u32> {
        self.open(&self.root.clone(), newfid, name, flags, 0o644)
    }

    /// Makes a file in the export's root, open for reading and writing.
    pub fn create(&mut self, newfid: u32, name: &str) -> P9File {
        let flags = ninep::open::RDWR | ninep::open::CREATE | ninep::open::EXCL;
        self.open_name(newfid, name, flags).unwrap().file
    }

    pub fn make(
        &mut self,
        dir: &[u8],
        name: &str,
        mode: u32,
        rdev: u64,
        target: &str,
    ) -> Result<P9File, u32> {
        let (fid, name, target) = (handle_fid(FIRST), name.as_bytes(), target.as_bytes());
        let request = ExtRequest::Mknode { fid, name, mode, rdev, target };
        match self.call(HandleList::one(dir), request).own()? {
            ExtReply::Mknode { handle, attributes } => Ok(file(handle, attributes)),
            other => panic!("{other:?}"),
        }
    }

    /// Makes a directory in the export's root.
    pub fn mkdir(&mut self, name: &str) -> Result<P9File, u32> {
        self.make(&self.root.clone(), name, 0o040_755, 0, "")
    }

    pub fn link(&mut self, handle: &[u8], dir: &[u8], name: &str) -> Result<(), u32> {
        let (dfid, fid, name) = (handle_fid(1), handle_fid(FIRST), name.as_bytes());
        self.call(HandleList::two(handle, dir), Request::Link { dfid, fid, name }).done()
    }

    pub fn unlink(&mut self, dir: &[u8], name: &str, flags: u32) -> Result<(), u32> {
        let request = Request::Unlinkat { dirfid: handle_fid(FIRST), name: name.as_bytes(), flags };
        self.call(HandleList::one(dir), request).done()
    }

    pub fn rename(&mut self, from: (&[u8], &str), to: (&[u8], &str)) -> Result<(), u32> {
        let request = rename_request(from.1, to.1);
        self.call(HandleList::two(from.0, to.0), request).done()
    }

    /// At most `count` bytes of entries of an open directory.
    pub fn list(&mut self, fid: u32, offset: u64, count: u32) -> Result<Vec<P9Listed>, u32> {
        let frame = self.call(HandleList::NONE, ExtRequest::List { fid: Fid(fid), offset, count });
        let data = match frame.own()? {
            ExtReply::List { data } => data,
            other => panic!("{other:?}"),
        };
        assert!(data.len() <= count as usize, "{} bytes of {count}", data.len());
        let listed = |entry: ninep::dialect::ListEntry<'_>| P9Listed {
            name: String::from_utf8_lossy(entry.name).into(),
            offset: entry.offset,
            kind: entry.kind,
            file: entry.file.map(|(handle, attributes)| file(handle, attributes)),
            lease: entry.lease,
        };
        // A cut entry would be an error here.
        Ok(ListEntries::new(data).map(|entry| listed(entry.unwrap())).collect())
    }

    /// Every entry of an open directory from an offset on.
    pub fn list_all(&mut self, fid: u32, mut offset: u64, count: u32) -> Vec<P9Listed> {
        let mut all = Vec::new();
        loop {
            let some = self.list(fid, offset, count).unwrap();
            let Some(last) = some.last() else { return all };
            offset = last.offset;
            all.extend(some);
        }
    }

    // ---- attributes ----

    pub fn stat(&mut self, handle: &[u8]) -> Result<Attributes, u32> {
        self.stat_of(HandleList::one(handle), handle_fid(FIRST))
    }

    pub fn stat_fid(&mut self, fid: u32) -> Result<Attributes, u32> {
        self.stat_of(HandleList::NONE, Fid(fid))
    }

    fn stat_of(&mut self, handles: HandleList<'_>, fid: Fid) -> Result<Attributes, u32> {
        match self.call(handles, Request::Getattr { fid, mask: getattr::ALL }).plain()? {
            Reply::Getattr(attributes) => Ok(attributes),
            other => panic!("{other:?}"),
        }
    }

    pub fn change(&mut self, handle: &[u8], set: SetAttributes) -> Result<Attributes, u32> {
        self.change_of(HandleList::one(handle), handle_fid(FIRST), set)
    }

    pub fn change_of(
        &mut self,
        handles: HandleList<'_>,
        fid: Fid,
        set: SetAttributes,
    ) -> Result<Attributes, u32> {
        match self.call(handles, ExtRequest::Change { fid, set }).own()? {
            ExtReply::Change { attributes } => Ok(attributes),
            other => panic!("{other:?}"),
        }
    }

    /// A value, or with an empty name the list of names, and its length.
    pub fn getxattr(
        &mut self,
        handle: &[u8],
        name: &str,
        count: u32,
    ) -> Result<(u32, Vec<u8>), u32> {
        let request = ExtRequest::Getxattr { fid: handle_fid(FIRST), name: name.as_bytes(), count };
        match self.call(HandleList::one(handle), request).own()? {
            ExtReply::Getxattr { length, data } => Ok((length, data.to_vec())),
            other => panic!("{other:?}"),
        }
    }

    pub fn setxattr(
        &mut self,
        handle: &[u8],
        name: &str,
        flags: u32,
        data: &[u8],
    ) -> Result<(), u32> {
        let (fid, name) = (handle_fid(FIRST), name.as_bytes());
        self.call(HandleList::one(handle), ExtRequest::Setxattr { fid, name, flags, data }).done()
    }

    pub fn removexattr(&mut self, handle: &[u8], name: &str) -> Result<(), u32> {
        let request = ExtRequest::Removexattr { fid: handle_fid(FIRST), name: name.as_bytes() };
        self.call(HandleList::one(handle), request).done()
    }

    // ---- data ----

    pub fn read(&mut self, fid: u32, offset: u64, count: u32) -> Result<Vec<u8>, u32> {
        let request = Request::Read { fid: Fid(fid), offset, count };
        match self.call(HandleList::NONE, request).plain()? {
            Reply::Read { data } => Ok(data.to_vec()),
            other => panic!("{other:?}"),
        }
    }

    /// Writes; how many bytes, and the write's number.
    pub fn write(&mut self, fid: u32, offset: u64, data: &[u8]) -> Result<(u32, u64), u32> {
        self.write_with(fid, offset, 0, data)
    }

    /// Writes to a file that is not open.
    pub fn write_to(&mut self, handle: &[u8], offset: u64, data: &[u8]) -> Result<(u32, u64), u32> {
        let request = ExtRequest::Write { fid: handle_fid(FIRST), offset, flags: 0, data };
        match self.call(HandleList::one(handle), request).own()? {
            ExtReply::Write { count, number } => Ok((count, number)),
            other => panic!("{other:?}"),
        }
    }

    pub fn commit(&mut self, handle: &[u8]) -> Result<(), u32> {
        let request = ExtRequest::Commit { fid: handle_fid(FIRST) };
        self.call(HandleList::one(handle), request).done()
    }

    pub fn write_with(
        &mut self,
        fid: u32,
        offset: u64,
        flags: u32,
        data: &[u8],
    ) -> Result<(u32, u64), u32> {
        let request = ExtRequest::Write { fid: Fid(fid), offset, flags, data };
        match self.call(HandleList::NONE, request).own()? {
            ExtReply::Write { count, number } => Ok((count, number)),
            other => panic!("{other:?}"),
        }
    }

    /// Appends; where the data begins, and the write's number.
    pub fn append(&mut self, fid: u32, data: &[u8]) -> Result<(u64, u64), u32> {
        let request = ExtRequest::Append { fid: Fid(fid), flags: 0, data };
        appended(&self.once(HandleList::NONE, request))
    }

    pub fn allocate(&mut self, fid: u32, mode: u32, offset: u64, length: u64) -> Result<(), u32> {
        let request = ExtRequest::Allocate { fid: Fid(fid), mode, offset, length };
        self.call(HandleList::NONE, request).done()
    }

    pub fn seek(&mut self, fid: u32, offset: u64, whence: u32) -> Result<u64, u32> {
        let request = ExtRequest::Seek { fid: Fid(fid), offset, whence };
        match self.call(HandleList::NONE, request).own()? {
            ExtReply::Seek { offset } => Ok(offset),
            other => panic!("{other:?}"),
        }
    }

    /// Copies from one fid and offset to another; returns the bytes copied, and the number.
    pub fn copy(
        &mut self,
        from: (u32, u64),
        to: (u32, u64),
        length: u64,
    ) -> Result<(u64, u64), u32> {
        let (fid, offset) = (Fid(from.0), from.1);
        let (tofid, tooffset) = (Fid(to.0), to.1);
        let request = ExtRequest::Copy { fid, offset, tofid, tooffset, length };
        match self.call(HandleList::NONE, request).own()? {
            ExtReply::Copy { count, number } => Ok((count, number)),
            other => panic!("{other:?}"),
        }
    }

    pub fn fsync(&mut self, fid: u32) -> Result<(), u32> {
        self.call(HandleList::NONE, Request::Fsync { fid: Fid(fid), datasync: 0 }).done()
    }

    pub fn clunk(&mut self, fid: u32) -> Result<(), u32> {
        self.call(HandleList::NONE, Request::Clunk { fid: Fid(fid) }).done()
    }

    // ---- locks and the session ----

    /// Asks for a lock of a whole file without waiting.
    pub fn lock(&mut self, fid: u32, kind: LockKind, owner: &str) -> Result<LockStatus, u32> {
        match self.call(HandleList::NONE, lock_request(fid, kind, owner, 0)).plain()? {
            Reply::Lock { status } => Ok(status),
            other => panic!("{other:?}"),
        }
    }

    pub fn ping(&mut self) {
        let identity = std::mem::replace(&mut self.identity, ninep::dialect::NO_IDENTITY);
        assert_eq!(self.call(HandleList::NONE, ExtRequest::Ping).own(), Ok(ExtReply::Ping));
        self.identity = identity;
    }
}

pub fn open_request(newfid: u32, name: &str, flags: u32, mode: u32) -> ExtRequest<'_> {
    let (fid, newfid, name) = (handle_fid(FIRST), Fid(newfid), name.as_bytes());
    ExtRequest::Open { fid, newfid, name, flags, mode }
}

/// From a name of the first handle to a name of the second.
pub fn rename_request<'a>(from: &'a str, to: &'a str) -> Request<'a> {
    let (oldname, newname) = (from.as_bytes(), to.as_bytes());
    let (olddirfid, newdirfid) = (handle_fid(FIRST), handle_fid(1));
    Request::Renameat { olddirfid, oldname, newdirfid, newname }
}

pub fn lock_request(fid: u32, kind: LockKind, owner: &str, flags: u32) -> Request<'_> {
    let (fid, client_id) = (Fid(fid), owner.as_bytes());
    Request::Lock { fid, kind, flags, start: 0, length: 0, proc_id: 1, client_id }
}

pub fn opened(frame: &P9Frame) -> Result<P9Opened, u32> {
    match frame.own()? {
        ExtReply::Open { handle, created, attributes } => {
            assert!(created <= 1);
            Ok(P9Opened { file: file(handle, attributes), created: created == 1 })
        }
        other => panic!("{other:?}"),
    }
}

pub fn appended(frame: &P9Frame) -> Result<(u64, u64), u32> {
    match frame.own()? {
        ExtReply::Append { offset, number } => Ok((offset, number)),
        other => panic!("{other:?}"),
    }
}
