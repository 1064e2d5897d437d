//! A mount's calls as the session's queues and channels know them.

use std::sync::Arc;

use model::{Direction, Time};
use ninep::Fid;
use session::client::{CallId, CallNeeds, ChannelCall, FrameSink, QueuedCall};

use super::call::ServerCall;
use super::control::{SessionControl, control_frame};
use super::identities::SessionIdentity;
use super::socket::SocketOutbox;

impl QueuedCall for ServerCall {
    type Identity = Arc<SessionIdentity>;

    fn needs(&self) -> CallNeeds {
        self.spec.needs
    }

    fn queue_identity(&self) -> u32 {
        self.pays().number
    }

    fn direction(&self) -> Direction {
        self.spec.frame.direction()
    }

    fn frame_len(&self) -> usize {
        self.spec.frame.bytes().len()
    }

    fn is_admitted(&self, calls: u32, bytes: u64) -> bool {
        self.pays().admits(calls, bytes, self.spec.needs.bytes)
    }

    fn refusal(&self) -> Option<u32> {
        self.payer.refused().map(|error| error.raw_os_error().unsigned_abs())
    }

    fn is_donor_refused(&self) -> bool {
        let pays = self.pays();
        pays.number != self.payer.number && pays.refused().is_some()
    }

    fn donate(&mut self, donor: &Arc<SessionIdentity>) -> bool {
        let goes = donor.is_known()
            && !Arc::ptr_eq(self.pays(), donor)
            && self.spec.frame.set_donor(Some(donor.number));
        if goes {
            self.donor = Some(donor.clone());
        }
        goes
    }

    fn revoke_donation(&mut self) {
        self.donor = None;
        self.spec.frame.set_donor(None);
    }
}

impl ChannelCall for ServerCall {
    fn unsent_identity(&self) -> Option<Arc<SessionIdentity>> {
        self.payer.begin_send().then(|| self.payer.clone())
    }

    fn begin(&mut self, id: CallId, wall_time: Option<Time>) {
        self.since = wall_time.or(self.since);
        let remote_ops = match self.spec.frame.direction() {
            Direction::Metadata => self.payer.count_remote_ops(),
            Direction::Read | Direction::Write => 0,
        };
        let identity = self.pays().number;
        self.spec.frame.stamp(id, identity, remote_ops);
    }

    fn written_fid(&self) -> Option<Fid> {
        self.spec.frame.written_fid()
    }

    fn is_paid_by(&self, identity: &Arc<SessionIdentity>) -> bool {
        Arc::ptr_eq(self.pays(), identity)
    }
}

impl FrameSink<ServerCall> for SocketOutbox {
    fn send_call(&mut self, call: &ServerCall) {
        self.push(&call.spec.frame);
    }

    fn send_control(&mut self, id: CallId, control: &SessionControl) {
        self.push(&control_frame(control, id));
    }
}
