//! Conversion of messages of the dialect to requests: as in 9P2000.L, but identity and file are in
//! the header, and a call with a reply slot is executed once.

use std::sync::Arc;

use model::{Bytes, OpKind};
use ninep::Request;
use ninep::dialect::{
    self, AnyRequest, ExtReply, ExtRequest, NOSLOT, RENEW_JOIN, RequestHeader, WRITE_DONATED,
    WireGroup, handle_index,
};
use rustix::io::Errno;
use session::server::IdempotencyKey;

use super::{IntakeBatch, ProtocolError, expected_bytes};
use crate::buffers::FrameBuffer;
use crate::connection::{Connection, NinepSession, ReplyTo};
use crate::gate::{Donor, PendingRequest, RequestFile};
use crate::input::IncomingMessage;
use crate::location::Location;
use crate::outbox::ReplyOutbox;
use crate::parsed_request::ParsedRequest;
use crate::server::Server;
use crate::sessions::{self, ChannelBinding};
use crate::trace::RefusedRequest;

impl Server {
    /// Takes in one message of a connection that speaks the dialect.
    pub(super) fn receive_dialect(
        &self,
        connection: &Arc<Connection>,
        session: &mut NinepSession,
        incoming: IncomingMessage<'_>,
        arrivals: &mut IntakeBatch,
        outbox: &mut ReplyOutbox,
    ) -> Result<(), ProtocolError> {
        let bytes = incoming.bytes();
        let (tag, header, request) = match dialect::decode_request(bytes) {
            Ok(decoded) => decoded,
            Err(error) => return self.reject_malformed(connection, session, bytes, error, outbox),
        };
        let to = session.reply_to(connection, tag);
        let kind = ninep::frame_kind(bytes).unwrap_or(0);
        if let AnyRequest::Ext(ExtRequest::Session { .. }) = request {
            return self.put_aside(session, to, incoming, 0, arrivals);
        }
        let Some(binding) = to.path.form.binding().cloned() else {
            return self.receive_unbound(session, &to, &request, outbox);
        };
        binding.session.confirm();
        let Some(about) = ParsedRequest::of_any(&request) else {
            if header.reply_slot != NOSLOT {
                return self.answer(session, &to, Err(Errno::INVAL), outbox);
            }
            return match request {
                AnyRequest::Base(Request::Flush { oldtag }) => {
                    self.receive_flush(session, to, oldtag, arrivals, outbox)
                }
                // A holder is recorded on disk first: not here, under the lock of the connection.
                AnyRequest::Ext(
                    ExtRequest::Identity { .. } | ExtRequest::Renew { what: RENEW_JOIN, .. },
                ) => self.put_aside(session, to, incoming, 0, arrivals),
                AnyRequest::Ext(ExtRequest::Info { count, .. }) => {
                    if !session.has_room(count as usize) {
                        return self.answer(session, &to, Err(Errno::INVAL), outbox);
                    }
                    self.put_aside(session, to, incoming, count as usize, arrivals)
                }
                AnyRequest::Ext(ExtRequest::Retire { identity }) => {
                    binding.session.retire(identity);
                    self.answer(session, &to, Ok(ExtReply::Retire), outbox)
                }
                AnyRequest::Ext(
                    request @ (ExtRequest::Renew { .. }
                    | ExtRequest::Return { .. }
                    | ExtRequest::GiveBack { .. }),
                ) => {
                    let result = self.handle_lease_message(&binding.session, &request);
                    self.answer(session, &to, result, outbox)
                }
                AnyRequest::Ext(ExtRequest::Ping) => {
                    self.answer(session, &to, Ok(ExtReply::Ping), outbox)
                }
                AnyRequest::Ext(ExtRequest::Proxies) => self.answer_proxies(session, &to, outbox),
                AnyRequest::Ext(ExtRequest::Donate { fid, oldtag }) => {
                    self.enqueue_batch(session, arrivals);
                    let donated = self.donate(session, &binding, &header, fid, oldtag);
                    self.answer(session, &to, donated.map(|()| ExtReply::Donate), outbox)
                }
                AnyRequest::Ext(ExtRequest::Events) => {
                    self.admit(session, tag, None, 0)?;
                    self.begin_wait(&to, session, &binding.session, outbox);
                    Ok(())
                }
                // Tidentity names the identity, and Tversion is handled elsewhere.
                _ => self.answer(session, &to, Err(Errno::INVAL), outbox),
            };
        };
        let once = match begin_once(&binding, &header, kind, about.kind) {
            Ok(BegunCall::Call(once)) => once,
            Ok(BegunCall::Replay(reply)) => {
                self.admit(session, tag, None, 0)?;
                sessions::repeat(&reply, tag, &mut outbox.batch(&to).bytes);
                return Ok(());
            }
            Err(errno) => return self.answer(session, &to, Err(errno), outbox),
        };
        let expected = match request {
            AnyRequest::Base(request) => expected_bytes(&request),
            AnyRequest::Ext(ExtRequest::List { count, .. }) => count as usize,
            // Its reply has a length besides.
            AnyRequest::Ext(ExtRequest::Getxattr { count, .. }) => count as usize + 4,
            AnyRequest::Ext(_) => 0,
        };
        let file = match file_of(session, &binding, &header, &about) {
            Ok(_) if !session.has_room(expected) => Err(Errno::INVAL),
            file => file,
        };
        let file = match file {
            Ok(file) => file,
            Err(errno) => {
                let asked = about.amount.bytes.min(Bytes::new(bytes.len() as u64));
                let refused = RefusedRequest::of_peer(connection, about.kind, asked);
                let start = outbox.batch_len(&to);
                self.refuse(session, refused, &to, errno, outbox)?;
                if let Some(once) = once {
                    binding.end(once, outbox.written_since(&to, start));
                }
                return Ok(());
            }
        };
        // A fid knows where its file lies.
        let handle = header.handles.get(about.fid);
        let location = handle.map_or_else(Location::default, |it| binding.session.location(it));
        let mut asked = about.meta(&file, location);
        asked.remote_ops = Some(header.remote_ops);
        self.admit(session, tag, None, bytes.len() + expected)?;
        let donor = donor_of(&binding, &header, &request, &file);
        let looked = arrivals.read_after;
        let operation = PendingRequest {
            to,
            file,
            frame: FrameBuffer::EMPTY,
            once,
            donor,
            read_after: looked,
            begun: None,
        };
        let operation = PendingRequest { frame: incoming.into_frame(), ..operation };
        arrivals.scheduled.push((operation, asked));
        Ok(())
    }

    /// The header's identity waits for a write of this connection. One that has begun, or was answered,
    /// needs nobody's lane.
    fn donate(
        &self,
        session: &mut NinepSession,
        binding: &ChannelBinding,
        header: &RequestHeader<'_>,
        fid: ninep::Fid,
        oldtag: ninep::Tag,
    ) -> Result<(), Errno> {
        let user = binding.session.user(header.identity).ok_or(Errno::INVAL)?;
        let fid = session.fid(fid).ok_or(Errno::BADF)?;
        let Some(in_flight) = session.tags.get_mut(&oldtag.0) else { return Ok(()) };
        if let Some(id) = in_flight.request
            && let Some(id) = self.gate.donate(id, Donor::of(user, &fid))
        {
            in_flight.request = Some(id);
        }
        Ok(())
    }

    /// Leaves a message, whose reply has `payload` bytes, to where it may take its time.
    fn put_aside(
        &self,
        session: &mut NinepSession,
        to: ReplyTo,
        incoming: IncomingMessage<'_>,
        payload: usize,
        arrivals: &mut IntakeBatch,
    ) -> Result<(), ProtocolError> {
        self.admit(session, to.tag, None, incoming.bytes().len() + payload)?;
        arrivals.attaches.push((to, incoming.into_frame()));
        Ok(())
    }

    /// Takes in a message that comes before Tsession.
    fn receive_unbound(
        &self,
        session: &mut NinepSession,
        to: &ReplyTo,
        request: &AnyRequest<'_>,
        outbox: &mut ReplyOutbox,
    ) -> Result<(), ProtocolError> {
        match request {
            AnyRequest::Ext(ExtRequest::Proxies) => self.answer_proxies(session, to, outbox),
            AnyRequest::Ext(other) => Err(ProtocolError::NoSession(other.kind())),
            AnyRequest::Base(other) => Err(ProtocolError::NoSession(other.kind())),
        }
    }

    /// Answers with the group of this proxy.
    fn answer_proxies(
        &self,
        session: &mut NinepSession,
        to: &ReplyTo,
        outbox: &mut ReplyOutbox,
    ) -> Result<(), ProtocolError> {
        let (settings, mut space) = (self.settings(), Vec::new());
        let group = match (&settings.group, settings.name_in_group()) {
            (Some(group), Some(name)) => {
                let names = group.proxies.iter().map(String::as_str);
                WireGroup::pack(name, group.epoch, names, &mut space).expect("a checked group")
            }
            _ => WireGroup::NONE,
        };
        let result = match session.has_room(group.encoded_len()) {
            true => Ok(ExtReply::Proxies(group)),
            false => Err(Errno::INVAL),
        };
        self.answer(session, to, result, outbox)
    }

    /// Answers at once, outside of any dispatcher.
    fn answer(
        &self,
        session: &mut NinepSession,
        to: &ReplyTo,
        result: Result<ExtReply<'_>, Errno>,
        outbox: &mut ReplyOutbox,
    ) -> Result<(), ProtocolError> {
        self.admit(session, to.tag, None, 0)?;
        let batch = outbox.batch(to);
        match result {
            Ok(reply) => batch.reply(to.tag, reply),
            Err(errno) => batch.error(to.tag, &errno.into()),
        }
        Ok(())
    }

    /// Answers all that wait for events at shutdown: there are none.
    pub(crate) fn end_waits(&self) {
        for connection in self.connections() {
            let mut session = connection.session.lock().expect("not poisoned");
            let waits = std::mem::take(&mut session.waits);
            let to = waits.into_iter().map(|tag| session.reply_to(&connection, tag));
            let to: Vec<_> = to.collect();
            drop(session);
            let mut outbox = ReplyOutbox::default();
            for to in to {
                outbox.batch(&to).reply(to.tag, ExtReply::Events { data: &[] });
            }
            while let Some(mut batch) = outbox.pop_batch() {
                connection.send(&mut batch, &self.poll, self.bounds());
            }
        }
    }
}

/// Result of looking a call up in the reply cache.
enum BegunCall {
    /// It is to be executed.
    Call(Option<IdempotencyKey>),
    /// It was, with this reply.
    Replay(Vec<u8>),
}

/// The file that a message is about: a fid of the session, or a handle of its header on
/// behalf of the header's identity.
fn file_of(
    session: &NinepSession,
    binding: &ChannelBinding,
    header: &RequestHeader<'_>,
    about: &ParsedRequest,
) -> Result<RequestFile, Errno> {
    if handle_index(about.fid).is_none() {
        return session.fid(about.fid).map(RequestFile::Fid).ok_or(Errno::BADF);
    }
    header.handles.get(about.fid).ok_or(Errno::BADF)?;
    binding.session.user(header.identity).map(RequestFile::Handle).ok_or(Errno::INVAL)
}

/// Makes the waiter for a write, as the message says. An unknown identity waits for nothing.
fn donor_of(
    binding: &ChannelBinding,
    header: &RequestHeader<'_>,
    request: &AnyRequest<'_>,
    file: &RequestFile,
) -> Option<Box<Donor>> {
    match (request, file) {
        (AnyRequest::Ext(ExtRequest::Write { flags, .. }), RequestFile::Fid(fid))
            if flags & WRITE_DONATED != 0 =>
        {
            binding.session.user(header.identity).map(|user| Donor::of(user, fid))
        }
        _ => None,
    }
}

/// Takes in a call that has a slot.
fn begin_once(
    binding: &ChannelBinding,
    header: &RequestHeader<'_>,
    message: u8,
    kind: OpKind,
) -> Result<BegunCall, Errno> {
    let RequestHeader { reply_slot: slot, sequence, .. } = *header;
    if slot == NOSLOT {
        return Ok(BegunCall::Call(None));
    }
    // What only asks may be asked again and is not remembered: it may be long. A lock's reply
    // may come after its connection's end.
    if let OpKind::Read | OpKind::Readdir | OpKind::Getxattr | OpKind::Readlink | OpKind::Lock =
        kind
    {
        return Err(Errno::INVAL);
    }
    let once = IdempotencyKey { slot, sequence };
    match binding.begin(once, message) {
        Ok(None) => Ok(BegunCall::Call(Some(once))),
        Ok(Some(reply)) => Ok(BegunCall::Replay(reply)),
        Err(error) => {
            tracing::debug!("{error}");
            Err(Errno::INVAL)
        }
    }
}
