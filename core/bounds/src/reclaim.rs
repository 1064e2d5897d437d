//! Reclaiming places of a full table for a newcomer.
//!
//! A place is taken from the holder with the most, and only if that has more than the newcomer
//! would have then; or from the newcomer itself. Of the holder's places the one of least worth
//! goes, and of equal ones the one that was idle for longest. A place in use is never taken.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use model::{Nanos, Time};

use crate::Holder;

/// A place in a table.
#[derive(Clone, Debug)]
pub struct ReclaimPlace {
    /// The number of the place in the table.
    pub id: u128,
    /// The holder of the place.
    pub holder: Holder,
    /// The cost of its end; `None` while it is in use.
    pub worth: Option<Worth>,
    /// When it was last used.
    pub used: Time,
}

/// The cost of the end of an idle place for its holder, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Worth {
    /// Nothing: the place has no state.
    Nothing,
    /// A reconnect, by a client that reconnects by itself.
    Reconnect,
    /// All open files of the holder.
    State,
}

/// The places to take for a newcomer to a full table, at most `most`; none if it must be refused.
pub fn reclaim(places: &[ReclaimPlace], newcomer: &Holder, most: usize, now: Time) -> Vec<u128> {
    let mut counts: BTreeMap<&Holder, usize> = BTreeMap::new();
    for place in places {
        *counts.entry(&place.holder).or_default() += 1;
    }
    let own = counts.get(newcomer).copied().unwrap_or(0);
    let idle = |place: &&ReclaimPlace| {
        let is_fresh = now.since(place.used) < IDLE_MIN;
        place.worth.is_some() && !(is_fresh && counts[&place.holder] <= MANY * (own + 1))
    };
    let mut idle: Vec<_> = places.iter().filter(idle).collect();
    idle.sort_by_key(|place| (place.worth, place.used, place.id));
    let mut taken = Vec::new();
    while taken.len() < most {
        let Some(at) = next(&idle, &counts, newcomer, own) else { break };
        let place = idle.remove(at);
        let costs = place.worth != Some(Worth::Nothing);
        if costs && !taken.is_empty() {
            break;
        }
        counts.entry(&place.holder).and_modify(|count| *count -= 1);
        taken.push(place.id);
        // One is enough for this newcomer; taking more places without state saves the next ones a
        // search.
        if costs || place.holder == *newcomer {
            break;
        }
    }
    taken
}

/// The next of the idle places, the least worth first: one of the largest holder that has more
/// than the newcomer will have, or one of the newcomer's own without state.
fn next(
    idle: &[&ReclaimPlace],
    counts: &BTreeMap<&Holder, usize>,
    newcomer: &Holder,
    own: usize,
) -> Option<usize> {
    let may_lose = |place: &ReclaimPlace| match place.holder == *newcomer {
        true => place.worth == Some(Worth::Nothing),
        false => counts[&place.holder] > own + 1,
    };
    let able = idle.iter().enumerate().filter(|(_, place)| may_lose(place));
    able.max_by_key(|(at, place)| (counts[&place.holder], Reverse(*at))).map(|(at, _)| at)
}

/// A place that was used within this time is not idle. Otherwise clients would lose places before
/// their first request.
const IDLE_MIN: Nanos = Nanos::from_secs(1);
/// The exception: a holder with this many times more places than the newcomer would have. Otherwise
/// a holder that takes places as fast as it can leaves none to others.
const MANY: usize = 8;

#[cfg(test)]
mod tests {
    use model::Nid;

    use super::*;

    const NOW: Time = Time::from_nanos(100_000_000_000);

    fn holder(peer: u8) -> Holder {
        Holder { peer: Nid::tcp(std::net::Ipv4Addr::new(10, 0, 0, peer).into()), uid: None }
    }

    fn place(id: u128, peer: u8, worth: Option<Worth>, used_s: u64) -> ReclaimPlace {
        ReclaimPlace {
            id,
            holder: holder(peer),
            worth,
            used: Time::from_nanos(used_s * 1_000_000_000),
        }
    }

    #[test]
    fn the_largest_holder_loses_what_is_worth_least_and_was_idle_longest() {
        let places = [
            place(1, 1, Some(Worth::Nothing), 1),
            place(2, 2, Some(Worth::State), 2),
            place(3, 2, Some(Worth::Nothing), 9),
            place(4, 2, Some(Worth::Nothing), 8),
            place(5, 2, None, 1),
        ];
        assert_eq!(reclaim(&places, &holder(3), 1, NOW), [4]);
        // More at once, as long as it costs nothing.
        assert_eq!(reclaim(&places, &holder(3), 9, NOW), [4, 3]);
        assert_eq!(reclaim(&places[1..2], &holder(3), 9, NOW), []);
    }

    #[test]
    fn equals_take_nothing_from_each_other() {
        let places = [place(1, 1, Some(Worth::Nothing), 1), place(2, 2, None, 1)];
        assert!(reclaim(&places, &holder(2), 9, NOW).is_empty());
        assert!(reclaim(&places, &holder(3), 9, NOW).is_empty());
    }

    #[test]
    fn the_largest_holder_itself_gets_the_place_of_its_own_idle_one() {
        let places = [
            place(1, 1, Some(Worth::State), 1),
            place(2, 1, Some(Worth::Nothing), 5),
            place(3, 2, Some(Worth::Nothing), 1),
        ];
        assert_eq!(reclaim(&places, &holder(1), 9, NOW), [2]);
        assert!(reclaim(&places[..1], &holder(1), 9, NOW).is_empty());
    }

    #[test]
    fn a_holder_of_very_many_loses_fresh_ones_too() {
        let places: Vec<_> = (0..9).map(|id| place(id, 1, Some(Worth::Nothing), 100)).collect();
        assert_eq!(reclaim(&places, &holder(2), 1, NOW), [0]);
        assert!(reclaim(&places[..8], &holder(2), 1, NOW).is_empty());
        // Its own newcomer takes none of them.
        assert!(reclaim(&places, &holder(1), 1, NOW).is_empty());
    }

    #[test]
    fn what_was_used_within_a_second_or_is_in_use_stays() {
        let places = [
            place(1, 1, Some(Worth::Nothing), 99),
            place(2, 1, Some(Worth::Nothing), 100),
            place(3, 1, None, 1),
        ];
        assert_eq!(reclaim(&places, &holder(2), 9, NOW), [1]);
    }
}
