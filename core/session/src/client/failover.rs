//! Where a session goes when its proxy is gone, what it may reclaim there, and when it goes back.
//!
//! ```text
//!   connection lost ─► the same proxy ─┬─ answers ─► resumed, or restored
//!                                      └─ Outage: long gone ─► the next one ─► restored
//!   failed over, and the own proxy is back ─► FailBack: nothing in flight, no locks ─► own proxy
//! ```
//!
//! A session moves as a whole. To the proxy that it moves to it is a new session, so that proxy
//! receives what a restarted proxy receives: identities, open files, and locks as [`LockReclaim`]
//! says.

use std::fmt;

use model::{Nanos, Time};

/// Since when a proxy is not there, and how surely.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outage {
    dead_since: Option<Time>,
    silent_since: Option<Time>,
}

/// Why the locks of a session may be reclaimed where it is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockReclaim {
    /// The proxy was started again, and says itself whether others could take locks since: it has a
    /// grace period, as NFSv4 has (RFC 8881, section 8.4.2).
    Grace,
    /// Another proxy takes over from a dead one. Until this time no other client gets the locks,
    /// since every mount reserves them that long for their former owners.
    Until(Time),
    /// They may not: others may have had them.
    Never,
}

/// Which proxy has the session, under which name, and what that proxy knows of it.
#[derive(Clone)]
pub struct SessionLife {
    epoch: u64,
    /// The number of proxies' lives that it was restored for; an epoch that was begun again before
    /// all was received is not a further one.
    lives: u64,
    is_restored: bool,
    reclaim: LockReclaim,
    outage: Outage,
    source: usize,
    id: u128,
}

/// A move back to the own proxy, for which calls in flight are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailBack {
    deadline: Time,
}

/// What a move back to the own proxy does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailBackStep {
    /// Calls are in flight: to be polled again after a moment.
    Wait,
    /// The session moves now.
    Move,
    /// The session has a lock, which would be free for a moment: it stays where it is.
    Stay,
    /// Calls in flight did not end: a later attempt is better.
    Postpone,
}

/// The pauses between two rounds of attempts to connect: 10 ms at first, and up to 500 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReconnectPause {
    next: Nanos,
}

impl Outage {
    /// An attempt to reach the proxy failed; with `is_dead` its machine refuses connections, so that
    /// nothing is executed there any more.
    pub fn failed(&mut self, is_dead: bool, now: Time) {
        self.silent_since.get_or_insert(now);
        self.dead_since = is_dead.then(|| self.dead_since.unwrap_or(now));
    }

    /// A connection to the proxy is there, over which a message last came at `heard`: its machine is not
    /// dead, and the proxy was not silent before.
    pub fn heard(&mut self, heard: Time) {
        self.dead_since = None;
        self.silent_since = self.silent_since.map(|since| since.max(heard));
    }

    /// Whether the proxy's machine refused the last connection.
    pub fn is_dead(&self) -> bool {
        self.dead_since.is_some()
    }

    /// Whether it is time for another proxy to take over.
    pub fn may_fail_over(&self, now: Time) -> bool {
        let is_over =
            |since: Option<Time>, patience| since.is_some_and(|since| now.since(since) >= patience);
        is_over(self.dead_since, DEAD_PATIENCE) || is_over(self.silent_since, SILENT_MAX)
    }
}

impl LockReclaim {
    /// The policy at the proxy that is reached after this outage: the `same` or another. `renewed` is
    /// when the former one had the session for certain.
    pub fn after(outage: &Outage, same: bool, renewed: Option<Time>) -> LockReclaim {
        match renewed {
            _ if same => LockReclaim::Grace,
            Some(then) if outage.is_dead() => LockReclaim::Until(then + DEAD_PATIENCE + LOCK_GRACE),
            // One that is silent may live, and have granted others what this mount had.
            _ => LockReclaim::Never,
        }
    }

    /// Whether others may have had by now what was reclaimed.
    pub fn is_late(self, now: Time) -> bool {
        matches!(self, LockReclaim::Until(until) if now >= until)
    }
}

impl SessionLife {
    /// A session that no proxy has yet; its own proxy is the first of the sources.
    pub fn new(id: u128) -> SessionLife {
        let reclaim = LockReclaim::Never;
        SessionLife {
            epoch: 0,
            lives: 0,
            is_restored: false,
            reclaim,
            outage: Outage::default(),
            source: 0,
            id,
        }
    }

    /// The number of times that a proxy had to receive the whole session.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The index of the source that has the session; 0 is its own proxy.
    pub fn source(&self) -> usize {
        self.source
    }

    /// Whether another than its own proxy has the session.
    pub fn is_away(&self) -> bool {
        self.source != 0
    }

    /// The name of the session at a source, a secret. Each proxy to which the session fails over
    /// receives a new one: a proxy that had it before does not know what happened since.
    pub fn id_at(&self, source: usize) -> u128 {
        if source == self.source { self.id } else { self.id.wrapping_add(1) }
    }

    /// A channel that is without a connection could not reach `source`; with `is_dead` its machine
    /// refuses connections. `heard`: when a message last came over a connection of another channel
    /// to the source that has the session; none if no channel has one. Ignored unless `source` is
    /// the one that has the session.
    pub fn failed(&mut self, source: usize, is_dead: bool, heard: Option<Time>, now: Time) {
        if source == self.source {
            self.outage.failed(is_dead, now);
            if let Some(heard) = heard {
                self.outage.heard(heard);
            }
        }
    }

    /// Whether a channel may take the session to `source` now: it is there already, or the one that
    /// has it has answered no channel for long enough, or none has it yet. With `is_connected` another
    /// channel has a connection to the one that has it: calls may be executed there, and it stays.
    pub fn may_enter(&self, source: usize, is_connected: bool, now: Time) -> bool {
        let may_leave = || !is_connected && self.outage.may_fail_over(now);
        source == self.source || self.lives == 0 || may_leave()
    }

    /// No call was made in the session yet: it may begin at any source.
    pub fn begin_anew(&mut self) {
        self.lives = 0;
    }

    /// What is known of the outage of the source that has the session.
    pub fn outage(&self) -> &Outage {
        &self.outage
    }

    /// A source has taken the session. What it has to receive if it does not know the session: locks
    /// are reclaimed as `reclaim` says, which is passed what was known of the former source. `None`
    /// if it knows all. The source has answered, so it is out for no channel.
    pub fn enter(
        &mut self,
        source: usize,
        resumed: bool,
        reclaim: impl FnOnce(&Outage) -> LockReclaim,
    ) -> Option<LockReclaim> {
        let is_again = source == self.source && !self.is_restored && self.lives > 0;
        (self.source, self.id) = (source, self.id_at(source));
        if !resumed {
            self.epoch += 1;
            self.is_restored = false;
            if !is_again {
                self.lives += 1;
                self.reclaim = reclaim(&self.outage);
            }
        }
        self.outage = Outage::default();
        (!self.is_restored).then_some(self.reclaim)
    }

    /// The source has received the whole session.
    pub fn restored(&mut self) {
        self.is_restored = true;
    }

    /// The session moves back to its own proxy, which has to receive it.
    pub fn fail_back(&mut self) {
        (self.source, self.id) = (0, self.id.wrapping_add(1));
        self.epoch += 1;
        self.lives += 1;
        self.is_restored = false;
        // It has none now, and its own proxy decides about those of other lives.
        self.reclaim = LockReclaim::Grace;
        self.outage = Outage::default();
    }

    /// When a channel that begins this epoch may take locks: before, they are reserved for their
    /// former holders. `None` at once: a restarted proxy reserves locks by itself.
    pub fn locks_from(&self, now: Time) -> Option<Time> {
        self.is_away().then(|| match self.lives {
            1 => now + DEAD_PATIENCE + LOCK_GRACE,
            _ => now + LOCK_GRACE,
        })
    }
}

impl fmt::Debug for SessionLife {
    /// Without the name, which is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SessionLife { epoch, lives, is_restored, reclaim, outage, source, id: _ } = self;
        f.debug_struct("SessionLife")
            .field("epoch", epoch)
            .field("lives", lives)
            .field("is_restored", is_restored)
            .field("reclaim", reclaim)
            .field("outage", outage)
            .field("source", source)
            .finish_non_exhaustive()
    }
}

impl FailBack {
    /// Begins to wait for the calls in flight; none begins meanwhile.
    pub fn new(now: Time) -> FailBack {
        FailBack { deadline: now + DRAIN }
    }

    /// What is next when nothing is in flight (`is_quiet`) or something is. `has_locks` is asked
    /// only once nothing is, so that the answer stays true.
    pub fn poll(
        &self,
        is_quiet: bool,
        has_locks: impl FnOnce() -> bool,
        now: Time,
    ) -> FailBackStep {
        match is_quiet {
            true if has_locks() => FailBackStep::Stay,
            true => FailBackStep::Move,
            false if now >= self.deadline => FailBackStep::Postpone,
            false => FailBackStep::Wait,
        }
    }
}

impl ReconnectPause {
    /// The pause after the first round.
    pub const FIRST: ReconnectPause = ReconnectPause { next: PAUSE_MIN };

    /// How long to wait now; twice as long the next time.
    pub fn advance(&mut self) -> Nanos {
        let pause = self.next;
        self.next = (pause + pause).min(PAUSE_MAX);
        pause
    }
}

/// Between two attempts to connect.
const PAUSE_MIN: Nanos = Nanos::from_millis(10);
const PAUSE_MAX: Nanos = Nanos::from_millis(500);
/// How long a proxy that is dead, as its machine says, is waited for before another takes over:
/// one that is only started again is back before.
const DEAD_PATIENCE: Nanos = Nanos::from_secs(3);
/// Time without a message after which a silent proxy counts as gone. A proxy that is cut off drops
/// a silent connection and what is queued on it before (`io/proxy`, `KEEPALIVE_TIMEOUT`), so nothing
/// is executed there afterwards.
const SILENT_MAX: Nanos = Nanos::from_secs(30);
/// Time, after another proxy could first have taken over, for which locks are reserved for their
/// former holders: many times as long as a mount that looks for a proxy pauses.
const LOCK_GRACE: Nanos = Nanos::from_secs(10);
/// How long new calls wait for those in flight before a session moves back.
const DRAIN: Nanos = Nanos::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn another_proxy_takes_over_soon_from_a_dead_one_and_late_from_a_silent_one() {
        let mut outage = Outage::default();
        assert!(!outage.may_fail_over(at(100)), "it was not tried");
        outage.failed(true, at(1));
        outage.failed(true, at(3));
        assert!(!outage.may_fail_over(at(3)) && outage.may_fail_over(at(4)));
        assert!(outage.is_dead());
        // It was started, but does not answer.
        outage.failed(false, at(4));
        assert!(!outage.may_fail_over(at(30)) && outage.may_fail_over(at(31)));
        assert!(!outage.is_dead(), "it may live, and its locks with it");
    }

    #[test]
    fn locks_are_reclaimed_where_nobody_else_can_have_had_them() {
        let (mut dead, mut silent) = (Outage::default(), Outage::default());
        dead.failed(true, at(100));
        silent.failed(false, at(100));
        let renewed = Some(at(90));
        assert_eq!(LockReclaim::after(&silent, true, renewed), LockReclaim::Grace);
        assert_eq!(LockReclaim::after(&silent, false, renewed), LockReclaim::Never);
        assert_eq!(LockReclaim::after(&dead, false, None), LockReclaim::Never);
        let until = LockReclaim::after(&dead, false, renewed);
        assert_eq!(until, LockReclaim::Until(at(103)));
        assert!(!until.is_late(at(102)) && until.is_late(at(103)));
        assert!(!LockReclaim::Grace.is_late(at(1000)), "its proxy decides that");
    }

    #[test]
    fn other_mounts_leave_locks_to_their_holders_for_at_least_as_long_as_those_may_reclaim() {
        let mut dead = Outage::default();
        dead.failed(true, at(100));
        let LockReclaim::Until(until) = LockReclaim::after(&dead, false, Some(at(100))) else {
            panic!("nobody else can have had them");
        };
        // The first mount of all that fails over, as early as any may.
        let mut life = SessionLife::new(7);
        life.enter(0, false, |_| LockReclaim::Never);
        life.enter(1, false, |_| LockReclaim::Never);
        assert!(dead.may_fail_over(at(103)));
        assert!(life.locks_from(at(103)).unwrap() >= until);
        // A mount that begins while the proxy is dead may be there before.
        let mut life = SessionLife::new(7);
        life.enter(1, false, |_| LockReclaim::Never);
        assert!(life.locks_from(at(100)).unwrap() >= until);
        life.fail_back();
        assert_eq!(life.locks_from(at(100)), None);
    }

    #[test]
    fn each_proxy_knows_the_session_by_another_name_and_receives_all_of_it_once() {
        let mut life = SessionLife::new(7);
        assert_eq!(life.enter(0, false, |_| LockReclaim::Grace), Some(LockReclaim::Grace));
        life.restored();
        let known = |_: &Outage| unreachable!("the proxy knows the session");
        assert_eq!((life.enter(0, true, known), life.id_at(0)), (None, 7));
        assert_eq!(life.id_at(1), 8);
        assert_eq!(life.enter(1, false, |_| LockReclaim::Never), Some(LockReclaim::Never));
        // A connection that broke before all was received.
        assert_eq!(life.enter(1, true, known), Some(LockReclaim::Never));
        life.restored();
        assert_eq!((life.epoch(), life.is_away(), life.id_at(1)), (2, true, 8));
        life.fail_back();
        assert_eq!((life.epoch(), life.source(), life.id_at(0)), (3, 0, 9));
        assert!(life.enter(0, true, known).is_some(), "it is not restored");
    }

    #[test]
    fn a_session_stays_where_any_channel_has_reached_its_proxy() {
        let mut life = SessionLife::new(7);
        life.enter(0, false, |_| LockReclaim::Grace);
        life.restored();
        life.failed(0, true, None, at(10));
        life.failed(1, false, None, at(11));
        assert!(life.outage().is_dead(), "the other proxy has no part in it");
        assert!(!life.may_enter(1, false, at(12)) && life.may_enter(0, false, at(12)));
        // A second channel finds the proxy before the first does.
        life.enter(0, true, |_| unreachable!("the proxy knows the session"));
        assert!(!life.may_enter(1, false, at(60)), "calls may run there");
        life.failed(0, true, None, at(60));
        assert!(!life.may_enter(1, false, at(62)) && life.may_enter(1, false, at(63)));
        let seen = |outage: &Outage| LockReclaim::after(outage, false, Some(at(59)));
        assert_eq!(life.enter(1, false, seen), Some(LockReclaim::Until(at(72))));
        assert!(!life.may_enter(0, false, at(100)), "nothing is known against the one that has it");
    }

    #[test]
    fn a_session_does_not_leave_a_proxy_to_which_another_channel_is_connected() {
        let mut life = SessionLife::new(7);
        life.enter(0, false, |_| LockReclaim::Grace);
        life.restored();
        life.failed(0, true, Some(at(9)), at(10));
        assert!(!life.outage().is_dead(), "another channel has a connection");
        life.failed(0, true, Some(at(59)), at(60));
        assert!(!life.may_enter(1, true, at(60)) && !life.may_enter(1, false, at(60)));
        // The connection ends, and the proxy is waited for as if nothing had been before.
        life.failed(0, true, None, at(61));
        assert!(!life.may_enter(1, false, at(63)) && life.may_enter(1, false, at(64)));
        assert!(!life.may_enter(1, true, at(64)), "it was connected again meanwhile");
    }

    #[test]
    fn an_idle_connection_to_a_silent_proxy_does_not_put_the_failover_off() {
        let mut life = SessionLife::new(7);
        life.enter(0, false, |_| LockReclaim::Grace);
        life.restored();
        life.failed(0, false, Some(at(2)), at(10));
        life.failed(0, false, Some(at(2)), at(20));
        life.failed(0, false, None, at(25));
        assert!(!life.may_enter(1, false, at(39)) && life.may_enter(1, false, at(40)));
    }

    #[test]
    fn a_session_that_is_begun_again_before_it_is_restored_keeps_its_policy_for_locks() {
        let mut life = SessionLife::new(7);
        life.enter(0, false, |_| LockReclaim::Grace);
        life.restored();
        assert_eq!(life.enter(1, false, |_| LockReclaim::Never), Some(LockReclaim::Never));
        let unasked = |_: &Outage| unreachable!("it was decided when it moved");
        assert_eq!(life.enter(1, false, unasked), Some(LockReclaim::Never));
        assert_eq!(life.epoch(), 3, "what was sent in the second is sent again");
        life.restored();
        // This proxy was started again.
        assert_eq!(life.enter(1, false, |_| LockReclaim::Grace), Some(LockReclaim::Grace));
    }

    #[test]
    fn the_name_of_a_session_is_not_printed() {
        let life = SessionLife::new(987_654_321);
        assert!(!format!("{life:?}").contains("987654321"), "{life:?}");
    }

    #[test]
    fn a_session_moves_back_when_nothing_is_in_flight_and_it_has_no_lock() {
        let back = FailBack::new(at(10));
        let unknown = || unreachable!("calls are in flight");
        assert_eq!(back.poll(false, unknown, at(11)), FailBackStep::Wait);
        assert_eq!(back.poll(false, unknown, at(12)), FailBackStep::Postpone);
        assert_eq!(back.poll(true, || true, at(11)), FailBackStep::Stay);
        assert_eq!(back.poll(true, || false, at(12)), FailBackStep::Move);
    }

    #[test]
    fn attempts_become_rarer_up_to_two_a_second() {
        let mut pause = ReconnectPause::FIRST;
        let pauses: Vec<_> = (0..8).map(|_| pause.advance().get() / 1_000_000).collect();
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 500, 500]);
    }
}
