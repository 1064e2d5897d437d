//! Facts of a message: its fid, the kind of request, the amount, and the position.
//!
//! ```text
//!   Request ─► about: fid, kind, amount, place ─► fid known? ─yes─► Asked, for the gate
//!   bytes that do not decode ─► kind_of_type      (session)  └─no─► refused, for the trace
//! ```
//!
//! Tversion, Tauth and Tflush are about the session; they are no requests and have no
//! kind.

use std::sync::Arc;

use model::{Amount, Lane, OpKind, Time};
use ninep::dialect::{AnyRequest, ExtRequest};
use ninep::{LockKind, Request};
use rustix::fs::FileType;

use crate::fids::{FidState, OpenFid};
use crate::gate::{RequestFile, RequestMeta, SPLICE_MIN};
use crate::location::Location;
use crate::trace::AccessOrder;

/// The most that one Copy copies: with more, other requests would not have a turn.
pub(crate) const COPY_MAX: u64 = 16 << 20;

/// The facts that a message has by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParsedRequest {
    pub(crate) fid: ninep::Fid,
    pub(crate) kind: OpKind,
    pub(crate) amount: Amount,
    /// Where a read or a write begins.
    offset: Option<u64>,
}

impl ParsedRequest {
    /// `None` for messages that are not requests of a fid: Tversion, Tauth, Tattach, Tflush.
    pub(crate) fn of(request: &Request<'_>) -> Option<ParsedRequest> {
        let about =
            |fid, kind| ParsedRequest { fid, kind, amount: Amount::new(0, 1), offset: None };
        let moving = |fid, kind, offset, bytes| ParsedRequest {
            amount: Amount::new(bytes, 1),
            offset: Some(offset),
            ..about(fid, kind)
        };
        Some(match *request {
            Request::Read { fid, offset, count } => {
                moving(fid, OpKind::Read, offset, u64::from(count))
            }
            Request::Write { fid, offset, data } => {
                moving(fid, OpKind::Write, offset, data.len() as u64)
            }
            Request::Getattr { fid, .. } => about(fid, OpKind::Getattr),
            Request::Walk { fid, names, .. } => ParsedRequest {
                amount: Amount::new(0, names.len().max(1) as u64),
                ..about(fid, OpKind::Walk)
            },
            Request::Clunk { fid } => about(fid, OpKind::Clunk),
            Request::Lopen { fid, .. } => about(fid, OpKind::Open),
            Request::Lcreate { fid, .. } => about(fid, OpKind::Create),
            Request::Readdir { fid, .. } => about(fid, OpKind::Readdir),
            Request::Setattr { fid, .. } => about(fid, OpKind::Setattr),
            Request::Fsync { fid, .. } => about(fid, OpKind::Fsync),
            Request::Statfs { fid } => about(fid, OpKind::Statfs),
            Request::Readlink { fid } => about(fid, OpKind::Readlink),
            Request::Xattrwalk { fid, .. } => about(fid, OpKind::Getxattr),
            Request::Xattrcreate { fid, .. } => about(fid, OpKind::Setxattr),
            Request::Lock { fid, kind: LockKind::Unlock, .. } => about(fid, OpKind::Unlock),
            Request::Lock { fid, .. } | Request::Getlock { fid, .. } => about(fid, OpKind::Lock),
            Request::Symlink { fid, .. } => about(fid, OpKind::Symlink),
            Request::Mknod { dfid, .. } => about(dfid, OpKind::Mknod),
            Request::Link { dfid, .. } => about(dfid, OpKind::Link),
            Request::Mkdir { dfid, .. } => about(dfid, OpKind::Mkdir),
            Request::Rename { fid, .. } => about(fid, OpKind::Rename),
            Request::Renameat { olddirfid, .. } => about(olddirfid, OpKind::Rename),
            Request::Unlinkat { dirfid, .. } => about(dirfid, OpKind::Unlink),
            Request::Remove { fid } => about(fid, OpKind::Unlink),
            Request::Version { .. }
            | Request::Auth { .. }
            | Request::Attach { .. }
            | Request::Flush { .. } => return None,
        })
    }

    /// Parses any message of the dialect.
    pub(crate) fn of_any(request: &AnyRequest<'_>) -> Option<ParsedRequest> {
        match request {
            AnyRequest::Base(request) => ParsedRequest::of(request),
            AnyRequest::Ext(request) => ParsedRequest::of_own(request),
        }
    }

    /// Parses a message that only the dialect has. `None` for messages about the session.
    fn of_own(request: &ExtRequest<'_>) -> Option<ParsedRequest> {
        let about =
            |fid, kind| ParsedRequest { fid, kind, amount: Amount::new(0, 1), offset: None };
        let moving =
            |fid, kind, bytes| ParsedRequest { amount: Amount::new(bytes, 1), ..about(fid, kind) };
        Some(match *request {
            ExtRequest::Lookup { fid, .. } => about(fid, OpKind::Walk),
            ExtRequest::Open { fid, flags, .. } if flags & ninep::open::CREATE != 0 => {
                about(fid, OpKind::Create)
            }
            ExtRequest::Open { fid, .. } => about(fid, OpKind::Open),
            ExtRequest::List { fid, .. } => about(fid, OpKind::Readdir),
            ExtRequest::Mknode { fid, mode, .. } => about(
                fid,
                match FileType::from_raw_mode(mode) {
                    FileType::Directory => OpKind::Mkdir,
                    FileType::Symlink => OpKind::Symlink,
                    _ => OpKind::Mknod,
                },
            ),
            ExtRequest::Change { fid, .. } | ExtRequest::Allocate { fid, .. } => {
                about(fid, OpKind::Setattr)
            }
            ExtRequest::Write { fid, offset, data, .. } => ParsedRequest {
                offset: Some(offset),
                ..moving(fid, OpKind::Write, data.len() as u64)
            },
            ExtRequest::Append { fid, data, .. } => moving(fid, OpKind::Write, data.len() as u64),
            ExtRequest::Copy { fid, length, .. } => {
                moving(fid, OpKind::Write, length.min(COPY_MAX))
            }
            ExtRequest::Seek { fid, .. } => about(fid, OpKind::Getattr),
            ExtRequest::Getxattr { fid, .. } => about(fid, OpKind::Getxattr),
            ExtRequest::Setxattr { fid, .. } | ExtRequest::Removexattr { fid, .. } => {
                about(fid, OpKind::Setxattr)
            }
            ExtRequest::Session { .. }
            | ExtRequest::Identity { .. }
            | ExtRequest::Retire { .. }
            | ExtRequest::Ping
            | ExtRequest::Info { .. }
            | ExtRequest::Donate { .. }
            | ExtRequest::Events
            | ExtRequest::Renew { .. }
            | ExtRequest::Return { .. }
            | ExtRequest::GiveBack { .. }
            | ExtRequest::Proxies => return None,
            ExtRequest::Commit { fid } => about(fid, OpKind::Fsync),
        })
    }

    /// Adds the facts for the dispatcher, once identity and file are known; for a file named by
    /// handle also its location.
    pub(crate) fn meta(&self, file: &RequestFile, location: Location) -> RequestMeta {
        match file {
            RequestFile::Fid(fid) => self.meta_of_fid(fid),
            RequestFile::Handle(user) => {
                let (kind, amount, lane) = (self.kind, self.amount, Lane::Device);
                let subject = user.subject(location);
                RequestMeta {
                    subject,
                    kind,
                    amount,
                    lane,
                    remote_ops: None,
                    arrived: Time::ZERO,
                    access: None,
                }
            }
        }
    }

    /// A read or write of a file also says how it follows the fid's recent ones, and becomes one.
    fn meta_of_fid(&self, fid: &Arc<OpenFid>) -> RequestMeta {
        let target = &fid.user.export.target;
        let access = match (&fid.role, self.offset) {
            (FidState::File { accesses, .. }, Some(offset)) => {
                Some(accesses.record(offset, self.amount.bytes.get()))
            }
            _ => None::<AccessOrder>,
        };
        let (kind, lane) = match (&fid.role, self.kind) {
            (FidState::XattrRead { .. }, OpKind::Read) => (OpKind::Getxattr, Lane::Cached),
            (FidState::XattrWrite(_), OpKind::Write) => (OpKind::Setxattr, Lane::Cached),
            (_, OpKind::Read) if fid.misses.are_many() && self.amount.bytes < SPLICE_MIN => {
                (OpKind::Read, Lane::Device)
            }
            // The kernel reads ahead of it: the device serves it, wherever it is found.
            (_, OpKind::Read) if access.is_some_and(|order| order.fetched) => {
                (OpKind::Read, Lane::Device)
            }
            (_, OpKind::Read) => (OpKind::Read, target.read_lane()),
            (_, OpKind::Write) => (OpKind::Write, target.write_lane()),
            (_, kind) => (kind, Lane::Device),
        };
        let (subject, amount) = (fid.subject(), self.amount);
        RequestMeta { subject, kind, amount, lane, remote_ops: None, arrived: Time::ZERO, access }
    }
}

/// Returns the kind of request of a type byte of the protocol, which is all that is known of a
/// message that does not decode. `None` for messages that are not requests.
pub(crate) fn kind_of_type(number: u8) -> Option<OpKind> {
    Some(match number {
        8 => OpKind::Statfs,
        12 => OpKind::Open,
        14 => OpKind::Create,
        16 => OpKind::Symlink,
        18 => OpKind::Mknod,
        20 | 74 => OpKind::Rename,
        206 => OpKind::Walk,
        208 => OpKind::Open,
        210 => OpKind::Readdir,
        212 => OpKind::Mkdir,
        214 | 220 => OpKind::Setattr,
        216 | 218 | 224 => OpKind::Write,
        222 => OpKind::Getattr,
        226 => OpKind::Getxattr,
        228 | 230 => OpKind::Setxattr,
        22 => OpKind::Readlink,
        24 => OpKind::Getattr,
        26 => OpKind::Setattr,
        30 => OpKind::Getxattr,
        32 => OpKind::Setxattr,
        40 => OpKind::Readdir,
        50 => OpKind::Fsync,
        52 | 54 => OpKind::Lock,
        70 => OpKind::Link,
        72 => OpKind::Mkdir,
        76 | 122 => OpKind::Unlink,
        104 => OpKind::Attach,
        110 => OpKind::Walk,
        116 => OpKind::Read,
        118 => OpKind::Write,
        120 => OpKind::Clunk,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use ninep::HEADER_LEN;

    use super::*;

    /// A message of this type whose every field is zero, if there is such a type.
    fn zeros(number: u8) -> Option<Vec<u8>> {
        (HEADER_LEN..HEADER_LEN + 80).find_map(|len| {
            let mut frame = vec![0; len];
            frame[..4].copy_from_slice(&(len as u32).to_le_bytes());
            frame[4] = number;
            Request::decode(&frame).is_ok().then_some(frame)
        })
    }

    /// A request of the dialect about a file.
    fn is_own_request(number: u8) -> bool {
        (206..=230).contains(&number) && number.is_multiple_of(2)
    }

    #[test]
    fn the_type_of_a_message_gives_the_kind_that_its_content_does() {
        let mut requests = 0;
        for number in 0..=255 {
            let Some(frame) = zeros(number) else {
                assert_eq!(kind_of_type(number).is_some(), is_own_request(number), "{number}");
                continue;
            };
            let (_, request) = Request::decode(&frame).unwrap();
            match (ParsedRequest::of(&request), request) {
                (None, Request::Attach { .. }) => {
                    assert_eq!(kind_of_type(number), Some(OpKind::Attach));
                }
                (about, _) => {
                    assert_eq!(kind_of_type(number), about.map(|about| about.kind), "{number}");
                    requests += usize::from(about.is_some());
                }
            }
        }
        assert_eq!(requests, 24);
    }

    #[test]
    fn a_walk_counts_its_names_and_a_write_its_bytes() {
        let mut space = Vec::new();
        let names = ninep::NameList::pack([&b"a"[..], b"b"], &mut space).unwrap();
        let (fid, newfid) = (ninep::Fid(1), ninep::Fid(2));
        let walk = ParsedRequest::of(&Request::Walk { fid, newfid, names }).unwrap();
        assert_eq!((walk.amount, walk.offset), (Amount::new(0, 2), None));
        let write = ParsedRequest::of(&Request::Write { fid, offset: 7, data: b"abc" }).unwrap();
        assert_eq!((write.amount, write.offset), (Amount::new(3, 1), Some(7)));
    }
}
