//! Names in the dialect: looked up, opened, made, moved and removed by handle, with the
//! effect looked at in the served directory.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use ninep::dialect::{ExtRequest, HandleList, WRITE_KILL_PRIV, handle_fid};
use ninep::{Fid, NameList, REMOVE_DIR, Reply, Request, SetAttributes, Timestamp, open, setattr};

use crate::peer::errno::*;
use crate::peer::{Served, Setup, USER, assert_as_stat, open_request, opened, write_as_user};

const MODE: u32 = 0o7777;
const FIFO: u32 = 0o010_644;
const SYMLINK: u32 = 0o120_777;

/// Owner, group and permission bits.
fn owned(path: &Path) -> (u32, u32, u32) {
    let stat = fs::symlink_metadata(path).unwrap();
    (stat.uid(), stat.gid(), stat.mode() & MODE)
}

// ---- lookup ----

#[test]
fn a_lookup_answers_with_a_handle_and_all_that_stat_tells() {
    let served = Served::plain("lookup");
    let data = served.data();
    write_as_user(&data.join("file"), b"content");
    fs::create_dir(data.join("dir")).unwrap();
    symlink("nowhere", data.join("link")).unwrap();
    let mut client = served.client();
    client.make(&client.root.clone(), "fifo", FIFO, 0, "").unwrap();
    for name in ["file", "dir", "link", "fifo"] {
        let found = client.find(name).unwrap();
        assert_as_stat(&found.attributes, &data.join(name));
        assert_as_stat(&client.stat(&found.handle).unwrap(), &data.join(name));
        assert_eq!(client.find(name).unwrap().handle, found.handle, "one handle for one file");
    }
    assert_eq!(client.find("missing"), Err(ENOENT));
    let file = client.find("file").unwrap().handle;
    assert_eq!(client.lookup(&file, "x"), Err(ENOTDIR));
}

#[test]
fn dot_dot_is_the_directory_above_and_the_root_is_above_itself() {
    let served = Served::plain("dotdot");
    fs::create_dir_all(served.data().join("a/b")).unwrap();
    let mut client = served.client();
    let root = client.root.clone();
    let a = client.find("a").unwrap();
    let b = client.lookup(&a.handle, "b").unwrap();
    assert_eq!(client.lookup(&b.handle, "..").unwrap().attributes.qid, a.attributes.qid);
    for from in [&a.handle, &root] {
        let above = client.lookup(from, "..").unwrap();
        assert_as_stat(&above.attributes, &served.data());
        assert_eq!(client.lookup(&above.handle, "a").unwrap().handle, a.handle);
    }
}

#[test]
fn a_walk_from_a_handle_makes_a_fid() {
    let served = Served::plain("walk");
    fs::create_dir_all(served.data().join("a/b")).unwrap();
    let mut client = served.client();
    let root = client.root.clone();
    let mut space = Vec::new();
    let names = NameList::pack([&b"a"[..], b"b"], &mut space).unwrap();
    let walk = Request::Walk { fid: handle_fid(0), newfid: Fid(7), names };
    let frame = client.call(HandleList::one(&root), walk);
    let Ok(Reply::Walk { qids }) = frame.plain() else { panic!("{frame:?}") };
    assert_eq!(qids.len(), 2);
    assert_as_stat(&client.stat_fid(7).unwrap(), &served.data().join("a/b"));
}

// ---- open ----

#[test]
fn open_makes_a_file_only_with_create_and_says_whether_it_did() {
    let served = Served::plain("open");
    let path = served.data().join("f");
    let mut client = served.client();
    let root = client.root.clone();
    assert_eq!(client.open_name(1, "f", open::RDWR), Err(ENOENT));
    let made = client.open(&root, 1, "f", open::RDWR | open::CREATE, 0o640).unwrap();
    assert!(made.created);
    assert_as_stat(&made.file.attributes, &path);
    assert_eq!(owned(&path), (USER, USER, 0o640));
    client.write(1, 0, b"kept").unwrap();
    let there = client.open(&root, 2, "f", open::RDWR | open::CREATE, 0o600).unwrap();
    assert_eq!((there.created, &there.file.handle), (false, &made.file.handle));
    assert_eq!((there.file.attributes.size, owned(&path).2), (4, 0o640));
    assert_eq!(client.read(2, 0, 100).unwrap(), b"kept");
    let both = open::RDWR | open::CREATE | open::EXCL;
    assert_eq!(client.open(&root, 3, "f", both, 0o600), Err(EEXIST));
    assert_eq!(client.stat_fid(3), Err(EBADF), "what failed has made no fid");
    assert_eq!(fs::read(&path).unwrap(), b"kept");
    let cut = client.open_name(3, "f", open::WRONLY | open::TRUNC).unwrap();
    assert_eq!((cut.created, cut.file.attributes.size), (false, 0));
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
}

#[test]
fn open_without_a_name_opens_the_handle_itself_for_what_its_flags_say() {
    let served = Served::plain("itself");
    write_as_user(&served.data().join("f"), b"content");
    let mut client = served.client();
    let (root, f) = (client.root.clone(), client.find("f").unwrap());
    let opened = client.open(&f.handle, 1, "", open::RDONLY, 0).unwrap();
    assert_eq!((opened.created, opened.file.handle), (false, f.handle.clone()));
    assert_eq!(client.read(1, 3, 100).unwrap(), b"tent");
    assert_eq!(client.write(1, 0, b"x"), Err(EBADF));
    client.open(&f.handle, 2, "", open::WRONLY, 0).unwrap();
    assert_eq!(client.read(2, 0, 1), Err(EBADF));
    assert_eq!(client.open(&f.handle, 2, "", open::RDONLY, 0), Err(EBADF), "a fid in use");
    client.open(&root, 3, "", open::RDONLY | open::DIRECTORY, 0).unwrap();
    assert_eq!(client.open(&f.handle, 4, "", open::RDONLY | open::DIRECTORY, 0), Err(ENOTDIR));
    assert_eq!(client.open(&root, 4, "", open::WRONLY, 0), Err(EISDIR));
    // A file that has lost its last name is still there for who has it open.
    fs::remove_file(served.data().join("f")).unwrap();
    assert_eq!(client.read(1, 0, 7).unwrap(), b"content");
}

#[test]
fn links_and_special_files_are_not_opened() {
    let served = Served::plain("special");
    symlink("/etc/passwd", served.data().join("link")).unwrap();
    let mut client = served.client();
    client.make(&client.root.clone(), "fifo", FIFO, 0, "").unwrap();
    for flags in [open::RDONLY, open::RDONLY | open::CREATE] {
        assert_eq!(client.open_name(1, "link", flags), Err(ELOOP));
        assert_eq!(client.open_name(1, "fifo", flags), Err(ENXIO));
    }
    let fifo = client.find("fifo").unwrap().handle;
    assert_eq!(client.open(&fifo, 1, "", open::RDWR, 0), Err(ENXIO));
}

#[test]
fn of_two_that_create_at_a_time_one_has_made_the_file() {
    let served = Served::plain("race");
    let (mut one, mut two) = (served.client(), served.client());
    let root = one.root.clone();
    let (loose, exclusive) = (open::RDWR | open::CREATE, open::EXCL);
    for nth in 0..100 {
        let (flags, name) = (loose | if nth % 2 == 0 { exclusive } else { 0 }, format!("f{nth}"));
        let request = open_request(nth + 1, &name, flags, 0o644);
        let tags = [&mut one, &mut two].map(|c| c.send_once(HandleList::one(&root), request).tag);
        let answers = [opened(&one.wait(tags[0])), opened(&two.wait(tags[1]))];
        let made = answers.iter().filter(|a| a.as_ref().is_ok_and(|o| o.created)).count();
        let refused = answers.iter().filter(|a| **a == Err(EEXIST)).count();
        let expected = if nth % 2 == 0 { (1, 1) } else { (1, 0) };
        assert_eq!((made, refused), expected, "{name}: {answers:?}");
    }
}

// ---- make, link, rename, unlink ----

#[test]
fn make_makes_directories_links_and_special_files() {
    let served = Served::plain("make");
    let mut client = served.client();
    let root = client.root.clone();
    let at = |name: &str| served.data().join(name);
    let dir = client.make(&root, "dir", 0o040_750, 0, "").unwrap();
    assert!(at("dir").is_dir());
    assert_eq!(owned(&at("dir")), (USER, USER, 0o750));
    let link = client.make(&dir.handle, "link", SYMLINK, 0, "/any/where").unwrap();
    assert_eq!(fs::read_link(at("dir/link")).unwrap(), Path::new("/any/where"));
    let fifo = client.make(&root, "fifo", FIFO, 0, "").unwrap();
    assert!(fs::metadata(at("fifo")).unwrap().file_type().is_fifo());
    assert_eq!(owned(&at("fifo")), (USER, USER, 0o644));
    for (name, made) in [("dir", &dir), ("dir/link", &link), ("fifo", &fifo)] {
        let told = client.stat(&made.handle).unwrap();
        assert_as_stat(&told, &at(name));
    }
    assert_as_stat(&fifo.attributes, &at("fifo"));
    for name in ["dir", "fifo"] {
        assert_eq!(client.make(&root, name, 0o040_750, 0, ""), Err(EEXIST));
    }
    for name in [".", ".."] {
        assert_eq!(client.make(&root, name, 0o040_750, 0, ""), Err(EINVAL));
        assert_eq!(client.open(&root, 9, name, open::RDWR | open::CREATE, 0o644), Err(EINVAL));
    }
    assert_eq!(client.make(&root, "", 0o040_750, 0, ""), Err(ENOENT));
}

#[test]
fn a_mode_that_is_no_type_to_make_is_refused_and_makes_nothing() {
    let served = Served::plain("notype");
    let mut client = served.client();
    let root = client.root.clone();
    for mode in [0o170_644, 0o030_644, u32::MAX] {
        assert_eq!(client.make(&root, "x", mode, 0, ""), Err(EINVAL), "{mode:o}");
    }
    // Nobody but root makes devices.
    assert_eq!(client.make(&root, "x", 0o020_666, 0x103, ""), Err(EPERM));
    assert_eq!(fs::read_dir(served.data()).unwrap().count(), 0);
}

#[test]
fn messages_of_9p2000_l_work_on_handles() {
    let served = Served::plain("plain");
    let at = |name: &str| served.data().join(name);
    let mut client = served.client();
    let root = client.root.clone();
    let (dir, file) = (client.mkdir("dir").unwrap().handle, client.create(1, "f").handle);
    client.link(&file, &dir, "second").unwrap();
    assert_eq!(fs::metadata(at("f")).unwrap().ino(), fs::metadata(at("dir/second")).unwrap().ino());
    assert_eq!(client.lookup(&dir, "second").unwrap().attributes.nlink, 2);
    client.rename((&root, "f"), (&dir, "moved")).unwrap();
    assert!(!at("f").exists() && at("dir/moved").exists());
    client.unlink(&dir, "second", 0).unwrap();
    assert!(!at("dir/second").exists());
    assert_eq!(client.stat(&file).unwrap().nlink, 1, "the handle follows the file");
    client.unlink(&dir, "moved", 0).unwrap();
    client.unlink(&root, "dir", REMOVE_DIR).unwrap();
    assert!(!at("dir").exists());
    let link = client.make(&root, "link", SYMLINK, 0, "target").unwrap().handle;
    let readlink = Request::Readlink { fid: handle_fid(0) };
    let frame = client.call(HandleList::one(&link), readlink);
    assert_eq!(frame.plain(), Ok(Reply::Readlink { target: b"target" }));
    let statfs = client.call(HandleList::one(&root), Request::Statfs { fid: handle_fid(0) });
    let Ok(Reply::Statfs(figures)) = statfs.plain() else { panic!("{statfs:?}") };
    let kernels = rustix::fs::statvfs(served.data()).unwrap();
    assert_eq!((figures.blocks, u64::from(figures.bsize)), (kernels.f_blocks, kernels.f_bsize));
    let mkdir = Request::Mkdir { dfid: handle_fid(0), name: b"plain", mode: 0o711, gid: USER };
    client.call(HandleList::one(&root), mkdir).done().unwrap();
    assert_eq!(owned(&at("plain")), (USER, USER, 0o711));
}

// ---- change ----

#[test]
fn a_change_answers_with_the_attributes_as_they_are_by_then() {
    let served = Served::plain("change");
    let path = served.data().join("f");
    let mut client = served.client();
    let f = client.create(1, "f").handle;
    client.write(1, 0, &[7; 5000]).unwrap();
    let none = SetAttributes::default();
    let told = client.change(&f, SetAttributes { valid: setattr::MODE, mode: 0o604, ..none });
    assert_eq!(owned(&path), (USER, USER, 0o604));
    assert_as_stat(&told.unwrap(), &path);
    let told = client.change(&f, SetAttributes { valid: setattr::SIZE, size: 1234, ..none });
    assert_as_stat(&told.unwrap(), &path);
    assert_eq!(fs::read(&path).unwrap(), [7; 1234]);
    let valid = setattr::ATIME | setattr::ATIME_SET | setattr::MTIME | setattr::MTIME_SET;
    let (atime, mtime) = (Timestamp { sec: 5, nsec: 6 }, Timestamp { sec: 7, nsec: 8 });
    let told = client.change(&f, SetAttributes { valid, atime, mtime, ..none }).unwrap();
    assert_eq!((told.atime, told.mtime), (atime, mtime));
    assert_as_stat(&told, &path);
    let bad = Timestamp { sec: 5, nsec: 1_000_000_000 };
    assert_eq!(client.change(&f, SetAttributes { valid, atime: bad, ..none }), Err(EINVAL));
    assert_eq!(
        client.change(&f, SetAttributes { valid: setattr::UID, uid: 1, ..none }),
        Err(EPERM)
    );
    assert_as_stat(&client.stat(&f).unwrap(), &path);
    // An open file is cut through its fid also when its mode forbids it by now.
    client.change(&f, SetAttributes { valid: setattr::MODE, mode: 0, ..none }).unwrap();
    let cut = SetAttributes { valid: setattr::SIZE, size: 10, ..none };
    assert_eq!(client.change(&f, cut), Err(EACCES));
    assert_eq!(client.change_of(HandleList::NONE, Fid(1), cut).unwrap().size, 10);
    assert_eq!(fs::metadata(&path).unwrap().len(), 10);
}

// ---- whose rights ----

#[test]
fn a_handle_has_the_rights_of_the_headers_identity_and_a_fid_of_who_opened_it() {
    if !crate::peer::root_here() {
        return;
    }
    let served = Served::plain("rights");
    let path = served.data().join("own");
    write_as_user(&path, b"private");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let mut client = served.client();
    let own = client.find("own").unwrap().handle;
    client.open(&own, 1, "", open::RDWR, 0).unwrap();
    client.identify(2, USER + 1, "").unwrap();
    assert_eq!(client.open(&own, 2, "", open::RDONLY, 0), Err(EACCES));
    let mode = SetAttributes { valid: setattr::MODE, mode: 0o666, ..SetAttributes::default() };
    assert_eq!(client.change(&own, mode), Err(EPERM));
    assert_eq!(client.change_of(HandleList::NONE, Fid(1), mode).unwrap().mode & MODE, 0o666);
    assert_eq!(client.read(1, 0, 100).unwrap(), b"private");
    client.mkdir("other").unwrap();
    assert_eq!(owned(&served.data().join("other")).0, USER + 1);
    client.identity = 1;
    client.mkdir("first").unwrap();
    assert_eq!(owned(&served.data().join("first")).0, USER);
}

// ---- read-only exports ----

#[test]
fn a_read_only_export_refuses_every_change() {
    let tables = "[[export]]\nname = \"x\"\ndir = \"@/data\"\nreadonly = true\n";
    let served = Setup::new("readonly").tables(tables).start();
    let data = served.data();
    write_as_user(&data.join("f"), b"content");
    fs::create_dir(data.join("dir")).unwrap();
    crate::peer::everybodys(&data.join("dir"));
    let before = fs::metadata(data.join("f")).unwrap();
    let mut client = served.client();
    let root = client.root.clone();
    let (f, dir) = (client.find("f").unwrap().handle, client.find("dir").unwrap().handle);
    client.open(&f, 1, "", open::RDONLY, 0).unwrap();
    for flags in [open::WRONLY, open::RDWR, open::RDONLY | open::TRUNC] {
        assert_eq!(client.open(&f, 2, "", flags, 0), Err(EROFS), "{flags:o}");
    }
    let create = open::RDONLY | open::CREATE;
    assert_eq!(client.open(&root, 2, "new", create, 0o644), Err(EROFS));
    for (mode, target) in [(0o040_755, ""), (FIFO, ""), (SYMLINK, "target")] {
        assert_eq!(client.make(&root, "new", mode, 0, target), Err(EROFS), "{mode:o}");
    }
    let none = SetAttributes::default();
    for valid in [setattr::MODE, setattr::SIZE, setattr::MTIME, setattr::UID] {
        assert_eq!(client.change(&f, SetAttributes { valid, ..none }), Err(EROFS), "{valid}");
    }
    assert_eq!(client.setxattr(&f, "user.x", 0, b"1"), Err(EROFS));
    assert_eq!(client.removexattr(&f, "user.x"), Err(EROFS));
    assert_eq!(client.link(&f, &dir, "new"), Err(EROFS));
    assert_eq!(client.rename((&root, "f"), (&dir, "new")), Err(EROFS));
    assert_eq!(client.unlink(&root, "f", 0), Err(EROFS));
    assert_eq!(client.unlink(&root, "dir", REMOVE_DIR), Err(EROFS));
    // No fid there is open for writing; which of the two errors comes first says nothing.
    let (fid, tofid, data_, flags) = (Fid(1), Fid(1), b"x", WRITE_KILL_PRIV);
    let writes = [
        ExtRequest::Write { fid, offset: 0, flags, data: data_ },
        ExtRequest::Append { fid, flags, data: data_ },
        ExtRequest::Allocate { fid, mode: 0, offset: 0, length: 1 << 20 },
        ExtRequest::Copy { fid, offset: 0, tofid, tooffset: 4, length: 2 },
    ];
    for request in writes {
        let refused = client.call(HandleList::NONE, request).done();
        assert!([Err(EROFS), Err(EBADF)].contains(&refused), "{request:?}: {refused:?}");
    }
    assert_eq!(client.read(1, 0, 100).unwrap(), b"content");
    let after = fs::metadata(data.join("f")).unwrap();
    assert_eq!((after.mtime_nsec(), after.len()), (before.mtime_nsec(), before.len()));
    assert_eq!(fs::read_dir(&data).unwrap().count(), 2);
}
