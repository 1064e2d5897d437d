//! Tsession: a connection enters a session, and is bound to its channel when it has its turn.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use rustix::io::Errno;

use super::{BoundChannel, ChannelBinding, EnteredChannel, PendingBind, Protocol, SessionParams};
use crate::connection::ReplyTo;
use crate::intake::DeferredClose;
use crate::outbox::ReplyOutbox;
use crate::server::Server;

impl Server {
    /// Executes Tsession: `None` while calls of an older connection of the channel have not ended.
    pub(crate) fn open_session(
        self: &Arc<Server>,
        to: &ReplyTo,
        aname: &[u8],
        terms: SessionParams,
        outbox: &Mutex<ReplyOutbox>,
    ) -> io::Result<Option<PendingBind>> {
        let name = std::str::from_utf8(aname).map_err(|_| Errno::INVAL)?;
        let export = self.export(name).ok_or(Errno::NOENT)?;
        if to.path.form.binding().is_some() {
            return Err(Errno::BUSY.into());
        }
        let most = self.limits().sessions;
        let EnteredChannel { next, before, files } = self.mounts.enter(export, to, terms, most)?;
        self.close_deferred(DeferredClose::files(files), outbox);
        if let Some(before) = before {
            let leaving = self.close(&before, &"a newer connection uses its channel");
            self.close_deferred(leaving, outbox);
        }
        Ok(next)
    }

    /// Binds a connection to its channel. `None`: it is gone, and the next one has its turn.
    pub(crate) fn bind(
        self: &Arc<Server>,
        pending: &PendingBind,
    ) -> io::Result<Option<BoundChannel>> {
        let bound = self.try_bind(pending);
        if !matches!(bound, Ok(Some(_)))
            && let Some(next) = pending.session.release(pending.channel)
        {
            self.mounts.ready(next, self);
        }
        bound
    }

    fn try_bind(self: &Arc<Server>, pending: &PendingBind) -> io::Result<Option<BoundChannel>> {
        let (to, session) = (&pending.to, pending.session.clone());
        let root = session.export.handles.of(&session.export.root, &session.export)?;
        let channels = session.channels.lock().expect("not poisoned");
        let (granted, resumed) = (channels.granted(pending.channel), channels.is_resumed());
        drop(channels);
        let (channel, server) = (pending.channel, Arc::downgrade(self));
        let mut own = to.path.connection.session.lock().expect("not poisoned");
        if to.path.connection.closed.load(Ordering::Acquire) || own.epoch != to.path.epoch {
            return Ok(None);
        }
        own.fids = session.fids.clone();
        own.attached = true;
        own.set_form(Protocol::Bound(Arc::new(ChannelBinding { session, channel, server })));
        let to = own.reply_to(&to.path.connection, to.tag);
        drop(own);
        let keep = self.settings().session_timeout.to_duration().as_secs() as u32;
        Ok(Some(BoundChannel { to, slots: granted, resumed, timeout: keep, root }))
    }
}
