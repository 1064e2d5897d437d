//! Wait causes: the answer to "why am I slow?", of one proxy or of all.
//!
//! ```text
//!   dispatchers ─► proxy: Why ─┬─► GET /v1/why ─────────────────► sluice why: sentences, JSON
//!                              ├─► the mount's .sluice/why ─────► cat
//!                              └─► ProxyReply ─► controller: merged ─► GET /v1/why
//! ```
//!
//! A controller sends queries with its assignments ([`ProxyQuery`]) and receives the replies with
//! the next reports; nothing is prepared in advance. Spans are "ago" and "from now", because the
//! clocks of several proxies are not synchronised.

mod reserved;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{ProxyStatus, WireClasses, WireReservations, WireScope, WireSubjects};

pub use reserved::{SlotHolder, WhyDivision, WhyReservation};

/// The subjects of a query. Absent fields do not restrict it; without any field it is everybody.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WhyQuery {
    /// The job; empty for requests without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The user, by number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// The rule, meter or decay that delays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
}

/// The causes of delay of some subjects, now and since the proxies started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Why {
    /// When it was read, in nanoseconds since the proxy or controller started.
    pub t_ns: u64,
    /// The query that this replies to.
    pub query: WhyQuery,
    /// False if a proxy does not schedule requests (`--no-schedule`): nothing is delayed there.
    pub scheduling: bool,
    /// The subjects that were found, the most delayed first.
    pub subjects: Vec<WhySubject>,
    /// The causes of delay now, then earlier ones.
    pub waits: Vec<WireWait>,
    /// Waits for the writes of another subject, now or recently.
    #[serde(default)]
    pub donations: Vec<WireDonation>,
    /// The reservations that serve these subjects, at each proxy; absent: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reservations: Vec<WhyReservation>,
    /// The targets of these subjects whose slots are divided, at each proxy; absent: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub divisions: Vec<WhyDivision>,
    /// The reservations for these subjects in the calendar, active or not; only from a controller,
    /// and absent without an answer of the calendar in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calendar: Option<WireReservations>,
    /// Subjects and causes that are not listed.
    pub omitted: u64,
    /// Proxies that did not reply in time.
    #[serde(default)]
    pub unanswered: Vec<String>,
}

/// One subject and how its requests were delayed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhySubject {
    /// The proxy; empty in the reply of one proxy.
    #[serde(default)]
    pub proxy: String,
    /// The name of the target.
    pub target: String,
    /// The job; empty if there is none.
    pub job: String,
    /// The user id of the subject.
    pub uid: u32,
    /// The network name of the node.
    pub nid: String,
    /// The number of completed requests.
    pub requests: u64,
    /// The payload bytes of the completed requests.
    pub bytes: u64,
    /// Backend operations of these.
    pub ops: u64,
    /// The time that they waited in the queue, summed up.
    pub queue_ns: u64,
    /// Requests that a limit or a cap on slots delayed.
    pub delayed: u64,
    /// How long these waited.
    pub delayed_ns: u64,
    /// The payload bytes of the delayed reads and writes.
    pub delayed_bytes: u64,
    /// The limits that apply to its requests.
    pub limits: Vec<LimitState>,
}

/// The state of a limit at one proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LimitState {
    /// `rule`, `meter` or `decay`.
    pub section: String,
    /// The name of the section.
    pub name: String,
    /// Its key, such as `jobid=dd.500 uid=500`; empty: one limit for all.
    pub key: String,
    /// Whether it counts bytes; operations otherwise.
    pub in_bytes: bool,
    /// Units a second over all proxies; the greatest number: none.
    pub per_s: u64,
    /// The share of this proxy, in billionths.
    pub share_ppb: u32,
    /// Units a second that it admitted here recently.
    pub used_per_s: u64,
    /// The time until it admits the next request; 0: at once.
    pub next_ns: u64,
    /// Queues that wait for it.
    pub waiting: u64,
    /// The rule on which it depends, if any.
    #[serde(default)]
    pub depends_on: Option<String>,
}

/// The kind of a wait cause.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum WireWaitKind {
    /// A limit of a rule, a meter or a decay.
    Limit,
    /// The rule's cap on slots.
    Slots,
    /// Other classes are served by their weights.
    Weight,
    /// Other classes come first because other proxies serve this one.
    RemoteService,
    /// Its own requests keep the target or the threads busy.
    Busy,
    /// Causes that were not kept apart.
    #[default]
    Other,
}

/// One wait cause of one class at one proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireWait {
    /// The proxy; empty in the reply of one proxy.
    #[serde(default)]
    pub proxy: String,
    /// The name of the target.
    pub target: String,
    /// The rule that makes the class; `default` where none matches.
    pub rule: String,
    /// The key of the class; empty: the shared class of the rule.
    pub key: String,
    /// The kind of the cause.
    pub kind: WireWaitKind,
    /// The limit, if the kind is `limit`; without figures if it no longer exists.
    pub limit: Option<LimitState>,
    /// Whether it delays requests now.
    pub current: bool,
    /// How long ago it began, with pauses of less than a second.
    pub since_ns_ago: u64,
    /// The time since then in which it delayed any request.
    pub active_ns: u64,
    /// How long ago it last delayed a request.
    pub last_ns_ago: u64,
    /// The time that requests waited for it, summed up over requests.
    pub wait_ns: u64,
    /// The total time in which it delayed any request.
    pub span_ns: u64,
    /// Requests that it delayed.
    pub requests: u64,
    /// The payload bytes of the delayed requests.
    pub bytes: u64,
    /// Requests of the class that wait now, for any cause.
    pub queued: u64,
}

/// Writes of one subject for which another waited: they were scheduled as requests of the waiter
/// where that served them sooner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireDonation {
    /// The proxy; empty in the reply of one proxy.
    #[serde(default)]
    pub proxy: String,
    /// The name of the target.
    pub target: String,
    /// The writer's job; empty if there is none.
    pub writer_job: String,
    /// The user that wrote.
    pub writer_uid: u32,
    /// The job that waits; empty if there is none.
    pub waiter_job: String,
    /// The user that waits.
    pub waiter_uid: u32,
    /// The file, as `export:/path`.
    pub file: String,
    /// The limit that delayed the last of these writes, if any; without figures if it no longer
    /// exists.
    pub limit: Option<LimitState>,
    /// Writes that were waited for.
    pub requests: u64,
    /// The payload bytes of these writes.
    pub bytes: u64,
    /// Writes that were scheduled as requests of the waiter.
    pub donated: u64,
    /// How long ago the first was waited for.
    pub since_ns_ago: u64,
    /// How long ago the last was waited for.
    pub last_ns_ago: u64,
}

/// The subjects that limits delayed in a span of time, the longest delay first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DelayTable {
    /// The kind of subject: `job`, `user`, `group`, `project`, `proxy`.
    pub by: String,
    /// The span's begin, in seconds since 1970.
    pub from_s: u64,
    /// The span's end, in seconds since 1970.
    pub to_s: u64,
    /// The listed subjects, longest delay first.
    pub rows: Vec<DelayRow>,
    /// Further subjects that are not listed.
    pub omitted: u64,
}

/// The delays of one subject.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DelayRow {
    /// The job, user, …; `(other)` where there were too many.
    pub name: String,
    /// Requests that a limit or a cap on slots delayed.
    pub delayed: u64,
    /// How long they waited, summed up.
    pub delayed_ns: u64,
    /// The payload bytes of the delayed reads and writes.
    pub delayed_bytes: u64,
    /// Payload that the subject read and wrote in all.
    pub bytes: u64,
}

/// The current activity of a proxy: one sample of `sluice top`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LiveSample {
    /// The proxy; empty in the reply of one proxy.
    #[serde(default)]
    pub proxy: String,
    /// The status of the proxy.
    pub status: ProxyStatus,
    /// Its subjects; those with the most service if there are many.
    pub subjects: WireSubjects,
    /// Its classes; those with the most service if there are many.
    pub classes: WireClasses,
}

/// The current activity of all proxies of a controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LiveUsage {
    /// When the replies were complete, in nanoseconds since the controller started.
    pub t_ns: u64,
    /// The version of the controller's program.
    pub version: String,
    /// The process id of the controller.
    pub pid: u32,
    /// A sample of each proxy that replied.
    pub samples: Vec<LiveSample>,
    /// Proxies that did not reply in time.
    pub unanswered: Vec<String>,
}

/// A query of a controller to a proxy, on behalf of a caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProxyQuery {
    /// The number of the query.
    pub number: u64,
    /// The kind of the query.
    pub what: QueryKind,
}

/// The kinds of queries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum QueryKind {
    /// Asks for the causes of delay of these subjects.
    Why(WhyQuery),
    /// Asks for the current activity.
    Live,
}

/// The reply of a proxy to a [`ProxyQuery`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProxyReply {
    /// The number of the query.
    pub number: u64,
    /// The content of the reply.
    pub what: QueryReply,
}

/// The kinds of replies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum QueryReply {
    /// The reply to [`QueryKind::Why`].
    Why(Box<Why>),
    /// The reply to [`QueryKind::Live`].
    Live(Box<LiveSample>),
}

impl WhyQuery {
    /// Formats the query for a URL; empty if it asks for everybody.
    pub fn text(&self) -> String {
        let job = self.job.as_ref().map(|job| format!("job={}", escaped(job)));
        let user = self.user.map(|user| format!("user={user}"));
        let limit = self.limit.as_ref().map(|limit| format!("limit={}", escaped(limit)));
        [job, user, limit].into_iter().flatten().collect::<Vec<_>>().join("&")
    }
}

impl Why {
    /// The most subjects that are listed.
    pub const SUBJECTS_MAX: usize = 256;
    /// The most causes that are listed.
    pub const WAITS_MAX: usize = 512;
    /// The most waits for writes of others that are listed.
    pub const DONATIONS_MAX: usize = 128;
    /// The most reservations that are listed, of proxies and of the calendar each.
    pub const RESERVATIONS_MAX: usize = 256;
    /// The most targets with divided slots that are listed.
    pub const DIVISIONS_MAX: usize = 256;

    /// Sorts the lists and cuts them to their bounds.
    pub fn arrange(&mut self) {
        self.subjects.sort_by(|a, b| {
            let key = |s: &WhySubject| (std::cmp::Reverse(s.delayed_ns), s.job.clone(), s.uid);
            (key(a), &a.proxy, &a.nid).cmp(&(key(b), &b.proxy, &b.nid))
        });
        self.waits.sort_by(|a, b| {
            let key = |h: &WireWait| (!h.current, std::cmp::Reverse(h.wait_ns), h.kind);
            (key(a), &a.proxy, &a.rule, &a.key).cmp(&(key(b), &b.proxy, &b.rule, &b.key))
        });
        self.donations.sort_by_key(|donation| donation.last_ns_ago);
        self.reservations.sort_by(|a, b| {
            let key = |of: &WhyReservation| (of.id, of.direction.clone());
            (key(a), &a.proxy, &a.target).cmp(&(key(b), &b.proxy, &b.target))
        });
        self.divisions.sort_by(|a, b| {
            (a.share_ppb, &a.proxy, &a.target).cmp(&(b.share_ppb, &b.proxy, &b.target))
        });
        self.omitted += cut(&mut self.subjects, Why::SUBJECTS_MAX)
            + cut(&mut self.waits, Why::WAITS_MAX)
            + cut(&mut self.donations, Why::DONATIONS_MAX)
            + cut(&mut self.reservations, Why::RESERVATIONS_MAX)
            + cut(&mut self.divisions, Why::DIVISIONS_MAX);
    }

    /// Adds the reply of the proxy of that name.
    pub fn merge(&mut self, proxy: &str, answer: Why) {
        self.scheduling |= answer.scheduling;
        self.omitted += answer.omitted;
        let named = |mut subject: WhySubject| {
            proxy.clone_into(&mut subject.proxy);
            subject
        };
        self.subjects.extend(answer.subjects.into_iter().map(named));
        let named = |mut hold: WireWait| {
            proxy.clone_into(&mut hold.proxy);
            hold
        };
        self.waits.extend(answer.waits.into_iter().map(named));
        let named = |mut donation: WireDonation| {
            proxy.clone_into(&mut donation.proxy);
            donation
        };
        self.donations.extend(answer.donations.into_iter().map(named));
        let named = |of| WhyReservation { proxy: proxy.to_owned(), ..of };
        self.reservations.extend(answer.reservations.into_iter().map(named));
        // Which reservations are active is the controller's to say.
        let named = |of: WhyDivision| WhyDivision {
            proxy: proxy.to_owned(),
            holders: Vec::new(),
            others: 0,
            ..of
        };
        self.divisions.extend(answer.divisions.into_iter().map(named));
    }
}

/// Cuts a list to its bound, and returns how much that leaves out.
fn cut<T>(list: &mut Vec<T>, most: usize) -> u64 {
    let omitted = list.len().saturating_sub(most) as u64;
    list.truncate(most);
    omitted
}

impl WhySubject {
    /// Returns the proxy and the target where it has requests.
    pub fn proxy_and_target(&self) -> (&str, &str) {
        (&self.proxy, &self.target)
    }
}

impl LimitState {
    /// Returns the limit of a scope, without figures.
    pub fn of(scope: &model::Scope, in_bytes: bool) -> LimitState {
        let form = WireScope::from(scope);
        let key: Vec<_> = scope.key.iter().map(|value| value.to_string()).collect();
        let (section, name) = (form.section, form.name);
        LimitState { section, name, key: key.join(" "), in_bytes, ..LimitState::default() }
    }

    /// Returns the units a second that this proxy admits.
    pub fn here_per_s(&self) -> u64 {
        let here = u128::from(self.per_s) * u128::from(self.share_ppb) / 1_000_000_000;
        u64::try_from(here).unwrap_or(u64::MAX)
    }
}

/// Escapes a value of a query: all but letters, digits and a few signs as `%XX`.
pub fn escaped(value: &str) -> String {
    let one = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    value.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_escaped() {
        let query = WhyQuery { job: Some("a b&c".into()), user: Some(7), limit: None };
        assert_eq!(query.text(), "job=a%20b%26c&user=7");
    }
}
