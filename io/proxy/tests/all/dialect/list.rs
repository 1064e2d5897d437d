//! Directories in the dialect: all entries with handles and attributes, in whole pieces,
//! and which of them have nothing but plain permissions.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use ninep::dialect::{ExtRequest, HandleList, PLAIN_FILE};
use ninep::open;
use rustix::fs::{XattrFlags, lsetxattr};

use crate::peer::errno::*;
use crate::peer::{P9Channel, Served, USER, assert_as_stat, write_as_user};

const DIR: u32 = open::RDONLY | open::DIRECTORY;
/// Values of `d_type`.
const DT_DIR: u8 = 4;
const DT_REG: u8 = 8;
const DT_LNK: u8 = 10;

/// Opens the export's root as a directory.
fn open_root(client: &mut P9Channel, fid: u32) {
    client.open(&client.root.clone(), fid, "", DIR, 0).unwrap();
}

#[test]
fn ten_thousand_entries_come_once_each_with_handles_that_can_be_used() {
    let served = Served::plain("many");
    for nth in 0..10_000 {
        fs::write(served.data().join(format!("entry-{nth}")), vec![b'x'; nth % 7]).unwrap();
    }
    let mut client = served.client();
    open_root(&mut client, 1);
    let all = client.list_all(1, 0, 64 << 10);
    let names: BTreeSet<_> = all.iter().map(|entry| entry.name.clone()).collect();
    assert_eq!((all.len(), names.len()), (10_002, 10_002));
    assert!(names.contains(".") && names.contains(".."));
    for (nth, entry) in all.iter().enumerate() {
        if entry.name.starts_with('.') {
            assert_eq!((&entry.file, entry.kind), (&None, DT_DIR));
            continue;
        }
        let file = entry.file.as_ref().expect("what is there was looked up");
        assert_eq!(entry.kind, DT_REG);
        if nth % 97 == 0 {
            let path = served.data().join(&entry.name);
            assert_as_stat(&file.attributes, &path);
            assert_as_stat(&client.stat(&file.handle).unwrap(), &path);
            assert_eq!(client.find(&entry.name).unwrap(), *file);
            client.open(&file.handle, 2, "", open::RDONLY, 0).unwrap();
            assert_eq!(client.read(2, 0, 100).unwrap(), fs::read(&path).unwrap());
            client.clunk(2).unwrap();
        }
    }
}

#[test]
fn a_list_goes_on_after_any_entry_and_begins_again_at_0() {
    let served = Served::plain("offsets");
    for nth in 0..300 {
        fs::write(served.data().join(format!("{nth}")), "").unwrap();
    }
    let mut client = served.client();
    open_root(&mut client, 1);
    let names = |list: &[crate::peer::P9Listed]| -> Vec<_> {
        list.iter().map(|e| e.name.clone()).collect()
    };
    let all = client.list_all(1, 0, 1 << 16);
    assert_eq!(all.len(), 302);
    for from in [299, 0, 150, 17, 300, 301] {
        let rest = client.list_all(1, all[from].offset, 4096);
        assert_eq!(names(&rest), names(&all[from + 1..]), "from {from} on");
    }
    assert_eq!(names(&client.list_all(1, 0, 1000)), names(&all));
    // What went away meanwhile is not in the way of the rest.
    fs::remove_file(served.data().join(&all[20].name)).unwrap();
    let rest = client.list_all(1, all[20].offset, 4096);
    assert_eq!(names(&rest), names(&all[21..]));
}

#[test]
fn entries_are_whole_whatever_the_count_and_too_small_a_count_is_refused() {
    let served = Served::plain("counts");
    for nth in 0..20usize {
        fs::write(served.data().join("n".repeat(nth * 12 + 1)), "").unwrap();
    }
    let mut client = served.client();
    open_root(&mut client, 1);
    // The method asserts that no reply has more bytes than asked for, and no entry is cut.
    for count in [700, 701, 777, 1024, 5000] {
        let all = client.list_all(1, 0, count);
        assert_eq!(all.len(), 22, "{count} bytes at a time");
    }
    let all = client.list_all(1, 0, 5000);
    for entry in &all[..21] {
        assert_eq!(client.list(1, entry.offset, 10), Err(EINVAL), "not one entry fits");
    }
    assert_eq!(client.list(1, all[21].offset, 10), Ok(vec![]), "the end fits into anything");
}

#[test]
fn only_an_open_directory_is_listed() {
    let served = Served::plain("notdir");
    let mut client = served.client();
    let root = client.root.clone();
    client.create(1, "f");
    assert_eq!(client.list(1, 0, 4096), Err(ENOTDIR));
    assert_eq!(client.list(2, 0, 4096), Err(EBADF));
    let fid = ninep::dialect::handle_fid(0);
    let list = ExtRequest::List { fid, offset: 0, count: 4096 };
    let refused = client.call(HandleList::one(&root), list).done();
    assert!([Err(EBADF), Err(ENOTDIR)].contains(&refused), "not open: {refused:?}");
    open_root(&mut client, 3);
    assert_eq!(client.read(3, 0, 100), Err(EISDIR));
}

#[test]
fn kinds_and_attributes_of_links_and_directories_are_their_own() {
    let served = Served::plain("kinds");
    symlink("f", served.data().join("link")).unwrap();
    fs::create_dir(served.data().join("dir")).unwrap();
    write_as_user(&served.data().join("f"), b"12345");
    let mut client = served.client();
    open_root(&mut client, 1);
    let all = client.list_all(1, 0, 4096);
    for (name, kind) in [("link", DT_LNK), ("dir", DT_DIR), ("f", DT_REG)] {
        let entry = all.iter().find(|entry| entry.name == name).unwrap();
        assert_eq!(entry.kind, kind);
        assert_as_stat(&entry.file.as_ref().unwrap().attributes, &served.data().join(name));
    }
}

// ---- plain files ----

/// An ACL that lets one more user read, as the kernel keeps it.
fn acl() -> Vec<u8> {
    let entries = [(1u16, 6u16, u32::MAX), (2, 4, USER + 1), (4, 4, u32::MAX), (16, 4, u32::MAX)];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries.into_iter().chain([(32, 4, u32::MAX)]) {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn set(path: &Path, name: &str, value: &[u8]) {
    lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
}

#[test]
fn files_with_neither_acl_nor_attributes_are_said_to_be_plain_and_no_others() {
    let served = Served::plain("plainbit");
    let at = |name: &str| served.data().join(name);
    for name in ["plain", "xattr", "acl", "late"] {
        write_as_user(&at(name), b"");
    }
    for name in ["dir", "acldir"] {
        fs::create_dir(at(name)).unwrap();
    }
    symlink("plain", at("link")).unwrap();
    set(&at("xattr"), "user.a", b"1");
    set(&at("acl"), "system.posix_acl_access", &acl());
    set(&at("acldir"), "system.posix_acl_default", &acl());
    let mut client = served.client();
    open_root(&mut client, 1);
    let all = client.list_all(1, 0, 1 << 16);
    let expected = [("plain", true), ("xattr", false), ("acl", false), ("dir", true)];
    let others = [("acldir", false), ("late", true), ("link", true)];
    for (name, plain) in expected.into_iter().chain(others) {
        let found = client.find(name).unwrap();
        let listed = all.iter().find(|entry| entry.name == name).unwrap().file.as_ref().unwrap();
        let told = client.stat(&found.handle).unwrap();
        for (how, attributes) in
            [("lookup", found.attributes), ("list", listed.attributes), ("getattr", told)]
        {
            assert_eq!(attributes.valid & PLAIN_FILE != 0, plain, "{name} by {how}");
        }
    }
    // It follows what happens to the file, here and by others.
    let late = client.find("late").unwrap().handle;
    let plain = |client: &mut P9Channel| client.stat(&late).unwrap().valid & PLAIN_FILE != 0;
    client.setxattr(&late, "user.b", 0, b"2").unwrap();
    assert!(!plain(&mut client));
    client.removexattr(&late, "user.b").unwrap();
    assert!(plain(&mut client));
    set(&at("late"), "user.c", b"");
    assert!(!plain(&mut client));
    let opened = client.open(&late, 2, "", open::RDWR, 0).unwrap();
    assert_eq!(opened.file.attributes.valid & PLAIN_FILE, 0);
    assert_eq!(client.stat_fid(2).unwrap().valid & PLAIN_FILE, 0);
    assert_ne!(client.create(3, "new").attributes.valid & PLAIN_FILE, 0);
}
