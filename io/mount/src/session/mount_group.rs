//! The group of the proxies that a mount uses: which name is at which source.
//!
//! ```text
//!   each source is probed ─► name, epoch, names ─► all agree ─► a name for each source ─► homes
//!            └─ unreachable ─► the one name that is left, or its name once it is first reached
//!   connected again ─► the same proxy? the same list? a warning, once
//! ```
//!
//! Files have names as their homes, never addresses, so mounts that write addresses differently find the
//! same homes. The list of when the mount began stays in use; docs/decisions/0026 has the reasons.

use std::cmp::Reverse;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use http::ServerAddress;
use leases::{GroupView, HomeCandidate, ObjectId};
use ninep::dialect::WireGroup;

use super::lock;
use crate::options::MountSource;

/// What a proxy says of itself and its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupMember {
    name: String,
    view: GroupView,
}

/// The reply of a source when the mount begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProbedSource {
    Unreachable,
    /// Its proxy has no group, or it is a server of another kind.
    Ungrouped,
    Member(GroupMember),
}

/// The names of a mount's proxies, by the index of the source.
#[derive(Debug)]
pub(crate) struct MountGroup {
    addresses: Vec<ServerAddress>,
    /// The group of when the mount began; none with one source whose proxy has none.
    view: Option<GroupView>,
    homes: Vec<OnceLock<HomeCandidate>>,
    /// Held while a source gets its name, as no two may have the same.
    naming: Mutex<()>,
    /// Whether a difference at the source was logged since it last agreed.
    warned: Vec<AtomicBool>,
}

/// Reason why the sources of a mount are not proxies of one group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// No proxy has a group.
    #[error(
        "the proxy at {address} has no [group], which a mount of several proxies needs; add to the \
         configuration of each proxy a [group] with its name and the names of all"
    )]
    NoGroup {
        /// The first of the sources.
        address: ServerAddress,
    },
    /// One proxy has no group.
    #[error(
        "the proxy at {address} has no [group], but the one at {other} has: {group}; add the same to \
         its configuration, or remove the source"
    )]
    Ungrouped {
        /// The source without a group.
        address: ServerAddress,
        /// A source with one.
        other: ServerAddress,
        /// The epoch and the names of that group.
        group: String,
    },
    /// A proxy is not in the list of another one.
    #[error(
        "the proxy at {address} is {name:?}, which is not in the group of the one at {other}: {group}; \
         add it to the [group] of all proxies with a higher epoch, or remove the source"
    )]
    NotInGroup {
        /// The source that is not in the list.
        address: ServerAddress,
        /// The name of its proxy.
        name: String,
        /// The source with the list.
        other: ServerAddress,
        /// The epoch and the names of that list.
        group: String,
    },
    /// Two proxies have different lists or epochs.
    #[error(
        "the proxies at {address} and {other} have different groups: {group}, and {other_group}; give \
         all proxies the same proxies and epoch in [group]"
    )]
    Different {
        /// The first of the sources.
        address: ServerAddress,
        /// The epoch and the names of its group.
        group: String,
        /// The source that differs.
        other: ServerAddress,
        /// The epoch and the names of that one's group.
        other_group: String,
    },
    /// Two sources are one proxy.
    #[error("the sources {address} and {other} are the same proxy, {name:?}; remove one of them")]
    SameProxy {
        /// The first of the sources.
        address: ServerAddress,
        /// The source that is the same proxy.
        other: ServerAddress,
        /// The name of the proxy.
        name: String,
    },
    /// More sources cannot be reached than the group has further proxies.
    #[error(
        "the source {address} cannot be reached, and the other sources are all proxies of the group: \
         {group}; remove a source that is not one of them, or is one twice"
    )]
    Surplus {
        /// The last source that cannot be reached.
        address: ServerAddress,
        /// The epoch and the names of the group.
        group: String,
    },
}

/// Reason why a proxy that was reached later is not the one of its source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GroupMismatch {
    #[error("it is the proxy {said:?}, but {expected:?} is expected; correct its name in [group]")]
    Renamed { said: String, expected: String },
    #[error("it is the proxy {said:?}, which is not in the group or another source already")]
    NoPlace { said: String },
    #[error("it has no [group]")]
    Ungrouped,
}

impl GroupMember {
    /// A copy of the message; none if the proxy has no group.
    pub(crate) fn of(said: WireGroup<'_>) -> Option<GroupMember> {
        let names = said.names().map(str::to_owned).collect();
        let view = GroupView { epoch: said.epoch(), names };
        (!said.is_none()).then(|| GroupMember { name: said.name().into(), view })
    }
}

impl ProbedSource {
    fn member(&self) -> Option<&GroupMember> {
        match self {
            ProbedSource::Member(member) => Some(member),
            ProbedSource::Ungrouped | ProbedSource::Unreachable => None,
        }
    }
}

/// The epoch and the names, as errors show them.
impl fmt::Display for GroupMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (epoch {})", self.view.names.join(", "), self.view.epoch)
    }
}

impl MountGroup {
    /// Names the sources by what they said, one reply for each.
    ///
    /// # Errors
    /// If several sources are not different proxies of one group.
    pub(crate) fn new(
        sources: &[MountSource],
        probed: &[ProbedSource],
    ) -> Result<MountGroup, GroupError> {
        let members = probed.iter().enumerate().filter_map(|(at, one)| Some((at, one.member()?)));
        let members: Vec<_> = members.collect();
        let group = MountGroup {
            addresses: sources.iter().map(|source| source.address.clone()).collect(),
            view: members.first().map(|(_, member)| member.view.clone()),
            homes: sources.iter().map(|_| OnceLock::new()).collect(),
            naming: Mutex::default(),
            warned: sources.iter().map(|_| AtomicBool::new(false)).collect(),
        };
        if sources.len() > 1 {
            check_members(sources, probed, &members)?;
        }
        for (at, member) in &members {
            group.set_name(*at, &member.name);
        }
        let unreachable = |at: &usize| probed[*at] == ProbedSource::Unreachable;
        let unreachable: Vec<_> = (0..sources.len()).filter(unreachable).collect();
        let free = group.free_names();
        if let (Some((_, member)), [.., last]) = (members.first(), &unreachable[..])
            && unreachable.len() > free.len()
        {
            let address = sources[*last].address.clone();
            return Err(GroupError::Surplus { address, group: member.to_string() });
        }
        if unreachable.len() < free.len() {
            tracing::warn!(
                missing = free.join(", "),
                unreachable = unreachable.len(),
                "the mount does not name all proxies of the group; others serve their files"
            );
        }
        // The name of one is known by those of the others.
        if let ([at], [name]) = (&unreachable[..], &free[..]) {
            group.set_name(*at, name);
        }
        Ok(group)
    }

    /// The index of the source with an object's home: of the names in the group, that with the highest
    /// rank among those that are at a source.
    pub(crate) fn home_of(&self, handle: &[u8]) -> usize {
        if self.homes.len() == 1 {
            return 0;
        }
        let object = ObjectId::of(handle);
        let ranks = self.homes.iter().enumerate().filter_map(|(at, home)| Some((home.get()?, at)));
        let home = ranks.max_by(|(one, _), (other, _)| one.rank(object).cmp(&other.rank(object)));
        home.map(|(_, at)| at).expect("several sources have a group, and one was reached")
    }

    /// The indices of all sources in the order in which they have the session of one: its own first, then
    /// by rank for its name, those without a name last.
    pub(crate) fn order_for(&self, home: usize) -> Vec<usize> {
        let key = self.homes[home].get().map(|own| ObjectId::of(own.name().as_bytes()));
        let mut order: Vec<_> = (0..self.homes.len()).collect();
        order.sort_by_cached_key(|at| {
            let rank = || Some(self.homes[*at].get()?.rank(key?));
            (*at != home, Reverse(rank().map(|(score, name)| (score, name.to_owned()))))
        });
        order
    }

    /// Compares what a source says when it is connected to with the group of the mount. A source that is
    /// reached for the first time gets its name. A list that has changed is logged, and the mount keeps
    /// its own.
    ///
    /// # Errors
    /// If it is not the proxy of this source; such a proxy is not used.
    pub(crate) fn check(
        &self,
        source: usize,
        said: Option<&GroupMember>,
    ) -> Result<(), GroupMismatch> {
        let outcome = self.check_name(source, said);
        let problem = match &outcome {
            Err(mismatch) => Some(mismatch.to_string()),
            Ok(()) if said.map(|member| &member.view) == self.view.as_ref() => None,
            Ok(()) => Some("the list has changed; the mount keeps its own until remounted".into()),
        };
        let is_known = self.warned[source].swap(problem.is_some(), Ordering::Relaxed);
        if let Some(problem) = problem.filter(|_| !is_known) {
            let shown = |member: Option<&GroupMember>| member.map(GroupMember::to_string);
            let own = self.view.clone().map(|view| GroupMember { name: String::new(), view });
            let (own, said) = (shown(own.as_ref()), shown(said));
            let proxy = &self.addresses[source];
            tracing::warn!(%proxy, ?own, ?said, problem, "the group of a proxy differs");
        }
        outcome
    }

    fn check_name(&self, source: usize, said: Option<&GroupMember>) -> Result<(), GroupMismatch> {
        // One source has every file, whatever its name.
        if self.homes.len() == 1 {
            return Ok(());
        }
        let _naming = lock(&self.naming);
        match (self.homes[source].get(), said) {
            (Some(own), Some(member)) if own.name() != member.name => {
                let (said, expected) = (member.name.clone(), own.name().to_owned());
                Err(GroupMismatch::Renamed { said, expected })
            }
            (Some(_), _) => Ok(()),
            (None, None) => Err(GroupMismatch::Ungrouped),
            (None, Some(member)) if self.free_names().contains(&&member.name[..]) => {
                self.set_name(source, &member.name);
                Ok(())
            }
            (None, Some(member)) => Err(GroupMismatch::NoPlace { said: member.name.clone() }),
        }
    }

    fn set_name(&self, source: usize, name: &str) {
        let set = self.homes[source].set(HomeCandidate::new(name));
        assert!(set.is_ok(), "a source is named once");
    }

    /// The names of the group that are at no source.
    fn free_names(&self) -> Vec<&str> {
        let named = |name: &&str| {
            self.homes.iter().filter_map(OnceLock::get).any(|home| home.name() == *name)
        };
        let names = self.view.iter().flat_map(|view| &view.names).map(String::as_str);
        names.filter(|name| !named(name)).collect()
    }
}

/// Checks that all that were reached are different proxies of one group.
fn check_members(
    sources: &[MountSource],
    probed: &[ProbedSource],
    members: &[(usize, &GroupMember)],
) -> Result<(), GroupError> {
    let address = |at: usize| sources[at].address.clone();
    let ungrouped = probed.iter().position(|one| *one == ProbedSource::Ungrouped);
    let Some((first, rest)) = members.split_first() else {
        return match ungrouped {
            Some(at) => Err(GroupError::NoGroup { address: address(at) }),
            None => Ok(()),
        };
    };
    let (other, group) = (address(first.0), first.1.to_string());
    if let Some(at) = ungrouped {
        return Err(GroupError::Ungrouped { address: address(at), other, group });
    }
    for (at, member) in rest {
        if !first.1.view.names.contains(&member.name) {
            let (address, name) = (address(*at), member.name.clone());
            return Err(GroupError::NotInGroup { address, name, other, group });
        }
        if first.1.view != member.view {
            let other_group = member.to_string();
            let (address, other) = (other, address(*at));
            return Err(GroupError::Different { address, group, other, other_group });
        }
        let same = members.iter().find(|(before, it)| before < at && it.name == member.name);
        if let Some((before, _)) = same {
            let (address, other, name) = (address(*before), address(*at), member.name.clone());
            return Err(GroupError::SameProxy { address, other, name });
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "mount_group_tests.rs"]
mod tests;
