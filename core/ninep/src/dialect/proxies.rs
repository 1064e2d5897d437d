//! The group of a proxy: its own name, the epoch, and the names of all proxies of the group.
//!
//! ```text
//!   name[s] epoch[8] n[1] n × name[s]     n is at most 64; names ascend, and `name` is one of them
//!   a proxy without a group: an empty name, epoch 0, n = 0
//! ```
//!
//! Invariant: a [`WireGroup`] is one of these two, so nobody has to check it again.

use std::fmt;

use crate::error::FrameError;
use crate::types::NOTAG;
use crate::wire::{FrameReader, FrameWriter};

/// The most proxies of a group.
pub const PROXIES_MAX: usize = 64;
/// The longest name of a proxy, in bytes.
pub const PROXY_NAME_MAX: usize = 64;

/// The group of a proxy as it says it, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireGroup<'a> {
    name: &'a str,
    epoch: u64,
    names: ProxyNames<'a>,
}

/// Names of proxies, ascending; an iterator over them.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct ProxyNames<'a> {
    count: u8,
    /// The names in their wire form.
    bytes: &'a [u8],
}

/// Whether a text may name a proxy: 1 to [`PROXY_NAME_MAX`] letters, digits, `.`, `_` and `-`.
pub fn is_proxy_name(name: &[u8]) -> bool {
    (1..=PROXY_NAME_MAX).contains(&name.len()) && name.iter().all(is_allowed)
}

fn is_allowed(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-".contains(byte)
}

impl<'a> WireGroup<'a> {
    /// A proxy that has no group.
    pub const NONE: WireGroup<'static> =
        WireGroup { name: "", epoch: 0, names: ProxyNames { count: 0, bytes: &[] } };

    /// A group in which the proxy is called `name`; the wire form of the `names`, in any order, is put
    /// into `space`, which is emptied first.
    ///
    /// # Errors
    /// If there are too many names, one is not a name or is there twice, `name` is not among them, or
    /// the epoch is 0.
    pub fn pack(
        name: &'a str,
        epoch: u64,
        names: impl IntoIterator<Item = &'a str>,
        space: &'a mut Vec<u8>,
    ) -> Result<WireGroup<'a>, FrameError> {
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_unstable();
        let (field, limit) = ("proxies", PROXIES_MAX);
        let count = names.len().min(usize::from(u16::MAX)) as u16;
        if names.len() > limit {
            return Err(FrameError::TooMany { tag: NOTAG, field, count, limit });
        }
        space.clear();
        let mut put = FrameWriter::part(space);
        names.iter().for_each(|name| put.raw(name.as_bytes()));
        WireGroup::read(&mut FrameReader::part(space), name, epoch, count as u8)
    }

    /// The proxy's own name; empty without a group.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The epoch of the names, from 1; 0 without a group.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The names of all proxies of the group; none without a group.
    pub fn names(&self) -> ProxyNames<'a> {
        self.names
    }

    /// Whether it is none.
    pub fn is_none(&self) -> bool {
        self.epoch == 0
    }

    /// Bytes on the wire.
    pub fn encoded_len(&self) -> usize {
        2 + self.name.len() + 8 + 1 + self.names.bytes.len()
    }

    /// Reads the names, `count` of them, and checks that all is one group.
    fn read(
        get: &mut FrameReader<'a>,
        name: &'a str,
        epoch: u64,
        count: u8,
    ) -> Result<WireGroup<'a>, FrameError> {
        let (all, mut last, mut is_member) = (get.rest(), "", false);
        for nth in 0..count {
            let next = get.proxy_name("proxies")?;
            if next <= last {
                return Err(get.bad_value("proxies", nth));
            }
            is_member |= next == name;
            last = next;
        }
        let bytes = &all[..all.len() - get.rest().len()];
        if (count == 0) != (epoch == 0) {
            return Err(get.bad_value("epoch", epoch.min(255) as u8));
        }
        if is_member == (count == 0) || (count == 0 && !name.is_empty()) {
            return Err(get.bad_value("name", count));
        }
        Ok(WireGroup { name, epoch, names: ProxyNames { count, bytes } })
    }
}

impl<'a> Iterator for ProxyNames<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.count = self.count.checked_sub(1)?;
        let mut get = FrameReader::part(self.bytes);
        let name = get.proxy_name("proxies").expect("checked when the list was made");
        self.bytes = get.rest();
        Some(name)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count.into(), Some(self.count.into()))
    }
}

impl ExactSizeIterator for ProxyNames<'_> {}

impl fmt::Debug for ProxyNames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}

impl<'a> FrameReader<'a> {
    /// A name of a proxy.
    fn proxy_name(&mut self, field: &'static str) -> Result<&'a str, FrameError> {
        let name = self.raw(field)?;
        let (tag, len, limit) = (self.tag_of_message(), name.len(), PROXY_NAME_MAX);
        if !(1..=limit).contains(&len) {
            return Err(FrameError::BadLength { tag, field, len, limit });
        }
        if let Some(at) = name.iter().position(|byte| !is_allowed(byte)) {
            return Err(FrameError::BadByte { tag, field, byte: name[at], at });
        }
        Ok(std::str::from_utf8(name).expect("it is ASCII"))
    }

    pub(crate) fn proxy_group(&mut self, field: &'static str) -> Result<WireGroup<'a>, FrameError> {
        let name = match self.rest() {
            [0, 0, ..] => self.raw(field).map(|_| "")?,
            _ => self.proxy_name(field)?,
        };
        let (epoch, count) = (self.u64("epoch")?, self.u8("proxies")?);
        if usize::from(count) > PROXIES_MAX {
            let (tag, count, limit) = (self.tag_of_message(), count.into(), PROXIES_MAX);
            return Err(FrameError::TooMany { tag, field: "proxies", count, limit });
        }
        WireGroup::read(self, name, epoch, count)
    }
}

impl FrameWriter<'_> {
    pub(crate) fn proxy_group(&mut self, group: WireGroup<'_>) {
        self.raw(group.name.as_bytes());
        self.u64(group.epoch);
        self.u8(group.names.count);
        self.wired(group.names.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_valid(name: &str, epoch: u64, names: &[&str]) -> bool {
        let mut space = Vec::new();
        WireGroup::pack(name, epoch, names.iter().copied(), &mut space).is_ok()
    }

    #[test]
    fn a_group_has_its_own_name_and_each_name_once() {
        let mut space = Vec::new();
        let group = WireGroup::pack("b", 3, ["c", "a", "b"], &mut space).unwrap();
        assert_eq!((group.name(), group.epoch(), group.is_none()), ("b", 3, false));
        assert_eq!(group.names().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert!(WireGroup::NONE.is_none() && is_valid("", 0, &[]));
        assert!(!is_valid("d", 3, &["a", "b"]), "it is not among them");
        assert!(!is_valid("a", 3, &["a", "b", "a"]), "twice");
        assert!(!is_valid("a", 0, &["a"]), "without an epoch");
        assert!(!is_valid("", 1, &[]), "an epoch without names");
        assert!(!is_valid("a", 0, &[]), "a name without a group");
        assert!(!is_valid("", 1, &["a"]), "names without its own");
    }

    #[test]
    fn names_and_their_number_are_bounded() {
        let longest = "x".repeat(PROXY_NAME_MAX);
        assert!(is_valid(&longest, 1, &[&longest]));
        let longer = "x".repeat(PROXY_NAME_MAX + 1);
        assert!(!is_valid(&longer, 1, &[&longer]));
        for name in ["a b", "a/b", "ä", "a\0"] {
            assert!(!is_valid(name, 1, &[name]), "{name:?}");
            assert!(!is_proxy_name(name.as_bytes()), "{name:?}");
        }
        assert!(is_proxy_name(b"OST-gw_1.site") && !is_proxy_name(b""));
        let names: Vec<_> = (0..=PROXIES_MAX).map(|n| format!("p{n:02}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        assert!(is_valid("p00", 1, &names[..PROXIES_MAX]));
        assert!(!is_valid("p00", 1, &names));
    }
}
