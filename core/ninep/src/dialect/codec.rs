//! Frames of the dialect to messages and back: the longer header, then a body from
//! either table.

use super::header::{ReplyHeader, RequestHeader};
use super::messages::{ExtReply, ExtRequest};
use crate::error::FrameError;
use crate::reply::Reply;
use crate::request::Request;
use crate::types::Tag;
use crate::wire::{FrameReader, FrameWriter};

/// The first message type of the dialect.
const OWN: u8 = 200;

/// A request of a session that speaks the dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnyRequest<'a> {
    /// A request of the base protocol, 9P2000.L.
    Base(Request<'a>),
    /// A request of the dialect.
    Ext(ExtRequest<'a>),
}

/// A reply of a session that speaks the dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnyReply<'a> {
    /// A reply of the base protocol, 9P2000.L.
    Base(Reply<'a>),
    /// A reply of the dialect.
    Ext(ExtReply<'a>),
}

impl<'a> From<Request<'a>> for AnyRequest<'a> {
    fn from(request: Request<'a>) -> AnyRequest<'a> {
        AnyRequest::Base(request)
    }
}

impl<'a> From<ExtRequest<'a>> for AnyRequest<'a> {
    fn from(request: ExtRequest<'a>) -> AnyRequest<'a> {
        AnyRequest::Ext(request)
    }
}

impl<'a> From<Reply<'a>> for AnyReply<'a> {
    fn from(reply: Reply<'a>) -> AnyReply<'a> {
        AnyReply::Base(reply)
    }
}

impl<'a> From<ExtReply<'a>> for AnyReply<'a> {
    fn from(reply: ExtReply<'a>) -> AnyReply<'a> {
        AnyReply::Ext(reply)
    }
}

/// Decodes one whole frame of a session that speaks the dialect. Nothing is allocated.
///
/// # Errors
/// If the frame is anything but exactly one such message. A Tversion is not: it has no
/// header of the dialect, and begins another session.
pub fn decode_request(
    frame: &[u8],
) -> Result<(Tag, RequestHeader<'_>, AnyRequest<'_>), FrameError> {
    let (kind, mut get) = FrameReader::new(frame)?;
    let header = RequestHeader::read(&mut get)?;
    let request = if kind < OWN {
        AnyRequest::Base(Request::take(kind, &mut get)?)
    } else {
        AnyRequest::Ext(ExtRequest::take(kind, &mut get)?)
    };
    get.finish()?;
    Ok((get.tag_of_message(), header, request))
}

/// Decodes one whole frame that a server of the dialect has sent.
///
/// # Errors
/// If the frame is anything but exactly one such message.
pub fn decode_reply(frame: &[u8]) -> Result<(Tag, ReplyHeader, AnyReply<'_>), FrameError> {
    let (kind, mut get) = FrameReader::new(frame)?;
    let header = ReplyHeader::read(&mut get)?;
    let reply = if kind < OWN {
        AnyReply::Base(Reply::take(kind, &mut get)?)
    } else {
        AnyReply::Ext(ExtReply::take(kind, &mut get)?)
    };
    get.finish()?;
    Ok((get.tag_of_message(), header, reply))
}

/// Appends a request to `out`, its size field included. Names are not checked.
///
/// # Panics
/// If a string is longer than 65,535 bytes or the message than 4 GiB.
pub fn encode_request(
    tag: Tag,
    header: &RequestHeader<'_>,
    request: &AnyRequest<'_>,
    out: &mut Vec<u8>,
) {
    let kind = match request {
        AnyRequest::Base(plain) => plain.kind(),
        AnyRequest::Ext(own) => own.kind(),
    };
    let mut put = FrameWriter::new(kind, tag, out);
    header.write(&mut put);
    match request {
        AnyRequest::Base(plain) => plain.put(&mut put),
        AnyRequest::Ext(own) => own.put(&mut put),
    }
    put.finish();
}

/// Appends a reply to `out`, its size field included.
///
/// # Panics
/// As [`encode_request`].
pub fn encode_reply(tag: Tag, header: ReplyHeader, reply: &AnyReply<'_>, out: &mut Vec<u8>) {
    let kind = match reply {
        AnyReply::Base(plain) => plain.kind(),
        AnyReply::Ext(own) => own.kind(),
    };
    let mut put = FrameWriter::new(kind, tag, out);
    header.write(&mut put);
    match reply {
        AnyReply::Base(plain) => plain.put(&mut put),
        AnyReply::Ext(own) => own.put(&mut put),
    }
    put.finish();
}
