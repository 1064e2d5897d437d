//! Messages beside their bytes, written by hand from the protocol's tables, and
//! what is refused with the reason given.

use sluice_ninep::{
    Attributes, DirEntry, Fid, FrameError, IO_HEADER, LOCK_BLOCK, LockKind, LockStatus, MSIZE_MAX,
    MSIZE_MIN, NOFID, NONUNAME, NOTAG, NameList, QTDIR, Qid, Qids, READ_REPLY_HEADER_LEN,
    REMOVE_DIR, Reply, Request, SetAttributes, Tag, Timestamp, WRITE_HEADER_LEN, getattr, open,
    setattr,
};

/// `"0b000000 07 'text'"` to bytes: hexadecimal pairs, spaced at will, and text in quotes.
fn bytes(wire: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for (nth, part) in wire.split('\'').enumerate() {
        if nth % 2 == 1 {
            out.extend_from_slice(part.as_bytes());
            continue;
        }
        let digits: Vec<u8> =
            part.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
        out.extend(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]));
    }
    out
}

fn is_request(tag: Tag, request: Request<'_>, wire: &str) {
    let mut out = Vec::new();
    request.encode(tag, &mut out);
    assert_eq!(out, bytes(wire));
    assert_eq!(Request::decode(&out), Ok((tag, request)));
}

fn is_reply(tag: Tag, reply: Reply<'_>, wire: &str) {
    let mut out = Vec::new();
    reply.encode(tag, &mut out);
    assert_eq!(out, bytes(wire));
    assert_eq!(Reply::decode(&out), Ok((tag, reply)));
}

#[test]
fn a_session_begins() {
    let version = Request::Version { msize: 0x1_0018, version: b"9P2000.L" };
    is_request(NOTAG, version, "15000000 64 ffff 18000100 0800 '9P2000.L'");
    let version = Reply::Version { msize: 0x2000, version: b"unknown" };
    is_reply(NOTAG, version, "14000000 65 ffff 00200000 0700 'unknown'");
    let attach = Request::Attach {
        fid: Fid(1),
        afid: NOFID,
        uname: b"nobody",
        aname: b"scratch?job=7",
        n_uname: NONUNAME,
    };
    let wire = "2a000000 68 0100 01000000 ffffffff 0600 'nobody' 0d00 'scratch?job=7' ffffffff";
    is_request(Tag(1), attach, wire);
    let attach = Reply::Attach { qid: Qid { kind: QTDIR, version: 2, path: 0x0102 } };
    is_reply(Tag(1), attach, "14000000 69 0100 80 02000000 0201000000000000");
    is_reply(Tag(1), Reply::Error { ecode: 13 }, "0b000000 07 0100 0d000000");
}

#[test]
fn names_are_walked_and_changed() {
    let mut space = Vec::new();
    let names = NameList::pack([&b"dir"[..], b"f"], &mut space).unwrap();
    let walk = Request::Walk { fid: Fid(1), newfid: Fid(2), names };
    let wire = "19000000 6e 0500 01000000 02000000 0200 0300 'dir' 0100 'f'";
    is_request(Tag(5), walk, wire);
    let walk = Request::Walk { fid: Fid(1), newfid: Fid(1), names: NameList::EMPTY };
    is_request(Tag(5), walk, "11000000 6e 0500 01000000 01000000 0000");
    let qids = Qids::from_iter([Qid { kind: QTDIR, version: 0, path: 3 }]);
    let wire = "16000000 6f 0500 0100 80 00000000 0300000000000000";
    is_reply(Tag(5), Reply::Walk { qids }, wire);
    let rename =
        Request::Renameat { olddirfid: Fid(3), oldname: b"a", newdirfid: Fid(4), newname: b"bc" };
    let wire = "16000000 4a 0600 03000000 0100 'a' 04000000 0200 'bc'";
    is_request(Tag(6), rename, wire);
    let unlink = Request::Unlinkat { dirfid: Fid(3), name: b"d", flags: REMOVE_DIR };
    is_request(Tag(7), unlink, "12000000 4c 0700 03000000 0100 'd' 00020000");
}

#[test]
fn files_are_opened_read_and_written() {
    let flags = open::RDWR | open::TRUNC | open::DIRECT;
    is_request(Tag(8), Request::Lopen { fid: Fid(2), flags }, "0f000000 0c 0800 02000000 02420000");
    let create = Request::Lcreate {
        fid: Fid(2),
        name: b"new",
        flags: open::WRONLY | open::CREATE | open::EXCL,
        mode: 0o644,
        gid: 100,
    };
    let wire = "1c000000 0e 0900 02000000 0300 'new' c1000000 a4010000 64000000";
    is_request(Tag(9), create, wire);
    let read = Request::Read { fid: Fid(2), offset: 0x1_0000_0000, count: 4096 };
    is_request(Tag(10), read, "17000000 74 0a00 02000000 0000000001000000 00100000");
    is_reply(Tag(10), Reply::Read { data: b"xyz" }, "0e000000 75 0a00 03000000 'xyz'");
    is_reply(Tag(10), Reply::Read { data: b"" }, "0b000000 75 0a00 00000000");
    let write = Request::Write { fid: Fid(2), offset: 5, data: b"xyz" };
    is_request(Tag(11), write, "1a000000 76 0b00 02000000 0500000000000000 03000000 'xyz'");
    is_reply(Tag(11), Reply::Write { count: 3 }, "0b000000 77 0b00 03000000");
    is_request(Tag(12), Request::Flush { oldtag: Tag(11) }, "09000000 6c 0c00 0b00");
    is_reply(Tag(12), Reply::Flush, "07000000 6d 0c00");
}

#[test]
fn attributes_are_read_and_set() {
    let time = |sec| Timestamp { sec, nsec: sec + 1 };
    let attributes = Attributes {
        valid: getattr::BASIC,
        qid: Qid { kind: 0, version: 1, path: 2 },
        mode: 0o100644,
        uid: 3,
        gid: 4,
        nlink: 5,
        rdev: 6,
        size: 7,
        blksize: 8,
        blocks: 9,
        atime: time(0x10),
        mtime: time(0x20),
        ctime: time(0x30),
        btime: time(0x40),
        generation: 0x50,
        data_version: 0x60,
    };
    let wire = "a0000000 19 0100 ff07000000000000 00 01000000 0200000000000000 a4810000 03000000 \
        04000000 0500000000000000 0600000000000000 0700000000000000 0800000000000000 \
        0900000000000000 1000000000000000 1100000000000000 2000000000000000 2100000000000000 \
        3000000000000000 3100000000000000 4000000000000000 4100000000000000 5000000000000000 \
        6000000000000000";
    is_reply(Tag(1), Reply::Getattr(attributes), wire);
    let set = SetAttributes {
        valid: setattr::SIZE | setattr::MTIME | setattr::MTIME_SET,
        size: 0x200,
        mtime: time(0x10),
        ..SetAttributes::default()
    };
    let wire = "43000000 1a 0100 02000000 28010000 00000000 00000000 00000000 0002000000000000 \
        0000000000000000 0000000000000000 1000000000000000 1100000000000000";
    is_request(Tag(1), Request::Setattr { fid: Fid(2), set }, wire);
}

#[test]
fn directories_locks_and_extended_attributes() {
    let qid = Qid { kind: 0, version: 0, path: 0x11 };
    let entry = DirEntry { qid, offset: 1 << 63, kind: 8, name: b"file" };
    let mut data = Vec::new();
    entry.encode(&mut data);
    let wire =
        "27000000 29 0100 1c000000 00 00000000 1100000000000000 0000000000000080 08 0400 'file'";
    is_reply(Tag(1), Reply::Readdir { data: &data }, wire);
    let lock = Request::Lock {
        fid: Fid(2),
        kind: LockKind::Write,
        flags: LOCK_BLOCK,
        start: 1,
        length: 0,
        proc_id: 0x1234,
        client_id: b"n1",
    };
    let wire = "28000000 34 0200 02000000 01 01000000 0100000000000000 0000000000000000 34120000 0200 'n1'";
    is_request(Tag(2), lock, wire);
    is_reply(Tag(2), Reply::Lock { status: LockStatus::Blocked }, "08000000 35 0200 01");
    let create = Request::Xattrcreate { fid: Fid(2), name: b"user.a", size: 0, flags: 2 };
    let wire = "1f000000 20 0300 02000000 0600 'user.a' 0000000000000000 02000000";
    is_request(Tag(3), create, wire);
    let list = Request::Xattrwalk { fid: Fid(2), newfid: Fid(3), name: b"" };
    is_request(Tag(3), list, "11000000 1e 0300 02000000 03000000 0000");
}

#[test]
fn payload_of_msize_less_24_fits_a_read_and_a_write() {
    for msize in [MSIZE_MIN, MSIZE_MAX] {
        let data = vec![7; (msize - IO_HEADER) as usize];
        let mut out = Vec::new();
        Reply::Read { data: &data }.encode(Tag(1), &mut out);
        assert_eq!(out.len(), data.len() + READ_REPLY_HEADER_LEN);
        assert!(out.len() <= msize as usize);
        out.clear();
        let write = Request::Write { fid: Fid(1), offset: 0, data: &data };
        write.encode(Tag(1), &mut out);
        assert_eq!(out.len(), data.len() + WRITE_HEADER_LEN);
        assert!(out.len() <= msize as usize);
        assert_eq!(Request::decode(&out), Ok((Tag(1), write)));
    }
}

#[test]
fn the_smallest_msize_holds_a_longest_name_but_not_a_longest_link() {
    let entry = DirEntry { qid: Qid::default(), offset: 0, kind: 0, name: &[b'x'; 255] };
    let entry_len = entry.encoded_len() + READ_REPLY_HEADER_LEN;
    assert!(entry_len <= MSIZE_MIN as usize);
    let readlink_len = |target: &[u8]| {
        let mut out = Vec::new();
        Reply::Readlink { target }.encode(Tag(1), &mut out);
        out.len()
    };
    assert_eq!(readlink_len(&[b'x'; 4087]), MSIZE_MIN as usize);
    assert_eq!(readlink_len(&[b'x'; 4095]), MSIZE_MIN as usize + 8);
}

#[test]
fn seventeen_names_are_refused_by_their_count() {
    let walk = |count: u16| {
        let mut frame = bytes("00000000 6e 0300 01000000 02000000");
        frame.extend_from_slice(&count.to_le_bytes());
        for _ in 0..count {
            frame.extend_from_slice(b"\x01\x00x");
        }
        frame[0] = frame.len() as u8;
        frame
    };
    assert!(Request::decode(&walk(16)).is_ok());
    let error = Request::decode(&walk(17)).unwrap_err();
    assert_eq!(error, FrameError::TooMany { tag: Tag(3), field: "names", count: 17, limit: 16 });
    assert_eq!((error.tag(), error.errno()), (Some(Tag(3)), 22));
}

#[test]
fn names_with_a_slash_or_nul_are_refused_and_targets_with_a_slash_pass() {
    let symlink = |name: &[u8], target: &[u8]| {
        let mut frame = Vec::new();
        Request::Symlink { fid: Fid(1), name, target, gid: 0 }.encode(Tag(4), &mut frame);
        Request::decode(&frame).map(|(tag, _)| tag)
    };
    let bad = |field, byte, at| Err(FrameError::BadByte { tag: Tag(4), field, byte, at });
    assert_eq!(symlink(b"name", b"../else/where"), Ok(Tag(4)));
    assert_eq!(symlink(b"a/b", b"t"), bad("name", b'/', 1));
    assert_eq!(symlink(b"ab\0", b"t"), bad("name", 0, 2));
    assert_eq!(symlink(b"name", b"\0t"), bad("target", 0, 0));
}

#[test]
fn lengths_that_do_not_fit_are_refused_and_named() {
    let error = |wire: &str| Request::decode(&bytes(wire)).unwrap_err();
    let tag = Tag(1);
    assert_eq!(error("0b0000"), FrameError::Short { len: 3 });
    assert_eq!(error("0c000000 78 0100 01000000"), FrameError::Size { tag, size: 12, len: 11 });
    assert_eq!(error("00000000 78 0100"), FrameError::Size { tag, size: 0, len: 7 });
    assert_eq!(error("0c000000 78 0100 01000000 00"), FrameError::Trailing { tag, extra: 1 });
    let cut = FrameError::Truncated { tag, field: "fid", need: 4, available: 3 };
    assert_eq!(error("0a000000 78 0100 010000"), cut);
    let past_the_end =
        FrameError::Truncated { tag, field: "data", need: 0xffff_ffff, available: 1 };
    let wire = "18000000 76 0100 02000000 0000000000000000 ffffffff 00";
    assert_eq!(error(wire), past_the_end);
    let message = "message with tag 1: data needs 4294967295 bytes, 1 are left";
    assert_eq!(past_the_end.to_string(), message);
    let unknown = error("07000000 7e 0100");
    assert_eq!(unknown, FrameError::UnknownType { tag, kind: 126 });
    assert_eq!(unknown.errno(), 95, "clients fall back on EOPNOTSUPP and nothing else");
}

#[test]
fn a_lock_kind_without_meaning_is_refused() {
    let wire =
        "26000000 34 0200 02000000 03 00000000 0000000000000000 0000000000000000 00000000 0000";
    let error = Request::decode(&bytes(wire)).unwrap_err();
    assert_eq!(error, FrameError::BadValue { tag: Tag(2), field: "kind", value: 3 });
}

/// Messages own nothing, so decoding one takes no memory.
#[test]
fn decoded_messages_only_borrow() {
    fn borrows<T: Copy>() {}
    borrows::<Request<'_>>();
    borrows::<Reply<'_>>();
    borrows::<DirEntry<'_>>();
}
