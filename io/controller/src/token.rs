//! Tokens: the identities and roles of callers.
//!
//! ```text
//!   32 random bytes ─► slc_… (shown once)
//!        └─ SHA-256 ─► record: hash, name, role, user, made, expires ─► the store
//!   slc_… ─ SHA-256 ─► found under that hash? ─► its record, unless it has expired
//! ```
//!
//! A token cannot be made from its record: 256 random bits cannot be guessed from their hash, so a
//! slow hash is not needed. The lookup is by the hash of the given token, so its time reveals
//! nothing about the stored tokens.
//!
//! Invariants: names are unique; while there are tokens one of them has role admin, because only
//! such a token can create others. An expired token stays until it is revoked: a controller never
//! becomes open to everybody because time passed.

use std::collections::BTreeMap;

use api::{NewToken, Role, TokenReport, is_name};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::credentials::TOKEN_PREFIX;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

/// The record of one token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TokenRecord {
    pub(crate) name: String,
    /// SHA-256 of the token's text, as base64url.
    hash: String,
    pub(crate) role: Role,
    pub(crate) user: Option<u32>,
    pub(crate) made_s: u64,
    pub(crate) expires_s: Option<u64>,
}

/// All tokens on record, by hash.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenSet(BTreeMap<String, TokenRecord>);

/// The reason why a token is not created or revoked. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum TokenRefused {
    /// A name that is not valid.
    #[error(
        "{name:?} is not a name of a token: 1 to 63 letters, digits, '_', '-' and '.', beginning with \
         a letter or digit"
    )]
    Name {
        /// The given text, cut short.
        name: String,
    },
    /// A name that another token has.
    #[error("token {name} exists already; revoke it first or choose another name")]
    NameInUse {
        /// The name of the existing token.
        name: String,
    },
    /// A role that requires a user, or that refuses one.
    #[error("a token of role {role} {}: role user requires --user, other roles refuse it", .user.map_or("without a user".into(), |user| format!("with user {user}")))]
    User {
        /// The role that was given.
        role: Role,
        /// The user that was given, if any.
        user: Option<u32>,
    },
    /// The token of a job, which is that of a registered one.
    #[error(
        "a token of role job is of a registered job only: PUT /v1/jobs/JOB, then POST /v1/jobs/JOB/token"
    )]
    Job,
    /// An expiry in the past.
    #[error("expires = {expires_s} s is in the past: now is {now_s} s since 1970")]
    Expired {
        /// The given expiry, in seconds since 1970.
        expires_s: u64,
        /// The current time, in seconds since 1970.
        now_s: u64,
    },
    /// A first token that could not create others.
    #[error(
        "the first token must have role admin and no expiry: only such a token can create others"
    )]
    First,
    /// The last token that can create others.
    #[error(
        "cannot revoke {name}, the last token of role admin without expiry; create another first"
    )]
    Last {
        /// The name of the token.
        name: String,
    },
    /// The last token of a controller that other machines reach.
    #[error(
        "cannot revoke {name}, the last token: anybody who can connect to this controller could \
         then change rules; create another first"
    )]
    Open {
        /// The name of the token.
        name: String,
    },
    /// A token that does not exist.
    #[error("token {name:?} not found; list tokens with sluice token list")]
    Unknown {
        /// The name, cut short.
        name: String,
    },
    /// More tokens than a controller stores.
    #[error("there are {TOKENS_MAX} tokens, which is the maximum; revoke expired tokens")]
    TooMany,
}

impl TokenRecord {
    /// Makes a token: its text and its record.
    pub(crate) fn make(new: &NewToken, now_s: u64) -> (String, TokenRecord) {
        let text = format!("{TOKEN_PREFIX}{}", random_secret());
        let record = TokenRecord {
            name: new.name.clone(),
            hash: hash(&text),
            role: new.role,
            user: new.user,
            made_s: now_s,
            expires_s: new.expires_s,
        };
        (text, record)
    }

    /// Returns whether the token has expired.
    pub(crate) fn has_expired(&self, now_s: u64) -> bool {
        self.expires_s.is_some_and(|expires_s| now_s >= expires_s)
    }

    /// Returns what the API shows of it.
    pub(crate) fn report(&self) -> TokenReport {
        TokenReport {
            name: self.name.clone(),
            role: self.role,
            user: self.user,
            created_s: self.made_s,
            expires_s: self.expires_s,
        }
    }

    /// Describes it for the audit log.
    pub(crate) fn words(&self) -> String {
        let mut words = format!("role {}", self.role);
        if let Some(user) = self.user {
            words += &format!(", user {user}");
        }
        match self.expires_s {
            Some(expires_s) => words + &format!(", expires at {expires_s} s"),
            None => words,
        }
    }

    /// Returns whether it can create others and does not expire.
    fn is_lasting_admin(&self) -> bool {
        self.role == Role::Admin && self.expires_s.is_none()
    }
}

impl TokenSet {
    /// Makes the set of these records.
    pub(crate) fn of(records: &[TokenRecord]) -> TokenSet {
        TokenSet(records.iter().map(|record| (record.hash.clone(), record.clone())).collect())
    }

    /// Returns whether there are no tokens, so that callers need none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Finds the record of a token's text.
    pub(crate) fn find(&self, text: &str) -> Option<&TokenRecord> {
        self.0.get(&hash(text))
    }

    /// Finds the record of a name.
    pub(crate) fn named(&self, name: &str) -> Option<&TokenRecord> {
        self.0.values().find(|record| record.name == name)
    }

    /// Returns what the API shows of all tokens, by name.
    pub(crate) fn report(&self) -> api::Tokens {
        let mut tokens: Vec<_> = self.0.values().map(TokenRecord::report).collect();
        tokens.sort_by(|a, b| a.name.cmp(&b.name));
        api::Tokens { tokens }
    }

    /// Checks whether this token can be created now.
    pub(crate) fn check_new(&self, new: &NewToken, now_s: u64) -> Result<(), TokenRefused> {
        if !is_name(&new.name) {
            return Err(TokenRefused::Name { name: truncated(&new.name) });
        }
        if self.named(&new.name).is_some() {
            return Err(TokenRefused::NameInUse { name: new.name.clone() });
        }
        if new.role == Role::Job {
            return Err(TokenRefused::Job);
        }
        if (new.role == Role::User) != new.user.is_some() {
            return Err(TokenRefused::User { role: new.role, user: new.user });
        }
        if let Some(expires_s) = new.expires_s.filter(|expires_s| now_s >= *expires_s) {
            return Err(TokenRefused::Expired { expires_s, now_s });
        }
        if self.is_empty() && (new.role != Role::Admin || new.expires_s.is_some()) {
            return Err(TokenRefused::First);
        }
        if self.0.len() >= TOKENS_MAX {
            return Err(TokenRefused::TooMany);
        }
        Ok(())
    }

    /// Checks whether the token of this name can be revoked now; `open` says that other machines
    /// can reach the controller.
    pub(crate) fn check_revoked(&self, name: &str, open: bool) -> Result<(), TokenRefused> {
        let Some(record) = self.named(name) else {
            return Err(TokenRefused::Unknown { name: truncated(name) });
        };
        let name = || name.to_owned();
        if self.0.len() == 1 {
            return if open { Err(TokenRefused::Open { name: name() }) } else { Ok(()) };
        }
        let admins = self.0.values().filter(|record| record.is_lasting_admin()).count();
        match record.is_lasting_admin() && admins == 1 {
            true => Err(TokenRefused::Last { name: name() }),
            false => Ok(()),
        }
    }
}

/// Makes 256 random bits, as base64url.
pub(crate) fn random_secret() -> String {
    let mut bytes = [0; 32];
    let random = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    random.expect("the kernel gives 32 random bytes at once since it has booted");
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The hash of a token's text, under which it is found.
pub(crate) fn hash(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(digest(&SHA256, text.as_bytes()))
}

/// Cuts a wrong name to the length that a message repeats.
fn truncated(name: &str) -> String {
    name.chars().take(80).collect()
}

/// The most tokens on record: they are in each snapshot and in memory.
pub(crate) const TOKENS_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn new(name: &str, role: Role) -> NewToken {
        let user = (role == Role::User).then_some(7);
        NewToken { name: name.into(), role, user, expires_s: None }
    }

    fn set(tokens: &[(&str, Role)]) -> TokenSet {
        let make = |(name, role): &(&str, Role)| TokenRecord::make(&new(name, *role), 1).1;
        TokenSet::of(&tokens.iter().map(make).collect::<Vec<_>>())
    }

    #[test]
    fn a_token_is_found_by_its_text_and_the_record_does_not_hold_it() {
        let (text, record) = TokenRecord::make(&new("a", Role::Read), 1);
        let (other, _) = TokenRecord::make(&new("a", Role::Read), 1);
        // 32 bytes are 43 letters of base64.
        assert_eq!((text.len(), &text[..4]), (47, "slc_"));
        assert_ne!(text, other);
        let kept = serde_json::to_string(&record).unwrap();
        assert!(!kept.contains(&text[4..]), "{kept}");
        let set = TokenSet::of(&[record]);
        assert_eq!(set.find(&text).unwrap().name, "a");
        for wrong in [other.as_str(), &text[..46], &format!("{text}A"), "", "slc_"] {
            assert!(set.find(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn the_hash_is_sha_256_as_others_compute_it() {
        // printf slc_a | sha256sum, as base64url
        assert_eq!(hash("slc_a").len(), 43);
        assert_eq!(hash(""), "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU");
    }

    #[test]
    fn a_token_ends_at_its_time_and_not_before() {
        let mut wanted = new("a", Role::Read);
        wanted.expires_s = Some(10);
        let (_, record) = TokenRecord::make(&wanted, 1);
        assert_eq!((record.has_expired(9), record.has_expired(10)), (false, true));
        assert!(!TokenRecord::make(&new("a", Role::Read), 1).1.has_expired(u64::MAX));
    }

    #[test]
    fn what_cannot_be_made_is_refused_with_its_reason() {
        let admins = set(&[("root", Role::Admin)]);
        let refused = |wanted: NewToken| admins.check_new(&wanted, 5).unwrap_err();
        assert!(matches!(refused(new("-a", Role::Read)), TokenRefused::Name { .. }));
        assert!(matches!(refused(new("root", Role::Read)), TokenRefused::NameInUse { .. }));
        let of = |role, user| NewToken { user, ..new("a", role) };
        let error = refused(of(Role::User, None)).to_string();
        assert!(error.contains("role user without a user"), "{error}");
        let error = refused(of(Role::Read, Some(3))).to_string();
        assert!(error.contains("role read with user 3"), "{error}");
        assert!(matches!(refused(new("a", Role::Job)), TokenRefused::Job));
        let late = NewToken { expires_s: Some(5), ..new("a", Role::Read) };
        assert!(matches!(refused(late), TokenRefused::Expired { expires_s: 5, now_s: 5 }));
        assert!(admins.check_new(&new("a", Role::User), 5).is_ok());
    }

    #[test]
    fn the_first_is_a_lasting_administrator_s_and_so_is_one_always() {
        let none = TokenSet::default();
        for role in [Role::User, Role::Read, Role::Operate, Role::Proxy, Role::Batch] {
            assert!(matches!(none.check_new(&new("a", role), 1), Err(TokenRefused::First)));
        }
        let ends = NewToken { expires_s: Some(9), ..new("a", Role::Admin) };
        assert!(matches!(none.check_new(&ends, 1), Err(TokenRefused::First)));
        assert!(none.check_new(&new("a", Role::Admin), 1).is_ok());

        let two = set(&[("root", Role::Admin), ("eve", Role::Read)]);
        assert!(matches!(two.check_revoked("root", false), Err(TokenRefused::Last { .. })));
        assert!(two.check_revoked("eve", true).is_ok());
        assert!(matches!(two.check_revoked("bob", true), Err(TokenRefused::Unknown { .. })));
        let one = set(&[("root", Role::Admin)]);
        assert!(matches!(one.check_revoked("root", true), Err(TokenRefused::Open { .. })));
        assert!(one.check_revoked("root", false).is_ok());
        let both = set(&[("root", Role::Admin), ("ann", Role::Admin)]);
        assert!(both.check_revoked("root", true).is_ok());
    }
}
