//! What members and controller say to each other.
//!
//! ```text
//!   member ── Report: how far I am, what I did ────────────► controller
//!          ◄── Order: all that changed since you were there ──
//! ```
//!
//! Each names the last one of the other side that it knows of. So the member knows how old what it
//! hears may be, and the controller how long the member may have heard nothing, however long messages
//! are on their way and whichever direction fails.
//!
//! Both are absolute: a report says what is in force, an order the values that hold from its
//! revision on, whatever of them was sent before. So whatever is lost is said again by the next,
//! and what comes twice or late says nothing new.

use std::sync::Arc;

use model::{Grant, Nanos, Scope, ScopeUsage, Share};

/// Which membership under which controller: of two, the greater is the newer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Membership {
    /// The controller's own number: each one that begins anew has a greater one, above 0.
    pub controller: u64,
    /// The number of the member's registration with it.
    pub joined: u64,
}

/// What a member says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareReport {
    /// Its name, unique among those of a target.
    pub from: Arc<str>,
    /// Which of its lives: each start of the process has a greater one.
    pub epoch: u64,
    /// The report's number in this life, from 1.
    pub sequence: u64,
    /// The term of the last order that it heard; the default if it never heard one.
    pub term: Membership,
    /// The number of the last order that it heard in this term, 0 if it heard none.
    pub heard: u64,
    /// The revision in force, 0 if none of this term is.
    pub revision: u64,
    /// Whether it heard nothing for so long that its orders are not in force any more: it is to be
    /// registered anew.
    pub lapsed: bool,
    /// What it holds, while no revision of this term is in force.
    pub holdings: Option<Holdings>,
    /// What it did since its last report. Scopes that it did nothing with are left out. `None`: it
    /// did not look at what it does since then.
    pub uses: Option<Vec<(Scope, ScopeUsage)>>,
    /// Metadata service for clients that are no mounts, by class, in all.
    pub served: Vec<(Scope, ServiceTotal)>,
}

/// All parts that a member holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// What it holds of everything that is not listed.
    pub unlisted: Share,
    /// What it falls back to.
    pub fallback: Share,
    /// What it holds of single scopes.
    pub listed: Vec<(Scope, Share)>,
}

/// What the controller orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The member.
    pub to: Arc<str>,
    /// Which of its lives.
    pub epoch: u64,
    /// The membership for which it is.
    pub term: Membership,
    /// The order's number in it, from 1.
    pub number: u64,
    /// The last report that the controller had.
    pub answers: u64,
    /// Whether the controller does not know yet what there is to be divided: such an order keeps
    /// nothing alive, but it puts off raising.
    pub stay: bool,
    /// It says all that changed since this revision.
    pub base: u64,
    /// The revision that is in force with it; 0 changes nothing: keep what you hold and tell it.
    pub revision: u64,
    /// How many members there are.
    pub members: u32,
    /// The part of everything that is not listed.
    pub unlisted: Share,
    /// The part of everything when it hears nothing for long.
    pub fallback: Share,
    /// What single scopes are granted; one that says nothing is listed no longer.
    pub grants: Vec<(Scope, Grant)>,
    /// Metadata service that its classes had of other members.
    pub elsewhere: Vec<(Scope, RemoteService)>,
}

/// Service by one member, counted up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceTotal {
    /// A greater one counts from zero.
    pub lap: u64,
    /// What it costs in all since the lap began.
    pub cost: Nanos,
}

/// Service by all others, counted up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteService {
    /// What they served, in laps of the controller's.
    pub elsewhere: ServiceTotal,
    /// What is known of the member's own.
    pub own: ServiceTotal,
}
