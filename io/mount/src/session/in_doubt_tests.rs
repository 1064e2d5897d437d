//! Each kind of call, against a directory that is made up: what it looks like afterwards
//! decides what happened.

use super::*;
use crate::nodes::Nodes;
use crate::session::CallSpec;
use crate::session::identities::SessionIdentity;
use crate::session::socket::SocketInbox;
use ninep::dialect::encode_reply;
use ninep::{Qid, Timestamp};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

const DIRECTORY: u32 = 0o040_755;
const REGULAR: u32 = 0o100_644;
const LINK: u32 = 0o120_777;

/// A file that somebody finds.
#[derive(Clone)]
struct There {
    handle: Vec<u8>,
    attributes: Attributes,
    /// Its data, or where it points.
    data: Vec<u8>,
}

/// A file of the caller's, just made.
fn ours(mode: u32) -> There {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let ctime = Timestamp { sec: now.as_secs(), nsec: 0 };
    let qid = Qid { kind: 0, version: 1, path: 7 };
    let attributes = Attributes { mode, uid: 1, ctime, qid, ..Attributes::default() };
    There { handle: b"found".to_vec(), attributes, data: Vec::new() }
}

fn with_data(mode: u32, data: &[u8]) -> There {
    let mut file = ours(mode);
    file.attributes.size = data.len() as u64;
    file.data = data.to_vec();
    file
}

type Directory = BTreeMap<&'static str, There>;

/// Returns the result of a message that was begun when the export has this state, and the flags of
/// the opens that were made to find out.
fn settled<'a>(
    directory: Directory,
    handles: HandleList<'a>,
    message: impl Into<AnyRequest<'a>>,
) -> (InDoubtOutcome, Vec<u32>) {
    settled_ask(directory, CallSpec::once(handles, message))
}

fn settled_ask(directory: Directory, ask: CallSpec) -> (InDoubtOutcome, Vec<u32>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let opens = Arc::new(Mutex::new(Vec::new()));
    let seen = opens.clone();
    let server = std::thread::spawn(move || serve(&theirs, &directory, &seen));
    let mut call = ServerCall::new(SessionIdentity::known(1, 1, 1), ask, None, |_| {});
    call.since = Some(crate::clock::wall_time());
    let (files, nodes) = (OpenFiles::default(), Nodes::new(b"root", Duration::ZERO));
    let file = nodes.lookup(b"open", &Attributes::default());
    files.opened(files.reserve().unwrap(), file, SessionIdentity::known(1, 1, 1), open::WRONLY);
    let mut talk = Handshake::with(ours.into());
    let outcome = resolve(&files, &mut talk, &call).unwrap();
    drop(talk);
    server.join().unwrap();
    let opens = opens.lock().unwrap().clone();
    (outcome, opens)
}

fn serve(socket: &UnixStream, directory: &Directory, opens: &Mutex<Vec<u32>>) {
    let mut inbox = SocketInbox::new(1 << 16);
    // Waits, as the socket's own reading does not.
    let mut wait = || {
        use rustix::event::{PollFd, PollFlags, poll};
        poll(&mut [PollFd::new(socket, PollFlags::IN)], None).unwrap();
        inbox.fill(socket.as_fd()).ok()?;
        let mut out = Vec::new();
        while let Some(frame) = inbox.next().unwrap() {
            let (tag, _, request) = decode_request(frame).unwrap();
            let reply = reply(directory, opens, request);
            encode_reply(tag, Default::default(), &reply, &mut out);
        }
        rustix::io::write(socket, &out).ok()
    };
    while wait().is_some() {}
}

fn reply<'d>(
    directory: &'d Directory,
    opens: &Mutex<Vec<u32>>,
    request: AnyRequest<'_>,
) -> AnyReply<'d> {
    let absent = |errno: Errno| Reply::Error { ecode: errno.raw_os_error() as u32 }.into();
    let file = directory.get("open");
    match request {
        AnyRequest::Ext(ExtRequest::Lookup { name, .. }) => {
            match directory.get(std::str::from_utf8(name).unwrap()) {
                Some(There { handle, attributes, .. }) => {
                    ExtReply::Lookup { handle, attributes: *attributes }.into()
                }
                None => absent(Errno::NOENT),
            }
        }
        AnyRequest::Base(Request::Readlink { .. }) => {
            Reply::Readlink { target: &directory["name"].data }.into()
        }
        AnyRequest::Ext(ExtRequest::Open { flags, .. }) => {
            opens.lock().unwrap().push(flags);
            let attributes = Attributes::default();
            ExtReply::Open { handle: b"found", created: 0, attributes }.into()
        }
        AnyRequest::Base(Request::Getattr { .. }) => {
            Reply::Getattr(file.map_or(Attributes::default(), |file| file.attributes)).into()
        }
        AnyRequest::Base(Request::Read { offset, count, .. }) => {
            let data = &file.unwrap().data[offset as usize..];
            Reply::Read { data: &data[..data.len().min(count as usize)] }.into()
        }
        AnyRequest::Ext(ExtRequest::Getxattr { .. }) => match directory.get("xattr") {
            Some(There { data, .. }) => {
                ExtReply::Getxattr { length: data.len() as u32, data }.into()
            }
            None => absent(Errno::NODATA),
        },
        AnyRequest::Base(Request::Clunk { .. }) => Reply::Clunk.into(),
        other => panic!("nobody needs {other:?} for looking"),
    }
}

fn one(name: &'static str, file: There) -> Directory {
    Directory::from([(name, file)])
}

fn make(mode: u32, directory: Directory) -> InDoubtOutcome {
    let (fid, name, target) = (handle_fid(0), b"name", b"target");
    let message = ExtRequest::Mknode { fid, name, mode, rdev: 0, target };
    settled(directory, HandleList::one(b"dir"), message).0
}

#[test]
fn what_is_not_there_was_not_made() {
    assert_eq!(make(DIRECTORY, Directory::new()), InDoubtOutcome::NotExecuted);
}

#[test]
fn what_is_there_and_new_and_ours_was_made_by_the_call() {
    let there = ours(DIRECTORY);
    let made = InDoubtOutcome::Made(there.handle.clone(), there.attributes);
    assert_eq!(make(DIRECTORY, one("name", there)), made);
    let exists = InDoubtOutcome::Failed(Errno::EXIST);
    assert_eq!(make(DIRECTORY, one("name", ours(REGULAR))), exists, "of another type");
    let mut old = ours(DIRECTORY);
    old.attributes.ctime.sec -= 3600;
    assert_eq!(make(DIRECTORY, one("name", old)), exists, "an hour old");
    let mut others = ours(DIRECTORY);
    others.attributes.uid = 2;
    assert_eq!(make(DIRECTORY, one("name", others)), exists, "another user's");
}

#[test]
fn a_symbolic_link_is_ours_if_it_points_to_the_same() {
    let made = make(LINK, one("name", with_data(LINK, b"target")));
    assert!(matches!(made, InDoubtOutcome::Made(..)), "{made:?}");
    let made = make(LINK, one("name", with_data(LINK, b"elsewhere")));
    assert_eq!(made, InDoubtOutcome::Failed(Errno::EXIST));
}

#[test]
fn a_file_that_was_made_exclusively_is_opened_without_making_it() {
    let flags = open::RDWR | open::CREATE | open::EXCL | open::APPEND;
    let (fid, newfid) = (handle_fid(0), Fid(9));
    let message = ExtRequest::Open { fid, newfid, name: b"name", flags, mode: 0o644 };
    let settled = |directory| settled(directory, HandleList::one(b"dir"), message);
    assert_eq!(settled(Directory::new()), (InDoubtOutcome::NotExecuted, vec![]));
    let (outcome, opens) = settled(one("name", ours(REGULAR)));
    assert!(matches!(outcome, InDoubtOutcome::Opened(..)), "{outcome:?}");
    assert_eq!(opens, [open::RDWR | open::APPEND]);
    let full = one("name", with_data(REGULAR, b"somebody's"));
    assert_eq!(settled(full), (InDoubtOutcome::Failed(Errno::EXIST), vec![]));
}

#[test]
fn what_is_gone_was_removed() {
    let message = Request::Unlinkat { dirfid: handle_fid(0), name: b"name", flags: 0 };
    let settled = |directory| settled(directory, HandleList::one(b"dir"), message).0;
    assert_eq!(settled(Directory::new()), InDoubtOutcome::Done(Reply::Unlinkat));
    assert_eq!(settled(one("name", ours(REGULAR))), InDoubtOutcome::NotExecuted);
}

#[test]
fn what_lost_its_old_name_and_has_the_new_was_renamed() {
    let message = Request::Renameat {
        olddirfid: handle_fid(0),
        oldname: b"old",
        newdirfid: handle_fid(1),
        newname: b"new",
    };
    let settled = |directory| settled(directory, HandleList::two(b"dir", b"dir"), message).0;
    assert_eq!(settled(one("old", ours(REGULAR))), InDoubtOutcome::NotExecuted);
    assert_eq!(settled(one("new", ours(REGULAR))), InDoubtOutcome::Done(Reply::Renameat));
    assert_eq!(settled(Directory::new()), InDoubtOutcome::Failed(Errno::NOENT));
}

#[test]
fn a_hard_link_is_ours_if_it_is_the_file() {
    let message = Request::Link { dfid: handle_fid(0), fid: handle_fid(1), name: b"name" };
    let settled = |directory| settled(directory, HandleList::two(b"dir", b"found"), message).0;
    assert_eq!(settled(Directory::new()), InDoubtOutcome::NotExecuted);
    assert_eq!(settled(one("name", ours(REGULAR))), InDoubtOutcome::Done(Reply::Link));
    let mut other = ours(REGULAR);
    other.handle = b"other".to_vec();
    assert_eq!(settled(one("name", other)), InDoubtOutcome::Failed(Errno::EXIST));
}

#[test]
fn data_that_is_behind_what_the_file_had_was_appended() {
    let line: ExtRequest<'_> = ExtRequest::Append { fid: Fid(0), flags: 0, data: b"line\n" };
    let settled = |had: u64, data: &[u8]| {
        let mut ask = CallSpec::once(HandleList::NONE, line);
        let nodes = Nodes::new(b"root", Duration::ZERO);
        let node = nodes.lookup(b"open", &Attributes::default());
        ask.replayable = Some((node, had..had + 5));
        settled_ask(one("open", with_data(REGULAR, data)), ask).0
    };
    let there = |offset| InDoubtOutcome::DoneOwn(ExtReply::Append { offset, number: 0 });
    assert_eq!(settled(0, b"other\nline\n"), there(6));
    assert_eq!(settled(6, b"other\nline\n"), there(6));
    assert_eq!(settled(0, b"line\nother\n"), there(0), "others have appended since");
    assert_eq!(settled(5, b"line\nother\n"), InDoubtOutcome::NotExecuted, "it was there before");
    assert_eq!(settled(5, b"line\n"), InDoubtOutcome::NotExecuted);
    assert_eq!(settled(0, b"li"), InDoubtOutcome::NotExecuted);
    assert_eq!(settled(900, b"line\n"), there(0), "somebody has cut the file");
    let mut long = b"line\n".to_vec();
    long.resize(200_000, b'x');
    assert_eq!(settled(0, &long), there(0), "it takes several reads");
}

#[test]
fn an_extended_attribute_that_has_the_value_was_set_by_the_call() {
    let (fid, name, flags, data) = (handle_fid(0), b"user.a", XATTR_CREATE, b"value");
    let set = ExtRequest::Setxattr { fid, name, flags, data };
    let remove = ExtRequest::Removexattr { fid, name };
    let settled = |directory, message: ExtRequest<'static>| {
        settled(directory, HandleList::one(b"file"), message).0
    };
    assert_eq!(settled(Directory::new(), set), InDoubtOutcome::NotExecuted);
    let there = |value: &[u8]| one("xattr", with_data(REGULAR, value));
    assert_eq!(settled(there(b"value"), set), InDoubtOutcome::DoneOwn(ExtReply::Setxattr));
    assert_eq!(settled(there(b"others"), set), InDoubtOutcome::Failed(Errno::EXIST));
    assert_eq!(settled(there(b"value"), remove), InDoubtOutcome::NotExecuted);
    let removed = InDoubtOutcome::DoneOwn(ExtReply::Removexattr);
    assert_eq!(settled(Directory::new(), remove), removed);
}
