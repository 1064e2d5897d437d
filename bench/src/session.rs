//! A plain blocking 9P client: everything around a measurement, never inside it.
//!
//! It negotiates, attaches, makes and fills the files a load needs, and removes
//! them again. Each call sends one request and waits for its reply.

use std::os::fd::OwnedFd;

use anyhow::{Context as _, anyhow, bail};
use ninep::{DirEntries, Fid, NOFID, NameList, Reply, Request, Tag, getattr, open};
use testkit::p9::P9Wire;

use super::socket::BenchAddress;

/// One connection, used synchronously.
pub(crate) struct BenchSession {
    wire: P9Wire,
    msize: u32,
    request: Vec<u8>,
    frame: Vec<u8>,
}

/// The user that attaches, by name and id.
#[derive(Clone, Debug)]
pub(crate) struct BenchIdentity {
    pub(crate) uname: String,
    pub(crate) uid: u32,
}

const EOPNOTSUPP: u32 = 95;
const ENOSYS: u32 = 38;
const GID: u32 = 0;
/// What each block of a filled file begins with: its own offset.
pub(crate) const PATTERN_BLOCK: usize = 4096;

impl BenchSession {
    /// Connects and agrees on a message size of at most `msize` bytes.
    pub(crate) fn open(address: &BenchAddress, msize: u32) -> anyhow::Result<BenchSession> {
        let wire = address.connect()?.into();
        let mut session = BenchSession { wire, msize, request: Vec::new(), frame: Vec::new() };
        let version = Request::Version { msize, version: ninep::VERSION };
        let (granted, spoken) = match session.call_as(ninep::NOTAG, &version)? {
            Reply::Version { msize, version } => (msize, version.to_vec()),
            other => bail!("Tversion answered by {other:?}"),
        };
        if spoken != ninep::VERSION || granted > msize {
            let spoken = String::from_utf8_lossy(&spoken);
            bail!("the server answers {spoken:?} with msize {granted} to 9P2000.L with {msize}");
        }
        session.msize = granted;
        Ok(session)
    }

    /// The agreed message size in bytes.
    pub(crate) fn msize(&self) -> u32 {
        self.msize
    }

    /// Gives up the socket, with nothing outstanding on it.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.wire.into()
    }

    /// Sends `request` and waits for its reply; Rlerror is an error that names the request.
    pub(crate) fn call(&mut self, request: &Request<'_>) -> anyhow::Result<Reply<'_>> {
        match self.call_as(Tag(1), request)? {
            Reply::Error { ecode } => bail!("{}: {}", brief(request), errno_text(ecode)),
            reply => Ok(reply),
        }
    }

    /// Sends all of them at once and waits for all replies; the first Rlerror is an error.
    pub(crate) fn call_all(&mut self, requests: &[Request<'_>]) -> anyhow::Result<()> {
        self.request.clear();
        for (tag, request) in (0..).zip(requests) {
            request.encode(Tag(tag), &mut self.request);
        }
        self.send()?;
        let mut all = Ok(());
        for _ in requests {
            if let (Tag(tag), Reply::Error { ecode }) = self.receive()? {
                let name = requests.get(usize::from(tag)).map(brief).unwrap_or_default();
                all = all.and(Err(anyhow!("{name}: {}", errno_text(ecode))));
            }
        }
        all
    }

    /// Makes `fid` the root of `aname`.
    pub(crate) fn attach(
        &mut self,
        fid: Fid,
        aname: &str,
        who: &BenchIdentity,
    ) -> anyhow::Result<()> {
        let uname = who.uname.as_bytes();
        let aname_bytes = aname.as_bytes();
        let request =
            Request::Attach { fid, afid: NOFID, uname, aname: aname_bytes, n_uname: who.uid };
        self.call(&request).with_context(|| format!("cannot attach to {aname:?}"))?;
        Ok(())
    }

    /// Makes `newfid` the file at `path` (names divided by `/`) below `fid`.
    pub(crate) fn walk(&mut self, fid: Fid, newfid: Fid, path: &str) -> anyhow::Result<()> {
        let names = path.split('/').filter(|name| !name.is_empty()).map(str::as_bytes);
        let mut space = Vec::new();
        let names = NameList::pack(names, &mut space)?;
        let request = Request::Walk { fid, newfid, names };
        let reply = self.call(&request).with_context(|| format!("cannot find {path:?}"))?;
        let found = match reply {
            Reply::Walk { qids } => qids.len(),
            other => bail!("Twalk answered by {other:?}"),
        };
        if found != names.len() {
            bail!("{path:?} is not there");
        }
        Ok(())
    }

    /// Opens `path` below `dir` as `fid` with Linux open flags.
    pub(crate) fn open_file(
        &mut self,
        dir: Fid,
        fid: Fid,
        path: &str,
        flags: u32,
    ) -> anyhow::Result<()> {
        self.walk(dir, fid, path)?;
        self.call(&Request::Lopen { fid, flags }).with_context(|| format!("opening {path}"))?;
        Ok(())
    }

    /// Creates `name` in `dir` and opens it for reading and writing as `fid`.
    pub(crate) fn create(&mut self, dir: Fid, fid: Fid, name: &str) -> anyhow::Result<()> {
        self.walk(dir, fid, "")?;
        let name = name.as_bytes();
        let request =
            Request::Lcreate { fid, name, flags: open::RDWR | open::CREATE, mode: 0o644, gid: GID };
        self.call(&request)?;
        Ok(())
    }

    /// Makes the directory `name` in `dir`.
    pub(crate) fn mkdir(&mut self, dir: Fid, name: &str) -> anyhow::Result<()> {
        self.call(&Request::Mkdir { dfid: dir, name: name.as_bytes(), mode: 0o755, gid: GID })?;
        Ok(())
    }

    /// Clunks a fid, which may then be used for another file.
    pub(crate) fn clunk(&mut self, fid: Fid) -> anyhow::Result<()> {
        self.call(&Request::Clunk { fid })?;
        Ok(())
    }

    /// Removes `name` from `dir`, by walk and remove where the server lacks Tunlinkat (diod).
    pub(crate) fn unlink(&mut self, dir: Fid, name: &str, flags: u32) -> anyhow::Result<()> {
        let request = Request::Unlinkat { dirfid: dir, name: name.as_bytes(), flags };
        match self.call_as(Tag(1), &request)? {
            Reply::Error { ecode: EOPNOTSUPP | ENOSYS } => {
                self.walk(dir, SPARE, name)?;
                self.call(&Request::Remove { fid: SPARE })?;
                Ok(())
            }
            Reply::Error { ecode } => bail!("cannot remove {name}: {}", errno_text(ecode)),
            _ => Ok(()),
        }
    }

    /// The names in the directory `dir`, which stays as it is.
    pub(crate) fn list(&mut self, dir: Fid) -> anyhow::Result<Vec<String>> {
        self.open_file(dir, SPARE, "", open::RDONLY)?;
        let count = self.msize - ninep::IO_HEADER;
        let mut names = Vec::new();
        let mut offset = 0;
        loop {
            let data = match self.call(&Request::Readdir { fid: SPARE, offset, count })? {
                Reply::Readdir { data } => data,
                other => bail!("Treaddir answered by {other:?}"),
            };
            if data.is_empty() {
                break;
            }
            for entry in DirEntries::new(data) {
                let entry = entry.context("the server sent an entry that cannot be read")?;
                offset = entry.offset;
                if !matches!(entry.name, b"." | b"..") {
                    names.push(String::from_utf8_lossy(entry.name).into_owned());
                }
            }
        }
        self.clunk(SPARE)?;
        Ok(names)
    }

    /// Whether the server knows Tunlinkat: a name that cannot exist gives ENOENT where it does.
    pub(crate) fn knows_unlinkat(&mut self, dir: Fid) -> anyhow::Result<bool> {
        let request = Request::Unlinkat { dirfid: dir, name: b"no-such-name", flags: 0 };
        let reply = self.call_as(Tag(1), &request)?;
        Ok(!matches!(reply, Reply::Error { ecode: EOPNOTSUPP | ENOSYS }))
    }

    /// Size in bytes of the file `fid`.
    pub(crate) fn size(&mut self, fid: Fid) -> anyhow::Result<u64> {
        match self.call(&Request::Getattr { fid, mask: getattr::BASIC })? {
            Reply::Getattr(attributes) => Ok(attributes.size),
            other => bail!("Tgetattr answered by {other:?}"),
        }
    }

    /// Writes `len` bytes of pattern, several requests at a time.
    pub(crate) fn fill(&mut self, fid: Fid, len: u64) -> anyhow::Result<()> {
        let chunk = u64::from(self.msize - ninep::IO_HEADER) / BLOCK * BLOCK;
        let mut data = vec![0u8; chunk as usize];
        let mut offset = 0;
        while offset < len {
            let mut asked = 0;
            self.request.clear();
            while asked < FILL_DEPTH && offset < len {
                let count = chunk.min(len - offset) as usize;
                stamp(&mut data[..count], offset);
                let request = Request::Write { fid, offset, data: &data[..count] };
                request.encode(Tag(asked), &mut self.request);
                offset += count as u64;
                asked += 1;
            }
            self.send()?;
            for _ in 0..asked {
                match self.receive()? {
                    (_, Reply::Write { .. }) => {}
                    (_, Reply::Error { ecode }) => bail!("filling: {}", errno_text(ecode)),
                    (_, other) => bail!("Twrite answered by {other:?}"),
                }
            }
        }
        Ok(())
    }

    /// Reads `len` bytes, so that the server's page cache holds them.
    pub(crate) fn warm(&mut self, fid: Fid, len: u64) -> anyhow::Result<()> {
        let count = self.msize - ninep::IO_HEADER;
        for offset in (0..len).step_by(count as usize) {
            self.call(&Request::Read { fid, offset, count })?;
        }
        Ok(())
    }

    fn call_as(&mut self, tag: Tag, request: &Request<'_>) -> anyhow::Result<Reply<'_>> {
        self.request.clear();
        request.encode(tag, &mut self.request);
        self.send()?;
        let (answered, reply) = self.receive()?;
        if answered != tag {
            bail!("reply to tag {} while waiting for tag {}", answered.0, tag.0);
        }
        Ok(reply)
    }

    fn send(&mut self) -> anyhow::Result<()> {
        self.wire.send(&self.request).context("sending")
    }

    fn receive(&mut self) -> anyhow::Result<(Tag, Reply<'_>)> {
        let frame = self.wire.receive().context("receiving")?;
        self.frame = frame.context("the server closed the connection")?.0;
        let len = self.frame.len();
        if len > self.msize.max(ninep::MSIZE_MIN) as usize {
            bail!("the server sent a message of {len} bytes");
        }
        // Ganesha answers errors by Rerror's number with Rlerror's body, which Linux takes too.
        if self.frame[4] == RERROR && len == RLERROR_LEN {
            self.frame[4] = RLERROR;
        }
        Reply::decode(&self.frame).context("the server sent a reply that cannot be read")
    }
}

/// Writes into each block of `data` the offset it will have in the file.
pub(crate) fn stamp(data: &mut [u8], offset: u64) {
    for (block, at) in data.chunks_mut(PATTERN_BLOCK).zip((offset..).step_by(PATTERN_BLOCK)) {
        if let Some(head) = block.get_mut(..8) {
            head.copy_from_slice(&at.to_le_bytes());
        }
    }
}

/// The error's text and number as `strerror` has it.
pub(crate) fn errno_text(ecode: u32) -> String {
    std::io::Error::from_raw_os_error(ecode as i32).to_string()
}

fn brief(request: &Request<'_>) -> String {
    let text = format!("{request:?}");
    text.split([' ', '(']).next().unwrap_or_default().to_string()
}

/// A fid nothing else uses; ganesha takes none above 1023.
const SPARE: Fid = Fid(1023);
const BLOCK: u64 = PATTERN_BLOCK as u64;
const FILL_DEPTH: u16 = 8;
/// Type of 9P2000.L's error reply.
pub(crate) const RLERROR: u8 = 7;
/// Type of 9P2000's error reply.
pub(crate) const RERROR: u8 = 107;
const RLERROR_LEN: usize = ninep::HEADER_LEN + 4;
