//! Tattach: identity, export and job of a client.
//!
//! `aname` is `NAME` or `NAME?job=ID`. Over TCP the client names the user, with root squashed
//! unless configured otherwise. Over a Unix socket the kernel names the peer's user, and only root
//! may act for others.

use std::io;
use std::sync::Arc;

use model::{Identity, JobId};
use ninep::dialect::{self, GroupList};
use ninep::{NOFID, NONUNAME, Qid, Request};
use rustix::io::Errno;

use crate::bounds::SharedBound;
use crate::config::{self, Squash};
use crate::connection::{ConnectionPeer, ReplyTo};
use crate::credentials::{FsCredentials, Users};
use crate::fids::{FidState, OpenFid, ProxyUser};
use crate::server::Server;

/// Executes a Tattach; returns the attached user and the root's qid. Queries the server's user
/// database, so it may take its time.
pub(crate) fn attach(
    server: &Server,
    to: &ReplyTo,
    frame: &[u8],
) -> io::Result<(Arc<ProxyUser>, Qid)> {
    let Ok((_, Request::Attach { fid, afid, uname, aname, n_uname })) = Request::decode(frame)
    else {
        unreachable!("decoded once when it was taken in");
    };
    if afid != NOFID || fid == NOFID {
        return Err(Errno::INVAL.into());
    }
    let (name, job) = parse_aname(aname)?;
    let export = server.export(name).ok_or(Errno::NOENT)?;
    let credentials = credentials_of(server, &to.path.connection.peer, uname, n_uname)?;
    let identity = Identity {
        job,
        uid: credentials.uid,
        gid: credentials.gid,
        projid: export.unknown().project,
        nid: to.path.connection.peer.nid.clone(),
    };
    let root = export.root.clone();
    let qid = root.qid;
    let user = Arc::new(ProxyUser::new(export, credentials, identity, uname));
    let subject = user.subject_of(&root, None, user.subject(user.export.unknown()));
    let mut new = OpenFid::new(user.clone(), root, None, FidState::Path, subject);
    new.charge(&server.shared, false)?;
    let mut session = to.path.connection.session.lock().expect("not poisoned");
    let fids = session.fids.clone();
    let mut fids = fids.lock().expect("not poisoned");
    if session.epoch != to.path.epoch || fids.contains_key(&fid.0) {
        return Err(Errno::BADF.into());
    }
    if fids.len() >= server.settings().fids_max as usize {
        return Err(Errno::NFILE.into());
    }
    fids.insert(fid.0, Arc::new(new));
    session.attached = true;
    Ok((user, qid))
}

/// Executes Tidentity of the dialect: the identity of a number of this session from now on. The
/// terms are those of an attach; the groups in the message count only from trusted clients.
pub(crate) fn identify(server: &Server, to: &ReplyTo, who: &NewIdentity<'_>) -> io::Result<()> {
    let session = &to.path.form.binding().ok_or(Errno::INVAL)?.session;
    if who.identity == dialect::NO_IDENTITY || who.uid == NONUNAME {
        return Err(Errno::INVAL.into());
    }
    let job = std::str::from_utf8(who.job).ok().and_then(JobId::new).ok_or(Errno::INVAL)?;
    let peer = &to.path.connection.peer;
    let mut credentials = credentials_of(server, peer, b"", who.uid)?;
    let squashed = credentials.uid != who.uid;
    if credentials.gid_trusted && !squashed {
        credentials.groups = who.groups.chain([who.gid]).collect();
    }
    credentials.gid = if squashed { credentials.gid } else { credentials.group_for(who.gid) };
    let identity = Identity {
        job,
        uid: credentials.uid,
        gid: credentials.gid,
        projid: session.export.unknown().project,
        nid: peer.nid.clone(),
    };
    let user = ProxyUser::new(session.export.clone(), credentials, identity, b"");
    let charge = server.shared.charge(SharedBound::Memory, user.holder(), IDENTITY_BYTES)?;
    session.set_user(who.identity, Arc::new(user), charge)
}

/// Assumed memory of an identity, with its groups and its subjects.
const IDENTITY_BYTES: u64 = 1 << 10;

/// Fields of a Tidentity message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewIdentity<'a> {
    pub(crate) identity: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: GroupList<'a>,
    pub(crate) job: &'a [u8],
}

/// `NAME` or `NAME?job=ID`.
fn parse_aname(aname: &[u8]) -> io::Result<(&str, JobId)> {
    let aname = std::str::from_utf8(aname).map_err(|_| Errno::INVAL)?;
    let (name, query) = aname.split_once('?').unwrap_or((aname, ""));
    let job = match query.strip_prefix("job=") {
        Some(job) => JobId::new(job).ok_or(Errno::INVAL)?,
        None if query.is_empty() => JobId::default(),
        None => return Err(Errno::INVAL.into()),
    };
    Ok((name, job))
}

fn credentials_of(
    server: &Server,
    peer: &ConnectionPeer,
    uname: &[u8],
    n_uname: u32,
) -> io::Result<FsCredentials> {
    let settings = server.settings();
    let (squash_uid, squash_gid) = (settings.squash_uid, settings.squash_gid);
    let named = || std::str::from_utf8(uname).ok().and_then(Users::uid_of);
    // Nobody is a user like any other, unless it is the squash user.
    let mut squashed = settings.squash == Squash::All;
    let uid = match (peer.uid, n_uname) {
        // A Unix-socket peer other than root is only itself.
        (Some(own), NONUNAME) if own != 0 => own,
        (Some(own), claimed) if own != 0 && own != claimed => return Err(Errno::PERM.into()),
        (_, NONUNAME) => named().unwrap_or_else(|| {
            squashed = true;
            squash_uid
        }),
        (_, claimed) => claimed,
    };
    squashed |= settings.squash == Squash::Root && (uid == 0 || uid == squash_uid);
    if squashed {
        let groups = Arc::from([squash_gid]);
        return Ok(FsCredentials { uid: squash_uid, gid: squash_gid, groups, gid_trusted: false });
    }
    let (gid, groups) = server.users.groups_of(uid);
    let gid_trusted = settings.groups == config::GroupsSource::Client && peer.trusted;
    Ok(FsCredentials { uid, gid, groups, gid_trusted })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aname_names_an_export_and_perhaps_a_job() {
        let job = |id: &str| JobId::new(id).unwrap();
        assert_eq!(parse_aname(b"scratch").unwrap(), ("scratch", job("")));
        assert_eq!(parse_aname(b"scratch?job=dd.500").unwrap(), ("scratch", job("dd.500")));
        for wrong in [&b"x?jobs=1"[..], b"x?1", b"x?job=a\nb", b"\xff"] {
            assert_eq!(parse_aname(wrong).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        }
    }
}
