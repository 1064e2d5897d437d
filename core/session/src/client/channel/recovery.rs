//! Connections that are lost, and the two ways on: the session resumes, or another one begins.

use model::Time;
use ninep::Tag;

use super::{
    CallId, ChannelCall, ChannelControl, ChannelPhase, ClientChannel, FrameSink, InFlight, TAGS,
};

impl<C: ChannelCall> ClientChannel<C> {
    /// The connection is lost. `detach` is passed the calls that are being flushed: nobody waits for
    /// them without a connection.
    pub fn disconnect(&mut self, mut detach: impl FnMut(&mut C), now: Time) {
        self.phase = ChannelPhase::Disconnected(now);
        self.pinged = None;
        for tag in 0..TAGS {
            match &mut self.in_flight[usize::from(tag)] {
                Some(InFlight::Call { call, flushed: Some(_), .. }) => detach(call),
                Some(InFlight::Control(ChannelControl::Ping(_))) => {
                    self.in_flight[usize::from(tag)] = None;
                    self.end(Tag(tag), false);
                }
                _ => {}
            }
        }
        self.control.retain(|control| !matches!(control, ChannelControl::Ping(_)));
    }

    /// The session goes on over another connection: everything in flight is sent once more.
    pub fn resume(&mut self, sink: &mut impl FrameSink<C>) {
        let ids = self.calls.calls_to_replay();
        for id in ids.into_iter().map(|(id, ())| id) {
            match &self.in_flight[usize::from(id.tag.0)] {
                Some(InFlight::Call { call, .. }) => sink.send_call(call),
                Some(InFlight::Control(control)) => sink.send_control(id, control),
                Some(InFlight::Flushed { .. }) | None => {}
            }
        }
    }

    /// Another session begins, with `slots` slots here: what may be repeated waits again, what
    /// may not is in doubt. Gives the calls that were being flushed, whose waiters get EINTR.
    ///
    /// No lock is taken before `locks_from`: the former holders may take theirs again.
    pub fn restart(&mut self, slots: u16, epoch: u64, locks_from: Option<Time>) -> Vec<C> {
        self.locks_from = locks_from;
        let ids = self.calls.calls_to_replay();
        let ids: Vec<CallId> = ids.into_iter().map(|(id, ())| id).collect();
        self.calls.restart(slots);
        self.queues.all_ended();
        (self.slots_free, self.epoch) = (slots, epoch);
        (self.flushed, self.waits) = (0, 0);
        let mut flushed_calls = Vec::new();
        for id in ids.into_iter().rev() {
            match self.in_flight[usize::from(id.tag.0)].take() {
                Some(InFlight::Call { call, flushed: Some(_), .. }) => flushed_calls.push(call),
                Some(InFlight::Call { call, .. }) if call.needs().once => self.in_doubt.push(call),
                Some(InFlight::Call { call, .. }) => self.queues.push_front(call),
                Some(InFlight::Control(control)) => self.control.push_front(control),
                Some(InFlight::Flushed { .. }) | None => {}
            }
        }
        // Flushes and waits of the old session are gone with it.
        let outlives = |control: &ChannelControl<C::Identity>| {
            matches!(control, ChannelControl::Identity(_) | ChannelControl::Events)
        };
        self.control.retain(outlives);
        flushed_calls
    }

    /// Takes a call in doubt, to find out whether it was executed.
    pub fn pop_in_doubt(&mut self) -> Option<C> {
        self.in_doubt.pop()
    }

    /// A call is still in doubt.
    pub fn push_in_doubt(&mut self, call: C) {
        self.in_doubt.push(call);
    }

    /// A call in doubt was not executed: it is made again.
    pub fn requeue(&mut self, call: C) {
        self.queues.push_front(call);
    }

    /// There is a connection again, over which the session was begun later than `now`.
    pub fn up(&mut self, now: Time) {
        self.phase = ChannelPhase::Up;
        (self.last_received, self.renewed) = (now, now);
        self.stats.connected += 1;
    }

    /// There will be no connection any more.
    pub fn close(&mut self) {
        self.phase = ChannelPhase::Over;
    }
}
