//! Roles and tokens of a controller, and its audit log.
//!
//! ```text
//!   user ─► read ─► operate ─► admin      each has the rights of those before it
//!   proxy                                 separate: reports, and receives assignments and rules
//!   batch                                 separate: jobs, and reservations of all users
//!   job                                   separate: what one job of one user may
//! ```

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The role of a caller.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Sees the usage of one user.
    User,
    /// Sees everything except tokens and the audit log.
    Read,
    /// Changes rules, and removes proxies.
    Operate,
    /// Creates and revokes tokens, and reads the audit log.
    Admin,
    /// Reports, and receives assignments and rules.
    Proxy,
    /// Registers jobs, and reserves for all users: a batch system.
    Batch,
    /// Reserves for one job of one user. Its token is returned for a registered job only.
    Job,
}

/// Text that is not a role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a role: user, read, operate, admin, proxy or batch")]
pub struct ParseRoleError {
    text: String,
}

/// A token to be created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// Its name: 1 to 63 letters, digits, `_`, `-` and `.`, unique among the tokens.
    pub name: String,
    /// Its role: the calls that it allows.
    pub role: Role,
    /// The user whose usage it sees: required by role `user`, refused by others. Role `job` is refused:
    /// the token of a job is that of a registered one.
    #[serde(default)]
    pub user: Option<u32>,
    /// Its expiry, in seconds since 1970; absent: valid until it is revoked.
    #[serde(default)]
    pub expires_s: Option<u64>,
}

/// A new token with its secret, which is shown only once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MadeToken {
    /// The token itself: returned this once and not stored.
    pub token: String,
    /// The record of the token.
    pub record: TokenReport,
}

/// The record of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenReport {
    /// Its name, unique among the tokens.
    pub name: String,
    /// Its role: the calls that it allows.
    pub role: Role,
    /// The user whose usage it sees, with role `user`.
    pub user: Option<u32>,
    /// When it was created, in seconds since 1970.
    pub created_s: u64,
    /// Its expiry, in seconds since 1970; absent: valid until it is revoked.
    pub expires_s: Option<u64>,
}

/// All tokens on record, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tokens {
    /// The tokens, including expired ones until they are revoked.
    pub tokens: Vec<TokenReport>,
}

/// One change that a controller accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditLine {
    /// The time, in seconds since 1970.
    pub at_s: u64,
    /// The name of the token or certificate; `anybody` if none is required.
    pub actor: String,
    /// The role of the caller.
    pub role: Role,
    /// The origin: an address, a user at a Unix socket, or a command without a controller.
    pub from: String,
    /// The changed object: `rules`, `token NAME`, `proxy NAME`, `reservation ID`, `job NAME`.
    pub what: String,
    /// The value before; absent if there was none.
    pub before: Option<String>,
    /// The value now; absent if there is none.
    pub after: Option<String>,
}

/// Accepted changes from the audit log, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditLines {
    /// The newest of the requested changes.
    pub lines: Vec<AuditLine>,
    /// The number of older ones.
    pub omitted: u64,
}

/// Without the token: what is printed may be in a log.
impl fmt::Debug for MadeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MadeToken").field("record", &self.record).finish_non_exhaustive()
    }
}

impl Role {
    /// All roles; each of the first four has the rights of those before it.
    pub const ALL: [Role; 7] =
        [Role::User, Role::Read, Role::Operate, Role::Admin, Role::Proxy, Role::Batch, Role::Job];

    /// Returns the word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Read => "read",
            Role::Operate => "operate",
            Role::Admin => "admin",
            Role::Proxy => "proxy",
            Role::Batch => "batch",
            Role::Job => "job",
        }
    }

    /// Returns whether it has the rights of `least`. Roles proxy, batch and job are neither above nor
    /// below others.
    pub fn includes(self, least: Role) -> bool {
        let apart = self.is_apart() || least.is_apart();
        if apart { self == least } else { self >= least }
    }

    /// Returns whether it is none of the four roles of people.
    const fn is_apart(self) -> bool {
        matches!(self, Role::Proxy | Role::Batch | Role::Job)
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
    fn people_s_roles_are_a_ladder_and_programs_stand_beside_it() {
        use Role::{Admin, Batch, Job, Operate, Proxy, Read, User};
        for (at, role) in [User, Read, Operate, Admin].into_iter().enumerate() {
            for (least_at, least) in [User, Read, Operate, Admin].into_iter().enumerate() {
                assert_eq!(role.includes(least), at >= least_at, "{role} {least}");
            }
            for apart in [Proxy, Batch, Job] {
                assert!(!role.includes(apart) && !apart.includes(role), "{role} {apart}");
            }
        }
        for one in [Proxy, Batch, Job] {
            for other in [Proxy, Batch, Job] {
                assert_eq!(one.includes(other), one == other);
            }
        }
    }

    #[test]
    fn the_text_of_a_new_token_is_not_printed() {
        let (name, role) = ("ann".to_owned(), Role::Read);
        let record = TokenReport { name, role, user: None, created_s: 1, expires_s: None };
        let made = MadeToken { token: "slc_secret".into(), record };
        let shown = format!("{made:?}");
        assert!(shown.contains("ann") && !shown.contains("secret"), "{shown}");
        assert!(serde_json::to_string(&made).unwrap().contains("slc_secret"));
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
