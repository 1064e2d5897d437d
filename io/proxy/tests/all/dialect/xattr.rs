//! Extended attributes in one message each, looked at in the served directory.

use std::path::Path;

use ninep::{XATTR_CREATE, XATTR_REPLACE};
use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};

use crate::peer::Served;
use crate::peer::errno::*;

/// The value as the kernel has it, or its errno.
fn value(path: &Path, name: &str) -> Result<Vec<u8>, u32> {
    let mut space = vec![0; 64 << 10];
    let got = lgetxattr(path, name, &mut space[..]).map_err(|error| error.raw_os_error() as u32)?;
    space.truncate(got);
    Ok(space)
}

#[test]
fn a_value_is_set_replaced_read_and_removed() {
    let served = Served::plain("xattr");
    let path = served.data().join("f");
    let mut client = served.client();
    let f = client.create(1, "f").handle;
    assert_eq!(client.getxattr(&f, "user.a", 100), Err(ENODATA));
    assert_eq!(client.setxattr(&f, "user.a", XATTR_REPLACE, b"1"), Err(ENODATA));
    client.setxattr(&f, "user.a", XATTR_CREATE, b"first").unwrap();
    assert_eq!(value(&path, "user.a").unwrap(), b"first");
    assert_eq!(client.setxattr(&f, "user.a", XATTR_CREATE, b"2"), Err(EEXIST));
    client.setxattr(&f, "user.a", XATTR_REPLACE, b"second").unwrap();
    assert_eq!(value(&path, "user.a").unwrap(), b"second");
    assert_eq!(client.getxattr(&f, "user.a", 100), Ok((6, b"second".to_vec())));
    // One message says what 9P2000.L cannot: an empty value that replaces another.
    client.setxattr(&f, "user.a", XATTR_REPLACE, b"").unwrap();
    assert_eq!(value(&path, "user.a"), Ok(vec![]));
    assert_eq!(client.getxattr(&f, "user.a", 100), Ok((0, vec![])));
    client.setxattr(&f, "user.a", 0, b"third").unwrap();
    client.removexattr(&f, "user.a").unwrap();
    assert_eq!(value(&path, "user.a"), Err(ENODATA));
    assert_eq!(client.removexattr(&f, "user.a"), Err(ENODATA));
}

#[test]
fn the_list_has_every_name_ended_by_nul() {
    let served = Served::plain("list");
    let mut client = served.client();
    let f = client.create(1, "f").handle;
    assert_eq!(client.getxattr(&f, "", 100), Ok((0, vec![])));
    for name in ["user.one", "user.two", "user.three"] {
        lsetxattr(served.data().join("f"), name, b"x", XattrFlags::empty()).unwrap();
    }
    let (length, list) = client.getxattr(&f, "", 4096).unwrap();
    assert_eq!(length as usize, list.len());
    let mut names: Vec<_> = list.split(|byte| *byte == 0).collect();
    assert_eq!(names.pop(), Some(&b""[..]), "the last is ended too");
    names.sort();
    assert_eq!(names, [&b"user.one"[..], b"user.three", b"user.two"]);
    assert_eq!(client.getxattr(&f, "", 0), Ok((length, vec![])));
    assert_eq!(client.getxattr(&f, "", length - 1), Err(ERANGE));
    assert_eq!(client.getxattr(&f, "", length).unwrap().1, list);
}

#[test]
fn a_count_of_0_asks_for_the_length_and_one_too_small_is_erange() {
    let served = Served::plain("length");
    let mut client = served.client();
    let f = client.create(1, "f").handle;
    // As much as ext4 keeps in one block besides what it needs itself.
    let long: Vec<u8> = (0..3000u32).map(|i| i as u8).collect();
    client.setxattr(&f, "user.long", 0, &long).unwrap();
    assert_eq!(client.getxattr(&f, "user.long", 0), Ok((3000, vec![])));
    for count in [1, 2999] {
        assert_eq!(client.getxattr(&f, "user.long", count), Err(ERANGE), "{count}");
    }
    for count in [3000, 3001, 65_536] {
        assert_eq!(client.getxattr(&f, "user.long", count), Ok((3000, long.clone())), "{count}");
    }
}

#[test]
fn what_cannot_be_a_name_a_flag_or_a_value_is_refused() {
    let served = Served::plain("bad");
    let mut client = served.client();
    let f = client.create(1, "f").handle;
    let long = format!("user.{}", "n".repeat(251));
    assert_eq!(client.setxattr(&f, &long, 0, b"1"), Err(ERANGE), "256 bytes");
    assert_eq!(client.getxattr(&f, &long, 100), Err(ERANGE));
    assert_eq!(client.setxattr(&f, "", 0, b"1"), Err(EINVAL));
    assert_eq!(client.removexattr(&f, ""), Err(ERANGE), "as the kernel says");
    assert_eq!(client.setxattr(&f, "user.a", 4, b"1"), Err(EINVAL));
    assert_eq!(client.setxattr(&f, "user.a", 0, &[0; 65_537]), Err(E2BIG));
    assert_eq!(client.setxattr(&f, "nothing", 0, b"1"), Err(EOPNOTSUPP), "no name space");
    assert_eq!(client.getxattr(&f, "", 100), Ok((0, vec![])), "nothing was set");
}

#[test]
fn attributes_of_a_file_are_there_for_those_who_may_read_it() {
    if !crate::peer::root_here() {
        return;
    }
    let served = Served::plain("rights");
    let mut client = served.client();
    let create = ninep::open::RDWR | ninep::open::CREATE;
    let root = client.root.clone();
    let f = client.open(&root, 1, "f", create, 0o600).unwrap().file.handle;
    client.setxattr(&f, "user.a", 0, b"private").unwrap();
    client.identify(2, crate::peer::USER + 1, "").unwrap();
    assert_eq!(client.getxattr(&f, "user.a", 100), Err(EACCES));
    assert_eq!(client.setxattr(&f, "user.a", 0, b"changed"), Err(EACCES));
    assert_eq!(client.removexattr(&f, "user.a"), Err(EACCES));
    assert_eq!(value(&served.data().join("f"), "user.a").unwrap(), b"private");
}

/// The kernel would let a thread of the proxy set them for anybody, on any file.
#[test]
fn capabilities_of_a_file_are_not_a_users_to_set_or_remove() {
    let served = Served::plain("file-capabilities");
    let path = served.data().join("f");
    let mut client = served.client();
    let f = client.create(1, "f").handle;
    let name = "security.capability";
    assert_eq!(client.setxattr(&f, name, 0, &CHOWN_CAPABILITY), Err(EPERM));
    if lsetxattr(&path, name, &CHOWN_CAPABILITY, XattrFlags::empty()).is_ok() {
        assert_eq!(client.removexattr(&f, name), Err(EPERM));
        assert_eq!(value(&path, name).unwrap(), CHOWN_CAPABILITY);
    }
}

/// `cap_chown+ep` (linux: struct vfs_cap_data, revision 2).
const CHOWN_CAPABILITY: [u8; 20] = {
    let mut bytes = [0; 20];
    bytes[0] = 1;
    bytes[3] = 2;
    bytes[4] = 1;
    bytes
};
