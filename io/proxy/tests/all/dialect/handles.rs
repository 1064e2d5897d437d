//! Handles: they name a file whatever happens to its names, to the connection and to the
//! server, and nobody can make one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use ninep::dialect::{ExtReply, ExtRequest, HANDLE_MAX, HandleList, handle_fid};
use ninep::{Fid, NameList, Request, getattr, open};

use crate::peer::errno::*;
use crate::peer::{
    Dice, IDENTITY, P9Channel, Served, Setup, USER, fresh_id, rename_request, until, write_as_user,
};

/// What a message on this handle answers.
fn stat(client: &mut P9Channel, handle: &[u8]) -> Result<(), u32> {
    client.stat(handle).map(drop)
}

#[test]
fn a_thousand_forged_handles_name_nothing() {
    let served = Served::plain("forged");
    write_as_user(&served.data().join("f"), b"");
    fs::create_dir(served.data().join("d")).unwrap();
    let mut client = served.client();
    let real = [client.find("f").unwrap().handle, client.find("d").unwrap().handle];
    let root = client.root.clone();
    let mut dice = Dice::new(1);
    for nth in 0..1000 {
        let from = [&real[0], &real[1], &root][nth % 3];
        let mut forged = from.clone();
        let place = dice.below(forged.len() as u64) as usize;
        match nth / 3 % 6 {
            0 | 1 => forged[place] ^= 1 << dice.below(8),
            2 => forged.truncate(place.max(1)),
            3 => forged.extend((0..1 + dice.below(40)).map(|_| dice.below(256) as u8)),
            4 => forged.iter_mut().skip(place).for_each(|byte| *byte = dice.below(256) as u8),
            // The end of one handle behind the beginning of another.
            _ => {
                let other = [&real[1], &root, &real[0]][nth % 3];
                forged.truncate(place);
                forged.extend(other.iter().skip(place));
                forged.push(0);
            }
        }
        if forged == *from {
            continue;
        }
        assert_eq!(stat(&mut client, &forged), Err(ESTALE), "{nth}: {forged:x?}");
        assert_eq!(client.lookup(&forged, "f").map(drop), Err(ESTALE), "{nth}: {forged:x?}");
    }
    for handle in real.iter().chain([&root]) {
        stat(&mut client, handle).unwrap();
    }
}

#[test]
fn every_flipped_bit_is_seen() {
    let served = Served::plain("bits");
    let mut client = served.client();
    let handle = client.create(1, "f").handle;
    for bit in 0..handle.len() * 8 {
        let mut forged = handle.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(stat(&mut client, &forged), Err(ESTALE), "bit {bit}");
    }
    for len in 1..handle.len() {
        assert_eq!(stat(&mut client, &handle[..len]), Err(ESTALE), "{len} bytes");
    }
    let mut long = handle.clone();
    long.resize(HANDLE_MAX, 0);
    assert_eq!(stat(&mut client, &long), Err(ESTALE));
}

#[test]
fn a_handle_of_another_export_or_another_server_is_stale() {
    let tables = "[[export]]\nname = \"x\"\ndir = \"@/data\"\n\
                  [[export]]\nname = \"y\"\ndir = \"@/data\"\n";
    let served = Setup::new("exports").tables(tables).start();
    write_as_user(&served.data().join("f"), b"");
    let (mut x, mut y) = (served.client(), served.client_of("y", USER, ""));
    let (of_x, of_y) = (x.find("f").unwrap().handle, y.find("f").unwrap().handle);
    let (x_root, y_root) = (x.root.clone(), y.root.clone());
    for (client, handle) in [(&mut x, &of_y), (&mut y, &of_x)] {
        assert_eq!(stat(client, handle), Err(ESTALE));
        assert_eq!(client.open(handle, 1, "", open::RDONLY, 0), Err(ESTALE));
    }
    assert_eq!(x.lookup(&y_root, "f").map(drop), Err(ESTALE));
    let rename = rename_request("f", "g");
    let answer = x.call(HandleList::two(&x_root, &y_root), rename).done();
    assert_eq!(answer, Err(ESTALE), "also as the second of two");
    assert!(served.data().join("f").exists());
    // Another server has another key, whatever the export's name and the file.
    let other = Served::plain("exports-other");
    let mut client = other.client();
    assert_eq!(stat(&mut client, &of_x), Err(ESTALE));
    assert_eq!(stat(&mut client, &x_root), Err(ESTALE));
}

#[test]
fn handles_stay_valid_when_the_server_is_started_again() {
    let mut served = Served::plain("restart");
    let mut client = served.client();
    let dir = client.mkdir("d").unwrap().handle;
    let f = client.open(&dir, 1, "f", open::RDWR | open::CREATE, 0o644).unwrap().file.handle;
    client.write(1, 0, b"content").unwrap();
    let key = served.dir.join("key");
    let kept = fs::metadata(&key).unwrap();
    assert_eq!((kept.len(), kept.permissions().mode() & 0o777), (32, 0o600));
    let root = client.root.clone();
    for _ in 0..2 {
        served.start_again();
        client.door = served.tcp();
        assert!(!client.reconnect().resumed);
        client.identify(IDENTITY, USER, "").unwrap();
        assert_eq!(client.root, root);
        client.open(&f, 1, "", open::RDONLY, 0).unwrap();
        assert_eq!(client.read(1, 0, 100).unwrap(), b"content");
        assert_eq!(client.lookup(&dir, "f").unwrap().handle, f);
    }
    // With another key they are nobody's.
    served.stop();
    fs::remove_file(&key).unwrap();
    served.start_again();
    client.door = served.tcp();
    client.reconnect();
    client.identify(IDENTITY, USER, "").unwrap();
    assert_eq!(stat(&mut client, &f), Err(ESTALE));
    assert_ne!(client.root, root);
}

/// A process that another test has just begun to start has a copy of what the proxy had open, and the
/// file is there until that is closed.
fn until_stale(client: &mut P9Channel, handle: &[u8]) {
    until("the handle is stale", || stat(client, handle) == Err(ESTALE));
}

#[test]
fn a_handle_follows_its_file_and_is_stale_once_that_is_gone() {
    if !crate::peer::root_here() {
        return;
    }
    let served = Served::plain("follow");
    let data = served.data();
    fs::create_dir(data.join("d")).unwrap();
    write_as_user(&data.join("f"), b"the file");
    let mut client = served.client();
    let f = client.find("f").unwrap().handle;
    fs::rename(data.join("f"), data.join("d/g")).unwrap();
    write_as_user(&data.join("f"), b"another");
    client.open(&f, 1, "", open::RDONLY, 0).unwrap();
    assert_eq!(client.read(1, 0, 100).unwrap(), b"the file");
    assert_ne!(client.find("f").unwrap().handle, f);
    client.clunk(1).unwrap();
    fs::remove_file(data.join("d/g")).unwrap();
    until_stale(&mut client, &f);
    // The inode's number may be used again; the handle is not that of the new file.
    for nth in 0..100 {
        write_as_user(&data.join(format!("n{nth}")), b"");
    }
    assert_eq!(stat(&mut client, &f), Err(ESTALE));
}

#[test]
fn the_handle_of_a_removed_directory_is_stale() {
    let served = Served::plain("rmdir");
    let mut client = served.client();
    let d = client.mkdir("d").unwrap().handle;
    client.stat(&d).unwrap();
    fs::remove_dir(served.data().join("d")).unwrap();
    until_stale(&mut client, &d);
    assert!(client.lookup(&d, "x").is_err());
    assert!(client.make(&d, "x", 0o040_755, 0, "").is_err());
}

#[test]
fn nothing_leads_out_of_the_export_not_even_a_directory_that_was_moved_out() {
    let served = Served::plain("outside");
    let outside = served.dir.join("outside");
    fs::create_dir(&outside).unwrap();
    let mut client = served.client();
    let root = client.root.clone();
    let mut space = Vec::new();
    let names = NameList::pack([&b".."[..], b".."], &mut space).unwrap();
    let walk = Request::Walk { fid: handle_fid(0), newfid: Fid(9), names };
    client.call(HandleList::one(&root), walk).done().unwrap();
    assert_eq!(client.stat_fid(9).unwrap().qid, client.stat(&root).unwrap().qid);
    fs::create_dir(served.data().join("d")).unwrap();
    let d = client.find("d").unwrap().handle;
    fs::rename(served.data().join("d"), outside.join("d")).unwrap();
    let above = client.lookup(&d, "..").map(drop);
    assert!(above.is_err(), "{above:?}");
}

// ---- where the backend has no handles: the path stands in for one ----

/// A file system in memory mounted within the export, unmounted at the end.
struct Below(PathBuf);

impl Below {
    fn mount(served: &Served) -> Option<Below> {
        let dir = served.data().join("below");
        fs::create_dir(&dir).unwrap();
        let mount = Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&dir).status();
        if !mount.is_ok_and(|status| status.success()) {
            crate::peer::skip("cannot mount a tmpfs");
            return None;
        }
        crate::peer::everybodys(&dir);
        Some(Below(dir))
    }
}

impl Drop for Below {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn files_of_another_file_system_below_the_export_have_handles_that_last() {
    if !crate::peer::root_here() {
        return;
    }
    let mut served = Served::plain("below");
    let Some(below) = Below::mount(&served) else { return };
    let mut client = served.client();
    let dir = client.find("below").unwrap();
    crate::peer::assert_as_stat_elsewhere(&dir.attributes, &below.0);
    let flags = open::RDWR | open::CREATE | open::EXCL;
    let sub = client.make(&dir.handle, "sub", 0o040_755, 0, "").unwrap().handle;
    let f = client.open(&sub, 1, "f", flags, 0o644).unwrap().file;
    client.write(1, 0, b"content").unwrap();
    // It knows of no reads that do not wait.
    assert_eq!(client.read(1, 0, 100).unwrap(), b"content");
    assert_eq!(client.lookup(&sub, "f").unwrap().handle, f.handle);
    assert_eq!(client.lookup(&sub, "..").unwrap().handle, dir.handle);
    client.open(&sub, 2, "", open::RDONLY, 0).unwrap();
    let listed = client.list_all(2, 0, 4096);
    let listed = listed.iter().find(|entry| entry.name == "f").unwrap().file.as_ref().unwrap();
    assert_eq!((&listed.handle, listed.attributes.size), (&f.handle, 7));
    served.start_again();
    client.door = served.tcp();
    client.reconnect();
    client.identify(IDENTITY, USER, "").unwrap();
    client.open(&f.handle, 1, "", open::RDONLY, 0).unwrap();
    assert_eq!(client.stat_fid(1).unwrap().size, 7);
    // Another file under the name is not the one that was meant.
    fs::rename(below.0.join("sub/f"), below.0.join("sub/g")).unwrap();
    assert_eq!(stat(&mut client, &f.handle), Err(ESTALE));
    write_as_user(&below.0.join("sub/f"), b"another");
    assert_eq!(stat(&mut client, &f.handle), Err(ESTALE));
    fs::rename(below.0.join("sub/g"), below.0.join("sub/f")).unwrap();
    stat(&mut client, &f.handle).unwrap();
    // Nor does a link on the way lead anywhere.
    fs::rename(below.0.join("sub"), below.0.join("moved")).unwrap();
    std::os::unix::fs::symlink("moved", below.0.join("sub")).unwrap();
    assert_eq!(stat(&mut client, &f.handle), Err(ESTALE));
}

#[test]
fn a_path_that_no_handle_has_room_for_is_enametoolong() {
    if !crate::peer::root_here() {
        return;
    }
    let served = Served::plain("deep");
    let Some(_below) = Below::mount(&served) else { return };
    let mut client = served.client();
    let mut dir = client.find("below").unwrap().handle;
    let name = "n".repeat(250);
    let mut depth = 0;
    let refused = loop {
        match client.make(&dir, &name, 0o040_755, 0, "") {
            Ok(made) => dir = made.handle,
            Err(errno) => break errno,
        }
        depth += 1;
        assert!(depth < 20, "a path of more than 4096 bytes");
    };
    assert_eq!((refused, depth), (ENAMETOOLONG, 16));
    // What is there already is listed, without a handle.
    client.open(&dir, 1, "", open::RDONLY, 0).unwrap();
    let listed = client.list_all(1, 0, 4096);
    let deepest = listed.iter().find(|entry| entry.name == name);
    assert!(deepest.is_none_or(|entry| entry.file.is_none()), "{deepest:?}");
}

#[test]
fn lists_and_lookups_and_opens_give_the_same_handle() {
    let served = Served::plain("same");
    let mut client = served.client();
    let root = client.root.clone();
    let made = client.create(1, "f").handle;
    client.link(&made, &root, "g").unwrap();
    client.open(&root, 2, "", open::RDONLY, 0).unwrap();
    let frame =
        client.call(HandleList::NONE, ExtRequest::List { fid: Fid(2), offset: 0, count: 4096 });
    let Ok(ExtReply::List { data }) = frame.own() else { panic!("{frame:?}") };
    let listed = ninep::dialect::ListEntries::new(data).map(Result::unwrap);
    let listed: Vec<_> = listed.filter_map(|entry| entry.file.map(|(h, _)| h.to_vec())).collect();
    assert_eq!(listed, [made.clone(), made.clone()], "two names, one file");
    assert_eq!(client.find("g").unwrap().handle, made);
    // Another session, another connection and another user call it the same.
    let mut other = P9Channel::connect(served.tcp());
    other.begin(8192);
    other.session(fresh_id(), 5, 1, "x").unwrap();
    other.identify(77, USER + 1, "job").unwrap();
    assert_eq!(other.find("f").unwrap().handle, made);
    let mask = getattr::ALL;
    other
        .call(HandleList::one(&made), Request::Getattr { fid: handle_fid(0), mask })
        .done()
        .unwrap();
}
