//! The tokens of registered jobs, by hash, for the lookup at each call.
//!
//! ```text
//!   calendar's thread: a job is on record ─► hash of its token ─► identity ◄─ hash of what a caller shows
//!                      its end is on record ─► removed
//! ```
//!
//! A token is found here only while its job is registered with that attempt, so a token of a job that
//! has ended, or of an earlier attempt, is unknown.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use http::credentials::TOKEN_PREFIX;
use model::{JobId, Time};
use reserve::{JobRecord, JobSecret};

use crate::token::{hash, random_secret};

/// The tokens of all registered jobs.
#[derive(Debug, Default)]
pub(crate) struct JobTokens(RwLock<TokensByHash>);

/// What is found under the hash of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobIdentity {
    pub(crate) job: JobId,
    pub(crate) user: u32,
    /// When the token is no longer valid.
    pub(crate) expires: Option<Time>,
}

#[derive(Debug, Default)]
struct TokensByHash {
    by_hash: BTreeMap<String, JobIdentity>,
    hashes: BTreeMap<JobId, String>,
}

impl JobTokens {
    /// Finds the job of a token's text.
    pub(crate) fn find(&self, text: &str) -> Option<JobIdentity> {
        let tokens = self.0.read().unwrap_or_else(PoisonError::into_inner);
        tokens.by_hash.get(&hash(text)).cloned()
    }

    /// Replaces the token of a job by that of its record, or removes it.
    pub(crate) fn set(&self, job: &JobId, record: Option<&JobRecord>) {
        let found = record.map(|record| (hash(&token_of(&record.secret)), identity_of(record)));
        let mut tokens = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = tokens.hashes.remove(job) {
            tokens.by_hash.remove(&before);
        }
        if let Some((hash, identity)) = found {
            tokens.hashes.insert(job.clone(), hash.clone());
            tokens.by_hash.insert(hash, identity);
        }
    }

    /// Replaces the tokens of all jobs.
    pub(crate) fn set_all<'a>(&self, records: impl Iterator<Item = &'a JobRecord>) {
        let mut all = TokensByHash::default();
        for record in records {
            let (hash, identity) = (hash(&token_of(&record.secret)), identity_of(record));
            all.hashes.insert(identity.job.clone(), hash.clone());
            all.by_hash.insert(hash, identity);
        }
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = all;
    }
}

/// Makes the secret of a new token.
pub(crate) fn new_secret() -> JobSecret {
    JobSecret::new(random_secret())
}

/// The text of the token of a secret.
pub(crate) fn token_of(secret: &JobSecret) -> String {
    format!("{TOKEN_PREFIX}{}", secret.text())
}

fn identity_of(record: &JobRecord) -> JobIdentity {
    let of = &record.registration;
    JobIdentity { job: of.job.clone(), user: of.uid, expires: record.expires() }
}

#[cfg(test)]
mod tests {
    use reserve::JobRegistration;

    use super::*;

    fn record(name: &str, uid: u32) -> JobRecord {
        let job = JobId::new(name).unwrap();
        let registration = JobRegistration { job, uid, ..JobRegistration::default() };
        JobRecord { registration, registered: Time::ZERO, secret: new_secret() }
    }

    #[test]
    fn a_token_is_of_its_job_until_another_one_replaces_it() {
        let (tokens, first, other) = (JobTokens::default(), record("1", 7), record("2", 8));
        let job = &first.registration.job;
        tokens.set_all([&first, &other].into_iter());
        let text = token_of(&first.secret);
        // as long as any other token, and nothing of it is in what is kept or printed
        assert_eq!((text.len(), &text[..4]), (47, "slc_"));
        assert!(!format!("{tokens:?}").contains(&text[4..]));
        let found = tokens.find(&text).unwrap();
        assert_eq!((found.job.as_str(), found.user), ("1", 7));
        assert_eq!(tokens.find(first.secret.text()), None);
        let again = record("1", 7);
        tokens.set(job, Some(&again));
        assert_eq!(tokens.find(&text), None);
        assert!(tokens.find(&token_of(&again.secret)).is_some());
        tokens.set(job, None);
        assert_eq!(tokens.find(&token_of(&again.secret)), None);
        assert_eq!(tokens.find(&token_of(&other.secret)).unwrap().user, 8);
    }
}
