//! Ttell: what a mount's user is told of himself, as text.
//!
//! ```text
//!   Ttell, identity ─► who that is here ─► Why of his job ─► why | usage | limits ─► Rtell
//! ```
//!
//! It is answered at once and waits in no queue, for the queue is what it is about. Nobody is
//! told of others: the job and the user are those that the identity was granted.

use std::io;

use api::WhyQuery;
use ninep::dialect::{self, AnyRequest, OwnReply, OwnRequest};
use rustix::io::Errno;

use crate::connection::ReplyTo;
use crate::outbox::Outbox;
use crate::server::Server;

impl Server {
    /// Answers a Ttell that was put aside; false if it is another message.
    pub(crate) fn tell(&self, to: &ReplyTo, frame: &[u8], outbox: &mut Outbox) -> bool {
        if ninep::frame_kind(frame) != Some(TELL) || to.form.binding().is_none() {
            return false;
        }
        let text = self.text_for(to, frame);
        let batch = outbox.batch(to);
        match &text {
            Ok(text) => batch.reply(to.tag, OwnReply::Tell { data: text.as_bytes() }),
            Err(error) => batch.error(to.tag, error),
        }
        true
    }

    fn text_for(&self, to: &ReplyTo, frame: &[u8]) -> io::Result<String> {
        let decoded = dialect::decode_request(frame).ok();
        let Some((_, header, AnyRequest::Own(OwnRequest::Tell { what, count }))) = decoded else {
            return Err(Errno::INVAL.into());
        };
        let user = to.form.binding().and_then(|binding| binding.session.user(header.identity));
        let who = &user.ok_or(Errno::INVAL)?.identity;
        let (job, user) = (Some(who.job.to_string()), Some(who.uid));
        let query = WhyQuery { job, user, limit: None };
        let mut text = match what {
            0 => self.why_of(&query).explain(),
            1 => self.why_of(&query).usage(),
            2 => self.limits_of(who).limits(),
            _ => return Err(Errno::INVAL.into()),
        };
        // Whole lines, as far as there is room.
        while text.len() > count as usize {
            let lines = text.trim_end_matches('\n');
            let end = lines.rfind('\n').map_or(0, |at| at + 1);
            text.truncate(end);
        }
        Ok(text)
    }
}

/// The message's type.
const TELL: u8 = 238;
