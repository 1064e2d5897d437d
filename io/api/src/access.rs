//! Who may do what at a controller: roles, tokens, and what was changed by whom.
//!
//! ```text
//!   user ─► read ─► operate ─► admin      each may do what those before it may
//!   proxy                                 apart: reports, and hears orders and rules
//! ```

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What somebody may do.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Sees what one user used.
    User,
    /// Sees everything but tokens and the audit log.
    Read,
    /// Changes rules, and forgets proxies.
    Operate,
    /// Makes and revokes tokens, and reads the audit log.
    Admin,
    /// Reports, and hears orders and rules; copies what was used, to stand by.
    Proxy,
}

/// Text that is no role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a role: user, read, operate, admin or proxy")]
pub struct ParseRoleError {
    text: String,
}

/// A token that is to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// What it is called: 1 to 63 letters, digits, `_`, `-` and `.`; no two have the same.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Whose usage it sees: with role `user`, and only with that.
    #[serde(default)]
    pub user: Option<u32>,
    /// When it ends, in seconds since 1970; absent: when it is revoked.
    #[serde(default)]
    pub expires_s: Option<u64>,
}

/// A token that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MadeToken {
    /// The token itself: told this once, and kept by nobody.
    pub token: String,
    /// What is on record of it.
    pub record: TokenReport,
}

/// What is on record of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenReport {
    /// What it is called.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Whose usage it sees, with role `user`.
    pub user: Option<u32>,
    /// When it was made, in seconds since 1970.
    pub made_s: u64,
    /// When it ends, in seconds since 1970; absent: when it is revoked.
    pub expires_s: Option<u64>,
}

/// Every token on record, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tokens {
    /// Those that ended too, until they are revoked.
    pub tokens: Vec<TokenReport>,
}

/// One change that a controller accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditLine {
    /// When, in seconds since 1970.
    pub at_s: u64,
    /// Whose token or certificate: its name; `anybody` where nobody needs one.
    pub who: String,
    /// What they may do.
    pub role: Role,
    /// From where: an address, a user at a Unix socket, or a command without a controller.
    pub from: String,
    /// What was changed: `rules`, `token NAME`, `proxy NAME`.
    pub what: String,
    /// What was there before; absent: nothing.
    pub before: Option<String>,
    /// What is there now; absent: nothing.
    pub after: Option<String>,
}

/// Changes, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditLines {
    /// The newest of those that were asked for.
    pub lines: Vec<AuditLine>,
    /// How many older ones there are besides.
    pub left_out: u64,
}

impl Role {
    /// Every role; of the first four, each may do what those before it may.
    pub const ALL: [Role; 5] = [Role::User, Role::Read, Role::Operate, Role::Admin, Role::Proxy];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Read => "read",
            Role::Operate => "operate",
            Role::Admin => "admin",
            Role::Proxy => "proxy",
        }
    }

    /// Whether it may do what `least` may. A proxy is nobody's subordinate and nobody's better.
    pub fn includes(self, least: Role) -> bool {
        let apart = self == Role::Proxy || least == Role::Proxy;
        if apart { self == least } else { self >= least }
    }
}

impl FromStr for Role {
    type Err = ParseRoleError;

    fn from_str(text: &str) -> Result<Role, ParseRoleError> {
        let role = Role::ALL.into_iter().find(|role| role.name() == text);
        role.ok_or_else(|| ParseRoleError { text: text.into() })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_s_roles_are_a_ladder_and_a_proxy_stands_beside_it() {
        use Role::{Admin, Operate, Proxy, Read, User};
        for (at, role) in [User, Read, Operate, Admin].into_iter().enumerate() {
            for (least_at, least) in [User, Read, Operate, Admin].into_iter().enumerate() {
                assert_eq!(role.includes(least), at >= least_at, "{role} {least}");
            }
            assert!(!role.includes(Proxy) && !Proxy.includes(role));
        }
        assert!(Proxy.includes(Proxy));
    }

    #[test]
    fn roles_parse_and_print_both_ways_and_what_is_none_is_named() {
        for role in Role::ALL {
            assert_eq!(role.to_string().parse(), Ok(role));
            assert_eq!(serde_json::to_string(&role).unwrap(), format!("\"{role}\""));
        }
        let error = "root".parse::<Role>().unwrap_err().to_string();
        assert!(error.contains("\"root\"") && error.contains("operate"), "{error}");
    }
}
