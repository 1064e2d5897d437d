//! Calls in doubt over a connection: questions go out as messages, and answers are made up.

use super::*;
use crate::clock;
use crate::nodes::Nodes;
use crate::session::CallSpec;
use crate::session::identities::SessionIdentity;
use crate::session::socket::SocketInbox;
use fuse::Errno;
use ninep::dialect::{AnyReply, AnyRequest, ExtRequest, HandleList, encode_reply, handle_fid};
use ninep::{Attributes, Fid, Reply, Request, open};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Resolves a call while the export has one file with this data, which is open for writing; nothing
/// has a name. Gives the outcome, and a fid that is free afterwards.
fn resolved(data: &[u8], ask: CallSpec) -> (InDoubtOutcome, Fid) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut call = ServerCall::new(SessionIdentity::known(1, 1, 1), ask, None, |_| {});
    call.since = Some(clock::wall_time());
    let (files, nodes) = (OpenFiles::default(), Nodes::new(b"root", Duration::ZERO));
    let file = nodes.lookup(b"open", &Attributes::default());
    files.opened(files.reserve().unwrap(), file, SessionIdentity::known(1, 1, 1), open::WRONLY);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| serve(&theirs, data));
        let mut talk = Handshake::with(ours.into());
        resolve(&files, &mut talk, &call).unwrap()
    });
    (outcome, files.reserve().unwrap())
}

/// Serves until the client closes the connection.
fn serve(socket: &UnixStream, file: &[u8]) {
    let mut inbox = SocketInbox::new(1 << 16);
    // Waits, as the socket's own reading does not.
    let mut turn = || {
        use rustix::event::{PollFd, PollFlags, poll};
        poll(&mut [PollFd::new(socket, PollFlags::IN)], None).unwrap();
        inbox.fill(socket.as_fd()).ok()?;
        let mut out = Vec::new();
        while let Some(frame) = inbox.next().unwrap() {
            let (tag, _, request) = decode_request(frame).unwrap();
            encode_reply(tag, Default::default(), &reply(file, request), &mut out);
        }
        rustix::io::write(socket, &out).ok()
    };
    while turn().is_some() {}
}

fn reply<'d>(file: &'d [u8], request: AnyRequest<'_>) -> AnyReply<'d> {
    let attributes = Attributes { size: file.len() as u64, ..Attributes::default() };
    match request {
        AnyRequest::Ext(ExtRequest::Lookup { .. }) => {
            Reply::Error { ecode: Errno::NOENT.raw_os_error() as u32 }.into()
        }
        AnyRequest::Ext(ExtRequest::Open { flags: open::RDONLY, .. }) => {
            ExtReply::Open { handle: b"open", created: 0, attributes }.into()
        }
        AnyRequest::Base(Request::Getattr { .. }) => Reply::Getattr(attributes).into(),
        AnyRequest::Base(Request::Read { offset, count, .. }) => {
            let data = &file[offset as usize..];
            Reply::Read { data: &data[..data.len().min(count as usize)] }.into()
        }
        AnyRequest::Base(Request::Clunk { .. }) => Reply::Clunk.into(),
        other => panic!("nobody needs {other:?} for looking"),
    }
}

#[test]
fn data_that_was_appended_is_found_by_several_reads_with_a_fid_that_is_free_again() {
    let line = ExtRequest::Append { fid: Fid(0), flags: 0, data: b"line\n" };
    let mut data = vec![b'x'; 150_000];
    let end = data.len() as u64;
    let ask = || {
        let mut ask = CallSpec::once(HandleList::NONE, line);
        let nodes = Nodes::new(b"root", Duration::ZERO);
        let node = nodes.lookup(b"open", &Attributes::default());
        ask.replayable = Some((node, 0..5));
        ask
    };
    let (outcome, free) = resolved(&data, ask());
    assert_eq!(outcome, InDoubtOutcome::NotExecuted);
    data.extend_from_slice(b"line\n");
    let there = ExtReply::Append { offset: end, number: 0 };
    let (outcome, free_again) = resolved(&data, ask());
    assert_eq!(outcome, InDoubtOutcome::Done(there.into()));
    assert_eq!(free, free_again, "the reader's fid was given back");
}

#[test]
fn what_is_gone_was_removed_and_its_caller_learns_that() {
    let message = Request::Unlinkat { dirfid: handle_fid(0), name: b"name", flags: 0 };
    let (outcome, _) = resolved(b"", CallSpec::once(HandleList::one(b"dir"), message));
    assert_eq!(outcome, InDoubtOutcome::Done(Reply::Unlinkat.into()));
    for (outcome, expected) in [(outcome, Ok(())), (InDoubtOutcome::Failed(17), Err(Errno::EXIST))]
    {
        let (told, heard) = std::sync::mpsc::channel();
        let ask = CallSpec::once(HandleList::one(b"dir"), message);
        let call = ServerCall::new(SessionIdentity::known(1, 1, 1), ask, None, move |answer| {
            told.send(answer.map(|_| ())).unwrap();
        });
        complete(call, outcome);
        assert_eq!(heard.recv().unwrap(), expected);
    }
}
