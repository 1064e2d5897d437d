//! One channel of the mount's session, served over a socket within this process as a proxy would
//! over the network.
//!
//! ```text
//!   session ─► socket ─► reader ─┬─ Tping: answered        Tevents: held     Tsession: bound
//!                                ├─ Tflush: taken out, or flushed at the upstream
//!                                └─ queue ─► workers ─► GatewayCall ─► upstream
//!   session ◄─────────────────────────────── replies, in any order
//! ```
//!
//! Bounds: [`IN_FLIGHT_MAX`] messages, which the session keeps to; one more ends the channel, as
//! anything does that is not the dialect. A connection to the peer that breaks ends it too,
//! without an answer to what is in flight.
//!
//! Invariant: a message is in `in_flight` until its reply is sent, and both change while
//! `sending` is locked, so a Tflush is answered after the message that it names.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use fuse::Errno;
use ninep::dialect::{
    AnyReply, AnyRequest, ExtReply, ExtRequest, RENEW_REFUSED, WireGroup, decode_request,
    encode_reply,
};
use ninep::{Reply, Request, Tag};
use rustc_hash::FxHashMap;
use rustix::net::{SendFlags, Shutdown, shutdown};
use session::client::TAGS;

use super::asked::GatewayCall;
use super::life::UpstreamSession;
use super::peer::{UpstreamError, UpstreamOp, read_frame};
use crate::session::lock;

/// A channel of the mount's session.
#[derive(Debug)]
pub(super) struct GatewayChannel {
    life: Arc<UpstreamSession>,
    socket: OwnedFd,
    sending: Mutex<()>,
    state: Mutex<GatewayState>,
    /// There is something in the queue, or it is over.
    work: Condvar,
}

#[derive(Debug, Default)]
struct GatewayState {
    queue: VecDeque<Arc<GatewayTask>>,
    /// By tag: queued, or being done.
    in_flight: FxHashMap<u16, Arc<GatewayTask>>,
    over: bool,
}

/// A message to be done.
#[derive(Debug)]
struct GatewayTask {
    tag: Tag,
    frame: Vec<u8>,
    job: UpstreamOp,
    /// Tags of the messages that have flushed it.
    flushes: Mutex<Vec<Tag>>,
}

/// Serves what comes over a socket, whose messages have at most `msize` bytes, until it or the
/// peer's connection ends.
pub(super) fn serve(life: Arc<UpstreamSession>, socket: OwnedFd, msize: u32) -> io::Result<()> {
    let reads = BufReader::new(File::from(socket.try_clone()?));
    let (sending, state, work) = Default::default();
    let channel = Arc::new(GatewayChannel { life, socket, sending, state, work });
    let spawn = |name: &str| std::thread::Builder::new().name(format!("plain-{name}"));
    let reader = channel.clone();
    spawn("reader").spawn(api::critical(move || {
        let (mut reads, mut bound) = (reads, None);
        let Err(why) = reader.read(&mut reads, msize, &mut bound);
        tracing::debug!(channel = bound, %why, "a channel ended");
        reader.end();
        reader.life.unbind(bound);
    }))?;
    for _ in 0..WORKERS {
        let worker = channel.clone();
        spawn("worker")
            .spawn(api::critical(move || worker.work()))
            .inspect_err(|_| channel.end())?;
    }
    Ok(())
}

enum Never {}

impl GatewayChannel {
    fn read(
        &self,
        from: &mut BufReader<File>,
        msize: u32,
        bound: &mut Option<u16>,
    ) -> io::Result<Never> {
        loop {
            let frame = read_frame(from, msize)?;
            let (tag, _, request) = decode_request(&frame).map_err(invalid)?;
            match request {
                AnyRequest::Ext(ExtRequest::Session { id, channel, slots, .. }) => {
                    let root = self.life.bind(id, channel, self.socket.try_clone()?);
                    let reply = match &root {
                        Ok((resumed, root)) => {
                            *bound = Some(channel);
                            let resumed = u8::from(*resumed);
                            let slots = slots.min(SLOTS_MAX);
                            ExtReply::Session { slots, resumed, keep: 0, root }.into()
                        }
                        Err(UpstreamError::Errno(error)) => error_of(*error),
                        Err(UpstreamError::Disconnected) => {
                            return Err(io::ErrorKind::ConnectionReset.into());
                        }
                    };
                    self.send(&self.reply(tag, &reply))?;
                }
                AnyRequest::Ext(ExtRequest::Ping) => {
                    self.send(&self.reply(tag, &ExtReply::Ping.into()))?;
                }
                // Such a server knows of no leases.
                AnyRequest::Ext(ExtRequest::Renew { .. }) => {
                    let reply = ExtReply::Renew { outcome: RENEW_REFUSED, term: 0 };
                    self.send(&self.reply(tag, &reply.into()))?;
                }
                // Such a server is of no group.
                AnyRequest::Ext(ExtRequest::Proxies) => {
                    self.send(&self.reply(tag, &ExtReply::Proxies(WireGroup::NONE).into()))?;
                }
                // There never is any news.
                AnyRequest::Ext(ExtRequest::Events) => {}
                AnyRequest::Base(Request::Flush { oldtag }) => self.flush(tag, oldtag)?,
                _ => self.queue(tag, frame)?,
            }
        }
    }

    fn queue(&self, tag: Tag, frame: Vec<u8>) -> io::Result<()> {
        let task =
            Arc::new(GatewayTask { tag, frame, job: self.life.job(), flushes: Mutex::default() });
        let mut state = lock(&self.state);
        if state.in_flight.len() >= IN_FLIGHT_MAX {
            return Err(invalid(format!("more than {IN_FLIGHT_MAX} messages in flight")));
        }
        if state.in_flight.insert(tag.0, task.clone()).is_some() {
            return Err(invalid(format!("the tag {tag} is in use")));
        }
        state.queue.push_back(task);
        self.work.notify_one();
        Ok(())
    }

    /// Takes back what was not begun; the peer is asked to take back what was.
    fn flush(&self, tag: Tag, oldtag: Tag) -> io::Result<()> {
        let sending = lock(&self.sending);
        let mut state = lock(&self.state);
        let begun = state.in_flight.get(&oldtag.0).cloned().filter(|task| {
            let queued = state.queue.iter().position(|one| Arc::ptr_eq(one, task));
            queued.map(|at| state.queue.remove(at)).is_none()
        });
        match begun {
            Some(task) => {
                lock(&task.flushes).push(tag);
                drop(state);
                drop(sending);
                self.life.peer.flush(&task.job);
                Ok(())
            }
            None => {
                state.in_flight.remove(&oldtag.0);
                drop(state);
                self.send_locked(&self.reply(tag, &Reply::Flush.into()))
            }
        }
    }

    fn work(&self) {
        while let Some(task) = self.next() {
            let done = catch_unwind(AssertUnwindSafe(|| self.perform(&task)));
            let done = done.unwrap_or_else(|_| {
                tracing::error!(tag = %task.tag, "the handler of a request panicked");
                Err(Errno::IO.into())
            });
            let reply = match done {
                Ok(reply) => reply,
                Err(UpstreamError::Errno(error)) => self.reply(task.tag, &error_of(error)),
                // Whether it was done the session has to find out.
                Err(UpstreamError::Disconnected) => return self.end(),
            };
            if self.answer(&task, reply).is_err() {
                return self.end();
            }
        }
    }

    fn next(&self) -> Option<Arc<GatewayTask>> {
        let mut state = lock(&self.state);
        loop {
            if state.over {
                return None;
            }
            match state.queue.pop_front() {
                Some(task) => return Some(task),
                None => state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn perform(&self, task: &GatewayTask) -> Result<Vec<u8>, UpstreamError> {
        let (tag, header, request) = decode_request(&task.frame).map_err(|_| Errno::PROTO)?;
        GatewayCall { life: &self.life, job: &task.job, tag, header }.perform(request)
    }

    fn answer(&self, task: &GatewayTask, mut reply: Vec<u8>) -> io::Result<()> {
        let _sending = lock(&self.sending);
        lock(&self.state).in_flight.remove(&task.tag.0);
        for flush in lock(&task.flushes).drain(..) {
            reply.extend(self.reply(flush, &Reply::Flush.into()));
        }
        self.send_locked(&reply)
    }

    fn reply(&self, tag: Tag, reply: &AnyReply<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        encode_reply(tag, self.life.header(), reply, &mut out);
        out
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let _sending = lock(&self.sending);
        self.send_locked(bytes)
    }

    fn send_locked(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn end(&self) {
        lock(&self.state).over = true;
        self.work.notify_all();
        // One that is gone already is as good.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

fn error_of<'r>(error: Errno) -> AnyReply<'r> {
    Reply::Error { ecode: error.raw_os_error() as u32 }.into()
}

fn invalid(why: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_string())
}

/// Threads that do a channel's messages; each waits for the peer by itself.
const WORKERS: usize = 8;
/// Messages at a time: as many as the session has tags.
const IN_FLIGHT_MAX: usize = TAGS as usize;
/// Slots of a channel. Nothing is remembered by them: a life has each channel once.
const SLOTS_MAX: u16 = 64;
