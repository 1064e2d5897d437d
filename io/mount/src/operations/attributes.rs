//! Attributes of files and of the file system.
//!
//! ```text
//!   open file at hand ─► its fid
//!   none ─► the node's handle ─► ESTALE: the name is gone, but somebody has it open? ─► fid
//! ```

use std::sync::Arc;

use fuse::{Attr, Errno, Handle, Reply, Request, SetAttributes, Statfs};
use ninep::dialect::{AnyReply, Handles, OwnReply, OwnRequest, handle_fid};
use ninep::{Fid, getattr};

use super::{behind, or_error};
use crate::files::OpenFile;
use crate::filesystem::Export;
use crate::link::{Answer, Ask};
use crate::nodes::Node;
use crate::translate;

pub(crate) fn get(export: &Export, request: &Request, handle: Option<Handle>, reply: Reply<Attr>) {
    let node = or_error!(export.nodes.get(request.inode), reply);
    by_file_or_handle(export, request, node, handle, reply, |fid, handles| {
        Ask::new(handles, ninep::Request::Getattr { fid, mask: getattr::ALL })
    });
}

/// Changes attributes, all in one message. The size of an open file is changed through it,
/// which needs no permission any more.
pub(crate) fn set(export: &Export, request: &Request, set: &SetAttributes, reply: Reply<Attr>) {
    let node = or_error!(export.nodes.get(request.inode), reply);
    if set.size.is_some() {
        node.written();
    }
    node.not_plain();
    let through = set.handle.filter(|_| set.size.is_some());
    let set = translate::set_attributes(set);
    by_file_or_handle(export, request, node, through, reply, move |fid, handles| {
        Ask::new(handles, OwnRequest::Change { fid, set })
    });
}

pub(crate) fn statfs(export: &Export, request: &Request, reply: Reply<Statfs>) {
    let node = or_error!(export.nodes.get(request.inode), reply);
    let message = ninep::Request::Statfs { fid: handle_fid(0) };
    let ask = Ask::new(Handles::one(&node.handle), message);
    export.as_caller(&node, request, ask, reply, |_, _, answer| match answer? {
        AnyReply::Plain(ninep::Reply::Statfs(told)) => Ok(Statfs {
            blocks: told.blocks,
            blocks_free: told.bfree,
            blocks_available: told.bavail,
            files: told.files,
            files_free: told.ffree,
            block_size: told.bsize,
            fragment_size: told.bsize,
            name_max: told.namelen,
        }),
        _ => Err(Errno::PROTO),
    });
}

/// Asks about a file by what is known of it, once it is as it was written.
fn by_file_or_handle(
    export: &Export,
    request: &Request,
    node: Arc<Node>,
    handle: Option<Handle>,
    reply: Reply<Attr>,
    ask: impl Fn(Fid, Handles<'_>) -> Ask + Send + 'static,
) {
    behind::after(export, &node.clone(), request, reply, move |export, who, reply| {
        if let Some(handle) = handle {
            let file = or_error!(export.files().get(handle), reply);
            return by_file(export, who, node, &file, ask, reply);
        }
        let (first, who) = (ask(handle_fid(0), Handles::one(&node.handle)), *who);
        export.as_caller_with(
            &node.clone(),
            &who,
            first,
            reply,
            move |export, _, answer, reply| {
                let open = match answer {
                    // A handle that is a path, or an inode without names: the open file still is one.
                    Err(Errno::STALE) => export.files().of_node(node.id),
                    _ => None,
                };
                match open {
                    Some(file) => by_file(export, &who, node, &file, ask, reply),
                    None => reply.send(attr(export, &node, answer)),
                }
            },
        );
    });
}

fn by_file(
    export: &Export,
    request: &Request,
    node: Arc<Node>,
    file: &Arc<OpenFile>,
    ask: impl Fn(Fid, Handles<'_>) -> Ask,
    reply: Reply<Attr>,
) {
    let ask = ask(file.fid, Handles::NONE);
    export.as_opener(request, file, ask, reply, move |export, answer| attr(export, &node, answer));
}

fn attr(export: &Export, node: &Node, answer: Answer<'_>) -> Result<Attr, Errno> {
    match answer? {
        AnyReply::Plain(ninep::Reply::Getattr(told)) => Ok(export.attr(node, &told)),
        AnyReply::Own(OwnReply::Change { attributes }) => {
            export.shared().behind.changed(node);
            Ok(export.attr(node, &attributes))
        }
        _ => Err(Errno::PROTO),
    }
}
