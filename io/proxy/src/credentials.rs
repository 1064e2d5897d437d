//! On whose behalf a thread calls the backend.
//!
//! The kernel checks permission against the calling thread's file-system uid, gid
//! and groups. They are set by the raw per-thread calls (the C library would set
//! them for every thread), only before calls that check permission, and only when
//! they differ from what the thread has: 0.5 µs that most requests do not pay.
//!
//! Setting a file-system uid other than 0 takes the file capabilities out of the
//! thread's effective set by itself, and going back to 0 restores them.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::sys;

/// A user as the backend sees one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Arc<[u32]>,
    /// The gid in create messages is believed whatever the groups say.
    pub(crate) gid_trusted: bool,
}

impl Credentials {
    /// The group that a new file gets when the client asks for `wanted`.
    pub(crate) fn group_for(&self, wanted: u32) -> u32 {
        let own = wanted == self.gid || self.groups.contains(&wanted);
        // A gid of −1 means "as the server thinks".
        if wanted != u32::MAX && (own || self.gid_trusted || self.uid == 0) {
            wanted
        } else {
            self.gid
        }
    }
}

thread_local! {
    /// What this thread runs as: uid, gid, address of the group list.
    static CURRENT: Cell<(u32, u32, usize)> = const { Cell::new((0, 0, 0)) };
    static KEPT: std::cell::RefCell<Option<Arc<[u32]>>> = const { std::cell::RefCell::new(None) };
}

/// Makes the calling thread act as `who` with group `gid`.
pub(crate) fn become_user(who: &Credentials, gid: u32) -> io::Result<()> {
    let groups = who.groups.as_ptr() as usize;
    let (uid_now, gid_now, groups_now) = CURRENT.get();
    if (uid_now, gid_now, groups_now) == (who.uid, gid, groups) {
        return Ok(());
    }
    if groups_now != groups {
        sys::set_thread_groups(&who.groups)?;
        // Keeps the list alive, so that its address names it.
        KEPT.with(|kept| *kept.borrow_mut() = Some(who.groups.clone()));
    }
    if gid_now != gid {
        sys::set_fsgid(gid)?;
    }
    if uid_now != who.uid {
        sys::set_fsuid(who.uid)?;
    }
    CURRENT.set((who.uid, gid, groups));
    Ok(())
}

/// Makes the calling thread act as root, where the proxy is root: opening by handle needs
/// it. Groups stay: with root's capabilities they do not matter.
pub(crate) fn become_root() {
    let (uid_now, gid, groups) = CURRENT.get();
    // Without the right to, opening by handle says so.
    if uid_now != 0 && sys::set_fsuid(0).is_ok() {
        CURRENT.set((0, gid, groups));
    }
}

/// Before a write or truncation through an open file: needs no permission, but a
/// thread with root's file capabilities would leave set-user-id bits standing.
pub(crate) fn leave_root(who: &Credentials) -> io::Result<()> {
    let (uid_now, ..) = CURRENT.get();
    if uid_now == 0 && who.uid != 0 { become_user(who, who.gid) } else { Ok(()) }
}

/// What workers may keep: to act as any user, and as root where root is not squashed.
pub(crate) const WORKER_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID);

/// Drops every capability that workers do not need, for good, in the calling
/// thread and those it will start. CAP_SYS_RESOURCE among them: with it, quotas
/// and reserved blocks would not bind.
pub(crate) fn drop_capabilities() -> io::Result<()> {
    let have = rustix::thread::capabilities(None)?;
    let keep = have.permitted.intersection(WORKER_CAPABILITIES);
    let sets =
        CapabilitySets { effective: keep, permitted: keep, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets)?;
    Ok(())
}

/// Names and groups of users from the server's user database, remembered for a while.
///
/// The look-up may ask a directory service over the network, so it happens when a
/// user attaches, never on the way of a request.
pub(crate) struct Users {
    keep: Duration,
    known: Mutex<BTreeMap<u32, Known>>,
}

/// When it was asked, the primary group, all groups.
type Known = (Instant, u32, Arc<[u32]>);

impl Users {
    /// More users than this are not remembered.
    const KNOWN_MAX: usize = 65_536;

    pub(crate) fn new(keep: Duration) -> Users {
        Users { keep, known: Mutex::new(BTreeMap::new()) }
    }

    /// Primary and supplementary groups of a user; a user nobody knows is in the
    /// group of the same number and no other.
    pub(crate) fn groups_of(&self, uid: u32) -> (u32, Arc<[u32]>) {
        if let Some((at, gid, groups)) = self.known.lock().expect("not poisoned").get(&uid)
            && at.elapsed() < self.keep
        {
            return (*gid, groups.clone());
        }
        let (gid, groups) = look_up(uid);
        let mut known = self.known.lock().expect("not poisoned");
        if known.len() >= Users::KNOWN_MAX {
            known.clear();
        }
        known.insert(uid, (Instant::now(), gid, groups.clone()));
        (gid, groups)
    }

    /// The uid of a user name.
    pub(crate) fn uid_of(name: &str) -> Option<u32> {
        nix::unistd::User::from_name(name).ok().flatten().map(|user| user.uid.as_raw())
    }
}

fn look_up(uid: u32) -> (u32, Arc<[u32]>) {
    let user = nix::unistd::User::from_uid(uid.into()).ok().flatten();
    let Some(user) = user else { return (uid, Arc::from([uid])) };
    let name = std::ffi::CString::new(user.name).unwrap_or_default();
    let groups = nix::unistd::getgrouplist(&name, user.gid).unwrap_or_else(|_| vec![user.gid]);
    (user.gid.as_raw(), groups.into_iter().map(|gid| gid.as_raw()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32, groups: &[u32], gid_trusted: bool) -> Credentials {
        Credentials { uid, gid: groups[0], groups: groups.into(), gid_trusted }
    }

    #[test]
    fn a_new_file_gets_a_group_of_its_user_only() {
        let user_ = user(1000, &[1000, 27], false);
        assert_eq!(user_.group_for(27), 27);
        assert_eq!(user_.group_for(0), 1000);
        assert_eq!(user_.group_for(u32::MAX), 1000);
        assert_eq!(user(1000, &[1000], true).group_for(5), 5);
    }

    #[test]
    fn root_is_in_the_group_that_the_user_database_says() {
        let users = Users::new(Duration::from_secs(1));
        assert_eq!(users.groups_of(0).0, 0);
        assert_eq!(users.groups_of(3_999_999_999).0, 3_999_999_999);
        assert_eq!(Users::uid_of("root"), Some(0));
    }
}
