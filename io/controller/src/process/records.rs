//! Decisions, read from the store's records, and the thread that appends to them.
//!
//! ```text
//!   PUT rules ─────► text parses? over the version in force? ─► append ─► plan, API
//!   tokens ────────► still an administrator? ──────── ► append ─► API
//!   plan: proxies ─► append ─► plan: assignments that rely on them may be sent
//!   calendar ──────► append, or part 0, 1 … n ─► the calendar's answers: all of it counts, or none
//! ```
//!
//! A store blocks (a disk, or etcd's members), so it has this thread; only the caller waits for it.
//! Proxies are on record before they get an assignment, so that the next leader knows which proxies
//! may be using a share.
//!
//! A decision of the calendar that is larger than a record is several, and counts with the last of
//! them: parts without the others are passed over. So the stores need nothing but single records.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use api::{ErrorCode, ErrorReport, EventKind, MadeToken, NewToken, WireRules};
use model::Share;
use reserve::RulesError;
use rules::{RuleFileError, RuleSet};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::access::{AccessControl, ApiCaller, now_s};
use super::accounts::ThrottledKeys;
use super::calendar::{CalendarDecision, CalendarState};
use super::events::EventPublisher;
use super::queue::{MsgInbox, MsgQueue};
use super::{plan_actor, usage};
use crate::store::{History, RECORD_BYTES_MAX, Revision, Store, StoreError};
use crate::token::{TokenRecord, TokenRefused, TokenSet};

/// A message to this thread.
pub(crate) enum StoreMsg {
    SetRules {
        text: String,
        /// The version to replace.
        over: Option<String>,
        by: ApiCaller,
        answer: oneshot::Sender<Result<(), RulePublishError>>,
    },
    MakeToken {
        new: NewToken,
        by: ApiCaller,
        answer: oneshot::Sender<Result<MadeToken, TokenFailed>>,
    },
    RevokeToken {
        name: String,
        by: ApiCaller,
        answer: oneshot::Sender<Result<api::Tokens, TokenFailed>>,
    },
    Proxies(Vec<ProxyRecord>),
    /// The keys that decays throttle.
    ThrottledKeys(ThrottledKeys),
    /// What has changed of the calendar of reservations. With the error comes what is on record.
    Calendar {
        decision: Box<CalendarDecision>,
        answer: oneshot::Sender<Result<(), (StoreError, Box<CalendarState>)>>,
    },
    Stop,
}

/// The rules of all proxies.
#[derive(Debug, Default)]
pub(crate) struct PublishedRules {
    pub(crate) text: Arc<str>,
    pub(crate) version: String,
    pub(crate) set: Arc<RuleSet>,
    /// Whether rules were ever stored; proxies keep their own until then.
    pub(crate) is_stored: bool,
}

impl PublishedRules {
    /// Describes them in a sentence.
    fn description(&self) -> String {
        let some = |count: usize, what: &str| match count {
            1 => format!("1 {what}"),
            _ => format!("{count} {what}s"),
        };
        format!(
            "the rules of version {} are in force: {}, {}, {}",
            self.version,
            some(self.set.rules.len(), "rule"),
            some(self.set.meters.len(), "meter"),
            some(self.set.decays.len(), "decay")
        )
    }
}

/// The reason why rules are not put in force. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RulePublishError {
    #[error("{}", .0.in_file("rules"))]
    Wrong(RuleFileError),
    #[error("the rules were changed in between and no longer have version {over}; read them again")]
    Stale { over: String },
    #[error(transparent)]
    Store(StoreError),
    #[error(transparent)]
    Promised(RulesError),
    #[error("the controller is shutting down")]
    ShuttingDown,
}

/// The reason why a token is not created or revoked. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum TokenFailed {
    /// The token is refused.
    #[error(transparent)]
    Refused(#[from] TokenRefused),
    /// The change cannot be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl TokenFailed {
    /// Makes the report for the caller.
    pub fn report(&self) -> ErrorReport {
        let (code, at) = match self {
            TokenFailed::Store(_) => (ErrorCode::StoreFailed, None),
            TokenFailed::Refused(refused) => match refused {
                TokenRefused::Name { .. } => (ErrorCode::InvalidArgument, Some("name")),
                TokenRefused::User { .. } => (ErrorCode::InvalidArgument, Some("user")),
                TokenRefused::Job => (ErrorCode::InvalidArgument, Some("role")),
                TokenRefused::Expired { .. } => (ErrorCode::InvalidArgument, Some("expires_s")),
                TokenRefused::NameInUse { .. } => (ErrorCode::AlreadyExists, Some("name")),
                TokenRefused::Unknown { .. } => (ErrorCode::NotFound, Some("name")),
                TokenRefused::First | TokenRefused::Last { .. } | TokenRefused::Open { .. } => {
                    (ErrorCode::LastAdminToken, None)
                }
                TokenRefused::TooMany => (ErrorCode::LimitReached, None),
            },
        };
        ErrorReport { at: at.map(str::to_owned), ..ErrorReport::new(code, self.to_string()) }
    }
}

/// The record of one proxy at a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProxyRecord {
    pub(crate) target: String,
    pub(crate) name: String,
    pub(crate) epoch: u64,
    /// Its fallback share, in billionths; none: it was removed.
    pub(crate) fallback: Option<u32>,
}

/// The proxies on record: epoch and fallback share, by target and name.
pub(crate) type KnownProxies = BTreeMap<(Arc<str>, Arc<str>), (u64, Share)>;

/// One record.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Decision {
    Term(u64),
    Rules(String),
    Proxies(Vec<ProxyRecord>),
    Token(TokenRecord),
    /// The tokens by name.
    Revoked(String),
    Decays(ThrottledKeys),
    Calendar(Box<CalendarDecision>),
    #[serde(rename = "calendar_part")]
    CalendarPart(Box<CalendarPart>),
}

/// One of the records that are one decision of the calendar together.
#[derive(Debug, Serialize, Deserialize)]
struct CalendarPart {
    /// Its place, from 0.
    nth: usize,
    /// How many there are.
    of: usize,
    decision: CalendarDecision,
}

/// All records together, and the text of a snapshot.
#[derive(Debug, Default, Serialize, Deserialize)]
struct RecordsState {
    term: u64,
    rules: Option<String>,
    proxies: Vec<ProxyRecord>,
    #[serde(default)]
    tokens: Vec<TokenRecord>,
    #[serde(default)]
    decays: ThrottledKeys,
    #[serde(default)]
    calendar: CalendarState,
    /// The parts of a decision of which the last one is not there yet. A snapshot has none: if these
    /// are the newest records, the decision has failed.
    #[serde(skip)]
    parts: Vec<CalendarDecision>,
}

/// The records of one store.
pub(crate) struct Records {
    store: Box<dyn Store>,
    at: Revision,
    /// Records since the last snapshot, and their bytes.
    tail: usize,
    tail_bytes: usize,
    state: RecordsState,
}

impl Records {
    /// Reads all records of the store.
    pub(crate) fn open(mut store: Box<dyn Store>) -> Result<Records, StoreError> {
        let history = store.load(Revision::ZERO)?;
        let state = RecordsState::default();
        let mut records = Records { store, at: Revision::ZERO, tail: 0, tail_bytes: 0, state };
        records.load_history(history)?;
        Ok(records)
    }

    /// Starts a term: the given one, or the one after all terms on record.
    pub(crate) fn begin(&mut self, term: Option<u64>) -> Result<u64, StoreError> {
        let term = term.unwrap_or(self.state.term + 1);
        self.decide(Decision::Term(term))?;
        Ok(term)
    }

    pub(crate) fn rules(&self) -> Result<PublishedRules, RuleFileError> {
        in_force(self.state.rules.as_deref())
    }

    pub(crate) fn tokens(&self) -> TokenSet {
        TokenSet::of(&self.state.tokens)
    }

    /// Creates a token, stores it and writes it to the audit log.
    pub(crate) fn make_token(
        &mut self,
        new: &NewToken,
        by: &ApiCaller,
        access: &AccessControl,
    ) -> Result<MadeToken, TokenFailed> {
        self.tokens().check_new(new, now_s())?;
        let (token, record) = TokenRecord::make(new, now_s());
        let made = MadeToken { token, record: record.report() };
        let line = by.audit_line(format!("token {}", record.name), None, Some(record.words()));
        self.decide(Decision::Token(record))?;
        access.set_tokens(self.tokens());
        access.audit.write(&line);
        Ok(made)
    }

    /// Revokes a token; returns the remaining ones.
    pub(crate) fn revoke_token(
        &mut self,
        name: String,
        by: &ApiCaller,
        access: &AccessControl,
    ) -> Result<api::Tokens, TokenFailed> {
        let tokens = self.tokens();
        tokens.check_revoked(&name, access.open)?;
        let before = tokens.named(&name).map(TokenRecord::words);
        let line = by.audit_line(format!("token {name}"), before, None);
        self.decide(Decision::Revoked(name))?;
        access.set_tokens(self.tokens());
        access.audit.write(&line);
        Ok(self.tokens().report())
    }

    pub(crate) fn known_proxies(&self) -> KnownProxies {
        let known = |member: &ProxyRecord| {
            let part = Share::from_billionths(member.fallback?).unwrap_or(Share::WHOLE);
            let place = (member.target.as_str().into(), member.name.as_str().into());
            Some((place, (member.epoch, part)))
        };
        self.state.proxies.iter().filter_map(known).collect()
    }

    pub(crate) fn throttled_keys(&self) -> ThrottledKeys {
        self.state.decays.clone()
    }

    pub(crate) fn calendar(&self) -> CalendarState {
        self.state.calendar.clone()
    }

    /// Stores a decision of the calendar, all of it or nothing.
    fn decide_calendar(&mut self, decision: Box<CalendarDecision>) -> Result<(), StoreError> {
        let decision = Decision::Calendar(decision);
        let body = encoded(&decision);
        if body.len() <= RECORD_BYTES_MAX {
            self.append(decision, &body)?;
        } else if let Decision::Calendar(decision) = decision {
            let parts = decision.into_parts(RECORD_BYTES_MAX - PART_HEAD_BYTES);
            let of = parts.len();
            for (nth, decision) in parts.into_iter().enumerate() {
                let part = Decision::CalendarPart(Box::new(CalendarPart { nth, of, decision }));
                let body = encoded(&part);
                self.append(part, &body)?;
            }
        }
        self.snapshot_if_due();
        Ok(())
    }

    fn decide(&mut self, decision: Decision) -> Result<(), StoreError> {
        let body = encoded(&decision);
        self.append(decision, &body)?;
        self.snapshot_if_due();
        Ok(())
    }

    fn append(&mut self, decision: Decision, body: &[u8]) -> Result<(), StoreError> {
        match self.store.append(self.at, body) {
            Ok(revision) => {
                self.at = revision;
                self.state.apply(decision);
                self.tail += 1;
                self.tail_bytes += body.len();
            }
            Err(error) => {
                // The current content decides, whether this change was stored or another one came
                // first.
                let history = self.store.load(self.at)?;
                self.load_history(history)?;
                return Err(error);
            }
        }
        Ok(())
    }

    fn snapshot_if_due(&mut self) {
        if self.tail >= TAIL_MAX || self.tail_bytes >= TAIL_BYTES_MAX {
            let state = serde_json::to_vec(&self.state).expect("a state is plain data");
            match self.store.snapshot(self.at, &state) {
                Ok(()) => (self.tail, self.tail_bytes) = (0, 0),
                Err(error) => tracing::warn!(%error, "cannot write a snapshot of the records"),
            }
        }
    }

    fn load_history(&mut self, history: History) -> Result<(), StoreError> {
        let newest = history.newest();
        let damaged = |revision: Revision, error: serde_json::Error| StoreError::Damaged {
            location: "the store".into(),
            problem: format!("revision {revision}: {error}"),
        };
        if let Some(snapshot) = history.snapshot {
            self.state = serde_json::from_slice(&snapshot.state)
                .map_err(|error| damaged(snapshot.revision, error))?;
        }
        self.tail += history.records.len();
        self.tail_bytes += history.records.iter().map(|record| record.body.len()).sum::<usize>();
        for record in history.records {
            let decision = serde_json::from_slice(&record.body)
                .map_err(|error| damaged(record.revision, error))?;
            self.state.apply(decision);
        }
        self.at = newest.unwrap_or(self.at);
        Ok(())
    }
}

impl RecordsState {
    fn apply(&mut self, decision: Decision) {
        match decision {
            Decision::CalendarPart(part) => return self.apply_part(*part),
            Decision::Term(term) => self.term = term,
            Decision::Rules(text) => self.rules = Some(text),
            Decision::Token(token) => self.tokens.push(token),
            Decision::Revoked(name) => self.tokens.retain(|token| token.name != name),
            Decision::Decays(standings) => self.decays = standings,
            Decision::Calendar(decision) => self.calendar.apply(*decision),
            Decision::Proxies(changed) => {
                for new in changed {
                    self.proxies.retain(|old| (&old.target, &old.name) != (&new.target, &new.name));
                    if new.fallback.is_some() {
                        self.proxies.push(new);
                    }
                }
            }
        }
        self.parts.clear();
    }

    /// Takes a part of a decision, and applies all of them with the last one.
    fn apply_part(&mut self, part: CalendarPart) {
        if part.nth == 0 {
            self.parts.clear();
        }
        if part.nth != self.parts.len() {
            // Those before it were of a decision that failed.
            return self.parts.clear();
        }
        self.parts.push(part.decision);
        if self.parts.len() == part.of {
            let parts = std::mem::take(&mut self.parts);
            parts.into_iter().for_each(|part| self.calendar.apply(part));
        }
    }
}

fn encoded(decision: &Decision) -> Vec<u8> {
    serde_json::to_vec(decision).expect("a decision is plain data")
}

/// The receivers of what the thread wrote.
pub(crate) struct StoreOutputs {
    pub(crate) plan: MsgQueue<plan_actor::PlanMsg>,
    pub(crate) usage: MsgQueue<usage::UsageMsg>,
    pub(crate) publisher: EventPublisher,
}

/// Runs the thread until it is stopped.
pub(crate) fn run(
    mut records: Records,
    asked: &MsgInbox<StoreMsg>,
    to: &StoreOutputs,
    shared: &RwLock<Arc<PublishedRules>>,
    access: &AccessControl,
) {
    while let Ok(ask) = asked.recv() {
        match ask {
            StoreMsg::Stop => return,
            StoreMsg::Proxies(changed) => {
                match records.decide(Decision::Proxies(changed.clone())) {
                    // It fails only if the plan's thread has ended.
                    Ok(()) => drop(to.plan.send(plan_actor::PlanMsg::Stored(changed))),
                    Err(error) => tracing::error!(%error, "cannot store the proxies"),
                }
            }
            StoreMsg::MakeToken { new, by, answer } => {
                let _ = answer.send(records.make_token(&new, &by, access));
            }
            StoreMsg::RevokeToken { name, by, answer } => {
                let _ = answer.send(records.revoke_token(name, &by, access));
            }
            StoreMsg::ThrottledKeys(standings) => {
                if let Err(error) = records.decide(Decision::Decays(standings)) {
                    tracing::error!(%error, "cannot store the keys that decays throttle");
                }
            }
            StoreMsg::Calendar { decision, answer } => {
                let outcome = records.decide_calendar(decision);
                let outcome = outcome.map_err(|error| (error, Box::new(records.calendar())));
                // The calendar's thread may have ended.
                let _ = answer.send(outcome);
            }
            StoreMsg::SetRules { text, over, by, answer } => {
                let before = records.state.rules.clone();
                let outcome = set_rules(&mut records, text, over, shared);
                if let Ok(rules) = &outcome {
                    let after = Some(rules.text.to_string());
                    access.audit.write(&by.audit_line("rules".into(), before, after));
                    let _ = to.plan.send(plan_actor::PlanMsg::Rules(rules.clone()));
                    let _ = to.usage.send(usage::UsageMsg::Rules(rules.clone()));
                    to.publisher.publish_now(
                        EventKind::Rules,
                        rules.version.as_str(),
                        rules.description(),
                    );
                }
                // The caller may have gone.
                let _ = answer.send(outcome.map(|_| ()));
            }
        }
    }
}

fn set_rules(
    records: &mut Records,
    text: String,
    over: Option<String>,
    shared: &RwLock<Arc<PublishedRules>>,
) -> Result<Arc<PublishedRules>, RulePublishError> {
    let rules = Arc::new(in_force(Some(&text)).map_err(RulePublishError::Wrong)?);
    let before = shared.read().unwrap_or_else(PoisonError::into_inner).version.clone();
    if let Some(over) = over.filter(|over| *over != before) {
        return Err(RulePublishError::Stale { over });
    }
    records.decide(Decision::Rules(text)).map_err(RulePublishError::Store)?;
    *shared.write().unwrap_or_else(PoisonError::into_inner) = rules.clone();
    Ok(rules)
}

fn in_force(text: Option<&str>) -> Result<PublishedRules, RuleFileError> {
    let given = text.is_some();
    let text = text.unwrap_or_default();
    let set = Arc::new(RuleSet::parse(text)?);
    Ok(PublishedRules {
        version: WireRules::version_of(text),
        text: text.into(),
        set,
        is_stored: given,
    })
}

/// The number of records after which they are written as a snapshot.
const TAIL_MAX: usize = 1_000;
/// The bytes of records after which they are written as a snapshot.
const TAIL_BYTES_MAX: usize = 16 << 20;
/// The most bytes of a part's record beside its decision.
const PART_HEAD_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::process::calendar::ReservationDetails;
    use crate::store::SqliteStore;
    use testkit::TestFolder;

    fn open(folder: &TestFolder) -> Records {
        let store = SqliteStore::open(&folder.path().join("store.db")).unwrap();
        Records::open(Box::new(store)).unwrap()
    }

    /// A store whose next appends fail after some.
    struct FailingStore(SqliteStore, Arc<AtomicUsize>);

    impl Store for FailingStore {
        fn load(&mut self, after: Revision) -> Result<History, StoreError> {
            self.0.load(after)
        }

        fn append(&mut self, expected: Revision, record: &[u8]) -> Result<Revision, StoreError> {
            let left = self.1.load(Ordering::Relaxed);
            let Some(left) = left.checked_sub(1) else {
                let (location, problem) = ("the store".into(), "full".into());
                return Err(StoreError::Damaged { location, problem });
            };
            self.1.store(left, Ordering::Relaxed);
            self.0.append(expected, record)
        }

        fn snapshot(&mut self, at: Revision, state: &[u8]) -> Result<(), StoreError> {
            self.0.snapshot(at, state)
        }

        fn newest(&mut self, after: Revision, patience: Duration) -> Result<Revision, StoreError> {
            self.0.newest(after, patience)
        }
    }

    #[test]
    fn decision_of_several_records_counts_with_the_last_of_them() {
        let decision = |number: u64| {
            let directory = Some("d".repeat(1_000));
            let details = ReservationDetails { directory, ..ReservationDetails::default() };
            let ids = (0..3_000).map(|id| reserve::ReservationId(number * 10_000 + id));
            let details = ids.map(|id| (id, details.clone())).collect();
            Box::new(CalendarDecision { details, ..CalendarDecision::default() })
        };
        let folder = TestFolder::new();
        let count = |records: &Records| records.calendar().details.len();
        let mut parts = 0;
        for stored in 0.. {
            drop(open(&folder));
            let left = Arc::new(AtomicUsize::new(stored));
            let store = SqliteStore::open(&folder.path().join("store.db")).unwrap();
            let mut records = Records::open(Box::new(FailingStore(store, left.clone()))).unwrap();
            assert_eq!(count(&records), 0, "{stored} parts of a decision");
            let outcome = records.decide_calendar(decision(0));
            if outcome.is_ok() {
                parts = stored;
                break;
            }
            assert_eq!(count(&records), 0, "{stored} parts are none");
            // It goes on, also in the same process, with the next decision of as many parts.
            left.store(usize::MAX, Ordering::Relaxed);
            let term = if stored % 2 == 0 { records.begin(None) } else { Ok(1) };
            assert!(term.is_ok());
        }
        assert!(parts > 2);
        let store = SqliteStore::open(&folder.path().join("store.db")).unwrap();
        let left = Arc::new(AtomicUsize::new(parts - 1));
        let mut records = Records::open(Box::new(FailingStore(store, left.clone()))).unwrap();
        assert_eq!(count(&records), 3_000);
        assert!(records.decide_calendar(decision(1)).is_err());
        left.store(usize::MAX, Ordering::Relaxed);
        records.decide_calendar(decision(2)).unwrap();
        let all = |records: &Records| records.calendar().details.into_keys().collect::<Vec<_>>();
        assert_eq!(count(&records), 6_000);
        assert_eq!(all(&open(&folder)), all(&records), "as it is read again");
    }

    fn member(name: &str, epoch: u64, fallback: Option<u32>) -> ProxyRecord {
        ProxyRecord { target: "t".into(), name: name.into(), epoch, fallback }
    }

    #[test]
    fn a_controller_that_begins_anew_finds_rules_members_and_a_greater_term() {
        let folder = TestFolder::new();
        let mut records = open(&folder);
        assert!(!records.rules().unwrap().is_stored);
        let first = records.begin(None).unwrap();
        let text = "[[rule]]\nname = \"a\"\nlimit = \"1MB/s\"\n";
        records.decide(Decision::Rules(text.into())).unwrap();
        let half = Some(500_000_000);
        let members = vec![member("a", 1, half), member("b", 2, half)];
        records.decide(Decision::Proxies(members)).unwrap();
        records
            .decide(Decision::Proxies(vec![member("b", 2, None), member("a", 3, half)]))
            .unwrap();
        drop(records);
        let mut again = open(&folder);
        assert_eq!(again.begin(None).unwrap(), first + 1);
        let rules = again.rules().unwrap();
        assert_eq!((&*rules.text, rules.is_stored), (text, true));
        let expected = (("t".into(), "a".into()), (3, Share::ratio(1, 2)));
        assert_eq!(again.known_proxies().into_iter().collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn tokens_are_there_again_and_those_that_were_revoked_are_not() {
        let folder = TestFolder::new();
        let mut records = open(&folder);
        for name in ["a", "b", "c"] {
            let role = api::Role::Read;
            let new = NewToken { name: name.into(), role, user: None, expires_s: None };
            records.decide(Decision::Token(TokenRecord::make(&new, 1).1)).unwrap();
        }
        records.decide(Decision::Revoked("b".into())).unwrap();
        drop(records);
        let tokens = open(&folder).tokens();
        let names: Vec<_> = tokens.report().tokens.into_iter().map(|token| token.name).collect();
        assert_eq!(names, ["a", "c"]);
    }

    #[test]
    fn a_snapshot_from_before_there_were_tokens_is_read() {
        let state: RecordsState =
            serde_json::from_str(r#"{"term":3,"rules":null,"proxies":[]}"#).unwrap();
        assert!(state.tokens.is_empty());
    }

    #[test]
    fn records_that_were_folded_into_a_snapshot_are_still_known() {
        let folder = TestFolder::new();
        let mut records = open(&folder);
        for epoch in 0..TAIL_MAX as u64 + 5 {
            records.decide(Decision::Proxies(vec![member("a", epoch, Some(7))])).unwrap();
        }
        assert_eq!(records.tail, 5);
        drop(records);
        let again = open(&folder);
        let (epoch, part) = again.known_proxies()[&("t".into(), "a".into())];
        assert_eq!((epoch, part.billionths()), (TAIL_MAX as u64 + 4, 7));
    }
}
