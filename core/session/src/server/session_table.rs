//! The sessions of a proxy: which one a Tsession enters, and which of them end.
//!
//! ```text
//!   Tsession id ─► known ─┬─ of another owner, or another export ─► refused
//!                         └─► resumed
//!               ─► unknown ─► the table is full ─► reclaimed: others end for it, or refused
//!                                    └──────────► begun
//!   without a connection for longer than `keep` ─► expired
//! ```
//!
//! Left to others: a session's content, the end of what it has open, and which sessions of a full
//! table are worth least.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Nanos, Nid, Time};

use super::SessionRefusal;

/// The sessions of all mounts at a proxy, by the number that each mount has chosen.
#[derive(Clone, Debug)]
pub struct SessionTable<S> {
    sessions: BTreeMap<u128, S>,
    refused: u64,
    reclaimed: u64,
}

/// What the table must know of a session; the rest is its caller's.
pub trait TabledSession {
    /// Who began the session and may resume it.
    fn owner(&self) -> &SessionOwner;

    /// The name of the export that it uses.
    fn export(&self) -> &str;

    /// The time when its last connection ended; `None` while one has, or waits for, a channel.
    fn left(&self) -> Option<Time>;
}

/// Who began a session: nobody else may resume it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionOwner {
    /// The user, for a peer on a Unix socket.
    pub uid: Option<u32>,
    /// The node that the connection came from.
    pub peer: Nid,
}

/// The session that a Tsession enters.
#[derive(Debug, PartialEq, Eq)]
pub struct EnteredSession<'t, S> {
    /// The session, found or begun.
    pub session: &'t mut S,
    /// Whether it was found. Whether its client knows of it is for
    /// [`SessionChannels::is_resumed`](super::SessionChannels::is_resumed) to say.
    pub resumed: bool,
    /// The sessions that ended to make room for it.
    pub ended: Vec<S>,
}

impl<S> Default for SessionTable<S> {
    fn default() -> SessionTable<S> {
        SessionTable { sessions: BTreeMap::new(), refused: 0, reclaimed: 0 }
    }
}

impl<S: TabledSession> SessionTable<S> {
    /// Finds the session `id`, or begins it with `begin`. A full table has `max` sessions or more;
    /// `reclaim` names those that may end then.
    ///
    /// # Errors
    /// If the session is of another owner or export, or the table is full and `reclaim` names
    /// none; nothing has changed then, except that a refusal by a full table is counted.
    pub fn enter(
        &mut self,
        id: u128,
        owner: &SessionOwner,
        export: &str,
        max: usize,
        reclaim: impl FnOnce(&SessionTable<S>) -> Vec<u128>,
        begin: impl FnOnce() -> S,
    ) -> Result<EnteredSession<'_, S>, SessionRefusal> {
        if let Some(session) = self.sessions.get(&id) {
            if session.owner() != owner {
                return Err(SessionRefusal::OtherOwner);
            }
            if session.export() != export {
                return Err(SessionRefusal::OtherExport);
            }
        }
        let (mut ended, resumed) = (Vec::new(), self.sessions.contains_key(&id));
        if !resumed && self.sessions.len() >= max {
            let chosen = reclaim(self);
            ended.extend(chosen.iter().filter_map(|id| self.sessions.remove(id)));
            if ended.is_empty() {
                self.refused += 1;
                return Err(SessionRefusal::TooManySessions);
            }
            self.reclaimed += ended.len() as u64;
        }
        let session = self.sessions.entry(id).or_insert_with(begin);
        Ok(EnteredSession { session, resumed, ended })
    }

    /// Removes the sessions whose last connection ended longer ago than `keep`, and returns them.
    pub fn expire(&mut self, keep: Nanos, now: Time) -> Vec<S> {
        let is_over = |session: &S| session.left().is_some_and(|left| now.since(left) > keep);
        let over = self.sessions.iter().filter(|(_, session)| is_over(session));
        let over: Vec<u128> = over.map(|(id, _)| *id).collect();
        over.iter().filter_map(|id| self.sessions.remove(id)).collect()
    }
}

impl<S> SessionTable<S> {
    /// The session of this number.
    pub fn get_mut(&mut self, id: u128) -> Option<&mut S> {
        self.sessions.get_mut(&id)
    }

    /// All sessions with their numbers, in the order of these.
    pub fn iter(&self) -> impl Iterator<Item = (u128, &S)> {
        self.sessions.iter().map(|(id, session)| (*id, session))
    }

    /// How many sessions there are.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether there is no session.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// How many Tsessions a full table has refused.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// How many sessions have ended to make room for others.
    pub fn reclaimed(&self) -> u64 {
        self.reclaimed
    }
}

impl<S: TabledSession> TabledSession for Arc<S> {
    fn owner(&self) -> &SessionOwner {
        S::owner(self)
    }

    fn export(&self) -> &str {
        S::export(self)
    }

    fn left(&self) -> Option<Time> {
        S::left(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Session {
        owner: SessionOwner,
        left: Option<Time>,
    }

    impl TabledSession for Session {
        fn owner(&self) -> &SessionOwner {
            &self.owner
        }

        fn export(&self) -> &str {
            "home"
        }

        fn left(&self) -> Option<Time> {
            self.left
        }
    }

    fn owner(uid: u32) -> SessionOwner {
        let peer = Nid::tcp(std::net::Ipv4Addr::new(10, 0, 0, 1).into());
        SessionOwner { uid: Some(uid), peer }
    }

    fn session(uid: u32, left_s: Option<u64>) -> Session {
        Session { owner: owner(uid), left: left_s.map(secs) }
    }

    fn secs(at: u64) -> Time {
        Time::ZERO + Nanos::from_secs(at)
    }

    /// A table of two places with the sessions 1, bound, and 2, without a connection since 5 s.
    fn full() -> SessionTable<Session> {
        let mut table = SessionTable::default();
        for (id, left) in [(1, None), (2, Some(5))] {
            let begin = || session(id as u32, left);
            let entered = table.enter(id, &owner(id as u32), "home", 2, |_| vec![], begin);
            assert!(!entered.unwrap().resumed);
        }
        table
    }

    #[test]
    fn a_session_is_resumed_by_its_owner_for_its_export_only() {
        let mut table = full();
        let mut enter = |uid, export: &str| {
            let begin = || unreachable!("it is there");
            let entered = table.enter(1, &owner(uid), export, 2, |_| vec![], begin);
            entered.map(|entered| entered.resumed)
        };
        assert_eq!(enter(1, "home"), Ok(true));
        assert_eq!(enter(2, "home"), Err(SessionRefusal::OtherOwner));
        assert_eq!(enter(1, "scratch"), Err(SessionRefusal::OtherExport));
    }

    #[test]
    fn a_full_table_ends_what_is_named_or_refuses_the_newcomer() {
        let mut table = full();
        let mut enter = |ends: Vec<u128>| {
            let entered = table.enter(3, &owner(3), "home", 2, |_| ends, || session(3, None));
            entered.map(|entered| entered.ended)
        };
        assert_eq!(enter(vec![]), Err(SessionRefusal::TooManySessions));
        assert_eq!(enter(vec![9]), Err(SessionRefusal::TooManySessions), "there is no such one");
        assert_eq!(enter(vec![2]), Ok(vec![session(2, Some(5))]));
        assert_eq!((table.len(), table.refused(), table.reclaimed()), (2, 2, 1));
        assert_eq!(table.iter().map(|(id, _)| id).collect::<Vec<_>>(), [1, 3]);
    }

    #[test]
    fn a_session_expires_when_it_was_without_a_connection_for_longer_than_it_is_kept() {
        let (mut table, keep) = (full(), Nanos::from_secs(60));
        assert_eq!(table.expire(keep, secs(65)), []);
        assert_eq!(table.expire(keep, secs(66)), [session(2, Some(5))]);
        assert_eq!(table.expire(keep, Time::MAX), [], "a bound one never does");
        assert!(!table.is_empty());
    }
}
