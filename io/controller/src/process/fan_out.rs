//! Queries to all proxies: sent with assignments, answered with reports.
//!
//! ```text
//!   GET /v1/why, /v1/live ─► begin ─► reply to each proxy ─► its next report ─► hear
//!            ◄── all have replied, or ANSWER_TIME_MAX is over: the others are listed as silent
//! ```
//!
//! Nothing is prepared in advance, and a proxy that has replied is not queried again: if a query is
//! lost, its proxy is listed as silent in the reply.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{ProxyQuery, ProxyReply, QueryKind, QueryReply};
use tokio::sync::oneshot;

/// Queries to all proxies that are not complete.
#[derive(Default)]
pub(super) struct FanOut {
    last: u64,
    open: BTreeMap<u64, PendingQuery>,
}

/// The replies of the proxies.
pub(crate) struct QueryReplies {
    pub(crate) answers: Vec<(Arc<str>, QueryReply)>,
    /// The proxies without a reply.
    pub(crate) unanswered: Vec<String>,
}

struct PendingQuery {
    what: QueryKind,
    /// The receiver of the result.
    unsent: BTreeSet<Arc<str>>,
    awaited: BTreeSet<Arc<str>>,
    replies: QueryReplies,
    until: Instant,
    answer: oneshot::Sender<QueryReplies>,
}

impl FanOut {
    /// Queries these proxies, each with whether it is silent already; the result is dropped if
    /// there are too many queries.
    pub(super) fn begin(
        &mut self,
        what: QueryKind,
        proxies: impl Iterator<Item = (Arc<str>, bool)>,
        answer: oneshot::Sender<QueryReplies>,
        now: Instant,
    ) {
        if self.open.len() >= OPEN_MAX {
            return;
        }
        let (silent, awaited): (Vec<_>, Vec<_>) = proxies.partition(|(_, silent)| *silent);
        let silent: BTreeSet<_> = silent.into_iter().map(|(name, _)| name.to_string()).collect();
        let awaited: BTreeSet<_> = awaited.into_iter().map(|(name, _)| name).collect();
        let silent = silent.into_iter().filter(|name| !awaited.contains(name.as_str()));
        let heard = QueryReplies { answers: Vec::new(), unanswered: silent.collect() };
        let (untold, until) = (awaited.clone(), now + ANSWER_TIME_MAX);
        self.last += 1;
        self.open.insert(
            self.last,
            PendingQuery { what, unsent: untold, awaited, replies: heard, until, answer },
        );
    }

    /// Returns whether there is a query for this proxy.
    pub(super) fn has_query_for(&self, proxy: &str) -> bool {
        self.open.values().any(|open| open.unsent.contains(proxy))
    }

    /// Returns the queries for this proxy, each once.
    pub(super) fn questions(&mut self, proxy: &str) -> Vec<ProxyQuery> {
        let told = self.open.iter_mut().filter_map(|(number, open)| {
            let what = open.unsent.remove(proxy).then(|| open.what.clone())?;
            Some(ProxyQuery { number: *number, what })
        });
        told.collect()
    }

    /// Takes the replies of a proxy; replies without a query are ignored.
    pub(super) fn receive(&mut self, proxy: &Arc<str>, answers: Vec<ProxyReply>) {
        for ProxyReply { number, what } in answers {
            let Some(open) = self.open.get_mut(&number) else { continue };
            let fits = matches!(
                (&open.what, &what),
                (QueryKind::Why(_), QueryReply::Why(_)) | (QueryKind::Live, QueryReply::Live(_))
            );
            if fits && open.awaited.remove(proxy) {
                open.replies.answers.push((proxy.clone(), what));
            }
        }
    }

    /// Returns the results that are complete or due.
    pub(super) fn end(&mut self, now: Instant) {
        let over = |open: &PendingQuery| open.awaited.is_empty() || now >= open.until;
        let over = self.open.iter().filter(|(_, open)| over(open));
        let over: Vec<_> = over.map(|(number, _)| *number).collect();
        for number in over {
            let Some(PendingQuery { awaited, replies: mut heard, answer, .. }) =
                self.open.remove(&number)
            else {
                continue;
            };
            heard.unanswered.extend(awaited.into_iter().map(|name| name.to_string()));
            heard.unanswered.sort();
            // The caller may have gone.
            let _ = answer.send(heard);
        }
    }
}

/// The most queries at a time: as many as one reply carries and one report answers.
const OPEN_MAX: usize = 8;
/// The time limit: a running proxy replies within milliseconds, or with its next report.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use api::LiveSample;

    use super::*;

    fn live(number: u64) -> Vec<ProxyReply> {
        vec![ProxyReply { number, what: QueryReply::Live(Box::<LiveSample>::default()) }]
    }

    #[test]
    fn all_who_answer_are_heard_and_the_others_are_silent_when_time_is_over() {
        let (mut asking, now) = (FanOut::default(), Instant::now());
        let proxies = [("a", false), ("b", false), ("c", true)];
        let (answer, mut heard) = oneshot::channel();
        let proxies = proxies.into_iter().map(|(name, silent)| (name.into(), silent));
        asking.begin(QueryKind::Live, proxies, answer, now);
        assert!(
            asking.has_query_for("a") && asking.has_query_for("b") && !asking.has_query_for("c")
        );
        let number = asking.questions("a")[0].number;
        assert!(!asking.has_query_for("a"), "it was queried");
        asking.receive(&"x".into(), live(number));
        asking.receive(&"a".into(), live(number));
        asking.receive(&"a".into(), live(number));
        asking.end(now);
        assert!(heard.try_recv().is_err(), "b may still answer");
        asking.end(now + ANSWER_TIME_MAX);
        let heard = heard.try_recv().unwrap();
        let from: Vec<_> = heard.answers.iter().map(|(name, _)| &**name).collect();
        assert_eq!((from, heard.unanswered), (vec!["a"], vec!["b".to_string(), "c".to_string()]));
    }

    #[test]
    fn with_nobody_to_ask_the_answer_is_there_at_once_and_questions_are_bounded() {
        let (mut asking, now) = (FanOut::default(), Instant::now());
        let (answer, mut heard) = oneshot::channel();
        asking.begin(QueryKind::Live, std::iter::empty(), answer, now);
        asking.end(now);
        assert!(heard.try_recv().unwrap().answers.is_empty());
        let mut ask = || {
            let (answer, heard) = oneshot::channel();
            asking.begin(QueryKind::Live, [("a".into(), false)].into_iter(), answer, now);
            heard
        };
        let mut all: Vec<_> = (0..=OPEN_MAX).map(|_| ask()).collect();
        let last = all.pop().unwrap().try_recv();
        assert_eq!(last.err(), Some(oneshot::error::TryRecvError::Closed), "above the bound");
        assert_eq!(asking.questions("a").len(), OPEN_MAX);
    }
}
