//! Directories, listed with the attributes of what is in them.
//!
//! ```text
//!   Treaddir ─► names ─► Twalk each, at once ─► Tgetattr each, at once ─► entries ─► Tclunk
//! ```
//!
//! A name that is gone by then is listed without attributes: the client requests them if it needs
//! them.

use fuse::Errno;
use ninep::dialect::{ExtReply, LeaseGrant, ListEntry};
use ninep::{Attributes, DirEntries, DirEntry, Fid, NameList, Reply, Request, getattr};

use super::asked::{GatewayCall, GatewayReply};
use super::life::UpstreamOpened;
use super::peer::{UpstreamError, UpstreamFid};
use super::walks::basic;

impl GatewayCall<'_> {
    pub(super) fn list(&self, fid: Fid, offset: u64, count: u32) -> GatewayReply {
        let opened = self.life.opened(fid)?;
        let count = count.min(LIST_MAX);
        let wanted = (count / LARGER).max(WANTED_MIN).min(self.life.peer.payload());
        let request = Request::Readdir { fid: opened.fid.fid, offset, count: wanted };
        let names = self.life.peer.call(self.job, request, |reply| match reply {
            Reply::Readdir { data } => Some(data.to_vec()),
            _ => None,
        })?;
        let entries: Vec<DirEntry<'_>> =
            DirEntries::new(&names).collect::<Result<_, _>>().map_err(|_| Errno::PROTO)?;
        let mut data = Vec::new();
        'full: for entries in entries.chunks(AT_ONCE) {
            let files = self.attributes_in(&opened, entries)?;
            for (entry, told) in entries.iter().zip(files) {
                let before = data.len();
                self.add(&opened, entry, told, &mut data)?;
                if data.len() > count as usize {
                    data.truncate(before);
                    break 'full;
                }
            }
        }
        if data.is_empty() && !entries.is_empty() {
            return Err(Errno::INVAL.into());
        }
        self.reply(ExtReply::List { data: &data })
    }

    fn add(
        &self,
        opened: &UpstreamOpened,
        entry: &DirEntry<'_>,
        told: Option<Attributes>,
        out: &mut Vec<u8>,
    ) -> Result<(), UpstreamError> {
        let files = self.life.files()?;
        // One whose path fits into no handle has none.
        let found = told.and_then(|told| {
            let file = files.found(&opened.file, entry.name, told.qid, told.nlink).ok()?;
            Some((file, told))
        });
        let file = found.as_ref().map(|(file, told)| (&*file.handle, *told));
        let DirEntry { offset, kind, name, .. } = *entry;
        ListEntry { offset, kind, name, file, lease: LeaseGrant::NONE }.encode(out);
        Ok(())
    }

    /// The attributes of each of these, if they can be had.
    fn attributes_in(
        &self,
        opened: &UpstreamOpened,
        entries: &[DirEntry<'_>],
    ) -> Result<Vec<Option<Attributes>>, UpstreamError> {
        let at = match self.life.walk_to(self.job, &opened.file, opened.caller.uid) {
            Ok(at) => at,
            Err(fail @ (UpstreamError::Disconnected | UpstreamError::Errno(Errno::INTR))) => {
                return Err(fail);
            }
            Err(_) => return Ok(vec![None; entries.len()]),
        };
        let mut spaces = vec![Vec::new(); entries.len()];
        let mut walks = Vec::new();
        let mut fids: Vec<(usize, UpstreamFid)> = Vec::new();
        for ((place, entry), space) in entries.iter().enumerate().zip(&mut spaces) {
            if matches!(entry.name, b"." | b"..") {
                continue;
            }
            let held = self.life.peer.new_fid()?;
            let names = NameList::pack([entry.name], space).map_err(|_| Errno::PROTO)?;
            walks.push(Request::Walk { fid: at.fid, newfid: held.fid, names });
            fids.push((place, held));
        }
        let walked = self.life.peer.call_all(self.job, &walks)?;
        let mut found = Vec::new();
        for ((place, held), told) in fids.into_iter().zip(walked) {
            match told.reply() {
                Ok(Reply::Walk { qids }) if qids.len() == 1 => found.push((place, held)),
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => held.refused(),
            }
        }
        let mask = getattr::BASIC;
        let asks: Vec<Request<'_>> =
            found.iter().map(|(_, held)| Request::Getattr { fid: held.fid, mask }).collect();
        let mut all = vec![None; entries.len()];
        for ((place, _), told) in found.iter().zip(self.life.peer.call_all(self.job, &asks)?) {
            if let Ok(Reply::Getattr(told)) = told.reply() {
                all[*place] = Some(basic(told));
            }
        }
        Ok(all)
    }
}

/// By how much an entry with a handle and attributes is larger than one without, about.
const LARGER: u32 = 8;
/// Bytes of names that are asked for at least: one of any length, with room to spare.
const WANTED_MIN: u32 = 1024;
/// Bytes of entries at most: more than the mount asks for.
const LIST_MAX: u32 = 1 << 20;
/// Names that are looked up together.
const AT_ONCE: usize = 64;
