//! Mounts of servers that know only 9P2000.L: diod, and our own proxy when it is not asked
//! for more.
//!
//! ```text
//!   test ─► kernel ─► Mounted ─► 9P2000.L ─► diod, started by the test ─► a directory
//! ```
//!
//! What the mount shows is compared with the directory itself.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use crate::common::{Proxy, everybodys, skip, until};
use crate::mounted::{Mounted, can_mount, setup};
use mount::MountError;
use nix::libc::ESTALE;
use rustix::fs::XattrFlags;

/// A running diod, killed and its directory removed at the end.
struct Diod {
    dir: PathBuf,
    address: SocketAddr,
    child: Child,
    /// The one that takes its place, forked before anything waits for that: what is forked has
    /// this process's files of the mount until exec closes them, and closing may wait for diod.
    next: Child,
}

impl Diod {
    /// One that exports an empty directory, unless there is none here.
    fn start(name: &str) -> Option<Diod> {
        if !can_mount() {
            return None;
        }
        if !Path::new(DIOD).exists() {
            skip("no diod here");
            return None;
        }
        let dir = testkit::place(&format!("diod-{name}"));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("data")).unwrap();
        everybodys(&dir.join("data"));
        let address = address_of_its_own();
        let [mut child, next] = [(); 2].map(|()| prepare(&dir, address));
        begin(&mut child, address);
        Some(Diod { dir, address, child, next })
    }

    fn mount(&self, options: &str) -> Mounted {
        Mounted::of(&format!("tcp://{}/{}", self.address, self.data().display()), options)
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Kills it with no chance to say anything.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn start_again(&mut self) {
        begin(&mut self.next, self.address);
        // Forked while one serves.
        let after = prepare(&self.dir, self.address);
        self.child = std::mem::replace(&mut self.next, after);
    }
}

impl Drop for Diod {
    fn drop(&mut self) {
        for child in [&mut self.child, &mut self.next] {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            eprintln!("diod said: {log}");
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// One that nobody else takes: diod cannot be given port 0, and a port that was free a moment
/// ago may be another test's by now. So each process has an address, and below the ports that
/// the kernel gives out each diod has its own.
fn address_of_its_own() -> SocketAddr {
    static COUNT: AtomicU16 = AtomicU16::new(0);
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let port = 15_640 + COUNT.fetch_add(1, Ordering::SeqCst);
    ([127, 64 | high & 63, middle, low], port).into()
}

/// A process that becomes diod when it is told to.
fn prepare(dir: &Path, address: SocketAddr) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", "read word && exec \"$0\" \"$@\"", DIOD]);
    command.args(["--foreground", "--no-auth", "--no-userdb", "--config-file", "/dev/null"]);
    command.arg("--export").arg(dir.join("data")).arg("--listen").arg(address.to_string());
    command.arg("--logdest").arg(dir.join("log"));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Has it become diod, and waits until that listens.
fn begin(child: &mut Child, address: SocketAddr) {
    child.stdin.take().unwrap().write_all(b"begin\n").unwrap();
    until("diod listens", || {
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none(), "diod has ended: {ended:?}");
        TcpStream::connect(address).is_ok()
    });
}

/// Where Debian puts it.
const DIOD: &str = "/usr/sbin/diod";

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 256) as u8).collect()
}

#[test]
fn what_is_written_is_read_on_both_sides() {
    let Some(diod) = Diod::start("written") else { return };
    let mount = diod.mount("");
    let long = bytes(3_000_001);
    fs::write(mount.join("long"), &long).unwrap();
    assert!(fs::read(diod.data().join("long")).unwrap() == long);
    fs::write(diod.data().join("beside"), &long).unwrap();
    assert!(fs::read(mount.join("beside")).unwrap() == long);
    let file = OpenOptions::new().read(true).write(true).open(mount.join("long")).unwrap();
    file.write_all_at(b"middle", 1_500_000).unwrap();
    file.set_len(2_000_000).unwrap();
    file.sync_all().unwrap();
    let beside = fs::read(diod.data().join("long")).unwrap();
    assert_eq!((beside.len(), &beside[1_500_000..1_500_006]), (2_000_000, &b"middle"[..]));
    let mut tail = Vec::new();
    (&file).seek(SeekFrom::Start(1_999_990)).unwrap();
    (&file).read_to_end(&mut tail).unwrap();
    assert_eq!(tail, long[1_999_990..2_000_000]);
}

#[test]
fn what_holds_a_job_the_server_cannot_tell() {
    let Some(diod) = Diod::start("told") else { return };
    let mount = diod.mount("");
    for name in [".sluice/why", ".sluice/usage", ".sluice/limits"] {
        let text = fs::read_to_string(mount.join(name)).unwrap();
        assert!(text.contains("9P2000.L"), "what is missing is named: {text}");
    }
}

#[test]
fn names_are_made_renamed_linked_and_removed() {
    let Some(diod) = Diod::start("names") else { return };
    let (mount, data) = (diod.mount(""), diod.data());
    fs::create_dir(mount.join("dir")).unwrap();
    fs::create_dir(mount.join("dir/below")).unwrap();
    fs::write(mount.join("dir/below/file"), "text").unwrap();
    symlink("dir/below", mount.join("symlink")).unwrap();
    assert_eq!(fs::read_link(data.join("symlink")).unwrap(), Path::new("dir/below"));
    assert_eq!(fs::read_to_string(mount.join("symlink/file")).unwrap(), "text");
    fs::hard_link(mount.join("dir/below/file"), mount.join("link")).unwrap();
    let (link, file) = (mount.join("link"), mount.join("dir/below/file"));
    let of = |path: &Path| fs::metadata(path).map(|told| (told.ino(), told.nlink())).unwrap();
    assert_eq!(of(&link), of(&file));
    assert_eq!(of(&link).1, 2);
    fs::rename(mount.join("dir"), mount.join("other")).unwrap();
    assert_eq!(fs::read_to_string(mount.join("other/below/file")).unwrap(), "text");
    fs::write(mount.join("new"), "new").unwrap();
    fs::rename(mount.join("new"), mount.join("other/below/file")).unwrap();
    assert_eq!(fs::read_to_string(data.join("other/below/file")).unwrap(), "new");
    assert_eq!(fs::read_to_string(&link).unwrap(), "text");
    assert_eq!(fs::metadata(&link).unwrap().nlink(), 1);
    let error = fs::remove_dir(mount.join("other")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOTEMPTY.raw_os_error()));
    for gone in ["other/below/file", "symlink", "link"] {
        fs::remove_file(mount.join(gone)).unwrap();
    }
    fs::remove_dir(mount.join("other/below")).unwrap();
    fs::remove_dir(mount.join("other")).unwrap();
    assert_eq!(fs::read_dir(&data).unwrap().count(), 0);
    assert!(fs::metadata(&link).is_err());
}

#[test]
fn attributes_are_those_of_the_directory_beside() {
    let Some(diod) = Diod::start("attributes") else { return };
    let mount = diod.mount("");
    let (here, beside) = (mount.join("file"), diod.data().join("file"));
    fs::write(&here, "text").unwrap();
    fs::set_permissions(&here, fs::Permissions::from_mode(0o640)).unwrap();
    chown(&here, Some(1234), Some(5678)).unwrap();
    let time = std::time::SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    File::options().write(true).open(&here).unwrap().set_modified(time).unwrap();
    let all = |path: &Path| {
        let told = fs::symlink_metadata(path).unwrap();
        let owner = (told.uid(), told.gid(), told.mode(), told.nlink());
        (owner, told.ino(), told.size(), told.mtime(), told.mtime_nsec(), told.ctime())
    };
    assert_eq!(all(&here), all(&beside));
    assert_eq!(all(&here).0, (1234, 5678, 0o100_640, 1));
    let (fs_here, fs_beside) =
        (rustix::fs::statvfs(mount.at()).unwrap(), rustix::fs::statvfs(diod.data()).unwrap());
    assert_eq!(fs_here.f_blocks, fs_beside.f_blocks);
}

#[test]
fn a_thousand_files_are_listed_with_their_sizes() {
    let Some(diod) = Diod::start("thousand") else { return };
    let mount = diod.mount("");
    for number in 0..1000 {
        fs::write(mount.join(&format!("file-{number}")), vec![b'x'; number % 10]).unwrap();
    }
    let listed: BTreeSet<_> = fs::read_dir(mount.at())
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len())
        })
        .collect();
    let expected: BTreeSet<_> =
        (0..1000).map(|number| (format!("file-{number}"), number % 10)).collect();
    assert!(listed == expected, "{} of {}", listed.len(), expected.len());
    fs::remove_dir_all(mount.join("no such folder")).unwrap_err();
    for number in 0..1000 {
        fs::remove_file(mount.join(&format!("file-{number}"))).unwrap();
    }
    assert_eq!(fs::read_dir(diod.data()).unwrap().count(), 0);
}

#[test]
fn extended_attributes_are_set_listed_and_removed() {
    let Some(diod) = Diod::start("xattr") else { return };
    let mount = diod.mount("");
    let (here, beside) = (mount.join("file"), diod.data().join("file"));
    fs::write(&here, "").unwrap();
    let value = bytes(3000);
    if rustix::fs::setxattr(&beside, "user.probe", b"x", XattrFlags::empty()).is_err() {
        return skip("no extended attributes in the temporary directory");
    }
    rustix::fs::removexattr(&beside, "user.probe").unwrap();
    rustix::fs::setxattr(&here, "user.name", &value, XattrFlags::empty()).unwrap();
    let mut read = vec![0; 4096];
    let len = rustix::fs::getxattr(&beside, "user.name", &mut read).unwrap();
    assert!(read[..len] == value);
    let len = rustix::fs::getxattr(&here, "user.name", &mut read).unwrap();
    assert!(read[..len] == value);
    let len = rustix::fs::listxattr(&here, &mut read).unwrap();
    assert_eq!(&read[..len], b"user.name\0");
    let again = rustix::fs::setxattr(&here, "user.name", b"y", XattrFlags::CREATE);
    assert_eq!(again, Err(rustix::io::Errno::EXIST));
    rustix::fs::removexattr(&here, "user.name").unwrap();
    let gone = rustix::fs::getxattr(&here, "user.name", &mut read);
    assert_eq!(gone, Err(rustix::io::Errno::NODATA));
    assert_eq!(rustix::fs::listxattr(&beside, &mut read), Ok(0));
}

#[test]
fn a_locked_file_is_locked_for_other_mounts_until_it_is_given_back() {
    let Some(diod) = Diod::start("locks") else { return };
    let (mount, other) = (diod.mount(""), diod.mount(""));
    fs::write(mount.join("file"), "").unwrap();
    let open = |mount: &Mounted| {
        OpenOptions::new().read(true).write(true).open(mount.join("file")).unwrap()
    };
    let (ours, theirs) = (open(&mount), open(&other));
    ours.lock().unwrap();
    let tried = theirs.try_lock();
    assert!(matches!(tried, Err(TryLockError::WouldBlock)), "{tried:?}");
    let waits = std::thread::spawn(move || theirs.lock().map(|()| theirs));
    ours.unlock().unwrap();
    until("who waits gets the lock", || waits.is_finished());
    let theirs = waits.join().unwrap().unwrap();
    let tried = ours.try_lock();
    assert!(matches!(tried, Err(TryLockError::WouldBlock)), "{tried:?}");
    drop(theirs);
    ours.lock().unwrap();
}

#[test]
fn what_is_appended_comes_at_the_end() {
    let Some(diod) = Diod::start("append") else { return };
    let mount = diod.mount("");
    let path = mount.join("log");
    let open = || OpenOptions::new().append(true).create(true).open(&path).unwrap();
    let (mut one, mut two) = (open(), open());
    for number in 0..50 {
        one.write_all(format!("one {number}\n").as_bytes()).unwrap();
        two.write_all(format!("two {number}\n").as_bytes()).unwrap();
    }
    let written = fs::read_to_string(diod.data().join("log")).unwrap();
    let expected: String = (0..50).map(|n| format!("one {n}\ntwo {n}\n")).collect();
    assert_eq!(written, expected);
    two.write_all(&bytes(200_000)).unwrap();
    assert!(fs::read(diod.data().join("log")).unwrap()[expected.len()..] == bytes(200_000));
}

#[test]
fn a_file_that_is_removed_while_it_is_open_goes_on() {
    let Some(diod) = Diod::start("removed") else { return };
    let mount = diod.mount("attr_timeout=0");
    let path = mount.join("file");
    let mut open = OpenOptions::new();
    let file = open.read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(b"before", 0).unwrap();
    fs::remove_file(&path).unwrap();
    file.write_all_at(b" after", 6).unwrap();
    let mut read = [0; 12];
    file.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"before after");
    let told = file.metadata().unwrap();
    assert_eq!((told.len(), told.nlink()), (12, 0));
    fs::write(&path, "another").unwrap();
    file.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"before after");
    assert_eq!(file.metadata().unwrap().len(), 12);
    assert_eq!(fs::read_to_string(diod.data().join("file")).unwrap(), "another");
}

#[test]
fn an_open_file_is_followed_when_it_or_its_folder_is_renamed() {
    let Some(diod) = Diod::start("renamed") else { return };
    let mount = diod.mount("attr_timeout=0");
    fs::create_dir(mount.join("a")).unwrap();
    let file = File::create_new(mount.join("a/file")).unwrap();
    fs::rename(mount.join("a/file"), mount.join("a/other")).unwrap();
    fs::rename(mount.join("a"), mount.join("b")).unwrap();
    fs::create_dir(mount.join("a")).unwrap();
    fs::write(mount.join("a/file"), "not this one").unwrap();
    file.set_len(5).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 5);
    let beside = fs::metadata(diod.data().join("b/other")).unwrap();
    assert_eq!((beside.len(), beside.mode()), (5, 0o100_600));
    assert_eq!(fs::read_to_string(diod.data().join("a/file")).unwrap(), "not this one");
}

#[test]
fn what_others_replace_is_not_taken_for_what_it_was() {
    let Some(diod) = Diod::start("replaced") else { return };
    let mount = diod.mount("attr_timeout=0");
    fs::write(mount.join("file"), "first").unwrap();
    assert_eq!(fs::read_to_string(mount.join("file")).unwrap(), "first");
    fs::write(diod.data().join("new"), "second").unwrap();
    fs::rename(diod.data().join("new"), diod.data().join("file")).unwrap();
    assert_eq!(fs::read_to_string(mount.join("file")).unwrap(), "second");
    fs::create_dir(diod.data().join("dir")).unwrap();
    fs::write(diod.data().join("dir/name"), "there").unwrap();
    assert_eq!(fs::read_to_string(mount.join("dir/name")).unwrap(), "there");
    fs::rename(diod.data().join("dir"), diod.data().join("away")).unwrap();
    assert!(fs::metadata(mount.join("dir/name")).is_err());
    assert_eq!(fs::read_to_string(mount.join("away/name")).unwrap(), "there");
}

/// What a user other than root is told; `true` if it worked.
fn as_user(uid: u32, script: &str) -> bool {
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={uid}")).arg(format!("--regid={uid}")).arg("--clear-groups");
    let command = command.args(["sh", "-c", script]).stderr(Stdio::null());
    command.status().unwrap().success()
}

#[test]
fn each_user_is_itself_at_the_server() {
    let Some(diod) = Diod::start("users") else { return };
    let mount = diod.mount("allow_other");
    let at = mount.at().display();
    assert!(as_user(1001, &format!("umask 077; echo mine >{at}/of-1001")));
    assert!(as_user(1002, &format!("umask 077; echo mine >{at}/of-1002; mkdir {at}/dir-1002")));
    let owner = |name: &str| fs::metadata(diod.data().join(name)).unwrap().uid();
    assert_eq!((owner("of-1001"), owner("of-1002"), owner("dir-1002")), (1001, 1002, 1002));
    assert!(as_user(1001, &format!("grep -q mine {at}/of-1001")));
    assert!(!as_user(1002, &format!("cat {at}/of-1001")));
    assert!(!as_user(1001, &format!("echo x >{at}/dir-1002/file")));
    assert!(!as_user(1001, &format!("chmod 777 {at}/of-1002")));
    assert!(as_user(1002, &format!("echo more >>{at}/of-1002")));
    assert_eq!(fs::read_to_string(diod.data().join("of-1002")).unwrap(), "mine\nmore\n");
}

#[test]
fn a_server_that_dies_and_returns_is_waited_for() {
    let Some(mut diod) = Diod::start("dies") else { return };
    let mount = diod.mount("attr_timeout=0");
    let path = mount.join("file");
    let mut open = OpenOptions::new();
    let file = open.read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(b"before", 0).unwrap();
    file.sync_all().unwrap();
    let locked = open.open(mount.join("locked")).unwrap();
    locked.lock().unwrap();
    fs::create_dir(mount.join("dir")).unwrap();
    fs::rename(&path, mount.join("dir/moved")).unwrap();
    diod.kill();
    let (waits, new) = (file.try_clone().unwrap(), mount.join("dir/new"));
    let waits = std::thread::spawn(move || {
        waits.write_all_at(b" after", 6)?;
        fs::write(new, "new")
    });
    diod.start_again();
    until("what waited goes on", || waits.is_finished());
    waits.join().unwrap().unwrap();
    assert_eq!(fs::read(mount.join("dir/moved")).unwrap(), b"before after");
    assert_eq!(fs::read_to_string(diod.data().join("dir/new")).unwrap(), "new");
    // diod has given the lock back, and another may have had it: who had it is told.
    let error = locked.write_at(b"no lock", 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(ESTALE));
    drop(locked);
    let other = diod.mount("");
    let others = OpenOptions::new().write(true).open(other.join("locked")).unwrap();
    until("it is anybody's", || others.try_lock().is_ok());
    assert_eq!(fs::read(other.join("locked")).unwrap(), b"");
}

#[test]
fn work_goes_on_over_many_deaths() {
    let Some(mut diod) = Diod::start("deaths") else { return };
    let mount = diod.mount("attr_timeout=0");
    let at = mount.at().to_owned();
    let work = std::thread::spawn(move || {
        for number in 0..200 {
            let name = |kind: &str| at.join(format!("{kind}{number}"));
            let mut file = File::create_new(name("file")).unwrap();
            file.write_all(number.to_string().as_bytes()).unwrap();
            file.sync_all().unwrap();
            drop(file);
            fs::create_dir(name("dir")).unwrap();
            fs::rename(name("file"), name("dir").join("moved")).unwrap();
            let text = fs::read_to_string(name("dir").join("moved")).unwrap();
            assert_eq!(text, number.to_string());
            if number % 2 == 0 {
                fs::remove_file(name("dir").join("moved")).unwrap();
                fs::remove_dir(name("dir")).unwrap();
            }
        }
    });
    for death in 1..=4 {
        let made = diod.data().join(format!("dir{}", death * 30 + 1));
        until("there is work under way", || made.exists());
        diod.kill();
        diod.start_again();
    }
    until("the work is done", || work.is_finished());
    work.join().unwrap();
    assert_eq!(fs::read_dir(diod.data()).unwrap().count(), 100);
}

#[test]
fn an_export_that_the_server_does_not_have_is_refused() {
    let Some(diod) = Diod::start("refused") else { return };
    let source = format!("tcp://{}//no/such/export", diod.address);
    let settings = mount::MountSettings::new(&source, Path::new("/mnt"), "").unwrap();
    let error = mount::MountDaemon::start(&settings).unwrap_err();
    let is_refused =
        matches!(&error, MountError::Proxy { export, .. } if export == "/no/such/export");
    assert!(is_refused, "{error:?}");
}

#[test]
fn several_servers_are_refused_where_one_does_not_know_the_dialect() {
    let Some(diod) = Diod::start("several") else { return };
    let source = format!("tcp://{}/{}", diod.address, diod.data().display());
    let settings =
        mount::MountSettings::new(&format!("{source},{source}"), Path::new("/mnt"), "").unwrap();
    let error = mount::MountDaemon::start(&settings).unwrap_err();
    let MountError::Proxy { why, .. } = &error else { panic!("{error:?}") };
    let dialect = String::from_utf8_lossy(ninep::dialect::VERSION);
    assert!(why.contains(&*dialect), "what is missing is named: {error}");
}

/// Passes connections on to a proxy, and offers it nothing but plain 9P2000.L.
fn plainly(proxy: &Proxy) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, to) = (listener.local_addr().unwrap(), proxy.tcp);
    std::thread::spawn(move || {
        for mut from in listener.incoming().map_while(Result::ok) {
            let mut to = TcpStream::connect(to).unwrap();
            let mut frame = [0; 30];
            from.read_exact(&mut frame).unwrap();
            let dialect = ninep::dialect::VERSION;
            assert_eq!(&frame[13..], dialect, "the first message offers the dialect");
            let msize = u32::from_le_bytes(frame[7..11].try_into().unwrap());
            let mut plain = Vec::new();
            let request = ninep::Request::Version { msize, version: ninep::VERSION };
            request.encode(ninep::NOTAG, &mut plain);
            to.write_all(&plain).unwrap();
            let (mut back, mut there) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut there, &mut back));
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
        }
    });
    address
}

#[test]
fn our_own_proxy_is_used_plainly_too() {
    if !can_mount() {
        return;
    }
    let proxy = setup("plainly").start();
    let mount = Mounted::of(&format!("tcp://{}/x", plainly(&proxy)), "attr_timeout=0");
    let long = bytes(3_000_001);
    fs::create_dir(mount.join("dir")).unwrap();
    fs::write(mount.join("dir/long"), &long).unwrap();
    fs::rename(mount.join("dir"), mount.join("other")).unwrap();
    assert!(fs::read(mount.join("other/long")).unwrap() == long);
    assert!(fs::read(proxy.data().join("other/long")).unwrap() == long);
    fs::hard_link(mount.join("other/long"), mount.join("link")).unwrap();
    let file = OpenOptions::new().read(true).append(true).open(mount.join("link")).unwrap();
    fs::remove_file(mount.join("link")).unwrap();
    fs::remove_file(mount.join("other/long")).unwrap();
    (&file).write_all(b"end").unwrap();
    assert_eq!(file.metadata().unwrap().len(), 3_000_004);
    let names: Vec<_> = fs::read_dir(mount.at()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["other"]);
    fs::remove_dir(mount.join("other")).unwrap();
}
