//! The header that every message of the dialect has between its tag and its body.
//!
//! ```text
//!   T: identity[4] reply_slot[2] sequence[4] remote_ops[4] lease_life[4] n[1] n × handle[s]
//!      m[1] m × (handle[s] name[s])
//!   R: verifier[8] commit_watermark[8] n[1] n × (kinds[1] number[8])
//! ```

use super::leases::LeaseGrants;
use super::{HANDLE_MAX, HANDLES_MAX, NAMES_MAX, NO_IDENTITY, NOSLOT};
use crate::error::FrameError;
use crate::header::RREAD;
use crate::types::{Fid, HEADER_LEN, Tag};
use crate::wire::{FrameReader, FrameWriter, string_len};

/// The first of the fid numbers that stand for a handle of the message's header.
const HANDLE_FIDS: u32 = 0xffff_fff0;

/// Bytes of a read's reply before its payload: header, verifier\[8\] commit_watermark\[8\]
/// n\[1\], which is 0, and count\[4\].
pub const READ_REPLY_HEADER_LEN: usize = HEADER_LEN + ReplyHeader::LEAST_LEN + 4;

/// The identity of a request, its idempotency key, and the files that the body names by handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader<'a> {
    /// The number of an identity, as an Identity message defined it; [`NO_IDENTITY`] for messages
    /// about the session.
    pub identity: u32,
    /// The channel's reply slot that keeps the reply; [`NOSLOT`] for messages that may be executed
    /// twice.
    pub reply_slot: u16,
    /// The sequence of the reply slot's calls; 0 without a reply slot.
    pub sequence: u32,
    /// Metadata operations that the identity had from other servers since its last message here
    /// that reported them.
    pub remote_ops: u32,
    /// The life of the client as a holder of leases, if it wants some with the reply; 0: none.
    pub lease_life: u32,
    /// The files that fid fields name by [`handle_fid`].
    pub handles: HandleList<'a>,
    /// Names under which the client knows the first file. The message fails with `ESTALE` if one of
    /// these names is another file by now, or none.
    pub names: HandlePlaces<'a>,
}

/// The state of the server in every reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyHeader {
    /// Changes when writes that were answered but are not yet durable may be lost: when the
    /// server's machine boots, and when an fsync or commit fails. A restart of the server's process
    /// alone does not change it.
    pub verifier: u64,
    /// Writes of this session with a number up to this are durable.
    pub commit_watermark: u64,
    /// Leases that are granted with what the reply says.
    pub leases: LeaseGrants,
}

/// At most two handles, in the order of [`handle_fid`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandleList<'a> {
    handles: [&'a [u8]; HANDLES_MAX],
    count: u8,
}

/// Names in directories, at most [`NAMES_MAX`], in their wire form; an iterator over them, each the
/// directory's handle and a name in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandlePlaces<'a> {
    count: u8,
    /// Creates a list of `count` times a handle and a name, each len\[2\] and that many bytes, with
    /// nothing after.
    bytes: &'a [u8],
}

impl<'a> HandlePlaces<'a> {
    /// No name: the file is meant wherever it is.
    pub const NONE: HandlePlaces<'static> = HandlePlaces { count: 0, bytes: &[] };

    /// The first [`NAMES_MAX`] of these, each a directory's handle and a name in it; their wire form
    /// is put into `space`, which is emptied first.
    ///
    /// # Panics
    /// If a handle or a name is longer than 65,535 bytes.
    pub fn pack<'p>(
        places: impl IntoIterator<Item = (&'p [u8], &'p [u8])>,
        space: &'a mut Vec<u8>,
    ) -> HandlePlaces<'a> {
        space.clear();
        let mut count = 0;
        for (directory, name) in places.into_iter().take(NAMES_MAX) {
            count += 1;
            for part in [directory, name] {
                space.extend_from_slice(&string_len(part).to_le_bytes());
                space.extend_from_slice(part);
            }
        }
        HandlePlaces { count, bytes: space }
    }

    /// Whether no name is left.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn read(get: &mut FrameReader<'a>) -> Result<HandlePlaces<'a>, FrameError> {
        let count = get.u8("names")?;
        if usize::from(count) > NAMES_MAX {
            return Err(get.bad_value("names", count));
        }
        let start = get.rest();
        for _ in 0..count {
            get.handle("directory")?;
            get.name("name")?;
        }
        let bytes = &start[..start.len() - get.rest().len()];
        Ok(HandlePlaces { count, bytes })
    }
}

impl<'a> Iterator for HandlePlaces<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let mut part = || {
            let (len, rest) = self.bytes.split_first_chunk::<2>()?;
            let (part, rest) = rest.split_at_checked(u16::from_le_bytes(*len).into())?;
            self.bytes = rest;
            Some(part)
        };
        let place = (part()?, part()?);
        self.count -= 1;
        Some(place)
    }
}

/// The fid that stands for the message's handle number `index`.
///
/// # Panics
/// If no message can have such a handle.
pub fn handle_fid(index: usize) -> Fid {
    assert!(index < HANDLES_MAX, "a message has at most {HANDLES_MAX} handles, not {}", index + 1);
    Fid(HANDLE_FIDS + index as u32)
}

/// The index of the handle that a fid stands for; `None` for a fid of the session.
pub fn handle_index(fid: Fid) -> Option<usize> {
    let index = fid.0.checked_sub(HANDLE_FIDS)? as usize;
    (index < HANDLES_MAX).then_some(index)
}

impl<'a> HandleList<'a> {
    /// No file: all files are named by fid.
    pub const NONE: HandleList<'static> = HandleList { handles: [&[]; HANDLES_MAX], count: 0 };

    /// A list of one file.
    pub fn one(handle: &'a [u8]) -> HandleList<'a> {
        HandleList { handles: [handle, &[]], count: 1 }
    }

    /// A list of two files.
    pub fn two(first: &'a [u8], second: &'a [u8]) -> HandleList<'a> {
        HandleList { handles: [first, second], count: 2 }
    }

    /// The handle that a fid of this message stands for.
    pub fn get(&self, fid: Fid) -> Option<&'a [u8]> {
        let index = handle_index(fid)?;
        (index < self.count.into()).then(|| self.handles[index])
    }
}

impl<'a> RequestHeader<'a> {
    /// The header of a message about the session itself.
    pub const SESSION: RequestHeader<'static> = RequestHeader {
        identity: NO_IDENTITY,
        reply_slot: NOSLOT,
        sequence: 0,
        remote_ops: 0,
        lease_life: 0,
        handles: HandleList::NONE,
        names: HandlePlaces::NONE,
    };

    pub(crate) fn read(get: &mut FrameReader<'a>) -> Result<RequestHeader<'a>, FrameError> {
        let (identity, reply_slot) = (get.u32("identity")?, get.u16("reply_slot")?);
        let (sequence, remote_ops) = (get.u32("sequence")?, get.u32("remote_ops")?);
        let lease_life = get.u32("lease_life")?;
        let count = get.u8("handles")?;
        if usize::from(count) > HANDLES_MAX {
            return Err(get.bad_value("handles", count));
        }
        let mut handles = HandleList { count, ..HandleList::default() };
        for handle in &mut handles.handles[..count.into()] {
            *handle = get.handle("handle")?;
        }
        let names = HandlePlaces::read(get)?;
        Ok(RequestHeader { identity, reply_slot, sequence, remote_ops, lease_life, handles, names })
    }

    pub(crate) fn write(&self, put: &mut FrameWriter<'_>) {
        put.u32(self.identity);
        put.u16(self.reply_slot);
        put.u32(self.sequence);
        put.u32(self.remote_ops);
        put.u32(self.lease_life);
        put.u8(self.handles.count);
        for handle in &self.handles.handles[..self.handles.count.into()] {
            put.handle(handle);
        }
        put.u8(self.names.count);
        put.wired(self.names.bytes);
    }
}

impl ReplyHeader {
    /// The length on the wire in bytes of a header without leases.
    pub const LEAST_LEN: usize = 17;

    pub(crate) fn read(get: &mut FrameReader<'_>) -> Result<ReplyHeader, FrameError> {
        Ok(ReplyHeader {
            verifier: get.u64("verifier")?,
            commit_watermark: get.u64("commit_watermark")?,
            leases: LeaseGrants::read(get)?,
        })
    }

    pub(crate) fn write(self, put: &mut FrameWriter<'_>) {
        put.u64(self.verifier);
        put.u64(self.commit_watermark);
        self.leases.write(put);
    }
}

/// The reply to a read whose `count` bytes of payload the caller sends after it. It grants no leases.
#[inline]
pub fn read_reply_header(tag: Tag, header: ReplyHeader, count: u32) -> [u8; READ_REPLY_HEADER_LEN] {
    let mut bytes = [0; READ_REPLY_HEADER_LEN];
    bytes[..4].copy_from_slice(&(READ_REPLY_HEADER_LEN as u32 + count).to_le_bytes());
    bytes[4] = RREAD;
    bytes[5..7].copy_from_slice(&tag.0.to_le_bytes());
    bytes[7..15].copy_from_slice(&header.verifier.to_le_bytes());
    bytes[15..23].copy_from_slice(&header.commit_watermark.to_le_bytes());
    bytes[24..].copy_from_slice(&count.to_le_bytes());
    bytes
}

impl<'a> FrameReader<'a> {
    /// Reads len\[2\] and at most [`HANDLE_MAX`] bytes of any value, at least one.
    pub(crate) fn handle(&mut self, field: &'static str) -> Result<&'a [u8], FrameError> {
        let handle = self.raw(field)?;
        match handle.len() {
            1..=HANDLE_MAX => Ok(handle),
            len => Err(FrameError::BadLength {
                tag: self.tag_of_message(),
                field,
                len,
                limit: HANDLE_MAX,
            }),
        }
    }
}

impl FrameWriter<'_> {
    pub(crate) fn handle(&mut self, handle: &[u8]) {
        self.raw(handle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fid_names_a_handle_only_if_the_message_has_it() {
        let handles = HandleList::one(b"first");
        assert_eq!(handles.get(handle_fid(0)), Some(&b"first"[..]));
        assert_eq!(handles.get(handle_fid(1)), None, "there is one");
        assert_eq!(HandleList::two(b"a", b"b").get(handle_fid(1)), Some(&b"b"[..]));
        for fid in [Fid(0), Fid(HANDLE_FIDS - 1), Fid(HANDLE_FIDS + 2), crate::NOFID] {
            assert_eq!(handle_index(fid), None);
            assert_eq!(handles.get(fid), None);
        }
    }
}
