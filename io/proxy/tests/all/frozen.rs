//! What is being executed when its connection is lost: waited for before the session goes
//! on. On a file system of the test's own that is frozen for the time, where every change
//! hangs; it is small as well, and fills up.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ninep::dialect::{AnyRequest, ExtReply, ExtRequest, HandleList, RequestHeader, handle_fid};
use ninep::{Fid, LOCK_BLOCK, LockKind, LockStatus, Reply, Request, Tag, open};
use session::client::CallId;
use testkit::alone;

use crate::peer::errno::{EBADF, ENOSPC};
use crate::peer::{
    P9Channel, P9Client, Served, Setup, fresh_id, open_request, opened, root_here, skip, until,
};

/// An ext4 in a file, mounted.
struct Image {
    dir: PathBuf,
    file: PathBuf,
}

fn run(command: &str, args: &[&str]) -> Result<(), String> {
    let output =
        Command::new(command).args(args).output().map_err(|e| format!("{command}: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{command} {args:?}: {said}")) }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are text")
}

impl Image {
    /// `None`, said aloud, where there are no loop devices to mount.
    fn mount(name: &str) -> Option<Image> {
        if !root_here() {
            return None;
        }
        let place =
            |end| std::env::temp_dir().join(format!("sluice-{}-{name}{end}", std::process::id()));
        let image = Image { dir: place(""), file: place(".img") };
        fs::create_dir_all(&image.dir).unwrap();
        fs::File::create(&image.file).unwrap().set_len(16 << 20).unwrap();
        let mounted = run("mkfs.ext4", &["-q", "-F", text(&image.file)]).and_then(|()| {
            run("mount", &["-t", "ext4", "-o", "loop", text(&image.file), text(&image.dir)])
        });
        if let Err(why) = mounted {
            skip(&why);
            return None;
        }
        crate::peer::everybodys(&image.dir);
        Some(image)
    }

    /// Sends a request that is being executed when this returns: from now on whatever would change
    /// the file system waits.
    fn hangs<'r>(
        &self,
        client: &mut P9Channel,
        handles: HandleList<'_>,
        request: impl Into<AnyRequest<'r>>,
    ) -> CallId {
        run("fsfreeze", &["-f", text(&self.dir)]).unwrap();
        let ticket = client.send_once(handles, request);
        until("it hangs", || hanging() > 0);
        ticket
    }

    /// The same of a client of 9P2000.L.
    fn hangs_plain(&self, client: &mut P9Client, request: &Request<'_>) -> Tag {
        run("fsfreeze", &["-f", text(&self.dir)]).unwrap();
        let tag = client.send(request);
        until("it hangs", || hanging() > 0);
        tag
    }

    fn thaw(&self) {
        run("fsfreeze", &["-u", text(&self.dir)]).unwrap();
    }

    fn serve(&self, name: &str) -> Served {
        let tables = format!("[[export]]\nname = \"x\"\ndir = \"{}\"\n", text(&self.dir));
        Setup::new(name).tables(&tables).start()
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // It fails where nothing is frozen any more.
        let _ = run("fsfreeze", &["-u", text(&self.dir)]);
        let _ = run("umount", &["-l", text(&self.dir)]);
        let _ = fs::remove_dir(&self.dir);
        let _ = fs::remove_file(&self.file);
    }
}

/// How many threads of this process wait in a system call and cannot be interrupted. Each test is
/// alone in its process, so that these are its own.
fn hanging() -> usize {
    let hangs = |task: std::io::Result<fs::DirEntry>| -> std::io::Result<bool> {
        let task = task?.path();
        let stat = fs::read_to_string(task.join("stat"))?;
        let waits = stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('D'));
        // One that waits for a page of the program is in none: it has no number here.
        let call = fs::read_to_string(task.join("syscall"))?;
        let number = call.split(' ').next().and_then(|word| word.parse::<u32>().ok());
        Ok(waits && number.is_some())
    };
    let hangs = fs::read_dir("/proc/self/task").unwrap().map(hangs);
    hangs.filter(|hangs| matches!(hangs, Ok(true))).count()
}

/// Does `body` in a process of its own, as [`alone`] does, with a file system, a server of it and
/// a client; not at all, said aloud, where none can be mounted.
fn on_image(test: &str, name: &str, body: impl FnOnce(&Image, &Served, P9Channel)) {
    alone(module_path!(), test, || {
        let Some(image) = Image::mount(name) else { return };
        let served = image.serve(&format!("{name}-server"));
        body(&image, &served, served.client());
    });
}

fn mkdir(name: &str) -> ExtRequest<'_> {
    let (fid, name) = (handle_fid(0), name.as_bytes());
    ExtRequest::Mknode { fid, name, mode: 0o040_755, rdev: 0, target: b"" }
}

#[test]
fn a_session_goes_on_only_after_what_its_lost_connection_had_executing() {
    on_image(
        "a_session_goes_on_only_after_what_its_lost_connection_had_executing",
        "frozen",
        |image, served, mut client| {
            let root = client.root.clone();
            let ticket = image.hangs(&mut client, HandleList::one(&root), mkdir("d"));
            client.lose();
            // The same channel over another connection.
            let mut next = served.connect();
            let id = client.id();
            let answer = std::thread::scope(|scope| {
                let session = scope.spawn(|| next.session(id, 0, 64, "x"));
                // It cannot be told from a reply that is late; so others must be served meanwhile.
                let mut other = served.connect();
                other.session(fresh_id(), 0, 64, "x").unwrap();
                for _ in 0..100 {
                    other.ping();
                }
                let early = session.is_finished();
                image.thaw();
                (early, session.join().unwrap().unwrap())
            });
            assert!(!answer.0, "answered while the mkdir was executing");
            assert!(answer.1.resumed);
            assert!(image.dir.join("d").exists(), "executed by the time of the answer");
            drop(next);
            // And its reply is remembered, though the connection was lost before there was one.
            fs::remove_dir(image.dir.join("d")).unwrap();
            assert!(client.reconnect().resumed);
            client.again();
            client.wait(ticket.tag).done().unwrap();
            assert!(!image.dir.join("d").exists());
        },
    );
}

#[test]
fn who_gave_up_waiting_for_a_channel_is_not_in_the_way_of_the_next() {
    on_image(
        "who_gave_up_waiting_for_a_channel_is_not_in_the_way_of_the_next",
        "line",
        |image, served, mut client| {
            let root = client.root.clone();
            let ticket = image.hangs(&mut client, HandleList::one(&root), mkdir("d"));
            client.lose();
            let (id, slots, aname) = (client.id(), 64, &b"x"[..]);
            let session = ExtRequest::Session { id, channel: 0, slots, aname };
            // Some wait in line and go, some stay in it and are overtaken.
            let mut line: Vec<_> = (0..6).map(|_| served.connect()).collect();
            for (nth, connection) in line.iter_mut().enumerate() {
                connection.send_as(Tag(1), &RequestHeader::SESSION, &session.into());
                if nth % 2 == 0 {
                    connection.lose();
                }
            }
            // Several round trips: what was sent before them has been read.
            served.client().ping();
            let mut last = served.connect();
            last.send_as(Tag(1), &RequestHeader::SESSION, &session.into());
            served.client().ping();
            assert!(!last.readable(0), "the mkdir is still executing");
            image.thaw();
            let frame = last.wait(Tag(1));
            assert!(matches!(frame.own(), Ok(ExtReply::Session { resumed: 1, .. })), "{frame:?}");
            line.iter_mut().for_each(P9Channel::expect_closed);
            assert!(image.dir.join("d").exists());
            assert!(client.reconnect().resumed);
            client.again();
            client.wait(ticket.tag).done().unwrap();
        },
    );
}

#[test]
fn a_create_that_was_executing_when_its_connection_was_lost_has_its_fid() {
    on_image(
        "a_create_that_was_executing_when_its_connection_was_lost_has_its_fid",
        "create",
        |image, served, mut client| {
            client.create(1, "from");
            client.write(1, 0, b"content").unwrap();
            let root = client.root.clone();
            let flags = open::RDWR | open::CREATE | open::EXCL;
            let create = open_request(2, "f", flags, 0o644);
            let create = image.hangs(&mut client, HandleList::one(&root), create);
            client.lose();
            // The server has seen the end of a connection once it serves another that came later.
            served.client().ping();
            image.thaw();
            assert!(client.reconnect().resumed);
            client.again();
            let answer = opened(&client.wait(create.tag)).unwrap();
            assert!(answer.created);
            client.copy((1, 0), (2, 0), 7).unwrap();
            assert_eq!(fs::read(image.dir.join("f")).unwrap(), b"content");
            client.clunk(2).unwrap();
        },
    );
}

#[test]
fn a_clunk_and_a_link_that_were_executing_when_their_connection_was_lost_are_done() {
    on_image(
        "a_clunk_and_a_link_that_were_executing_when_their_connection_was_lost_are_done",
        "clunk",
        |image, served, mut client| {
            let root = client.root.clone();
            client.create(1, "f");
            client.open(&root, 2, "", open::RDONLY, 0).unwrap();
            // The directory by one fid, the file by another of the session's.
            let link = Request::Link { dfid: Fid(2), fid: Fid(1), name: b"second" };
            let link = image.hangs(&mut client, HandleList::NONE, link);
            let clunk = client.send(HandleList::NONE, Request::Clunk { fid: Fid(1) });
            client.lose();
            served.client().ping();
            image.thaw();
            assert!(client.reconnect().resumed);
            client.again();
            client.wait(link.tag).done().unwrap();
            assert!(image.dir.join("second").exists());
            // Whether it was done before or is now: the fid is free.
            let _ = client.wait(clunk).done();
            assert_eq!(client.stat_fid(1), Err(EBADF));
        },
    );
}

#[test]
fn an_append_for_which_there_is_no_space_leaves_nothing_behind() {
    on_image(
        "an_append_for_which_there_is_no_space_leaves_nothing_behind",
        "full",
        |image, _, mut client| {
            client.create(1, "f");
            let block = |nth: u64| vec![nth as u8; 700_000];
            let full = (0..30).find(|nth| match client.append(1, &block(*nth)) {
                Ok((offset, number)) => {
                    assert_eq!((offset, number), (nth * 700_000, nth + 1));
                    false
                }
                Err(errno) => errno == ENOSPC,
            });
            let full = full.expect("16 MiB have an end");
            let content = fs::read(image.dir.join("f")).unwrap();
            assert_eq!(content.len() as u64, full * 700_000, "whole or not at all");
            assert!(
                (0..full).all(|nth| content[nth as usize * 700_000..].starts_with(&block(nth)))
            );
            // What is small enough still fits, right behind it.
            assert_eq!(client.append(1, b"small").unwrap().0, full * 700_000);
        },
    );
}

#[test]
fn what_hangs_on_one_channel_holds_up_no_other_of_the_session() {
    on_image(
        "what_hangs_on_one_channel_holds_up_no_other_of_the_session",
        "thawed",
        |image, _, mut zero| {
            let mut one = zero.channel(1);
            let root = zero.root.clone();
            fs::write(image.dir.join("f"), "content").unwrap();
            one.find("f").unwrap();
            let ticket = image.hangs(&mut zero, HandleList::one(&root), mkdir("d"));
            one.find("f").unwrap();
            one.ping();
            zero.ping();
            assert!(!zero.came(ticket.tag));
            assert!(one.reconnect().resumed, "a channel with nothing under way");
            one.find("f").unwrap();
            image.thaw();
            zero.wait(ticket.tag).done().unwrap();
            assert!(image.dir.join("d").exists());
        },
    );
}

/// Ends the session of a client that holds a lock while its write hangs; others must not have the
/// lock before that has ended, and then read what it wrote.
fn locks_outlast_a_write(
    image: &Image,
    served: &Served,
    end: impl FnOnce(P9Client) -> Option<P9Client>,
) {
    let (write, all) = (LockKind::Write, (0, 0));
    let (mut holder, mut other) = (served.plain_client(), served.plain_client());
    holder.make(1, "f");
    other.open_name(1, "f", open::RDWR).unwrap();
    assert_eq!(holder.lock(1, write, all, ("a", 1)), Ok(LockStatus::Success));
    image.hangs_plain(&mut holder, &Request::Write { fid: Fid(1), offset: 0, data: b"old" });
    let kept = end(holder);
    // The server has seen the end of a connection once it serves another that came later.
    let mut again = served.plain_client();
    again.open_name(1, "f", open::RDWR).unwrap();
    assert_eq!(other.lock(1, write, all, ("b", 1)), Ok(LockStatus::Blocked));
    // The owner that held it has it no longer either: the write is not of its session.
    assert_eq!(again.lock(1, write, all, ("a", 1)), Ok(LockStatus::Blocked));
    let waits = other.send(&P9Client::lock_request(1, write, all, ("b", 1), LOCK_BLOCK));
    let behind = other.send(&Request::Getattr { fid: Fid(1), mask: 1 });
    assert_eq!(other.next().tag(), behind, "granted while the write was being executed");
    assert!(!other.readable(0));
    image.thaw();
    assert_eq!(other.wait(waits).reply(), Ok(Reply::Lock { status: LockStatus::Success }));
    assert_eq!(other.read(1, 0, 10).unwrap(), b"old");
    drop(kept);
}

#[test]
fn a_lock_outlasts_the_connection_of_its_holder_until_its_write_has_ended() {
    on_image(
        "a_lock_outlasts_the_connection_of_its_holder_until_its_write_has_ended",
        "fenced",
        |image, served, _| {
            locks_outlast_a_write(image, served, |holder| {
                drop(holder);
                None
            });
        },
    );
}

#[test]
fn a_lock_outlasts_the_session_of_its_holder_until_its_write_has_ended() {
    on_image(
        "a_lock_outlasts_the_session_of_its_holder_until_its_write_has_ended",
        "refenced",
        |image, served, _| {
            locks_outlast_a_write(image, served, |mut holder| {
                holder.version(1 << 20);
                Some(holder)
            });
        },
    );
}
