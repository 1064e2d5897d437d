//! Replies: each ends a call or a message of the channel, or is an error of the proxy's.

use ninep::dialect::{AnyReply, ExtReply, RENEW_REFUSED};
use ninep::{Reply, Tag};

use super::{ChannelCall, ChannelControl, ChannelError, ClientChannel, InFlight};
use model::Time;

/// What a received message means to the caller.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it lives for one match, on the stack")]
pub enum ChannelEvent<'a, C: ChannelCall> {
    /// Nothing is to be done.
    Unchanged,
    /// A call has ended: with this reply, or an errno.
    Done {
        /// The call, which is no longer in flight.
        call: C,
        /// The reply, or the errno that the proxy sent; EINTR for a call that was flushed.
        answer: Result<AnyReply<'a>, u32>,
    },
    /// This identity may be used now with this window, or not at all.
    Identity {
        /// The identity of the message.
        identity: C::Identity,
        /// The window of the identity, or the errno of the refusal.
        answer: Result<IdentityWindow, u32>,
    },
    /// Encoded events of the session, in one message.
    Events(&'a [u8]),
    /// A message to join or to renew was answered.
    Renewed(RenewReply),
}

/// The answer to a message to join the holders of leases, or to renew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenewReply {
    /// The life that the message named.
    pub life: u32,
    /// What the message asked for.
    pub what: u8,
    /// When the message was given to the channel.
    pub sent: Time,
    /// `RENEW_DONE`, `RENEW_OVER` or `RENEW_REFUSED`; an error counts as refused.
    pub outcome: u8,
    /// The term in nanoseconds.
    pub term: u64,
}

/// What an identity may have in flight in each direction of each channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityWindow {
    /// Calls at a time.
    pub requests: u32,
    /// Payload at a time, in bytes.
    pub bytes: u64,
}

impl<C: ChannelCall> ClientChannel<C> {
    /// Notes the time at which a message arrived.
    pub fn note_received(&mut self, now: Time) {
        self.last_received = now;
    }

    /// A reply came.
    ///
    /// # Errors
    /// If there is no request for it.
    pub fn received<'a>(
        &mut self,
        tag: Tag,
        reply: AnyReply<'a>,
    ) -> Result<ChannelEvent<'a, C>, ChannelError> {
        let unasked = ChannelError::UnusedTag(tag);
        let place = self.in_flight.get_mut(usize::from(tag.0)).ok_or(unasked)?;
        match place.take().ok_or(unasked)? {
            InFlight::Call { call, begun, flushed } => {
                let once = call.needs().once;
                self.queues.ended(&call);
                self.renewed = self.renewed.max(begun);
                if flushed.is_some() {
                    self.flushed -= 1;
                    // Tag and slot stay taken until the flush is answered, which names them.
                    *place = Some(InFlight::Flushed { once });
                } else {
                    self.end(tag, once);
                }
                let answer = answer_of(reply);
                match &answer {
                    Ok(_) => self.stats.ok += 1,
                    Err(_) => self.stats.errors += 1,
                }
                Ok(ChannelEvent::Done { call, answer })
            }
            InFlight::Flushed { .. } => Err(unasked),
            InFlight::Control(control) => {
                self.end(tag, false);
                self.waits -= usize::from(matches!(control, ChannelControl::Events));
                self.answered(control, reply)
            }
        }
    }

    fn answered<'a>(
        &mut self,
        control: ChannelControl<C::Identity>,
        reply: AnyReply<'a>,
    ) -> Result<ChannelEvent<'a, C>, ChannelError> {
        match (control, answer_of(reply)) {
            (ChannelControl::Flush(old), _) => self.flush_answered(old),
            (ChannelControl::Identity(identity), answer) => {
                let answer = match answer {
                    Ok(AnyReply::Ext(ExtReply::Identity { requests, bytes })) => {
                        Ok(IdentityWindow { requests, bytes })
                    }
                    Ok(_) => return Err(ChannelError::IdentityReply),
                    Err(errno) => Err(errno),
                };
                Ok(ChannelEvent::Identity { identity, answer })
            }
            (ChannelControl::Events, Ok(AnyReply::Ext(ExtReply::Events { data }))) => {
                Ok(ChannelEvent::Events(data))
            }
            (ChannelControl::Ping(at), _) => {
                self.renewed = self.renewed.max(at);
                Ok(ChannelEvent::Unchanged)
            }
            (ChannelControl::Renew { life, what, sent }, answer) => {
                let (outcome, term) = match answer {
                    Ok(AnyReply::Ext(ExtReply::Renew { outcome, term })) => (outcome, term),
                    _ => (RENEW_REFUSED, 0),
                };
                Ok(ChannelEvent::Renewed(RenewReply { life, what, sent, outcome, term }))
            }
            // A proxy that does not know Tdonate leaves the writes in the writer's queue.
            (
                ChannelControl::Donate(..)
                | ChannelControl::Events
                | ChannelControl::Retire(_)
                | ChannelControl::Return { .. }
                | ChannelControl::GiveBack(_),
                _,
            ) => Ok(ChannelEvent::Unchanged),
        }
    }

    fn flush_answered<'a>(&mut self, old: Tag) -> Result<ChannelEvent<'a, C>, ChannelError> {
        match self.in_flight[usize::from(old.0)].take() {
            Some(InFlight::Call { call, .. }) => {
                self.flushed -= 1;
                self.end(old, call.needs().once);
                self.queues.ended(&call);
                Ok(ChannelEvent::Done { call, answer: Err(EINTR) })
            }
            Some(InFlight::Flushed { once }) => {
                self.end(old, once);
                Ok(ChannelEvent::Unchanged)
            }
            _ => Err(ChannelError::SecondFlush(old)),
        }
    }
}

/// The answer that a reply is: Rlerror has an errno.
fn answer_of(reply: AnyReply<'_>) -> Result<AnyReply<'_>, u32> {
    match reply {
        AnyReply::Base(Reply::Error { ecode }) => Err(ecode),
        other => Ok(other),
    }
}

/// The errno of a call that was cancelled.
const EINTR: u32 = 4;
