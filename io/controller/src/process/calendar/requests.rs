//! From what a caller requests to a request of the calendar, and its errors.
//!
//! ```text
//!   NewReservation, caller ─► checked: 400 names the field ─► ReservationRequest, ReservationDetails
//!   ReservationError ─► 400 | 404 | 409 with what would fit
//! ```

use api::{ErrorCode, ErrorReport, NewReservation, Role, WireRate, WireRefusal};
use model::{Directory, JobId, Nanos, Rate, Share, Time};
use reserve::{
    Calendar, Demand, Load, Refusal, ReservationError, ReservationOwner, ReservationRequest,
    ResourceId, ResourceKind,
};

use super::fleet::Fleet;
use super::rules::RuleReservations;
use super::settings::POOL;
use super::shown::KnownReservation;
use super::state::ReservationDetails;
use crate::process::access::ApiCaller;

/// Why a call is refused.
pub(super) type Refused = Box<ErrorReport>;

/// What the calendar knows at a request.
pub(super) struct RequestContext<'a> {
    pub(super) calendar: &'a Calendar,
    pub(super) fleet: &'a Fleet,
    /// What one node reads, and what it writes.
    pub(super) node: Option<Rate>,
    pub(super) now: Time,
}

/// Returns the user for whom a caller requests: role `user` for itself only.
pub(super) fn user_of(
    by: &ApiCaller,
    peer: Option<u32>,
    named: Option<u32>,
) -> Result<u32, Refused> {
    if !by.acts_for_all() {
        may_act(by, named.or(by.user).or(peer))?;
    }
    let user = named.or(by.user).or(peer);
    user.ok_or_else(|| at("user", "user is missing: name the user whose requests are reserved for"))
}

/// Whether a caller may name whose ceilings and credits a request counts for: role `user` cannot, as
/// the controller does not know the users of groups, accounts and projects.
pub(super) fn may_charge(by: &ApiCaller, new: &NewReservation) -> Result<(), Refused> {
    let named = [
        ("account", new.account.is_some()),
        ("group", new.group.is_some()),
        ("project", new.project.is_some()),
    ];
    let named = named.into_iter().find(|(_, is_named)| *is_named);
    let Some((field, _)) = named.filter(|_| !by.acts_for_all()) else {
        return Ok(());
    };
    let message = format!(
        "{} has role {} and may not name the {field} that is charged; that needs role operate",
        by.name, by.role
    );
    Err(Box::new(ErrorReport::new(ErrorCode::PermissionDenied, message).at(field)))
}

/// Checks the key of a request.
pub(super) fn check_key(key: &str) -> Result<(), Refused> {
    let fits =
        (1..=KEY_BYTES_MAX).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic());
    if fits {
        return Ok(());
    }
    let want = "1 to 64 printable ASCII characters without spaces";
    Err(at("idempotency_key", format!("{:?} is not a key: {want}", cut(key))))
}

/// Whether a caller may request and change reservations of that user.
pub(super) fn may_act(by: &ApiCaller, user: Option<u32>) -> Result<(), Refused> {
    let may_own = matches!(by.role, Role::User | Role::Job);
    if by.acts_for_all() || may_own && user.is_some() && by.user == user {
        return Ok(());
    }
    let own = match by.user {
        Some(own) => format!("has role {} and may act for user {own} only", by.role),
        None => format!("needs role operate, and has role {}", by.role),
    };
    let message = format!("{} {own}", by.name);
    Err(Box::new(ErrorReport::new(ErrorCode::PermissionDenied, message).at("user")))
}

impl RequestContext<'_> {
    /// Checks a request of a user; the calendar decides whether it fits.
    pub(super) fn request(
        &self,
        new: &NewReservation,
        owner: ReservationOwner,
        after_end: Option<Time>,
    ) -> Result<(ReservationRequest, KnownReservation), Refused> {
        let target = self.fleet.target_of(new.export.as_deref());
        let target = target.map_err(|why| at("export", why.to_string()))?;
        let read = rate("read", new.read, true)?;
        let write = rate("write", new.write, true)?;
        let metadata = rate("metadata", new.metadata, false)?;
        let details = ReservationDetails {
            target,
            directory: self.directory(new)?,
            read,
            write,
            metadata,
            is_spontaneous: new.spontaneous,
            idempotency_key: new.idempotency_key.clone(),
        };
        self.check_nodes(new.nodes, &details)?;
        let demand = self.demand(&details)?;
        let duration = Nanos::new(new.duration_ns);
        let request = ReservationRequest::new(owner.clone(), demand, duration);
        let request = self.timed(new, request, after_end)?;
        Ok((request, KnownReservation { owner, details, phase_of: None }))
    }

    /// The demand of rates on a target.
    pub(super) fn demand(&self, details: &ReservationDetails) -> Result<Demand, Refused> {
        let ReservationDetails { target, read, write, metadata, .. } = details;
        let mut loads = Vec::new();
        let load = |read: &Option<u64>, write: Option<u64>| {
            Load::per_sec(read.unwrap_or(0), write.unwrap_or(0)).expect("each rate was checked")
        };
        if read.is_some() || write.is_some() {
            loads.push((self.resource(ResourceKind::Target, target)?, load(read, *write)));
            let pool = self.calendar.resources().find(ResourceKind::Pool, POOL);
            loads.extend(pool.map(|pool| (pool, load(read, *write))));
            for (name, share) in self.fleet.networks_of(target) {
                let network = self.calendar.resources().find(ResourceKind::ProxyNetwork, name);
                // Rounded up, so that sums are not less than the whole.
                let part = |rate: u64| rate - Share::WHOLE.less(share).of(rate);
                loads.extend(network.map(|of| (of, load(&read.map(part), write.map(part)))));
            }
        }
        if metadata.is_some() {
            loads.push((self.resource(ResourceKind::Metadata, target)?, load(metadata, None)));
        }
        Demand::new(&loads)
            .map_err(|_| at("read", "nothing is reserved: name a rate of read, write or metadata"))
    }

    /// Checks that the nodes of a request can move these rates, each direction for itself.
    pub(super) fn check_nodes(
        &self,
        nodes: Option<u32>,
        details: &ReservationDetails,
    ) -> Result<(), Refused> {
        let Some(nodes) = nodes else { return Ok(()) };
        if !(1..=NODES_MAX).contains(&nodes) {
            return Err(at("nodes", format!("{nodes} nodes: 1 to {NODES_MAX} are accepted")));
        }
        let Some(node) = self.node else { return Ok(()) };
        let most = node.per_sec().saturating_mul(nodes.into());
        for (direction, rate) in [("reads", details.read), ("writes", details.write)] {
            let Some(rate) = rate.filter(|rate| *rate > most) else { continue };
            let wanted = Rate::bytes_per_sec(rate).expect("it is more than a rate");
            let nodes = if nodes == 1 { "1 node".into() } else { format!("{nodes} nodes") };
            let message =
                format!("{wanted} of {direction} are more than {nodes} of {node} each can move");
            let refusal = WireRefusal {
                kind: ResourceKind::Node.name().into(),
                bottleneck: nodes,
                fits_now_ppm: Share::ratio(most, rate).billionths() / 1_000,
                ..WireRefusal::default()
            };
            let report = ErrorReport::new(ErrorCode::DoesNotFit, message);
            return Err(Box::new(ErrorReport { refusal: Some(Box::new(refusal)), ..report }));
        }
        Ok(())
    }

    fn timed(
        &self,
        new: &NewReservation,
        request: ReservationRequest,
        after_end: Option<Time>,
    ) -> Result<ReservationRequest, Refused> {
        let not_before = new.not_before_ns.map_or(self.now, Time::from_nanos).max(self.now);
        let release = after_end.map_or(not_before, |end| end.max(not_before));
        let window = Nanos::new(new.claim_window_ns);
        let mut request = request.starting_from(release).claimed_within(window);
        if new.exact && (new.spontaneous || new.after.is_some()) {
            return Err(at("exact", "exact excludes spontaneous and after"));
        }
        let exact = release + Nanos::new(new.duration_ns) + window;
        let by = new.by_ns.map(Time::from_nanos);
        if by.is_some_and(|by| by < exact) {
            let earliest = exact.as_nanos();
            return Err(at("by_ns", format!("by_ns is before its earliest end, {earliest}")));
        }
        let deadline = if new.exact { Some(exact) } else { by };
        if let Some(deadline) = deadline {
            request = request.ending_by(deadline);
        }
        match (new.spontaneous, new.spend_credit) {
            (false, true) => Err(at("spend_credit", "spend_credit is for spontaneous ones only")),
            (false, false) => Ok(request),
            (true, false) => Ok(request.spontaneous()),
            (true, true) => Ok(request.spontaneous().spending_credit()),
        }
    }

    fn directory(&self, new: &NewReservation) -> Result<Option<String>, Refused> {
        let Some(below) = &new.directory else { return Ok(None) };
        let export = new.export.clone().or_else(|| self.fleet.only_export());
        let export =
            export.ok_or_else(|| at("export", "export is missing: the directory is below one"))?;
        let path = match below.trim_matches('/') {
            "" => export,
            below => format!("{export}/{below}"),
        };
        // As text in records and messages, so a name is text, too.
        let fits = path.len() <= DIRECTORY_BYTES_MAX && !path.chars().any(char::is_control);
        match Directory::new(path.as_bytes()).filter(|_| fits) {
            Some(_) => Ok(Some(path)),
            None => {
                let want = "a path below the export of at most 1024 printable bytes and 64 names, \
                            without . and ..";
                Err(at("directory", format!("{:?} is not {want}", cut(below))))
            }
        }
    }

    fn resource(&self, kind: ResourceKind, target: &str) -> Result<ResourceId, Refused> {
        self.calendar.resources().find(kind, target).ok_or_else(|| {
            let keys = match kind {
                ResourceKind::Metadata => "capacity_metadata",
                _ => "capacity_read and capacity_write",
            };
            let message = format!(
                "the capacity of target {target:?} is not known ({}); set {keys} of its [[target]] \
                 or give it the costs of sluice calibrate",
                kind.name()
            );
            let (kind, bottleneck) = (kind.name().into(), target.into());
            let refusal = WireRefusal { kind, bottleneck, ..WireRefusal::default() };
            let report = ErrorReport::new(ErrorCode::DoesNotFit, message);
            Box::new(ErrorReport { refusal: Some(Box::new(refusal)), ..report })
        })
    }
}

/// The owner of a requested reservation.
pub(super) fn owner(new: &NewReservation, user: u32) -> Result<ReservationOwner, Refused> {
    let job = new.job.as_deref().unwrap_or_default();
    let parsed = JobId::new(job).ok_or_else(|| {
        at("job", format!("{:?} is not a job: at most 128 bytes, no control characters", cut(job)))
    })?;
    Ok(ReservationOwner {
        job: parsed,
        uid: user,
        // without a group, no ceiling of groups
        gid: new.group.unwrap_or(u32::MAX),
        account: new.account.as_deref().filter(|name| !name.is_empty()).map(Into::into),
        project: new.project,
    })
}

pub(super) fn rate(
    key: &str,
    rate: Option<WireRate>,
    in_bytes: bool,
) -> Result<Option<u64>, Refused> {
    let Some(rate) = rate else { return Ok(None) };
    let (per_sec, fits) = match rate {
        WireRate::Bytes(count) => (count, in_bytes),
        WireRate::Ops(count) => (count, !in_bytes),
    };
    let unit = if in_bytes { "bytes" } else { "ops" };
    if !fits || !(1..=Load::PER_SEC_MAX).contains(&per_sec) {
        return Err(at(key, format!("{per_sec} is not a rate in {unit}, 1 to 2^60 per second")));
    }
    Ok(Some(per_sec))
}

/// The report of an error of the calendar.
pub(super) fn report_of(
    error: &ReservationError,
    calendar: &Calendar,
    rules: &RuleReservations,
) -> Refused {
    let report = |code| ErrorReport::new(code, error.to_string());
    Box::new(match error {
        ReservationError::NoFit(refusal) => {
            let refusal = Some(Box::new(wire_refusal(refusal, calendar, rules)));
            ErrorReport { refusal, ..report(ErrorCode::DoesNotFit) }
        }
        ReservationError::Duration(..) | ReservationError::NoDuration => {
            report(ErrorCode::InvalidArgument).at("duration_ns")
        }
        ReservationError::AccountName(_) => report(ErrorCode::InvalidArgument).at("account"),
        ReservationError::Demand(_) | ReservationError::Needless => {
            report(ErrorCode::InvalidArgument).at("read")
        }
        ReservationError::Credit { .. } | ReservationError::NothingToPay => {
            report(ErrorCode::LimitReached).at("spend_credit")
        }
        ReservationError::Unknown => report(ErrorCode::NotFound).at("id"),
        ReservationError::NotActive
        | ReservationError::NestedPhase
        | ReservationError::HasBegun
        | ReservationError::MovedPhase
        | ReservationError::BeyondParent(_) => report(ErrorCode::InvalidArgument).at("id"),
        ReservationError::Phase(..) | ReservationError::PhasesNeedStart => {
            report(ErrorCode::InvalidArgument).at("phases")
        }
        _ => report(ErrorCode::LimitReached),
    })
}

fn wire_refusal(refusal: &Refusal, calendar: &Calendar, rules: &RuleReservations) -> WireRefusal {
    let mut taken_by = rules.named(refusal.kind);
    let resources = calendar.resources();
    if let Some(found) = resources.find(refusal.kind, &refusal.bottleneck) {
        let unreserved = resources.unreserved(found);
        let shares = [("best effort", unreserved.best_effort), ("unseen", unreserved.unseen)];
        let some = shares.iter().filter(|(_, share)| share.billionths() > 0);
        taken_by.extend(some.map(|(what, share)| format!("{what}: {share}")));
    }
    WireRefusal {
        kind: refusal.kind.name().into(),
        bottleneck: refusal.bottleneck.to_string(),
        taken_by,
        next_start_ns: refusal.next_start.map(Time::as_nanos),
        fits_now_ppm: refusal.fits_now.billionths() / 1_000,
    }
}

/// The refusal of one field.
pub(super) fn at(field: &str, message: impl Into<String>) -> Refused {
    Box::new(ErrorReport::new(ErrorCode::InvalidArgument, message).at(field))
}

/// The longest directory with its export: a batch of 256 requests is one record of 1 MiB at most.
const DIRECTORY_BYTES_MAX: usize = 1_024;

/// The most nodes of a request.
const NODES_MAX: u32 = 65_536;

/// The longest key of a request: each is kept with its reservation.
const KEY_BYTES_MAX: usize = 64;

/// Cuts a wrong value to the length that a message repeats.
fn cut(text: &str) -> &str {
    text.char_indices().nth(80).map_or(text, |(at, _)| &text[..at])
}
