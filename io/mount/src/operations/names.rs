//! Names: looked up, made, given and taken away.
//!
//! ```text
//!   directory's handle, name ─► one message ─┬─► the file's handle and attributes ─► InodeEntry
//!                                            └─► the directory is gone ─► stale.rs
//! ```

use std::ffi::{CStr, CString};
use std::sync::Arc;

use fuse::{DataReply, Errno, FuseRequest, InodeEntry, InodeId, NewFile, Reply};
use model::Time;
use ninep::dialect::{AnyReply, ExtReply, ExtRequest, HandleList, handle_fid};

use super::behind::{self, FetchedAttributes};
use super::leased::{LeasedName, NamePlace, NameReply, NamedFile};
use super::or_error;
use super::stale::NameWalk;
use crate::filesystem::{MountFs, rest};
use crate::nodes::MountNode;
use crate::session::CallSpec;
use crate::write_behind::KnownSize;

/// Looks up a name. The absence of a name is cached under a lease only: a process that learns of its
/// creation elsewhere expects to find it.
pub(crate) fn lookup(
    export: &MountFs,
    request: &FuseRequest,
    name: &CStr,
    reply: Reply<InodeEntry>,
) {
    let directory = or_error!(export.nodes.get(request.inode), reply);
    let message = ExtRequest::Lookup { fid: handle_fid(0), name: name.to_bytes() };
    let walk = NameWalk::new(export, request, &[&directory]);
    let was_known = export.nodes.node_at(directory.id, name.to_bytes()).is_some();
    match export.leased_name(&directory, name.to_bytes(), was_known) {
        Some(LeasedName::Absent(until)) => {
            not_found(export, &walk, &directory, name);
            return absent(until, reply);
        }
        Some(LeasedName::File(file)) => {
            let NamedFile { handle, attributes, requested_at, until, named_until } = file;
            let node = export.nodes.lookup(&handle, &attributes);
            walk.found(export, &node);
            let leased = Some(until);
            let fetched = FetchedAttributes { node, attributes, requested_at, leased };
            return entry(export, request, fetched, name.to_owned(), named_until, reply);
        }
        None => {}
    }
    let lease = export.lease_request();
    let ask = CallSpec::new(HandleList::one(&directory.handle), message).leased(&lease);
    let (who, name) = (*request, name.to_owned());
    let (asked, home) = (export.shared().write_behind.now(), directory.clone());
    export.as_caller_with(&home, request, ask, reply, move |export, _, answer, reply| {
        match answer {
            Ok(AnyReply::Ext(ExtReply::Lookup { handle, attributes })) => {
                let node = export.nodes.lookup(handle, &attributes);
                walk.found(export, &node);
                let (requested_at, leased) = (asked, None);
                let mut fetched = FetchedAttributes { node, attributes, requested_at, leased };
                let called = name.to_bytes();
                let by = NameReply { own: 0, was_known };
                let until = export.keep_name(&lease, &directory, called, &fetched, by);
                fetched.leased = until.attributes;
                entry(export, &who, fetched, name, until.name, reply);
            }
            Ok(_) => reply.error(Errno::PROTO),
            // Where the kernel has a file of this name it asks whether that is still so, and takes any error
            // for a no: the look-up that counts comes next.
            Err(Errno::STALE) if export.nodes.removed(directory.id, name.to_bytes()) => {
                reply.error(Errno::STALE);
            }
            Err(Errno::STALE) => reply.error(walk.lookup_error(export, &directory)),
            Err(error) => {
                not_found(export, &walk, &directory, &name);
                match error {
                    Errno::NOENT => {
                        absent(export.keep_absent(&lease, &directory, name.to_bytes()), reply);
                    }
                    error => reply.error(error),
                }
            }
        }
    });
}

/// Says that a name is absent, and until when the kernel may believe that.
fn absent(until: Option<Time>, reply: Reply<InodeEntry>) {
    match until {
        Some(until) => reply.ok(&InodeEntry::absent(rest(until))),
        None => reply.error(Errno::NOENT),
    }
}

/// Notes that a name is absent.
fn not_found(export: &MountFs, walk: &NameWalk, directory: &MountNode, name: &CStr) {
    if !export.nodes.removed(directory.id, name.to_bytes()) {
        walk.note_not_found(export);
    }
}

/// The entry of a node that was looked up, if its attributes can be had as they are now.
fn entry(
    export: &MountFs,
    request: &FuseRequest,
    fetched: FetchedAttributes,
    name: CString,
    named_until: Option<Time>,
    reply: Reply<InodeEntry>,
) {
    let directory = request.inode;
    behind::as_written(export, request, fetched, reply, move |export, node, known| {
        // Without them the kernel does not receive the look-up.
        let known = known.inspect_err(|_| export.nodes.forget(node.id, 1))?;
        export.nodes.update_attributes(node, &known.attributes);
        Ok(export.entry(directory, name.to_bytes(), node, &known, named_until))
    });
}

/// Makes a file of the type in its mode, less the umask.
pub(crate) fn make(
    export: &MountFs,
    request: &FuseRequest,
    name: &CStr,
    new: NewFile,
    reply: Reply<InodeEntry>,
) {
    let directory = or_error!(export.nodes.get(request.inode), reply);
    let (who, name) = (*request, name.to_owned());
    masked(export, request, &directory, new, reply, move |export, mode, reply| {
        make_now(export, &who, &name, NewFile { mode, ..new }, c"", reply);
    });
}

/// The mode of a new file without what the umask takes. Where the directory has a default
/// ACL, that takes the umask's place, so the proxy is asked unless it is known that there is
/// none.
pub(super) fn masked<T: 'static>(
    export: &MountFs,
    request: &FuseRequest,
    directory: &Arc<MountNode>,
    new: NewFile,
    reply: Reply<T>,
    then: impl FnOnce(&MountFs, u32, Reply<T>) + Send + 'static,
) {
    let masked = new.mode & !(new.umask & 0o777);
    if masked == new.mode || export.is_plain(directory) {
        return then(export, masked, reply);
    }
    let name = b"system.posix_acl_default";
    let message = ExtRequest::Getxattr { fid: handle_fid(0), name, count: 0 };
    let ask = CallSpec::new(HandleList::one(&directory.handle), message);
    let walk = NameWalk::new(export, request, &[directory]);
    let (home, directory) = (directory, directory.clone());
    export.as_caller_with(
        home,
        request,
        ask,
        reply,
        move |export, _, answer, reply| match answer {
            Ok(AnyReply::Ext(ExtReply::Getxattr { length: 1.., .. })) => {
                then(export, new.mode, reply)
            }
            Ok(_) | Err(Errno::NODATA | Errno::OPNOTSUPP) => then(export, masked, reply),
            Err(Errno::STALE) => reply.error(walk.stale_error(export, &[&directory])),
            Err(error) => reply.error(error),
        },
    );
}

/// Makes a file of the type in its mode; `target` is where a symbolic link points.
fn make_now(
    export: &MountFs,
    request: &FuseRequest,
    name: &CStr,
    new: NewFile,
    target: &CStr,
    reply: Reply<InodeEntry>,
) {
    let directory = or_error!(export.nodes.get(request.inode), reply);
    let message = ExtRequest::Mknode {
        fid: handle_fid(0),
        name: name.to_bytes(),
        mode: new.mode,
        rdev: new.device.0.into(),
        target: target.to_bytes(),
    };
    let change = export.change_of_new_name(&directory, name.to_bytes(), None);
    let lease = export.lease_request();
    let ask = CallSpec::once(HandleList::one(&directory.handle), message);
    let ask = ask.changing(change).leased(&lease);
    let walk = NameWalk::new(export, request, &[&directory]);
    let (name, asked) = (name.to_owned(), export.shared().write_behind.now());
    export.as_caller(
        &directory.clone(),
        request,
        ask,
        reply,
        move |export, _, answer| match answer {
            Ok(AnyReply::Ext(ExtReply::Mknode { handle, attributes })) => {
                export.directory_changed(&directory);
                let node = export.nodes.lookup(handle, &attributes);
                let (requested_at, leased, called) = (asked, None, name.to_bytes());
                let fetched = FetchedAttributes { node, attributes, requested_at, leased };
                let until = export.keep_made(&lease, &directory, called, &fetched);
                let known = KnownSize { attributes, last: true, leased: until.attributes };
                Ok(export.entry(directory.id, called, &fetched.node, &known, until.name))
            }
            Ok(_) => Err(Errno::PROTO),
            Err(Errno::STALE) => Err(walk.stale_error(export, &[&directory])),
            Err(error) => Err(error),
        },
    );
}

pub(crate) fn symlink(
    export: &MountFs,
    request: &FuseRequest,
    name: &CStr,
    target: &CStr,
    reply: Reply<InodeEntry>,
) {
    let new = NewFile { mode: SYMLINK | 0o777, umask: 0, device: Default::default() };
    make_now(export, request, name, new, target, reply);
}

/// Takes a name away; `flags` are the protocol's.
pub(crate) fn remove(
    export: &MountFs,
    request: &FuseRequest,
    name: &CStr,
    flags: u32,
    reply: Reply<()>,
) {
    let directory = or_error!(export.nodes.get(request.inode), reply);
    let dirfid = handle_fid(0);
    let message = ninep::Request::Unlinkat { dirfid, name: name.to_bytes(), flags };
    let place = NamePlace { directory: &directory, name: name.to_bytes(), exists: true };
    let change = export.change_of_names(&[place], None);
    let ask = CallSpec::once(HandleList::one(&directory.handle), message).changing(change);
    let walk = NameWalk::new(export, request, &[&directory]);
    let name = name.to_owned();
    export.as_caller(&directory.clone(), request, ask, reply, move |export, _, answer| {
        match answer {
            Err(Errno::STALE) => return Err(walk.stale_error(export, &[&directory])),
            answer => answer?,
        };
        export.directory_changed(&directory);
        export.nodes.removed(directory.id, name.to_bytes());
        Ok(())
    });
}

pub(crate) fn rename(
    export: &MountFs,
    request: &FuseRequest,
    from: &CStr,
    directory: InodeId,
    to: &CStr,
    reply: Reply<()>,
) {
    let old = or_error!(export.nodes.get(request.inode), reply);
    let new = or_error!(export.nodes.get(directory), reply);
    let message = ninep::Request::Renameat {
        olddirfid: handle_fid(0),
        oldname: from.to_bytes(),
        newdirfid: handle_fid(1),
        newname: to.to_bytes(),
    };
    let moved = NamePlace { directory: &old, name: from.to_bytes(), exists: true };
    let made = NamePlace { directory: &new, name: to.to_bytes(), exists: false };
    let change = export.change_of_names(&[moved, made], None);
    let ask = CallSpec::once(HandleList::two(&old.handle, &new.handle), message).changing(change);
    let walk = NameWalk::new(export, request, &[&old, &new]);
    let (from, to) = (from.to_owned(), to.to_owned());
    export.as_caller(&new.clone(), request, ask, reply, move |export, _, answer| {
        match answer {
            Err(Errno::STALE) => return Err(walk.stale_error(export, &[&old, &new])),
            answer => answer?,
        };
        export.directory_changed(&old);
        export.directory_changed(&new);
        export.nodes.renamed((old.id, from.to_bytes()), (new.id, to.to_bytes()));
        Ok(())
    });
}

/// Gives a file one more name. The reply to that says nothing of the file: its attributes are
/// asked for, with one link more.
pub(crate) fn link(
    export: &MountFs,
    request: &FuseRequest,
    inode: InodeId,
    name: &CStr,
    reply: Reply<InodeEntry>,
) {
    let directory = or_error!(export.nodes.get(request.inode), reply);
    let file = or_error!(export.nodes.get(inode), reply);
    let (dfid, fid) = (handle_fid(0), handle_fid(1));
    let message = ninep::Request::Link { dfid, fid, name: name.to_bytes() };
    let change = export.change_of_new_name(&directory, name.to_bytes(), Some(&file));
    let ask = CallSpec::once(HandleList::two(&directory.handle, &file.handle), message);
    let ask = ask.changing(change);
    let walk = NameWalk::new(export, request, &[&directory, &file]);
    let (who, name) = (*request, name.to_owned());
    export.as_caller_with(
        &directory.clone(),
        request,
        ask,
        reply,
        move |export, _, answer, reply| {
            if let Err(Errno::STALE) = answer {
                return reply.error(walk.stale_error(export, &[&directory, &file]));
            }
            or_error!(answer, reply);
            export.directory_changed(&directory);
            export.shared().write_behind.changed(&file);
            behind::refresh_attributes(export, &who, file, reply, move |export, node, known| {
                let known = known?;
                let node = export.nodes.lookup(&node.handle, &known.attributes);
                Ok(export.entry(directory.id, name.to_bytes(), &node, &known, None))
            });
        },
    );
}

pub(crate) fn readlink(export: &MountFs, request: &FuseRequest, reply: Reply<DataReply>) {
    let link = or_error!(export.nodes.get(request.inode), reply);
    let message = ninep::Request::Readlink { fid: handle_fid(0) };
    let ask = CallSpec::new(HandleList::one(&link.handle), message);
    export.as_caller_with(&link, request, ask, reply, |_, _, answer, reply| match answer {
        Ok(AnyReply::Base(ninep::Reply::Readlink { target })) => reply.bytes(target),
        Ok(_) => reply.error(Errno::PROTO),
        Err(error) => reply.error(error),
    });
}

/// The type of a directory in a mode.
pub(crate) const DIRECTORY: u32 = 0o040_000;
const SYMLINK: u32 = 0o120_000;
