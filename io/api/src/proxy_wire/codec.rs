//! The one form of reports and replies: postcard.
//!
//! ```text
//!   ProxyReport ─ encode ─► bytes ─ ReportDecoder ─► ProxyReport: the types of `plan` and `usage`
//!                                      │ the form and JSON of queries: without a lock
//!                                      └ scopes and subjects are byte strings: the same bytes are
//!                                        the same scope or subject, decoded once
//! ```
//!
//! A controller receives a report of a thousand lines from each of a thousand proxies each second, so
//! JSON would be most of the cost, and memory for names a third of the rest. Postcard names no
//! fields, so both sides must have the same message: the content types have a number that changes
//! with it. Values from the wire are not trusted: what cannot be is refused with the value at fault,
//! and the length of the body bounds their number. Queries and their replies, which people read too,
//! are JSON within the message.

mod rows;
mod scopes;

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use model::{
    AccountSubject, Nanos, ReservationLag, RuleActivity, Scope, ScopeUsage, Service, Share,
    SlotsClaim, WaitedService,
};
use plan::{Assignment, Holdings, Membership, RemoteService, ServiceTotal, ShareReport};
use rustc_hash::FxHashMap;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use usage::{UsageLine, UsageReport};

use super::{ControllerReply, ProxyDescription, ProxyReport, RulesText};
use crate::scope::{WireScope, WrongMessage};
use rows::{row_bytes, rows_of};
use scopes::ScopesForm;

/// The content type of a report.
pub const REPORT_TYPE: &str = "application/vnd.sluice.report-9+postcard";
/// The content type of a reply.
pub const REPLY_TYPE: &str = "application/vnd.sluice.reply-8+postcard";

/// Decodes reports. It keeps the scopes and subjects of recent ones by their bytes: a thousand
/// proxies name the same ones each second. Only these names are locked, and not while a message is
/// parsed.
#[derive(Debug, Default)]
pub struct ReportDecoder {
    names: Mutex<KnownNames>,
}

/// The decoded names of recent reports: at most twice [`INTERNED_MAX`] of them, and twice
/// [`INTERNED_BYTES_MAX`] of their bytes.
#[derive(Debug, Default)]
struct KnownNames {
    scopes: NameTable<Scope>,
    subjects: NameTable<Arc<AccountSubject>>,
}

/// Values by their bytes. A full table begins again empty.
#[derive(Debug)]
struct NameTable<T> {
    known: FxHashMap<Box<[u8]>, T>,
    /// The lengths of all keys.
    bytes: usize,
}

/// A message within the message.
#[derive(Clone, Debug)]
struct Apart<'a>(Cow<'a, [u8]>);

#[derive(Serialize, Deserialize)]
struct ReportForm<'a> {
    epoch: u64,
    rules: Option<&'a str>,
    /// Of all targets that report any.
    #[serde(borrow)]
    scopes: Option<ScopesForm<'a>>,
    #[serde(borrow)]
    targets: Vec<ShareReportForm<'a>>,
    #[serde(borrow)]
    usage: Option<UsageForm<'a>>,
    contended: bool,
    /// As JSON.
    #[serde(borrow)]
    replies: Vec<Apart<'a>>,
    description: Option<Cow<'a, ProxyDescription>>,
}

#[derive(Serialize, Deserialize)]
struct ShareReportForm<'a> {
    target: &'a str,
    sequence: u64,
    term: (u64, u64),
    last_assignment: u64,
    revision: u64,
    lease_expired: bool,
    #[serde(borrow)]
    holdings: Option<HoldingsForm<'a>>,
    #[serde(borrow)]
    uses: Option<Vec<UseForm<'a>>>,
    slots: Option<SlotsForm>,
    /// Reservations with what they were owed and served while their requests waited.
    #[serde(borrow)]
    waited: Vec<(Apart<'a>, (u64, u64))>,
    /// Classes with a generation and the cost in it.
    #[serde(borrow)]
    served: Vec<(Apart<'a>, (u64, u64))>,
    #[serde(borrow)]
    parents: Vec<ParentForm<'a>>,
    has_scopes: bool,
}

/// A rule, its operations and bytes per second, and for how long it has been idle, in nanoseconds.
type ParentForm<'a> = (&'a str, u64, u64, Option<u64>);

/// A scope, its usage, and whether requests wait.
type UseForm<'a> = (Apart<'a>, Option<u32>, bool);

/// What is reserved, the weights of classes with a reservation and of others, what was used, whether
/// requests wait, and the lag of reservations: 0 for none, 1 if it shrinks, 2 if it grows.
type SlotsForm = (u32, u64, u64, u32, bool, u8);

#[derive(Serialize, Deserialize)]
struct HoldingsForm<'a> {
    unlisted: u32,
    fallback: u32,
    #[serde(borrow)]
    listed: Vec<(Apart<'a>, u32)>,
}

#[derive(Serialize, Deserialize)]
struct UsageForm<'a> {
    sequence: u64,
    total: Service,
    /// Numbers of lines, with subject and service.
    #[serde(borrow)]
    lines: Vec<(u64, Apart<'a>, Service)>,
    dropped_lines: Vec<u64>,
}

#[derive(Serialize, Deserialize)]
struct ReplyForm<'a> {
    term: u64,
    #[serde(borrow)]
    targets: Vec<AssignmentForm<'a>>,
    /// Version and text.
    #[serde(borrow)]
    rules: Option<(&'a str, &'a str)>,
    usage_acknowledged: Option<u64>,
    /// As JSON.
    #[serde(borrow)]
    queries: Vec<Apart<'a>>,
    duplicate: bool,
}

/// A class with the service by others, and the known own.
type RemoteServiceForm<'a> = (Apart<'a>, (u64, u64), (u64, u64));

#[derive(Serialize, Deserialize)]
struct AssignmentForm<'a> {
    target: &'a str,
    term: (u64, u64),
    number: u64,
    in_reply_to: u64,
    learning: bool,
    base: u64,
    revision: u64,
    proxies: u32,
    unlisted: u32,
    fallback: u32,
    #[serde(borrow)]
    grants: Vec<(Apart<'a>, Option<u32>)>,
    all_rows: bool,
    #[serde(borrow)]
    rows: Apart<'a>,
    #[serde(borrow)]
    remote_service: Vec<RemoteServiceForm<'a>>,
    #[serde(borrow)]
    parents: Vec<ParentForm<'a>>,
}

impl ProxyReport {
    /// Returns the report as it is sent.
    pub fn encode(&self) -> Vec<u8> {
        let form = ReportForm {
            epoch: self.epoch,
            rules: self.rules.as_deref(),
            scopes: self
                .targets
                .iter()
                .find_map(|(_, of)| of.scopes.as_deref())
                .map(ScopesForm::of),
            targets: self.targets.iter().map(|(name, of)| share_report_form(name, of)).collect(),
            usage: self.usage.as_ref().map(usage_form),
            contended: self.contended,
            replies: self.replies.iter().map(json_bytes).collect(),
            description: self.description.as_deref().map(Cow::Borrowed),
        };
        postcard::to_stdvec(&form).expect("memory takes all of it")
    }
}

impl ReportDecoder {
    /// Decodes the report of the proxy `from`.
    ///
    /// # Errors
    /// If the bytes are not exactly one such message, or a value is not valid: names it, and its
    /// target.
    pub fn decode(&self, from: &Arc<str>, bytes: &[u8]) -> Result<ProxyReport, WrongMessage> {
        let form: ReportForm<'_> = whole(bytes, "a report in the form of its content type")?;
        if form.replies.len() > REPLIES_MAX {
            return Err(WrongMessage::new(form.replies.len(), "a number of replies: at most 8"));
        }
        let replies = form.replies.iter().map(|reply| json(reply, "a reply to a query"));
        let replies = replies.collect::<Result<_, _>>()?;
        if let Some(description) = &form.description {
            description.check()?;
        }
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let epoch = form.epoch;
        let scopes = form.scopes.as_ref().map(ScopesForm::scopes).transpose()?;
        let mut targets = Vec::with_capacity(form.targets.len());
        for target in form.targets {
            let name = target.target;
            let report = names.share_report(from, epoch, &target).map_err(|why| why.at(name))?;
            let scopes = scopes.clone().filter(|_| target.has_scopes);
            targets.push((name.into(), ShareReport { scopes, ..report }));
        }
        let usage = form.usage.map(|usage| names.usage(usage)).transpose()?;
        Ok(ProxyReport {
            epoch,
            rules: form.rules.map(str::to_owned),
            targets,
            usage,
            contended: form.contended,
            replies,
            description: form.description.map(|of| of.into_owned().into()),
        })
    }
}

impl KnownNames {
    fn share_report(
        &mut self,
        from: &Arc<str>,
        epoch: u64,
        form: &ShareReportForm<'_>,
    ) -> Result<ShareReport, WrongMessage> {
        let mut holdings = None;
        if let Some(held) = &form.holdings {
            let (unlisted, fallback) = (part(held.unlisted)?, part(held.fallback)?);
            let listed =
                held.listed.iter().map(|(scope, ppb)| Ok((self.scope(scope)?, part(*ppb)?)));
            let listed = listed.collect::<Result<_, WrongMessage>>()?;
            holdings = Some(Holdings { unlisted, fallback, listed });
        }
        let mut uses = None;
        if let Some(forms) = &form.uses {
            let use_of = |(scope, used, waiting): &UseForm<'_>| {
                let used = used.map(part).transpose()?;
                Ok((self.scope(scope)?, ScopeUsage { used, waiting: *waiting }))
            };
            uses = Some(forms.iter().map(use_of).collect::<Result<_, WrongMessage>>()?);
        }
        let waited = form.waited.iter().map(|(scope, (owed, served))| {
            Ok((self.scope(scope)?, WaitedService { owed: *owed, served: *served }))
        });
        let waited = waited.collect::<Result<_, WrongMessage>>()?;
        let served = form.served.iter().map(|(scope, of)| Ok((self.scope(scope)?, total(*of))));
        let served = served.collect::<Result<_, WrongMessage>>()?;
        Ok(ShareReport {
            from: from.clone(),
            epoch,
            sequence: form.sequence,
            term: membership(form.term),
            last_assignment: form.last_assignment,
            revision: form.revision,
            lease_expired: form.lease_expired,
            holdings,
            uses,
            slots: form.slots.map(slots_claim).transpose()?,
            waited,
            served,
            parents: parents(&form.parents)?,
            scopes: None,
        })
    }

    fn usage(&mut self, form: UsageForm<'_>) -> Result<UsageReport, WrongMessage> {
        let UsageForm { sequence, total, lines, dropped_lines } = form;
        let line = |(id, subject, service): (u64, Apart<'_>, Service)| {
            Ok(UsageLine { id, subject: self.subject(&subject)?, service })
        };
        let lines = lines.into_iter().map(line).collect::<Result<_, WrongMessage>>()?;
        Ok(UsageReport { sequence, total, lines, dropped_lines })
    }

    fn scope(&mut self, bytes: &Apart<'_>) -> Result<Scope, WrongMessage> {
        if let Some(scope) = self.scopes.known.get(&*bytes.0) {
            return Ok(scope.clone());
        }
        Ok(self.scopes.intern(&bytes.0, scope_of(bytes)?))
    }

    fn subject(&mut self, bytes: &Apart<'_>) -> Result<Arc<AccountSubject>, WrongMessage> {
        if let Some(subject) = self.subjects.known.get(&*bytes.0) {
            return Ok(subject.clone());
        }
        let subject: AccountSubject = whole(&bytes.0, "a subject")?;
        check_subject(&subject)?;
        Ok(self.subjects.intern(&bytes.0, subject.into()))
    }
}

impl<T: Clone> NameTable<T> {
    fn intern(&mut self, bytes: &[u8], what: T) -> T {
        if self.known.len() >= INTERNED_MAX || self.bytes + bytes.len() > INTERNED_BYTES_MAX {
            self.known.clear();
            self.bytes = 0;
        }
        self.bytes += bytes.len();
        self.known.insert(bytes.into(), what.clone());
        what
    }
}

impl<T> Default for NameTable<T> {
    fn default() -> NameTable<T> {
        NameTable { known: FxHashMap::default(), bytes: 0 }
    }
}

impl ControllerReply {
    /// Returns the reply as it is sent.
    pub fn encode(&self) -> Vec<u8> {
        let rules = self.rules.as_ref();
        let form = ReplyForm {
            term: self.term,
            targets: self.targets.iter().map(|(name, of)| assignment_form(name, of)).collect(),
            rules: rules.map(|rules| (rules.version.as_str(), rules.text.as_str())),
            usage_acknowledged: self.usage_acknowledged,
            queries: self.queries.iter().map(json_bytes).collect(),
            duplicate: self.duplicate,
        };
        postcard::to_stdvec(&form).expect("memory takes all of it")
    }

    /// Decodes a reply to the proxy `to` in its epoch.
    ///
    /// # Errors
    /// If the bytes are not exactly one such message, or a value is not valid: names it, and its
    /// target.
    pub fn decode(to: &Arc<str>, epoch: u64, bytes: &[u8]) -> Result<Self, WrongMessage> {
        let form: ReplyForm<'_> = whole(bytes, "a reply in the form of its content type")?;
        let mut targets = Vec::with_capacity(form.targets.len());
        for target in form.targets {
            let name = target.target;
            let assignment = target.assignment(to, epoch).map_err(|why| why.at(name))?;
            targets.push((name.into(), assignment));
        }
        let rules = form.rules.map(|(version, text)| RulesText {
            version: version.to_owned(),
            text: text.to_owned(),
        });
        let queries = form.queries.iter().map(|query| json(query, "a query"));
        Ok(ControllerReply {
            term: form.term,
            targets,
            rules,
            usage_acknowledged: form.usage_acknowledged,
            queries: queries.collect::<Result<_, _>>()?,
            duplicate: form.duplicate,
        })
    }
}

impl AssignmentForm<'_> {
    fn assignment(self, to: &Arc<str>, epoch: u64) -> Result<Assignment, WrongMessage> {
        let grants = self.grants.iter();
        let grants =
            grants.map(|(scope, share)| Ok((scope_of(scope)?, share.map(part).transpose()?)));
        let remote = self.remote_service.iter().map(|(scope, all, own)| {
            Ok((scope_of(scope)?, RemoteService { total: total(*all), own: total(*own) }))
        });
        Ok(Assignment {
            to: to.clone(),
            epoch,
            term: membership(self.term),
            number: self.number,
            in_reply_to: self.in_reply_to,
            learning: self.learning,
            base: self.base,
            revision: self.revision,
            proxies: self.proxies,
            unlisted: part(self.unlisted)?,
            fallback: part(self.fallback)?,
            grants: grants.collect::<Result<_, WrongMessage>>()?,
            all_rows: self.all_rows,
            rows: rows_of(&self.rows)?,
            remote_service: remote.collect::<Result<_, WrongMessage>>()?,
            parents: parents(&self.parents)?,
        })
    }
}

impl Serialize for Apart<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Apart<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Apart<'a>, D::Error> {
        <&'de [u8]>::deserialize(from).map(|bytes| Apart(Cow::Borrowed(bytes)))
    }
}

fn share_report_form<'a>(target: &'a str, report: &'a ShareReport) -> ShareReportForm<'a> {
    let use_of = |(scope, what): &(Scope, ScopeUsage)| {
        (scope_bytes(scope), what.used.map(Share::billionths), what.waiting)
    };
    let held = |(scope, part): &(Scope, Share)| (scope_bytes(scope), part.billionths());
    let waited = |(scope, of): &(Scope, WaitedService)| (scope_bytes(scope), (of.owed, of.served));
    let served = |(scope, total): &(Scope, ServiceTotal)| (scope_bytes(scope), total_form(*total));
    let holdings = report.holdings.as_ref().map(|holdings| HoldingsForm {
        unlisted: holdings.unlisted.billionths(),
        fallback: holdings.fallback.billionths(),
        listed: holdings.listed.iter().map(held).collect(),
    });
    ShareReportForm {
        target,
        sequence: report.sequence,
        term: term_form(report.term),
        last_assignment: report.last_assignment,
        revision: report.revision,
        lease_expired: report.lease_expired,
        holdings,
        uses: report.uses.as_ref().map(|uses| uses.iter().map(use_of).collect()),
        slots: report.slots.map(|of| {
            let SlotsClaim { reserved, reserved_weight, weight, used, waiting, lag } = of;
            let (reserved, used) = (reserved.billionths(), used.billionths());
            (reserved, reserved_weight, weight, used, waiting, lag as u8)
        }),
        waited: report.waited.iter().map(waited).collect(),
        served: report.served.iter().map(served).collect(),
        parents: parent_forms(&report.parents),
        has_scopes: report.scopes.is_some(),
    }
}

fn slots_claim(form: SlotsForm) -> Result<SlotsClaim, WrongMessage> {
    let (reserved, reserved_weight, weight, used, waiting, lag) = form;
    let (reserved, used) = (part(reserved)?, part(used)?);
    let lag = match lag {
        0 => ReservationLag::None,
        1 => ReservationLag::CatchingUp,
        2 => ReservationLag::Growing,
        other => return Err(WrongMessage::new(other, "a lag of reservations: 0 to 2")),
    };
    Ok(SlotsClaim { reserved, reserved_weight, weight, used, waiting, lag })
}

fn parent_forms(parents: &[(Arc<str>, RuleActivity)]) -> Vec<ParentForm<'_>> {
    let forms = parents.iter().map(|(rule, activity)| {
        let RuleActivity { ops_per_sec, bytes_per_sec, idle } = *activity;
        (&**rule, ops_per_sec, bytes_per_sec, idle.map(Nanos::get))
    });
    forms.collect()
}

fn parents(forms: &[ParentForm<'_>]) -> Result<Vec<(Arc<str>, RuleActivity)>, WrongMessage> {
    let parent = |&(rule, ops_per_sec, bytes_per_sec, idle): &ParentForm<'_>| {
        if rule.is_empty() || rule.len() > NAME_BYTES_MAX {
            return Err(WrongMessage::new(rule.len(), "bytes of a rule's name: 1 to 255"));
        }
        let idle = idle.map(Nanos::new);
        Ok((rule.into(), RuleActivity { ops_per_sec, bytes_per_sec, idle }))
    };
    forms.iter().map(parent).collect()
}

/// Checks what a subject is kept under for as long as its proxy is known.
fn check_subject(subject: &AccountSubject) -> Result<(), WrongMessage> {
    let AccountSubject { export, class, .. } = subject;
    if export.len() > NAME_BYTES_MAX {
        return Err(WrongMessage::new(export.len(), "bytes of an export's name: at most 255"));
    }
    if class.len() > CLASS_BYTES_MAX {
        return Err(WrongMessage::new(class.len(), "bytes of a class's name: at most 4096"));
    }
    let control = export.chars().chain(class.chars()).find(|letter| letter.is_control());
    match control {
        Some(letter) => {
            Err(WrongMessage::new(u32::from(letter), "a letter of a name, not a control"))
        }
        None => Ok(()),
    }
}

fn usage_form(usage: &UsageReport) -> UsageForm<'static> {
    let line = |line: &UsageLine| (line.id, subject_bytes(&line.subject), line.service);
    UsageForm {
        sequence: usage.sequence,
        total: usage.total,
        lines: usage.lines.iter().map(line).collect(),
        dropped_lines: usage.dropped_lines.clone(),
    }
}

fn assignment_form<'a>(target: &'a str, of: &'a Assignment) -> AssignmentForm<'a> {
    let grant = |(scope, share): &(Scope, Option<Share>)| {
        (scope_bytes(scope), share.map(Share::billionths))
    };
    let remote = |(scope, of): &(Scope, RemoteService)| {
        (scope_bytes(scope), total_form(of.total), total_form(of.own))
    };
    AssignmentForm {
        target,
        term: term_form(of.term),
        number: of.number,
        in_reply_to: of.in_reply_to,
        learning: of.learning,
        base: of.base,
        revision: of.revision,
        proxies: of.proxies,
        unlisted: of.unlisted.billionths(),
        fallback: of.fallback.billionths(),
        grants: of.grants.iter().map(grant).collect(),
        all_rows: of.all_rows,
        rows: row_bytes(&of.rows),
        remote_service: of.remote_service.iter().map(remote).collect(),
        parents: parent_forms(&of.parents),
    }
}

fn scope_bytes(scope: &Scope) -> Apart<'static> {
    bytes_of(&WireScope::from(scope))
}

fn subject_bytes(subject: &AccountSubject) -> Apart<'static> {
    bytes_of(subject)
}

fn bytes_of<T: Serialize>(what: &T) -> Apart<'static> {
    Apart(Cow::Owned(postcard::to_stdvec(what).expect("memory takes all of it")))
}

fn json_bytes<T: Serialize>(what: &T) -> Apart<'static> {
    Apart(Cow::Owned(serde_json::to_vec(what).expect("a message is plain data")))
}

fn scope_of(bytes: &Apart<'_>) -> Result<Scope, WrongMessage> {
    whole::<WireScope>(&bytes.0, "a scope")?.to_scope()
}

fn json<T: DeserializeOwned>(bytes: &Apart<'_>, want: &'static str) -> Result<T, WrongMessage> {
    serde_json::from_slice(&bytes.0).map_err(|why| WrongMessage::new(why, want))
}

/// All of the bytes as one message.
fn whole<'a, T: Deserialize<'a>>(bytes: &'a [u8], want: &'static str) -> Result<T, WrongMessage> {
    match postcard::take_from_bytes::<T>(bytes) {
        Ok((form, [])) => Ok(form),
        Ok((_, rest)) => {
            Err(WrongMessage::new(format!("{} bytes after the end", rest.len()), want))
        }
        Err(why) => Err(WrongMessage::new(why, want)),
    }
}

fn part(billionths: u32) -> Result<Share, WrongMessage> {
    let part = Share::from_billionths(billionths);
    part.ok_or_else(|| WrongMessage::new(billionths, "a share: 1000000000 billionths at most"))
}

fn term_form(term: Membership) -> (u64, u64) {
    (term.controller, term.joined)
}

fn membership(form: (u64, u64)) -> Membership {
    Membership { controller: form.0, joined: form.1 }
}

fn total_form(of: ServiceTotal) -> (u64, u64) {
    (of.generation, of.cost.get())
}

fn total(form: (u64, u64)) -> ServiceTotal {
    ServiceTotal { generation: form.0, cost: Nanos::new(form.1) }
}

/// The longest name of a rule or an export.
const NAME_BYTES_MAX: usize = 255;
/// The longest name of a class: its rule's, and a value of each field that it is made for.
const CLASS_BYTES_MAX: usize = 4_096;
/// The most entries of each kind, as many as a controller lists; more are decoded again each time.
const INTERNED_MAX: usize = 131_072;
/// The most bytes of each kind: 256 of each entry. Names of that many entries with the greatest
/// length would be 600 MB.
const INTERNED_BYTES_MAX: usize = 32 << 20;
/// The most replies in one report.
const REPLIES_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use model::{Directory, Identity, JobId, KeyValue, KindSet, Nid, OpKind, PathSet, Rate};
    use plan::{ProxyScopes, ScopeName};
    use rules::{Entitlement, EntitlementId, EntitlementScope, EntitlementSource, Grantable};

    use super::*;
    use crate::proxy_wire::{DescribedCapacity, ExportDescription, TargetDescription};
    use crate::why::{ProxyQuery, ProxyReply, QueryKind, QueryReply};

    fn scope() -> Scope {
        let job = JobId::new("dd.500").unwrap();
        Scope::rule("jobs", &[KeyValue::Jobid(job), KeyValue::Opcode(OpKind::Write)])
    }

    fn report() -> ProxyReport {
        let third = Share::ratio(1, 3);
        let of_target = ShareReport {
            from: "a".into(),
            epoch: u64::MAX,
            sequence: 7,
            term: Membership { controller: 2, joined: 3 },
            last_assignment: 4,
            revision: 5,
            lease_expired: true,
            holdings: Some(Holdings {
                unlisted: Share::WHOLE,
                fallback: Share::ZERO,
                listed: vec![(scope(), third)],
            }),
            uses: Some(vec![
                (scope(), ScopeUsage { used: Some(third), waiting: true }),
                (Scope::meter("m", &[]), ScopeUsage { used: None, waiting: false }),
            ]),
            slots: Some(SlotsClaim {
                reserved: third,
                reserved_weight: 1 << 40,
                weight: u64::MAX,
                used: Share::WHOLE,
                waiting: true,
                lag: ReservationLag::Growing,
            }),
            waited: vec![(scope(), WaitedService { owed: u64::MAX, served: 5 })],
            served: vec![(scope(), ServiceTotal { generation: 1, cost: Nanos::new(u64::MAX) })],
            parents: vec![("a".into(), RuleActivity { idle: None, ..RuleActivity::NONE })],
            scopes: Some(Arc::new(ProxyScopes::named([ScopeName::Target("fs".into())]))),
        };
        let mut service = Service { read_bytes: 1 << 40, delayed: 3, ..Service::default() };
        service.ops[OpKind::Open as usize] = 7;
        let identity = Identity {
            job: JobId::new("dd.500").unwrap(),
            uid: 5,
            gid: 6,
            projid: Some(8),
            nid: Nid::local(),
        };
        let (export, class) = ("home".into(), "jobs jobid=dd.500".into());
        let subject = AccountSubject { identity, paths: PathSet(3), export, class }.into();
        let lines = vec![UsageLine { id: 4, subject, service }];
        let usage = UsageReport { sequence: 3, total: service, lines, dropped_lines: vec![1] };
        ProxyReport {
            epoch: u64::MAX,
            rules: Some("v".into()),
            targets: vec![("fs".into(), of_target)],
            usage: Some(usage),
            contended: true,
            replies: vec![ProxyReply { number: 1, what: QueryReply::Why(Box::default()) }],
            description: Some(Arc::new(description())),
        }
    }

    fn description() -> ProxyDescription {
        let of = |per_sec| DescribedCapacity {
            read_per_sec: per_sec,
            write_per_sec: 1,
            is_configured: true,
        };
        let (bytes, metadata) = (Some(of(1 << 60)), None);
        let name = "fs".to_owned();
        let target = TargetDescription { name, bytes, metadata, unseen_ppm: 200_000 };
        let export = ExportDescription { name: "home".into(), target: "fs".into() };
        let network_per_sec = Some(1 << 60);
        ProxyDescription { targets: vec![target], exports: vec![export], network_per_sec }
    }

    #[test]
    fn description_that_is_not_valid_is_refused() {
        type Change = fn(&mut ProxyDescription);
        let cases: [Change; 8] = [
            |of| of.network_per_sec = Some(0),
            |of| of.network_per_sec = Some((1 << 60) + 1),
            |of| of.targets[0].name.clear(),
            |of| of.targets[0].unseen_ppm = 1_000_001,
            |of| of.targets[0].bytes.as_mut().unwrap().read_per_sec = 0,
            |of| of.targets[0].bytes.as_mut().unwrap().write_per_sec = (1 << 60) + 1,
            |of| of.exports[0].name = "a/b".into(),
            |of| of.exports = vec![of.exports[0].clone(); 1_025],
        ];
        for change in cases {
            let mut of = description();
            change(&mut of);
            let report = ProxyReport { description: Some(Arc::new(of)), ..ProxyReport::default() };
            let bytes = report.encode();
            assert!(ReportDecoder::default().decode(&"a".into(), &bytes).is_err());
        }
    }

    fn reply() -> ControllerReply {
        let total = |generation| ServiceTotal { generation, cost: Nanos::new(9) };
        let class = Some(Scope::decay("d", &[]));
        let directory = Directory::new(b"x/a");
        let limited = EntitlementScope { class, directory, ..EntitlementScope::default() };
        let grants = Grantable::Limit(Rate::bytes_per_sec(6_666_667).unwrap(), None);
        let row = Entitlement::new(limited, grants, KindSet::ALL, EntitlementSource::Decay).ok();
        let assignment = Assignment {
            to: "a".into(),
            epoch: 1,
            term: Membership { controller: 2, joined: 3 },
            number: 4,
            in_reply_to: 5,
            learning: true,
            base: 6,
            revision: 7,
            proxies: 8,
            unlisted: Share::equal(3),
            fallback: Share::equal(7),
            grants: vec![(scope(), Some(Share::equal(3))), (Scope::meter("m", &[]), None)],
            all_rows: true,
            rows: vec![(EntitlementId(1), row), (EntitlementId(2), None)],
            remote_service: vec![(scope(), RemoteService { total: total(1), own: total(2) })],
            parents: vec![("a".into(), RuleActivity { ops_per_sec: 7, ..RuleActivity::NONE })],
        };
        ControllerReply {
            term: 2,
            targets: vec![("fs".into(), assignment)],
            rules: Some(RulesText { version: "v".into(), text: "[[rule]]".into() }),
            usage_acknowledged: Some(3),
            queries: vec![ProxyQuery { number: 1, what: QueryKind::Live }],
            duplicate: true,
        }
    }

    #[test]
    fn messages_come_out_as_they_went_in_and_names_are_decoded_once() {
        let (from, decoder) = ("a".into(), ReportDecoder::default());
        for _ in 0..2 {
            assert_eq!(decoder.decode(&from, &report().encode()).unwrap(), report());
        }
        let names = decoder.names.lock().unwrap();
        assert_eq!((names.scopes.known.len(), names.subjects.known.len()), (2, 1));
        assert_eq!(ControllerReply::decode(&from, 1, &reply().encode()).unwrap(), reply());
    }

    #[test]
    fn the_scopes_of_all_targets_travel_once_and_are_one_in_memory() {
        let mut many = report();
        let (_, first) = many.targets[0].clone();
        let users = (0..1_000).map(ScopeName::User);
        let scopes = Some(Arc::new(ProxyScopes::named(users)));
        let of = |scopes: &Option<_>| ShareReport { scopes: scopes.clone(), ..first.clone() };
        let reports = [("a", of(&None)), ("b", of(&scopes)), ("c", of(&scopes))];
        many.targets = reports.map(|(target, report)| (target.into(), report)).into();
        let more = many.encode().len();
        many.targets[2].1.scopes = None;
        assert_eq!(many.encode().len(), more);
        many.targets[2].1.scopes = scopes;
        let decoded = ReportDecoder::default().decode(&"a".into(), &many.encode()).unwrap();
        assert_eq!(decoded, many);
        let [_, b, c] = [0, 1, 2].map(|nth| decoded.targets[nth].1.scopes.clone());
        assert!(Arc::ptr_eq(&b.unwrap(), &c.unwrap()));
    }

    #[test]
    fn bytes_that_are_no_message_are_refused() {
        let (from, decoder) = ("a".into(), ReportDecoder::default());
        let (bytes, of_reply) = (report().encode(), reply().encode());
        for short in 0..bytes.len() {
            assert!(decoder.decode(&from, &bytes[..short]).is_err(), "{short}");
        }
        for short in 0..of_reply.len() {
            assert!(ControllerReply::decode(&from, 1, &of_reply[..short]).is_err(), "{short}");
        }
        let long = [bytes.as_slice(), b"x"].concat();
        let error = decoder.decode(&from, &long).unwrap_err().to_string();
        assert!(error.contains("1 bytes after the end"), "{error}");
        // Lengths that nothing follows.
        assert!(decoder.decode(&from, &[0xff; 64]).is_err());
        assert!(decoder.decode(&from, &[0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f]).is_err());
    }

    #[test]
    fn names_that_are_kept_are_bounded() {
        let (from, decoder) = ("a".into(), ReportDecoder::default());
        let refused = |change: &dyn Fn(&mut ProxyReport)| {
            let mut wrong = report();
            change(&mut wrong);
            decoder.decode(&from, &wrong.encode()).unwrap_err().to_string()
        };
        let long: Arc<str> = "r".repeat(256).into();
        let error = refused(&|wrong| wrong.targets[0].1.parents[0].0 = long.clone());
        assert!(error.contains("1 to 255"), "{error}");
        let subject = |wrong: &mut ProxyReport, change: &dyn Fn(&mut AccountSubject)| {
            let line = &mut wrong.usage.as_mut().unwrap().lines[0];
            change(Arc::make_mut(&mut line.subject));
        };
        let error = refused(&|wrong| subject(wrong, &|of| of.export = long.clone()));
        assert!(error.contains("at most 255"), "{error}");
        let error = refused(&|wrong| subject(wrong, &|of| of.class = "c".repeat(4_097).into()));
        assert!(error.contains("at most 4096"), "{error}");
        let error = refused(&|wrong| subject(wrong, &|of| of.class = "a\nb".into()));
        assert!(error.contains("control"), "{error}");
    }

    #[test]
    fn names_of_a_hostile_proxy_are_kept_within_a_bound_of_bytes() {
        let (from, decoder) = ("a".into(), ReportDecoder::default());
        let mut hostile = report();
        let (scope, subject) = (hostile.targets[0].1.served[0].clone(), {
            hostile.usage.as_ref().unwrap().lines[0].clone()
        });
        let job = |id: usize| JobId::new(&format!("{id:0>128}")).unwrap();
        let mut largest = [0; 2];
        for round in 0..2 * INTERNED_BYTES_MAX / (4_096 * 1_000) {
            let ids = || (0..1_000).map(|nth| round * 1_000 + nth);
            hostile.targets[0].1.served = ids()
                .map(|id| (Scope::rule(&"r".repeat(255), &[KeyValue::Jobid(job(id))]), scope.1))
                .collect();
            let lines = ids().map(|id| {
                let mut of = (*subject.subject).clone();
                (of.identity.job, of.class) = (job(id), "c".repeat(4_096).into());
                UsageLine { id: id as u64, subject: of.into(), ..subject.clone() }
            });
            hostile.usage.as_mut().unwrap().lines = lines.collect();
            decoder.decode(&from, &hostile.encode()).unwrap();
            let names = decoder.names.lock().unwrap();
            let bytes = |known: &mut dyn Iterator<Item = &Box<[u8]>>| {
                known.map(|bytes| bytes.len()).sum::<usize>()
            };
            let used =
                [bytes(&mut names.scopes.known.keys()), bytes(&mut names.subjects.known.keys())];
            assert_eq!(used, [names.scopes.bytes, names.subjects.bytes]);
            largest = [0, 1].map(|kind| largest[kind].max(used[kind]));
        }
        assert!(largest.iter().all(|bytes| *bytes <= INTERNED_BYTES_MAX), "{largest:?}");
        assert!(largest[1] > INTERNED_BYTES_MAX / 2, "{largest:?}");
    }

    #[test]
    fn replies_beyond_the_bound_are_refused_unread() {
        let (from, decoder) = ("a".into(), ReportDecoder::default());
        let no_json = [Apart(Cow::Borrowed(b"{")), Apart(Cow::Borrowed(b"["))];
        let mut replies = [&no_json[..]; 5].concat();
        let error = |replies: &[Apart<'_>]| {
            let form = ReportForm {
                epoch: 1,
                rules: None,
                scopes: None,
                targets: vec![],
                usage: None,
                contended: false,
                replies: replies.to_vec(),
                description: None,
            };
            decoder.decode(&from, &postcard::to_stdvec(&form).unwrap()).unwrap_err().to_string()
        };
        assert_eq!(error(&replies), "\"10\" is not a number of replies: at most 8");
        replies.truncate(8);
        assert!(error(&replies).contains("a reply to a query"));
    }

    #[test]
    fn a_value_that_cannot_be_is_named_with_its_target() {
        let (from, decoder) = ("a".into(), ReportDecoder::default());
        let mut wrong = report();
        let uses = wrong.targets[0].1.uses.as_mut().unwrap();
        uses[0].0 = Scope::rule("", &[]);
        let error = decoder.decode(&from, &wrong.encode()).unwrap_err().to_string();
        assert!(error.starts_with("target fs: \"\" is not a section's name"), "{error}");
    }

    /// If this fails, a message has changed: increase the number in the content types and in the
    /// description of the API, then put the new sums here.
    #[test]
    fn the_number_in_the_content_types_stands_for_these_messages() {
        let sum = |bytes: Vec<u8>| {
            let add = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            bytes.iter().fold(0xcbf2_9ce4_8422_2325, add)
        };
        let sums = (sum(report().encode()), sum(reply().encode()));
        assert_eq!(
            (REPORT_TYPE, REPLY_TYPE),
            ("application/vnd.sluice.report-9+postcard", "application/vnd.sluice.reply-8+postcard",)
        );
        assert_eq!(sums, (12_360_902_461_944_761_788, 15_175_160_224_154_071_925));
    }
}
