//! What rights the proxy's threads have while they act for users, however it was started.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use ninep::{Fid, Request, open};

use crate::common::{P9Client, Proxy, Setup, USER, root_here, skip};
use crate::mounted::{Mounted, can_mount};

const EPERM: u32 = 1;
const EACCES: u32 = 13;

/// `cap_chown+ep` (linux: struct vfs_cap_data, revision 2).
const CHOWN_CAPABILITY: [u8; 20] = {
    let mut bytes = [0; 20];
    bytes[0] = 1;
    bytes[3] = 2;
    bytes[4] = 1;
    bytes
};

/// Sets the capabilities of a file, or with no bytes removes them.
fn set_capabilities(client: &mut P9Client, file: &str, value: &[u8]) -> Result<(), u32> {
    client.walk(0, 8, &[file]).unwrap();
    let (name, size) = (&b"security.capability"[..], value.len() as u64);
    let flags = if value.is_empty() { ninep::XATTR_REPLACE } else { 0 };
    client.done(&Request::Xattrcreate { fid: Fid(8), name, size, flags }).unwrap();
    if !value.is_empty() {
        client.write(8, 0, value).unwrap();
    }
    client.clunk(8)
}

#[test]
fn capabilities_of_files_are_set_and_removed_by_root_alone() {
    if !root_here() {
        return;
    }
    let proxy = Setup::new("file-capabilities").top("squash = \"none\"").start();
    let (mut user, mut root) = (proxy.client(), proxy.client_of("x", 0));
    user.make(1, "own");
    root.make(1, "roots");
    for file in ["own", "roots"] {
        assert_eq!(set_capabilities(&mut user, file, &CHOWN_CAPABILITY), Err(EPERM));
        set_capabilities(&mut root, file, &CHOWN_CAPABILITY).unwrap();
        assert_eq!(set_capabilities(&mut user, file, b""), Err(EPERM));
        set_capabilities(&mut root, file, b"").unwrap();
    }
}

/// A file that is its owner's alone is nobody else's, and what a user makes is the user's.
fn assert_serves_users_as_themselves(proxy: &Proxy) {
    let theirs = proxy.data().join("theirs");
    fs::write(&theirs, "theirs").unwrap();
    chown(&theirs, Some(2002), Some(2002)).unwrap();
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o600)).unwrap();
    for uid in [2001, USER] {
        let mut client = proxy.client_of("x", uid);
        for (fid, flags) in [(1, open::RDONLY), (2, open::RDWR)] {
            assert_eq!(client.open_name(fid, "theirs", flags), Err(EACCES));
        }
        client.make(3, &format!("of-{uid}"));
        let made = fs::metadata(proxy.data().join(format!("of-{uid}"))).unwrap();
        assert_eq!(made.uid(), uid);
        let mut owner = proxy.client_of("x", 2002);
        owner.open_name(1, "theirs", open::RDWR).unwrap();
    }
}

/// Whether setpriv(1) does that here; says so aloud if not.
fn setpriv(words: &[&str]) -> bool {
    let output = std::process::Command::new("setpriv").args(words).arg("true").output();
    let can = output.is_ok_and(|output| output.status.success());
    if !can {
        skip(&format!("setpriv {} does not work here", words.join(" ")));
    }
    can
}

/// Whoever starts the proxy may have told the kernel to leave capabilities where they are when
/// a thread becomes a user, which a container inherits as well.
#[test]
fn users_have_no_rights_of_roots_where_securebits_would_leave_them() {
    let bits = ["--securebits", "+no_setuid_fixup"];
    if !root_here() || !setpriv(&bits) {
        return;
    }
    let under = ["setpriv", bits[0], bits[1]];
    let proxy = Setup::new("securebits").under(&under).start();
    assert_serves_users_as_themselves(&proxy);
}

/// As a service that is given capabilities in place of root.
#[test]
fn users_have_no_rights_of_a_proxy_that_is_not_root_but_has_capabilities() {
    let sets = "+chown,+dac_override,+dac_read_search,+fowner,+fsetid,+mknod,+setuid,+setgid";
    let words = [
        "--reuid=1000",
        "--regid=1000",
        "--clear-groups",
        "--inh-caps",
        sets,
        "--ambient-caps",
        sets,
    ];
    if !root_here() || !setpriv(&words) {
        return;
    }
    let setup = Setup::new("ambient");
    let dir = setup.dir();
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    chown(&dir, Some(USER), Some(USER)).unwrap();
    let under: Vec<_> = ["setpriv"].into_iter().chain(words).collect();
    let proxy = setup.again().top("squash = \"none\"").under(&under).start();
    assert_serves_users_as_themselves(&proxy);
    // Who names files by handle is served as well, and root as root.
    if can_mount() {
        let mount = Mounted::new(&proxy, "attr_timeout=0");
        assert_eq!(fs::read_to_string(mount.join("theirs")).unwrap(), "theirs");
        fs::write(mount.join("roots"), "").unwrap();
        assert_eq!(fs::metadata(proxy.data().join("roots")).unwrap().uid(), 0);
    }
}
