//! Leases on the wire: what a reply grants, and what is recalled or given back.
//!
//! ```text
//!   grants: n[1] n × (kinds[1] number[8])        n is at most 2
//!   return: file[8] kinds[1] number[8]           an item of a GiveBack's data
//! ```
//!
//! The kinds are bits whose meaning is in `core/leases`; here they are numbers.

use crate::error::FrameError;
use crate::wire::{FrameReader, FrameWriter};

/// Leases of one file; no kinds: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseGrant {
    /// The bits of the kinds.
    pub kinds: u8,
    /// The number of the grant, to give it back with.
    pub number: u64,
}

/// The leases that a reply grants: of the message's first file, and of the file that the reply is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseGrants {
    /// Of the file that the message names first: for a look-up, the directory.
    pub named: LeaseGrant,
    /// Of the file that the reply has a handle and attributes of, if that is another one.
    pub found: LeaseGrant,
}

/// Leases of one file that are given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReturnedLease {
    /// The path of the file's qid.
    pub file: u64,
    /// The kinds, and the number of the last grant of them.
    pub grant: LeaseGrant,
}

/// The items of a GiveBack's `data`, in order; ends after the first error.
#[derive(Clone, Debug)]
pub struct ReturnedLeases<'a> {
    data: &'a [u8],
}

impl LeaseGrant {
    /// No lease of any kind.
    pub const NONE: LeaseGrant = LeaseGrant { kinds: 0, number: 0 };
    pub(crate) const ENCODED_LEN: usize = 9;
}

impl LeaseGrants {
    /// No lease of any file.
    pub const NONE: LeaseGrants = LeaseGrants { named: LeaseGrant::NONE, found: LeaseGrant::NONE };

    fn count(&self) -> u8 {
        match (self.named, self.found) {
            (LeaseGrant::NONE, LeaseGrant::NONE) => 0,
            (_, LeaseGrant::NONE) => 1,
            _ => 2,
        }
    }

    /// Bytes on the wire.
    pub fn encoded_len(&self) -> usize {
        1 + usize::from(self.count()) * LeaseGrant::ENCODED_LEN
    }

    pub(crate) fn read(get: &mut FrameReader<'_>) -> Result<LeaseGrants, FrameError> {
        let count = get.u8("leases")?;
        if count > 2 {
            return Err(get.bad_value("leases", count));
        }
        let mut grants = [LeaseGrant::NONE; 2];
        for grant in &mut grants[..count.into()] {
            *grant = get.lease()?;
        }
        let [named, found] = grants;
        let grants = LeaseGrants { named, found };
        if grants.count() != count {
            return Err(get.bad_value("leases", count));
        }
        Ok(grants)
    }

    pub(crate) fn write(&self, put: &mut FrameWriter<'_>) {
        let count = self.count();
        put.u8(count);
        for grant in &[self.named, self.found][..count.into()] {
            put.lease(*grant);
        }
    }
}

impl ReturnedLease {
    /// Appends the item to a GiveBack's data.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut put = FrameWriter::part(out);
        put.u64(self.file);
        put.lease(self.grant);
    }
}

impl<'a> ReturnedLeases<'a> {
    /// The items in `data`, the whole payload of one GiveBack.
    pub fn new(data: &'a [u8]) -> ReturnedLeases<'a> {
        ReturnedLeases { data }
    }
}

impl Iterator for ReturnedLeases<'_> {
    type Item = Result<ReturnedLease, super::EntryError>;

    fn next(&mut self) -> Option<Self::Item> {
        super::entries::read_item(&mut self.data, |get| {
            Ok(ReturnedLease { file: get.u64("file")?, grant: get.lease()? })
        })
    }
}

impl FrameReader<'_> {
    pub(crate) fn lease(&mut self) -> Result<LeaseGrant, FrameError> {
        Ok(LeaseGrant { kinds: self.u8("kinds")?, number: self.u64("number")? })
    }
}

impl FrameWriter<'_> {
    pub(crate) fn lease(&mut self, grant: LeaseGrant) {
        self.u8(grant.kinds);
        self.u64(grant.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_comes_as_it_went() {
        let all = [1u64, u64::MAX]
            .map(|file| ReturnedLease { file, grant: LeaseGrant { kinds: 5, number: !file } });
        let mut data = Vec::new();
        all.iter().for_each(|item| item.encode(&mut data));
        assert!(ReturnedLeases::new(&data).map(Result::unwrap).eq(all));
        data.pop();
        assert!(ReturnedLeases::new(&data).last().unwrap().is_err());
    }
}
