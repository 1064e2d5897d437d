//! Calls that may have been executed by a proxy that has since forgotten them: what happened
//! is found out by looking.
//!
//! ```text
//!   the name is gone ─┬─ it was to be removed: done        a name may have been made or
//!                     └─ it was to be made: call again     removed by others meanwhile;
//!   the name is there ┬─ as this call would have made it:  then the mount cannot know, and
//!                     │  done                              the likelier answer is given
//!                     └─ otherwise: EEXIST, or call again
//! ```
//!
//! [`InDoubt::question`] is asked, and its answer passed to [`InDoubt::answered`], until there is no
//! question any more: then [`InDoubt::into_outcome`] says what happened.
//!
//! Bound: the data that is read to find an append is at most 16 MiB.

use model::{Nanos, Time};
use ninep::dialect::{
    AnyReply, AnyRequest, ExtReply, ExtRequest, HandleList, HandlePlaces, NOSLOT, RequestHeader,
    handle_fid,
};
use ninep::{Attributes, Fid, Reply, Request, XATTR_CREATE, getattr, open};

/// Finds out whether a call was executed, as its caller and with the files that it named.
#[derive(Debug)]
pub struct InDoubt<'c> {
    header: RequestHeader<'c>,
    request: AnyRequest<'c>,
    facts: InDoubtFacts<'c>,
    state: InDoubtState,
}

/// What is known of a call in doubt beside its message.
#[derive(Clone, Copy, Debug)]
pub struct InDoubtFacts<'c> {
    /// The user id of its caller.
    pub uid: u32,
    /// When it was begun, by the wall clock.
    pub since: Time,
    /// The end of the file when the call was made, in bytes; of an append only.
    pub file_end: u64,
    /// How the file may be read; of an append only.
    pub reader: Option<InDoubtReader<'c>>,
    /// The most bytes that one read may ask for, at least 1.
    pub read_max: u32,
}

/// How a file can be read that is open for writing only.
#[derive(Clone, Copy, Debug)]
pub struct InDoubtReader<'c> {
    /// The handle of the file.
    pub handle: &'c [u8],
    /// A fid that is not in use.
    pub fid: Fid,
}

/// Result of resolving a call in doubt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InDoubtOutcome {
    /// It was not executed.
    NotExecuted,
    /// It was, and the answer says nothing but that.
    Done(AnyReply<'static>),
    /// It was, and this is what it made: the handle, and the attributes.
    Made(Vec<u8>, Attributes),
    /// It was, and this is what it made and is open now: the handle, and the attributes.
    Opened(Vec<u8>, Attributes),
    /// It fails with this errno.
    Failed(u32),
}

/// The question that is asked next, with what is known by then.
#[derive(Debug)]
enum InDoubtState {
    /// The name of the call; of a rename the old one.
    Name,
    NewName,
    /// Where the symbolic link with the name points to.
    Target(FoundFile),
    /// The file with the name is opened, as the call would have.
    Reopen(FoundFile),
    Size,
    Xattr,
    OpenReader(SearchedRange),
    Read(SearchedRange),
    /// The reader is closed; without the range its data could not be read.
    CloseReader(Option<SearchedRange>),
    Resolved(InDoubtOutcome),
}

/// A file that was found by name.
#[derive(Clone, Debug)]
struct FoundFile {
    handle: Vec<u8>,
    attributes: Attributes,
}

/// The bytes of a file in which an append is looked for, and what was read of them.
#[derive(Debug)]
struct SearchedRange {
    from: u64,
    end: u64,
    data: Vec<u8>,
}

use InDoubtOutcome::{Done, Failed, Made, NotExecuted, Opened};

impl<'c> InDoubt<'c> {
    /// Begins to resolve the call with this message.
    pub fn new(
        header: RequestHeader<'c>,
        request: AnyRequest<'c>,
        facts: InDoubtFacts<'c>,
    ) -> InDoubt<'c> {
        let header =
            RequestHeader { reply_slot: NOSLOT, sequence: 0, names: HandlePlaces::NONE, ..header };
        let state = match request {
            AnyRequest::Ext(ExtRequest::Mknode { .. })
            | AnyRequest::Base(
                Request::Unlinkat { .. } | Request::Renameat { .. } | Request::Link { .. },
            ) => InDoubtState::Name,
            AnyRequest::Ext(ExtRequest::Open { flags, .. }) if flags & open::EXCL != 0 => {
                InDoubtState::Name
            }
            AnyRequest::Ext(ExtRequest::Append { .. }) => InDoubtState::Size,
            AnyRequest::Ext(ExtRequest::Setxattr { flags, .. }) if flags & XATTR_CREATE != 0 => {
                InDoubtState::Xattr
            }
            AnyRequest::Ext(ExtRequest::Removexattr { .. }) => InDoubtState::Xattr,
            // Whether space was cut out once or not at all cannot be seen.
            AnyRequest::Ext(ExtRequest::Allocate { .. }) => InDoubtState::Resolved(Failed(EIO)),
            _ => InDoubtState::Resolved(NotExecuted),
        };
        InDoubt { header, request, facts, state }
    }

    /// The fid of the file to which a call appends: it has to be read to resolve the call.
    pub fn appends_to(request: &AnyRequest<'_>) -> Option<Fid> {
        match request {
            AnyRequest::Ext(ExtRequest::Append { fid, .. }) => Some(*fid),
            _ => None,
        }
    }

    /// What is to be asked next; `None` once the call is resolved.
    pub fn question(&self) -> Option<(RequestHeader<'_>, AnyRequest<'_>)> {
        let of_file = |handle| RequestHeader { handles: HandleList::one(handle), ..self.header };
        Some(match &self.state {
            InDoubtState::Name | InDoubtState::NewName => (self.header, self.lookup()),
            InDoubtState::Target(found) => {
                (of_file(&found.handle), Request::Readlink { fid: handle_fid(0) }.into())
            }
            InDoubtState::Reopen(found) => (of_file(&found.handle), self.reopen()),
            InDoubtState::Size => {
                let (fid, mask) = (InDoubt::appends_to(&self.request)?, getattr::BASIC);
                (self.header, Request::Getattr { fid, mask }.into())
            }
            InDoubtState::Xattr => (self.header, self.xattr()?),
            InDoubtState::OpenReader(_) => {
                let InDoubtReader { handle, fid: newfid } = self.facts.reader?;
                let (fid, name, flags) = (handle_fid(0), b"", open::RDONLY);
                (of_file(handle), ExtRequest::Open { fid, newfid, name, flags, mode: 0 }.into())
            }
            InDoubtState::Read(range) => {
                let (fid, offset) = (self.facts.reader?.fid, range.from + range.data.len() as u64);
                let count = (range.end - offset).min(self.facts.read_max.max(1).into()) as u32;
                (self.header, Request::Read { fid, offset, count }.into())
            }
            InDoubtState::CloseReader(_) => {
                (self.header, Request::Clunk { fid: self.facts.reader?.fid }.into())
            }
            InDoubtState::Resolved(_) => return None,
        })
    }

    /// Takes the answer to the question, or its errno.
    pub fn answered(&mut self, answer: Result<AnyReply<'_>, u32>) {
        let state = std::mem::replace(&mut self.state, InDoubtState::Resolved(Failed(EPROTO)));
        self.state = match state {
            InDoubtState::Name => self.name_answered(found(answer)),
            InDoubtState::NewName => InDoubtState::Resolved(match found(answer) {
                Ok(_) => Done(Reply::Renameat.into()),
                Err(errno) => Failed(errno),
            }),
            InDoubtState::Target(FoundFile { handle, attributes }) => {
                InDoubtState::Resolved(match answer {
                    Ok(AnyReply::Base(Reply::Readlink { target })) if self.is_target(target) => {
                        Made(handle, attributes)
                    }
                    _ => Failed(EEXIST),
                })
            }
            InDoubtState::Reopen(FoundFile { handle, attributes }) => {
                InDoubtState::Resolved(match answer {
                    Ok(_) => Opened(handle, attributes),
                    Err(errno) => Failed(errno),
                })
            }
            InDoubtState::Size => self.size_answered(answer),
            InDoubtState::Xattr => InDoubtState::Resolved(self.xattr_answered(answer)),
            InDoubtState::OpenReader(range) => match answer {
                Ok(_) => InDoubtState::Read(range),
                Err(_) => InDoubtState::Resolved(Failed(EIO)),
            },
            InDoubtState::Read(range) => read_answered(range, answer),
            // What became of the clunk does not matter: the fid is nobody's.
            InDoubtState::CloseReader(range) => InDoubtState::Resolved(self.appended(range)),
            InDoubtState::Resolved(outcome) => InDoubtState::Resolved(outcome),
        };
    }

    /// What happened to the call; only once there is no question any more.
    ///
    /// # Panics
    /// If a question was not answered.
    pub fn into_outcome(self) -> InDoubtOutcome {
        match self.state {
            InDoubtState::Resolved(outcome) => outcome,
            state => panic!("not resolved: {state:?} was not answered"),
        }
    }

    /// Looks up the name that the call made or removed.
    fn lookup(&self) -> AnyRequest<'c> {
        let is_new = matches!(self.state, InDoubtState::NewName);
        let (fid, name) = match self.request {
            AnyRequest::Ext(ExtRequest::Mknode { fid, name, .. })
            | AnyRequest::Ext(ExtRequest::Open { fid, name, .. }) => (fid, name),
            AnyRequest::Base(Request::Unlinkat { dirfid, name, .. }) => (dirfid, name),
            AnyRequest::Base(Request::Link { dfid, name, .. }) => (dfid, name),
            AnyRequest::Base(Request::Renameat { olddirfid, oldname, newdirfid, newname }) => {
                if is_new {
                    (newdirfid, newname)
                } else {
                    (olddirfid, oldname)
                }
            }
            other => unreachable!("{other:?} has no name to look up"),
        };
        ExtRequest::Lookup { fid, name }.into()
    }

    fn reopen(&self) -> AnyRequest<'c> {
        let AnyRequest::Ext(ExtRequest::Open { newfid, flags, .. }) = self.request else {
            unreachable!("{:?} opens nothing", self.request)
        };
        let flags = flags & !(open::CREATE | open::EXCL | open::TRUNC);
        ExtRequest::Open { fid: handle_fid(0), newfid, name: b"", flags, mode: 0 }.into()
    }

    fn xattr(&self) -> Option<AnyRequest<'c>> {
        let (fid, name) = match self.request {
            AnyRequest::Ext(ExtRequest::Setxattr { fid, name, .. })
            | AnyRequest::Ext(ExtRequest::Removexattr { fid, name }) => (fid, name),
            _ => return None,
        };
        Some(ExtRequest::Getxattr { fid, name, count: XATTR_MAX }.into())
    }

    fn name_answered(&self, found: Result<FoundFile, u32>) -> InDoubtState {
        let is_absent = matches!(found, Err(ENOENT));
        if let (Err(errno), false) = (&found, is_absent) {
            return InDoubtState::Resolved(Failed(*errno));
        }
        InDoubtState::Resolved(match (self.request, found) {
            (AnyRequest::Ext(ExtRequest::Mknode { mode, .. }), Ok(found)) => {
                return self.made(mode, found);
            }
            (AnyRequest::Ext(ExtRequest::Open { .. }), Ok(found)) => return self.opened(found),
            (AnyRequest::Base(Request::Unlinkat { .. }), Err(_)) => Done(Reply::Unlinkat.into()),
            (AnyRequest::Base(Request::Renameat { .. }), Err(_)) => return InDoubtState::NewName,
            (AnyRequest::Base(Request::Link { fid, .. }), Ok(found)) => {
                match self.header.handles.get(fid) == Some(&found.handle[..]) {
                    true => Done(Reply::Link.into()),
                    false => Failed(EEXIST),
                }
            }
            // Not yet removed or renamed; not yet made, opened or linked.
            _ => NotExecuted,
        })
    }

    fn made(&self, mode: u32, found: FoundFile) -> InDoubtState {
        let attributes = found.attributes;
        let same = attributes.mode & S_IFMT == mode & S_IFMT && self.may_have_made(&attributes);
        match same {
            true if mode & S_IFMT == S_IFLNK => InDoubtState::Target(found),
            true => InDoubtState::Resolved(Made(found.handle, attributes)),
            false => InDoubtState::Resolved(Failed(EEXIST)),
        }
    }

    fn opened(&self, found: FoundFile) -> InDoubtState {
        let attributes = &found.attributes;
        let is_empty_file = attributes.mode & S_IFMT == S_IFREG && attributes.size == 0;
        match is_empty_file && self.may_have_made(attributes) {
            true => InDoubtState::Reopen(found),
            false => InDoubtState::Resolved(Failed(EEXIST)),
        }
    }

    /// Whether the call may have made it, as a user who may be another at the server.
    fn may_have_made(&self, attributes: &Attributes) -> bool {
        let uid = self.facts.uid;
        let changed = Time::from_nanos(attributes.ctime.sec.saturating_mul(1_000_000_000));
        (uid == 0 || uid == attributes.uid) && changed >= self.facts.since.before(SKEW)
    }

    fn is_target(&self, is: &[u8]) -> bool {
        matches!(self.request, AnyRequest::Ext(ExtRequest::Mknode { target, .. }) if target == is)
    }

    /// Where the data may be: behind the end that the file had when the call was made, since others
    /// may have appended behind it.
    fn size_answered(&self, answer: Result<AnyReply<'_>, u32>) -> InDoubtState {
        let end = match answer {
            Ok(AnyReply::Base(Reply::Getattr(attributes))) => attributes.size,
            Ok(_) => return InDoubtState::Resolved(Failed(EPROTO)),
            Err(errno) => return InDoubtState::Resolved(Failed(errno)),
        };
        let had = self.facts.file_end;
        // Somebody has cut it if it is shorter: then it may be anywhere.
        let had = if had <= end { had } else { 0 };
        let from = had.max(end.saturating_sub(APPEND_SEARCH_MAX));
        if end - from < self.appended_data().len() as u64 {
            return InDoubtState::Resolved(NotExecuted);
        }
        let range = SearchedRange { from, end, data: Vec::new() };
        match self.facts.reader {
            Some(_) if from < end => InDoubtState::OpenReader(range),
            Some(_) => InDoubtState::Resolved(self.appended(Some(range))),
            None => InDoubtState::Resolved(Failed(EIO)),
        }
    }

    /// Whether the data was found. If the same data is appended twice at a time, the call counts as
    /// executed rather than as never executed.
    fn appended(&self, range: Option<SearchedRange>) -> InDoubtOutcome {
        let Some(SearchedRange { from, data: found, .. }) = range else { return Failed(EIO) };
        let data = self.appended_data();
        let at = found.windows(data.len().max(1)).position(|window| window == data);
        at.map_or(NotExecuted, |at| {
            Done(ExtReply::Append { offset: from + at as u64, number: 0 }.into())
        })
    }

    fn appended_data(&self) -> &'c [u8] {
        match self.request {
            AnyRequest::Ext(ExtRequest::Append { data, .. }) => data,
            _ => b"",
        }
    }

    fn xattr_answered(&self, answer: Result<AnyReply<'_>, u32>) -> InDoubtOutcome {
        let value = match answer {
            Ok(AnyReply::Ext(ExtReply::Getxattr { data, .. })) => Some(data),
            Ok(_) => return Failed(EPROTO),
            Err(ENODATA) => None,
            Err(errno) => return Failed(errno),
        };
        match (self.request, value) {
            (AnyRequest::Ext(ExtRequest::Setxattr { data, .. }), Some(is)) => match is == data {
                true => Done(ExtReply::Setxattr.into()),
                false => Failed(EEXIST),
            },
            (AnyRequest::Ext(ExtRequest::Removexattr { .. }), None) => {
                Done(ExtReply::Removexattr.into())
            }
            _ => NotExecuted,
        }
    }
}

/// The file that a look-up found.
fn found(answer: Result<AnyReply<'_>, u32>) -> Result<FoundFile, u32> {
    match answer? {
        AnyReply::Ext(ExtReply::Lookup { handle, attributes }) => {
            Ok(FoundFile { handle: handle.to_vec(), attributes })
        }
        _ => Err(EPROTO),
    }
}

/// What follows on a read: fewer bytes come if the file has become shorter.
fn read_answered(mut range: SearchedRange, answer: Result<AnyReply<'_>, u32>) -> InDoubtState {
    let Ok(AnyReply::Base(Reply::Read { data })) = answer else {
        return InDoubtState::CloseReader(None);
    };
    let left = range.end - range.from - range.data.len() as u64;
    let data = &data[..data.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
    range.data.extend_from_slice(data);
    match data.is_empty() || range.data.len() as u64 == range.end - range.from {
        true => InDoubtState::CloseReader(Some(range)),
        false => InDoubtState::Read(range),
    }
}

const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;
const ENOENT: u32 = 2;
const EIO: u32 = 5;
const EEXIST: u32 = 17;
const ENODATA: u32 = 61;
const EPROTO: u32 = 71;
/// The largest value of an extended attribute in Linux, in bytes.
const XATTR_MAX: u32 = 64 << 10;
/// Maximum number of bytes that others may have appended since a call was made.
const APPEND_SEARCH_MAX: u64 = 16 << 20;
/// How far the clocks of mount and server may differ for a file to count as new.
const SKEW: Nanos = Nanos::from_secs(10);

#[cfg(test)]
#[path = "in_doubt_tests.rs"]
mod tests;
