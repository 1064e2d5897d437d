//! Calls and identities of the unit tests: what a mount has of them, without messages.

use std::cell::Cell;
use std::rc::Rc;

use model::{Direction, Time};
use ninep::Fid;

use super::call_queues::{CallNeeds, QueuedCall};
use super::call_table::CallId;
use super::channel::ChannelCall;

/// An identity that the proxy knows, with its window.
#[derive(Debug)]
pub(super) struct TestIdentity {
    pub(super) number: u32,
    requests: Cell<u32>,
    bytes: u64,
    refused: Cell<Option<u32>>,
    is_sent: Cell<bool>,
}

/// A call, known by its number.
#[derive(Debug)]
pub(super) struct TestCall {
    pub(super) number: u32,
    pub(super) needs: CallNeeds,
    pub(super) direction: Direction,
    pub(super) payer: Rc<TestIdentity>,
    pub(super) donor: Option<Rc<TestIdentity>>,
    /// As it was begun last.
    pub(super) id: Option<CallId>,
    pub(super) since: Option<Time>,
    /// Nobody waits for it any more.
    pub(super) is_detached: bool,
}

impl TestIdentity {
    pub(super) fn known(number: u32, requests: u32, bytes: u64) -> Rc<TestIdentity> {
        let (requests, refused, is_sent) = (Cell::new(requests), Cell::new(None), Cell::default());
        Rc::new(TestIdentity { number, requests, bytes, refused, is_sent })
    }

    pub(super) fn set_requests(&self, requests: u32) {
        self.requests.set(requests);
    }

    pub(super) fn refuse(&self, errno: u32) {
        self.refused.set(Some(errno));
    }
}

impl TestCall {
    pub(super) fn new(payer: &Rc<TestIdentity>, number: u32) -> TestCall {
        let (payer, direction) = (payer.clone(), Direction::Metadata);
        let (needs, donor, id, since) = Default::default();
        TestCall { number, needs, direction, payer, donor, id, since, is_detached: false }
    }

    fn pays(&self) -> &Rc<TestIdentity> {
        self.donor.as_ref().unwrap_or(&self.payer)
    }
}

impl QueuedCall for TestCall {
    type Identity = Rc<TestIdentity>;

    fn needs(&self) -> CallNeeds {
        self.needs
    }

    fn queue_identity(&self) -> u32 {
        self.pays().number
    }

    fn direction(&self) -> Direction {
        self.direction
    }

    fn frame_len(&self) -> usize {
        32
    }

    fn is_admitted(&self, calls: u32, bytes: u64) -> bool {
        let pays = self.pays();
        calls < pays.requests.get() && (bytes == 0 || bytes + self.needs.bytes <= pays.bytes)
    }

    fn refusal(&self) -> Option<u32> {
        self.payer.refused.get()
    }

    fn is_donor_refused(&self) -> bool {
        self.donor.as_ref().is_some_and(|donor| donor.refused.get().is_some())
    }

    fn donate(&mut self, donor: &Rc<TestIdentity>) -> bool {
        let goes = self.direction == Direction::Write && self.pays().number != donor.number;
        if goes {
            self.donor = Some(donor.clone());
        }
        goes
    }

    fn revoke_donation(&mut self) {
        self.donor = None;
    }
}

impl ChannelCall for TestCall {
    fn unsent_identity(&self) -> Option<Rc<TestIdentity>> {
        let first = self.payer.requests.get() == 0 && !self.payer.is_sent.replace(true);
        first.then(|| self.payer.clone())
    }

    fn begin(&mut self, id: CallId, wall_time: Option<Time>) {
        (self.id, self.since) = (Some(id), wall_time.or(self.since));
    }

    fn written_fid(&self) -> Option<Fid> {
        (self.direction == Direction::Write).then_some(Fid(self.number))
    }

    fn is_paid_by(&self, identity: &Rc<TestIdentity>) -> bool {
        Rc::ptr_eq(self.pays(), identity)
    }
}
