//! Every operation at least once, on the mirror of a directory: what is done in the mount is
//! seen beside it, and the other way round.

#![allow(clippy::unwrap_used, reason = "what fails here is the test")]

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use crate::filesystem::Settings;
use crate::support::{Mounted, TempDir, aloud, on_each_transport, unmounted};
use fuse::{Capabilities, Errno, MountFlags, OpenFlags, Options, Transport};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, StatxFlags, Timespec,
    Timestamps, XattrFlags,
};

/// A mirror, the folder that it shows, and where it shows it.
struct Pair {
    mount: Mounted,
    beside: PathBuf,
}

impl Pair {
    fn new(transport: Transport, open_flags: OpenFlags) -> Pair {
        Pair::with(transport, Settings { open_flags, ..Settings::default() })
    }

    fn with(transport: Transport, settings: Settings) -> Pair {
        let place = TempDir::new();
        let beside = place.folder("beside");
        let mirror = crate::filesystem::Mirror::new(&beside, settings).unwrap();
        let options = Options {
            transport,
            flags: MountFlags::empty(),
            capabilities: Capabilities::DEFAULT
                | Capabilities::READDIRPLUS
                | Capabilities::HANDLE_KILLPRIV_V2
                | Capabilities::DIRECT_IO_ALLOW_MMAP
                | Capabilities::PASSTHROUGH,
            ..Options::default()
        };
        Pair { mount: Mounted::at(place, mirror, &options), beside }
    }

    fn inside(&self, name: &str) -> PathBuf {
        self.mount.join(name)
    }

    fn beside(&self, name: &str) -> PathBuf {
        self.beside.join(name)
    }
}

/// Runs a body over each transport, through the page cache and past it.
fn on_each_mirror(body: impl Fn(&Pair)) {
    on_each_transport(|transport| {
        let direct = OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES;
        for open_flags in [OpenFlags::NONE, direct] {
            println!("over {transport:?}, {open_flags:?}");
            body(&Pair::new(transport, open_flags));
        }
    });
}

fn errno<T>(result: std::io::Result<T>) -> Errno {
    let error = result.map(drop).expect_err("it should have failed");
    Errno::from_io_error(&error).expect("an error of the system")
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 4096) as u8).collect()
}

#[test]
fn files_hold_what_is_written() {
    on_each_mirror(|pair| {
        let (inside, beside) = (pair.inside("file"), pair.beside("file"));
        fs::write(&inside, "hello").unwrap();
        assert_eq!(fs::read(&beside).unwrap(), b"hello");
        fs::write(&beside, "hello from beside").unwrap();
        assert_eq!(fs::read(&inside).unwrap(), b"hello from beside");

        let mut file = OpenOptions::new().append(true).open(&inside).unwrap();
        file.write_all(b", and more").unwrap();
        file.sync_all().unwrap();
        file.sync_data().unwrap();
        assert_eq!(fs::read(&beside).unwrap(), b"hello from beside, and more");

        let file = OpenOptions::new().read(true).write(true).open(&inside).unwrap();
        file.set_len(5).unwrap();
        assert_eq!(fs::metadata(&beside).unwrap().len(), 5);
        file.write_all_at(b"!", 9).unwrap();
        assert_eq!(fs::read(&beside).unwrap(), b"hello\0\0\0\0!");
        fs::File::create(&inside).unwrap();
        assert_eq!(fs::metadata(&beside).unwrap().len(), 0);
        assert_eq!(errno(File::create_new(&inside)), Errno::EXIST);
        assert_eq!(errno(File::open(pair.inside("none"))), Errno::NOENT);
    });
}

#[test]
fn large_reads_and_writes_keep_every_byte() {
    on_each_mirror(|pair| {
        let data = bytes((3 << 20) + 4097);
        let mut file = File::create(pair.inside("large")).unwrap();
        for piece in data.chunks(1 << 20) {
            file.write_all(piece).unwrap();
        }
        assert!(fs::read(pair.beside("large")).unwrap() == data);
        let mut file = File::open(pair.inside("large")).unwrap();
        let mut read = vec![0; 1 << 20];
        for piece in data.chunks(1 << 20) {
            file.read_exact(&mut read[..piece.len()]).unwrap();
            assert!(read[..piece.len()] == *piece);
        }
        for (offset, len) in [(4095, 2), (1, 70_000), ((3 << 20) + 4000, 97)] {
            let mut read = vec![0; len];
            file.read_exact_at(&mut read, offset as u64).unwrap();
            assert!(read == data[offset..offset + len], "{len} bytes at {offset}");
        }
        assert_eq!(file.read_at(&mut read, data.len() as u64).unwrap(), 0);
    });
}

#[test]
fn names_come_and_go() {
    on_each_mirror(|pair| {
        let (a, b) = (pair.inside("a"), pair.inside("b"));
        fs::create_dir(pair.inside("d")).unwrap();
        fs::write(&a, "a").unwrap();
        fs::hard_link(&a, &b).unwrap();
        assert_eq!(fs::metadata(pair.beside("b")).unwrap().nlink(), 2);
        symlink("a", pair.inside("link")).unwrap();
        assert_eq!(fs::read_link(pair.inside("link")).unwrap(), Path::new("a"));
        assert_eq!(fs::read(pair.inside("link")).unwrap(), b"a");
        fs::rename(&b, pair.inside("d/b")).unwrap();
        assert!(pair.beside("d/b").exists() && !pair.beside("b").exists());
        assert_eq!(errno(fs::remove_dir(pair.inside("d"))), Errno::NOTEMPTY);

        let rename = |flags| rustix::fs::renameat_with(CWD, &a, CWD, pair.inside("d/b"), flags);
        assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
        fs::remove_file(pair.inside("d/b")).unwrap();
        fs::write(pair.inside("d/b"), "b").unwrap();
        rename(RenameFlags::EXCHANGE).unwrap();
        assert_eq!(fs::read(pair.beside("a")).unwrap(), b"b");

        // An open file outlives its name.
        let mut file = File::open(&a).unwrap();
        fs::remove_file(&a).unwrap();
        let mut read = String::new();
        file.read_to_string(&mut read).unwrap();
        assert_eq!((read.as_str(), file.metadata().unwrap().nlink()), ("b", 0));
        fs::remove_file(pair.inside("d/b")).unwrap();
        fs::remove_dir(pair.inside("d")).unwrap();
        assert_eq!(fs::read_dir(&pair.beside).unwrap().count(), 1);
    });
}

#[test]
fn special_files_are_made() {
    on_each_mirror(|pair| {
        let make = |name, kind, device| {
            rustix::fs::mknodat(CWD, pair.inside(name), kind, Mode::from(0o620), device).unwrap();
            fs::metadata(pair.beside(name)).unwrap()
        };
        assert_eq!(make("fifo", FileType::Fifo, 0).mode() & 0o177_777, 0o010_600);
        assert_eq!(make("socket", FileType::Socket, 0).mode() & 0o170_000, 0o140_000);
        let null = make("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3));
        assert_eq!(null.rdev(), rustix::fs::makedev(1, 3));
        assert_eq!(fs::metadata(pair.inside("null")).unwrap().rdev(), null.rdev());
        let mut file = File::open(pair.inside("null")).unwrap();
        assert_eq!(file.read(&mut [0; 8]).unwrap(), 0);
        // Without a name until it is given one.
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let file = rustix::fs::open(pair.inside("."), flags, Mode::from(0o600)).unwrap();
        rustix::io::write(&file, b"nameless").unwrap();
        let number = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let name = pair.inside("named");
        rustix::fs::linkat(CWD, number, CWD, name, AtFlags::SYMLINK_FOLLOW).unwrap();
        assert_eq!(fs::read(pair.beside("named")).unwrap(), b"nameless");
    });
}

#[test]
fn attributes_are_told_and_set() {
    on_each_mirror(|pair| {
        let (inside, beside) = (pair.inside("file"), pair.beside("file"));
        fs::write(&inside, bytes(5000)).unwrap();
        fs::set_permissions(&inside, fs::Permissions::from_mode(0o4755)).unwrap();
        std::os::unix::fs::chown(&inside, Some(12), Some(34)).unwrap();
        let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
        let times = Timestamps { last_access: time(-5, 6), last_modification: time(7, 8) };
        rustix::fs::utimensat(CWD, &inside, &times, AtFlags::empty()).unwrap();
        let tell = |path: &Path| {
            let found = fs::metadata(path).unwrap();
            let of_time = (found.atime(), found.atime_nsec(), found.mtime(), found.mtime_nsec());
            (
                found.mode(),
                found.uid(),
                found.gid(),
                found.size(),
                found.blocks(),
                found.ino(),
                of_time,
            )
        };
        assert_eq!(tell(&inside), tell(&beside));
        assert_eq!(tell(&inside).6, (-5, 6, 7, 8));

        // The owner's change took set-user-id away; so does a write, of one who may not keep it.
        assert_eq!(tell(&inside).0, 0o100_755);
        let statx = |path: &Path| {
            let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
            let found = rustix::fs::statx(CWD, path, AtFlags::empty(), wanted).unwrap();
            (found.stx_mask & StatxFlags::BTIME.bits(), found.stx_btime.tv_sec, found.stx_size)
        };
        assert_eq!(statx(&inside), statx(&beside));
        let statfs = |path: &Path| {
            let found = rustix::fs::statfs(path).unwrap();
            (found.f_blocks, found.f_bsize, found.f_namelen, found.f_files)
        };
        assert_eq!(statfs(&inside), statfs(&beside));
    });
}

#[test]
fn a_write_of_another_user_takes_set_id_bits_away() {
    on_each_mirror(|pair| {
        let (inside, beside) = (pair.inside("file"), pair.beside("file"));
        fs::write(&inside, "text").unwrap();
        let set = |mode| fs::set_permissions(&inside, fs::Permissions::from_mode(mode)).unwrap();
        let told = || {
            let modes = [&inside, &beside].map(|path| fs::metadata(path).unwrap().mode() & 0o7777);
            assert_eq!(modes[0], modes[1]);
            modes[0]
        };
        let file = OpenOptions::new().write(true).open(&inside).unwrap();
        set(0o6777);
        file.write_all_at(b"T", 0).unwrap();
        assert_eq!(told(), 0o6777, "root may");
        as_nobody(|| file.write_all_at(b"T", 0)).unwrap();
        assert_eq!(told(), 0o777);
        set(0o6777);
        as_nobody(|| file.set_len(2)).unwrap();
        assert_eq!(told(), 0o777);
        set(0o6777);
        as_nobody(|| File::create(&inside)).unwrap();
        assert_eq!(told(), 0o777);
    });
}

/// Runs the body on a thread of its own with another user's rights.
fn as_nobody<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    use rustix::thread::{Gid, Uid, set_thread_gid, set_thread_groups, set_thread_uid};
    let run = || {
        set_thread_groups(&[]).unwrap();
        set_thread_gid(Gid::from_raw(65534)).unwrap();
        set_thread_uid(Uid::from_raw(65534)).unwrap();
        body()
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

#[test]
fn a_file_with_a_backing_file_is_read_and_written_without_asking() {
    on_each_transport(|transport| {
        let by_asking = Settings::default();
        let pair = Pair::with(transport, by_asking.clone());
        use_a_file_and_a_new_one(&pair);
        assert_ne!(by_asking.asked.load(Ordering::SeqCst), 0);
        if let Err(why) = takes_backing_files(&pair) {
            return aloud(&format!("skipped: fuse: passthrough: {why}"));
        }
        let without = Settings { passthrough: true, ..Settings::default() };
        let mut pair = Pair::with(transport, without.clone());
        use_a_file_and_a_new_one(&pair);
        assert_eq!(without.asked.load(Ordering::SeqCst), 0);
        unmounted(|| pair.mount.unmount());
    });
}

fn takes_backing_files(pair: &Pair) -> Result<(), String> {
    if !pair.mount.connection().capabilities.contains(Capabilities::PASSTHROUGH) {
        return Err("this kernel has none".to_string());
    }
    let file = File::create(pair.beside("backing")).unwrap();
    let id = pair.mount.notifier().open_backing(std::os::fd::AsFd::as_fd(&file));
    let id = id.map_err(|error| format!("a file of the target folder: {error}"))?;
    pair.mount.notifier().close_backing(id).map_err(|error| error.to_string())
}

fn use_a_file_and_a_new_one(pair: &Pair) {
    fs::write(pair.beside("file"), bytes(100_000)).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(pair.inside("file")).unwrap();
    let mut read = vec![0; 100_000];
    file.read_exact_at(&mut read, 0).unwrap();
    assert!(read == bytes(100_000));
    file.write_all_at(b"changed", 5000).unwrap();
    // Open twice, it is the same file; and so it is once everybody has closed it.
    let mut again = File::open(pair.inside("file")).unwrap();
    again.read_exact(&mut read).unwrap();
    assert_eq!(read[5000..5007], *b"changed");
    drop(file);
    again.read_exact_at(&mut read[..9], 4999).unwrap();
    assert_eq!(read[1..8], *b"changed");
    drop(again);
    assert_eq!(fs::read(pair.inside("file")).unwrap()[5000..5007], *b"changed");
    fs::write(pair.inside("new"), bytes(9000)).unwrap();
    assert!(fs::read(pair.beside("new")).unwrap() == bytes(9000));
}

#[test]
fn extended_attributes_are_told_and_set() {
    on_each_mirror(|pair| {
        let (inside, beside) = (pair.inside("file"), pair.beside("file"));
        fs::write(&inside, "").unwrap();
        let set = |value: &[u8], flags| rustix::fs::setxattr(&inside, "user.a", value, flags);
        set(b"first", XattrFlags::CREATE).unwrap();
        assert_eq!(set(b"again", XattrFlags::CREATE), Err(Errno::EXIST));
        let mut value = [0; 64];
        assert_eq!(rustix::fs::getxattr(&beside, "user.a", &mut value), Ok(5));
        assert_eq!(rustix::fs::getxattr(&inside, "user.a", &mut value), Ok(5));
        assert_eq!(value[..5], *b"first");
        assert_eq!(rustix::fs::getxattr_query(&inside, "user.a"), Ok(5));
        assert_eq!(rustix::fs::getxattr(&inside, "user.a", &mut [0; 4]), Err(Errno::RANGE));
        assert_eq!(rustix::fs::listxattr_query(&inside), Ok(7));
        assert_eq!(rustix::fs::listxattr(&inside, &mut value), Ok(7));
        assert_eq!(value[..7], *b"user.a\0");
        rustix::fs::removexattr(&inside, "user.a").unwrap();
        assert_eq!(rustix::fs::getxattr(&inside, "user.a", &mut value), Err(Errno::NODATA));
    });
}

#[test]
fn space_is_reserved_sought_and_copied() {
    on_each_mirror(|pair| {
        let mut file = File::create_new(pair.inside("sparse")).unwrap();
        file.write_all_at(b"data", 1 << 20).unwrap();
        let hole = file.seek(SeekFrom::Start(0)).unwrap();
        assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(hole)), Ok(1 << 20));
        assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)), Ok(0));
        assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(2 << 20)), Err(Errno::NXIO));
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 2 << 20).unwrap();
        assert_eq!(fs::metadata(pair.beside("sparse")).unwrap().len(), 2 << 20);

        fs::write(pair.inside("from"), bytes(300_000)).unwrap();
        let (from, to) =
            (File::open(pair.inside("from")).unwrap(), File::create(pair.inside("to")).unwrap());
        let (mut at, mut left) = (100, 299_900);
        while left > 0 {
            let copied =
                rustix::fs::copy_file_range(&from, Some(&mut at), &to, None, left).unwrap();
            assert_ne!(copied, 0);
            left -= copied;
        }
        assert!(fs::read(pair.beside("to")).unwrap() == bytes(300_000)[100..]);
    });
}

#[test]
fn a_mapped_file_is_read_and_written() {
    on_each_mirror(|pair| {
        let mut options = OpenOptions::new();
        mapped_pages_go_to_their_place(pair, options.read(true).write(true));
        // Opened like this, what the file system writes by itself would go behind the end.
        mapped_pages_go_to_their_place(pair, OpenOptions::new().read(true).append(true));
    });
}

fn mapped_pages_go_to_their_place(pair: &Pair, options: &OpenOptions) {
    fs::write(pair.inside("file"), bytes(8192)).unwrap();
    let file = options.open(pair.inside("file")).unwrap();
    let (access, flags) =
        (rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE, rustix::mm::MapFlags::SHARED);
    let start = std::ptr::null_mut();
    // SAFETY: a new mapping of 8192 bytes, of which the file has as many; it is unmapped once.
    #[allow(unsafe_code, reason = "there is no safe way to map a file")]
    unsafe {
        let map = rustix::mm::mmap(start, 8192, access, flags, &file, 0).unwrap();
        let memory = std::slice::from_raw_parts_mut(map.cast::<u8>(), 8192);
        assert!(*memory == bytes(8192)[..]);
        memory[5000] = 0xaa;
        rustix::mm::msync(map, 8192, rustix::mm::MsyncFlags::SYNC).unwrap();
        rustix::mm::munmap(map, 8192).unwrap();
    }
    let beside = fs::read(pair.beside("file")).unwrap();
    assert_eq!((beside.len(), beside[5000]), (8192, 0xaa));
}

/// In a process of its own: the mirror holds a descriptor for each name that the kernel knows, and
/// the tests beside it need some.
#[test]
fn a_large_directory_is_listed_whole() {
    testkit::alone(module_path!(), "a_large_directory_is_listed_whole", || {
        on_each_transport(lists_a_large_directory_whole);
    });
}

fn lists_a_large_directory_whole(transport: Transport) {
    let pair = Pair::new(transport, OpenFlags::NONE);
    let names: BTreeSet<String> =
        (0..20_000).map(|number| format!("name-{number}-{}", "x".repeat(number % 50))).collect();
    fs::create_dir(pair.beside("large")).unwrap();
    for name in &names {
        File::create(pair.beside("large").join(name)).unwrap();
    }
    let list = |path: &Path| -> Vec<String> {
        let names = fs::read_dir(path).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let listed = list(&pair.inside("large"));
    assert_eq!(listed.len(), names.len());
    assert!(listed.into_iter().collect::<BTreeSet<_>>() == names);
    // Names that were listed are taken back one by one.
    for name in names.iter().take(100) {
        fs::remove_file(pair.inside("large").join(name)).unwrap();
    }
    assert_eq!(list(&pair.inside("large")).len(), names.len() - 100);
}

#[test]
fn a_mount_in_use_is_not_unmounted_and_an_aborted_one_gives_errors() {
    on_each_transport(|transport| {
        let mut pair = Pair::new(transport, OpenFlags::DIRECT_IO);
        fs::write(pair.inside("file"), "x").unwrap();
        let file = File::open(pair.inside("file")).unwrap();
        assert_eq!(pair.mount.unmount(), Err(Errno::BUSY));
        assert_eq!(file.read_at(&mut [0; 8], 0).unwrap(), 1);
        assert!(!pair.mount.is_over());
        pair.mount.abort();
        assert!(pair.mount.is_over());
        let error = errno(file.read_at(&mut [0; 8], 0));
        assert!(matches!(error, Errno::NOTCONN | Errno::CONNABORTED), "{error}");
        assert!(!pair.inside("file").exists());
        drop(file);

        let mut pair = Pair::new(transport, OpenFlags::NONE);
        unmounted(|| pair.mount.unmount());
        assert!(pair.mount.is_over());
        assert_eq!(fs::read_dir(pair.mount.path()).unwrap().count(), 0);
        unmounted(|| pair.mount.unmount());
    });
}
