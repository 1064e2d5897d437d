//! Treaddir, and Tlist of the dialect.
//!
//! A cookie is the file system's own, all 64 bits of it, and the only thing that
//! names a place in a directory: nothing is counted or kept, so a directory of a
//! million entries is read in a million steps and changes meanwhile do no harm.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use leases::LeaseKinds;
use model::Amount;
use ninep::dialect::{ExtReply, LeaseGrant, ListEntry};
use ninep::{DirEntry, Qid, Reply};
use rustix::fs::{FileType, RawDir, SeekFrom};
use rustix::io::Errno;

use super::reached::Reached;
use super::{Context, Ending, attributes};
use crate::export::qid_kind;
use crate::fids::FidState;
use crate::location::join;

/// Maximum that the kernel fills at once; a client's count may be larger.
const GETDENTS_BYTES: usize = 64 << 10;
/// Bytes of a List's reply before its entries.
const LIST_HEADER_LEN: usize = ninep::dialect::READ_REPLY_HEADER_LEN;

/// Bytes of the leases of a List's reply.
const GRANTS_LEN: usize = 9;

pub(super) fn readdir(cx: &Context<'_>, offset: u64, count: u32) -> Ending {
    match read_entries(cx, offset, count as usize) {
        Ok(data) => cx.answer(Ok(Reply::Readdir { data: &data })),
        Err(error) => cx.answer(Err(error)),
    }
}

/// Tlist of the dialect: each name with its file's handle and attributes, as the requesting user
/// may see them.
pub(super) fn list(cx: &Context<'_>, offset: u64, count: u32) -> Ending {
    let (mut files, most) = (0, cx.msize() - LIST_HEADER_LEN - GRANTS_LEN);
    let (export, dir) = (&cx.fid().user.export, cx.own_path());
    let look = |name: &[u8]| -> io::Result<_> {
        let node = cx.fid().node.lookup(name, export)?;
        let lease = cx.acquire(&node, LeaseKinds::ATTRIBUTES);
        let attributes = attributes::all_attributes(&node, export)?;
        let handle = export.handles.of(&node, export)?;
        let path = dir.as_ref().map(|dir| join(dir, name));
        cx.learn_reached(&handle, &node, Reached { path: path.as_deref(), made: false });
        Ok((handle, attributes, lease))
    };
    let listed = cx.as_user().and_then(|()| {
        cx.grant_named(&cx.fid().node, LeaseKinds::NAMES.and(LeaseKinds::ATTRIBUTES));
        // An entry of the dialect is six times as long as the kernel's.
        let count = (count as usize).min(most);
        read_dir(cx, offset, count, count / 6, &mut |entry, data| {
            let file = match entry.name {
                b"." | b".." => None,
                name => look(name).ok(),
            };
            let start = data.len();
            let lease = file.as_ref().map_or(LeaseGrant::NONE, |(_, _, lease)| *lease);
            let file = file.as_ref().map(|(handle, attributes, _)| (&handle[..], *attributes));
            let DirEntry { offset, kind, name, .. } = *entry;
            ListEntry { offset, kind, name, file, lease }.encode(data);
            let fits = data.len() <= count;
            files += u64::from(fits && file.is_some());
            if !fits {
                data.truncate(start);
            }
            fits
        })
    });
    match listed {
        // Each entry with its attributes is one operation of the backend.
        Ok(data) => {
            let served = Amount::new(0, 1 + files);
            cx.answer_served(Ok(ExtReply::List { data: &data }), served)
        }
        Err(error) => cx.answer_own(Err(error)),
    }
}

fn read_entries(cx: &Context<'_>, offset: u64, count: usize) -> io::Result<Vec<u8>> {
    // A 9P entry is about as long as the kernel's: what fills one fills the other.
    read_dir(cx, offset, count, count, &mut |entry, data| {
        let fits = data.len() + entry.encoded_len() <= count;
        if fits {
            entry.encode(data);
        }
        fits
    })
}

/// Reads entries from a place on and passes them to `put`, until one does not fit or there
/// are no more. `space` is about as much as the kernel is to give at once.
fn read_dir(
    cx: &Context<'_>,
    offset: u64,
    count: usize,
    space: usize,
    put: &mut dyn FnMut(&DirEntry<'_>, &mut Vec<u8>) -> bool,
) -> io::Result<Vec<u8>> {
    let fid = cx.fid();
    let FidState::Dir(cursor) = &fid.role else { return Err(Errno::NOTDIR.into()) };
    let at_root = fid.node.same_file(&fid.user.export.root);
    let _alone = cursor.lock().expect("not poisoned");
    let mut data = Vec::new();
    let mut space = vec![MaybeUninit::uninit(); space.clamp(1024, GETDENTS_BYTES)];
    rustix::fs::seek(fid.node.fd.as_fd(), SeekFrom::Start(offset)).map_err(|errno| {
        // ext4 finds no place in a directory that was removed. Reading on in one is ENOENT.
        if errno == Errno::INVAL && fid.node.names_now() == 0 { Errno::NOENT } else { errno }
    })?;
    let mut dir = RawDir::new(fid.node.fd.as_fd(), &mut space);
    loop {
        let Some(entry) = dir.next() else { return Ok(data) };
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        // The name of the directory above an export's root is not the client's to know.
        let above = at_root && name == b"..";
        let path = if above { fid.node.ino } else { entry.ino() };
        let kind = entry.file_type();
        let offset = entry.next_entry_cookie();
        let qid = Qid { kind: qid_kind(kind), version: 0, path };
        let entry = DirEntry { qid, offset, kind: d_type(kind), name };
        if !put(&entry, &mut data) {
            if data.is_empty() {
                return Err(Errno::INVAL.into());
            }
            return Ok(data);
        }
        if dir.is_buffer_empty() && data.len() + DirEntry::FIXED_LEN + 255 > count {
            return Ok(data);
        }
    }
}

fn d_type(kind: FileType) -> u8 {
    match kind {
        FileType::Fifo => libc::DT_FIFO,
        FileType::CharacterDevice => libc::DT_CHR,
        FileType::Directory => libc::DT_DIR,
        FileType::BlockDevice => libc::DT_BLK,
        FileType::RegularFile => libc::DT_REG,
        FileType::Symlink => libc::DT_LNK,
        FileType::Socket => libc::DT_SOCK,
        FileType::Unknown => libc::DT_UNKNOWN,
    }
}
