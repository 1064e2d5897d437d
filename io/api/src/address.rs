//! The address of a server, as people write it: `tcp://127.0.0.1:5640`, `unix:///run/x.sock`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An address to listen at or to connect to.
///
/// TCP takes an IP address, not a name: where a proxy listens, and so which machines can
/// connect, must not depend on a name server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServerAddress {
    /// `tcp://127.0.0.1:5640`, `tcp://[::1]:5640`; port 0 lets the system choose.
    Tcp(SocketAddr),
    /// `unix:///path`, always absolute and at most [`ServerAddress::UNIX_LEN_MAX`] bytes long.
    Unix(PathBuf),
}

/// Text that is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseAddressError {
    /// Neither of the two forms.
    #[error("{text:?} is not an address such as tcp://127.0.0.1:5640 or unix:///run/sluice.sock")]
    Form {
        /// The text that was given.
        text: String,
    },
    /// More than the kernel's `sun_path` holds.
    #[error(
        "{text:?} is too long: a Unix socket's path has at most {} bytes",
        ServerAddress::UNIX_LEN_MAX
    )]
    TooLong {
        /// The text that was given.
        text: String,
    },
}

impl ServerAddress {
    /// The longest path of a Unix socket in bytes: `sun_path` less its final NUL, unix(7).
    pub const UNIX_LEN_MAX: usize = 107;
}

impl FromStr for ServerAddress {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<ServerAddress, ParseAddressError> {
        let form = || ParseAddressError::Form { text: text.into() };
        if let Some(address) = text.strip_prefix("tcp://") {
            return address.parse().map(ServerAddress::Tcp).map_err(|_| form());
        }
        let path = text.strip_prefix("unix://").filter(|path| path.starts_with('/'));
        let path = path.filter(|path| !path.contains('\0')).ok_or_else(form)?;
        if path.len() > ServerAddress::UNIX_LEN_MAX {
            return Err(ParseAddressError::TooLong { text: text.into() });
        }
        Ok(ServerAddress::Unix(path.into()))
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::Tcp(address) => write!(f, "tcp://{address}"),
            ServerAddress::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

impl Serialize for ServerAddress {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ServerAddress {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ServerAddress, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_and_print_both_ways() {
        for text in ["tcp://127.0.0.1:5640", "tcp://[::1]:0", "unix:///run/sluice/proxy.sock"] {
            assert_eq!(text.parse::<ServerAddress>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_is_named() {
        for text in ["", "127.0.0.1:5640", "tcp://127.0.0.1", "tcp://host:1", "unix://relative"] {
            let error = text.parse::<ServerAddress>().unwrap_err();
            assert_eq!(error, ParseAddressError::Form { text: text.into() });
        }
    }

    #[test]
    fn a_path_the_kernel_cannot_hold_is_refused() {
        let fits = format!("unix:///{}", "x".repeat(106));
        assert!(fits.parse::<ServerAddress>().is_ok());
        assert_eq!(
            format!("{fits}x").parse::<ServerAddress>().unwrap_err(),
            ParseAddressError::TooLong { text: format!("{fits}x") },
        );
    }
}
