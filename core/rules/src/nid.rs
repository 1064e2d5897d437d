//! Nodes that rules name: `nid={192.168.1.[1-128]@tcp 10.*.*.*@tcp 0@lo}`.
//!
//! The text is Lustre's nid list: each part of an IPv4 address is a number, `*`, or
//! ranges in brackets with an optional step (`[0-254/2,255]`). A part is kept as a
//! bitmap of 256, so a match costs four bit tests once the address is read, and
//! two spellings of the same set are the same pattern.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A set of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NidPattern {
    /// Every node: `*` without a network.
    Any,
    /// Nodes of one network, as in `ADDRESS@NETWORK`.
    On { address: AddressPattern, network: Box<str> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AddressPattern {
    /// `*`: every address of the network.
    Any,
    Ip4([Octets; 4]),
    Ip6(Ipv6Addr),
    /// Networks such as `lo` count their nodes.
    Number(u32),
}

/// A set of numbers from 0 to 255.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Octets([u64; 4]);

/// A node's name, parsed once for all patterns that it is compared with.
#[derive(Clone, Copy, Debug)]
pub(super) struct NidParts<'n> {
    address: Option<NidAddress>,
    network: &'n str,
}

#[derive(Clone, Copy, Debug)]
enum NidAddress {
    Ip4([u8; 4]),
    Ip6(Ipv6Addr),
    Number(u32),
}

impl NidPattern {
    /// Parses a pattern; the error is what is wrong with the text.
    pub(super) fn new(text: &str) -> Result<NidPattern, String> {
        if text == "*" {
            return Ok(NidPattern::Any);
        }
        let Some((address, network)) = text.rsplit_once('@') else {
            return Err(format!("lacks its network; write \"{text}@tcp\""));
        };
        let letters = network.trim_end_matches(|c: char| c.is_ascii_digit());
        let is_word = letters.starts_with(|c: char| c.is_ascii_alphabetic())
            && letters.bytes().all(|b| b.is_ascii_alphanumeric());
        if !is_word {
            return Err(format!("needs a network after the @, not {network:?}"));
        }
        Ok(NidPattern::On { address: AddressPattern::new(address)?, network: network.into() })
    }

    pub(super) fn matches(&self, nid: &NidParts<'_>) -> bool {
        match self {
            NidPattern::Any => true,
            NidPattern::On { address, network } => {
                **network == *nid.network && address.matches(nid.address)
            }
        }
    }

    pub(super) fn covers(&self, other: &NidPattern) -> bool {
        match (self, other) {
            (NidPattern::Any, _) => true,
            (_, NidPattern::Any) => false,
            (
                NidPattern::On { address: mine, network },
                NidPattern::On { address: its, network: its_network },
            ) => network == its_network && mine.covers(its),
        }
    }

    pub(super) fn excludes(&self, other: &NidPattern) -> bool {
        match (self, other) {
            (NidPattern::Any, _) | (_, NidPattern::Any) => false,
            (
                NidPattern::On { address: mine, network },
                NidPattern::On { address: its, network: its_network },
            ) => network != its_network || mine.excludes(its),
        }
    }

    pub(super) fn is_everything(&self) -> bool {
        *self == NidPattern::Any
    }
}

impl AddressPattern {
    fn new(text: &str) -> Result<AddressPattern, String> {
        if text == "*" {
            return Ok(AddressPattern::Any);
        }
        if text.contains(':') {
            let address =
                text.parse().map_err(|_| format!("needs an IPv6 address, not {text:?}"))?;
            return Ok(AddressPattern::Ip6(address));
        }
        if let Some(number) = plain_number(text) {
            return Ok(AddressPattern::Number(number));
        }
        let mut octets = [Octets::NONE; 4];
        let mut parts = text.split('.');
        for octet in &mut octets {
            let part = parts.next().ok_or_else(|| not_an_address(text))?;
            *octet = Octets::new(part)?;
        }
        if parts.next().is_some() { Err(not_an_address(text)) } else { Ok(Self::Ip4(octets)) }
    }

    fn matches(&self, address: Option<NidAddress>) -> bool {
        match (self, address) {
            (AddressPattern::Any, _) => true,
            (AddressPattern::Ip4(sets), Some(NidAddress::Ip4(octets))) => {
                sets.iter().zip(octets).all(|(set, octet)| set.contains(octet))
            }
            (AddressPattern::Ip6(mine), Some(NidAddress::Ip6(its))) => *mine == its,
            (AddressPattern::Number(mine), Some(NidAddress::Number(its))) => *mine == its,
            _ => false,
        }
    }

    fn covers(&self, other: &AddressPattern) -> bool {
        match (self, other) {
            (AddressPattern::Any, _) => true,
            (AddressPattern::Ip4(mine), AddressPattern::Ip4(its)) => {
                mine.iter().zip(its).all(|(mine, its)| mine.and(*its) == *its)
            }
            _ => self == other,
        }
    }

    fn excludes(&self, other: &AddressPattern) -> bool {
        match (self, other) {
            (AddressPattern::Any, _) | (_, AddressPattern::Any) => false,
            (AddressPattern::Ip4(mine), AddressPattern::Ip4(its)) => {
                mine.iter().zip(its).any(|(mine, its)| mine.and(*its) == Octets::NONE)
            }
            _ => self != other,
        }
    }
}

impl<'n> NidParts<'n> {
    pub(super) fn of(name: &'n str) -> NidParts<'n> {
        let (address, network) = name.rsplit_once('@').unwrap_or((name, ""));
        let ip = address.parse().map(|ip| match ip {
            IpAddr::V4(ip) => NidAddress::Ip4(Ipv4Addr::octets(&ip)),
            IpAddr::V6(ip) => NidAddress::Ip6(ip),
        });
        let address = ip.ok().or_else(|| plain_number(address).map(NidAddress::Number));
        NidParts { address, network }
    }
}

impl Octets {
    const NONE: Octets = Octets([0; 4]);
    const ALL: Octets = Octets([u64::MAX; 4]);

    fn new(text: &str) -> Result<Octets, String> {
        if text == "*" {
            return Ok(Octets::ALL);
        }
        match text.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')) {
            Some(ranges) => {
                let mut set = Octets::NONE;
                ranges.split(',').try_for_each(|range| set.insert_range(range))?;
                Ok(set)
            }
            None => {
                let mut set = Octets::NONE;
                set.insert(octet(text)?);
                Ok(set)
            }
        }
    }

    /// Adds `5`, `1-128` or `0-254/2`.
    fn insert_range(&mut self, text: &str) -> Result<(), String> {
        let text = text.trim();
        let (span, step) = text.split_once('/').unwrap_or((text, "1"));
        let (first, last) = span.split_once('-').unwrap_or((span, span));
        let (first, last, step) = (octet(first)?, octet(last)?, octet(step)?);
        if step == 0 || first > last {
            return Err(format!("has an empty range {text:?}"));
        }
        (first..=last).step_by(usize::from(step)).for_each(|value| self.insert(value));
        Ok(())
    }

    fn insert(&mut self, value: u8) {
        self.0[usize::from(value / 64)] |= 1 << (value % 64);
    }

    fn contains(self, value: u8) -> bool {
        self.0[usize::from(value / 64)] & (1 << (value % 64)) != 0
    }

    fn and(self, other: Octets) -> Octets {
        Octets(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// The longest runs of numbers in the set, in order.
    fn runs(self) -> impl Iterator<Item = (u8, u8)> {
        let starts =
            move |value: u8| self.contains(value) && (value == 0 || !self.contains(value - 1));
        (0..=255).filter(move |value| starts(*value)).map(move |first| {
            let last = (first..=255).take_while(|value| self.contains(*value)).last();
            (first, last.unwrap_or(first))
        })
    }
}

impl fmt::Display for NidPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NidPattern::On { address, network } = self else { return f.write_str("*") };
        match address {
            AddressPattern::Any => f.write_str("*")?,
            AddressPattern::Ip4([a, b, c, d]) => write!(f, "{a}.{b}.{c}.{d}")?,
            AddressPattern::Ip6(address) => address.fmt(f)?,
            AddressPattern::Number(number) => number.fmt(f)?,
        }
        write!(f, "@{network}")
    }
}

impl fmt::Display for Octets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Octets::ALL {
            return f.write_str("*");
        }
        let mut runs = self.runs();
        if let (Some((first, last)), None) = (runs.next(), runs.next())
            && first == last
        {
            return first.fmt(f);
        }
        for (i, (first, last)) in self.runs().enumerate() {
            f.write_str(if i == 0 { "[" } else { "," })?;
            if first == last { first.fmt(f)? } else { write!(f, "{first}-{last}")? }
        }
        f.write_str("]")
    }
}

fn octet(text: &str) -> Result<u8, String> {
    let number = plain_number(text).and_then(|number| u8::try_from(number).ok());
    number.ok_or_else(|| format!("has {text:?} instead of a number from 0 to 255"))
}

/// A decimal number, digits only: `u32::from_str` would also take a sign.
fn plain_number(text: &str) -> Option<u32> {
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

fn not_an_address(text: &str) -> String {
    format!("needs an address such as 192.168.1.[1-128], 192.168.*.* or *, not {text:?}")
}

#[cfg(test)]
mod tests {
    use model::Nid;

    use super::*;

    fn matches(pattern: &str, nid: &Nid) -> bool {
        NidPattern::new(pattern).unwrap().matches(&NidParts::of(nid.as_str()))
    }

    fn tcp(address: &str) -> Nid {
        Nid::tcp(address.parse().unwrap())
    }

    #[test]
    fn lists_of_lustre_take_the_nodes_they_name() {
        for pattern in ["192.168.1.7@tcp", "192.168.1.[1-128]@tcp", "192.168.*.*@tcp", "*@tcp", "*"]
        {
            assert!(matches(pattern, &tcp("192.168.1.7")), "{pattern}");
        }
        for pattern in
            ["192.168.1.8@tcp", "192.168.1.[8-9,0-6]@tcp", "*.*.*.[0-254/2]@tcp", "*@tcp1", "0@lo"]
        {
            assert!(!matches(pattern, &tcp("192.168.1.7")), "{pattern}");
        }
        assert!(matches("0@lo", &Nid::local()) && matches("*@lo", &Nid::local()));
        assert!(!matches("1@lo", &Nid::local()) && !matches("*@tcp", &Nid::local()));
    }

    #[test]
    fn ipv6_nodes_are_named_in_any_spelling() {
        assert!(matches("2001:db8:0::1@tcp", &tcp("2001:db8::1")));
        assert!(matches("*@tcp", &tcp("2001:db8::1")));
        assert!(!matches("*.*.*.*@tcp", &tcp("2001:db8::1")));
    }

    #[test]
    fn a_set_prints_in_its_shortest_spelling() {
        for (text, printed) in [
            ("10.[0-255].[7].[1,2,3,9]@o2ib0", "10.*.7.[1-3,9]@o2ib0"),
            ("10.0.0.[0-6/3]@tcp", "10.0.0.[0,3,6]@tcp"),
            ("10.0.0.[254-255]@tcp", "10.0.0.[254-255]@tcp"),
            ("2001:db8:0:0::1@tcp", "2001:db8::1@tcp"),
        ] {
            assert_eq!(NidPattern::new(text).unwrap().to_string(), printed);
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, message) in [
            ("10.0.0.1", "lacks its network; write \"10.0.0.1@tcp\""),
            ("10.0.0.1@", "needs a network after the @, not \"\""),
            ("10.0.0.300@tcp", "has \"300\" instead of a number from 0 to 255"),
            ("10.0.0.[9-1]@tcp", "has an empty range \"9-1\""),
            (
                "10.0.0@tcp",
                "needs an address such as 192.168.1.[1-128], 192.168.*.* or *, not \"10.0.0\"",
            ),
            ("10.0.0.+1@tcp", "has \"+1\" instead of a number from 0 to 255"),
            ("fe80::zz@tcp", "needs an IPv6 address, not \"fe80::zz\""),
        ] {
            assert_eq!(NidPattern::new(text).unwrap_err(), message);
        }
    }

    #[test]
    fn sets_cover_their_parts_and_exclude_their_complements() {
        let nid = |text| NidPattern::new(text).unwrap();
        assert!(nid("*@tcp").covers(&nid("10.0.0.[1-9]@tcp")));
        assert!(nid("10.*.0.*@tcp").covers(&nid("10.1.0.[1-9]@tcp")));
        assert!(!nid("10.0.0.[1-9]@tcp").covers(&nid("10.0.0.[1-10]@tcp")));
        assert!(nid("10.0.0.[1-9]@tcp").excludes(&nid("10.0.0.[10-19]@tcp")));
        assert!(nid("*@lo").excludes(&nid("*@tcp")) && !nid("*").excludes(&nid("0@lo")));
    }
}
