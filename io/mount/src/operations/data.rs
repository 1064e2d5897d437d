//! Open files: opened and made, read, written, closed.
//!
//! ```text
//!   open, create ─► Topen newfid ─► OpenFile ─► read, write: by fid, paid by the opener
//!                     │ version as at the last open? the page cache is kept
//!                     │ not at its names any more? ESTALE: the kernel looks the name up again
//!   write ─┬─ cached ─► buffered, answered at once     close, fsync ─► wait for those
//!          └─ direct, appended, attr_timeout=0 ─► answered when executed
//!   release ─► Tclunk ─► the fid is free
//! ```
//!
//! Close-to-open: writes before a close are seen by an open after it, on any mount, because a close
//! waits for them and every open asks the proxy for the file that has the name then. If the file
//! has changed, the kernel drops its cached pages and its cached size. Opening or reading a file
//! that others write waits only for the bytes that are read.

use std::ffi::{CStr, CString};
use std::sync::Arc;

use fuse::{
    Allocate, CopiedBytes, CopyRange, Created, DataReply, Errno, FuseOpen, FuseRead, FuseRequest,
    FuseWrite, Handle, NewFile, OpenFlags, OpenedFile, Release, Reply, SeekPosition, WrittenBytes,
};
use ninep::dialect::{AnyReply, ExtReply, ExtRequest, HandleList, WRITE_KILL_PRIV, handle_fid};
use ninep::{Fid, open as bits};

use super::behind::{self, FetchedAttributes};
use super::leased::is_plain_read;
use super::stale::{FileWalk, NameWalk};
use super::{locks, names, or_error};
use crate::files::OpenFile;
use crate::filesystem::MountFs;
use crate::nodes::MountNode;
use crate::session::{CallReply, CallSpec, SessionIdentity};
use crate::translate::open_flags;

/// Opens a file or a directory that the kernel knows.
pub(crate) fn open(
    export: &MountFs,
    request: &FuseRequest,
    open: FuseOpen,
    reply: Reply<OpenedFile>,
) {
    let node = or_error!(export.nodes.get(request.inode), reply);
    // The kernel has followed links and has made what was to be made.
    let flags = open_flags(open.flags) & !(bits::CREATE | bits::EXCL | bits::NOFOLLOW);
    let walk = FileWalk::to_use(export, request, &node);
    if flags & bits::TRUNC != 0 {
        return behind::after(export, &node.clone(), request, reply, move |export, who, reply| {
            open_now(export, who, node, walk, flags, reply);
        });
    }
    if !is_plain_read(flags) || !export.shared().leases.is_holder() {
        return open_now(export, request, node, walk, flags, reply);
    }
    let (who, home) = (*request, export.homes.of(&node));
    export.caller_at(home, request, move |export, identity| {
        let identity = or_error!(identity, reply);
        match export.open_parked(&node, &identity, flags) {
            Some(file) => {
                let flags = OpenFlags::KEEP_CACHE;
                reply.ok(&OpenedFile { handle: file.handle(), flags, backing: None });
            }
            None => open_now(export, &who, node, walk, flags, reply),
        }
    });
}

fn open_now(
    export: &MountFs,
    request: &FuseRequest,
    node: Arc<MountNode>,
    walk: FileWalk,
    flags: u32,
    reply: Reply<OpenedFile>,
) {
    let newfid = or_error!(export.files().reserve(), reply);
    let message = ExtRequest::Open { fid: handle_fid(0), newfid, name: b"", flags, mode: 0 };
    let (lease, asked) = (export.lease_request(), export.shared().write_behind.now());
    let change = if flags & bits::TRUNC != 0 { export.change_of(&node) } else { None };
    // A fid is taken by it, so it is not for repeating.
    let (ask, _) = export.call_by_name(&node, walk.found, message);
    let (ask, home) = (ask.only_once().leased(&lease).changing(change), node.clone());
    export.as_caller_with(&home, request, ask, reply, move |export, payer, answer, reply| {
        let told = match made(export, newfid, payer, answer, |_, _, _| ()) {
            Ok(((), told)) => told,
            // The kernel looks the name up again and comes back with the file of that name.
            Err(Errno::STALE) => return reply.error(walk.stale_error(export, &node)),
            Err(error) => return reply.error(error),
        };
        export.nodes.update_attributes(&node, &told);
        let inode = node.id;
        if flags & bits::TRUNC != 0 {
            export.shared().write_behind.changed(&node);
        }
        let opened = opened(export, newfid, node.clone(), payer, flags, told.qid.version);
        if let Ok(file) = export.files().get(opened.handle) {
            let (attributes, requested_at, leased) = (told, asked, None);
            let fetched = FetchedAttributes { node, attributes, requested_at, leased };
            export.keep_open(&lease, &file, &fetched);
        }
        if !opened.flags.contains(OpenFlags::KEEP_CACHE) {
            let _ = export.invalidate_attributes(inode);
        }
        reply.ok(&opened);
    });
}

/// Makes a file, unless it is there, and opens it.
pub(crate) fn create(
    export: &MountFs,
    request: &FuseRequest,
    name: &CStr,
    open: FuseOpen,
    new: NewFile,
    reply: Reply<Created>,
) {
    let directory = or_error!(export.nodes.get(request.inode), reply);
    let (who, name) = (*request, name.to_owned());
    let flags = open_flags(open.flags) | bits::CREATE;
    names::masked(export, request, &directory.clone(), new, reply, move |export, mode, reply| {
        create_now(export, &who, directory, name, flags, mode & 0o7777, reply);
    });
}

fn create_now(
    export: &MountFs,
    request: &FuseRequest,
    directory: Arc<MountNode>,
    called: CString,
    flags: u32,
    mode: u32,
    reply: Reply<Created>,
) {
    let newfid = or_error!(export.files().reserve(), reply);
    let (fid, name) = (handle_fid(0), called.to_bytes());
    let message = ExtRequest::Open { fid, newfid, name, flags, mode };
    let change = export.change_of_new_name(&directory, name, None);
    let lease = export.lease_request();
    let ask = CallSpec::once(HandleList::one(&directory.handle), message);
    let ask = ask.changing(change).leased(&lease);
    let walk = NameWalk::new(export, request, &[&directory]);
    let (who, asked) = (*request, export.shared().write_behind.now());
    let home = directory.clone();
    export.as_caller_with(&home, request, ask, reply, move |export, payer, answer, reply| {
        let made = made(export, newfid, payer, answer, |export, handle, told| {
            export.nodes.lookup(handle, told)
        });
        let (node, told) = match made {
            Err(Errno::STALE) => return reply.error(walk.stale_error(export, &[&directory])),
            made => or_error!(made, reply),
        };
        let opened = opened(export, newfid, node.clone(), payer, flags, told.qid.version);
        export.directory_changed(&directory);
        // It may have been there, known to this mount by another name.
        let payer = payer.clone();
        if flags & bits::TRUNC != 0 {
            // It may have been there, known by another name.
            drop(export.change_of(&node));
        }
        let (attributes, requested_at, leased) = (told, asked, None);
        let mut fetched = FetchedAttributes { node, attributes, requested_at, leased };
        let until = export.keep_made(&lease, &directory, called.to_bytes(), &fetched);
        fetched.leased = until.attributes;
        behind::as_written(export, &who, fetched, reply, move |export, node, known| {
            let known = known.inspect_err(|_| {
                export.nodes.forget(node.id, 1);
                export.files().close(opened.handle);
                clunk(export, newfid, &payer);
            })?;
            let entry = export.entry(directory.id, called.to_bytes(), node, &known, until.name);
            Ok(Created { entry, opened })
        });
    });
}

pub(crate) fn read(
    export: &MountFs,
    request: &FuseRequest,
    read: FuseRead,
    reply: Reply<DataReply>,
) {
    let file = or_error!(export.files().get(read.handle), reply);
    let opened = file.clone();
    export.with_read_lease(request, &opened, reply, move |export, who, reply| {
        read_now(export, who, &file, read, reply);
    });
}

fn read_now(
    export: &MountFs,
    request: &FuseRequest,
    file: &Arc<OpenFile>,
    read: FuseRead,
    reply: Reply<DataReply>,
) {
    let (offset, count) = (read.offset, read.size.min(export.payload));
    let message = ninep::Request::Read { fid: file.fid, offset, count };
    let ask = CallSpec::new(HandleList::NONE, message).with_bytes(count as usize);
    let place = offset..offset.saturating_add(count.into());
    let (last, file) = (place.end, file.clone());
    behind::after_part(export, &file.clone(), place, request, reply, move |export, who, reply| {
        let (opened, asked) = (file.clone(), export.shared().write_behind.now());
        export.as_opener_with(who, &file, ask, reply, move |export, answer, reply| match answer {
            Ok(AnyReply::Base(ninep::Reply::Read { data })) => {
                // Where the proxy's file ends it goes on here, with what is written behind that.
                let end = opened.node.write_behind.reach(asked).min(last);
                let missing = end.saturating_sub(offset.saturating_add(data.len() as u64));
                with_zeros(data, missing as usize, reply);
                export.drop_pages_without_lease(&opened);
            }
            Ok(_) => reply.error(Errno::PROTO),
            Err(error) => reply.error(error),
        });
    });
}

/// Replies with these bytes, and `missing` zeros.
fn with_zeros(data: &[u8], mut missing: usize, reply: Reply<DataReply>) {
    if missing == 0 {
        return reply.bytes(data);
    }
    let mut pieces = vec![data];
    while missing > 0 {
        let zeros = &ZEROS[..missing.min(ZEROS.len())];
        pieces.push(zeros);
        missing -= zeros.len();
    }
    reply.pieces(&pieces);
}

/// Writes: answered at once where the page cache keeps the bytes anyway, and other mounts do
/// not expect to see them before a close.
pub(crate) fn write(
    export: &MountFs,
    request: &FuseRequest,
    write: FuseWrite<'_>,
    reply: Reply<WrittenBytes>,
) {
    let file = or_error!(export.files().get(write.handle), reply);
    or_error!(file.take_failure(), reply);
    file.node.clear_version();
    file.wrote(write.from_cache);
    let flags = file.flags | open_flags(write.flags);
    let cached = write.from_cache || flags & (bits::DIRECT | bits::APPEND) == 0;
    let at_once = cached && !export.believed.is_zero();
    behind::with_room(
        export,
        request,
        &file,
        &write,
        reply,
        move |export, who, file, write, reply| match at_once {
            true => behind::write(export, who, file, write, reply),
            false => write_through(export, who, file, write, reply),
        },
    );
}

/// Writes, and answers when it is done. To a file that is opened for appending, at its end: the
/// kernel's idea of where that is may be old.
pub(super) fn write_through(
    export: &MountFs,
    request: &FuseRequest,
    file: &Arc<OpenFile>,
    write: &FuseWrite<'_>,
    reply: Reply<WrittenBytes>,
) {
    let (fid, data) = (file.fid, write.data);
    let flags = if write.kill_set_id { WRITE_KILL_PRIV } else { 0 };
    // Of what is appended the place is where it can begin, until the proxy says where it does.
    let (ask, start) = match file.appends() && !write.from_cache {
        true => {
            let message = ExtRequest::Append { fid, flags, data };
            (CallSpec::once(HandleList::NONE, message), file.node.len())
        }
        false => {
            let message = ExtRequest::Write { fid, offset: write.offset, flags, data };
            (CallSpec::new(HandleList::NONE, message), write.offset)
        }
    };
    let (file, len) = (file.clone(), data.len());
    let place = start..start + len as u64;
    let ask = ask.with_bytes(len).replayable(&file.node, &place);
    behind::after_opener(export, &file.clone(), request, reply, move |export, who, reply| {
        let node = file.node.clone();
        let ask = ask.changing(export.change_of(&node));
        export.as_opener(who, &file, ask, reply, move |export, answer| {
            export.shared().write_behind.changed(&node);
            match answer? {
                AnyReply::Ext(ExtReply::Write { count, .. }) => {
                    Ok(WrittenBytes(count.min(len as u32)))
                }
                AnyReply::Ext(ExtReply::Append { offset, .. }) => {
                    node.extend_to(offset + len as u64);
                    Ok(WrittenBytes(len as u32))
                }
                _ => Err(Errno::PROTO),
            }
        });
    });
}

pub(crate) fn fsync(
    export: &MountFs,
    request: &FuseRequest,
    handle: Handle,
    data_only: bool,
    reply: Reply<()>,
) {
    let file = or_error!(export.files().get(handle), reply);
    fsync_open(export, request, file, data_only, reply);
}

fn fsync_open(
    export: &MountFs,
    request: &FuseRequest,
    file: Arc<OpenFile>,
    data_only: bool,
    reply: Reply<()>,
) {
    behind::after_opener(export, &file.clone(), request, reply, move |export, who, reply| {
        or_error!(file.take_failure(), reply);
        let message = ninep::Request::Fsync { fid: file.fid, datasync: data_only.into() };
        let ask = CallSpec::new(HandleList::NONE, message);
        let losses = export.homes.link(&file.payer).uncommitted.losses();
        let who = *who;
        export.as_opener_with(&who, &file.clone(), ask, reply, move |export, answer, reply| {
            // What was lost meanwhile is being written once more, and is to be durable too.
            match answer {
                Ok(_) if export.homes.link(&file.payer).uncommitted.losses() != losses => {
                    fsync_open(export, &who, file, data_only, reply);
                }
                answer => reply.send(answer.map(|_| ())),
            }
        });
    });
}

/// The last descriptor is closed. The kernel is answered at once, without waiting for the proxy.
pub(crate) fn release(export: &MountFs, release: Release, reply: Reply<()>) {
    let file = export.files().close(release.handle);
    reply.ok(&());
    let Some(file) = file else { return };
    export.drop_pages_of_writer(&file);
    locks::release(export, file, release.unlock_flock, |export, file, giving| {
        if giving.is_none() && file.read_span() != 0 {
            let closed = export.park(file);
            return closed.iter().for_each(|file| clunk(export, file.fid, &file.payer));
        }
        clunk_then(export, file.fid, &file.payer, move || drop(giving));
    });
}

pub(crate) fn allocate(
    export: &MountFs,
    request: &FuseRequest,
    allocate: Allocate,
    reply: Reply<()>,
) {
    let file = or_error!(export.files().get(allocate.handle), reply);
    let Allocate { offset, len, mode, .. } = allocate;
    file.node.clear_version();
    let message = ExtRequest::Allocate { fid: file.fid, mode, offset, length: len };
    let repeatable = mode & !(KEEP_SIZE | PUNCH_HOLE | ZERO_RANGE) == 0;
    let ask = match repeatable {
        true => CallSpec::new(HandleList::NONE, message),
        false => CallSpec::once(HandleList::NONE, message),
    };
    behind::after_opener(export, &file.clone(), request, reply, move |export, who, reply| {
        let node = file.node.clone();
        let ask = ask.changing(export.change_of(&node));
        export.as_opener(who, &file, ask, reply, move |export, answer| {
            export.shared().write_behind.changed(&node);
            answer.map(|_| ())
        });
    });
}

pub(crate) fn seek(
    export: &MountFs,
    request: &FuseRequest,
    handle: Handle,
    offset: u64,
    whence: u32,
    reply: Reply<SeekPosition>,
) {
    let file = or_error!(export.files().get(handle), reply);
    let ask = CallSpec::new(HandleList::NONE, ExtRequest::Seek { fid: file.fid, offset, whence });
    behind::after_opener(export, &file.clone(), request, reply, move |export, who, reply| {
        export.as_opener(who, &file, ask, reply, |_, answer| match answer? {
            AnyReply::Ext(ExtReply::Seek { offset }) => Ok(SeekPosition(offset)),
            _ => Err(Errno::PROTO),
        });
    });
}

pub(crate) fn copy(
    export: &MountFs,
    request: &FuseRequest,
    copy: CopyRange,
    reply: Reply<CopiedBytes>,
) {
    let from = or_error!(export.files().get(copy.from), reply);
    let to = or_error!(export.files().get(copy.to), reply);
    if from.payer.home != to.payer.home {
        // No proxy has both open: then the kernel reads and writes.
        return reply.error(Errno::OPNOTSUPP);
    }
    to.node.clear_version();
    let message = ExtRequest::Copy {
        fid: from.fid,
        offset: copy.from_offset,
        tofid: to.fid,
        tooffset: copy.to_offset,
        length: copy.len,
    };
    let ask = CallSpec::new(HandleList::NONE, message);
    behind::after_opener(export, &from.clone(), request, reply, move |export, who, reply| {
        behind::after_opener(export, &to.clone(), who, reply, move |export, who, reply| {
            let node = to.node.clone();
            let ask = ask.changing(export.change_of(&node));
            export.as_opener(who, &to, ask, reply, move |export, answer| {
                export.shared().write_behind.changed(&node);
                match answer? {
                    AnyReply::Ext(ExtReply::Copy { count, .. }) => Ok(CopiedBytes(count)),
                    _ => Err(Errno::PROTO),
                }
            });
        });
    });
}

/// The open file is in the table, and the kernel may name it.
fn opened(
    export: &MountFs,
    fid: Fid,
    node: Arc<MountNode>,
    payer: &Arc<SessionIdentity>,
    flags: u32,
    version: u32,
) -> OpenedFile {
    let keeps_cache = node.note_open_version(version);
    if flags & bits::TRUNC != 0 {
        node.clear_version();
    }
    let file: Arc<OpenFile> = export.files().opened(fid, node, payer.clone(), flags);
    export.end_read_of_writer(&file);
    // What is appended goes past the page cache: the kernel would put it where it believes the
    // end to be, and cut a write that crosses a page there in two.
    let past_cache = flags & (bits::DIRECT | bits::APPEND) != 0;
    let flags = match (past_cache, keeps_cache) {
        (true, _) => OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES,
        (false, true) => OpenFlags::KEEP_CACHE,
        (false, false) => OpenFlags::NONE,
    };
    OpenedFile { handle: file.handle(), flags, backing: None }
}

/// Handles Ropen of a file; if it failed the fid is free again.
fn made<T>(
    export: &MountFs,
    fid: Fid,
    payer: &Arc<SessionIdentity>,
    answer: CallReply<'_>,
    take: impl FnOnce(&MountFs, &[u8], &ninep::Attributes) -> T,
) -> Result<(T, ninep::Attributes), Errno> {
    let error = match answer {
        Ok(AnyReply::Ext(ExtReply::Open { handle, attributes, created: _ })) => {
            return Ok((take(export, handle, &attributes), attributes));
        }
        Ok(_) => Errno::PROTO,
        Err(error) => error,
    };
    match error {
        // Given up while there was no connection, perhaps: then it may yet be executed.
        Errno::INTR | Errno::TIMEDOUT => clunk(export, fid, payer),
        _ => export.files().release(fid),
    }
    Err(error)
}

/// Makes the proxy forget a fid. Until it has answered that, the fid stays taken.
fn clunk(export: &MountFs, fid: Fid, payer: &Arc<SessionIdentity>) {
    clunk_then(export, fid, payer, || ());
}

/// As [`clunk`]; `then` is called once the proxy has answered.
fn clunk_then(
    export: &MountFs,
    fid: Fid,
    payer: &Arc<SessionIdentity>,
    then: impl FnOnce() + Send + 'static,
) {
    let ask = CallSpec::new(HandleList::NONE, ninep::Request::Clunk { fid }).freely();
    export.call_without_waiter(payer, ask, move |export, answer| {
        if !matches!(answer, Err(Errno::TIMEDOUT | Errno::NOTCONN)) {
            export.files().release(fid);
        }
        then();
    });
}

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

// Of fallocate(2): what may be done twice.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;
