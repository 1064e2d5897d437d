//! Leases of a session: joining, recalls, and their return.

#![allow(missing_docs, reason = "most methods are named after the message that they send")]

use ninep::Tag;
use ninep::dialect::{
    ExtReply, ExtRequest, HandleList, LeaseGrants, RENEW_DONE, RENEW_JOIN, RENEW_TERM,
    ReturnedLease, SessionEvent, SessionEvents,
};

use super::P9Channel;

/// A recall that a session got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct P9Recall {
    pub access: u64,
    pub file: u64,
    pub kinds: u8,
    pub name: String,
}

impl P9Channel {
    /// The outcome and the term of a Trenew.
    pub fn renew(&mut self, life: u32, what: u8) -> (u8, u64) {
        let frame = self.call(HandleList::NONE, ExtRequest::Renew { life, what });
        match frame.own() {
            Ok(ExtReply::Renew { outcome, term }) => (outcome, term),
            other => panic!("{other:?}"),
        }
    }

    /// Joins the holders and wants leases from now on.
    pub fn join(&mut self, life: u32) {
        assert_eq!(self.renew(life, RENEW_JOIN).0, RENEW_DONE);
        self.lease_life = life;
    }

    /// Whether the term begins again.
    pub fn renews(&mut self) -> bool {
        self.renew(self.lease_life, RENEW_TERM).0 == RENEW_DONE
    }

    /// The kinds that the last reply granted: of the first file, and of the other.
    pub fn granted(&self) -> (u8, u8) {
        let LeaseGrants { named, found } = self.head.leases;
        (named.kinds, found.kinds)
    }

    /// Asks for events, which are waited for with [`recalls`](P9Channel::recalls).
    pub fn listen(&mut self) -> Tag {
        self.send(HandleList::NONE, ExtRequest::Events)
    }

    /// The recalls of a reply to [`listen`](P9Channel::listen).
    pub fn recalls(&mut self, listening: Tag) -> Vec<P9Recall> {
        let frame = self.wait(listening);
        let Ok(ExtReply::Events { data }) = frame.own() else { panic!("{frame:?}") };
        let recall = |event: SessionEvent<'_>| match event {
            SessionEvent::Recall { access, file, kinds, name } => {
                let name = String::from_utf8_lossy(name).into();
                Some(P9Recall { access, file, kinds, name })
            }
            SessionEvent::Window { .. } => None,
        };
        SessionEvents::new(data).filter_map(|event| recall(event.unwrap())).collect()
    }

    /// Answers a recall; `is_done`: what was recalled is free.
    pub fn give_up(&mut self, recall: &P9Recall, is_done: bool) {
        let request = ExtRequest::Return { access: recall.access, done: is_done.into() };
        assert_eq!(self.call(HandleList::NONE, request).own(), Ok(ExtReply::Return));
    }

    /// Gives leases back that were not recalled.
    pub fn give_back(&mut self, lease: ReturnedLease) {
        let mut data = Vec::new();
        lease.encode(&mut data);
        let frame = self.call(HandleList::NONE, ExtRequest::GiveBack { data: &data });
        assert_eq!(frame.own(), Ok(ExtReply::GiveBack));
    }
}
