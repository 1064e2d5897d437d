//! Messages between a proxy and its controller.
//!
//! ```text
//!   proxy ── ShareReport: revision in force, usage ─────────────► controller
//!         ◄── Assignment: all that changed since that revision ──
//! ```
//!
//! Each message names the last message of the other side that was received. So the proxy knows how
//! old an assignment may be, and the controller how long the proxy may have received nothing. Both
//! hold however long messages travel and whichever direction fails.
//!
//! Both messages are absolute. A report names what is in force; an assignment gives the values from
//! its revision on, whatever was sent before. So the next message repeats what was lost, and a
//! duplicate or a late one changes nothing.

use std::sync::Arc;

use model::{Nanos, RuleActivity, Scope, ScopeUsage, Share, SlotsClaim, WaitedService};
use rules::{Entitlement, EntitlementId};

use crate::scopes::ProxyScopes;

/// A registration with a controller: of two memberships, the greater is the newer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Membership {
    /// The controller's term, above 0: it increases with each leadership.
    pub controller: u64,
    /// The number of the proxy's registration in this term.
    pub joined: u64,
}

/// A proxy's report of its state and its usage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareReport {
    /// The proxy's name, unique among those of a target.
    pub from: Arc<str>,
    /// The proxy's epoch: it increases with each start of the process.
    pub epoch: u64,
    /// The report's number in this epoch, from 1.
    pub sequence: u64,
    /// The membership of the last assignment that was received; the default if there was none.
    pub term: Membership,
    /// The number of the last assignment that was received in this term, 0 for none.
    pub last_assignment: u64,
    /// The revision in force, 0 if none of this term is.
    pub revision: u64,
    /// Whether the share lease expired: its assignments are no longer in force, and the proxy is to
    /// be registered again.
    pub lease_expired: bool,
    /// What the proxy holds, while no revision of this term is in force.
    pub holdings: Option<Holdings>,
    /// The usage since the last report. Scopes without usage are left out. `None`: usage was not
    /// read since then.
    pub uses: Option<Vec<(Scope, ScopeUsage)>>,
    /// What the proxy needs of the target's slots. `None`: no class has requests, or usage was not
    /// read.
    pub slots: Option<SlotsClaim>,
    /// What each reservation, of a row or a class, was served since the last report while its requests
    /// waited.
    pub waited: Vec<(Scope, WaitedService)>,
    /// Metadata service for clients that are not mounts: the total of each class.
    pub served: Vec<(Scope, ServiceTotal)>,
    /// The activity of each rule on which others depend.
    pub parents: Vec<(Arc<str>, RuleActivity)>,
    /// What the proxy has of that which rows name. `None`: what it reported last in this term.
    pub scopes: Option<Arc<ProxyScopes>>,
}

/// All shares that a proxy holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// The share of unlisted scopes.
    pub unlisted: Share,
    /// The share that the proxy falls back to.
    pub fallback: Share,
    /// The shares of listed scopes.
    pub listed: Vec<(Scope, Share)>,
}

/// The controller's message with grants and entitlements for one proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The name of the proxy.
    pub to: Arc<str>,
    /// The epoch of the proxy.
    pub epoch: u64,
    /// The membership for which it is.
    pub term: Membership,
    /// The assignment's number in this membership, from 1.
    pub number: u64,
    /// The number of the last report that the controller received.
    pub in_reply_to: u64,
    /// Whether the controller is still learning what there is to divide. Such an assignment renews
    /// no lease, but it postpones raising.
    pub learning: bool,
    /// The revision since which it contains all changes.
    pub base: u64,
    /// The revision that it puts in force; 0 changes nothing: keep what you hold and report it.
    pub revision: u64,
    /// The number of proxies.
    pub proxies: u32,
    /// The share of unlisted scopes.
    pub unlisted: Share,
    /// The share of everything after the lease has expired.
    pub fallback: Share,
    /// The shares of single scopes; `None` ends the listing of its scope.
    pub grants: Vec<(Scope, Option<Share>)>,
    /// Whether `rows` are all that the proxy is to have: others end.
    pub all_rows: bool,
    /// The rows of entitlements that changed, `None` for those that end. Their spans count from when
    /// the proxy sent the report that this replies to.
    pub rows: Vec<(EntitlementId, Option<Entitlement>)>,
    /// Metadata service that the proxy's classes had from other proxies.
    pub remote_service: Vec<(Scope, RemoteService)>,
    /// The activity, at all other proxies, of rules on which others depend. Without activity a rule
    /// is left out. While the controller learns it names none, and changes nothing.
    pub parents: Vec<(Arc<str>, RuleActivity)>,
}

/// A cumulative total of service by one proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceTotal {
    /// The generation: a greater one counts from zero.
    pub generation: u64,
    /// The total cost since the generation began.
    pub cost: Nanos,
}

/// A cumulative total of service by all other proxies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteService {
    /// What other proxies served, in generations of the controller's.
    pub total: ServiceTotal,
    /// What the controller knows of the proxy's own service.
    pub own: ServiceTotal,
}
