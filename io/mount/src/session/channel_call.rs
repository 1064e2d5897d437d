//! A mount's calls as the session's queues and channels know them.

use std::sync::Arc;

use model::Direction;
use session::client::{CallNeeds, QueuedCall};

use super::call::ServerCall;
use super::identities::SessionIdentity;

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
