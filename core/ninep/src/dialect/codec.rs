//! Frames of the dialect to messages and back: the longer header, then a body from
//! either table.

use super::header::{ReplyHeader, RequestHeader};
use super::messages::{OwnReply, OwnRequest};
use crate::error::DecodeError;
use crate::reply::Reply;
use crate::request::Request;
use crate::types::Tag;
use crate::wire::{Get, Put};

/// From this type on a message is the dialect's own.
const OWN: u8 = 200;

/// What a client asks in the dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnyRequest<'a> {
    /// As in 9P2000.L.
    Plain(Request<'a>),
    /// Of the dialect.
    Own(OwnRequest<'a>),
}

/// What a server answers in the dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnyReply<'a> {
    /// As in 9P2000.L.
    Plain(Reply<'a>),
    /// Of the dialect.
    Own(OwnReply<'a>),
}

impl<'a> From<Request<'a>> for AnyRequest<'a> {
    fn from(request: Request<'a>) -> AnyRequest<'a> {
        AnyRequest::Plain(request)
    }
}

impl<'a> From<OwnRequest<'a>> for AnyRequest<'a> {
    fn from(request: OwnRequest<'a>) -> AnyRequest<'a> {
        AnyRequest::Own(request)
    }
}

impl<'a> From<Reply<'a>> for AnyReply<'a> {
    fn from(reply: Reply<'a>) -> AnyReply<'a> {
        AnyReply::Plain(reply)
    }
}

impl<'a> From<OwnReply<'a>> for AnyReply<'a> {
    fn from(reply: OwnReply<'a>) -> AnyReply<'a> {
        AnyReply::Own(reply)
    }
}

/// Decodes one whole frame of a session that speaks the dialect. Nothing is allocated.
///
/// # Errors
/// If the frame is anything but exactly one such message. A Tversion is not: it has no
/// header of the dialect, and begins another session.
pub fn decode_request(
    frame: &[u8],
) -> Result<(Tag, RequestHeader<'_>, AnyRequest<'_>), DecodeError> {
    let (kind, mut get) = Get::new(frame)?;
    let header = RequestHeader::take(&mut get)?;
    let request = if kind < OWN {
        AnyRequest::Plain(Request::take(kind, &mut get)?)
    } else {
        AnyRequest::Own(OwnRequest::take(kind, &mut get)?)
    };
    get.finish()?;
    Ok((get.tag_of_message(), header, request))
}

/// Decodes one whole frame that a server of the dialect has sent.
///
/// # Errors
/// If the frame is anything but exactly one such message.
pub fn decode_reply(frame: &[u8]) -> Result<(Tag, ReplyHeader, AnyReply<'_>), DecodeError> {
    let (kind, mut get) = Get::new(frame)?;
    let header = ReplyHeader::take(&mut get)?;
    let reply = if kind < OWN {
        AnyReply::Plain(Reply::take(kind, &mut get)?)
    } else {
        AnyReply::Own(OwnReply::take(kind, &mut get)?)
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
        AnyRequest::Plain(plain) => plain.kind(),
        AnyRequest::Own(own) => own.kind(),
    };
    let mut put = Put::new(kind, tag, out);
    header.put(&mut put);
    match request {
        AnyRequest::Plain(plain) => plain.put(&mut put),
        AnyRequest::Own(own) => own.put(&mut put),
    }
    put.finish();
}

/// Appends a reply to `out`, its size field included.
///
/// # Panics
/// As [`encode_request`].
pub fn encode_reply(tag: Tag, header: ReplyHeader, reply: &AnyReply<'_>, out: &mut Vec<u8>) {
    let kind = match reply {
        AnyReply::Plain(plain) => plain.kind(),
        AnyReply::Own(own) => own.kind(),
    };
    let mut put = Put::new(kind, tag, out);
    header.put(&mut put);
    match reply {
        AnyReply::Plain(plain) => plain.put(&mut put),
        AnyReply::Own(own) => own.put(&mut put),
    }
    put.finish();
}
