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

use std::ops::Range;

use fuse::Errno;
use model::{Nanos, Time};
use ninep::dialect::{
    AnyReply, AnyRequest, ExtReply, ExtRequest, HandleList, HandlePlaces, NOSLOT, RequestHeader,
    decode_request, handle_fid,
};
use ninep::{Attributes, Fid, Reply, Request, XATTR_CREATE, getattr, open};

use super::ClientSession;
use super::call::{CallWaiter, ServerCall};
use super::handshake::Handshake;
use super::home_router::ROOM;
use super::socket::Broken;
use crate::files::OpenFiles;

/// Resolves every call in doubt of a channel.
pub(super) fn resolve_all(
    link: &ClientSession,
    on: usize,
    talk: &mut Handshake,
) -> Result<(), Broken> {
    loop {
        let Some(call) = link.lock_channel(on).state.pop_in_doubt() else { return Ok(()) };
        let outcome = match resolve(&link.shared.files, talk, &call) {
            Ok(outcome) => outcome,
            Err(broken) => {
                link.lock_channel(on).state.push_in_doubt(call);
                return Err(broken);
            }
        };
        tracing::info!(?call, ?outcome, "resolved a call in doubt");
        let waiter = call.waiter;
        match outcome {
            InDoubtOutcome::NotExecuted => link.lock_channel(on).state.requeue(call),
            other => other.complete(call),
        }
        if let Some(CallWaiter { request, .. }) = waiter
            && link.shared.missed.remove(request)
        {
            link.interrupt(request);
        }
    }
}

/// Result of resolving a call in doubt.
#[derive(Debug, PartialEq)]
enum InDoubtOutcome {
    /// It was not executed.
    NotExecuted,
    /// It was, and the answer says nothing but that.
    Done(Reply<'static>),
    DoneOwn(ExtReply<'static>),
    /// It was, and this is what it made.
    Made(Vec<u8>, Attributes),
    /// It was, and this is what it made and is open now.
    Opened(Vec<u8>, Attributes),
    Failed(Errno),
}

type FoundName = Result<InDoubtOutcome, Broken>;

impl InDoubtOutcome {
    fn complete(self, call: ServerCall) {
        match self {
            InDoubtOutcome::NotExecuted => unreachable!("such a call is made again"),
            InDoubtOutcome::Done(reply) => (call.done)(Ok(AnyReply::Base(reply))),
            InDoubtOutcome::DoneOwn(reply) => (call.done)(Ok(AnyReply::Ext(reply))),
            InDoubtOutcome::Made(handle, attributes) => {
                (call.done)(Ok(ExtReply::Mknode { handle: &handle, attributes }.into()));
            }
            InDoubtOutcome::Opened(handle, attributes) => {
                let reply = ExtReply::Open { handle: &handle, created: 1, attributes };
                (call.done)(Ok(reply.into()));
            }
            InDoubtOutcome::Failed(error) => (call.done)(Err(error)),
        }
    }
}

/// Resolves a call in doubt as its caller, with the files that it named.
struct InDoubtResolver<'a, 't> {
    handshake: &'t mut Handshake,
    header: RequestHeader<'a>,
    call: &'a ServerCall,
}

fn resolve(files: &OpenFiles, talk: &mut Handshake, call: &ServerCall) -> FoundName {
    let (_, header, request) = decode_request(call.spec.frame.bytes()).expect("we encoded it");
    let header =
        RequestHeader { reply_slot: NOSLOT, sequence: 0, names: HandlePlaces::NONE, ..header };
    let mut looker = InDoubtResolver { handshake: talk, header, call };
    match request {
        AnyRequest::Ext(ExtRequest::Mknode { fid, name, mode, target, .. }) => {
            looker.made(fid, name, mode, target)
        }
        AnyRequest::Ext(ExtRequest::Open { fid, newfid, name, flags, .. })
            if flags & open::EXCL != 0 =>
        {
            looker.opened(fid, newfid, name, flags)
        }
        AnyRequest::Base(Request::Unlinkat { dirfid, name, .. }) => looker.removed(dirfid, name),
        AnyRequest::Base(Request::Renameat { olddirfid, oldname, newdirfid, newname }) => {
            looker.renamed((olddirfid, oldname), (newdirfid, newname))
        }
        AnyRequest::Base(Request::Link { dfid, fid, name }) => looker.linked(dfid, fid, name),
        AnyRequest::Ext(ExtRequest::Append { fid, data, .. }) => looker.appended(files, fid, data),
        AnyRequest::Ext(ExtRequest::Setxattr { fid, name, flags, data }) => {
            looker.xattr_set(fid, name, flags, data)
        }
        AnyRequest::Ext(ExtRequest::Removexattr { fid, name }) => looker.xattr_removed(fid, name),
        // Whether space was cut out once or not at all cannot be seen.
        AnyRequest::Ext(ExtRequest::Allocate { .. }) => Ok(InDoubtOutcome::Failed(Errno::IO)),
        _ => Ok(InDoubtOutcome::NotExecuted),
    }
}

impl InDoubtResolver<'_, '_> {
    fn made(&mut self, fid: Fid, name: &[u8], mode: u32, target: &[u8]) -> FoundName {
        let (handle, attributes) = match self.lookup(fid, name)? {
            Ok(found) => found,
            Err(Errno::NOENT) => return Ok(InDoubtOutcome::NotExecuted),
            Err(error) => return Ok(InDoubtOutcome::Failed(error)),
        };
        let is_link = mode & S_IFMT == S_IFLNK;
        let same = attributes.mode & S_IFMT == mode & S_IFMT
            && self.may_be_created_by_call(&attributes)
            && (!is_link || self.points_to(&handle, target)?);
        Ok(match same {
            true => InDoubtOutcome::Made(handle, attributes),
            false => InDoubtOutcome::Failed(Errno::EXIST),
        })
    }

    fn opened(&mut self, fid: Fid, newfid: Fid, name: &[u8], flags: u32) -> FoundName {
        let (handle, attributes) = match self.lookup(fid, name)? {
            Ok(found) => found,
            Err(Errno::NOENT) => return Ok(InDoubtOutcome::NotExecuted),
            Err(error) => return Ok(InDoubtOutcome::Failed(error)),
        };
        let empty_file = attributes.mode & S_IFMT == S_IFREG && attributes.size == 0;
        if !empty_file || !self.may_be_created_by_call(&attributes) {
            return Ok(InDoubtOutcome::Failed(Errno::EXIST));
        }
        let flags = flags & !(open::CREATE | open::EXCL | open::TRUNC);
        let header = RequestHeader { handles: HandleList::one(&handle), ..self.header };
        let request = ExtRequest::Open { fid: handle_fid(0), newfid, name: b"", flags, mode: 0 };
        Ok(match self.handshake.call(header, request, |_| Some(()))? {
            Ok(()) => InDoubtOutcome::Opened(handle, attributes),
            Err(error) => InDoubtOutcome::Failed(error),
        })
    }

    fn removed(&mut self, fid: Fid, name: &[u8]) -> FoundName {
        Ok(match self.lookup(fid, name)? {
            Ok(_) => InDoubtOutcome::NotExecuted,
            Err(Errno::NOENT) => InDoubtOutcome::Done(Reply::Unlinkat),
            Err(error) => InDoubtOutcome::Failed(error),
        })
    }

    fn renamed(&mut self, old: (Fid, &[u8]), new: (Fid, &[u8])) -> FoundName {
        match self.lookup(old.0, old.1)? {
            Ok(_) => return Ok(InDoubtOutcome::NotExecuted),
            Err(Errno::NOENT) => {}
            Err(error) => return Ok(InDoubtOutcome::Failed(error)),
        }
        Ok(match self.lookup(new.0, new.1)? {
            Ok(_) => InDoubtOutcome::Done(Reply::Renameat),
            Err(error) => InDoubtOutcome::Failed(error),
        })
    }

    fn linked(&mut self, directory: Fid, file: Fid, name: &[u8]) -> FoundName {
        let file = self.header.handles.get(file).map(<[u8]>::to_vec);
        Ok(match self.lookup(directory, name)? {
            Ok((handle, _)) if Some(&handle) == file.as_ref() => InDoubtOutcome::Done(Reply::Link),
            Ok(_) => InDoubtOutcome::Failed(Errno::EXIST),
            Err(Errno::NOENT) => InDoubtOutcome::NotExecuted,
            Err(error) => InDoubtOutcome::Failed(error),
        })
    }

    /// Whether the data is behind the end that the file had when the call was made: others may have
    /// appended behind it. If the same data is appended twice at a time, the call counts as
    /// executed rather than as never executed.
    fn appended(&mut self, files: &OpenFiles, fid: Fid, data: &[u8]) -> FoundName {
        let size = match self.attributes(fid)? {
            Ok(attributes) => attributes.size,
            Err(error) => return Ok(InDoubtOutcome::Failed(error)),
        };
        let had = self.call.spec.replayable.as_ref().map_or(0, |(_, place)| place.start);
        // Somebody has cut it if it is shorter: then it may be anywhere.
        let had = if had <= size { had } else { 0 };
        let from = had.max(size.saturating_sub(APPEND_SEARCH_MAX));
        if size - from < data.len() as u64 {
            return Ok(InDoubtOutcome::NotExecuted);
        }
        // The open file may be for writing only.
        let handle = files.by_fid(fid).map(|file| file.node.handle.clone());
        let (Some(handle), Ok(reader)) = (handle, files.reserve()) else {
            return Ok(InDoubtOutcome::Failed(Errno::IO));
        };
        let behind = self.read(&handle, reader, from..size);
        files.release(reader);
        let Ok(behind) = behind? else { return Ok(InDoubtOutcome::Failed(Errno::IO)) };
        let at = behind.windows(data.len().max(1)).position(|found| found == data);
        Ok(at.map_or(InDoubtOutcome::NotExecuted, |at| {
            InDoubtOutcome::DoneOwn(ExtReply::Append { offset: from + at as u64, number: 0 })
        }))
    }

    fn xattr_set(&mut self, fid: Fid, name: &[u8], flags: u32, data: &[u8]) -> FoundName {
        if flags & XATTR_CREATE == 0 {
            return Ok(InDoubtOutcome::NotExecuted);
        }
        Ok(match self.xattr(fid, name)? {
            Ok(value) if value == data => InDoubtOutcome::DoneOwn(ExtReply::Setxattr),
            Ok(_) => InDoubtOutcome::Failed(Errno::EXIST),
            Err(Errno::NODATA) => InDoubtOutcome::NotExecuted,
            Err(error) => InDoubtOutcome::Failed(error),
        })
    }

    fn xattr_removed(&mut self, fid: Fid, name: &[u8]) -> FoundName {
        Ok(match self.xattr(fid, name)? {
            Ok(_) => InDoubtOutcome::NotExecuted,
            Err(Errno::NODATA) => InDoubtOutcome::DoneOwn(ExtReply::Removexattr),
            Err(error) => InDoubtOutcome::Failed(error),
        })
    }

    /// Whether it may have been made by the call, whose user may be another at the server.
    fn may_be_created_by_call(&self, attributes: &Attributes) -> bool {
        let payer = self.call.payer.uid();
        let since = self.call.since.unwrap_or(Time::ZERO).before(SKEW);
        let changed = Time::ZERO + Nanos::from_secs(attributes.ctime.sec);
        (payer == 0 || payer == attributes.uid) && changed >= since
    }

    fn points_to(&mut self, handle: &[u8], target: &[u8]) -> Result<bool, Broken> {
        let header = RequestHeader { handles: HandleList::one(handle), ..self.header };
        let same =
            self.handshake.call(header, Request::Readlink { fid: handle_fid(0) }, |reply| {
                match reply {
                    AnyReply::Base(Reply::Readlink { target: is }) => Some(is == target),
                    _ => None,
                }
            })?;
        Ok(same.unwrap_or(false))
    }

    fn lookup(
        &mut self,
        fid: Fid,
        name: &[u8],
    ) -> Result<Result<(Vec<u8>, Attributes), Errno>, Broken> {
        self.handshake.call(self.header, ExtRequest::Lookup { fid, name }, |reply| match reply {
            AnyReply::Ext(ExtReply::Lookup { handle, attributes }) => {
                Some((handle.to_vec(), attributes))
            }
            _ => None,
        })
    }

    fn attributes(&mut self, fid: Fid) -> Result<Result<Attributes, Errno>, Broken> {
        let request = Request::Getattr { fid, mask: getattr::BASIC };
        self.handshake.call(self.header, request, |reply| match reply {
            AnyReply::Base(Reply::Getattr(attributes)) => Some(attributes),
            _ => None,
        })
    }

    fn xattr(&mut self, fid: Fid, name: &[u8]) -> Result<Result<Vec<u8>, Errno>, Broken> {
        let request = ExtRequest::Getxattr { fid, name, count: XATTR_MAX };
        self.handshake.call(self.header, request, |reply| match reply {
            AnyReply::Ext(ExtReply::Getxattr { data, .. }) => Some(data.to_vec()),
            _ => None,
        })
    }

    fn read(
        &mut self,
        handle: &[u8],
        fid: Fid,
        place: Range<u64>,
    ) -> Result<Result<Vec<u8>, Errno>, Broken> {
        let header = RequestHeader { handles: HandleList::one(handle), ..self.header };
        let request = ExtRequest::Open {
            fid: handle_fid(0),
            newfid: fid,
            name: b"",
            flags: open::RDONLY,
            mode: 0,
        };
        if let Err(error) = self.handshake.call(header, request, |_| Some(()))? {
            return Ok(Err(error));
        }
        let data = self.read_open(fid, place)?;
        // What became of the clunk does not matter: the fid is nobody's.
        let _ = self.handshake.call(self.header, Request::Clunk { fid }, |_| Some(()))?;
        Ok(data)
    }

    /// Reads an open file's bytes there; fewer if it has become shorter.
    fn read_open(&mut self, fid: Fid, place: Range<u64>) -> Result<Result<Vec<u8>, Errno>, Broken> {
        let mut all = Vec::new();
        let mut offset = place.start;
        while offset < place.end {
            let most = u64::from(self.handshake.msize.saturating_sub(ROOM).max(1));
            let read = Request::Read { fid, offset, count: (place.end - offset).min(most) as u32 };
            let part = self.handshake.call(self.header, read, |reply| match reply {
                AnyReply::Base(Reply::Read { data }) => Some(data.to_vec()),
                _ => None,
            })?;
            match part {
                Ok(part) if part.is_empty() => break,
                Ok(part) => {
                    offset += part.len() as u64;
                    all.extend(part);
                }
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(all))
    }
}

const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;
/// The largest value of an extended attribute in Linux, in bytes.
const XATTR_MAX: u32 = 64 << 10;
/// Maximum number of bytes that others may have appended since a call was made.
const APPEND_SEARCH_MAX: u64 = 16 << 20;
/// How far the clocks of mount and server may differ for a file to count as new.
const SKEW: Nanos = Nanos::from_secs(10);

#[cfg(test)]
#[path = "in_doubt_tests.rs"]
mod tests;
