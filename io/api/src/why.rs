//! What holds whom: the answer to "why am I slow?", of one proxy or of all, and its sentences.
//!
//! ```text
//!   dispatchers ─► proxy: Why ─┬─► GET /v1/why ─────────────────► sluice why: text(), JSON
//!                              ├─► the mount's .sluice/why ─────► cat
//!                              └─► ProxyReply ─► controller: merged ─► GET /v1/why
//! ```
//!
//! A controller asks its proxies by their orders ([`ProxyQuery`]) and hears the answers with
//! their next report: nothing is kept ready for questions that nobody asks. Spans are told as
//! "ago" and "from now", for the clocks of several proxies have nothing in common.

mod text;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{ProxyStatus, WireClasses, WireScope, WireSubjects};

pub use text::{amount, per_second, percent, span};

/// Who is asked about. What is absent is not asked for; with nothing, it is everybody.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WhyQuery {
    /// The job; empty for requests without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The user, by number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// The rule, meter or decay that holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
}

/// What holds somebody now, and held him since the proxies started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Why {
    /// When it was read, in nanoseconds since the proxy or controller started.
    pub t_ns: u64,
    /// Who was asked about.
    pub asked: WhyQuery,
    /// False where a proxy serves requests as they come (`--no-schedule`): nothing is held there.
    pub scheduling: bool,
    /// Those who were found, the most delayed first.
    pub subjects: Vec<WhySubject>,
    /// What holds their requests now, then what held them.
    pub holds: Vec<WireWait>,
    /// Who waits, or waited lately, for another's writes.
    #[serde(default)]
    pub donations: Vec<WireDonation>,
    /// Subjects and causes that are not listed.
    pub left_out: u64,
    /// Proxies that gave no answer in time.
    #[serde(default)]
    pub silent: Vec<String>,
}

/// One payer and what was delayed of its requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhySubject {
    /// The proxy; empty where only one was asked.
    #[serde(default)]
    pub proxy: String,
    /// The target.
    pub target: String,
    /// The job; empty if there is none.
    pub job: String,
    /// The user.
    pub uid: u32,
    /// The node.
    pub nid: String,
    /// Requests completed.
    pub requests: u64,
    /// Their payload.
    pub bytes: u64,
    /// Backend operations of these.
    pub ops: u64,
    /// How long they waited for their turn in all.
    pub queue_ns: u64,
    /// Those that a limit or a cap on slots delayed.
    pub delayed: u64,
    /// How long these waited.
    pub delayed_ns: u64,
    /// Their payload.
    pub delayed_bytes: u64,
    /// What its requests pay.
    pub limits: Vec<LimitState>,
}

/// A limit as it stands at one proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LimitState {
    /// `rule`, `meter` or `decay`.
    pub section: String,
    /// Its name.
    pub name: String,
    /// For whom, as `jobid=dd.500 uid=500`; empty: for all together.
    pub key: String,
    /// Whether it counts bytes; operations otherwise.
    pub in_bytes: bool,
    /// Units a second over all proxies; the greatest number: none.
    pub per_s: u64,
    /// The part of it that is let through here, in billionths.
    pub part: u32,
    /// Units a second that it let through here lately.
    pub used_per_s: u64,
    /// In how long it lets the next request go; 0: at once.
    pub next_ns: u64,
    /// Queues that wait for it.
    pub waiting: u64,
    /// The rule on which it depends, where it does.
    #[serde(default)]
    pub depends_on: Option<String>,
}

/// What kind of thing holds requests.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum WireWaitKind {
    /// A limit.
    Limit,
    /// The rule's cap on slots.
    Slots,
    /// Others are served by their weights.
    Share,
    /// Others come first for what it is served by other proxies.
    Elsewhere,
    /// Its own requests keep the target or the threads busy.
    Busy,
    /// Causes that were not kept apart.
    #[default]
    Other,
}

/// One cause that holds requests of one class at one proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireWait {
    /// The proxy; empty where only one was asked.
    #[serde(default)]
    pub proxy: String,
    /// The target.
    pub target: String,
    /// The rule that makes the class; `default` where none matches.
    pub rule: String,
    /// The class's key; empty: all whom the rule takes together.
    pub key: String,
    /// What kind of cause.
    pub kind: WireWaitKind,
    /// The limit, of that kind; without figures if it is gone.
    pub limit: Option<LimitState>,
    /// Whether it is what holds requests now.
    pub now: bool,
    /// How long ago it began, with pauses of less than a second.
    pub since_ns_ago: u64,
    /// For how long of that time it held any.
    pub held_ns: u64,
    /// How long ago it held a request last.
    pub last_ns_ago: u64,
    /// The time that requests waited for it, summed up over requests.
    pub wait_ns: u64,
    /// The time during which it held any.
    pub span_ns: u64,
    /// Requests that it delayed.
    pub requests: u64,
    /// Their payload.
    pub bytes: u64,
    /// Requests of the class that wait now, for whatever.
    pub queued: u64,
}

/// Writes of one payer that another waited for: they went in the lane of the one who waits, where
/// they got on sooner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireDonation {
    /// The proxy; empty where only one was asked.
    #[serde(default)]
    pub proxy: String,
    /// The target.
    pub target: String,
    /// The writer's job; empty if there is none.
    pub writer_job: String,
    /// The writer.
    pub writer_uid: u32,
    /// The job of who waits; empty if there is none.
    pub waiter_job: String,
    /// Who waits.
    pub waiter_uid: u32,
    /// The file, as `export:/path`.
    pub file: String,
    /// The limit that held the last of these writes, if one did; without figures if it is gone.
    pub limit: Option<LimitState>,
    /// Writes that were waited for.
    pub requests: u64,
    /// Their payload.
    pub bytes: u64,
    /// Those that went in the lane of who waits.
    pub donated: u64,
    /// How long ago the first was waited for.
    pub since_ns_ago: u64,
    /// And the last.
    pub last_ns_ago: u64,
}

/// Who was delayed by limits in a span of time, the longest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DelayTable {
    /// The kind of subject: `job`, `user`, `group`, `project`, `proxy`.
    pub by: String,
    /// The span's begin, in seconds since 1970.
    pub from_s: u64,
    /// Its end.
    pub to_s: u64,
    /// The subjects.
    pub rows: Vec<DelayRow>,
    /// Further subjects that are not listed.
    pub left_out: u64,
}

/// What was delayed of one subject.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DelayRow {
    /// The job, user, …; `(other)` where there were too many.
    pub name: String,
    /// Requests that a limit or a cap on slots delayed.
    pub delayed: u64,
    /// How long they waited, summed up.
    pub delayed_ns: u64,
    /// Their payload.
    pub delayed_bytes: u64,
    /// All payload that it read and wrote.
    pub bytes: u64,
}

/// What a proxy has under way now: one sample of `sluice top`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LiveSample {
    /// The proxy; empty where only one was asked.
    #[serde(default)]
    pub proxy: String,
    /// What it is and how it fares.
    pub status: ProxyStatus,
    /// Its payers; those with the most service if there are many.
    pub subjects: WireSubjects,
    /// Its classes, likewise.
    pub classes: WireClasses,
}

/// What all proxies of a controller have under way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LiveUsage {
    /// When the answers were there, in nanoseconds since the controller started.
    pub t_ns: u64,
    /// Its version.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// A sample of each proxy that answered.
    pub samples: Vec<LiveSample>,
    /// Proxies that gave no answer in time.
    pub silent: Vec<String>,
}

/// What a controller asks a proxy, for somebody who asked it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProxyQuery {
    /// Its number.
    pub number: u64,
    /// The question.
    pub what: QueryKind,
}

/// The questions that there are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum QueryKind {
    /// What holds these.
    Why(WhyQuery),
    /// What is under way.
    Live,
}

/// A proxy's answer to a [`ProxyQuery`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProxyReply {
    /// The question's number.
    pub number: u64,
    /// The answer.
    pub what: QueryReply,
}

/// The answers that there are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum QueryReply {
    /// To [`QueryKind::Why`].
    Why(Box<Why>),
    /// To [`QueryKind::Live`].
    Live(Box<LiveSample>),
}

impl WhyQuery {
    /// The query as it stands behind the `?` of a path; empty if it asks for everybody.
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
    pub const HOLDS_MAX: usize = 512;
    /// The most waits for another's writes that are listed.
    pub const DONATIONS_MAX: usize = 128;

    /// Puts what is listed in order and within its bounds.
    pub fn arrange(&mut self) {
        self.subjects.sort_by(|a, b| {
            let key = |s: &WhySubject| (std::cmp::Reverse(s.delayed_ns), s.job.clone(), s.uid);
            (key(a), &a.proxy, &a.nid).cmp(&(key(b), &b.proxy, &b.nid))
        });
        self.holds.sort_by(|a, b| {
            let key = |h: &WireWait| (!h.now, std::cmp::Reverse(h.wait_ns), h.kind);
            (key(a), &a.proxy, &a.rule, &a.key).cmp(&(key(b), &b.proxy, &b.rule, &b.key))
        });
        self.left_out += self.subjects.len().saturating_sub(Why::SUBJECTS_MAX) as u64;
        self.left_out += self.holds.len().saturating_sub(Why::HOLDS_MAX) as u64;
        self.donations.sort_by_key(|donation| donation.last_ns_ago);
        self.left_out += self.donations.len().saturating_sub(Why::DONATIONS_MAX) as u64;
        self.donations.truncate(Why::DONATIONS_MAX);
        self.subjects.truncate(Why::SUBJECTS_MAX);
        self.holds.truncate(Why::HOLDS_MAX);
    }

    /// Takes in what a proxy of that name answered.
    pub fn merge(&mut self, proxy: &str, answer: Why) {
        self.scheduling |= answer.scheduling;
        self.left_out += answer.left_out;
        let named = |mut subject: WhySubject| {
            proxy.clone_into(&mut subject.proxy);
            subject
        };
        self.subjects.extend(answer.subjects.into_iter().map(named));
        let named = |mut hold: WireWait| {
            proxy.clone_into(&mut hold.proxy);
            hold
        };
        self.holds.extend(answer.holds.into_iter().map(named));
        let named = |mut donation: WireDonation| {
            proxy.clone_into(&mut donation.proxy);
            donation
        };
        self.donations.extend(answer.donations.into_iter().map(named));
    }
}

impl LimitState {
    /// The limit of a scope, with no figures.
    pub fn of(scope: &model::Scope, in_bytes: bool) -> LimitState {
        let form = WireScope::from(scope);
        let key: Vec<_> = scope.key.iter().map(|value| value.to_string()).collect();
        let (section, name) = (form.section, form.name);
        LimitState { section, name, key: key.join(" "), in_bytes, ..LimitState::default() }
    }

    /// Units a second that are let through here.
    pub fn here_per_s(&self) -> u64 {
        let here = u128::from(self.per_s) * u128::from(self.part) / 1_000_000_000;
        u64::try_from(here).unwrap_or(u64::MAX)
    }
}

/// A value within a query: all but letters, digits and a few signs as `%XX`.
fn escaped(value: &str) -> String {
    let one = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    value.bytes().map(one).collect()
}
