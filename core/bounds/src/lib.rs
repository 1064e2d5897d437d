//! Bounds of resources that all clients share: open files, locks, memory.
//!
//! ```text
//!   free = max - used
//!   a peer may hold        free / peers                     that hold anything, itself included
//!   a user of it may hold  (that - what the peer holds) / users of the peer that hold anything
//! ```
//!
//! One user alone gets a third, and one peer with several users a half. This is the dynamic
//! threshold of shared-memory switches (Choudhury and Hahne, 1998) at two levels, with a factor
//! that falls as holders come. With a fixed factor, peers that come one after the other and take
//! all they can get leave a half, a quarter, an eighth. With this one the n-th leaves max / (n +
//! 1), so something is always left for the next peer. A fixed part for each would be too little for
//! the only client of a proxy, or too much for the hundredth. Nothing is taken away: a holder above
//! its part gets no more until it has given units back. A peer that holds nothing may take all free
//! units at once.
//!
//! In a table whose places can be reclaimed, such as connections, a holder may have all while no
//! other wants one: `reclaim` chooses which go then.
//!
//! Left to others: the unit, and the reply to a client that is refused.

mod reclaim;

use std::collections::BTreeMap;

use model::Nid;

pub use reclaim::{ReclaimPlace, Worth, reclaim};

/// A holder of units: a user of a peer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// The node that the connection came from.
    pub peer: Nid,
    /// The user, or `None` for what a connection holds for all its users.
    pub uid: Option<u32>,
}

/// The bound that refused a request for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtBound {
    /// All units are in use.
    All,
    /// The peer has its part.
    Peer,
    /// The user has its part of what the peer may hold.
    User,
}

/// A bounded number of units of one resource, and their holders.
#[derive(Clone, Debug, Default)]
pub struct FairBound {
    max: u64,
    used: u64,
    peak: u64,
    refused: u64,
    peers: BTreeMap<Nid, PeerUsage>,
}

#[derive(Clone, Debug, Default)]
struct PeerUsage {
    used: u64,
    users: BTreeMap<Option<u32>, u64>,
}

impl FairBound {
    /// A bound of `max` units, all of them free.
    pub fn new(max: u64) -> FairBound {
        FairBound { max, ..FairBound::default() }
    }

    /// Changes the number of units; holders keep theirs, even if that is more.
    pub fn set_max(&mut self, max: u64) {
        self.max = max;
    }

    /// Takes units, to be released by [`FairBound::release`].
    ///
    /// # Errors
    /// If a bound would be passed; nothing is taken then.
    pub fn acquire(&mut self, holder: &Holder, amount: u64) -> Result<(), AtBound> {
        if let Err(bound) = self.check(holder, amount) {
            self.refused += 1;
            return Err(bound);
        }
        let peer = self.peers.entry(holder.peer.clone()).or_default();
        *peer.users.entry(holder.uid).or_default() += amount;
        peer.used += amount;
        self.used += amount;
        self.peak = self.peak.max(self.used);
        Ok(())
    }

    /// Gives units back that the holder has taken.
    ///
    /// # Panics
    /// If the holder has fewer units.
    pub fn release(&mut self, holder: &Holder, amount: u64) {
        if amount == 0 {
            return;
        }
        let peer = self.peers.get_mut(&holder.peer).expect("a peer gives back what it has");
        let user = peer.users.get_mut(&holder.uid).expect("a user gives back what it has");
        assert!(*user >= amount, "{holder:?} gives back {amount} of {user}");
        *user -= amount;
        if *user == 0 {
            peer.users.remove(&holder.uid);
        }
        peer.used -= amount;
        self.used -= amount;
        if peer.used == 0 {
            self.peers.remove(&holder.peer);
        }
    }

    /// Whether [`FairBound::acquire`] would succeed now.
    ///
    /// # Errors
    /// The bound that would be passed.
    pub fn check(&self, holder: &Holder, amount: u64) -> Result<(), AtBound> {
        let free = self.max.saturating_sub(self.used);
        if amount > free {
            return Err(AtBound::All);
        }
        // Otherwise a large request would wait forever beside many peers with small ones.
        let Some(peer) = self.peers.get(&holder.peer) else { return Ok(()) };
        let left = (free / self.peers.len() as u64).saturating_sub(peer.used);
        if amount > left {
            return Err(AtBound::Peer);
        }
        let user = peer.users.get(&holder.uid);
        let users = peer.users.len() as u64 + u64::from(user.is_none());
        let most = left / users;
        if user.copied().unwrap_or(0) + amount > most { Err(AtBound::User) } else { Ok(()) }
    }

    /// How many units there are.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// How many units are held.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// The most units that were held since the last call.
    pub fn take_peak(&mut self) -> u64 {
        std::mem::replace(&mut self.peak, self.used)
    }

    /// How many requests were refused.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(peer: u8, uid: u32) -> Holder {
        Holder { peer: Nid::tcp(std::net::Ipv4Addr::new(10, 0, 0, peer).into()), uid: Some(uid) }
    }

    /// Takes units one at a time for as long as there are any; returns how many, and what ended it.
    fn take_all(bound: &mut FairBound, holder: &Holder) -> (u64, AtBound) {
        (0..).find_map(|taken| bound.acquire(holder, 1).err().map(|end| (taken, end))).unwrap()
    }

    #[test]
    fn one_user_gets_a_third_and_the_next_ones_still_get_parts() {
        let mut bound = FairBound::new(900);
        assert_eq!(take_all(&mut bound, &holder(1, 1000)), (300, AtBound::User));
        assert_eq!(take_all(&mut bound, &holder(1, 1001)), (75, AtBound::User));
        assert_eq!(take_all(&mut bound, &holder(2, 1000)), (105, AtBound::User));
        assert_eq!((bound.used(), bound.refused()), (480, 3));
    }

    #[test]
    fn whoever_comes_last_still_gets_a_part_beside_a_hundred_greedy_peers() {
        let mut bound = FairBound::new(10_000);
        for peer in 0..100 {
            for uid in 0..5 {
                take_all(&mut bound, &holder(peer, uid));
            }
        }
        assert!(bound.max() - bound.used() > 10_000 / 101);
        assert!(take_all(&mut bound, &holder(200, 1)).0 > 0);
    }

    #[test]
    fn what_is_given_back_can_be_had_again_and_leaves_no_trace() {
        let mut bound = FairBound::new(9);
        let (a, b) = (holder(1, 1), holder(2, 1));
        assert_eq!(take_all(&mut bound, &a).0, 3);
        bound.release(&a, 3);
        assert!(bound.peers.is_empty() && bound.used() == 0);
        assert_eq!(take_all(&mut bound, &b).0, 3);
    }

    #[test]
    fn a_lower_bound_takes_nothing_away_and_gives_nothing() {
        let mut bound = FairBound::new(9);
        let a = holder(1, 1);
        bound.acquire(&a, 3).unwrap();
        bound.set_max(2);
        assert_eq!(bound.acquire(&a, 1), Err(AtBound::All));
        bound.release(&a, 3);
        assert_eq!(bound.acquire(&a, 1), Ok(()));
    }

    #[test]
    fn large_amounts_count_as_many_small_ones() {
        let mut bound = FairBound::new(100);
        assert_eq!(bound.acquire(&holder(1, 1), 101), Err(AtBound::All));
        assert_eq!(bound.acquire(&holder(1, 1), 60), Ok(()));
        assert_eq!(bound.acquire(&holder(1, 2), 1), Err(AtBound::Peer));
        // A peer that holds nothing may have whatever is free.
        assert_eq!(bound.acquire(&holder(2, 2), 40), Ok(()));
        assert_eq!(bound.acquire(&holder(3, 2), 1), Err(AtBound::All));
        assert_eq!(bound.used(), 100);
    }
}
