//! Explanations of delays for people: the sentences of `sluice why`, of a mount's `.sluice/why`,
//! `usage` and `limits`, and of a job's report.
//!
//! ```text
//!   Why ─┬─ why:     causes of delay now ─► for how long, how much, usage, what would change it
//!        │           waits for other jobs' writes, and what delays those
//!        │           reservations: which serve, which leave a share of the slots (reserved.rs)
//!        ├─ usage:   requests completed and delayed
//!        └─ limits:  limits that apply
//!   WireWait ─ cause: what delays, in a report of a job
//! ```
//!
//! The messages are in `api`. Proxy, controller and command all word them, so the words have a
//! crate below all three.

mod numbers;
mod reserved;

use std::fmt::Write as _;

use api::{LimitState, Why, WhyDivision, WhySubject, WireDonation, WireWait, WireWaitKind};

use reserved::{division_of, explain_division, explain_reservations};

pub use numbers::{amount, per_second, percent, span};
pub use reserved::late;

/// Explains what delays which requests, one paragraph per cause.
pub fn why(why: &Why) -> String {
    let mut out = String::new();
    let whom = subject_text(why);
    write_unanswered(why, &mut out);
    if why.subjects.is_empty() && why.waits.is_empty() {
        let _ = writeln!(out, "No requests from {whom} found.");
        explain_reservations(why, &mut out);
        return out;
    }
    if !why.scheduling {
        let _ = writeln!(
            out,
            "Nothing delays {whom}: the proxy does not schedule requests (--no-schedule)."
        );
        return out;
    }
    let (now, before): (Vec<_>, Vec<_>) = why.waits.iter().partition(|hold| hold.current);
    if now.is_empty() {
        let _ = writeln!(out, "Nothing delays {whom} now.");
    }
    for hold in now {
        explain_wait(hold, division_of(hold, why), &mut out);
    }
    let worth = |hold: &&&WireWait| hold.requests > 0 && hold.wait_ns >= TELLING_NS;
    for hold in before.iter().filter(worth) {
        explain_past(hold, &mut out);
    }
    for donation in &why.donations {
        explain_donation(donation, &mut out);
    }
    explain_reservations(why, &mut out);
    if why.omitted > 0 {
        let _ = writeln!(out, "{} further lines are omitted.", why.omitted);
    }
    out
}

/// Lists the requests completed, and how many of them were delayed.
pub fn usage(why: &Why) -> String {
    let mut out = String::new();
    write_unanswered(why, &mut out);
    for subject in &why.subjects {
        usage_of(subject, &mut out);
    }
    if why.subjects.is_empty() {
        let _ = writeln!(out, "No requests from {} found.", subject_text(why));
    }
    out
}

/// Lists the limits that apply to these requests.
pub fn limits(why: &Why) -> String {
    let mut out = String::new();
    write_unanswered(why, &mut out);
    let mut told = Vec::new();
    for subject in &why.subjects {
        for limit in &subject.limits {
            // A limit is one over all targets of a proxy.
            let mut line = match subject.proxy.as_str() {
                "" => String::new(),
                proxy => format!("[{proxy}] "),
            };
            let _ = write!(line, "{}: {}", named(limit), in_use(limit));
            if !told.contains(&line) {
                told.push(line);
            }
        }
    }
    for line in &told {
        let _ = writeln!(out, "{line}");
    }
    if told.is_empty() {
        let _ = writeln!(out, "No limit applies to {}.", subject_text(why));
    }
    out
}

fn subject_text(why: &Why) -> String {
    match (&why.query.job, why.query.user, &why.query.limit) {
        (Some(job), Some(user), _) if job.is_empty() => format!("user {user} without a job"),
        (Some(job), Some(user), _) => format!("job {job} of user {user}"),
        (Some(job), None, _) if job.is_empty() => "users without a job".into(),
        (Some(job), None, _) => format!("job {job}"),
        (None, Some(user), _) => format!("user {user}"),
        (None, None, Some(limit)) => format!("the users of limit {limit}"),
        (None, None, None) => "any user".into(),
    }
}

fn write_unanswered(why: &Why, out: &mut String) {
    if !why.unanswered.is_empty() {
        let _ = writeln!(out, "No answer in time from: {}.", why.unanswered.join(", "));
    }
}

fn explain_wait(wait: &WireWait, division: Option<&WhyDivision>, out: &mut String) {
    let cause = match (wait.kind, division) {
        (WireWaitKind::Busy, Some(_)) => "its own load: no other class waits here".into(),
        _ => cause(wait),
    };
    let _ = writeln!(
        out,
        "{}{} is {} by {}: {} of the last {}.",
        target_label(&wait.proxy, &wait.target),
        sentence(&class(wait)),
        verb(wait),
        cause,
        percent(wait.active_ns, wait.since_ns_ago),
        span(wait.since_ns_ago),
    );
    if let Some(limit) = &wait.limit {
        let _ = writeln!(out, "  {}.", sentence(&in_use(limit)));
        if limit.per_s > 0 {
            let next = match limit.next_ns {
                0 => "now".into(),
                next => format!("in {}", span(next)),
            };
            let waits = plural(wait.queued, "request waits", "requests wait");
            let _ = writeln!(out, "  {waits}; the next may go {next}.");
        }
    } else {
        let waits = plural(wait.queued, "request waits", "requests wait");
        let _ = writeln!(out, "  {waits}.");
    }
    let _ = writeln!(out, "  {}", delayed(wait));
    let remedy = match division {
        Some(division) => {
            explain_division(division, out);
            "wait until these reservations end, or reserve what this job needs".into()
        }
        None => remedy(wait),
    };
    let _ = writeln!(out, "  To change this: {remedy}.");
}

fn explain_past(wait: &WireWait, out: &mut String) {
    let _ = writeln!(
        out,
        "{}{} was {} by {}, last {} ago.",
        target_label(&wait.proxy, &wait.target),
        sentence(&class(wait)),
        verb(wait),
        cause(wait),
        span(wait.last_ns_ago),
    );
    let _ = writeln!(out, "  {}", delayed(wait));
}

/// Returns the word for this kind of wait: a meter throttles, other causes delay.
fn verb(wait: &WireWait) -> &'static str {
    match wait.kind {
        WireWaitKind::Limit => "throttled",
        _ => "delayed",
    }
}

fn class(wait: &WireWait) -> String {
    match wait.key.as_str() {
        "" => format!("the shared class of rule {}", wait.rule),
        key => format!("{key} (rule {})", wait.rule),
    }
}

/// Names the cause, such as `the limit of rule jobs (jobid=dd.1)`.
pub fn cause(wait: &WireWait) -> String {
    match (wait.kind, &wait.limit) {
        (WireWaitKind::Limit, Some(limit)) => named(limit),
        (WireWaitKind::Limit, None) | (WireWaitKind::Other, _) => "several earlier causes".into(),
        (WireWaitKind::Slots, _) => format!("the slots of rule {}", wait.rule),
        (WireWaitKind::Weight, _) => "its weight: other classes are served by theirs".into(),
        (WireWaitKind::RemoteService, _) => {
            "service from other proxies: other classes come first here".into()
        }
        (WireWaitKind::Busy, _) => {
            "its own load: the target is saturated and no other class waits".into()
        }
    }
}

fn delayed(wait: &WireWait) -> String {
    let requests = plural(wait.requests, "request", "requests");
    let mean = match wait.requests {
        0 => String::new(),
        some => format!(", {} each", span(wait.wait_ns / some)),
    };
    format!(
        "Delayed in total: {requests} ({}){mean}. At least one request was waiting for {}.",
        amount(wait.bytes),
        span(wait.span_ns)
    )
}

/// Says what a user or an administrator can do.
fn remedy(wait: &WireWait) -> String {
    let rule = &wait.rule;
    match (wait.kind, &wait.limit) {
        (WireWaitKind::Limit, Some(limit)) => limit_remedy(limit, wait),
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

/// Explains the wait in the same words to the writer and to the waiter.
fn explain_donation(donation: &WireDonation, out: &mut String) {
    let waiter = sentence(&payer(&donation.waiter_job, donation.waiter_uid));
    let _ = writeln!(
        out,
        "{}{waiter} waits for writes of {} to {}: {} ({}) in the last {}, the newest {} ago.",
        target_label(&donation.proxy, &donation.target),
        payer(&donation.writer_job, donation.writer_uid),
        donation.file,
        donation.requests,
        amount(donation.bytes),
        span(donation.since_ns_ago),
        span(donation.last_ns_ago),
    );
    let held = match &donation.limit {
        Some(limit) => format!("Throttled by {}", named(limit)),
        None => "Not throttled".into(),
    };
    let _ = writeln!(
        out,
        "  {held}; {} of them were scheduled as requests of the waiter and charged to it.",
        donation.donated
    );
}

/// Names a job with its user, such as `job dd.1 of user 1000`.
fn payer(job: &str, uid: u32) -> String {
    match job {
        "" => format!("user {uid} without a job"),
        job => format!("job {job} of user {uid}"),
    }
}

/// Names the limit, such as `the limit of rule jobs (jobid=dd.1)`.
fn named(limit: &LimitState) -> String {
    let name = match limit.section.as_str() {
        "rule" => format!("the limit of rule {}", limit.name),
        section => format!("{section} {}", limit.name),
    };
    match limit.key.as_str() {
        "" => name,
        key => format!("{name} ({key})"),
    }
}

/// Says what the limit is and how much is in use: `the limit is 20 MB/s, and 19.8 MB/s …`.
fn in_use(limit: &LimitState) -> String {
    if limit.per_s == 0 {
        return "it is no longer in force".into();
    }
    let used = per_second(limit.used_per_s, limit.in_bytes);
    if limit.per_s == u64::MAX {
        return format!("no rate is set; {used} are in use");
    }
    let rate = per_second(limit.per_s, limit.in_bytes);
    let here_per_s = limit.here_per_s();
    // The rate is that of the last seconds, in which the share here may have been far larger.
    let share = match limit.used_per_s <= here_per_s.saturating_mul(2) {
        true => format!(" ({})", percent(limit.used_per_s, here_per_s)),
        false => String::new(),
    };
    let mut text = format!("the limit is {rate}");
    if limit.share_ppb < 1_000_000_000 {
        let part = percent(limit.share_ppb.into(), 1_000_000_000);
        let here = per_second(here_per_s, limit.in_bytes);
        let _ = write!(text, " over all proxies, {part} of it here ({here})");
    }
    let _ = write!(text, ", and {used}{share} are in use");
    if let Some(on) = &limit.depends_on {
        let _ = write!(text, "; it depends on rule {on}");
    }
    text
}

fn limit_remedy(limit: &LimitState, hold: &WireWait) -> String {
    let ask = "ask an administrator to";
    let mut text = match limit.section.as_str() {
        "rule" if limit.depends_on.is_some() => {
            let on = limit.depends_on.as_deref().unwrap_or_default();
            format!("wait until rule {on} needs less, or {ask} change this dependency")
        }
        "decay" => format!(
            "wait: the limit rises as past usage decays, by the policy [[decay]] {}",
            limit.name
        ),
        "meter" => format!("{ask} raise the limit of [[meter]] {}", limit.name),
        _ => format!("{ask} raise the limit of rule {}", limit.name),
    };
    let each = hold.bytes.checked_div(hold.requests).unwrap_or(0);
    if !limit.in_bytes && each > 0 && each < SMALL_BYTES {
        let _ = write!(
            text,
            ". This limit counts operations, not bytes: requests larger than {} move more data",
            amount(each)
        );
    }
    text
}

fn usage_of(subject: &WhySubject, out: &mut String) {
    let job = match subject.job.as_str() {
        "" => "no job".into(),
        job => format!("job {job}"),
    };
    let _ = writeln!(
        out,
        "{}{}, user {}, node {}: {}, {}, {}",
        target_label(&subject.proxy, &subject.target),
        sentence(&job),
        subject.uid,
        subject.nid,
        plural(subject.requests, "request", "requests"),
        plural(subject.ops, "operation", "operations"),
        amount(subject.bytes),
    );
    let mean = |sum: u64, of: u64| span(sum.checked_div(of).unwrap_or(0));
    let _ = writeln!(
        out,
        "  waited {} each; {} delayed by limits ({}), {} each",
        mean(subject.queue_ns, subject.requests),
        plural(subject.delayed, "was", "were"),
        amount(subject.delayed_bytes),
        mean(subject.delayed_ns, subject.delayed),
    );
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

/// The least total waiting time for which a past cause gets a sentence.
const TELLING_NS: u64 = 10_000_000;
/// Requests below this size move less than a device can with one operation.
const SMALL_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use api::WhyQuery;

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
            why(&held()),
            "[fs] jobid=dd.1 (rule jobs) is throttled by the limit of rule jobs (jobid=dd.1): 99 % of the last 12.0 s.\n  \
             The limit is 20.0 MB/s over all proxies, 50 % of it here (10.0 MB/s), and 9.90 MB/s (99 %) are in use.\n  \
             4 requests wait; the next may go in 3.41 ms.\n  \
             Delayed in total: 400 requests (26.2 MB), 100 ms each. At least one request was waiting for 11.9 s.\n  \
             To change this: ask an administrator to raise the limit of rule jobs.\n"
        );
    }

    #[test]
    fn what_was_in_use_is_no_part_of_a_share_that_fell_since() {
        let limit = held().subjects[0].limits[0].clone();
        let fell = LimitState { share_ppb: 5_000_000, ..limit };
        assert!(in_use(&fell).ends_with("0 % of it here (100 kB/s), and 9.90 MB/s are in use"));
    }

    #[test]
    fn usage_and_limits_have_a_line_for_each_once() {
        assert_eq!(
            usage(&held()),
            "[fs] Job dd.1, user 1000, node 0@lo: 410 requests, 420 operations, 26.8 MB\n  \
             waited 100 ms each; 400 were delayed by limits (26.2 MB), 100 ms each\n"
        );
        assert_eq!(limits(&held()).lines().count(), 1);
    }

    #[test]
    fn who_is_not_held_and_who_is_not_known_is_told_so() {
        let mut why = held();
        why.waits[0].current = false;
        why.waits[0].last_ns_ago = 90_000_000_000;
        let text = super::why(&why);
        assert!(text.starts_with("Nothing delays job dd.1 now.\n"), "{text}");
        assert!(
            text.contains(
                "was throttled by the limit of rule jobs (jobid=dd.1), last 1 min 30 s ago"
            )
        );
        let nobody = Why { query: why.query, ..Why::default() };
        assert_eq!(super::why(&nobody), "No requests from job dd.1 found.\n");
        assert_eq!(limits(&nobody), "No limit applies to job dd.1.\n");
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
        let text = super::why(&why);
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
        let text = super::why(&why);
        assert!(text.contains("150 ops/s over all proxies"), "{text}");
        assert!(
            text.contains("counts operations, not bytes: requests larger than 65.5 kB"),
            "{text}"
        );
    }
}
