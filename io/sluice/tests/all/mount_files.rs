//! Files in a mount: what is done there is seen beside it, and on other mounts.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::common::Proxy;
use crate::mounted::{Mounted, can_mount, finish, setup};
use rustix::fs::{CWD, FallocateFlags, FileType, Mode, Timespec, Timestamps, XattrFlags};

/// A proxy and a mount of it.
fn pair(name: &str, options: &str) -> Option<(Proxy, Mounted)> {
    let proxy = can_mount().then(|| setup(name).start())?;
    let mount = Mounted::new(&proxy, options);
    Some((proxy, mount))
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 4096) as u8).collect()
}

/// What stat(2) says of a file, but for what no two mounts have alike.
fn facts(path: &Path) -> [i64; 12] {
    let told = fs::symlink_metadata(path).unwrap();
    [
        told.mode().into(),
        told.uid().into(),
        told.gid().into(),
        told.nlink() as i64,
        told.size() as i64,
        told.blocks() as i64,
        told.rdev() as i64,
        told.mtime(),
        told.mtime_nsec(),
        told.ctime(),
        told.ctime_nsec(),
        told.atime(),
    ]
}

#[test]
fn every_kind_of_file_is_beside_as_it_is_in_the_mount() {
    let Some((proxy, mount)) = pair("kinds", "attr_timeout=0") else { return };
    let file = mount.join("file");
    fs::write(&file, bytes(10_000)).unwrap();
    fs::create_dir(mount.join("dir")).unwrap();
    symlink("to/nowhere", mount.join("symlink")).unwrap();
    fs::hard_link(&file, mount.join("link")).unwrap();
    let fifo = (FileType::Fifo, Mode::from_raw_mode(0o640));
    rustix::fs::mknodat(CWD, mount.join("fifo"), fifo.0, fifo.1, 0).unwrap();
    let null = rustix::fs::makedev(1, 3);
    let device = (FileType::CharacterDevice, Mode::from_raw_mode(0o600));
    rustix::fs::mknodat(CWD, mount.join("null"), device.0, device.1, null).unwrap();
    std::os::unix::fs::chown(&file, Some(1234), Some(2345)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o4751)).unwrap();
    let time = Timespec { tv_sec: -77, tv_nsec: 123_456_789 };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, mount.join("dir"), &times, rustix::fs::AtFlags::empty()).unwrap();
    let names = ["file", "dir", "symlink", "link", "fifo", "null"];
    for name in names {
        assert_eq!(facts(&mount.join(name)), facts(&proxy.data().join(name)), "{name}");
    }
    assert_eq!(fs::read(proxy.data().join("file")).unwrap(), bytes(10_000));
    assert_eq!(fs::read_link(mount.join("symlink")).unwrap(), Path::new("to/nowhere"));
    fs::rename(&file, mount.join("dir/moved")).unwrap();
    fs::remove_file(mount.join("link")).unwrap();
    assert_eq!(fs::metadata(proxy.data().join("dir/moved")).unwrap().nlink(), 1);
    let full = fs::remove_dir(mount.join("dir")).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::DirectoryNotEmpty);
    fs::remove_file(mount.join("dir/moved")).unwrap();
    fs::remove_dir(mount.join("dir")).unwrap();
    assert!(!proxy.data().join("dir").exists());
}

#[test]
fn data_is_written_read_cut_and_made_durable() {
    let Some((proxy, mount)) = pair("data", "") else { return };
    let data = bytes(5 << 20);
    let (path, beside) = (mount.join("file"), proxy.data().join("file"));
    let mut open = OpenOptions::new();
    let mut file = open.read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(&data).unwrap();
    file.sync_all().unwrap();
    assert!(fs::read(&beside).unwrap() == data);
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut read = Vec::new();
    file.read_to_end(&mut read).unwrap();
    assert!(read == data);
    file.set_len(1_000_001).unwrap();
    file.write_all_at(b"hole before", 3_000_000).unwrap();
    assert!(fs::read(&path).unwrap() == fs::read(&beside).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().len(), 3_000_011);
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, flags, 0, 1 << 20).unwrap();
    assert!(fs::read(&path).unwrap() == fs::read(&beside).unwrap());
    let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).unwrap();
    assert_eq!(hole, 3_000_000 / 4096 * 4096);
    let past = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(&path).unwrap();
    let mut some = vec![0; 11];
    past.read_exact_at(&mut some, 3_000_000).unwrap();
    assert_eq!(some, b"hole before");
}

#[test]
fn a_file_without_a_name_is_whole_until_it_is_closed() {
    let Some((proxy, mount)) = pair("nameless", "attr_timeout=0") else { return };
    let path = mount.join("file");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(b"before", 0).unwrap();
    fs::remove_file(&path).unwrap();
    file.write_all_at(b" after", 6).unwrap();
    let mut read = [0; 12];
    file.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"before after");
    let told = file.metadata().unwrap();
    assert_eq!((told.len(), told.nlink()), (12, 0));
    file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    file.set_len(3).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 3);
    assert_eq!(fs::read_dir(proxy.data()).unwrap().count(), 0);
}

#[test]
fn a_directory_of_thousands_is_listed_whole_with_attributes() {
    let Some((proxy, mount)) = pair("listing", "") else { return };
    let names: BTreeSet<String> = (0..5000).map(|n| format!("{n:0>60}")).collect();
    for name in &names {
        fs::write(proxy.data().join(name), name).unwrap();
    }
    for _ in 0..2 {
        let mut seen = BTreeSet::new();
        for entry in fs::read_dir(mount.at()).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.metadata().unwrap().len(), 60);
            assert!(seen.insert(entry.file_name().into_string().unwrap()), "twice: {entry:?}");
        }
        assert_eq!(seen.len(), names.len());
        assert_eq!(seen, names);
    }
}

#[test]
fn extended_attributes_come_and_go() {
    let Some((proxy, mount)) = pair("xattr", "") else { return };
    let path = mount.join("file");
    fs::write(&path, "").unwrap();
    let get = |path: &Path| {
        let mut value = vec![0; 100];
        let len = rustix::fs::getxattr(path, "user.test", value.as_mut_slice())?;
        value.truncate(len);
        Ok(value)
    };
    assert_eq!(get(&path), Err(rustix::io::Errno::NODATA));
    rustix::fs::setxattr(&path, "user.test", b"value", XattrFlags::CREATE).unwrap();
    assert_eq!(get(&path).unwrap(), b"value");
    assert_eq!(get(&proxy.data().join("file")).unwrap(), b"value");
    let again = rustix::fs::setxattr(&path, "user.test", b"other", XattrFlags::CREATE);
    assert_eq!(again, Err(rustix::io::Errno::EXIST));
    let mut list = [0; 100];
    let len = rustix::fs::listxattr(&path, list.as_mut_slice()).unwrap();
    assert!(list[..len].split(|byte| *byte == 0).any(|name| name == b"user.test"));
    rustix::fs::removexattr(&path, "user.test").unwrap();
    assert_eq!(get(&path), Err(rustix::io::Errno::NODATA));
}

#[test]
fn labels_are_told_where_there_are_some_and_unknown_where_nothing_is_labelled() {
    let known = fs::read_to_string("/proc/filesystems").unwrap();
    if known.contains("selinuxfs") {
        return crate::common::skip("this kernel labels files by itself");
    }
    let Some((proxy, mount)) = pair("label", "") else { return };
    for name in ["without", "with"] {
        fs::write(proxy.data().join(name), "").unwrap();
    }
    let label = "security.selinux";
    match rustix::fs::setxattr(proxy.data().join("with"), label, b"word", XattrFlags::CREATE) {
        Err(rustix::io::Errno::OPNOTSUPP) => {
            return crate::common::skip("no labels in this file system");
        }
        set => set.unwrap(),
    }
    assert_eq!(fs::read_dir(mount.at()).unwrap().count(), 2);
    let mut value = [0; 10];
    let none = rustix::fs::getxattr(mount.join("without"), label, &mut value);
    assert_eq!(none, Err(rustix::io::Errno::OPNOTSUPP));
    assert_eq!(rustix::fs::getxattr(mount.join("with"), label, &mut value), Ok(4));
    assert_eq!(&value[..4], b"word");
}

#[test]
fn the_umask_counts_unless_the_directory_has_a_default_acl() {
    let Some((proxy, mount)) = pair("umask", "") else { return };
    fs::create_dir(mount.join("plain")).unwrap();
    fs::create_dir(mount.join("acl")).unwrap();
    // Version 2; owner rwx, group rwx, others r-x: tag[2] permissions[2] id[4] each.
    let mut acl = vec![2, 0, 0, 0];
    for (tag, permissions) in [(0x01, 7), (0x04, 7), (0x20, 5)] {
        acl.extend([tag, 0, permissions, 0, 0xff, 0xff, 0xff, 0xff]);
    }
    let name = "system.posix_acl_default";
    match rustix::fs::setxattr(mount.join("acl"), name, &acl, XattrFlags::empty()) {
        Err(rustix::io::Errno::OPNOTSUPP) => return crate::common::skip("no ACLs here"),
        set => set.unwrap(),
    }
    let script = "umask 077; for at in plain acl; do : > $at/file; mkdir $at/dir; done";
    let mut shell = Command::new("sh");
    assert!(shell.args(["-c", script]).current_dir(mount.at()).status().unwrap().success());
    let mode = |name: &str| fs::metadata(proxy.data().join(name)).unwrap().mode() & 0o7777;
    assert_eq!((mode("plain/file"), mode("plain/dir")), (0o600, 0o700));
    assert_eq!((mode("acl/file"), mode("acl/dir")), (0o664, 0o775));
}

#[test]
fn what_was_closed_on_one_mount_is_read_by_who_opens_on_another() {
    let Some((proxy, first)) = pair("two", "") else { return };
    let second = Mounted::new(&proxy, "");
    for round in 0..20 {
        let text = format!("round {round:03}");
        fs::write(first.join("file"), &text).unwrap();
        assert_eq!(fs::read_to_string(second.join("file")).unwrap(), text);
        let text = format!("again {round:03}");
        fs::write(second.join("file"), &text).unwrap();
        assert_eq!(fs::read_to_string(first.join("file")).unwrap(), text);
    }
}

#[test]
fn appends_of_two_mounts_never_overlap() {
    let Some((proxy, first)) = pair("append", "") else { return };
    let second = Mounted::new(&proxy, "");
    let threads = [first.join("log"), second.join("log")].into_iter().zip(["a", "b"]);
    let threads = threads.map(|(path, who)| {
        std::thread::spawn(move || {
            let mut log = OpenOptions::new().append(true).create(true).open(path).unwrap();
            for number in 0..300 {
                log.write_all(format!("{who}{number:09}\n").as_bytes()).unwrap();
            }
        })
    });
    finish(threads.collect());
    let log = fs::read_to_string(proxy.data().join("log")).unwrap();
    assert_eq!(log.len(), 600 * 11);
    for who in ["a", "b"] {
        let lines = log.lines().filter(|line| line.starts_with(who));
        let expected = (0..300).map(|number| format!("{who}{number:09}"));
        assert!(lines.eq(expected), "each mount's lines in their order");
    }
}

#[test]
fn locks_of_two_mounts_meet_and_end_with_their_file() {
    let Some((proxy, first)) = pair("locks", "") else { return };
    let second = Mounted::new(&proxy, "");
    fs::write(first.join("file"), "").unwrap();
    let open = |mount: &Mounted| {
        OpenOptions::new().read(true).write(true).open(mount.join("file")).unwrap()
    };
    let (mine, yours) = (open(&first), open(&second));
    mine.lock().unwrap();
    assert!(matches!(yours.try_lock(), Err(TryLockError::WouldBlock)));
    let waiter = std::thread::spawn(move || {
        yours.lock().unwrap();
        yours
    });
    drop(mine);
    let yours = finish(vec![waiter]).remove(0);
    assert!(matches!(open(&first).try_lock(), Err(TryLockError::WouldBlock)));
    yours.unlock().unwrap();
    open(&first).try_lock().unwrap();
}

/// An unmount leaves nothing behind at the proxy.
#[test]
fn what_was_closed_is_closed_at_the_proxy_too() {
    let Some((proxy, mut mount)) = pair("closed", "leases=off") else { return };
    let before = proxy.descriptors();
    let files: Vec<File> = (0..100)
        .map(|number| {
            let path = mount.join(&format!("file{number}"));
            fs::write(&path, "x").unwrap();
            File::open(path).unwrap()
        })
        .collect();
    assert!(proxy.descriptors() >= before + 100, "each open file is one there");
    drop(files);
    crate::common::until("the proxy closes them", || proxy.descriptors() <= before + 10);
    mount.unmount();
}

/// O_DIRECT of x86 and arm64.
const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;
