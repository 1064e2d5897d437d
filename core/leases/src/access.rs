//! Kinds of leases, and which of them an access breaks.
//!
//! ```text
//!                        names   attributes   read   write
//!   look at attributes     –         –          –      ✕      ✕ is returned before it is executed
//!   read data              –         –          –      ✕
//!   change attributes      –         ✕          ✕      ✕      read: an open was allowed by the old mode
//!   write data             –         ✕          ✕      ✕
//!   change a name         its name   ✕          –      ✕      the other names stay
//! ```

use std::fmt;

use crate::NameId;

/// A set of kinds of leases of one object.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseKinds(u8);

/// What a request does to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectAccess {
    /// It reads attributes, or a name of a directory.
    LookAttributes,
    /// It opens a file or reads its data.
    ReadData,
    /// It changes mode, owner, times, the number of links, or extended attributes.
    ChangeAttributes,
    /// It changes data or length.
    WriteData,
    /// It makes, removes or replaces a name in a directory.
    ChangeName(NameId),
}

impl LeaseKinds {
    /// No lease of any kind.
    pub const NONE: LeaseKinds = LeaseKinds(0);
    /// The names of a directory, and that others are absent.
    pub const NAMES: LeaseKinds = LeaseKinds(1);
    /// Attributes of a file or a directory.
    pub const ATTRIBUTES: LeaseKinds = LeaseKinds(2);
    /// Data, and opens that were granted before.
    pub const READ: LeaseKinds = LeaseKinds(4);
    /// To change data and attributes alone, and to tell it later.
    pub const WRITE: LeaseKinds = LeaseKinds(8);

    /// The kinds as bits, in messages.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The kinds of these bits; unknown ones are left out.
    pub const fn from_bits(bits: u8) -> LeaseKinds {
        LeaseKinds(bits & EVERY.0)
    }

    /// The kinds of both sets.
    pub const fn and(self, other: LeaseKinds) -> LeaseKinds {
        LeaseKinds(self.0 | other.0)
    }

    /// The kinds that are not in `other`.
    pub const fn without(self, other: LeaseKinds) -> LeaseKinds {
        LeaseKinds(self.0 & !other.0)
    }

    /// The kinds that are in both sets.
    pub const fn common(self, other: LeaseKinds) -> LeaseKinds {
        LeaseKinds(self.0 & other.0)
    }

    /// Whether all of `other` are here.
    pub const fn contains(self, other: LeaseKinds) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// What other holders may not have beside these.
    pub(crate) const fn excludes(self) -> LeaseKinds {
        if self.contains(LeaseKinds::WRITE) { EVERY } else { LeaseKinds::WRITE }
    }
}

impl ObjectAccess {
    /// The kinds that no other holder may have while it is executed.
    pub const fn breaks(self) -> LeaseKinds {
        match self {
            ObjectAccess::LookAttributes | ObjectAccess::ReadData => LeaseKinds::WRITE,
            ObjectAccess::ChangeAttributes | ObjectAccess::WriteData => {
                EVERY.without(LeaseKinds::NAMES)
            }
            ObjectAccess::ChangeName(_) => EVERY.without(LeaseKinds::READ),
        }
    }

    /// The one name that is recalled, if the others stay.
    pub const fn name(self) -> Option<NameId> {
        match self {
            ObjectAccess::ChangeName(name) => Some(name),
            _ => None,
        }
    }
}

impl fmt::Debug for LeaseKinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            (LeaseKinds::NAMES, "names"),
            (LeaseKinds::ATTRIBUTES, "attributes"),
            (LeaseKinds::READ, "read"),
            (LeaseKinds::WRITE, "write"),
        ];
        let names = all.iter().filter(|(kind, _)| self.contains(*kind)).map(|(_, name)| *name);
        f.debug_set().entries(names).finish()
    }
}

const EVERY: LeaseKinds = LeaseKinds(15);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_break_writers_alone_and_changes_break_what_they_change() {
        for look in [ObjectAccess::LookAttributes, ObjectAccess::ReadData] {
            assert_eq!(look.breaks(), LeaseKinds::WRITE, "{look:?}");
        }
        let changes = ObjectAccess::WriteData.breaks();
        assert!(changes.contains(LeaseKinds::READ.and(LeaseKinds::ATTRIBUTES)));
        assert!(!changes.contains(LeaseKinds::NAMES));
        let renames = ObjectAccess::ChangeName(NameId(1)).breaks();
        assert!(renames.contains(LeaseKinds::NAMES.and(LeaseKinds::ATTRIBUTES)));
        assert!(!renames.contains(LeaseKinds::READ));
        assert_eq!(
            format!("{:?}", LeaseKinds::READ.and(LeaseKinds::NAMES)),
            "{\"names\", \"read\"}"
        );
    }

    #[test]
    fn a_writer_is_alone_and_readers_are_many() {
        assert!(LeaseKinds::WRITE.excludes().contains(LeaseKinds::READ));
        assert_eq!(LeaseKinds::READ.excludes(), LeaseKinds::WRITE);
    }
}
