//! Each kind of call in doubt, against a directory that is made up: what it looks like afterwards
//! decides what happened.

use super::*;
use ninep::{Qid, Timestamp};
use std::cell::RefCell;
use std::collections::BTreeMap;

const DIRECTORY: u32 = 0o040_755;
const REGULAR: u32 = 0o100_644;
const LINK: u32 = 0o120_777;
/// When every call here was begun, in seconds.
const BEGUN: u64 = 1_700_000_000;
const EPERM: u32 = 1;

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
    let ctime = Timestamp { sec: BEGUN, nsec: 0 };
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
    settled_append(directory, handles, message, 0)
}

/// The same of a message about a file that had this many bytes.
fn settled_append<'a>(
    directory: Directory,
    handles: HandleList<'a>,
    message: impl Into<AnyRequest<'a>>,
    file_end: u64,
) -> (InDoubtOutcome, Vec<u32>) {
    let message = message.into();
    let header = RequestHeader {
        identity: 1,
        reply_slot: 3,
        sequence: 9,
        handles,
        ..RequestHeader::SESSION
    };
    let reader =
        InDoubt::appends_to(&message).map(|_| InDoubtReader { handle: b"open", fid: Fid(70) });
    let facts = InDoubtFacts {
        uid: 1,
        since: Time::ZERO + Nanos::from_secs(BEGUN),
        file_end,
        reader,
        read_max: READ_MAX,
    };
    let (mut call, opens) = (InDoubt::new(header, message, facts), RefCell::default());
    while let Some((header, question)) = call.question() {
        assert_eq!((header.identity, header.reply_slot, header.sequence), (1, NOSLOT, 0));
        let answer = reply(&directory, &opens, question);
        call.answered(answer);
    }
    (call.into_outcome(), opens.into_inner())
}

fn reply<'d>(
    directory: &'d Directory,
    opens: &RefCell<Vec<u32>>,
    request: AnyRequest<'_>,
) -> Result<AnyReply<'d>, u32> {
    let file = directory.get("open");
    Ok(match request {
        AnyRequest::Ext(ExtRequest::Lookup { name, .. }) => {
            match directory.get(std::str::from_utf8(name).unwrap()) {
                Some(There { handle, attributes, .. }) => {
                    ExtReply::Lookup { handle, attributes: *attributes }.into()
                }
                None => return Err(ENOENT),
            }
        }
        AnyRequest::Base(Request::Readlink { .. }) => {
            Reply::Readlink { target: &directory["name"].data }.into()
        }
        AnyRequest::Ext(ExtRequest::Open { flags, .. }) => {
            opens.borrow_mut().push(flags);
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
            None => return Err(ENODATA),
        },
        AnyRequest::Base(Request::Clunk { .. }) => Reply::Clunk.into(),
        other => panic!("nobody needs {other:?} for looking"),
    })
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
    assert_eq!(make(DIRECTORY, Directory::new()), NotExecuted);
}

#[test]
fn what_is_there_and_new_and_ours_was_made_by_the_call() {
    let there = ours(DIRECTORY);
    let made = Made(there.handle.clone(), there.attributes);
    assert_eq!(make(DIRECTORY, one("name", there)), made);
    let exists = Failed(EEXIST);
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
    assert!(matches!(made, Made(..)), "{made:?}");
    let made = make(LINK, one("name", with_data(LINK, b"elsewhere")));
    assert_eq!(made, Failed(EEXIST));
}

#[test]
fn a_file_that_was_made_exclusively_is_opened_without_making_it() {
    let flags = open::RDWR | open::CREATE | open::EXCL | open::APPEND;
    let (fid, newfid) = (handle_fid(0), Fid(9));
    let message = ExtRequest::Open { fid, newfid, name: b"name", flags, mode: 0o644 };
    let settled = |directory| settled(directory, HandleList::one(b"dir"), message);
    assert_eq!(settled(Directory::new()), (NotExecuted, vec![]));
    let (outcome, opens) = settled(one("name", ours(REGULAR)));
    assert!(matches!(outcome, Opened(..)), "{outcome:?}");
    assert_eq!(opens, [open::RDWR | open::APPEND]);
    let full = one("name", with_data(REGULAR, b"somebody's"));
    assert_eq!(settled(full), (Failed(EEXIST), vec![]));
}

#[test]
fn what_is_gone_was_removed() {
    let message = Request::Unlinkat { dirfid: handle_fid(0), name: b"name", flags: 0 };
    let settled = |directory| settled(directory, HandleList::one(b"dir"), message).0;
    assert_eq!(settled(Directory::new()), Done(Reply::Unlinkat.into()));
    assert_eq!(settled(one("name", ours(REGULAR))), NotExecuted);
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
    assert_eq!(settled(one("old", ours(REGULAR))), NotExecuted);
    assert_eq!(settled(one("new", ours(REGULAR))), Done(Reply::Renameat.into()));
    assert_eq!(settled(Directory::new()), Failed(ENOENT));
}

#[test]
fn a_hard_link_is_ours_if_it_is_the_file() {
    let message = Request::Link { dfid: handle_fid(0), fid: handle_fid(1), name: b"name" };
    let settled = |directory| settled(directory, HandleList::two(b"dir", b"found"), message).0;
    assert_eq!(settled(Directory::new()), NotExecuted);
    assert_eq!(settled(one("name", ours(REGULAR))), Done(Reply::Link.into()));
    let mut other = ours(REGULAR);
    other.handle = b"other".to_vec();
    assert_eq!(settled(one("name", other)), Failed(EEXIST));
}

#[test]
fn data_that_is_behind_what_the_file_had_was_appended() {
    let line: ExtRequest<'_> = ExtRequest::Append { fid: Fid(0), flags: 0, data: b"line\n" };
    let settled = |had: u64, data: &[u8]| {
        settled_append(one("open", with_data(REGULAR, data)), HandleList::NONE, line, had).0
    };
    let there = |offset| Done(ExtReply::Append { offset, number: 0 }.into());
    assert_eq!(settled(0, b"other\nline\n"), there(6));
    assert_eq!(settled(6, b"other\nline\n"), there(6));
    assert_eq!(settled(0, b"line\nother\n"), there(0), "others have appended since");
    assert_eq!(settled(5, b"line\nother\n"), NotExecuted, "it was there before");
    assert_eq!(settled(5, b"line\n"), NotExecuted);
    assert_eq!(settled(0, b"li"), NotExecuted);
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
    assert_eq!(settled(Directory::new(), set), NotExecuted);
    let there = |value: &[u8]| one("xattr", with_data(REGULAR, value));
    assert_eq!(settled(there(b"value"), set), Done(ExtReply::Setxattr.into()));
    assert_eq!(settled(there(b"others"), set), Failed(EEXIST));
    assert_eq!(settled(there(b"value"), remove), NotExecuted);
    let removed = Done(ExtReply::Removexattr.into());
    assert_eq!(settled(Directory::new(), remove), removed);
}

#[test]
fn a_question_that_fails_fails_the_call_and_nothing_is_made_again() {
    let message = Request::Unlinkat { dirfid: handle_fid(0), name: b"name", flags: 0 };
    let header = RequestHeader { handles: HandleList::one(b"dir"), ..RequestHeader::SESSION };
    let facts = InDoubtFacts { uid: 1, since: Time::ZERO, file_end: 0, reader: None, read_max: 1 };
    let outcome = |answer: Result<AnyReply<'_>, u32>| {
        let mut call = InDoubt::new(header, message.into(), facts);
        assert!(call.question().is_some());
        call.answered(answer);
        assert!(call.question().is_none());
        call.into_outcome()
    };
    assert_eq!(outcome(Err(EPERM)), Failed(EPERM));
    assert_eq!(outcome(Ok(Reply::Clunk.into())), Failed(EPROTO), "the answer to something else");
}

#[test]
fn an_append_to_a_file_that_cannot_be_read_fails() {
    let line: ExtRequest<'_> = ExtRequest::Append { fid: Fid(0), flags: 0, data: b"line" };
    let facts = InDoubtFacts { uid: 1, since: Time::ZERO, file_end: 0, reader: None, read_max: 1 };
    let attributes = Attributes { size: 4, ..Attributes::default() };
    let mut call = InDoubt::new(RequestHeader::SESSION, line.into(), facts);
    call.answered(Ok(Reply::Getattr(attributes).into()));
    assert_eq!(call.into_outcome(), Failed(EIO), "there is no other fid");
    let reader = Some(InDoubtReader { handle: b"open", fid: Fid(7) });
    let mut call =
        InDoubt::new(RequestHeader::SESSION, line.into(), InDoubtFacts { reader, ..facts });
    call.answered(Ok(Reply::Getattr(attributes).into()));
    call.answered(Ok(ExtReply::Open { handle: b"open", created: 0, attributes }.into()));
    call.answered(Err(EIO));
    let clunk: AnyRequest<'_> = Request::Clunk { fid: Fid(7) }.into();
    assert_eq!(call.question().map(|(_, request)| request), Some(clunk), "the reader is closed");
    call.answered(Ok(Reply::Clunk.into()));
    assert_eq!(call.into_outcome(), Failed(EIO));
}

#[test]
fn space_that_was_cut_out_once_or_not_at_all_looks_the_same() {
    let cut = ExtRequest::Allocate { fid: Fid(0), mode: 0, offset: 0, length: 1 };
    assert_eq!(settled(Directory::new(), HandleList::NONE, cut).0, Failed(EIO));
}

/// What one read brings at most.
const READ_MAX: u32 = 65_000;
