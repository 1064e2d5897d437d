//! What the objects really are, and what a mount has kept of them.

use sluice_leases::{LeaseKinds, NameId, ObjectAccess};

/// Versions of an object's parts; each change of a part makes a new one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Versions {
    pub(crate) attributes: u64,
    pub(crate) data: u64,
    pub(crate) names: [u64; 2],
}

/// What a mount has kept: nothing of a part that it does not know.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kept {
    pub(crate) attributes: Option<u64>,
    pub(crate) data: Option<u64>,
    pub(crate) names: [Option<u64>; 2],
}

impl Versions {
    pub(crate) fn change(&mut self, access: ObjectAccess) {
        match access {
            ObjectAccess::LookAttributes | ObjectAccess::ReadData => {}
            ObjectAccess::ChangeAttributes => self.attributes += 1,
            ObjectAccess::WriteData => {
                self.attributes += 1;
                self.data += 1;
            }
            ObjectAccess::ChangeName(NameId(name)) => {
                self.attributes += 1;
                self.names[name as usize] += 1;
            }
        }
    }
}

impl Kept {
    /// Keeps what a reply says, under these kinds.
    pub(crate) fn keep(&mut self, versions: Versions, kinds: LeaseKinds) {
        if kinds.contains(LeaseKinds::ATTRIBUTES) {
            self.attributes = Some(versions.attributes);
        }
        if kinds.contains(LeaseKinds::READ) {
            self.data = Some(versions.data);
        }
        if kinds.contains(LeaseKinds::NAMES) {
            self.names = versions.names.map(Some);
        }
    }

    /// Drops what was recalled: of names one alone, if one is named.
    pub(crate) fn forget(&mut self, kinds: LeaseKinds, name: Option<NameId>) {
        if kinds.contains(LeaseKinds::ATTRIBUTES) {
            self.attributes = None;
        }
        if kinds.contains(LeaseKinds::READ) {
            self.data = None;
        }
        match name {
            Some(NameId(name)) => self.names[name as usize] = None,
            None if kinds.contains(LeaseKinds::NAMES) => self.names = [None; 2],
            None => {}
        }
    }

    /// The parts that are kept and differ from the truth, which a holder of these kinds would believe.
    pub(crate) fn is_wrong(&self, truth: Versions, kinds: LeaseKinds) -> bool {
        let differs = |kept: Option<u64>, is: u64| kept.is_some_and(|kept| kept != is);
        let names = self.names.iter().zip(truth.names).any(|(kept, is)| differs(*kept, is));
        kinds.contains(LeaseKinds::ATTRIBUTES) && differs(self.attributes, truth.attributes)
            || kinds.contains(LeaseKinds::READ) && differs(self.data, truth.data)
            || kinds.contains(LeaseKinds::NAMES) && names
    }
}
