//! On whose behalf a thread calls the backend.
//!
//! The kernel checks permission against the calling thread's file-system uid, gid
//! and groups. They are set by the raw per-thread calls (the C library would set
//! them for every thread), only before calls that check permission, and only when
//! they differ from what the thread has: 0.5 µs that most requests do not pay.
//!
//! Setting a file-system uid other than 0 takes the file capabilities out of the
//! thread's effective set by itself, and going back to 0 restores them.
//!
//! A new thread begins as the one that starts it is at that moment. What it gets, and why that is
//! right:
//!
//! | of a thread | what changes it, and when |
//! |---|---|
//! | file-system uid and gid, effective capabilities | [`become_user`] and similar functions: [`begin_thread`] resets them |
//! | supplementary groups | [`become_user`]: a new thread knows none, so they are set for each user; for root they do not matter |
//! | real, effective and saved uid and gid | never |
//! | permitted, inheritable and ambient capabilities, securebits | [`drop_capabilities`], before any thread acts for a user; the ambient set is never more than the inheritable one |
//! | bounding set, no_new_privs, seccomp | never; the first two matter to programs that are executed, and the proxy executes none |
//! | umask, root and current directory | [`begin_thread`] makes them the thread's own and its umask 0, as clients have applied theirs; what the proxy makes for itself is made by other threads, under the umask that it was started with |
//! | name spaces, control groups | never: they are the process's |
//! | signal mask, scheduling policy, nice value, processors | never: as the proxy was started |

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets};

use crate::sys;

/// A user as the backend sees one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FsCredentials {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Arc<[u32]>,
    /// The gid in create messages is believed whatever the groups say.
    pub(crate) gid_trusted: bool,
}

impl FsCredentials {
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

/// Identity of a thread, as far as it was set here; `groups` is none as long as the thread has its
/// first groups.
struct Acting {
    uid: u32,
    gid: u32,
    groups: Option<Arc<[u32]>>,
}

thread_local! {
    static ACTING: RefCell<Acting> = const { RefCell::new(Acting { uid: 0, gid: 0, groups: None }) };
}

/// Makes a new thread act for no user, with a umask of its own that masks nothing. To be called
/// before anything else: the kernel gives a new thread the file-system uid and gid, the groups and
/// the effective capabilities of the thread that started it, which may be acting for a user.
pub(crate) fn begin_thread() -> io::Result<()> {
    // Where a container's filter of system calls refuses it, the umask is the whole process's.
    let _ = nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS);
    rustix::process::umask(rustix::fs::Mode::empty());
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    sys::set_fsuid(uid)?;
    sys::set_fsgid(gid)?;
    // Its groups may still be a user's: with root's capabilities they do not matter, and the next
    // user has groups of its own, which are then set since none are known here.
    ACTING.set(Acting { uid, gid, groups: None });
    Ok(())
}

/// Makes the calling thread act as `who` with group `gid`. On an error, the parts that were set
/// before it are known.
pub(crate) fn become_user(who: &FsCredentials, gid: u32) -> io::Result<()> {
    ACTING.with_borrow_mut(|acting| {
        if !acting.groups.as_ref().is_some_and(|now| same_groups(now, &who.groups)) {
            sys::set_thread_groups(&who.groups)?;
            acting.groups = Some(who.groups.clone());
        }
        if acting.gid != gid {
            sys::set_fsgid(gid)?;
            acting.gid = gid;
        }
        if acting.uid != who.uid {
            sys::set_fsuid(who.uid)?;
            acting.uid = who.uid;
        }
        Ok(())
    })
}

/// Whether two lists name the same groups; mostly they are one list, which is kept alive by both.
fn same_groups(one: &Arc<[u32]>, other: &Arc<[u32]>) -> bool {
    Arc::ptr_eq(one, other) || one == other
}

/// Makes the calling thread act as root, where the proxy is root: opening by handle needs
/// it. Groups stay: with root's capabilities they do not matter.
pub(crate) fn become_root() {
    ACTING.with_borrow_mut(|acting| {
        // Without the right to, opening by handle says so.
        if acting.uid != 0 && sys::set_fsuid(0).is_ok() {
            acting.uid = 0;
        }
    });
}

/// Before a write or truncation through an open file: needs no permission, but a
/// thread with root's file capabilities would leave set-user-id bits standing.
pub(crate) fn become_non_root(who: &FsCredentials) -> io::Result<()> {
    let as_root = ACTING.with_borrow(|acting| acting.uid == 0);
    if as_root && who.uid != 0 { become_user(who, who.gid) } else { Ok(()) }
}

/// Capabilities that workers keep: to act as any user, and as root if root is not squashed.
pub(crate) const WORKER_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID);

/// Capabilities that the kernel takes from a thread that ceases to be root for the file system, and
/// gives back (linux: CAP_FS_MASK).
const FILE_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::MKNOD);

/// Drops every capability that workers do not need, for good, in the calling
/// thread and those it will start. CAP_SYS_RESOURCE among them: with it, quotas
/// and reserved blocks would not bind.
///
/// # Errors
/// If users would be served with the proxy's own capabilities, and that cannot be changed.
pub(crate) fn drop_capabilities() -> io::Result<()> {
    let have = rustix::thread::capabilities(None)?;
    let keep = have.permitted.intersection(WORKER_CAPABILITIES);
    if keep.intersects(FILE_CAPABILITIES) {
        enable_setuid_fixup()?;
    }
    // A proxy with capabilities that is not root has not ceased to be root, so it has lost none: it
    // begins with all of them.
    let as_root = rustix::process::geteuid().is_root();
    let effective = if as_root { keep } else { keep.difference(FILE_CAPABILITIES) };
    let sets = CapabilitySets { effective, permitted: keep, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets)?;
    Ok(())
}

/// Makes the kernel take [`FILE_CAPABILITIES`] from a thread that becomes a user, which the process
/// that starts the proxy may have disabled.
fn enable_setuid_fixup() -> io::Result<()> {
    let bits = rustix::thread::capabilities_secure_bits()?;
    let forbids = CapabilitiesSecureBits::NO_SETUID_FIXUP;
    if bits.contains(forbids) {
        rustix::thread::set_capabilities_secure_bits(bits.difference(forbids))?;
    }
    Ok(())
}

/// Names and groups of users from the server's user database, remembered for a while.
///
/// The look-up may ask a directory service over the network, so it happens when a
/// user attaches, never on the way of a request.
pub(crate) struct Users {
    cache_time: Duration,
    known: Mutex<BTreeMap<u32, KnownGroups>>,
}

/// When it was asked, the primary group, all groups.
type KnownGroups = (Instant, u32, Arc<[u32]>);

impl Users {
    /// More users than this are not remembered.
    const KNOWN_MAX: usize = 65_536;

    pub(crate) fn new(keep: Duration) -> Users {
        Users { cache_time: keep, known: Mutex::new(BTreeMap::new()) }
    }

    /// Returns primary and supplementary groups of a user; an unknown user is in the group of the
    /// same number and no other.
    pub(crate) fn groups_of(&self, uid: u32) -> (u32, Arc<[u32]>) {
        if let Some((at, gid, groups)) = self.known.lock().expect("not poisoned").get(&uid)
            && at.elapsed() < self.cache_time
        {
            return (*gid, groups.clone());
        }
        let (gid, groups) = read_user(uid);
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

fn read_user(uid: u32) -> (u32, Arc<[u32]>) {
    let user = nix::unistd::User::from_uid(uid.into()).ok().flatten();
    let Some(user) = user else { return (uid, Arc::from([uid])) };
    let name = std::ffi::CString::new(user.name).unwrap_or_default();
    let groups = nix::unistd::getgrouplist(&name, user.gid).unwrap_or_else(|_| vec![user.gid]);
    (user.gid.as_raw(), groups.into_iter().map(|gid| gid.as_raw()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32, groups: &[u32], gid_trusted: bool) -> FsCredentials {
        FsCredentials { uid, gid: groups[0], groups: groups.into(), gid_trusted }
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
    fn a_thread_that_somebody_acting_for_a_user_starts_acts_for_nobody() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        // On a thread of its own, so that no other test gets what it leaves.
        let starter = || {
            become_user(&user(2001, &[2001, 27], false), 2001).unwrap();
            assert_eq!(of_this_thread("Uid:")[3], "2001");
            let started = || {
                assert_eq!(of_this_thread("Uid:")[3], "2001", "the kernel hands it on");
                begin_thread().unwrap();
                (of_this_thread("Uid:"), of_this_thread("Gid:"), of_this_thread("CapEff:"))
            };
            std::thread::spawn(started).join().unwrap()
        };
        let before = of_this_thread("CapEff:");
        let (uid, gid, effective) = std::thread::spawn(starter).join().unwrap();
        assert_eq!((uid[3].as_str(), gid[3].as_str()), ("0", "0"));
        assert_eq!(effective, before);
    }

    /// Threads that act for users at random start threads, which do the same: each is at any time
    /// what it believes to be, as the kernel tells it, and has the rest of its process.
    /// `SLUICE_SEED` repeats a run.
    #[test]
    fn threads_that_start_each_other_at_random_are_who_they_believe_to_be() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        // Capabilities and the umask are its whole process's.
        let name = "threads_that_start_each_other_at_random_are_who_they_believe_to_be";
        testkit::alone(module_path!(), name, || {
            let seed = std::env::var("SLUICE_SEED").ok().and_then(|text| text.parse().ok());
            let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
            println!("to repeat: SLUICE_SEED={seed}");
            // As a careful administrator starts the proxy.
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
            drop_capabilities().unwrap();
            let process = Arc::new(of_all_threads());
            let nothing = "[\"0000000000000000\"]";
            for (key, said) in [("CapInh:", nothing), ("CapAmb:", nothing)] {
                assert!(process.contains(&format!("{key} {said}")), "{process:?}");
            }
            for round in 0..8 {
                let (done, ended) = std::sync::mpsc::channel();
                start_acting(seed.wrapping_mul(31).wrapping_add(round) | 1, 3, &process, done);
                // Each thread sends what was wrong with it, and all senders are gone at the end.
                let wrong: Vec<String> = ended.iter().collect();
                assert_eq!(wrong, [""; 0]);
            }
            assert_eq!(of_this_thread("Umask:"), ["0077"], "that of the crew is its own");
        });
    }

    /// Starts a thread as the crew does, which acts for a while and starts others, so deep.
    fn start_acting(
        seed: u64,
        depth: u32,
        process: &Arc<Vec<String>>,
        wrong: std::sync::mpsc::Sender<String>,
    ) {
        let process = process.clone();
        let acts = move || {
            let mut state = seed;
            let mut below = |limit: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % limit
            };
            for _ in 0..20 {
                let uid = 2000 + below(4) as u32;
                // Users of one number come with several lists, of one length too.
                let who = user(uid, &[uid, 100 + below(3) as u32], false);
                match below(5) {
                    0 => become_root(),
                    1 => become_non_root(&who).unwrap(),
                    2 if depth > 0 => {
                        start_acting(below(u64::MAX) | 1, depth - 1, &process, wrong.clone());
                    }
                    _ => become_user(&who, who.groups[below(2) as usize]).unwrap(),
                }
                if let Err(what) = believes_what_is() {
                    wrong.send(what).unwrap();
                }
                let rest = of_all_threads();
                if rest != *process {
                    wrong.send(format!("{rest:?} of a process with {process:?}")).unwrap();
                }
            }
        };
        crate::thread_pool::start_thread(0, acts).unwrap();
    }

    /// Compares what the calling thread believes with what the kernel says.
    fn believes_what_is() -> Result<(), String> {
        let last = |key| of_this_thread(key).pop().unwrap().parse::<u32>().unwrap();
        let is = (last("Uid:"), last("Gid:"));
        let set = |key| u64::from_str_radix(&of_this_thread(key)[0], 16).unwrap();
        let (effective, permitted) = (set("CapEff:"), set("CapPrm:"));
        let mut groups: Vec<u32> =
            of_this_thread("Groups:").iter().map(|group| group.parse().unwrap()).collect();
        groups.sort_unstable();
        ACTING.with_borrow(|acting| {
            let mut believed = acting.groups.as_ref().map(|groups| groups.to_vec());
            if let Some(groups) = &mut believed {
                groups.sort_unstable();
            }
            let may = match acting.uid {
                0 => permitted,
                _ => permitted & !FILE_CAPABILITIES.bits(),
            };
            let right = is == (acting.uid, acting.gid)
                && of_this_thread("Umask:") == ["0000"]
                && believed.as_ref().is_none_or(|believed| *believed == groups)
                && effective == may;
            let believes = (acting.uid, acting.gid);
            let told =
                || format!("{believes:?} {believed:?}, and is {is:?} {groups:?} {effective:x}");
            if right { Ok(()) } else { Err(told()) }
        })
    }

    /// State that the calling thread shares with all threads of its process, whatever user it acts
    /// for.
    fn of_all_threads() -> Vec<String> {
        let own = |what: &str| {
            let link = std::fs::read_link(format!("/proc/thread-self/{what}")).unwrap();
            format!("{what} {}", link.display())
        };
        let links = ["root", "cwd", "ns/mnt", "ns/user", "ns/net"].map(own);
        let lines = [
            "CapInh:",
            "CapPrm:",
            "CapBnd:",
            "CapAmb:",
            "NoNewPrivs:",
            "Seccomp:",
            "SigBlk:",
            "Cpus_allowed:",
        ];
        let said = |key| format!("{key} {:?}", of_this_thread(key));
        let real = ["Uid:", "Gid:"].map(|key| format!("{key} {:?}", &of_this_thread(key)[..3]));
        let bits = rustix::thread::capabilities_secure_bits().unwrap();
        let nice = rustix::process::getpriority_process(None).unwrap();
        let rest = [format!("{bits:?}"), format!("nice {nice}")];
        links.into_iter().chain(lines.map(said)).chain(real).chain(rest).collect()
    }

    /// The words of a line of the calling thread's status.
    fn of_this_thread(key: &str) -> Vec<String> {
        let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_list_of_groups_is_known_by_what_it_holds() {
        let list = |groups: &[u32]| -> Arc<[u32]> { groups.into() };
        assert!(same_groups(&list(&[5, 6]), &list(&[5, 6])));
        assert!(!same_groups(&list(&[5, 6]), &list(&[5, 7])));
    }

    #[test]
    fn root_is_in_the_group_that_the_user_database_says() {
        let users = Users::new(Duration::from_secs(1));
        assert_eq!(users.groups_of(0).0, 0);
        assert_eq!(users.groups_of(3_999_999_999).0, 3_999_999_999);
        assert_eq!(Users::uid_of("root"), Some(0));
    }
}
