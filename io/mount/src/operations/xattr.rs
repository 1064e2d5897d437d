//! Extended attributes, access control lists among them.
//!
//! ```text
//!   attributes said "plain", and may still be believed ─► ENODATA, an empty list: not asked
//!     ask for a label where nothing is labelled         ─► EOPNOTSUPP: ls asks once, not for each
//!   otherwise ─► one message for the value and its length
//! ```

use std::ffi::CStr;
use std::sync::{Arc, LazyLock};

use fuse::{Errno, FuseRequest, Reply, SetXattr, Xattr};
use ninep::dialect::{AnyReply, ExtReply, ExtRequest, HandleList, handle_fid};

use super::or_error;
use super::stale::FileWalk;
use crate::filesystem::MountFs;
use crate::nodes::MountNode;
use crate::session::{CallReply, CallSpec};

pub(crate) fn get(export: &MountFs, request: &FuseRequest, name: &CStr, reply: Reply<Xattr>) {
    let node = or_error!(export.nodes.get(request.inode), reply);
    // The kernel asks for capabilities before a write, which has the proxy take them away in any case:
    // what was so lately will do.
    if export.is_plain(&node) || (name == CAPABILITIES && node.is_plain()) {
        let nobody_labels = name == LABEL && !*SELINUX;
        return reply.error(if nobody_labels { Errno::OPNOTSUPP } else { Errno::NODATA });
    }
    fetch_value(export, request, &node, name.to_bytes(), reply);
}

pub(crate) fn list(export: &MountFs, request: &FuseRequest, reply: Reply<Xattr>) {
    let node = or_error!(export.nodes.get(request.inode), reply);
    if export.is_plain(&node) {
        return reply.value(b"");
    }
    fetch_value(export, request, &node, b"", reply);
}

pub(crate) fn set(export: &MountFs, request: &FuseRequest, set: SetXattr<'_>, reply: Reply<()>) {
    let node = or_error!(export.nodes.get(request.inode), reply);
    node.not_plain();
    let (name, data, flags) = (set.name.to_bytes(), set.value, set.flags);
    let message = ExtRequest::Setxattr { fid: handle_fid(0), name, flags, data };
    let walk = FileWalk::to_use(export, request, &node);
    let (ask, named) = export.call_by_name(&node, walk.found, message);
    let ask = if flags == 0 { ask } else { ask.only_once() };
    change(export, request, node, walk, named, ask, reply);
}

pub(crate) fn remove(export: &MountFs, request: &FuseRequest, name: &CStr, reply: Reply<()>) {
    let node = or_error!(export.nodes.get(request.inode), reply);
    let message = ExtRequest::Removexattr { fid: handle_fid(0), name: name.to_bytes() };
    let walk = FileWalk::to_use(export, request, &node);
    let (ask, named) = export.call_by_name(&node, walk.found, message);
    change(export, request, node, walk, named, ask.only_once(), reply);
}

fn change(
    export: &MountFs,
    request: &FuseRequest,
    node: Arc<MountNode>,
    walk: FileWalk,
    named: bool,
    ask: CallSpec,
    reply: Reply<()>,
) {
    let ask = ask.changing(export.change_of(&node));
    let (who, again) = (*request, ask.clone());
    export.as_caller_with(&node.clone(), request, ask, reply, move |export, _, answer, reply| {
        export.shared().write_behind.changed(&node);
        if !matches!(answer, Err(Errno::STALE)) {
            return reply.send(answer.map(|_| ()));
        }
        // By a path: the kernel looks it up again. By a descriptor it is this file, wherever it is.
        match named && export.is_open_by_descriptor(&node, who.thread) {
            true => {
                export.expire_names(&node);
                change(export, &who, node, walk, false, again.anywhere(), reply);
            }
            false => reply.error(walk.stale_error(export, &node)),
        }
    });
}

fn fetch_value(
    export: &MountFs,
    request: &FuseRequest,
    node: &MountNode,
    name: &[u8],
    reply: Reply<Xattr>,
) {
    // Of a length alone the value is asked for too: it comes in the same message, and the
    // kernel's next question is for it.
    let count = reply.room() as u32;
    let message = ExtRequest::Getxattr { fid: handle_fid(0), name, count };
    let ask = CallSpec::new(HandleList::one(&node.handle), message);
    export.as_caller_with(node, request, ask, reply, |_, _, answer, reply| {
        reply_value(answer, reply)
    });
}

fn reply_value(answer: CallReply<'_>, reply: Reply<Xattr>) {
    match answer {
        Ok(AnyReply::Ext(ExtReply::Getxattr { length, data })) => match reply.room() {
            // Only the length of this reply is used.
            0 if length <= XATTR_MAX => reply.value(&vec![0; length as usize]),
            0 => reply.error(Errno::RANGE),
            _ => reply.value(data),
        },
        Ok(_) => reply.error(Errno::PROTO),
        Err(error) => reply.error(error),
    }
}

const CAPABILITIES: &CStr = c"security.capability";
const LABEL: &CStr = c"security.selinux";

/// Whether this machine's kernel labels files. Where it does not, `ls -l` still asks for each
/// file's label, and for that of no further file of a file system that knows none.
static SELINUX: LazyLock<bool> = LazyLock::new(|| {
    std::fs::read_to_string("/proc/filesystems").is_ok_and(|known| known.contains("selinuxfs"))
});

/// The largest value or list of names in Linux, in bytes.
const XATTR_MAX: u32 = 64 << 10;
