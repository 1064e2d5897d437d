//! Whose an object is: its home among the proxies of a group, in an epoch that this proxy has confirmed.
//!
//! ```text
//!   authority (controller, etcd, or a static list) ─► epoch, names, for how long
//!   home of an object = the name with the highest score (rendezvous hashing)
//!   an object comes from another proxy ─► not before that one's leases are over
//! ```
//!
//! Spans come from the authority, never times of day: a proxy counts what it may from when it asked, and
//! what it must wait for from when it was answered.

use model::{Nanos, Time};

use crate::ObjectId;

/// What the authority says of the group in one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// It increases with each change of the names.
    pub epoch: u64,
    /// The names of the proxies, each once.
    pub names: Vec<String>,
}

/// A proxy that may be the home of objects: its name, hashed once for many objects. [`GroupView::home_of`]
/// chooses by the same ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HomeCandidate {
    name: String,
    hash: u64,
}

/// One proxy's knowledge of its group.
#[derive(Clone, Debug)]
pub struct HomeGroup {
    own: String,
    view: GroupView,
    /// The proxy may grant until then.
    confirmed: Time,
    /// Groups of earlier epochs whose leases may be believed until then; `None`: epochs that it missed, in
    /// which any proxy may have been an object's home. `Time::MAX`: not known yet.
    past: Vec<(Option<GroupView>, Time)>,
}

impl GroupView {
    /// The name of the object's home; `None` if the group is empty.
    pub fn home_of(&self, object: ObjectId) -> Option<&str> {
        let ranks = self.names.iter().map(|name| rank(fnv(name.as_bytes()), name, object));
        ranks.max().map(|(_, name)| name)
    }
}

impl HomeCandidate {
    /// A candidate of this name.
    pub fn new(name: &str) -> HomeCandidate {
        HomeCandidate { name: name.into(), hash: fnv(name.as_bytes()) }
    }

    /// The name of the proxy.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its rank for an object: the candidate with the highest is the home, that with the next highest
    /// stands in for a home that is not among the candidates.
    pub fn rank(&self, object: ObjectId) -> (u64, &str) {
        rank(self.hash, &self.name, object)
    }
}

impl HomeGroup {
    /// A proxy that has not heard of a group yet.
    pub fn new(own: &str) -> HomeGroup {
        let view = GroupView { epoch: 0, names: Vec::new() };
        HomeGroup { own: own.into(), view, confirmed: Time::ZERO, past: Vec::new() }
    }

    /// The authority answered: the proxy may grant for `span` after it asked at `asked`; what other proxies
    /// granted in earlier epochs is over `others_over` after now, or, with `None`, that is not known yet.
    /// True if the epoch is new here.
    pub fn confirmed(
        &mut self,
        view: GroupView,
        asked: Time,
        span: Nanos,
        others_over: Option<Nanos>,
        now: Time,
    ) -> bool {
        if view.epoch < self.view.epoch {
            return false;
        }
        let is_new = view.epoch > self.view.epoch;
        if is_new {
            let is_next = view.epoch == self.view.epoch + 1 && self.view.epoch > 0;
            let before = std::mem::replace(&mut self.view, view);
            self.past.push((is_next.then_some(before), Time::MAX));
            self.confirmed = Time::ZERO;
        }
        if let Some(span) = others_over {
            let unknown = self.past.iter_mut().filter(|(_, over)| *over == Time::MAX);
            unknown.for_each(|(_, over)| *over = now + span);
        }
        self.past.retain(|(_, over)| *over > now);
        self.confirmed = self.confirmed.max(asked + span);
        is_new
    }

    /// Until when this proxy may grant what it is home of.
    pub fn confirmed_until(&self) -> Time {
        self.confirmed
    }

    /// What it knows of the group.
    pub fn view(&self) -> &GroupView {
        &self.view
    }

    /// The epoch that it knows; 0 before it has heard of one.
    pub fn epoch(&self) -> u64 {
        self.view.epoch
    }

    /// The object's home in the present epoch.
    pub fn home_of(&self, object: ObjectId) -> Option<&str> {
        self.view.home_of(object)
    }

    /// Whether it is home of the object, and no lease of an earlier home can be believed any more.
    pub fn may_grant(&self, object: ObjectId, now: Time) -> bool {
        now < self.confirmed && self.is_own(object) && self.not_before(object) <= now
    }

    /// From when on an access to an object of this proxy may be executed without asking its earlier homes.
    pub fn not_before(&self, object: ObjectId) -> Time {
        let of_others = self.past.iter().filter(|(view, _)| {
            view.as_ref().is_none_or(|view| view.home_of(object) != Some(&self.own[..]))
        });
        of_others.map(|(_, over)| *over).max().unwrap_or(Time::ZERO)
    }

    fn is_own(&self, object: ObjectId) -> bool {
        self.home_of(object) == Some(&self.own[..])
    }
}

/// The rank of a name for an object: FNV-1a over the name, mixed with the object's hash; of equal scores the
/// later name has the higher rank.
fn rank(hash: u64, name: &str, object: ObjectId) -> (u64, &str) {
    (object.0.iter().fold(hash, |hash, half| mix(hash ^ half)), name)
}

/// FNV-1a of 64 bits: the same in every version, so that all mounts and proxies find the same homes.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Spreads every bit over all of them: the end of SplitMix64 (Steele, Lea and Flood, "Fast splittable
/// pseudorandom number generators", 2014).
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(epoch: u64, names: &[&str]) -> GroupView {
        GroupView { epoch, names: names.iter().map(ToString::to_string).collect() }
    }

    fn objects() -> impl Iterator<Item = ObjectId> {
        (0..10_000u64).map(|number| ObjectId::of(&number.to_le_bytes()))
    }

    fn at(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    const TERM: Nanos = Nanos::from_secs(30);

    #[test]
    fn homes_are_shared_evenly_and_a_new_proxy_takes_its_share_alone() {
        let (three, four) = (view(1, &["a", "b", "c"]), view(2, &["c", "a", "d", "b"]));
        let of = |name: &str| objects().filter(|one| three.home_of(*one) == Some(name)).count();
        for name in ["a", "b", "c"] {
            assert!((3_100..3_600).contains(&of(name)), "{name}: {}", of(name));
        }
        let is_moved = |one: &ObjectId| three.home_of(*one) != four.home_of(*one);
        let moved: Vec<ObjectId> = objects().filter(is_moved).collect();
        assert!(moved.iter().all(|one| four.home_of(*one) == Some("d")));
        assert!((2_300..2_700).contains(&moved.len()));
        assert_eq!(view(1, &[]).home_of(ObjectId([1, 1])), None);
    }

    #[test]
    fn candidates_and_the_group_name_the_same_home_and_a_part_of_them_the_next() {
        let (all, few) = (view(1, &["a", "b", "c"]), view(1, &["a", "c"]));
        let candidates = ["c", "a", "b"].map(HomeCandidate::new);
        for one in objects().take(1_000) {
            let mut order = candidates.each_ref();
            order.sort_by_key(|candidate| std::cmp::Reverse(candidate.rank(one)));
            let order = order.map(HomeCandidate::name);
            assert_eq!(all.home_of(one), Some(order[0]));
            let next = if order[0] == "b" { order[1] } else { order[0] };
            assert_eq!(few.home_of(one), Some(next));
        }
    }

    #[test]
    fn hashes_are_the_same_in_every_version() {
        // The vectors of the FNV's authors.
        assert_eq!(fnv(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv(b"foobar"), 0x8594_4171_f739_67e8);
        // Mounts and proxies of different versions must find the same home.
        let group = view(1, &["io1", "io2", "io3"]);
        let homes = [&b"a"[..], b"b", b"c", b"d", b"e", b"f"].map(|handle| {
            group.home_of(ObjectId::of(handle)).map(|name| name.as_bytes()[2] - b'0')
        });
        assert_eq!(homes, [3, 1, 2, 2, 1, 1].map(Some));
    }

    #[test]
    fn an_object_of_another_is_granted_once_the_leases_of_that_one_are_over() {
        let mut group = HomeGroup::new("a");
        assert!(!group.may_grant(ObjectId([0, 0]), at(0)), "it knows of no group");
        assert!(group.confirmed(view(1, &["a", "b"]), at(0), TERM, Some(Nanos::ZERO), at(1)));
        let is = |home: &str| {
            let (home, both) = (home.to_owned(), view(1, &["a", "b"]));
            objects().find(|one| both.home_of(*one) == Some(&home)).unwrap()
        };
        let (own, others) = (is("a"), is("b"));
        assert!(group.may_grant(own, at(1)) && !group.may_grant(others, at(1)));
        assert!(!group.may_grant(own, at(30)), "it was asked at 0, for 30 s");
        // b is gone: its leases may be believed for 20 s, as the authority knows at 41.
        assert!(group.confirmed(view(2, &["a"]), at(39), TERM, None, at(40)));
        assert_eq!((group.not_before(others), group.not_before(own)), (Time::MAX, Time::ZERO));
        assert!(!group.confirmed(
            view(2, &["a"]),
            at(40),
            TERM,
            Some(Nanos::from_secs(20)),
            at(41)
        ));
        assert!(group.may_grant(own, at(42)));
        assert_eq!((group.may_grant(others, at(60)), group.not_before(others)), (false, at(61)));
        assert!(group.may_grant(others, at(61)));
        assert!(!group.confirmed(view(1, &["a", "b"]), at(62), TERM, None, at(62)));
        assert_eq!(group.epoch(), 2, "an answer of an earlier epoch changes nothing");
        // It missed the third epoch, in which others may have been the home of anything.
        assert!(group.confirmed(view(4, &["a"]), at(70), TERM, Some(Nanos::from_secs(20)), at(70)));
        assert!(!group.may_grant(own, at(89)) && group.may_grant(own, at(90)));
    }
}
