//! Types of the values in the configuration.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use http::{ParseAddressError, ServerAddress};
use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A word that is not a value of its key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not one of {known}")]
pub struct ParseChoiceError {
    text: String,
    known: &'static str,
}

/// Defines an enum with a closed list of words as its text.
macro_rules! choices {
    (
        $(#[$about:meta])*
        pub enum $name:ident ($known:literal) {
            $($(#[$doc:meta])* $variant:ident = $word:literal,)*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $($name::$variant => $word,)* })
            }
        }

        impl FromStr for $name {
            type Err = ParseChoiceError;
            fn from_str(text: &str) -> Result<$name, ParseChoiceError> {
                match text {
                    $($word => Ok($name::$variant),)*
                    _ => Err(ParseChoiceError { text: text.into(), known: $known }),
                }
            }
        }

        text_form!($name);
    };
}

/// Gives a type with `Display` and `FromStr` the serde form of that text.
macro_rules! text_form {
    ($name:ident) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

choices! {
    /// Users of clients that are replaced by the squash user.
    pub enum Squash ("root, all, none") {
        /// Only root, uid 0, is replaced.
        Root = "root",
        /// Every user is replaced.
        All = "all",
        /// No user is replaced.
        None = "none",
    }
}

choices! {
    /// Source of a user's supplementary groups.
    pub enum GroupsSource ("server, client") {
        /// This machine's user database.
        Server = "server",
        /// The client, if its address is trusted; otherwise the user database of this machine.
        Client = "client",
    }
}

choices! {
    /// Limits that apply when the controller is unreachable.
    pub enum ControllerUnreachable ("equal, keep, full") {
        /// 1/N of each limit, with N proxies.
        Equal = "equal",
        /// The limits of the last assignment.
        Keep = "keep",
        /// The whole of each limit.
        Full = "full",
    }
}

/// What mounts may keep of an export under leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeasePolicy {
    /// No leases are granted.
    None,
    /// Names, attributes and opened files may be kept.
    Read,
}

/// A text that is not a lease policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseLeasePolicyError {
    /// Leases under which mounts change files are planned.
    #[error("\"write\" is not built yet; use \"read\" or \"none\"")]
    Write,
    /// Another word than these.
    #[error("{0:?} is not one of none, read")]
    Unknown(String),
}

impl fmt::Display for LeasePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            LeasePolicy::None => "none",
            LeasePolicy::Read => "read",
        })
    }
}

impl FromStr for LeasePolicy {
    type Err = ParseLeasePolicyError;
    fn from_str(text: &str) -> Result<LeasePolicy, ParseLeasePolicyError> {
        match text {
            "none" => Ok(LeasePolicy::None),
            "read" => Ok(LeasePolicy::Read),
            "write" => Err(ParseLeasePolicyError::Write),
            _ => Err(ParseLeasePolicyError::Unknown(text.into())),
        }
    }
}

text_form!(LeasePolicy);

choices! {
    /// Unit of the cost of a request at its target.
    pub enum ConfiguredCosts ("calibrated, bytes") {
        /// The measured time that the backend needs.
        Calibrated = "calibrated",
        /// The bytes of the request: weights divide the bytes moved.
        Bytes = "bytes",
    }
}

/// Address of the control API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiSocket {
    /// [`ApiSocket::DEFAULT_PATH`], if this process can create the socket and no other proxy
    /// uses it; otherwise no API, with a warning.
    Auto,
    /// No control API at all.
    Off,
    /// This address; if it cannot be used, the proxy does not start.
    At(ServerAddress),
}

impl ApiSocket {
    /// Socket to which `sluice top` connects by default.
    pub const DEFAULT_PATH: &str = "/run/sluice/proxy.sock";
}

impl fmt::Display for ApiSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApiSocket::Auto => f.write_str("auto"),
            ApiSocket::Off => f.write_str("off"),
            ApiSocket::At(address) => address.fmt(f),
        }
    }
}

/// Text that is not an address of the control API.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseApiSocketError {
    /// Control over TCP would need authentication that the proxy does not have.
    #[error("{text:?} is not unix:///path, auto or off: the control API does not listen on TCP")]
    Tcp {
        /// The text that was given.
        text: String,
    },
    /// The text is not an address.
    #[error(transparent)]
    Address(#[from] ParseAddressError),
}

impl FromStr for ApiSocket {
    type Err = ParseApiSocketError;
    fn from_str(text: &str) -> Result<ApiSocket, ParseApiSocketError> {
        match text {
            "auto" => Ok(ApiSocket::Auto),
            "off" => Ok(ApiSocket::Off),
            _ => match text.parse()? {
                ServerAddress::Tcp(_) => Err(ParseApiSocketError::Tcp { text: text.into() }),
                address => Ok(ApiSocket::At(address)),
            },
        }
    }
}

text_form!(ApiSocket);

/// A range of client addresses: `192.0.2.0/24`, `fd00::/8`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network(IpNet);

/// Text that is not a range of addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a range of addresses such as 192.0.2.0/24, fd00::/8 or 192.0.2.7")]
pub struct ParseNetworkError {
    text: String,
}

impl Network {
    /// Whether `address` is in the range. An IPv4 client of a dual-stack socket counts by its
    /// IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Network {
    type Err = ParseNetworkError;
    fn from_str(text: &str) -> Result<Network, ParseNetworkError> {
        let range = text.parse::<IpNet>().ok();
        let range = range.or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        // A range with bits beyond its prefix is an error: 192.0.2.7/24 could mean one machine
        // or the whole network.
        let range = range.filter(|range| range.addr() == range.network());
        range.map(Network).ok_or_else(|| ParseNetworkError { text: text.into() })
    }
}

text_form!(Network);

/// A whole percentage below 100, such as `20%`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Percentage(u8);

/// Text that is not a percentage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a percentage from 0% to 99%")]
pub struct ParsePercentageError {
    text: String,
}

impl Percentage {
    /// Returns it in millionths.
    pub const fn ppm(self) -> u32 {
        self.0 as u32 * 10_000
    }
}

impl fmt::Display for Percentage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

impl FromStr for Percentage {
    type Err = ParsePercentageError;
    fn from_str(text: &str) -> Result<Percentage, ParsePercentageError> {
        let digits = text.strip_suffix('%').filter(|of| of.bytes().all(|one| one.is_ascii_digit()));
        let count = digits.and_then(|of| of.parse().ok()).filter(|count| *count < 100);
        count.map(Percentage).ok_or_else(|| ParsePercentageError { text: text.into() })
    }
}

text_form!(Percentage);

/// Every address of both families.
pub(super) fn everybody() -> Vec<Network> {
    let all = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
    all.into_iter().filter_map(|ip| IpNet::new(ip, 0).ok()).map(Network).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_parse_and_print_both_ways() {
        for squash in [Squash::Root, Squash::All, Squash::None] {
            assert_eq!(squash.to_string().parse(), Ok(squash));
        }
        for text in ["auto", "off", "unix:///run/x"] {
            assert_eq!(text.parse::<ApiSocket>().unwrap().to_string(), text);
        }
        let error = "yes".parse::<GroupsSource>().unwrap_err().to_string();
        assert_eq!(error, "\"yes\" is not one of server, client");
    }

    #[test]
    fn percentages_parse_and_print_both_ways() {
        for text in ["0%", "20%", "99%"] {
            assert_eq!(text.parse::<Percentage>().unwrap().to_string(), text);
        }
        for text in ["20", "100%", "-1%", "+5%", "%", ""] {
            assert_eq!(text.parse::<Percentage>(), Err(ParsePercentageError { text: text.into() }));
        }
    }

    #[test]
    fn control_over_tcp_is_refused() {
        let error = "tcp://127.0.0.1:80".parse::<ApiSocket>().unwrap_err();
        assert_eq!(error, ParseApiSocketError::Tcp { text: "tcp://127.0.0.1:80".into() });
    }

    #[test]
    fn an_ipv4_client_of_a_dual_stack_socket_is_in_its_ipv4_range() {
        let network: Network = "127.0.0.0/8".parse().unwrap();
        assert!(network.contains("::ffff:127.0.0.1".parse().unwrap()));
        assert!(!network.contains("::1".parse().unwrap()));
    }

    #[test]
    fn one_address_is_a_range_of_one() {
        let network: Network = "192.0.2.7".parse().unwrap();
        assert!(network.contains("192.0.2.7".parse().unwrap()));
        assert!(!network.contains("192.0.2.8".parse().unwrap()));
    }

    #[test]
    fn a_range_with_bits_beyond_its_prefix_is_refused() {
        for text in ["192.0.2.7/24", "host", "10.0.0.0/33", ""] {
            assert_eq!(text.parse::<Network>(), Err(ParseNetworkError { text: text.into() }));
        }
    }
}
