//! The demand of a reservation: a load on each of some resources.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::load::Load;

/// The place of a resource in its table, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId(u32);

/// What a resource is, and so the unit of its loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResourceKind {
    /// A target, in bytes per second read and written.
    Target,
    /// Metadata operations, in operations per second.
    Metadata,
    /// The networks of the proxies of a target, in bytes per second.
    ProxyNetwork,
    /// The bandwidth of a compute node, in bytes per second.
    Node,
    /// A pool of all reservations, in bytes per second: what a site lets be reserved at all.
    Pool,
}

/// Loads by resource, in the order of resources, none of them empty. Clones share it.
///
/// The targets of a striped file mostly have the same load, so a resource takes 8 bytes: its place
/// and the place of its load among the different ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    resources: Arc<[(ResourceId, u16)]>,
    loads: Arc<[Load]>,
}

/// Why loads are not a demand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DemandError {
    /// No resource is used.
    #[error("a reservation without any load: name at least one resource and a rate")]
    Empty,
    /// Too many resources are used.
    #[error("a reservation of {0} resources: at most {max} are accepted", max = Demand::WIDTH_MAX)]
    TooWide(usize),
    /// The loads of one resource add up to too much.
    #[error("the loads of resource {0} add up to more than 2^60 per second")]
    TooGreat(ResourceId),
}

impl ResourceId {
    /// The resource at a place.
    pub const fn new(place: u32) -> ResourceId {
        ResourceId(place)
    }

    /// The place of the resource.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl ResourceKind {
    /// The word for it in messages.
    pub const fn name(self) -> &'static str {
        match self {
            ResourceKind::Target => "target",
            ResourceKind::Metadata => "metadata",
            ResourceKind::ProxyNetwork => "proxy network",
            ResourceKind::Node => "node",
            ResourceKind::Pool => "pool",
        }
    }

    /// Whether requests without a reservation use it, so that a part is left to them.
    pub const fn has_best_effort(self) -> bool {
        self.is_of_target() || matches!(self, ResourceKind::ProxyNetwork)
    }

    /// Whether it is a target, or its metadata, and not a way to it or a bound of all.
    pub const fn is_of_target(self) -> bool {
        matches!(self, ResourceKind::Target | ResourceKind::Metadata)
    }

    /// Whether its loads are bytes.
    pub const fn is_bytes(self) -> bool {
        !matches!(self, ResourceKind::Metadata)
    }
}

impl Demand {
    /// The most resources of one demand.
    pub const WIDTH_MAX: usize = 1_024;

    /// A demand; loads of the same resource are added up, and empty ones are left out.
    ///
    /// # Errors
    /// If nothing is left, more than [`Demand::WIDTH_MAX`] resources are, or a sum is above
    /// [`Load::PER_SEC_MAX`].
    pub fn new(loads: &[(ResourceId, Load)]) -> Result<Demand, DemandError> {
        if loads.len() > Demand::WIDTH_MAX {
            return Err(DemandError::TooWide(loads.len()));
        }
        let mut sorted: Vec<_> =
            loads.iter().copied().filter(|(_, load)| !load.is_none()).collect();
        sorted.sort_by_key(|(resource, _)| *resource);
        let mut sums: Vec<(ResourceId, Load)> = Vec::with_capacity(sorted.len());
        for (resource, load) in sorted {
            match sums.last_mut().filter(|(last, _)| *last == resource) {
                Some((_, sum)) => {
                    let both = sum.plus(load);
                    *sum = Load::per_sec(both.read_per_sec(), both.write_per_sec())
                        .ok_or(DemandError::TooGreat(resource))?;
                }
                None => sums.push((resource, load)),
            }
        }
        if sums.is_empty() {
            return Err(DemandError::Empty);
        }
        let mut different: Vec<Load> = Vec::new();
        let resources = sums.iter().map(|(resource, load)| {
            let known = different.iter().position(|known| known == load);
            let at = known.unwrap_or(different.len());
            if known.is_none() {
                different.push(*load);
            }
            (*resource, at as u16)
        });
        Ok(Demand { resources: resources.collect(), loads: different.into() })
    }

    /// The loads, in the order of resources.
    pub fn loads(&self) -> impl Iterator<Item = (ResourceId, Load)> {
        self.resources.iter().map(|(resource, load)| (*resource, self.loads[usize::from(*load)]))
    }

    /// How many resources it uses, at least one.
    pub fn width(&self) -> usize {
        self.resources.len()
    }

    /// The load at a place below the width.
    pub(crate) fn nth(&self, place: usize) -> (ResourceId, Load) {
        let (resource, load) = self.resources[place];
        (resource, self.loads[usize::from(load)])
    }

    /// The load of one resource.
    pub fn load(&self, resource: ResourceId) -> Load {
        let found = self.resources.binary_search_by_key(&resource, |(at, _)| *at);
        found.map_or(Load::NONE, |place| self.nth(place).1)
    }

    /// Whether both use one of the same resources. O(both widths).
    pub fn shares_resource(&self, other: &Demand) -> bool {
        let mut these = self.resources.iter().peekable();
        let mut others = other.resources.iter().peekable();
        while let (Some((this, _)), Some((other, _))) = (these.peek(), others.peek()) {
            match this.cmp(other) {
                std::cmp::Ordering::Equal => return true,
                std::cmp::Ordering::Less => these.next(),
                std::cmp::Ordering::Greater => others.next(),
            };
        }
        false
    }

    /// The sum of both.
    ///
    /// # Errors
    /// As of [`Demand::new`].
    pub fn plus(&self, other: &Demand) -> Result<Demand, DemandError> {
        Demand::new(&self.loads().chain(other.loads()).collect::<Vec<_>>())
    }

    /// What this demand has beyond another one; `None` if it has nothing.
    pub fn beyond(&self, other: &Demand) -> Option<Demand> {
        let more = self.loads().map(|(at, load)| (at, load.beyond(other.load(at))));
        Demand::new(&more.collect::<Vec<_>>()).ok()
    }
}

impl fmt::Display for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(loads: &[(u32, u64)]) -> Result<Demand, DemandError> {
        let load = |(at, read): &(u32, u64)| (ResourceId(*at), Load::per_sec(*read, 0).unwrap());
        Demand::new(&loads.iter().map(load).collect::<Vec<_>>())
    }

    #[test]
    fn loads_of_one_resource_add_up_and_empty_ones_are_left_out() {
        let both = demand(&[(3, 5), (1, 2), (3, 6), (2, 0)]).unwrap();
        assert_eq!(both, demand(&[(1, 2), (3, 11)]).unwrap());
        assert_eq!(both.load(ResourceId(3)).read_per_sec(), 11);
        assert_eq!(both.load(ResourceId(2)), Load::NONE);
        assert_eq!(demand(&[(2, 0)]), Err(DemandError::Empty));
        let most = Load::PER_SEC_MAX;
        assert_eq!(demand(&[(7, most), (7, 1)]), Err(DemandError::TooGreat(ResourceId(7))));
        assert_eq!(demand(&[(0, 1); 1_025]), Err(DemandError::TooWide(1_025)));
    }

    #[test]
    fn phase_has_the_difference_to_its_basic_demand() {
        let (basic, phase) =
            (demand(&[(1, 10), (2, 10)]).unwrap(), demand(&[(1, 30), (2, 5)]).unwrap());
        assert_eq!(phase.beyond(&basic), Some(demand(&[(1, 20)]).unwrap()));
        assert_eq!(basic.beyond(&basic), None);
        assert!(basic.shares_resource(&phase));
        assert!(!demand(&[(3, 1)]).unwrap().shares_resource(&phase));
    }
}
