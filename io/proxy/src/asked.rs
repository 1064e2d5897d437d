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
use ninep::dialect::{AnyRequest, OwnRequest};
use ninep::{LockKind, Request};
use rustix::fs::FileType;
use trace::Access;

use crate::fids::{Fid, Role};
use crate::gate::{Asked, File, SPLICE_MIN};
use crate::location::Location;

/// The most that one Copy copies: longer, and nobody else would have a turn.
pub(crate) const COPY_MAX: u64 = 16 << 20;

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

    /// The same of any message of the dialect.
    pub(crate) fn of_any(request: &AnyRequest<'_>) -> Option<About> {
        match request {
            AnyRequest::Plain(request) => About::of(request),
            AnyRequest::Own(request) => About::of_own(request),
        }
    }

    /// The same of one of its own messages. `None` for what is about the session.
    fn of_own(request: &OwnRequest<'_>) -> Option<About> {
        let about = |fid, kind| About { fid, kind, amount: Amount::new(0, 1), offset: None };
        let moving = |fid, kind, bytes| About { amount: Amount::new(bytes, 1), ..about(fid, kind) };
        Some(match *request {
            OwnRequest::Lookup { fid, .. } => about(fid, Kind::Walk),
            OwnRequest::Open { fid, flags, .. } if flags & ninep::open::CREATE != 0 => {
                about(fid, Kind::Create)
            }
            OwnRequest::Open { fid, .. } => about(fid, Kind::Open),
            OwnRequest::List { fid, .. } => about(fid, Kind::Readdir),
            OwnRequest::Make { fid, mode, .. } => about(
                fid,
                match FileType::from_raw_mode(mode) {
                    FileType::Directory => Kind::Mkdir,
                    FileType::Symlink => Kind::Symlink,
                    _ => Kind::Mknod,
                },
            ),
            OwnRequest::Change { fid, .. } | OwnRequest::Allocate { fid, .. } => {
                about(fid, Kind::Setattr)
            }
            OwnRequest::Write { fid, offset, data, .. } => {
                About { offset: Some(offset), ..moving(fid, Kind::Write, data.len() as u64) }
            }
            OwnRequest::Append { fid, data, .. } => moving(fid, Kind::Write, data.len() as u64),
            OwnRequest::Copy { fid, length, .. } => moving(fid, Kind::Write, length.min(COPY_MAX)),
            OwnRequest::Seek { fid, .. } => about(fid, Kind::Getattr),
            OwnRequest::Getxattr { fid, .. } => about(fid, Kind::Getxattr),
            OwnRequest::Setxattr { fid, .. } | OwnRequest::Removexattr { fid, .. } => {
                about(fid, Kind::Setxattr)
            }
            OwnRequest::Session { .. }
            | OwnRequest::Identity { .. }
            | OwnRequest::Retire { .. }
            | OwnRequest::Ping
            | OwnRequest::Tell { .. }
            | OwnRequest::Donate { .. }
            | OwnRequest::Wait => return None,
            OwnRequest::Commit { fid } => about(fid, Kind::Fsync),
        })
    }

    /// What the dispatcher must know of it, now that it is known who asks and about what; of what
    /// was named by handle also where it lies.
    pub(crate) fn ask(&self, file: &File, location: Location) -> Asked {
        match file {
            File::Fid(fid) => self.ask_of_fid(fid),
            File::Handle(user) => {
                let (kind, amount, lane) = (self.kind, self.amount, Lane::Device);
                let subject = user.subject(location);
                Asked {
                    subject,
                    kind,
                    amount,
                    lane,
                    elsewhere: None,
                    arrived: Time::ZERO,
                    access: None,
                }
            }
        }
    }

    /// A read or write of a file also says how it follows the fid's last one, and becomes the last.
    fn ask_of_fid(&self, fid: &Arc<Fid>) -> Asked {
        let target = &fid.user.export.target;
        let (kind, lane) = match (&fid.role, self.kind) {
            (Role::XattrRead { .. }, Kind::Read) => (Kind::Getxattr, Lane::Cached),
            (Role::XattrWrite(_), Kind::Write) => (Kind::Setxattr, Lane::Cached),
            (_, Kind::Read) if fid.misses.are_many() && self.amount.bytes < SPLICE_MIN => {
                (Kind::Read, Lane::Device)
            }
            (_, Kind::Read) => (Kind::Read, target.read_lane()),
            (_, Kind::Write) => (Kind::Write, target.write_lane()),
            (_, kind) => (kind, Lane::Device),
        };
        let access = match (&fid.role, self.offset) {
            (Role::File { last, .. }, Some(offset)) => {
                Some(last.follow(offset, self.amount.bytes.get()))
            }
            _ => None::<Access>,
        };
        let (subject, amount) = (fid.subject(), self.amount);
        Asked { subject, kind, amount, lane, elsewhere: None, arrived: Time::ZERO, access }
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
        206 => Kind::Walk,
        208 => Kind::Open,
        210 => Kind::Readdir,
        212 => Kind::Mkdir,
        214 | 220 => Kind::Setattr,
        216 | 218 | 224 => Kind::Write,
        222 => Kind::Getattr,
        226 => Kind::Getxattr,
        228 | 230 => Kind::Setxattr,
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
