//! What no client that keeps to the protocol sends: refused, and the server lives on.

use std::fs;
use std::os::unix::fs::symlink;

use ninep::dialect::{
    ExtRequest, HANDLE_MAX, HandleList, RequestHeader, encode_request, handle_fid,
};
use ninep::{Fid, LockKind, NOFID, NameList, Reply, Request, SetAttributes, Tag, getattr, open};

use crate::peer::errno::*;
use crate::peer::{
    Dice, IDENTITY, P9Channel, Served, USER, lock_request, rename_request, write_as_user,
};

/// The frame of a request of identity 1 without a slot.
fn frame(tag: u16, handles: HandleList<'_>, request: ExtRequest<'_>) -> Vec<u8> {
    let header = RequestHeader { identity: IDENTITY, handles, ..RequestHeader::SESSION };
    let mut bytes = Vec::new();
    encode_request(Tag(tag), &header, &request.into(), &mut bytes);
    bytes
}

/// Sends a frame that is answered with an error.
fn refused(client: &mut P9Channel, bytes: &[u8]) -> u32 {
    client.send_bytes(bytes);
    let tag = ninep::frame_tag(bytes).unwrap();
    client.wait(tag).done().expect_err("it is refused")
}

/// Corrects a frame's size field.
fn resized(mut bytes: Vec<u8>) -> Vec<u8> {
    let len = (bytes.len() as u32).to_le_bytes();
    bytes[..4].copy_from_slice(&len);
    bytes
}

// ---- fids and handles ----

#[test]
fn a_fid_that_names_a_handle_which_the_header_lacks_is_ebadf() {
    let served = Served::plain("lacks");
    let mut client = served.client();
    let root = client.root.clone();
    client.create(1, "f");
    let (first, second, newfid) = (handle_fid(0), handle_fid(1), Fid(8));
    let name = b"f";
    let set = SetAttributes::default();
    let own = |fid| {
        [
            ExtRequest::Lookup { fid, name },
            ExtRequest::Open { fid, newfid, name, flags: open::RDONLY, mode: 0 },
            ExtRequest::List { fid, offset: 0, count: 4096 },
            ExtRequest::Mknode { fid, name: b"d", mode: 0o040_755, rdev: 0, target: b"" },
            ExtRequest::Change { fid, set },
            ExtRequest::Write { fid, offset: 0, flags: 0, data: b"x" },
            ExtRequest::Append { fid, flags: 0, data: b"x" },
            ExtRequest::Allocate { fid, mode: 0, offset: 0, length: 10 },
            ExtRequest::Seek { fid, offset: 0, whence: 3 },
            ExtRequest::Copy { fid, offset: 0, tofid: Fid(1), tooffset: 0, length: 1 },
            ExtRequest::Copy { fid: Fid(1), offset: 0, tofid: fid, tooffset: 0, length: 1 },
            ExtRequest::Getxattr { fid, name: b"user.a", count: 10 },
            ExtRequest::Setxattr { fid, name: b"user.a", flags: 0, data: b"x" },
            ExtRequest::Removexattr { fid, name: b"user.a" },
        ]
    };
    for request in own(first) {
        let answer = client.call(HandleList::NONE, request).done();
        assert_eq!(answer, Err(EBADF), "{}", request.name());
    }
    for request in own(second) {
        let answer = client.call(HandleList::one(&root), request).done();
        assert_eq!(answer, Err(EBADF), "{}", request.name());
    }
    client.open(&root, 2, "", open::RDONLY, 0).unwrap();
    let names = NameList::default();
    let plain = [
        Request::Walk { fid: first, newfid, names },
        Request::Getattr { fid: first, mask: getattr::ALL },
        Request::Setattr { fid: first, set },
        Request::Statfs { fid: first },
        Request::Readlink { fid: first },
        Request::Link { dfid: first, fid: Fid(1), name },
        Request::Link { dfid: Fid(2), fid: first, name: b"g" },
        Request::Mkdir { dfid: first, name, mode: 0o755, gid: USER },
        Request::Unlinkat { dirfid: first, name, flags: 0 },
        Request::Lopen { fid: first, flags: open::RDONLY },
        Request::Read { fid: first, offset: 0, count: 10 },
        Request::Fsync { fid: first, datasync: 0 },
        lock_request(first.0, LockKind::Write, "owner", 0),
    ];
    for request in plain {
        let answer = client.call(HandleList::NONE, request).done();
        assert_eq!(answer, Err(EBADF), "{}", request.name());
    }
    let rename = client.call(HandleList::one(&root), rename_request("f", "g"));
    assert_eq!(rename.done(), Err(EBADF), "the second of two");
    assert_eq!(fs::read_dir(served.data()).unwrap().count(), 1);
    assert_eq!(fs::metadata(served.data().join("f")).unwrap().len(), 0);
}

#[test]
fn what_needs_an_open_file_is_ebadf_for_a_handle() {
    let served = Served::plain("notopen");
    let mut client = served.client();
    let f = client.create(1, "f").handle;
    let fid = handle_fid(0);
    let own = [
        ExtRequest::Append { fid, flags: 0, data: b"x" },
        ExtRequest::Allocate { fid, mode: 0, offset: 0, length: 10 },
        ExtRequest::Seek { fid, offset: 0, whence: 3 },
        ExtRequest::Copy { fid, offset: 0, tofid: Fid(1), tooffset: 0, length: 1 },
        ExtRequest::Copy { fid: Fid(1), offset: 0, tofid: fid, tooffset: 0, length: 1 },
    ];
    for request in own {
        let answer = client.call(HandleList::one(&f), request).done();
        assert_eq!(answer, Err(EBADF), "{}", request.name());
    }
    for request in [
        Request::Read { fid, offset: 0, count: 10 },
        Request::Write { fid, offset: 0, data: b"x" },
        lock_request(fid.0, LockKind::Write, "owner", 0),
    ] {
        let answer = client.call(HandleList::one(&f), request).done();
        assert_eq!(answer, Err(EBADF), "{}", request.name());
    }
    assert_eq!(fs::metadata(served.data().join("f")).unwrap().len(), 0);
}

#[test]
fn no_fid_is_made_or_freed_under_the_numbers_that_stand_for_handles() {
    let served = Served::plain("numbers");
    let mut client = served.client();
    let root = client.root.clone();
    let f = client.create(1, "f").handle;
    for newfid in [handle_fid(0), handle_fid(1), NOFID] {
        let open = client.open(&f, newfid.0, "", open::RDONLY, 0);
        assert!([Err(EBADF), Err(EINVAL)].contains(&open), "open as {newfid}: {open:?}");
        let names = NameList::default();
        let walk = Request::Walk { fid: Fid(1), newfid, names };
        let walk = client.call(HandleList::one(&f), walk).done();
        assert!([Err(EBADF), Err(EINVAL)].contains(&walk), "walk to {newfid}: {walk:?}");
    }
    // Whatever it answers: there is nothing to free.
    let _ = client.call(HandleList::one(&f), Request::Clunk { fid: handle_fid(0) }).done();
    // They go on standing for handles.
    client.stat(&f).unwrap();
    client.lookup(&root, "f").unwrap();
}

#[test]
fn an_open_that_cannot_have_its_fid_does_nothing() {
    let served = Served::plain("nofid");
    write_as_user(&served.data().join("f"), b"content");
    let mut client = served.client();
    let (root, f) = (client.root.clone(), client.find("f").unwrap().handle);
    client.open(&f, 1, "", open::RDONLY, 0).unwrap();
    let create = open::RDWR | open::CREATE;
    for newfid in [Fid(1), handle_fid(0), NOFID] {
        let made = client.open(&root, newfid.0, "new", create, 0o644);
        assert!([Err(EBADF), Err(EINVAL)].contains(&made), "{newfid}: {made:?}");
        assert!(!served.data().join("new").exists(), "{newfid}");
        let cut = client.open(&f, newfid.0, "", open::RDWR | open::TRUNC, 0);
        assert!([Err(EBADF), Err(EINVAL)].contains(&cut), "{newfid}: {cut:?}");
        assert_eq!(fs::read(served.data().join("f")).unwrap(), b"content", "{newfid}");
    }
    // These turn the fid itself into the open file, and a handle is none.
    let (fid, name) = (handle_fid(0), b"new");
    let lcreate = Request::Lcreate { fid, name, flags: create, mode: 0o644, gid: USER };
    assert!(client.call(HandleList::one(&root), lcreate).done().is_err());
    assert!(!served.data().join("new").exists());
    let lopen = Request::Lopen { fid, flags: open::RDWR | open::TRUNC };
    assert!(client.call(HandleList::one(&f), lopen).done().is_err());
    assert_eq!(fs::read(served.data().join("f")).unwrap(), b"content");
}

#[test]
fn a_second_handle_that_nothing_names_changes_nothing() {
    let served = Served::plain("second");
    write_as_user(&served.data().join("f"), b"");
    write_as_user(&served.data().join("g"), b"longer");
    let mut client = served.client();
    let (f, g) = (client.find("f").unwrap().handle, client.find("g").unwrap().handle);
    for (index, size) in [(0, 0), (1, 6)] {
        let stat = Request::Getattr { fid: handle_fid(index), mask: getattr::ALL };
        let frame = client.call(HandleList::two(&f, &g), stat);
        let Ok(Reply::Getattr(attributes)) = frame.plain() else { panic!("{frame:?}") };
        assert_eq!(attributes.size, size, "the one that the body names");
    }
    let stat = Request::Getattr { fid: Fid(0xffff_fff2), mask: getattr::ALL };
    assert_eq!(client.call(HandleList::two(&f, &g), stat).done(), Err(EBADF), "there is no third");
}

// ---- messages that are none ----

#[test]
fn headers_and_bodies_that_cannot_be_read_are_einval() {
    let served = Served::plain("unread");
    let mut client = served.client();
    let root = client.root.clone();
    let good =
        frame(900, HandleList::one(&root), ExtRequest::Lookup { fid: handle_fid(0), name: b"f" });
    // The number of handles stands behind identity, slot, sequence, remote_ops and lease_life.
    let at = 7 + 4 + 2 + 4 + 4 + 4;
    assert_eq!(good[at], 1);
    for handles in [3, 255] {
        let mut bytes = good.clone();
        bytes[at] = handles;
        assert_eq!(refused(&mut client, &bytes), EINVAL, "{handles} handles");
    }
    for len in 7..good.len() {
        let cut = resized(good[..len].to_vec());
        assert_eq!(refused(&mut client, &cut), EINVAL, "{len} of {} bytes", good.len());
    }
    let longer = resized([&good[..], b"x"].concat());
    assert_eq!(refused(&mut client, &longer), EINVAL, "a byte too many");
    let mut empty = good[..=at].to_vec();
    empty.extend([0, 0]);
    empty.extend(&good[at + 3 + root.len()..]);
    assert_eq!(refused(&mut client, &resized(empty)), EINVAL, "a handle of no bytes");
    let long = vec![1; HANDLE_MAX + 1];
    let mut bytes = good[..=at].to_vec();
    bytes.extend((long.len() as u16).to_le_bytes());
    bytes.extend(&long);
    bytes.extend(&good[at + 3 + root.len()..]);
    assert_eq!(refused(&mut client, &resized(bytes)), EINVAL, "a handle that is too long");
    for name in [&b"a/b"[..], b"a\0b"] {
        let bytes =
            frame(900, HandleList::one(&root), ExtRequest::Lookup { fid: handle_fid(0), name });
        assert_eq!(refused(&mut client, &bytes), EINVAL, "{name:?}");
    }
    client.mkdir("f").unwrap();
    client.send_bytes(&good);
    client.wait(Tag(900)).done().unwrap();
}

#[test]
fn types_that_nobody_knows_are_eopnotsupp() {
    let served = Served::plain("types");
    let mut client = served.client();
    let ping = frame(900, HandleList::NONE, ExtRequest::Ping);
    for kind in [1, 99, 128, 199, 201, 203, 237, 239, 241, 243, 249, 250, 254, 255] {
        let mut bytes = ping.clone();
        bytes[4] = kind;
        assert_eq!(refused(&mut client, &bytes), EOPNOTSUPP, "type {kind}");
    }
    client.ping();
}

#[test]
fn counts_that_no_reply_could_hold_are_einval() {
    let served = Served::plain("counts");
    let mut client = served.client();
    let root = client.root.clone();
    let msize = {
        let mut small = P9Channel::connect(served.tcp());
        small.begin(8192);
        small.session(client.id(), 1, 4, "x").unwrap();
        small.identity = IDENTITY;
        small.create(1, "f");
        small.write(1, 0, &[7; 7000]).unwrap();
        small.open(&root, 2, "", open::RDONLY, 0).unwrap();
        // Header, verifier, watermark, the number of leases and the count of what follows.
        let most = 8192 - 7 - 16 - 1 - 4;
        assert_eq!(small.read(1, 0, most).unwrap(), [7; 7000]);
        small.list(2, 0, most).unwrap();
        for count in [most + 1, 8192, u32::MAX] {
            assert_eq!(small.read(1, 0, count), Err(EINVAL), "{count}");
            assert_eq!(small.list(2, 0, count), Err(EINVAL), "{count}");
        }
        assert_eq!(small.getxattr(&root, "", u32::MAX), Err(EINVAL));
        8192
    };
    // Each channel has an msize of its own.
    client.list(2, 0, 2 * msize).unwrap();
    assert_eq!(client.read(1, 0, 2 * msize).unwrap().len(), 7000);
}

#[test]
fn sizes_outside_of_what_was_agreed_end_the_connection_and_no_other() {
    let served = Served::plain("sizes");
    let mut other = served.client();
    for size in [0u32, 6, 8193, u32::MAX] {
        let mut client = P9Channel::connect(served.tcp());
        client.begin(8192);
        client.session(crate::peer::fresh_id(), 0, 4, "x").unwrap();
        client.identify(IDENTITY, USER, "").unwrap();
        client.send_bytes(&size.to_le_bytes());
        client.send_bytes(&[232, 1, 0]);
        client.expect_closed();
        other.ping();
    }
    other.mkdir("d").unwrap();
}

#[test]
fn a_tag_that_is_in_use_ends_the_connection() {
    let served = crate::peer::Setup::new("tag").rules(crate::peer::SLOW).start();
    let mut client = served.client_of("x", USER, "slow");
    client.owe();
    let root = client.root.clone();
    let lookup = ExtRequest::Lookup { fid: handle_fid(0), name: b"f" };
    let bytes = frame(900, HandleList::one(&root), lookup);
    client.send_bytes(&[&bytes[..], &bytes].concat());
    client.expect_closed();
    assert!(client.reconnect().resumed, "its session is another matter");
}

#[test]
fn junk_in_whole_frames_is_answered_or_ends_the_connection_and_the_server_lives_on() {
    let served = Served::plain("junk");
    let mut witness = served.client();
    witness.create(1, "f");
    let mut dice = Dice::new(7);
    let mut answered = 0;
    for _ in 0..40 {
        let mut client = served.client();
        let root = client.root.clone();
        let good =
            frame(1, HandleList::one(&root), ExtRequest::Lookup { fid: handle_fid(0), name: b"f" });
        for tag in 0..60u16 {
            let mut bytes = good.clone();
            bytes.resize(good.len() + dice.below(60) as usize, dice.below(256) as u8);
            for _ in 0..1 + dice.below(20) {
                let place = 7 + dice.below(bytes.len() as u64 - 7) as usize;
                bytes[place] = dice.below(256) as u8;
            }
            let whole = [200, 202, 206, 208, 210, 212, 214, 216, 218, 220, 222, 224, 226, 228, 230];
            // A Tversion would end what the rest is sent to.
            bytes[4] = match dice.below(2) {
                0 => whole[dice.below(whole.len() as u64) as usize],
                _ => {
                    [12, 14, 24, 26, 30, 52, 70, 72, 74, 76, 110, 116, 118, 120][tag as usize % 14]
                }
            };
            bytes[5..7].copy_from_slice(&(1000 + tag).to_le_bytes());
            client.send_bytes(&resized(bytes));
            // Some of it may be no junk at all and wait for something.
            if client.readable(1000) && client.try_next().is_none() {
                break;
            }
            answered += 1;
        }
        witness.ping();
        assert_eq!(witness.stat_fid(1).unwrap().uid, USER);
    }
    assert!(answered > 1000, "only {answered} were answered");
}

// ---- others on the same server ----

#[test]
fn a_plain_client_works_beside_the_dialect_and_does_not_get_its_messages() {
    let served = Served::plain("beside");
    let mut client = served.client();
    client.create(1, "shared");
    let mut plain = P9Channel::connect(served.tcp());
    assert_eq!(plain.offer(1 << 16, b"9P2000.L").1, b"9P2000.L");
    let mut ask = |request: Request<'_>| {
        let mut bytes = Vec::new();
        request.encode(Tag(1), &mut bytes);
        plain.send_bytes(&bytes);
        plain.try_next().unwrap().0
    };
    let (fid, afid, uname, aname, n_uname) = (Fid(0), NOFID, &b""[..], &b"x"[..], USER);
    ask(Request::Attach { fid, afid, uname, aname, n_uname });
    let mut space = Vec::new();
    let names = NameList::pack([&b"shared"[..]], &mut space).unwrap();
    ask(Request::Walk { fid, newfid: Fid(1), names });
    ask(Request::Lopen { fid: Fid(1), flags: open::RDWR });
    for nth in 0..200u64 {
        let data = nth.to_le_bytes();
        client.write(1, nth * 16, &data).unwrap();
        let written = ask(Request::Write { fid: Fid(1), offset: nth * 16 + 8, data: &data });
        assert_eq!(Reply::decode(&written).unwrap().1, Reply::Write { count: 8 });
        let read = ask(Request::Read { fid: Fid(1), offset: nth * 16, count: 8 });
        assert_eq!(Reply::decode(&read).unwrap().1, Reply::Read { data: &data });
        assert_eq!(client.read(1, nth * 16 + 8, 8).unwrap(), data);
    }
    // The plain one's fids are its own, and so are its messages.
    let stat = Request::Getattr { fid: handle_fid(0), mask: getattr::ALL };
    assert_eq!(Reply::decode(&ask(stat)).unwrap().1, Reply::Error { ecode: EBADF });
    let mut bytes = Vec::new();
    ExtRequest::Ping.encode(Tag(2), &mut bytes);
    plain.send_bytes(&bytes);
    let frame = plain.try_next().unwrap();
    assert_eq!(Reply::decode(&frame.0).unwrap().1, Reply::Error { ecode: EOPNOTSUPP });
}

#[test]
fn a_link_target_that_no_reply_could_hold_is_enametoolong() {
    let served = Served::plain("target");
    let mut client = P9Channel::connect(served.tcp());
    client.begin(4096);
    client.session(crate::peer::fresh_id(), 0, 4, "x").unwrap();
    client.identify(IDENTITY, USER, "").unwrap();
    // Header, verifier, watermark, the number of leases and the length of the string.
    let most = 4096 - 7 - 16 - 1 - 2;
    for (len, expected) in
        [(most, Ok(())), (most + 1, Err(ENAMETOOLONG)), (4095, Err(ENAMETOOLONG))]
    {
        symlink("t".repeat(len), served.data().join(len.to_string())).unwrap();
        let link = client.find(&len.to_string()).unwrap().handle;
        let readlink = Request::Readlink { fid: handle_fid(0) };
        let frame = client.call(HandleList::one(&link), readlink);
        assert_eq!((frame.done(), frame.0.len() <= 4096), (expected, true), "{len} bytes");
    }
}
