//! Tinfo: a text for a mount's user about the user's own requests.
//!
//! ```text
//!   Tinfo ─► its identity ─► turns of each user ─► a thread of its own: Why of the job ─► text
//!   Rinfo ◄──────── the leader ◄──────────────────────────────────────────────────────────────┘
//! ```
//!
//! It waits in no queue of the dispatcher, because the queue is its subject. A user learns nothing
//! about others: the job and the user are those that the identity was granted. A user may ask
//! [`AT_ONCE`] times at once and ten times a second; further questions fail with EAGAIN.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex};

use api::WhyQuery;
use model::{Nid, Rate};
use ninep::dialect::{self, AnyRequest, ExtReply, ExtRequest};
use rustix::io::Errno;
use sched::Turns;

use crate::connection::ReplyTo;
use crate::fids::ProxyUser;
use crate::outbox::ReplyOutbox;
use crate::server::Server;

/// Questions that wait, and their answers.
pub(crate) struct InfoQueue {
    turns: Mutex<Turns<InfoCaller, InfoQuery>>,
    more: Condvar,
    replies: Mutex<VecDeque<InfoReply>>,
}

/// A user at a node.
type InfoCaller = (Nid, u32);

/// A Tinfo that was taken in.
struct InfoQuery {
    to: ReplyTo,
    user: Arc<ProxyUser>,
    what: u8,
    /// Bytes that the answer may have.
    count: usize,
}

/// A question's answer, on its way to the leader.
struct InfoReply {
    to: ReplyTo,
    text: io::Result<String>,
}

impl InfoQueue {
    pub(crate) fn new() -> InfoQueue {
        let rate = Rate::ops_per_sec(PER_SECOND).expect("more than none");
        let turns = Mutex::new(Turns::new(rate, AT_ONCE));
        InfoQueue { turns, more: Condvar::new(), replies: Mutex::default() }
    }

    /// Lets its thread look whether all threads are to end.
    pub(crate) fn stop(&self) {
        let _turns = self.turns.lock().expect("not poisoned");
        self.more.notify_one();
    }

    /// Whether there are answers for the leader.
    pub(crate) fn has_replies(&self) -> bool {
        !self.replies.lock().expect("not poisoned").is_empty()
    }
}

impl Server {
    /// Starts the thread that answers, from a thread that acts for no user.
    pub(crate) fn start_info_thread(self: &Arc<Server>) -> io::Result<()> {
        let server = self.clone();
        let run = move || server.run_info_thread();
        std::thread::Builder::new().name("sluice-tell".into()).spawn(api::critical(run)).map(drop)
    }

    /// Takes a Tinfo in that was put aside; false if it is another message.
    pub(crate) fn submit_info(&self, to: &ReplyTo, frame: &[u8], outbox: &mut ReplyOutbox) -> bool {
        if ninep::frame_kind(frame) != Some(TINFO) || to.path.form.binding().is_none() {
            return false;
        }
        let asked = parse_query(to, frame).and_then(|question| {
            let who = &question.user.identity;
            let caller = (who.nid.clone(), who.uid);
            let mut turns = self.teller.turns.lock().expect("not poisoned");
            turns.submit(caller, question, self.clock.now()).map_err(|_| Errno::AGAIN)
        });
        match asked {
            Ok(()) => self.teller.more.notify_one(),
            Err(errno) => outbox.batch(to).error(to.tag, &errno.into()),
        }
        true
    }

    /// Answers what the thread of questions has found out.
    pub(crate) fn answer_info(&self, outbox: &Mutex<ReplyOutbox>) {
        let told = std::mem::take(&mut *self.teller.replies.lock().expect("not poisoned"));
        if told.is_empty() {
            return;
        }
        let mut outbox = outbox.lock().expect("not poisoned");
        for InfoReply { to, text } in told {
            let batch = outbox.batch(&to);
            match &text {
                Ok(text) => batch.reply(to.tag, ExtReply::Info { data: text.as_bytes() }),
                Err(error) => batch.error(to.tag, error),
            }
        }
    }

    /// Runs its thread, until all threads are to end.
    fn run_info_thread(&self) {
        let InfoQueue { turns, more, replies: told } = &self.teller;
        let mut waiting = turns.lock().expect("not poisoned");
        while !self.crew.stopping() {
            let now = self.clock.now();
            if let Some(question) = waiting.next(now) {
                drop(waiting);
                let text = self.text_for(&question);
                told.lock().expect("not poisoned").push_back(InfoReply { to: question.to, text });
                self.poke_leader();
                waiting = turns.lock().expect("not poisoned");
                continue;
            }
            waiting = match waiting.next_due() {
                None => more.wait(waiting).expect("not poisoned"),
                Some(due) => {
                    let span = due.since(now).to_duration();
                    more.wait_timeout(waiting, span).expect("not poisoned").0
                }
            };
        }
    }

    fn text_for(&self, question: &InfoQuery) -> io::Result<String> {
        let who = &question.user.identity;
        let (job, user) = (Some(who.job.to_string()), Some(who.uid));
        let query = WhyQuery { job, user, limit: None };
        let mut text = match question.what {
            0 => explain::why(&self.why_of(&query)),
            1 => explain::usage(&self.why_of(&query)),
            2 => explain::limits(&self.limits_of(who)),
            _ => return Err(Errno::INVAL.into()),
        };
        // Whole lines, as far as there is room.
        while text.len() > question.count {
            let lines = text.trim_end_matches('\n');
            let end = lines.rfind('\n').map_or(0, |at| at + 1);
            text.truncate(end);
        }
        Ok(text)
    }
}

fn parse_query(to: &ReplyTo, frame: &[u8]) -> Result<InfoQuery, Errno> {
    let decoded = dialect::decode_request(frame).ok();
    let Some((_, header, AnyRequest::Ext(ExtRequest::Info { what, count }))) = decoded else {
        return Err(Errno::INVAL);
    };
    let who = to.path.form.binding().and_then(|binding| binding.session.user(header.identity));
    let who = who.ok_or(Errno::INVAL)?;
    Ok(InfoQuery { to: to.clone(), user: who, what, count: count as usize })
}

/// The message's type.
const TINFO: u8 = 238;
/// How often a user may ask in the long run.
const PER_SECOND: u64 = 10;
/// How many questions of a user are answered at once before that.
const AT_ONCE: u32 = 8;
