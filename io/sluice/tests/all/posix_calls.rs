//! Calls that network file systems get wrong: each is made on one mount and looked at on the
//! other, and beside both.
//!
//! ```text
//!   call on a ─► checked on a, on b, and in the directory beside them
//! ```
//!
//! What is mapped into memory is done by a program in C, which is compiled here: Rust has no
//! safe call for it.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Output};

use crate::common::{Proxy, skip};
use crate::posix_pair::{Pair, bytes};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, SeekFrom, Timespec, Timestamps, XattrFlags,
};

fn whole(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

#[test]
fn holes_are_found_where_they_are() {
    let Some(pair) = Pair::new("holes", "allow_other") else { return };
    let file = whole(&pair.a.join("file"));
    // Data at 1 and at 5 MiB, and 8 MiB in all.
    file.write_all_at(&bytes(1, 65_536), 1 << 20).unwrap();
    file.write_all_at(&bytes(2, 65_536), 5 << 20).unwrap();
    file.set_len(8 << 20).unwrap();
    drop(file);
    for place in [pair.a.join("file"), pair.b.join("file"), pair.beside("file")] {
        let file = File::open(&place).unwrap();
        let at = |from| rustix::fs::seek(&file, from).unwrap();
        assert_eq!(at(SeekFrom::Data(0)), 1 << 20, "{}", place.display());
        assert_eq!(at(SeekFrom::Hole(1 << 20)), (1 << 20) + 65_536);
        assert_eq!(at(SeekFrom::Data(2 << 20)), 5 << 20);
        assert_eq!(at(SeekFrom::Hole(6 << 20)), 6 << 20);
        let none = rustix::fs::seek(&file, SeekFrom::Data(6 << 20));
        assert_eq!(none, Err(rustix::io::Errno::NXIO));
        assert!(file.metadata().unwrap().blocks() < 2048, "the holes take no room");
    }
    // What is written and not yet closed is data too.
    let file = whole(&pair.a.join("file"));
    file.write_all_at(b"data", 3 << 20).unwrap();
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(2 << 20)).unwrap(), 3 << 20);
}

#[test]
fn room_is_given_and_taken_by_fallocate() {
    let Some(pair) = Pair::new("fallocate", "allow_other") else { return };
    let content = bytes(3, 1 << 20);
    fs::write(pair.a.join("file"), &content).unwrap();
    let file = whole(&pair.a.join("file"));
    let allocate = |flags, offset, len| rustix::fs::fallocate(&file, flags, offset, len).unwrap();
    // Punched in the middle of pages, with the cache full of what was there.
    assert!(fs::read(pair.a.join("file")).unwrap() == content);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    allocate(punch, 100_001, 300_002);
    let mut expected = content.clone();
    expected[100_001..400_003].fill(0);
    assert!(fs::read(pair.a.join("file")).unwrap() == expected, "a hole");
    allocate(FallocateFlags::ZERO_RANGE, 500_000, 1000);
    expected[500_000..501_000].fill(0);
    allocate(FallocateFlags::empty(), 1 << 20, 1 << 20);
    expected.resize(2 << 20, 0);
    assert!(fs::read(pair.a.join("file")).unwrap() == expected, "longer");
    let before = file.metadata().unwrap();
    allocate(FallocateFlags::KEEP_SIZE, 2 << 20, 1 << 20);
    let after = file.metadata().unwrap();
    assert_eq!(after.len(), 2 << 20);
    assert!(after.blocks() >= before.blocks() + 2048, "room that no size tells of");
    drop(file);
    for place in [pair.b.join("file"), pair.beside("file")] {
        assert!(fs::read(&place).unwrap() == expected, "{}", place.display());
    }
}

#[test]
fn ranges_are_copied_within_and_between_files() {
    let Some(pair) = Pair::new("copy", "allow_other") else { return };
    let content = bytes(4, 3 << 20);
    let from = whole(&pair.a.join("from"));
    // Not yet closed: what is copied is what was written.
    from.write_all_at(&content, 0).unwrap();
    let to = whole(&pair.a.join("to"));
    let copy = |from: &File, from_at: u64, to: &File, to_at: u64, len: usize| {
        let (mut from_at, mut to_at, mut left) = (from_at, to_at, len);
        while left > 0 {
            let (read, written) = (Some(&mut from_at), Some(&mut to_at));
            let count = rustix::fs::copy_file_range(from, read, to, written, left).unwrap();
            assert!(count > 0, "the end comes too early");
            left -= count;
        }
    };
    let mut expected = vec![0; 1000];
    expected.extend(&content[777..2_000_777]);
    copy(&from, 777, &to, 1000, 2_000_000);
    assert!(fs::read(pair.a.join("to")).unwrap() == expected);
    copy(&to, 1000, &to, 2_500_000, 4096);
    expected.resize(2_500_000, 0);
    expected.extend_from_within(1000..5096);
    assert!(fs::read(pair.a.join("to")).unwrap() == expected);
    drop(to);
    assert!(fs::read(pair.b.join("to")).unwrap() == expected);
    let (mut at, mut to) = (3 << 20, 0);
    let to_file = whole(&pair.b.join("other"));
    let from = File::open(pair.b.join("from")).unwrap();
    let none = rustix::fs::copy_file_range(&from, Some(&mut at), &to_file, Some(&mut to), 10);
    assert_eq!(none, Ok(0), "from the end on there is nothing");
    assert_eq!(fs::copy(pair.b.join("to"), pair.b.join("third")).unwrap(), 2_504_096);
    assert!(fs::read(pair.a.join("third")).unwrap() == expected);
}

#[test]
fn files_beyond_four_gib_are_whole() {
    let Some(pair) = Pair::new("large", "allow_other") else { return };
    let places: [u64; 4] = [(2 << 30) - 3, (4 << 30) - 3, 5 << 30, (9 << 40) + 1];
    let file = whole(&pair.a.join("file"));
    for (n, at) in places.into_iter().enumerate() {
        file.write_all_at(&bytes(n, 10_000), at).unwrap();
    }
    drop(file);
    let size = places[3] + 10_000;
    for place in [pair.a.join("file"), pair.b.join("file"), pair.beside("file")] {
        let file = File::open(&place).unwrap();
        assert_eq!(file.metadata().unwrap().len(), size);
        for (n, at) in places.into_iter().enumerate() {
            let mut seen = vec![1; 10_006];
            let count = file.read_at(&mut seen, at - 3).unwrap();
            let expected = [&[0; 3][..], &bytes(n, 10_000)].concat();
            assert!(count >= 10_003 && seen[..10_003] == expected, "{} at {at}", place.display());
        }
    }
    let file = whole(&pair.b.join("file"));
    file.set_len(4 << 30).unwrap();
    assert_eq!(fs::metadata(pair.beside("file")).unwrap().len(), 4 << 30);
}

#[test]
fn the_end_is_where_the_other_mount_cut_the_file() {
    let Some(pair) = Pair::new("end", "allow_other") else { return };
    fs::write(pair.a.join("file"), bytes(1, 10_000)).unwrap();
    for len in [4000, 70_000] {
        whole(&pair.b.join("file")).set_len(len).unwrap();
        let mut file = File::open(pair.a.join("file")).unwrap();
        assert_eq!(file.seek(std::io::SeekFrom::End(0)).unwrap(), len);
        assert_eq!(file.metadata().unwrap().len(), len);
    }
}

#[test]
fn times_are_kept_to_the_nanosecond() {
    let Some(pair) = Pair::new("times", "allow_other,attr_timeout=0") else { return };
    fs::write(pair.a.join("file"), "").unwrap();
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let set = |access, modification| {
        let times = Timestamps { last_access: access, last_modification: modification };
        rustix::fs::utimensat(CWD, pair.a.join("file"), &times, AtFlags::empty()).unwrap();
    };
    let told = |path: &Path| {
        let told = fs::metadata(path).unwrap();
        [(told.atime(), told.atime_nsec()), (told.mtime(), told.mtime_nsec())]
    };
    let places = [pair.a.join("file"), pair.b.join("file"), pair.beside("file")];
    set(time(1_234_567_890, 123_456_789), time(4_000_000_000, 999_999_999));
    for place in &places {
        assert_eq!(told(place), [(1_234_567_890, 123_456_789), (4_000_000_000, 999_999_999)]);
    }
    set(time(0, rustix::fs::UTIME_OMIT), time(-5, 1));
    for place in &places {
        assert_eq!(told(place), [(1_234_567_890, 123_456_789), (-5, 1)]);
    }
    set(time(0, rustix::fs::UTIME_NOW), time(0, rustix::fs::UTIME_OMIT));
    let [access, modification] = told(&places[1]);
    assert!(access.0 > 1_234_567_890 && modification == (-5, 1));
}

#[test]
fn names_may_have_255_bytes_of_any_kind() {
    let Some(pair) = Pair::new("names", "allow_other,attr_timeout=0") else { return };
    let longest = "n".repeat(255);
    let strange = [b"\n \\ \xff\xfe*".as_slice(), b"-rf", b" ", "ü".as_bytes(), longest.as_bytes()];
    for name in strange {
        let name = std::ffi::OsStr::from_bytes(name);
        fs::write(pair.a.at().join(name), "content").unwrap();
        assert_eq!(fs::read(pair.b.at().join(name)).unwrap(), b"content", "{name:?}");
        assert!(pair.proxy.data().join(name).exists());
        let listed = fs::read_dir(pair.b.at()).unwrap();
        assert!(listed.map(|entry| entry.unwrap().file_name()).any(|found| found == name));
    }
    let too_long = pair.a.join(&"n".repeat(256));
    let error = File::create(&too_long).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidFilename);
    fs::rename(pair.a.join(&longest), pair.a.join(&"m".repeat(255))).unwrap();
    assert!(pair.b.join(&"m".repeat(255)).exists() && !pair.b.join(&longest).exists());
    // A path of many such names, nearly as long as a path may be.
    let mut deep = pair.a.at().to_path_buf();
    while deep.as_os_str().len() + 256 < 4080 {
        deep.push(&longest);
        fs::create_dir(&deep).unwrap();
    }
    fs::write(deep.join("file"), "deep").unwrap();
    let below = deep.strip_prefix(pair.a.at()).unwrap();
    assert_eq!(fs::read(pair.b.at().join(below).join("file")).unwrap(), b"deep");
}

#[test]
fn special_files_work_where_they_are_made() {
    let Some(pair) = Pair::new("special", "allow_other,dev") else { return };
    rustix::fs::mknodat(CWD, pair.a.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0)
        .unwrap();
    let fifo = pair.a.join("fifo");
    let writer = std::thread::spawn(move || fs::write(fifo, "through a pipe").unwrap());
    assert_eq!(fs::read(pair.a.join("fifo")).unwrap(), b"through a pipe");
    writer.join().unwrap();
    let listener = UnixListener::bind(pair.a.join("socket")).unwrap();
    let mut client = UnixStream::connect(pair.a.join("socket")).unwrap();
    client.write_all(b"hello").unwrap();
    drop(client);
    let mut heard = String::new();
    listener.accept().unwrap().0.read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "hello");
    let zero = rustix::fs::makedev(1, 5);
    let kind = FileType::CharacterDevice;
    rustix::fs::mknodat(CWD, pair.a.join("zero"), kind, Mode::from_raw_mode(0o666), zero).unwrap();
    let mut read = [1; 16];
    File::open(pair.b.join("zero")).unwrap().read_exact(&mut read).unwrap();
    assert_eq!(read, [0; 16]);
    let told = fs::symlink_metadata(pair.beside("zero")).unwrap();
    assert_eq!(told.rdev(), zero);
}

#[test]
fn extended_attributes_are_those_of_the_file_beside() {
    let Some(pair) = Pair::new("xattr", "allow_other,attr_timeout=0") else { return };
    fs::write(pair.a.join("file"), "").unwrap();
    let beside = pair.beside("file");
    if rustix::fs::setxattr(&beside, "user.test", b"", XattrFlags::empty()).is_err() {
        return skip("the directory for tests has no extended attributes");
    }
    let get = |path: &Path, name: &str| {
        let mut space = vec![0; 4096];
        let len = rustix::fs::getxattr(path, name, &mut space[..])?;
        space.truncate(len);
        Ok::<_, rustix::io::Errno>(space)
    };
    let places = [pair.a.join("file"), pair.b.join("file"), beside];
    for value in [&bytes(1, 2000)[..], b"short", b""] {
        rustix::fs::setxattr(&places[0], "user.test", value, XattrFlags::empty()).unwrap();
        for place in &places {
            assert_eq!(get(place, "user.test").as_deref(), Ok(value), "{}", place.display());
        }
    }
    rustix::fs::setxattr(&places[1], "user.second", b"2", XattrFlags::CREATE).unwrap();
    let again = rustix::fs::setxattr(&places[0], "user.second", b"2", XattrFlags::CREATE);
    assert_eq!(again, Err(rustix::io::Errno::EXIST));
    let list = |path: &Path| {
        let mut space = vec![0; 4096];
        let len = rustix::fs::listxattr(path, &mut space[..]).unwrap();
        let names = space[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
        let mut names: Vec<_> = names.map(<[u8]>::to_vec).collect();
        names.sort();
        names
    };
    assert_eq!(list(&places[0]), list(&places[2]));
    assert!(list(&places[1]).contains(&b"user.second".to_vec()));
    let mut small = [0; 3];
    rustix::fs::setxattr(&places[0], "user.test", b"longer", XattrFlags::REPLACE).unwrap();
    let told = rustix::fs::getxattr(&places[1], "user.test", &mut small[..]);
    assert_eq!(told, Err(rustix::io::Errno::RANGE));
    rustix::fs::removexattr(&places[0], "user.test").unwrap();
    for place in &places {
        assert_eq!(get(place, "user.test"), Err(rustix::io::Errno::NODATA));
    }
}

/// An access control list as it is in its attribute: owner, one user, group, mask, others.
fn acl(user: u32, its: u16) -> Vec<u8> {
    let mut list = 2u32.to_le_bytes().to_vec();
    let anybody = u32::MAX;
    for (tag, may, id) in
        [(1u16, 6u16, anybody), (2, its, user), (4, 0, anybody), (16, 6, anybody), (32, 0, anybody)]
    {
        list.extend(tag.to_le_bytes().into_iter().chain(may.to_le_bytes()));
        list.extend(id.to_le_bytes());
    }
    list
}

fn cat(user: u32, path: &Path) -> Output {
    let user = user.to_string();
    let words = ["--reuid", &user, "--regid", &user, "--clear-groups", "cat"];
    Command::new("setpriv").args(words).arg(path).output().unwrap()
}

#[test]
fn access_control_lists_let_in_whom_they_name() {
    let Some(pair) = Pair::new("acl", "allow_other,attr_timeout=0") else { return };
    let _open = OpenWay::to(&pair.proxy);
    let (access, default) = ("system.posix_acl_access", "system.posix_acl_default");
    fs::write(pair.a.join("file"), "content").unwrap();
    fs::set_permissions(pair.a.join("file"), fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!cat(1000, &pair.b.join("file")).status.success());
    let set = rustix::fs::setxattr(pair.a.join("file"), access, &acl(1000, 4), XattrFlags::empty());
    if set == Err(rustix::io::Errno::OPNOTSUPP) {
        return skip("the directory for tests has no access control lists");
    }
    set.unwrap();
    for mount in pair.both() {
        assert_eq!(cat(1000, &mount.join("file")).stdout, b"content");
        assert!(!cat(1001, &mount.join("file")).status.success());
        // The group's bits show the mask.
        assert_eq!(fs::metadata(mount.join("file")).unwrap().mode() & 0o777, 0o660);
        let mut seen = [0; 100];
        let len = rustix::fs::getxattr(mount.join("file"), access, &mut seen[..]).unwrap();
        assert_eq!(seen[..len], acl(1000, 4));
    }
    fs::set_permissions(pair.b.join("file"), fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!cat(1000, &pair.a.join("file")).status.success(), "the mask takes its right away");
    fs::create_dir(pair.a.join("dir")).unwrap();
    fs::set_permissions(pair.a.join("dir"), fs::Permissions::from_mode(0o755)).unwrap();
    let list = acl(1000, 6);
    rustix::fs::setxattr(pair.a.join("dir"), default, &list, XattrFlags::empty()).unwrap();
    fs::write(pair.b.join("dir/file"), "inherited").unwrap();
    assert_eq!(cat(1000, &pair.a.join("dir/file")).stdout, b"inherited");
    assert!(!cat(1001, &pair.a.join("dir/file")).status.success());
    // The default list stands in the place of the umask.
    assert_eq!(fs::metadata(pair.beside("dir/file")).unwrap().mode() & 0o777, 0o660);
}

/// Lets every user go through the directories above the mounts, for a while.
struct OpenWay(std::path::PathBuf);

impl OpenWay {
    fn to(proxy: &Proxy) -> OpenWay {
        fs::set_permissions(&proxy.dir, fs::Permissions::from_mode(0o755)).unwrap();
        OpenWay(proxy.dir.clone())
    }
}

impl Drop for OpenWay {
    fn drop(&mut self) {
        let _ = fs::set_permissions(&self.0, fs::Permissions::from_mode(0o700));
    }
}

#[test]
fn set_id_bits_go_when_an_ordinary_user_writes() {
    let Some(pair) = Pair::new("setid", "allow_other,suid,attr_timeout=0") else { return };
    let _open = OpenWay::to(&pair.proxy);
    for call in ["printf x >>\"$0\"", "truncate -s 1 \"$0\"", "chown :1000 \"$0\""] {
        let path = pair.a.join("file");
        fs::write(&path, "content").unwrap();
        chown(&path, Some(1000), Some(1000)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        assert_eq!(fs::metadata(pair.b.join("file")).unwrap().mode() & 0o7777, 0o6777);
        let words = ["--reuid", "1000", "--regid", "1000", "--clear-groups", "sh", "-c", call];
        let output = Command::new("setpriv").args(words).arg(&path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        for place in [pair.a.join("file"), pair.b.join("file"), pair.beside("file")] {
            let mode = fs::metadata(&place).unwrap().mode() & 0o7777;
            assert_eq!(mode, 0o777, "{call} {}", place.display());
        }
    }
}

/// `map MODE FILE`: writes through a shared map and says nothing (`shared`), or sees that a
/// private one leaves the file as it is (`private`).
const MAP: &str = r#"
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
enum { SIZE = 300000 };
int main(int argc, char **argv)
{
	int shared = argc == 3 && !strcmp(argv[1], "shared");
	int fd = argc == 3 ? open(argv[2], O_RDWR | O_CREAT, 0600) : -1;
	if (fd < 0 || (shared && ftruncate(fd, SIZE))) return 1;
	char *map = mmap(0, SIZE, PROT_READ | PROT_WRITE, shared ? MAP_SHARED : MAP_PRIVATE, fd, 0);
	if (map == MAP_FAILED) return 2;
	for (int i = 0; i < SIZE; i++) {
		char byte;
		if (!shared) map[i] = ~map[i];
		else map[i] = (char)(i % 251);
		if (i % 1000) continue;
		if (pread(fd, &byte, 1, i) != 1) return 3;
		if (byte != (char)(shared ? i % 251 : ~map[i])) return 4;
	}
	close(fd); /* the map stays, and so does what is written through it */
	map[1] = shared ? 'c' : 'p';
	if (shared && msync(map, SIZE, MS_SYNC)) return 6;
	return munmap(map, SIZE) ? 5 : 0;
}
"#;

#[test]
fn maps_are_shared_with_the_file_or_private() {
    let Some(pair) = Pair::new("map", "allow_other") else { return };
    let program = pair.proxy.dir.join("map");
    fs::write(program.with_extension("c"), MAP).unwrap();
    let mut cc = Command::new("cc");
    cc.arg("-o").arg(&program).arg(program.with_extension("c"));
    if !cc.status().is_ok_and(|status| status.success()) {
        return skip("no compiler for C here");
    }
    let map = |mode: &str, path: &Path| {
        let status = Command::new(&program).arg(mode).arg(path).status().unwrap();
        assert!(status.success(), "{mode} {}: {status}", path.display());
    };
    for (n, [here, there]) in [[&pair.a, &pair.b], [&pair.b, &pair.a]].into_iter().enumerate() {
        let name = format!("file{n}");
        fs::write(there.join(&name), bytes(n, 400_000)).unwrap();
        map("shared", &here.join(&name));
        let mut expected: Vec<_> = (0..300_000).map(|at| (at % 251) as u8).collect();
        expected[1] = b'c';
        assert!(fs::read(there.join(&name)).unwrap() == expected, "shared, from the other mount");
        map("private", &there.join(&name));
        for place in [here.join(&name), there.join(&name), pair.beside(&name)] {
            assert!(fs::read(&place).unwrap() == expected, "{}", place.display());
        }
    }
}
