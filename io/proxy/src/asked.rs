//! What a message asks: of which fid, which kind of request, how much, and where.
//!
//! ```text
//!   Request ─► about: fid, kind, amount, place ─► fid known? ─yes─► Asked, for the gate
//!   bytes that do not decode ─► kind_of_type      (session)  └─no─► refused, for the trace
//! ```
//!
//! Tversion, Tauth and Tflush are about the session; they are no requests and have no
//! kind.

use std::sync::Arc;

use model::{Amount, Kind, Lane, Time};
use ninep::{LockKind, Request};

use crate::fids::{Fid, Role};
use crate::gate::{Asked, SPLICE_MIN};
use crate::record::Access;

/// What a message says by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) fid: ninep::Fid,
    pub(crate) kind: Kind,
    pub(crate) amount: Amount,
    /// Where a read or a write begins.
    offset: Option<u64>,
}

impl About {
    /// `None` for what is no request of a fid: Tversion, Tauth, Tattach, Tflush.
    pub(crate) fn of(request: &Request<'_>) -> Option<About> {
        let about = |fid, kind| About { fid, kind, amount: Amount::new(0, 1), offset: None };
        let moving = |fid, kind, offset, bytes| About {
            amount: Amount::new(bytes, 1),
            offset: Some(offset),
            ..about(fid, kind)
        };
        Some(match *request {
            Request::Read { fid, offset, count } => {
                moving(fid, Kind::Read, offset, u64::from(count))
            }
            Request::Write { fid, offset, data } => {
                moving(fid, Kind::Write, offset, data.len() as u64)
            }
            Request::Getattr { fid, .. } => about(fid, Kind::Getattr),
            Request::Walk { fid, names, .. } => About {
                amount: Amount::new(0, names.len().max(1) as u64),
                ..about(fid, Kind::Walk)
            },
            Request::Clunk { fid } => about(fid, Kind::Clunk),
            Request::Lopen { fid, .. } => about(fid, Kind::Open),
            Request::Lcreate { fid, .. } => about(fid, Kind::Create),
            Request::Readdir { fid, .. } => about(fid, Kind::Readdir),
            Request::Setattr { fid, .. } => about(fid, Kind::Setattr),
            Request::Fsync { fid, .. } => about(fid, Kind::Fsync),
            Request::Statfs { fid } => about(fid, Kind::Statfs),
            Request::Readlink { fid } => about(fid, Kind::Readlink),
            Request::Xattrwalk { fid, .. } => about(fid, Kind::Getxattr),
            Request::Xattrcreate { fid, .. } => about(fid, Kind::Setxattr),
            Request::Lock { fid, kind: LockKind::Unlock, .. } => about(fid, Kind::Unlock),
            Request::Lock { fid, .. } | Request::Getlock { fid, .. } => about(fid, Kind::Lock),
            Request::Symlink { fid, .. } => about(fid, Kind::Symlink),
            Request::Mknod { dfid, .. } => about(dfid, Kind::Mknod),
            Request::Link { dfid, .. } => about(dfid, Kind::Link),
            Request::Mkdir { dfid, .. } => about(dfid, Kind::Mkdir),
            Request::Rename { fid, .. } => about(fid, Kind::Rename),
            Request::Renameat { olddirfid, .. } => about(olddirfid, Kind::Rename),
            Request::Unlinkat { dirfid, .. } => about(dirfid, Kind::Unlink),
            Request::Remove { fid } => about(fid, Kind::Unlink),
            Request::Version { .. }
            | Request::Auth { .. }
            | Request::Attach { .. }
            | Request::Flush { .. } => return None,
        })
    }

    /// What the dispatcher must know of it, now that its fid is found. While a trace is
    /// recorded it also says how it follows the fid's last access, and becomes the last.
    pub(crate) fn ask(&self, fid: &Arc<Fid>, recording: bool) -> Asked {
        let target = &fid.user.export.target;
        let (kind, lane) = match (&fid.role, self.kind) {
            (Role::XattrRead(_), Kind::Read) => (Kind::Getxattr, Lane::Cached),
            (Role::XattrWrite(_), Kind::Write) => (Kind::Setxattr, Lane::Cached),
            (_, Kind::Read) if fid.misses.are_many() && self.amount.bytes < SPLICE_MIN => {
                (Kind::Read, Lane::Device)
            }
            (_, Kind::Read) => (Kind::Read, target.read_lane()),
            (_, Kind::Write) => (Kind::Write, target.write_lane()),
            (_, kind) => (kind, Lane::Device),
        };
        let access = match (&fid.role, self.offset) {
            (Role::File { last, .. }, Some(offset)) if recording => {
                Some(last.follow(offset, self.amount.bytes.get()))
            }
            _ => None::<Access>,
        };
        let (subject, amount) = (fid.subject(), self.amount);
        Asked { subject, kind, amount, lane, arrived: Time::ZERO, access }
    }
}

/// The kind of request that a type byte of the protocol stands for: all that is known of
/// a message that does not decode. `None` for what is no request.
pub(crate) fn kind_of_type(number: u8) -> Option<Kind> {
    Some(match number {
        8 => Kind::Statfs,
        12 => Kind::Open,
        14 => Kind::Create,
        16 => Kind::Symlink,
        18 => Kind::Mknod,
        20 | 74 => Kind::Rename,
        22 => Kind::Readlink,
        24 => Kind::Getattr,
        26 => Kind::Setattr,
        30 => Kind::Getxattr,
        32 => Kind::Setxattr,
        40 => Kind::Readdir,
        50 => Kind::Fsync,
        52 | 54 => Kind::Lock,
        70 => Kind::Link,
        72 => Kind::Mkdir,
        76 | 122 => Kind::Unlink,
        104 => Kind::Attach,
        110 => Kind::Walk,
        116 => Kind::Read,
        118 => Kind::Write,
        120 => Kind::Clunk,
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

    #[test]
    fn the_type_of_a_message_gives_the_kind_that_its_content_does() {
        let mut requests = 0;
        for number in 0..=255 {
            let Some(frame) = zeros(number) else {
                assert_eq!(kind_of_type(number), None, "{number}");
                continue;
            };
            let (_, request) = Request::decode(&frame).unwrap();
            match (About::of(&request), request) {
                (None, Request::Attach { .. }) => {
                    assert_eq!(kind_of_type(number), Some(Kind::Attach));
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
        let names = ninep::Names::pack([&b"a"[..], b"b"], &mut space).unwrap();
        let (fid, newfid) = (ninep::Fid(1), ninep::Fid(2));
        let walk = About::of(&Request::Walk { fid, newfid, names }).unwrap();
        assert_eq!((walk.amount, walk.offset), (Amount::new(0, 2), None));
        let write = About::of(&Request::Write { fid, offset: 7, data: b"abc" }).unwrap();
        assert_eq!((write.amount, write.offset), (Amount::new(3, 1), Some(7)));
    }
}
