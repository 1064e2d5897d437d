//! Waiters for a write of another subject.

use std::sync::Arc;

use sched::SubjectId;

use crate::fids::{OpenFid, ProxyUser};

/// A waiter for a write of another subject; the write uses the waiter's lane.
pub(crate) struct Donor {
    /// Subject of the waiter, for a file at that location; held by `user`.
    pub(super) subject: SubjectId,
    /// The file, for people.
    pub(super) file: Arc<str>,
    _user: Arc<ProxyUser>,
}

impl Donor {
    /// Makes the waiter for a write to an open file.
    pub(crate) fn of(user: Arc<ProxyUser>, fid: &OpenFid) -> Box<Donor> {
        let subject = user.subject_of(&fid.node, None, fid.subject());
        let export = &fid.user.export;
        let path = export.kernel_path(&fid.node).unwrap_or_default();
        let path = String::from_utf8_lossy(&path[..path.len().min(FILE_NAME_MAX)]);
        let file = format!("{}:{path}", export.name).into();
        Box::new(Donor { subject, file, _user: user })
    }
}

/// The most bytes of a file's path that the wait report of a waiting request shows.
const FILE_NAME_MAX: usize = 1024;
