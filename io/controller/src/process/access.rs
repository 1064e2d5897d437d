//! Authentication: from a token or certificate to a caller with a role.
//!
//! ```text
//!   Authorization: Bearer slc_… ─► token on record, not expired ─► its name, role and user
//!                               └► token of a registered job ────► role job, of that job and user
//!   client certificate ──────────► its CA is the controller's ─► the node, role proxy
//!   neither ─────────────────────► no token on record, and this machine only ─► anybody, admin
//!                                  └ else 401
//! ```
//!
//! A call is checked against the current records, so a revoked token is refused from then on, on
//! open connections, too.

use std::sync::{Arc, PoisonError, RwLock};

use api::{AuditLine, Role};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use http::{ClientCertificate, Peer};
use model::JobId;

use super::job_tokens::{JobIdentity, JobTokens};
use crate::audit::Audit;
use crate::clock::system_time;
use crate::token::TokenSet;

/// The tokens and the audit log. The store's thread changes the tokens.
#[derive(Debug)]
pub(crate) struct AccessControl {
    tokens: RwLock<Arc<TokenSet>>,
    /// The tokens of registered jobs. The calendar's thread changes them.
    pub(crate) jobs: JobTokens,
    pub(crate) audit: Audit,
    /// Whether other machines can reach the controller.
    pub(crate) open: bool,
}

/// The caller of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiCaller {
    /// The name of the token, or the node of the certificate.
    pub(crate) name: String,
    pub(crate) role: Role,
    /// The user whose usage it sees, with role `user`; of role `job` the job's.
    pub(crate) user: Option<u32>,
    /// The one job for which it acts, with role `job`.
    pub(crate) job: Option<JobId>,
    /// The one proxy for which it may report, if it has a certificate.
    pub(crate) node: Option<String>,
    pub(crate) from: String,
}

impl AccessControl {
    pub(crate) fn new(tokens: TokenSet, audit: Audit, open: bool) -> AccessControl {
        AccessControl {
            tokens: RwLock::new(Arc::new(tokens)),
            jobs: JobTokens::default(),
            audit,
            open,
        }
    }

    /// Returns the current tokens.
    pub(crate) fn tokens(&self) -> Arc<TokenSet> {
        self.tokens.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the tokens; calls that have begun keep the old ones.
    pub(crate) fn set_tokens(&self, tokens: TokenSet) {
        *self.tokens.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(tokens);
    }

    /// Identifies the caller.
    ///
    /// # Errors
    /// If it cannot be identified: the reason, for people.
    pub(crate) fn identify(&self, peer: &Peer, headers: &HeaderMap) -> Result<ApiCaller, String> {
        let (tokens, now_s) = (self.tokens(), now_s());
        let from = peer.to_string();
        if let Some(value) = headers.get(AUTHORIZATION) {
            // The scheme's case does not matter (RFC 9110, 11.1).
            let shown = value.to_str().ok().and_then(|value| value.split_once(' '));
            let shown = shown.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("Bearer"));
            let (_, shown) =
                shown.ok_or("invalid header Authorization; use Authorization: Bearer slc_…")?;
            let Some(record) = tokens.find(shown.trim()) else {
                if let Some(job) = self.jobs.find(shown.trim()) {
                    return caller_of_job(job, from);
                }
                return Err("this token is not known here; it was revoked or belongs to another \
                            controller"
                    .into());
            };
            let name = record.name.clone();
            if record.has_expired(now_s) {
                return Err(format!(
                    "token {name} has expired; ask an administrator for a new one"
                ));
            }
            let (role, user) = (record.role, record.user);
            return Ok(ApiCaller { name, role, user, job: None, node: None, from });
        }
        if let Some(ClientCertificate { node, ends_s }) = peer.certificate() {
            if now_s > *ends_s {
                return Err(format!("the certificate of proxy {node} has expired"));
            }
            let (name, node) = (node.clone(), Some(node.clone()));
            return Ok(ApiCaller { name, role: Role::Proxy, user: None, job: None, node, from });
        }
        if tokens.is_empty() && !self.open {
            let (name, role) = ("anybody".to_owned(), Role::Admin);
            return Ok(ApiCaller { name, role, user: None, job: None, node: None, from });
        }
        Err("this controller requires a token; use --token-file FILE, SLUICE_TOKEN_FILE or \
             SLUICE_TOKEN (the header Authorization: Bearer slc_…)"
            .into())
    }
}

impl ApiCaller {
    /// Returns whether it may see the usage of this user; `None` is everybody's.
    pub(crate) fn may_see(&self, user: Option<u32>) -> bool {
        match self.role {
            Role::Read | Role::Operate | Role::Admin | Role::Batch => true,
            Role::User | Role::Job => user.is_some() && self.user == user,
            Role::Proxy => false,
        }
    }

    /// Returns whether it may see what is of this user and job: role `job` sees what is of its own job
    /// only.
    pub(crate) fn may_see_job(&self, user: Option<u32>, job: &str) -> bool {
        self.may_see(user) && self.job.as_ref().is_none_or(|own| own.as_str() == job)
    }

    /// Returns whether it acts for all users.
    pub(crate) fn acts_for_all(&self) -> bool {
        self.role == Role::Batch || self.role.includes(Role::Operate)
    }

    /// Returns whether it may report for this proxy.
    pub(crate) fn may_be(&self, proxy: &str) -> bool {
        self.node.as_deref().is_none_or(|node| node == proxy)
    }

    /// Makes a line of the audit log for a change by this caller.
    pub(crate) fn audit_line(
        &self,
        what: String,
        before: Option<String>,
        after: Option<String>,
    ) -> AuditLine {
        AuditLine {
            at_s: now_s(),
            actor: self.name.clone(),
            role: self.role,
            from: self.from.clone(),
            what,
            before,
            after,
        }
    }
}

/// Makes the caller of the token of a job.
fn caller_of_job(identity: JobIdentity, from: String) -> Result<ApiCaller, String> {
    let JobIdentity { job, user, expires } = identity;
    if expires.is_some_and(|expires| system_time() >= expires) {
        return Err(format!("the token of job {job} has expired: the job is over"));
    }
    let name = format!("job {job}");
    Ok(ApiCaller { name, role: Role::Job, user: Some(user), job: Some(job), node: None, from })
}

/// Returns the seconds since 1970.
pub(crate) fn now_s() -> u64 {
    system_time().as_nanos() / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use api::NewToken;

    use super::*;
    use crate::token::TokenRecord;
    use testkit::TestFolder;

    fn access(folder: &TestFolder, records: &[TokenRecord], open: bool) -> AccessControl {
        AccessControl::new(TokenSet::of(records), Audit::open(folder.path()).unwrap(), open)
    }

    fn peer(certificate: Option<ClientCertificate>) -> Peer {
        Peer::tcp("127.0.0.1:1".parse().unwrap(), true).with_certificate(certificate)
    }

    fn shows(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())])
    }

    #[test]
    fn without_tokens_everybody_of_this_machine_is_admin_and_nobody_else_is_anything() {
        let folder = TestFolder::new();
        let caller = access(&folder, &[], false).identify(&peer(None), &HeaderMap::new()).unwrap();
        assert_eq!((caller.name.as_str(), caller.role), ("anybody", Role::Admin));
        let open = access(&folder, &[], true);
        let error = open.identify(&peer(None), &HeaderMap::new()).unwrap_err();
        assert!(error.contains("--token-file"), "{error}");
    }

    #[test]
    fn a_token_counts_until_it_ends_and_a_wrong_one_is_worse_than_none() {
        let folder = TestFolder::new();
        let new = |name: &str, expires_s| NewToken {
            name: name.into(),
            role: Role::Read,
            user: None,
            expires_s,
        };
        let (text, lasts) = TokenRecord::make(&new("a", None), 1);
        let (late, ended) = TokenRecord::make(&new("b", Some(2)), 1);
        let some = access(&folder, &[lasts, ended], false);
        let ask = |value: &str| some.identify(&peer(None), &shows(value));
        for scheme in ["Bearer", "bearer", "BEARER"] {
            assert_eq!(ask(&format!("{scheme} {text}")).unwrap().name, "a");
        }
        assert!(ask(&format!("Bearer{text}")).is_err() && ask(&text).is_err());
        assert!(ask(&format!("Bearer {late}")).unwrap_err().contains("token b has expired"));
        assert!(ask("Bearer slc_x").unwrap_err().contains("not known here"));
        assert!(ask("Basic eDp5").unwrap_err().contains("Bearer"));
        assert!(some.identify(&peer(None), &HeaderMap::new()).is_err());
        let none = access(&folder, &[], false);
        assert!(none.identify(&peer(None), &shows("Bearer slc_x")).is_err());
    }

    #[test]
    fn a_certificate_speaks_for_its_node_and_only_while_it_lasts() {
        let folder = TestFolder::new();
        let access = access(&folder, &[], true);
        let of = |ends_s| peer(Some(ClientCertificate { node: "a".into(), ends_s }));
        let caller = access.identify(&of(u64::MAX), &HeaderMap::new()).unwrap();
        assert_eq!((caller.name.as_str(), caller.role), ("a", Role::Proxy));
        assert!(caller.may_be("a") && !caller.may_be("b"));
        let error = access.identify(&of(1), &HeaderMap::new()).unwrap_err();
        assert!(error.contains("proxy a has expired"), "{error}");
    }

    #[test]
    fn a_user_sees_itself_and_readers_see_all() {
        let of = |role, user| ApiCaller {
            name: "x".into(),
            role,
            user,
            job: None,
            node: None,
            from: "127.0.0.1:1".into(),
        };
        let user = of(Role::User, Some(7));
        assert!(user.may_see(Some(7)) && !user.may_see(Some(8)) && !user.may_see(None));
        for role in [Role::Read, Role::Operate, Role::Admin] {
            assert!(of(role, None).may_see(Some(8)) && of(role, None).may_see(None));
        }
        assert!(!of(Role::Proxy, None).may_see(Some(7)) && !of(Role::Proxy, None).may_see(None));
    }
}
