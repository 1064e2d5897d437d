//! The sentences of `sluice why` and of a mount's `.sluice/why`, `usage` and `limits`.
//!
//! ```text
//!   Why ─┬─ explain: causes of delay now ─► for how long, how much, usage, what would change it
//!        │           waits for other jobs' writes, and what delays those
//!        ├─ usage:   requests completed and delayed
//!        └─ limits:  limits that apply
//! ```

use std::fmt::Write as _;

use super::{LimitState, Why, WhySubject, WireDonation, WireWait, WireWaitKind};

impl Why {
    /// Explains what delays which requests, one paragraph per cause.
    pub fn explain(&self) -> String {
        let mut out = String::new();
        let whom = self.subject_text();
        self.write_unanswered(&mut out);
        if self.subjects.is_empty() && self.waits.is_empty() {
            let _ = writeln!(out, "No requests from {whom} found.");
            return out;
        }
        if !self.scheduling {
            let _ = writeln!(
                out,
                "Nothing delays {whom}: the proxy does not schedule requests (--no-schedule)."
            );
            return out;
        }
        let (now, before): (Vec<_>, Vec<_>) = self.waits.iter().partition(|hold| hold.current);
        if now.is_empty() {
            let _ = writeln!(out, "Nothing delays {whom} now.");
        }
        for hold in now {
            hold.explain(&mut out);
        }
        let worth = |hold: &&&WireWait| hold.requests > 0 && hold.wait_ns >= TELLING_NS;
        for hold in before.iter().filter(worth) {
            hold.write_past(&mut out);
        }
        for donation in &self.donations {
            donation.explain(&mut out);
        }
        if self.omitted > 0 {
            let _ = writeln!(out, "{} further lines are omitted.", self.omitted);
        }
        out
    }

    /// Lists the requests completed, and how many of them were delayed.
    pub fn usage(&self) -> String {
        let mut out = String::new();
        self.write_unanswered(&mut out);
        for subject in &self.subjects {
            subject.usage(&mut out);
        }
        if self.subjects.is_empty() {
            let _ = writeln!(out, "No requests from {} found.", self.subject_text());
        }
        out
    }

    /// Lists the limits that apply to these requests.
    pub fn limits(&self) -> String {
        let mut out = String::new();
        self.write_unanswered(&mut out);
        let mut told = Vec::new();
        for subject in &self.subjects {
            for limit in &subject.limits {
                // A limit is one over all targets of a proxy.
                let mut line = match subject.proxy.as_str() {
                    "" => String::new(),
                    proxy => format!("[{proxy}] "),
                };
                let _ = write!(line, "{}: {}", limit.named(), limit.in_use());
                if !told.contains(&line) {
                    told.push(line);
                }
            }
        }
        for line in &told {
            let _ = writeln!(out, "{line}");
        }
        if told.is_empty() {
            let _ = writeln!(out, "No limit applies to {}.", self.subject_text());
        }
        out
    }

    fn subject_text(&self) -> String {
        match (&self.query.job, self.query.user, &self.query.limit) {
            (Some(job), Some(user), _) if job.is_empty() => format!("user {user} without a job"),
            (Some(job), Some(user), _) => format!("job {job} of user {user}"),
            (Some(job), None, _) if job.is_empty() => "users without a job".into(),
            (Some(job), None, _) => format!("job {job}"),
            (None, Some(user), _) => format!("user {user}"),
            (None, None, Some(limit)) => format!("the users of limit {limit}"),
            (None, None, None) => "any user".into(),
        }
    }

    fn write_unanswered(&self, out: &mut String) {
        if !self.unanswered.is_empty() {
            let _ = writeln!(out, "No answer in time from: {}.", self.unanswered.join(", "));
        }
    }
}

impl WireWait {
    fn explain(&self, out: &mut String) {
        let _ = writeln!(
            out,
            "{}{} is {} by {}: {} of the last {}.",
            target_label(&self.proxy, &self.target),
            sentence(&self.class()),
            self.verb(),
            self.cause(),
            percent(self.active_ns, self.since_ns_ago),
            span(self.since_ns_ago),
        );
        if let Some(limit) = &self.limit {
            let _ = writeln!(out, "  {}.", sentence(&limit.in_use()));
            if limit.per_s > 0 {
                let next = match limit.next_ns {
                    0 => "now".into(),
                    next => format!("in {}", span(next)),
                };
                let waits = plural(self.queued, "request waits", "requests wait");
                let _ = writeln!(out, "  {waits}; the next may go {next}.");
            }
        } else {
            let waits = plural(self.queued, "request waits", "requests wait");
            let _ = writeln!(out, "  {waits}.");
        }
        let _ = writeln!(out, "  {}", self.delayed());
        let _ = writeln!(out, "  To change this: {}.", self.remedy());
    }

    fn write_past(&self, out: &mut String) {
        let _ = writeln!(
            out,
            "{}{} was {} by {}, last {} ago.",
            target_label(&self.proxy, &self.target),
            sentence(&self.class()),
            self.verb(),
            self.cause(),
            span(self.last_ns_ago),
        );
        let _ = writeln!(out, "  {}", self.delayed());
    }

    /// Returns the word for this kind of wait: a meter throttles, other causes delay.
    fn verb(&self) -> &'static str {
        match self.kind {
            WireWaitKind::Limit => "throttled",
            _ => "delayed",
        }
    }

    fn class(&self) -> String {
        match self.key.as_str() {
            "" => format!("the shared class of rule {}", self.rule),
            key => format!("{key} (rule {})", self.rule),
        }
    }

    /// Names the cause, such as `the limit of rule jobs (jobid=dd.1)`.
    pub fn cause(&self) -> String {
        match (self.kind, &self.limit) {
            (WireWaitKind::Limit, Some(limit)) => limit.named(),
            (WireWaitKind::Limit, None) | (WireWaitKind::Other, _) => {
                "several earlier causes".into()
            }
            (WireWaitKind::Slots, _) => format!("the slots of rule {}", self.rule),
            (WireWaitKind::Weight, _) => "its weight: other classes are served by theirs".into(),
            (WireWaitKind::RemoteService, _) => {
                "service from other proxies: other classes come first here".into()
            }
            (WireWaitKind::Busy, _) => {
                "its own load: the target is saturated and no other class waits".into()
            }
        }
    }

    fn delayed(&self) -> String {
        let requests = plural(self.requests, "request", "requests");
        let mean = match self.requests {
            0 => String::new(),
            some => format!(", {} each", span(self.wait_ns / some)),
        };
        format!(
            "Delayed in total: {requests} ({}){mean}. At least one request was waiting for {}.",
            amount(self.bytes),
            span(self.span_ns)
        )
    }

    /// Says what a user or an administrator can do.
    fn remedy(&self) -> String {
        let rule = &self.rule;
        match (self.kind, &self.limit) {
            (WireWaitKind::Limit, Some(limit)) => limit.remedy(self),
            (WireWaitKind::Slots, _) => {
                format!("ask an administrator to raise the slots of rule {rule}")
            }
            (WireWaitKind::Weight, _) => format!(
                "wait until other classes pause, or ask an administrator to raise the weight of \
                 rule {rule}"
            ),
            (WireWaitKind::RemoteService, _) => {
                "nothing to do; all proxies together serve it by its weight".into()
            }
            (WireWaitKind::Busy, _) => {
                "send larger requests, send fewer at a time or use a faster target; no rule \
                 delays it"
                    .into()
            }
            (WireWaitKind::Limit, None) | (WireWaitKind::Other, _) => {
                "nothing to do; these rules no longer exist".into()
            }
        }
    }
}

impl WireDonation {
    /// Explains the wait in the same words to the writer and to the waiter.
    fn explain(&self, out: &mut String) {
        let payer = |job: &str, uid: u32| match job {
            "" => format!("user {uid} without a job"),
            job => format!("job {job} of user {uid}"),
        };
        let waiter = sentence(&payer(&self.waiter_job, self.waiter_uid));
        let _ = writeln!(
            out,
            "{}{waiter} waits for writes of {} to {}: {} ({}) in the last {}, the newest {} ago.",
            target_label(&self.proxy, &self.target),
            payer(&self.writer_job, self.writer_uid),
            self.file,
            self.requests,
            amount(self.bytes),
            span(self.since_ns_ago),
            span(self.last_ns_ago),
        );
        let held = match &self.limit {
            Some(limit) => format!("Throttled by {}", limit.named()),
            None => "Not throttled".into(),
        };
        let _ = writeln!(
            out,
            "  {held}; {} of them were scheduled as requests of the waiter and charged to it.",
            self.donated
        );
    }
}

impl LimitState {
    /// Names the limit, such as `the limit of rule jobs (jobid=dd.1)`.
    fn named(&self) -> String {
        let name = match self.section.as_str() {
            "rule" => format!("the limit of rule {}", self.name),
            section => format!("{section} {}", self.name),
        };
        match self.key.as_str() {
            "" => name,
            key => format!("{name} ({key})"),
        }
    }

    /// Says what the limit is and how much is in use: `the limit is 20 MB/s, and 19.8 MB/s …`.
    fn in_use(&self) -> String {
        if self.per_s == 0 {
            return "it is no longer in force".into();
        }
        let used = per_second(self.used_per_s, self.in_bytes);
        if self.per_s == u64::MAX {
            return format!("no rate is set; {used} are in use");
        }
        let rate = per_second(self.per_s, self.in_bytes);
        let share = percent(self.used_per_s, self.here_per_s());
        let mut text = format!("the limit is {rate}");
        if self.share_ppb < 1_000_000_000 {
            let part = percent(self.share_ppb.into(), 1_000_000_000);
            let here = per_second(self.here_per_s(), self.in_bytes);
            let _ = write!(text, " over all proxies, {part} of it here ({here})");
        }
        let _ = write!(text, ", and {used} ({share}) are in use");
        if let Some(on) = &self.depends_on {
            let _ = write!(text, "; it depends on rule {on}");
        }
        text
    }

    fn remedy(&self, hold: &WireWait) -> String {
        let ask = "ask an administrator to";
        let mut text = match self.section.as_str() {
            "rule" if self.depends_on.is_some() => {
                let on = self.depends_on.as_deref().unwrap_or_default();
                format!("wait until rule {on} needs less, or {ask} change this dependency")
            }
            "decay" => format!(
                "wait: the limit rises as past usage decays, by the policy [[decay]] {}",
                self.name
            ),
            "meter" => format!("{ask} raise the limit of [[meter]] {}", self.name),
            _ => format!("{ask} raise the limit of rule {}", self.name),
        };
        let each = hold.bytes.checked_div(hold.requests).unwrap_or(0);
        if !self.in_bytes && each > 0 && each < SMALL_BYTES {
            let _ = write!(
                text,
                ". This limit counts operations, not bytes: requests larger than {} move more data",
                amount(each)
            );
        }
        text
    }
}

impl WhySubject {
    fn usage(&self, out: &mut String) {
        let job = match self.job.as_str() {
            "" => "no job".into(),
            job => format!("job {job}"),
        };
        let _ = writeln!(
            out,
            "{}{}, user {}, node {}: {}, {}, {}",
            target_label(&self.proxy, &self.target),
            sentence(&job),
            self.uid,
            self.nid,
            plural(self.requests, "request", "requests"),
            plural(self.ops, "operation", "operations"),
            amount(self.bytes),
        );
        let mean = |sum: u64, of: u64| span(sum.checked_div(of).unwrap_or(0));
        let _ = writeln!(
            out,
            "  waited {} each; {} delayed by limits ({}), {} each",
            mean(self.queue_ns, self.requests),
            plural(self.delayed, "was", "were"),
            amount(self.delayed_bytes),
            mean(self.delayed_ns, self.delayed),
        );
    }
}

/// Names proxy and target, such as `[a fs] `; the target alone in the reply of one proxy.
fn target_label(proxy: &str, target: &str) -> String {
    match proxy {
        "" => format!("[{target}] "),
        proxy => format!("[{proxy} {target}] "),
    }
}

/// Capitalises the first letter, unless the text begins with a key such as `jobid=dd.1`.
fn sentence(text: &str) -> String {
    let begins_with_key = text.split(' ').next().is_some_and(|word| word.contains('='));
    match text.chars().next() {
        Some(first) if !begins_with_key => {
            first.to_uppercase().chain(text.chars().skip(1)).collect()
        }
        _ => text.into(),
    }
}

fn plural(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Formats bytes with a decimal unit and three digits, such as `1.23 GB`.
pub fn amount(bytes: u64) -> String {
    scaled(bytes, &["B", "kB", "MB", "GB", "TB", "PB", "EB"])
}

/// Formats bytes or operations per second, such as `20.0 MB/s` or `150 ops/s`.
pub fn per_second(units: u64, in_bytes: bool) -> String {
    match in_bytes {
        true => format!("{}/s", amount(units)),
        false => {
            scaled(units, &["ops/s", "kops/s", "Mops/s", "Gops/s", "Tops/s", "Pops/s", "Eops/s"])
        }
    }
}

/// Formats a part of a whole, such as `99 %`.
pub fn percent(part: u64, whole: u64) -> String {
    let percent = (u128::from(part) * 100).checked_div(u128::from(whole)).unwrap_or(0);
    format!("{percent} %")
}

/// Formats a span of time in one unit or two, such as `3.41 ms`, `12.0 s` or `2 h 05 min`.
pub fn span(nanos: u64) -> String {
    let seconds = nanos / 1_000_000_000;
    match nanos {
        0..1_000_000_000 => scaled_by(nanos, 1_000, &["ns", "µs", "ms"]),
        1_000_000_000..60_000_000_000 => scaled_by(nanos / 1_000_000, 1_000, &["ms", "s"]),
        60_000_000_000..3_600_000_000_000 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        3_600_000_000_000..86_400_000_000_000 => {
            format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60)
        }
        _ => format!("{} d {:02} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

fn scaled(count: u64, units: &[&str]) -> String {
    scaled_by(count, 1_000, units)
}

/// Formats three digits and a unit; counts of the first unit are whole numbers.
fn scaled_by(count: u64, step: u64, units: &[&str]) -> String {
    let mut size = 1u64;
    let mut at = 0;
    while at + 1 < units.len() && count / size >= step {
        size *= step;
        at += 1;
    }
    let hundredths = u128::from(count) * 100 / u128::from(size);
    let (whole, rest) = (hundredths / 100, hundredths % 100);
    match (at, whole) {
        (0, _) => format!("{count} {}", units[0]),
        (_, 0..10) => format!("{whole}.{rest:02} {}", units[at]),
        (_, 10..100) => format!("{whole}.{} {}", rest / 10, units[at]),
        _ => format!("{whole} {}", units[at]),
    }
}

/// The least total waiting time for which a past cause gets a sentence.
const TELLING_NS: u64 = 10_000_000;
/// Requests below this size move less than a device can with one operation.
const SMALL_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WhyQuery;

    fn held() -> Why {
        let limit = LimitState {
            section: "rule".into(),
            name: "jobs".into(),
            key: "jobid=dd.1".into(),
            in_bytes: true,
            per_s: 20_000_000,
            share_ppb: 500_000_000,
            used_per_s: 9_900_000,
            next_ns: 3_410_000,
            waiting: 1,
            depends_on: None,
        };
        let hold = WireWait {
            target: "fs".into(),
            rule: "jobs".into(),
            key: "jobid=dd.1".into(),
            kind: WireWaitKind::Limit,
            limit: Some(limit.clone()),
            current: true,
            since_ns_ago: 12_000_000_000,
            active_ns: 11_900_000_000,
            wait_ns: 40_000_000_000,
            span_ns: 11_900_000_000,
            requests: 400,
            bytes: 400 << 16,
            queued: 4,
            ..WireWait::default()
        };
        let subject = WhySubject {
            target: "fs".into(),
            job: "dd.1".into(),
            uid: 1000,
            nid: "0@lo".into(),
            requests: 410,
            ops: 420,
            bytes: 410 << 16,
            queue_ns: 41_000_000_000,
            delayed: 400,
            delayed_ns: 40_000_000_000,
            delayed_bytes: 400 << 16,
            limits: vec![limit.clone(), limit],
            ..WhySubject::default()
        };
        let asked = WhyQuery { job: Some("dd.1".into()), ..WhyQuery::default() };
        let (subjects, holds) = (vec![subject], vec![hold]);
        Why { query: asked, scheduling: true, subjects, waits: holds, ..Why::default() }
    }

    #[test]
    fn a_limit_is_told_with_since_until_how_much_in_use_and_what_would_change_it() {
        assert_eq!(
            held().explain(),
            "[fs] jobid=dd.1 (rule jobs) is throttled by the limit of rule jobs (jobid=dd.1): 99 % of the last 12.0 s.\n  \
             The limit is 20.0 MB/s over all proxies, 50 % of it here (10.0 MB/s), and 9.90 MB/s (99 %) are in use.\n  \
             4 requests wait; the next may go in 3.41 ms.\n  \
             Delayed in total: 400 requests (26.2 MB), 100 ms each. At least one request was waiting for 11.9 s.\n  \
             To change this: ask an administrator to raise the limit of rule jobs.\n"
        );
    }

    #[test]
    fn usage_and_limits_have_a_line_for_each_once() {
        assert_eq!(
            held().usage(),
            "[fs] Job dd.1, user 1000, node 0@lo: 410 requests, 420 operations, 26.8 MB\n  \
             waited 100 ms each; 400 were delayed by limits (26.2 MB), 100 ms each\n"
        );
        assert_eq!(held().limits().lines().count(), 1);
    }

    #[test]
    fn who_is_not_held_and_who_is_not_known_is_told_so() {
        let mut why = held();
        why.waits[0].current = false;
        why.waits[0].last_ns_ago = 90_000_000_000;
        let text = why.explain();
        assert!(text.starts_with("Nothing delays job dd.1 now.\n"), "{text}");
        assert!(
            text.contains(
                "was throttled by the limit of rule jobs (jobid=dd.1), last 1 min 30 s ago"
            )
        );
        let nobody = Why { query: why.query, ..Why::default() };
        assert_eq!(nobody.explain(), "No requests from job dd.1 found.\n");
        assert_eq!(nobody.limits(), "No limit applies to job dd.1.\n");
    }

    #[test]
    fn who_waits_for_whose_writes_is_told_with_the_limit_that_holds_these() {
        let limit = held().waits[0].limit.clone();
        let donation = WireDonation {
            target: "fs".into(),
            writer_job: "dd.1".into(),
            writer_uid: 1000,
            waiter_job: String::new(),
            waiter_uid: 7,
            file: "data:/out".into(),
            limit,
            requests: 4,
            bytes: 4 << 20,
            donated: 3,
            since_ns_ago: 2_000_000_000,
            last_ns_ago: 30_000_000,
            ..WireDonation::default()
        };
        let why = Why { donations: vec![donation], ..held() };
        let text = why.explain();
        let told = "[fs] User 7 without a job waits for writes of job dd.1 of user 1000 to data:/out: \
                    4 (4.19 MB) in the last 2.00 s, the newest 30.0 ms ago.\n  \
                    Throttled by the limit of rule jobs (jobid=dd.1); 3 of them were scheduled as \
                    requests of the waiter and charged to it.\n";
        assert!(text.ends_with(told), "{text}");
    }

    #[test]
    fn small_requests_are_advised_where_operations_are_counted() {
        let mut why = held();
        let limit = why.waits[0].limit.as_mut().unwrap();
        (limit.in_bytes, limit.per_s) = (false, 150);
        let text = why.explain();
        assert!(text.contains("150 ops/s over all proxies"), "{text}");
        assert!(
            text.contains("counts operations, not bytes: requests larger than 65.5 kB"),
            "{text}"
        );
    }

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let amounts = [0, 999, 1_000, 12_345, 999_999, 20_000_000].map(amount);
        assert_eq!(amounts, ["0 B", "999 B", "1.00 kB", "12.3 kB", "999 kB", "20.0 MB"]);
        let spans =
            [0, 999, 1_500, 61_000_000_000, 3_600_000_000_000, 90_000_000_000_000].map(span);
        assert_eq!(spans, ["0 ns", "999 ns", "1.50 µs", "1 min 01 s", "1 h 00 min", "1 d 01 h"]);
    }

    #[test]
    fn a_query_is_escaped() {
        let query = WhyQuery { job: Some("a b&c".into()), user: Some(7), limit: None };
        assert_eq!(query.text(), "job=a%20b%26c&user=7");
    }
}
