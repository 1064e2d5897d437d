//! Every message of 9P2000.L, spoken to a running proxy: what docs/protocol.md promises
//! and what is easy to get wrong. One test for each promise; errnos are exact.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

use ninep::{Fid, NOTAG, REMOVE_DIR, Reply, Request, Tag};
use ninep::{SetAttributes, Timestamp, open, setattr};

use crate::common::errno::*;
use crate::common::{P9Client, Proxy, Setup, USER};

const ONE_A_SECOND: &str = "[[rule]]\nname = \"slow\"\nlimit = \"1ops/s\"\n";

// ---- sessions ----

#[test]
fn dialects_are_answered_with_the_plain_version_and_others_with_unknown() {
    let proxy = Proxy::plain("versions");
    let mut client = proxy.connect();
    assert_eq!(client.offer(8192, "9P2000.L.Google.13"), (8192, "9P2000.L".into()));
    assert_eq!(client.offer(8192, "9P2000.u").1, "unknown");
    client.send(&Request::Getattr { fid: Fid(0), mask: 1 });
    client.expect_closed();
}

#[test]
fn msize_is_the_smaller_one_from_4096_to_4_mib() {
    let proxy = Proxy::plain("msize");
    let mut client = proxy.client();
    client.make(1, "f");
    for msize in [4096, 65_536, 4 << 20] {
        assert_eq!(client.version(msize), msize);
        client.attach(0, "x", USER).unwrap();
        client.open_name(1, "f", open::RDWR).unwrap();
        let data: Vec<u8> = (0..msize - 23).map(|i| (i % 253) as u8).collect();
        let mut written = 0;
        while written < data.len() {
            written += client.write(1, written as u64, &data[written..]).unwrap() as usize;
        }
        assert_eq!(client.read(1, 0, msize - 11).unwrap(), data);
        assert_eq!(client.read(1, 0, msize - 10), Err(EINVAL));
        assert_eq!(client.read(1, 0, u32::MAX), Err(EINVAL));
    }
    assert_eq!(client.version(u32::MAX), 4 << 20);
    let mut small = proxy.connect();
    small.send_as(NOTAG, &Request::Version { msize: 4095, version: b"9P2000.L" });
    small.expect_closed();
}

#[test]
fn a_message_beyond_msize_ends_the_connection() {
    let proxy = Proxy::plain("beyond");
    let mut client = proxy.client();
    client.version(4096);
    client.send_bytes(&4097u32.to_le_bytes());
    client.send_bytes(&[118, 1, 0]);
    client.expect_closed();
}

#[test]
fn another_tversion_frees_fids_and_drops_what_is_queued() {
    let proxy = Setup::new("again").rules(ONE_A_SECOND).start();
    let mut client = proxy.connect();
    client.version(65_536);
    client.attach(0, "x", USER).unwrap();
    client.mkdir(0, "first").unwrap();
    // All in one message to the kernel: these must be dropped, not only unanswered.
    let mut bytes = Vec::new();
    for name in [b"a", b"b"] {
        let request = Request::Mkdir { dfid: Fid(0), name, mode: 0o755, gid: u32::MAX };
        request.encode(Tag(u16::from(name[0])), &mut bytes);
    }
    Request::Version { msize: 65_536, version: b"9P2000.L" }.encode(NOTAG, &mut bytes);
    client.send_bytes(&bytes);
    assert_eq!(client.next().tag(), NOTAG);
    assert_eq!(client.done(&Request::Clunk { fid: Fid(0) }), Err(EBADF));
    client.attach(0, "x", USER).unwrap();
    client.mkdir(0, "last").unwrap();
    let mut left: Vec<_> =
        fs::read_dir(proxy.data()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["first", "last"]);
}

#[test]
fn auth_is_enoent_unknown_types_eopnotsupp_and_malformed_ones_einval() {
    let proxy = Proxy::plain("types");
    let mut client = proxy.client();
    let auth = Request::Auth { afid: Fid(9), uname: b"u", aname: b"x", n_uname: USER };
    assert_eq!(client.done(&auth), Err(ENOENT));
    for kind in [6u8, 77, 98, 112, 114, 124, 126, 128, 255] {
        client.send_bytes(&[&[7, 0, 0, 0, kind, 5, 0][..]].concat());
        assert_eq!(client.wait(Tag(5)).reply().map(drop), Err(EOPNOTSUPP), "type {kind}");
    }
    // A clunk with half a fid, and one with bytes left over.
    client.send_bytes(&[9, 0, 0, 0, 120, 5, 0, 0, 0]);
    assert_eq!(client.wait(Tag(5)).reply().map(drop), Err(EINVAL));
    client.send_bytes(&[12, 0, 0, 0, 120, 5, 0, 0, 0, 0, 0, 0]);
    assert_eq!(client.wait(Tag(5)).reply().map(drop), Err(EINVAL));
    client.stat(0).unwrap();
}

#[test]
fn aname_names_an_export_and_a_job_and_many_may_attach() {
    let proxy = Setup::new("aname").api().start();
    let mut client = proxy.connect();
    client.version(65_536);
    assert_eq!(client.attach(0, "y", USER), Err(ENOENT));
    assert_eq!(client.attach(0, "x?jobs=1", USER), Err(EINVAL));
    assert_eq!(client.attach(0, "x?job=dd.500", USER).unwrap().kind, ninep::QTDIR);
    assert_eq!(client.attach(0, "x", USER), Err(EBADF));
    client.attach(1, "x?job=cp.501", USER + 1).unwrap();
    client.create(1, "of-1001", open::RDWR, 0o600).unwrap();
    client.make(2, "of-1000");
    assert_eq!(fs::metadata(proxy.data().join("of-1001")).unwrap().uid(), USER + 1);
    assert_eq!(fs::metadata(proxy.data().join("of-1000")).unwrap().uid(), USER);
    let request =
        Request::Attach { fid: Fid(7), afid: Fid(3), uname: b"", aname: b"x", n_uname: USER };
    assert_eq!(client.done(&request), Err(EINVAL));
}

#[test]
fn an_attach_by_name_is_that_user_and_an_unknown_name_is_the_squash_user() {
    let proxy = Proxy::plain("uname");
    let mut client = proxy.connect();
    client.version(65_536);
    for (fid, uname, uid) in [(0, "daemon", 1), (1, "nobody-has-this-name", 65_534)] {
        client.attach_named(fid, "x", uname).unwrap();
        client.create(fid, uname, open::RDWR, 0o600).unwrap();
        assert_eq!(fs::metadata(proxy.data().join(uname)).unwrap().uid(), uid);
    }
}

// ---- names ----

#[test]
fn a_walk_finds_all_or_some_and_makes_a_fid_only_for_all() {
    let proxy = Proxy::plain("walk");
    fs::create_dir_all(proxy.data().join("a/b/c")).unwrap();
    fs::write(proxy.data().join("a/f"), "x").unwrap();
    let mut client = proxy.client();
    assert_eq!(client.walk(0, 1, &["a", "b", "c"]).unwrap().len(), 3);
    assert_eq!(client.walk(0, 2, &["a", "no", "c"]).unwrap().len(), 1);
    assert_eq!(client.stat(2), Err(EBADF));
    assert_eq!(client.walk(0, 2, &["a", "f", "c"]).unwrap().len(), 2);
    assert_eq!(client.stat(2), Err(EBADF));
    assert_eq!(client.walk(0, 2, &["no"]), Err(ENOENT));
    assert_eq!(client.walk(0, 2, &[""]), Err(ENOENT));
    assert_eq!(client.walk(9, 2, &[]), Err(EBADF));
    // A number in use; the fid itself is allowed, and moves.
    assert_eq!(client.walk(0, 1, &["a"]), Err(EBADF));
    client.walk(1, 1, &[".."]).unwrap();
    assert_eq!(
        client.stat(1).unwrap().qid.path,
        fs::metadata(proxy.data().join("a/b")).unwrap().ino()
    );
    // A failed walk onto itself leaves the fid where it was.
    assert_eq!(client.walk(1, 1, &["c", "no"]).unwrap().len(), 1);
    assert_eq!(client.walk(1, 2, &["c"]).unwrap().len(), 1);
}

#[test]
fn sixteen_names_are_walked_and_seventeen_refused() {
    let proxy = Proxy::plain("sixteen");
    let list: Vec<String> = (0..16).map(|i| format!("d{i}")).collect();
    fs::create_dir_all(proxy.data().join(list.join("/"))).unwrap();
    let mut client = proxy.client();
    let list: Vec<&str> = list.iter().map(String::as_str).collect();
    assert_eq!(client.walk(0, 1, &list).unwrap().len(), 16);
    // The codec packs no more than 16, so the 17th is put in by hand.
    let mut body = vec![110, 9, 0, 0, 0, 0, 0, 2, 0, 0, 0, 17, 0];
    (0..17).for_each(|_| body.extend_from_slice(&[1, 0, b'.']));
    let size = (body.len() as u32 + 4).to_le_bytes();
    client.send_bytes(&[&size[..], &body].concat());
    assert_eq!(client.wait(Tag(9)).reply().map(drop), Err(EINVAL));
    assert_eq!(client.stat(2), Err(EBADF));
}

#[test]
fn a_clone_is_a_fid_of_its_own_and_an_open_fid_stays_open() {
    let proxy = Proxy::plain("clone");
    let mut client = proxy.client();
    client.make(1, "f");
    client.walk(0, 2, &["f"]).unwrap();
    client.walk(2, 3, &[]).unwrap();
    client.clunk(2).unwrap();
    client.open(3, open::RDONLY).unwrap();
    client.walk(3, 4, &[]).unwrap();
    assert_eq!(client.walk(3, 3, &[]), Err(EBADF));
    client.clunk(4).unwrap();
    assert_eq!(client.open(3, open::RDONLY), Err(EBADF));
    assert_eq!(client.clunk(2), Err(EBADF));
}

#[test]
fn paths_far_beyond_path_max_work() {
    let proxy = Proxy::plain("deep");
    let mut client = proxy.client();
    let name = "n".repeat(200);
    client.walk(0, 1, &[]).unwrap();
    for _ in 0..40 {
        client.mkdir(1, &name).unwrap();
        client.walk(1, 1, &[&name]).unwrap();
    }
    // 8000 bytes below the root: the kernel takes no path of more than 4096.
    client.walk(1, 2, &[]).unwrap();
    client.create(2, "leaf", open::RDWR, 0o644).unwrap();
    client.write(2, 0, b"deep").unwrap();
    client.clunk(2).unwrap();
    client.walk(1, 2, &["leaf"]).unwrap();
    client.open(2, open::RDONLY).unwrap();
    assert_eq!(client.read(2, 0, 100).unwrap(), b"deep");
    client.rename((1, "leaf"), (0, "up")).unwrap();
    assert_eq!(fs::read(proxy.data().join("up")).unwrap(), b"deep");
    for _ in 0..40 {
        client.walk(1, 1, &[".."]).unwrap();
        client.unlink(1, &name, REMOVE_DIR).unwrap();
    }
    assert_eq!(client.stat(1).unwrap().qid.path, client.stat(0).unwrap().qid.path);
}

#[test]
fn links_and_special_files_are_made_as_asked() {
    let proxy = Proxy::plain("special");
    let mut client = proxy.client();
    client.make(1, "f");
    client.symlink(0, "s", "any/../where \x01").unwrap();
    client.walk(0, 2, &["s"]).unwrap();
    let frame = client.call(&Request::Readlink { fid: Fid(2) });
    assert_eq!(frame.reply(), Ok(Reply::Readlink { target: b"any/../where \x01" }));
    assert_eq!(client.done(&Request::Readlink { fid: Fid(1) }), Err(EINVAL));
    assert_eq!(client.walk(0, 9, &["s", "x"]).unwrap().len(), 1);
    assert_eq!(client.open(2, open::RDONLY), Err(ELOOP));
    let link = |fid, name| Request::Link { dfid: Fid(0), fid: Fid(fid), name };
    client.walk(0, 3, &["f"]).unwrap();
    client.done(&link(3, b"hard")).unwrap();
    assert_eq!(client.done(&link(3, b"hard")), Err(EEXIST));
    assert_eq!(client.done(&link(0, b"dir")), Err(EPERM));
    assert_eq!(client.stat(3).unwrap().nlink, 2);
    let mknod =
        |name, mode| Request::Mknod { dfid: Fid(0), name, mode, major: 1, minor: 3, gid: u32::MAX };
    client.done(&mknod(b"fifo", 0o010_640)).unwrap();
    let fifo = fs::metadata(proxy.data().join("fifo")).unwrap();
    assert!(fifo.file_type().is_fifo());
    assert_eq!(fifo.permissions().mode() & 0o777, 0o640);
    // An ordinary user makes no devices.
    assert_eq!(client.done(&mknod(b"null", 0o020_666)), Err(EPERM));
    for name in [&b"."[..], b".."] {
        assert_eq!(client.done(&link(3, name)), Err(EINVAL));
    }
    assert_eq!(client.done(&link(3, b"")), Err(ENOENT));
}

#[test]
fn rename_over_an_open_file_leaves_the_old_one_readable() {
    let proxy = Proxy::plain("over");
    let mut client = proxy.client();
    for (fid, name, text) in [(1, "old", b"old"), (2, "new", b"new")] {
        client.make(fid, name);
        client.write(fid, 0, text).unwrap();
    }
    client.rename((0, "new"), (0, "old")).unwrap();
    assert_eq!(client.read(1, 0, 10).unwrap(), b"old");
    assert_eq!(client.stat(1).unwrap().nlink, 0);
    assert_eq!(fs::read(proxy.data().join("old")).unwrap(), b"new");
    // By fid: it goes by the name it was walked by, and follows.
    client.walk(0, 3, &["old"]).unwrap();
    client.done(&Request::Rename { fid: Fid(3), dfid: Fid(0), name: b"third" }).unwrap();
    client.done(&Request::Rename { fid: Fid(3), dfid: Fid(0), name: b"fourth" }).unwrap();
    assert_eq!(fs::read(proxy.data().join("fourth")).unwrap(), b"new");
    assert_eq!(
        client.done(&Request::Rename { fid: Fid(0), dfid: Fid(0), name: b"root" }),
        Err(EBUSY)
    );
    // Another file has taken the name meanwhile: it is not touched.
    fs::rename(proxy.data().join("fourth"), proxy.data().join("away")).unwrap();
    fs::write(proxy.data().join("fourth"), "other").unwrap();
    assert_eq!(
        client.done(&Request::Rename { fid: Fid(3), dfid: Fid(0), name: b"fifth" }),
        Err(ENOENT)
    );
    assert_eq!(fs::read(proxy.data().join("fourth")).unwrap(), b"other");
}

#[test]
fn remove_clunks_also_on_failure_and_unlinkat_leaves_fids() {
    let proxy = Proxy::plain("remove");
    let mut client = proxy.client();
    client.mkdir(0, "full").unwrap();
    client.walk(0, 1, &["full"]).unwrap();
    client.mkdir(1, "inner").unwrap();
    assert_eq!(client.done(&Request::Remove { fid: Fid(1) }), Err(ENOTEMPTY));
    assert_eq!(client.clunk(1), Err(EBADF));
    client.walk(0, 1, &["full", "inner"]).unwrap();
    client.done(&Request::Remove { fid: Fid(1) }).unwrap();
    assert_eq!(client.clunk(1), Err(EBADF));
    client.make(2, "open");
    client.write(2, 0, b"lives").unwrap();
    client.walk(0, 3, &["open"]).unwrap();
    assert_eq!(client.unlink(0, "open", REMOVE_DIR), Err(ENOTDIR));
    assert_eq!(client.unlink(0, "full", 0), Err(EISDIR));
    assert_eq!(client.unlink(0, "open", 1), Err(EINVAL));
    client.unlink(0, "open", 0).unwrap();
    assert_eq!(client.read(2, 0, 10).unwrap(), b"lives");
    assert_eq!(client.stat(3).unwrap().size, 5);
    let short = SetAttributes { valid: setattr::SIZE, size: 2, ..SetAttributes::default() };
    client.set(2, short).unwrap();
    client.write(2, 2, b"!").unwrap();
    assert_eq!(client.read(2, 0, 10).unwrap(), b"li!");
    client.clunk(2).unwrap();
    client.clunk(3).unwrap();
    assert_eq!(client.unlink(0, "open", 0), Err(ENOENT));
}

#[test]
fn two_exports_do_not_mix_in_one_message() {
    let tables = "[[export]]\nname = \"x\"\ndir = \"data\"\n\
                  [[export]]\nname = \"y\"\ndir = \"data\"\n";
    let proxy = Setup::new("mix").tables(tables).start();
    let mut client = proxy.client();
    client.attach(1, "y", USER).unwrap();
    client.make(2, "f");
    assert_eq!(client.rename((0, "f"), (1, "g")), Err(EXDEV));
    client.walk(0, 3, &["f"]).unwrap();
    assert_eq!(client.done(&Request::Link { dfid: Fid(1), fid: Fid(3), name: b"g" }), Err(EXDEV));
}

// ---- open files ----

#[test]
fn lcreate_without_o_excl_opens_what_another_made_first() {
    let proxy = Proxy::plain("create");
    let (mut one, mut two) = (proxy.client(), proxy.client());
    one.make(1, "f");
    one.write(1, 0, b"first").unwrap();
    two.walk(0, 1, &[]).unwrap();
    assert_eq!(two.create(1, "f", open::RDWR | open::EXCL, 0o644), Err(EEXIST));
    two.create(1, "f", open::RDWR, 0o600).unwrap();
    assert_eq!(two.read(1, 0, 10).unwrap(), b"first");
    assert_eq!(fs::metadata(proxy.data().join("f")).unwrap().permissions().mode() & 0o777, 0o644);
    one.symlink(0, "s", "f").unwrap();
    one.mkdir(0, "d").unwrap();
    one.walk(0, 2, &[]).unwrap();
    assert_eq!(one.create(2, "s", open::RDWR, 0o600), Err(ELOOP));
    assert_eq!(one.create(2, "d", open::RDWR, 0o600), Err(EISDIR));
    one.create(2, "f", open::RDWR | open::TRUNC, 0o600).unwrap();
    assert_eq!(one.stat(2).unwrap().size, 0);
}

#[test]
fn clients_that_race_to_create_all_get_the_one_file() {
    let proxy = Proxy::plain("race");
    for round in 0..20 {
        let name = format!("f{round}");
        let opened: Vec<u64> = std::thread::scope(|scope| {
            let race = |_| {
                scope.spawn(|| {
                    let mut client = proxy.client();
                    client.walk(0, 1, &[]).unwrap();
                    client.create(1, &name, open::RDWR, 0o644).unwrap().path
                })
            };
            (0..4).map(race).collect::<Vec<_>>().into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(opened.iter().all(|qid| *qid == opened[0]));
        let excl = std::thread::scope(|scope| {
            let race = |_| {
                scope.spawn(|| {
                    let mut client = proxy.client();
                    client.walk(0, 1, &[]).unwrap();
                    client.create(1, &format!("x{round}"), open::RDWR | open::EXCL, 0o644)
                })
            };
            let all: Vec<_> = (0..4).map(race).collect();
            all.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(excl.iter().filter(|result| result.is_ok()).count(), 1);
        assert!(excl.iter().all(|result| result.is_ok() || *result == Err(EEXIST)));
    }
}

#[test]
fn offsets_are_64_bits_and_the_impossible_ones_are_refused() {
    let proxy = Proxy::plain("offsets");
    let mut client = proxy.client();
    client.make(1, "big");
    let far = (8 << 40) + 5;
    assert_eq!(client.write(1, far, b"far"), Ok(3));
    assert_eq!(client.read(1, far - 1, 10).unwrap(), b"\0far");
    assert_eq!(client.stat(1).unwrap().size, far + 3);
    assert_eq!(client.read(1, far + 3, 10).unwrap(), b"");
    assert_eq!(client.read(1, u64::MAX, 10), Err(EINVAL));
    assert_eq!(client.read(1, u64::MAX - 4, 65_536), Err(EINVAL));
    assert_eq!(client.write(1, u64::MAX, b"x"), Err(EFBIG));
    assert_eq!(client.write(1, i64::MAX as u64, b"x"), Err(EFBIG));
    let size = SetAttributes { valid: setattr::SIZE, size: 1 << 63, ..SetAttributes::default() };
    assert_eq!(client.set(1, size), Err(EFBIG));
    assert_eq!(client.read(1, far, 3).unwrap(), b"far");
}

#[test]
fn fids_that_are_not_open_or_for_the_other_direction_are_ebadf() {
    let proxy = Proxy::plain("direction");
    let mut client = proxy.client();
    client.make(1, "f");
    client.open_name(2, "f", open::RDONLY).unwrap();
    client.open_name(3, "f", open::WRONLY).unwrap();
    client.walk(0, 4, &["f"]).unwrap();
    assert_eq!(client.write(2, 0, b"x"), Err(EBADF));
    assert_eq!(client.read(3, 0, 1), Err(EBADF));
    assert_eq!(client.read(4, 0, 1), Err(EBADF));
    assert_eq!(client.done(&Request::Fsync { fid: Fid(4), datasync: 0 }), Err(EBADF));
    client.done(&Request::Fsync { fid: Fid(1), datasync: 1 }).unwrap();
    client.walk(0, 5, &[]).unwrap();
    client.open(5, open::RDONLY).unwrap();
    assert_eq!(client.read(5, 0, 10), Err(EISDIR));
    assert_eq!(client.readdir(1, 0, 1000), Err(ENOTDIR));
    client.done(&Request::Fsync { fid: Fid(5), datasync: 0 }).unwrap();
    client.walk(0, 6, &[]).unwrap();
    assert_eq!(client.open(6, open::RDWR), Err(EISDIR));
}

// ---- directories ----

#[test]
fn readdir_gives_whole_entries_and_refuses_a_count_too_small_for_one() {
    let proxy = Proxy::plain("entries");
    let long = "l".repeat(255);
    fs::write(proxy.data().join(&long), "").unwrap();
    fs::write(proxy.data().join("short"), "").unwrap();
    let mut client = proxy.client();
    client.walk(0, 1, &[]).unwrap();
    client.open(1, open::RDONLY).unwrap();
    assert_eq!(client.readdir(1, 0, 24), Err(EINVAL));
    assert_eq!(client.readdir(1, 0, 0), Err(EINVAL));
    for count in [24 + 255, 24 + 256, 1000, 65_536] {
        let found = client.list(1, count);
        let names: BTreeSet<_> = found.iter().map(|e| e.name.as_str()).collect();
        assert_eq!(names, BTreeSet::from([".", "..", &long, "short"]), "count {count}");
        assert_eq!(found.len(), 4);
        let file = found.iter().find(|e| e.name == "short").unwrap();
        assert_eq!((file.kind, file.qid.kind), (8, ninep::QTFILE));
        assert_eq!(file.qid.path, fs::metadata(proxy.data().join("short")).unwrap().ino());
    }
    // The name above the root is the root.
    let above = client.list(1, 4096).into_iter().find(|e| e.name == "..").unwrap();
    assert_eq!(above.qid.path, client.stat(0).unwrap().qid.path);
}

#[test]
fn a_hundred_thousand_entries_are_each_listed_once() {
    let proxy = Proxy::plain("many");
    for i in 0..100_000 {
        fs::File::create(proxy.data().join(format!("entry-{i:06}"))).unwrap();
    }
    let mut client = proxy.client();
    client.walk(0, 1, &[]).unwrap();
    client.open(1, open::RDONLY).unwrap();
    let mut names = client.list(1, 65_536);
    assert_eq!(names.len(), 100_002);
    names.sort_by(|a, b| a.name.cmp(&b.name));
    names.dedup_by(|a, b| a.name == b.name);
    assert_eq!(names.len(), 100_002);
    assert_eq!((&names[2].name[..], &names[100_001].name[..]), ("entry-000000", "entry-099999"));
}

#[test]
fn cookies_stay_valid_while_entries_are_deleted() {
    let proxy = Proxy::plain("delete");
    for i in 0..2000 {
        fs::write(proxy.data().join(format!("f{i}")), "").unwrap();
    }
    let mut client = proxy.client();
    client.walk(0, 1, &[]).unwrap();
    client.open(1, open::RDONLY).unwrap();
    let (mut seen, mut cookie) = (Vec::new(), 0);
    loop {
        let some = client.readdir(1, cookie, 2000).unwrap();
        let Some(last) = some.last() else { break };
        cookie = last.cookie;
        for entry in some.into_iter().filter(|e| !e.name.starts_with('.')) {
            client.unlink(0, &entry.name, 0).unwrap();
            seen.push(entry.name);
        }
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 2000);
    assert_eq!(client.list(1, 4096).len(), 2);
}

// ---- attributes ----

#[test]
fn attributes_are_set_one_by_one_and_told_as_they_are() {
    let proxy = Proxy::plain("attributes");
    let mut client = proxy.client();
    client.make(1, "f");
    client.write(1, 0, b"0123456789").unwrap();
    client.walk(0, 2, &["f"]).unwrap();
    let none = SetAttributes::default();
    client.set(2, SetAttributes { valid: setattr::MODE, mode: 0o4751, ..none }).unwrap();
    client.set(2, SetAttributes { valid: setattr::SIZE, size: 4, ..none }).unwrap();
    let at = |sec, nsec| Timestamp { sec, nsec };
    let valid = setattr::ATIME | setattr::ATIME_SET | setattr::MTIME | setattr::MTIME_SET;
    let (atime, mtime) = (at(1_000, 999_999_999), at(2_000_000_000, 7));
    client.set(2, SetAttributes { valid, atime, mtime, ..none }).unwrap();
    let stat = client.stat(2).unwrap();
    assert_eq!((stat.size, stat.atime, stat.mtime), (4, atime, mtime));
    assert_eq!((stat.uid, stat.nlink, stat.mode & 0o777), (USER, 1, 0o751));
    assert_eq!(stat.valid & ninep::getattr::BASIC, ninep::getattr::BASIC);
    // Only one of the two; without its set bit it is the server's now.
    let clock = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let before = clock();
    client.set(2, SetAttributes { valid: setattr::MTIME, ..none }).unwrap();
    let now = client.stat(2).unwrap();
    assert_eq!(now.atime, atime);
    // The kernel's time of files is that of its last tick.
    assert!((before - 1..=clock()).contains(&now.mtime.sec), "{now:?}, at {before}");
    assert_ne!(now.qid.version, stat.qid.version);
    let late = SetAttributes { atime: at(1, 1_000_000_000), valid, ..none };
    assert_eq!(client.set(2, late), Err(EINVAL));
    let owner = SetAttributes { valid: setattr::UID, uid: 7, ..none };
    assert_eq!(client.set(2, owner), Err(EPERM));
    assert_eq!(client.set(0, SetAttributes { valid: setattr::SIZE, ..none }), Err(EISDIR));
}

#[test]
fn statfs_tells_of_the_file_system_below() {
    let proxy = Proxy::plain("statfs");
    let mut client = proxy.client();
    let frame = client.call(&Request::Statfs { fid: Fid(0) });
    let Ok(Reply::Statfs(told)) = frame.reply() else { panic!("{frame:?}") };
    let here = rustix::fs::statfs(proxy.data()).unwrap();
    assert_eq!(told.kind, here.f_type as u32);
    assert_eq!((told.blocks, told.files), (here.f_blocks, here.f_files));
    assert_eq!(u64::from(told.namelen), here.f_namelen as u64);
}

// ---- extended attributes ----

/// Sets an attribute of the file `f` through fid 8; the error is the clunk's.
fn set_xattr(
    client: &mut P9Client,
    name: &str,
    said: u64,
    value: &[u8],
    flags: u32,
) -> Result<(), u32> {
    client.walk(0, 8, &["f"]).unwrap();
    let name = name.as_bytes();
    let created = client.done(&Request::Xattrcreate { fid: Fid(8), name, size: said, flags });
    if let Err(error) = created {
        client.clunk(8).unwrap();
        return Err(error);
    }
    for (i, part) in value.chunks(1000).enumerate() {
        if let Err(error) = client.write(8, i as u64 * 1000, part) {
            let _ = client.clunk(8);
            assert_eq!(client.clunk(8), Err(EBADF));
            return Err(error);
        }
    }
    let result = client.clunk(8);
    assert_eq!(client.clunk(8), Err(EBADF));
    result
}

fn get_xattr(client: &mut P9Client, name: &str) -> Result<Vec<u8>, u32> {
    client.walk(0, 8, &["f"]).unwrap();
    let request = Request::Xattrwalk { fid: Fid(8), newfid: Fid(9), name: name.as_bytes() };
    let frame = client.call(&request);
    client.clunk(8).unwrap();
    let Reply::Xattrwalk { size } = frame.reply()? else { panic!("{frame:?}") };
    let mut value = Vec::new();
    while value.len() < size as usize {
        value.extend(client.read(9, value.len() as u64, 1500).unwrap());
    }
    assert_eq!(client.read(9, size, 10).unwrap(), b"");
    client.clunk(9).unwrap();
    Ok(value)
}

#[test]
fn extended_attributes_are_set_at_clunk_read_listed_and_removed() {
    let proxy = Proxy::plain("xattr");
    let mut client = proxy.client();
    client.make(1, "f");
    let value: Vec<u8> = (0..2500u32).map(|i| i as u8).collect();
    set_xattr(&mut client, "user.a", 2500, &value, 0).unwrap();
    assert_eq!(get_xattr(&mut client, "user.a").unwrap(), value);
    set_xattr(&mut client, "user.b", 1, b"b", ninep::XATTR_CREATE).unwrap();
    assert_eq!(set_xattr(&mut client, "user.b", 1, b"c", ninep::XATTR_CREATE), Err(EEXIST));
    assert_eq!(set_xattr(&mut client, "user.c", 1, b"c", ninep::XATTR_REPLACE), Err(ENODATA));
    let list = get_xattr(&mut client, "").unwrap();
    let names: BTreeSet<_> = list.split(|b| *b == 0).filter(|name| !name.is_empty()).collect();
    assert!(names.contains(&b"user.a"[..]) && names.contains(&b"user.b"[..]));
    // No bytes: an empty value, or with XATTR_REPLACE a removal.
    set_xattr(&mut client, "user.b", 0, b"", 0).unwrap();
    assert_eq!(get_xattr(&mut client, "user.b").unwrap(), b"");
    set_xattr(&mut client, "user.b", 0, b"", ninep::XATTR_REPLACE).unwrap();
    assert_eq!(get_xattr(&mut client, "user.b"), Err(ENODATA));
    assert_eq!(set_xattr(&mut client, "user.b", 0, b"", ninep::XATTR_REPLACE), Err(ENODATA));
    set_xattr(&mut client, "system.posix_acl_access", 0, b"", 0).unwrap();
}

#[test]
fn an_attribute_of_another_size_than_said_is_not_set() {
    let proxy = Proxy::plain("xattrsize");
    let mut client = proxy.client();
    client.make(1, "f");
    assert_eq!(set_xattr(&mut client, "user.a", 3, b"ab", 0), Err(EINVAL));
    assert_eq!(set_xattr(&mut client, "user.a", 3, b"abcd", 0), Err(EINVAL));
    assert_eq!(set_xattr(&mut client, "user.a", 65_537, b"", 0), Err(E2BIG));
    assert_eq!(set_xattr(&mut client, "user.a", u64::MAX, b"", 0), Err(E2BIG));
    assert_eq!(set_xattr(&mut client, "user.a", 1, b"a", 4), Err(EINVAL));
    assert_eq!(get_xattr(&mut client, "user.a"), Err(ENODATA));
    // A hole between two writes.
    client.walk(0, 5, &["f"]).unwrap();
    let request = Request::Xattrcreate { fid: Fid(5), name: b"user.a", size: 10, flags: 0 };
    client.done(&request).unwrap();
    assert_eq!(client.write(5, 1, b"x"), Err(EINVAL));
    assert_eq!(client.done(&request), Err(EBADF));
    assert_eq!(client.clunk(5), Err(EINVAL));
    assert_eq!(client.clunk(5), Err(EBADF));
    assert_eq!(get_xattr(&mut client, "user.a"), Err(ENODATA));
}
