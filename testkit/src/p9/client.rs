//! A 9P client over a blocking socket, for tests.
//!
//! Requests go out one by one or many at once; replies are found by their tags and
//! kept until asked for. Errors are the plain errno, so that a test can name it.

#![allow(missing_docs, reason = "most methods are named after the message that they send")]

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use ninep::{
    Attributes, DirEntries, Fid, LockKind, LockStatus, NOFID, NONUNAME, NOTAG, NameList, Qid,
    Reply, Request, SetAttributes, Tag, getattr,
};

use super::{P9Address, P9Frame, P9Wire};

/// A connection that speaks plain 9P2000.L.
#[derive(Debug)]
pub struct P9Client {
    wire: P9Wire,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct P9Entry {
    pub name: String,
    pub cookie: u64,
    pub kind: u8,
    pub qid: Qid,
}

impl P9Frame {
    /// The reply, or its errno.
    pub fn reply(&self) -> Result<Reply<'_>, u32> {
        match Reply::decode(&self.0).unwrap().1 {
            Reply::Error { ecode } => Err(ecode),
            reply => Ok(reply),
        }
    }

    pub fn is_ok(&self) -> bool {
        self.reply().is_ok()
    }
}

/// Runs a body with a list of names in the form that a walk wants.
pub fn names<R>(list: &[&str], body: impl FnOnce(NameList<'_>) -> R) -> R {
    let mut space = Vec::new();
    body(NameList::pack(list.iter().map(|name| name.as_bytes()), &mut space).unwrap())
}

impl P9Client {
    pub fn open_door(door: &P9Address) -> P9Client {
        P9Client { wire: P9Wire::open(door).unwrap() }
    }

    pub fn tcp(to: SocketAddr) -> P9Client {
        P9Client::open_door(&P9Address::Tcp(to))
    }

    pub fn unix(path: &Path) -> P9Client {
        P9Client::open_door(&P9Address::Unix(path.into()))
    }

    // ---- bytes and messages ----

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wire.as_fd()
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.try_send_bytes(bytes).unwrap();
    }

    pub fn try_send_bytes(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.wire.send(bytes)
    }

    /// Sends a request under a tag of its own.
    pub fn send(&mut self, request: &Request<'_>) -> Tag {
        let tag = self.tag();
        self.send_as(tag, request);
        tag
    }

    /// A tag that no request has had lately.
    pub fn tag(&mut self) -> Tag {
        self.wire.tag()
    }

    pub fn send_as(&mut self, tag: Tag, request: &Request<'_>) {
        let mut bytes = Vec::new();
        request.encode(tag, &mut bytes);
        self.send_bytes(&bytes);
    }

    /// The next reply, whosever it is; `None` when the proxy has closed.
    pub fn try_next(&mut self) -> Option<P9Frame> {
        self.wire.receive().unwrap()
    }

    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> P9Frame {
        self.try_next().expect("the connection is open")
    }

    /// The reply to the request of this tag.
    pub fn wait(&mut self, tag: Tag) -> P9Frame {
        self.wire.wait(tag).unwrap()
    }

    pub fn call(&mut self, request: &Request<'_>) -> P9Frame {
        let tag = self.send(request);
        self.wait(tag)
    }

    /// For requests whose reply holds nothing, or nothing of interest.
    pub fn done(&mut self, request: &Request<'_>) -> Result<(), u32> {
        self.call(request).reply().map(drop)
    }

    /// Asserts that the proxy has closed, or closes, this connection.
    pub fn expect_closed(&mut self) {
        if let Some(frame) = self.try_next() {
            panic!("a reply in place of the end: {frame:?}");
        }
    }

    /// Whether a reply is there or comes within `ms` milliseconds.
    pub fn readable(&self, ms: i64) -> bool {
        self.wire.readable(ms)
    }

    // ---- the protocol ----

    /// Begins a session; the answer's msize and version.
    pub fn offer(&mut self, msize: u32, version: &str) -> (u32, String) {
        let request = Request::Version { msize, version: version.as_bytes() };
        self.send_as(NOTAG, &request);
        let frame = self.wait(NOTAG);
        let Ok(Reply::Version { msize, version }) = frame.reply() else { panic!("{frame:?}") };
        (msize, String::from_utf8(version.to_vec()).unwrap())
    }

    /// Begins a session; returns its msize.
    pub fn version(&mut self, msize: u32) -> u32 {
        let (msize, version) = self.offer(msize, "9P2000.L");
        assert_eq!(version, "9P2000.L");
        msize
    }

    pub fn attach(&mut self, fid: u32, aname: &str, uid: u32) -> Result<Qid, u32> {
        self.attach_as(fid, aname, "", uid)
    }

    pub fn attach_as(&mut self, fid: u32, aname: &str, uname: &str, uid: u32) -> Result<Qid, u32> {
        let (uname, aname) = (uname.as_bytes(), aname.as_bytes());
        let request = Request::Attach { fid: Fid(fid), afid: NOFID, uname, aname, n_uname: uid };
        match self.call(&request).reply()? {
            Reply::Attach { qid } => Ok(qid),
            other => panic!("{other:?}"),
        }
    }

    /// An attach by name alone.
    pub fn attach_named(&mut self, fid: u32, aname: &str, uname: &str) -> Result<Qid, u32> {
        self.attach_as(fid, aname, uname, NONUNAME)
    }

    pub fn walk(&mut self, fid: u32, newfid: u32, list: &[&str]) -> Result<Vec<Qid>, u32> {
        let frame = names(list, |names| {
            self.call(&Request::Walk { fid: Fid(fid), newfid: Fid(newfid), names })
        });
        match frame.reply()? {
            Reply::Walk { qids } => Ok(qids.to_vec()),
            other => panic!("{other:?}"),
        }
    }

    pub fn open(&mut self, fid: u32, flags: u32) -> Result<Qid, u32> {
        match self.call(&Request::Lopen { fid: Fid(fid), flags }).reply()? {
            Reply::Lopen { qid, iounit: 0 } => Ok(qid),
            other => panic!("{other:?}"),
        }
    }

    /// Turns the directory's fid into a new file.
    pub fn create(&mut self, fid: u32, name: &str, flags: u32, mode: u32) -> Result<Qid, u32> {
        let (fid, name) = (Fid(fid), name.as_bytes());
        let request = Request::Lcreate { fid, name, flags, mode, gid: u32::MAX };
        match self.call(&request).reply()? {
            Reply::Lcreate { qid, iounit: 0 } => Ok(qid),
            other => panic!("{other:?}"),
        }
    }

    /// Clones fid 0 and makes a file open for reading and writing of the clone.
    pub fn make(&mut self, fid: u32, name: &str) {
        self.walk(0, fid, &[]).unwrap();
        self.create(fid, name, ninep::open::RDWR, 0o644).unwrap();
    }

    /// Walks from fid 0 to a name and opens it.
    pub fn open_name(&mut self, fid: u32, name: &str, flags: u32) -> Result<Qid, u32> {
        self.walk(0, fid, &[name])?;
        self.open(fid, flags)
    }

    pub fn read(&mut self, fid: u32, offset: u64, count: u32) -> Result<Vec<u8>, u32> {
        match self.call(&Request::Read { fid: Fid(fid), offset, count }).reply()? {
            Reply::Read { data } => Ok(data.to_vec()),
            other => panic!("{other:?}"),
        }
    }

    pub fn write(&mut self, fid: u32, offset: u64, data: &[u8]) -> Result<u32, u32> {
        match self.call(&Request::Write { fid: Fid(fid), offset, data }).reply()? {
            Reply::Write { count } => Ok(count),
            other => panic!("{other:?}"),
        }
    }

    pub fn clunk(&mut self, fid: u32) -> Result<(), u32> {
        self.done(&Request::Clunk { fid: Fid(fid) })
    }

    pub fn stat(&mut self, fid: u32) -> Result<Attributes, u32> {
        match self.call(&Request::Getattr { fid: Fid(fid), mask: getattr::ALL }).reply()? {
            Reply::Getattr(attributes) => Ok(attributes),
            other => panic!("{other:?}"),
        }
    }

    pub fn set(&mut self, fid: u32, set: SetAttributes) -> Result<(), u32> {
        self.done(&Request::Setattr { fid: Fid(fid), set })
    }

    pub fn mkdir(&mut self, dir: u32, name: &str) -> Result<(), u32> {
        let (dfid, name) = (Fid(dir), name.as_bytes());
        self.done(&Request::Mkdir { dfid, name, mode: 0o755, gid: u32::MAX })
    }

    pub fn symlink(&mut self, dir: u32, name: &str, target: &str) -> Result<(), u32> {
        let (fid, name, target) = (Fid(dir), name.as_bytes(), target.as_bytes());
        self.done(&Request::Symlink { fid, name, target, gid: u32::MAX })
    }

    pub fn unlink(&mut self, dir: u32, name: &str, flags: u32) -> Result<(), u32> {
        let (dirfid, name) = (Fid(dir), name.as_bytes());
        self.done(&Request::Unlinkat { dirfid, name, flags })
    }

    pub fn rename(&mut self, from: (u32, &str), to: (u32, &str)) -> Result<(), u32> {
        self.done(&Request::Renameat {
            olddirfid: Fid(from.0),
            oldname: from.1.as_bytes(),
            newdirfid: Fid(to.0),
            newname: to.1.as_bytes(),
        })
    }

    pub fn readdir(&mut self, fid: u32, offset: u64, count: u32) -> Result<Vec<P9Entry>, u32> {
        let frame = self.call(&Request::Readdir { fid: Fid(fid), offset, count });
        let data = match frame.reply()? {
            Reply::Readdir { data } => data,
            other => panic!("{other:?}"),
        };
        assert!(data.len() <= count as usize);
        let entry = |e: ninep::DirEntry<'_>| P9Entry {
            name: String::from_utf8_lossy(e.name).into(),
            cookie: e.offset,
            kind: e.kind,
            qid: e.qid,
        };
        // A cut entry would be an error here.
        Ok(DirEntries::new(data).map(|e| entry(e.unwrap())).collect())
    }

    /// Every entry of an open directory.
    pub fn list(&mut self, fid: u32, count: u32) -> Vec<P9Entry> {
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let some = self.readdir(fid, cookie, count).unwrap();
            let Some(last) = some.last() else { return all };
            cookie = last.cookie;
            all.extend(some);
        }
    }

    pub fn lock_request<'a>(
        fid: u32,
        kind: LockKind,
        range: (u64, u64),
        owner: (&'a str, u32),
        flags: u32,
    ) -> Request<'a> {
        Request::Lock {
            fid: Fid(fid),
            kind,
            flags,
            start: range.0,
            length: range.1,
            proc_id: owner.1,
            client_id: owner.0.as_bytes(),
        }
    }

    /// Asks for a lock without waiting.
    pub fn lock(
        &mut self,
        fid: u32,
        kind: LockKind,
        range: (u64, u64),
        owner: (&str, u32),
    ) -> Result<LockStatus, u32> {
        match self.call(&P9Client::lock_request(fid, kind, range, owner, 0)).reply()? {
            Reply::Lock { status } => Ok(status),
            other => panic!("{other:?}"),
        }
    }
}
