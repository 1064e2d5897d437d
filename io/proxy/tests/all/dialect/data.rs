//! Data in the dialect: written, appended, copied, allocated and looked for, compared with
//! what the kernel does to a file beside it; and which writes are durable.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use ninep::dialect::{ExtRequest, HandleList, WRITE_KILL_PRIV, handle_fid};
use ninep::{Fid, Request, open};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use crate::peer::errno::*;
use crate::peer::{P9Channel, Served, Setup, USER, appended};

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

/// Bytes that are different all over.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 256 * 7 + i + seed * 31) as u8).collect()
}

/// The number of a kernel's error.
fn number(error: Errno) -> u32 {
    error.raw_os_error() as u32
}

// ---- write ----

#[test]
fn what_is_written_lies_in_the_file_where_it_was_to() {
    let served = Served::plain("write");
    let path = served.data().join("f");
    let mut client = served.client();
    client.create(1, "f");
    // Small ones, one that is written past the page cache, and one with a gap before it.
    let pieces = [(0u64, 10usize), (5, 3000), (100_000, 700_000), (4_000_001, 1)];
    let mut expected = vec![0; 4_000_002];
    for (nth, (offset, len)) in pieces.into_iter().enumerate() {
        let data = pattern(len, nth);
        assert_eq!(client.write(1, offset, &data).unwrap().0, len as u32);
        expected[offset as usize..][..len].copy_from_slice(&data);
    }
    assert!(fs::read(&path).unwrap() == expected, "other bytes than written");
    assert_eq!(client.read(1, 100_000, 700_000).unwrap(), expected[100_000..800_000]);
    assert_eq!(client.read(1, 4_000_002, 10).unwrap(), b"", "the end");
    // The message of 9P2000.L does the same.
    let plain = Request::Write { fid: Fid(1), offset: 1, data: b"plain" };
    client.call(HandleList::NONE, plain).done().unwrap();
    assert_eq!(fs::read(&path).unwrap()[1..6], *b"plain");
    assert_eq!(client.write(1, 0, b"").unwrap().0, 0);
}

#[test]
fn the_flag_of_a_write_takes_set_id_bits_away() {
    if !crate::peer::root_here() {
        return;
    }
    let served = Setup::new("killpriv").top("squash = \"none\"").start();
    let path = served.data().join("program");
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
    let reset = || fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
    let mut client = served.client_of("x", 0, "");
    client.create(1, "program");
    reset();
    client.write(1, 0, b"as root").unwrap();
    assert_eq!(mode(), 0o6755, "root's writes leave them alone");
    client.write_with(1, 0, WRITE_KILL_PRIV, b"for a user").unwrap();
    assert_eq!(mode(), 0o755);
    reset();
    let append = ExtRequest::Append { fid: Fid(1), flags: WRITE_KILL_PRIV, data: b"more" };
    appended(&client.once(HandleList::NONE, append)).unwrap();
    assert_eq!(mode(), 0o755);
}

// ---- durable writes ----

#[test]
fn writes_are_numbered_and_committed_once_their_files_are_durable() {
    let served = Served::plain("commit");
    let mut client = served.client();
    client.create(1, "a");
    client.create(2, "b");
    let verifier = client.head.verifier;
    assert_eq!(client.head.commit_watermark, 0);
    assert_eq!(client.write(1, 0, b"one").unwrap().1, 1);
    assert_eq!(client.write(2, 0, b"two").unwrap().1, 2);
    assert_eq!(client.append(1, b"three").unwrap(), (3, 3));
    assert_eq!(client.copy((1, 0), (2, 3), 3).unwrap(), (3, 4));
    assert_eq!(client.write(1, 0, b"five").unwrap().1, 5);
    client.fsync(1).unwrap();
    client.ping();
    assert_eq!(client.head.commit_watermark, 1, "the second write is not durable");
    client.fsync(2).unwrap();
    client.ping();
    assert_eq!(client.head.commit_watermark, 5);
    assert_eq!(client.write(1, 0, b"six").unwrap().1, 6);
    assert_eq!(client.head.commit_watermark, 5);
    assert_eq!(client.head.verifier, verifier);
    let mut other = served.client();
    assert_eq!(other.head.verifier, verifier, "one server, one verifier");
    other.create(1, "c");
    assert_eq!(other.write(1, 0, b"x").unwrap().1, 1, "each session counts for itself");
}

#[test]
fn writes_to_a_file_that_was_removed_hold_back_no_others() {
    let served = Served::plain("removed");
    let mut client = served.client();
    let root = client.root.clone();
    client.create(1, "open");
    client.create(2, "kept");
    client.create(3, "closed");
    client.create(4, "replaced");
    client.create(5, "new");
    for fid in 1..=4 {
        client.write(fid, 0, b"data").unwrap();
    }
    client.fsync(2).unwrap();
    client.clunk(3).unwrap();
    client.clunk(4).unwrap();
    assert_eq!(client.head.commit_watermark, 0);
    client.unlink(&root, "open", 0).unwrap();
    client.ping();
    assert_eq!(client.head.commit_watermark, 2, "the others still have names");
    client.unlink(&root, "closed", 0).unwrap();
    client.ping();
    assert_eq!(client.head.commit_watermark, 3);
    client.rename((&root, "new"), (&root, "replaced")).unwrap();
    client.ping();
    assert_eq!(client.head.commit_watermark, 4);
    client.write(1, 4, b"more").unwrap();
    client.ping();
    assert_eq!(client.head.commit_watermark, 4, "it may still be made durable, through its fid");
    client.clunk(1).unwrap();
    client.ping();
    assert_eq!(client.head.commit_watermark, 5);
}

#[test]
fn the_answer_to_a_session_has_the_servers_verifier() {
    let served = Served::plain("session-verifier");
    let mut client = served.client();
    client.create(1, "f");
    client.write(1, 0, b"x").unwrap();
    client.fsync(1).unwrap();
    client.ping();
    let head = client.head;
    assert_eq!(head.commit_watermark, 1);
    client.reconnect();
    assert_eq!(client.head, head, "a client that compares must not see a change");
    let mut other = served.connect();
    other.session(crate::peer::fresh_id(), 0, 1, "x").unwrap();
    assert_eq!((other.head.verifier, other.head.commit_watermark), (head.verifier, 0));
}

#[test]
fn a_server_that_was_started_again_has_lost_nothing_and_says_so() {
    let mut served = Served::plain("verifier");
    let mut client = served.client();
    let verifier = client.head.verifier;
    client.create(1, "f");
    client.write(1, 0, b"in the page cache").unwrap();
    served.start_again();
    client.door = served.tcp();
    assert!(!client.reconnect().resumed);
    client.ping();
    assert_eq!((client.head.verifier, client.head.commit_watermark), (verifier, 0));
    assert_eq!(fs::read(served.data().join("f")).unwrap(), b"in the page cache");
}

#[test]
fn one_commit_makes_all_files_durable_open_or_not() {
    let served = Served::plain("commit-all");
    let mut client = served.client();
    let root = client.root.clone();
    for fid in 1..=20 {
        client.create(fid, &format!("file{fid}"));
        client.write(fid, 0, b"data").unwrap();
        if fid % 2 == 0 {
            client.clunk(fid).unwrap();
        }
    }
    assert_eq!(client.head.commit_watermark, 0);
    client.commit(&root).unwrap();
    assert_eq!(client.head.commit_watermark, 20, "the reply itself says it");
    client.write(1, 4, b"more").unwrap();
    client.ping();
    assert_eq!(client.head.commit_watermark, 20);
    client.commit(&root).unwrap();
    assert_eq!(client.head.commit_watermark, 21);
}

#[test]
fn a_closed_file_is_written_and_made_durable_by_its_handle() {
    let served = Served::plain("by-handle");
    let mut client = served.client();
    let handle = client.create(1, "f").handle;
    client.write(1, 0, b"first").unwrap();
    client.clunk(1).unwrap();
    assert_eq!(client.write_to(&handle, 5, b" again").unwrap(), (6, 2));
    assert_eq!(fs::read(served.data().join("f")).unwrap(), b"first again");
    let request = Request::Fsync { fid: handle_fid(0), datasync: 1 };
    client.call(HandleList::one(&handle), request).done().unwrap();
    client.ping();
    assert_eq!(client.head.commit_watermark, 2);
    let dir = client.mkdir("dir").unwrap().handle;
    assert_eq!(client.write_to(&dir, 0, b"x"), Err(EBADF));
}

#[test]
fn by_handle_only_the_owner_writes_what_the_mode_does_not_let_others_write() {
    if !crate::peer::root_here() {
        return;
    }
    let served = Setup::new("by-handle-mode").top("squash = \"none\"").start();
    let mut client = served.client();
    let handle = client.create(1, "f").handle;
    fs::set_permissions(served.data().join("f"), fs::Permissions::from_mode(0o444)).unwrap();
    assert_eq!(client.write_to(&handle, 0, b"the owner's").unwrap().0, 11);
    let mut other = served.client_of("x", USER + 1, "");
    assert_eq!(other.write_to(&handle, 0, b"another's"), Err(EACCES));
    fs::set_permissions(served.data().join("f"), fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(other.write_to(&handle, 0, b"another's").unwrap().0, 9);
    assert_eq!(fs::read(served.data().join("f")).unwrap(), b"another's's");
}

// ---- append ----

#[test]
fn appends_of_two_clients_never_overlap() {
    let served = Served::plain("append");
    let (mut one, mut two) = (served.client(), served.client());
    let f = one.create(1, "f").handle;
    two.open(&f, 1, "", open::WRONLY, 0).unwrap();
    let block = |client: usize, nth: usize| pattern(1 + nth * 37 % 5000, client * 1000 + nth);
    let mut told = Vec::new();
    for round in 0..40 {
        let mut tags = Vec::new();
        for nth in round * 10..round * 10 + 10 {
            for (which, client) in [&mut one, &mut two].into_iter().enumerate() {
                let data = block(which, nth);
                let append = ExtRequest::Append { fid: Fid(1), flags: 0, data: &data };
                tags.push((which, nth, client.send_once(HandleList::NONE, append).tag));
            }
        }
        for (which, nth, tag) in tags {
            let client = if which == 0 { &mut one } else { &mut two };
            let (offset, _) = appended(&client.wait(tag)).unwrap();
            told.push((offset, block(which, nth)));
        }
    }
    told.sort();
    let content = fs::read(served.data().join("f")).unwrap();
    let mut end = 0;
    for (offset, data) in told {
        assert_eq!(offset, end, "each begins where the one before ends");
        end += data.len() as u64;
        assert!(content[offset as usize..end as usize] == data, "at {offset}");
    }
    assert_eq!(end, content.len() as u64);
}

#[test]
fn an_append_goes_to_the_end_wherever_that_is_by_then() {
    let served = Served::plain("end");
    let path = served.data().join("f");
    let mut client = served.client();
    client.create(1, "f");
    assert_eq!(client.append(1, b"first").unwrap().0, 0);
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1000).unwrap();
    assert_eq!(client.append(1, b"second").unwrap().0, 1000);
    client.write(1, 2000, b"far").unwrap();
    assert_eq!(client.append(1, b"third").unwrap().0, 2003);
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1).unwrap();
    assert_eq!(client.append(1, b"fourth").unwrap().0, 1);
    assert_eq!(fs::read(&path).unwrap(), b"ffourth");
    client.open_name(2, "f", open::RDONLY).unwrap();
    assert_eq!(client.append(2, b"x"), Err(EBADF));
}

// ---- copy ----

#[test]
fn a_copy_moves_bytes_within_the_server_as_the_kernel_would() {
    let served = Served::plain("copy");
    let mut client = served.client();
    client.create(1, "from");
    client.create(2, "to");
    let data = pattern(600_000, 1);
    client.write(1, 0, &data).unwrap();
    client.write(2, 0, &[9; 100]).unwrap();
    let to = served.data().join("to");
    let mut done = 0;
    while done < 500_000 {
        let at = (1, 100 + done);
        let (count, _) = client.copy(at, (2, 50 + done), 500_000 - done).unwrap();
        assert!(count > 0 && count <= 500_000 - done, "{count} bytes");
        done += count;
    }
    let copied = fs::read(&to).unwrap();
    assert_eq!((copied.len(), &copied[..50]), (500_050, &[9; 50][..]));
    assert!(copied[50..] == data[100..500_100], "other bytes than were there");
    let (count, last) = client.copy((1, 599_990), (2, 0), 1000).unwrap();
    assert_eq!(count, 10, "what there is until the end");
    assert_eq!(fs::read(&to).unwrap()[..10], data[599_990..]);
    assert_eq!(client.copy((1, 600_000), (2, 0), 1000).unwrap().0, 0, "nothing at the end");
    assert_eq!(client.write(2, 0, b"x").unwrap().1, last + 2, "both copies had a number");
    assert_eq!(client.copy((1, 0), (1, 5), 100), Err(EINVAL), "onto itself, overlapping");
    client.open_name(3, "from", open::RDONLY).unwrap();
    client.open_name(4, "to", open::WRONLY).unwrap();
    assert_eq!(client.copy((1, 0), (3, 0), 100), Err(EBADF));
    assert_eq!(client.copy((4, 0), (2, 0), 100), Err(EBADF));
    assert_eq!(client.copy((1, 0), (9, 0), 100), Err(EBADF));
    assert_eq!(client.copy((3, 0), (4, 0), 100).unwrap().0, 100);
    assert_eq!(fs::read(&to).unwrap()[..100], data[..100]);
}

// ---- allocate and seek, beside a twin that the kernel's own calls are made on ----

struct Twins<'s> {
    client: P9Channel,
    served: &'s Served,
    twin: fs::File,
}

impl Twins<'_> {
    /// Fid 1 and a file beside it, with the same data.
    fn new(served: &Served) -> Twins<'_> {
        let mut client = served.client();
        client.create(1, "f");
        let path = served.data().join("twin");
        let open = fs::OpenOptions::new().read(true).write(true).create_new(true).open(path);
        let twin = open.unwrap();
        let mut twins = Twins { client, served, twin };
        for (offset, len) in [(0, 8 << 10), (1 << 20, 64 << 10), (3 << 20, 100)] {
            let data = pattern(len, 3);
            twins.client.write(1, offset, &data).unwrap();
            twins.twin.write_all_at(&data, offset).unwrap();
        }
        twins.settle();
        twins
    }

    /// Space is taken when it is written back, and not before.
    fn settle(&mut self) {
        self.client.fsync(1).unwrap();
        self.twin.sync_all().unwrap();
    }

    fn path(&self) -> std::path::PathBuf {
        self.served.data().join("f")
    }

    fn assert_same(&mut self, when: &str) {
        self.settle();
        let own = fs::metadata(self.path()).unwrap();
        let twin = self.twin.metadata().unwrap();
        assert_eq!(own.len(), twin.len(), "{when}");
        // One of them may need a block more, for the list of where its pieces are on the disk.
        let differs = own.blocks().abs_diff(twin.blocks());
        assert!(differs * 512 <= own.blksize(), "{when}: {own:?}, {twin:?}");
        let content = |path: &Path| fs::read(path).unwrap();
        assert!(content(&self.path()) == content(&self.served.data().join("twin")), "{when}");
    }
}

#[test]
fn space_is_taken_and_given_back_as_the_kernel_does_it() {
    let served = Served::plain("allocate");
    let mut twins = Twins::new(&served);
    twins.assert_same("as written");
    let steps = [
        (0, (0, 5 << 20)),
        (KEEP_SIZE, (6 << 20, 1 << 20)),
        (PUNCH_HOLE | KEEP_SIZE, (4096, 2 << 20)),
        (PUNCH_HOLE | KEEP_SIZE, (100, 1000)),
        (ZERO_RANGE, ((3 << 20) + 10, 20)),
        (0, (9 << 20, 1)),
        // And what it refuses.
        (0, (0, 0)),
        (PUNCH_HOLE, (0, 4096)),
        (0, (u64::MAX, 1)),
        (0, (1, i64::MAX as u64)),
        (1 << 30, (0, 4096)),
    ];
    for (mode, (offset, length)) in steps {
        let flags = FallocateFlags::from_bits_retain(mode);
        let kernels = fallocate(&twins.twin, flags, offset, length).map_err(number);
        let own = twins.client.allocate(1, mode, offset, length);
        let what = format!("mode {mode:#x}, {length} bytes at {offset}");
        assert_eq!(own, kernels, "{what}");
        twins.assert_same(&what);
    }
    twins.client.open_name(2, "f", open::RDONLY).unwrap();
    assert_eq!(twins.client.allocate(2, 0, 0, 4096), Err(EBADF));
    assert_eq!(twins.client.allocate(3, 0, 0, 4096), Err(EBADF));
}

#[test]
fn data_and_holes_are_found_where_the_kernel_finds_them() {
    let served = Served::plain("seek");
    let mut twins = Twins::new(&served);
    let size = twins.twin.metadata().unwrap().len();
    let places = [0, 1, 8191, 8192, 1 << 20, (1 << 20) + 5, 2 << 20, 3 << 20, size - 1];
    for at in places.into_iter().chain([size, size + 1, i64::MAX as u64, u64::MAX]) {
        let asked = [(SEEK_DATA, SeekFrom::Data(at)), (SEEK_HOLE, SeekFrom::Hole(at))];
        for (whence, from) in asked {
            let kernels = seek(&twins.twin, from).map_err(number);
            assert_eq!(twins.client.seek(1, at, whence), kernels, "{whence} at {at}");
        }
    }
    for whence in [0, 1, 2, 5, u32::MAX] {
        assert_eq!(twins.client.seek(1, 0, whence), Err(EINVAL), "{whence}");
    }
    assert_eq!(twins.client.seek(2, 0, SEEK_DATA), Err(EBADF));
}
