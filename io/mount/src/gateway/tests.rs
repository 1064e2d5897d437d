//! The gateway between a session and a server that the tests play themselves.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use fuse::Errno;
use ninep::dialect::{
    AnyReply, AnyRequest, ExtReply, ExtRequest, HandleList, RequestHeader, decode_reply,
    encode_request, handle_fid,
};
use ninep::{Attributes, Fid, QTDIR, Qid, Qids, Reply, Request, Tag, getattr};

use super::peer::{UpstreamClient, UpstreamError, UpstreamOp, read_frame};
use super::*;

const MSIZE: u32 = 1 << 16;
const ROOT: Qid = Qid { kind: QTDIR, version: 0, path: 1 };
const FILE: Qid = Qid { kind: 0, version: 0, path: 7 };
/// Only a failure waits for so long.
const PATIENCE: Duration = Duration::from_secs(120);

/// The server's end of a connection.
struct Server(UnixStream);

impl Server {
    fn pair() -> (OwnedFd, Server) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_read_timeout(Some(PATIENCE)).unwrap();
        (ours.into(), Server(theirs))
    }

    fn next(&mut self) -> Vec<u8> {
        read_frame(&mut self.0, MSIZE).unwrap()
    }

    fn tell(&mut self, tag: Tag, reply: Reply<'_>) {
        let mut out = Vec::new();
        reply.encode(tag, &mut out);
        self.0.write_all(&out).unwrap();
    }

    /// Answers the next message, which `reply` looks at.
    fn answer(&mut self, reply: impl FnOnce(Request<'_>) -> Reply<'static>) {
        let frame = self.next();
        let (tag, request) = Request::decode(&frame).unwrap();
        let reply = reply(request);
        self.tell(tag, reply);
    }

    fn ended(mut self) -> bool {
        matches!(self.0.read(&mut [0; 64]), Ok(0) | Err(_))
    }
}

/// The session's end of a channel.
struct Link(BufReader<File>, File);

impl Link {
    fn of(socket: OwnedFd) -> Link {
        let stream = UnixStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let socket = OwnedFd::from(stream);
        Link(BufReader::new(File::from(socket.try_clone().unwrap())), File::from(socket))
    }

    fn ask<'a>(&mut self, tag: u16, handle: &'a [u8], request: impl Into<AnyRequest<'a>>) {
        let handles = if handle.is_empty() { HandleList::NONE } else { HandleList::one(handle) };
        let header = RequestHeader { identity: 0, handles, ..RequestHeader::SESSION };
        let mut out = Vec::new();
        encode_request(Tag(tag), &header, &request.into(), &mut out);
        self.1.write_all(&out).unwrap();
    }

    /// The next reply's frame; `None` if the channel has ended.
    fn frame(&mut self) -> Option<Vec<u8>> {
        read_frame(&mut self.0, MSIZE).ok()
    }

    /// The next reply, as text.
    fn told(&mut self) -> (u16, String) {
        let frame = self.frame().unwrap();
        let (tag, _, reply) = decode_reply(&frame).unwrap();
        (tag.0, format!("{reply:?}"))
    }
}

fn session(id: u128, channel: u16) -> ExtRequest<'static> {
    ExtRequest::Session { id, channel, slots: 64, aname: b"x" }
}

fn attach(request: Request<'_>) -> Reply<'static> {
    assert!(matches!(request, Request::Attach { aname: b"/srv/x", .. }), "{request:?}");
    Reply::Attach { qid: ROOT }
}

fn attributes(qid: Qid) -> Reply<'static> {
    Reply::Getattr(Attributes { valid: getattr::ALL, qid, ..Attributes::default() })
}

/// A gateway whose first channel is bound and has one identity. Gives the root's handle too.
fn begun() -> (Gateway, Server, Link, Vec<u8>) {
    let gateway = Gateway::default();
    let (socket, mut server) = Server::pair();
    let mut link = Link::of(gateway.begin(socket, MSIZE, "/srv/x", MSIZE).unwrap());
    link.ask(1, b"", session(9, 0));
    server.answer(attach);
    let frame = link.frame().unwrap();
    let root = match decode_reply(&frame).unwrap() {
        (Tag(1), _, AnyReply::Ext(ExtReply::Session { resumed: 0, root, .. })) => root.to_vec(),
        other => panic!("{other:?}"),
    };
    let groups = Default::default();
    let identity =
        ExtRequest::Identity { identity: 0, uid: 1000, gid: 100, groups, job: b"", proof: b"" };
    link.ask(2, b"", identity);
    server.answer(|request| {
        assert!(matches!(request, Request::Attach { n_uname: 1000, .. }), "{request:?}");
        Reply::Attach { qid: ROOT }
    });
    assert!(link.told().1.contains("requests: 64"));
    (gateway, server, link, root)
}

fn error(errno: Errno) -> String {
    let ecode = errno.raw_os_error() as u32;
    format!("{:?}", AnyReply::Base(Reply::Error { ecode }))
}

#[test]
fn a_look_up_is_a_walk_and_a_getattr_and_its_fid_is_used_again() {
    let (_gateway, mut server, mut link, root) = begun();
    link.ask(3, &root, ExtRequest::Lookup { fid: handle_fid(0), name: b"file" });
    let mut walked = Fid(0);
    server.answer(|request| {
        let Request::Walk { newfid, mut names, .. } = request else { panic!("{request:?}") };
        assert_eq!((names.next(), names.next()), (Some(&b"file"[..]), None));
        walked = newfid;
        Reply::Walk { qids: Qids::from_iter([FILE]) }
    });
    server.answer(|request| {
        assert_eq!(request, Request::Getattr { fid: walked, mask: getattr::BASIC });
        attributes(FILE)
    });
    let frame = link.frame().unwrap();
    let (_, _, reply) = decode_reply(&frame).unwrap();
    let AnyReply::Ext(ExtReply::Lookup { handle, attributes: told }) = reply else {
        panic!("{reply:?}")
    };
    assert_eq!(told.valid, getattr::BASIC, "bits that mean more in the dialect are left out");
    link.ask(4, handle, Request::Readlink { fid: handle_fid(0) });
    server.answer(|request| {
        assert_eq!(request, Request::Readlink { fid: walked });
        Reply::Readlink { target: b"there" }
    });
    assert_eq!(link.told().0, 4);
}

#[test]
fn a_server_that_hangs_keeps_no_ping_waiting_and_a_flush_takes_back_what_it_can() {
    let (_gateway, mut server, mut link, root) = begun();
    // As many as there are workers, and one more, which is queued.
    for tag in 10..19 {
        link.ask(tag, &root, Request::Getattr { fid: handle_fid(0), mask: getattr::ALL });
    }
    let asked: Vec<Vec<u8>> = (0..8).map(|_| server.next()).collect();
    link.ask(1, b"", ExtRequest::Ping);
    assert_eq!(link.told().0, 1);
    let queued = Tag(18);
    link.ask(2, b"", Request::Flush { oldtag: queued });
    assert_eq!(link.told(), (2, format!("{:?}", AnyReply::Base(Reply::Flush))));
    link.ask(3, b"", Request::Flush { oldtag: Tag(10) });
    let flush = server.next();
    let (flush, Request::Flush { oldtag }) = Request::decode(&flush).unwrap() else { panic!() };
    assert!(asked.iter().any(|frame| Request::decode(frame).unwrap().0 == oldtag));
    server.tell(flush, Reply::Flush);
    assert_eq!(link.told(), (10, error(Errno::INTR)), "its own reply comes first");
    assert_eq!(link.told().0, 3);
    for frame in &asked {
        let tag = Request::decode(frame).unwrap().0;
        if tag != oldtag {
            server.tell(tag, attributes(ROOT));
            assert!((11..18).contains(&link.told().0));
        }
    }
}

#[test]
fn a_connection_that_breaks_ends_the_channels_without_an_answer() {
    let (gateway, mut server, mut link, root) = begun();
    link.ask(3, &root, Request::Getattr { fid: handle_fid(0), mask: getattr::ALL });
    server.next();
    drop(server);
    assert_eq!(link.frame(), None);
    assert!(gateway.channel(MSIZE).unwrap().is_none(), "the next one reconnects");
    let (socket, mut server) = Server::pair();
    let mut link = Link::of(gateway.begin(socket, MSIZE, "/srv/x", MSIZE).unwrap());
    link.ask(1, b"", session(9, 0));
    server.answer(attach);
    let frame = link.frame().unwrap();
    let (_, _, AnyReply::Ext(ExtReply::Session { resumed, root: again, .. })) =
        decode_reply(&frame).unwrap()
    else {
        panic!()
    };
    assert_eq!((resumed, again), (0, &root[..]), "handles outlive connections");
}

#[test]
fn a_channel_that_is_bound_twice_begins_everything_anew() {
    let (gateway, server, mut link, _) = begun();
    let mut second = Link::of(gateway.channel(MSIZE).unwrap().unwrap());
    second.ask(1, b"", session(9, 1));
    assert!(second.told().1.contains("resumed: 1"));
    let mut stranger = Link::of(gateway.channel(MSIZE).unwrap().unwrap());
    stranger.ask(1, b"", session(10, 2));
    assert_eq!(stranger.told(), (1, error(Errno::PERM)));
    let mut again = Link::of(gateway.channel(MSIZE).unwrap().unwrap());
    again.ask(1, b"", session(9, 0));
    assert_eq!((again.frame(), link.frame(), second.frame()), (None, None, None));
    assert!(server.ended());
}

#[test]
fn another_export_behind_the_same_name_is_stale() {
    let (gateway, server, mut link, _) = begun();
    drop(server);
    assert_eq!(link.frame(), None);
    let (socket, mut server) = Server::pair();
    let mut link = Link::of(gateway.begin(socket, MSIZE, "/srv/x", MSIZE).unwrap());
    link.ask(1, b"", session(9, 0));
    server.answer(|_| Reply::Attach { qid: Qid { path: 2, ..ROOT } });
    assert_eq!(link.told(), (1, error(Errno::STALE)));
}

#[test]
fn the_connection_lasts_until_a_channel_was_bound_or_the_gateway_is_gone() {
    let gateway = Gateway::default();
    let (socket, mut server) = Server::pair();
    drop(gateway.begin(socket, MSIZE, "/srv/x", MSIZE).unwrap());
    let mut link = Link::of(gateway.channel(MSIZE).unwrap().unwrap());
    link.ask(1, b"", session(9, 0));
    server.answer(|_| Reply::Error { ecode: 2 });
    assert_eq!(link.told(), (1, error(Errno::NOENT)), "what the server says of the export");
    drop(link);
    assert!(gateway.channel(MSIZE).unwrap().is_some());
    drop(gateway);
    server.0.read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn what_the_link_may_not_send_ends_the_channel_or_is_refused() {
    let (_gateway, server, mut link, root) = begun();
    for (tag, name) in [(3, &b".."[..]), (4, b".")] {
        link.ask(tag, &root, ExtRequest::Lookup { fid: handle_fid(0), name });
        assert_eq!(link.told(), (tag, error(Errno::INVAL)));
    }
    link.ask(5, b"no handle", Request::Readlink { fid: handle_fid(0) });
    assert_eq!(link.told(), (5, error(Errno::STALE)));
    link.ask(6, b"", Request::Read { fid: Fid(3), offset: 0, count: 1 });
    assert_eq!(link.told(), (6, error(Errno::BADF)));
    link.ask(7, b"", Request::Auth { afid: Fid(1), uname: b"", aname: b"", n_uname: 0 });
    assert_eq!(link.told(), (7, error(Errno::OPNOTSUPP)));
    link.1.write_all(&[1, 0, 0, 0, 0, 0, 0]).unwrap();
    assert_eq!(link.frame(), None);
    drop(link);
    assert!(server.ended(), "the last channel takes the connection with it");
}

fn peer() -> (Arc<UpstreamClient>, Server) {
    let (socket, server) = Server::pair();
    (UpstreamClient::begin(socket, MSIZE, |_| {}).unwrap(), server)
}

fn clunk(peer: &UpstreamClient) -> Result<(), UpstreamError> {
    let request = Request::Clunk { fid: Fid(1) };
    peer.call(&UpstreamOp::steady(), request, |reply| (reply == Reply::Clunk).then_some(()))
}

#[test]
fn replies_find_who_asked_whatever_their_order() {
    let (peer, mut server) = peer();
    let asks = [3, 1, 2].map(|count| Request::Read { fid: Fid(count), offset: 0, count });
    let asking = peer.clone();
    let asked = std::thread::spawn(move || asking.call_all(&UpstreamOp::steady(), &asks).unwrap());
    let frames: Vec<_> = (0..3).map(|_| server.next()).collect();
    for frame in frames.iter().rev() {
        let (tag, Request::Read { count, .. }) = Request::decode(frame).unwrap() else { panic!() };
        server.tell(tag, Reply::Read { data: &b"xyz"[..count as usize] });
    }
    let lens: Vec<_> =
        asked.join().unwrap().iter().map(|told| format!("{:?}", told.reply())).collect();
    assert!(lens[0].contains("120, 121, 122") && lens[1].contains("[120]"), "{lens:?}");
}

#[test]
fn a_reply_that_is_too_large_or_none_is_not_believed() {
    let (ends, mut server) = peer();
    let asking = ends.clone();
    let asked = std::thread::spawn(move || clunk(&asking));
    server.next();
    server.0.write_all(&[0xff, 0xff, 0xff, 0x7f, 121, 0, 0]).unwrap();
    assert_eq!(asked.join().unwrap(), Err(UpstreamError::Disconnected));
    assert_eq!(clunk(&ends), Err(UpstreamError::Disconnected), "nor is it called again");
    for odd in [Reply::Fsync, Reply::Error { ecode: 5 }] {
        let (peer, mut server) = peer();
        let asked = std::thread::spawn(move || clunk(&peer));
        let frame = server.next();
        // One that nobody has asked for is passed over.
        server.tell(Tag(99), Reply::Clunk);
        server.tell(Request::decode(&frame).unwrap().0, odd);
        let errno = if odd == Reply::Fsync { Errno::PROTO } else { Errno::IO };
        assert_eq!(asked.join().unwrap(), Err(errno.into()));
    }
}

#[test]
fn a_fid_is_clunked_when_it_is_dropped_and_used_again_after_that() {
    let (peer, mut server) = peer();
    let (first, second) = (peer.new_fid().unwrap(), peer.new_fid().unwrap());
    let (fid, refused) = (first.fid, second.fid);
    second.refused();
    assert_eq!(peer.new_fid().map(|held| (held.fid, held.refused()).0), Ok(refused));
    drop(first);
    let frame = server.next();
    let (tag, request) = Request::decode(&frame).unwrap();
    assert_eq!(request, Request::Clunk { fid });
    let third = peer.new_fid().unwrap();
    assert_ne!(third.fid, fid, "the server may know it yet");
    third.refused();
    server.tell(tag, Reply::Clunk);
    // The reply to this comes after that one was read.
    let asking = peer.clone();
    let asked = std::thread::spawn(move || clunk(&asking));
    server.answer(|_| Reply::Clunk);
    asked.join().unwrap().unwrap();
    let (one, other) = (peer.new_fid().unwrap(), peer.new_fid().unwrap());
    assert!(one.fid == fid || other.fid == fid);
    one.refused();
    other.refused();
}

#[test]
fn a_server_that_takes_too_small_messages_is_refused() {
    let (socket, _server) = Server::pair();
    let error = Gateway::default().begin(socket, 1024, "/srv/x", MSIZE).unwrap_err();
    assert!(error.to_string().contains("1024 bytes, not 4096 or more"), "{error}");
}
