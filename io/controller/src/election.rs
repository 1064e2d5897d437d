//! The election of one leader among several controllers.
//!
//! ```text
//!   standby ─── PREFIX/leader is gone: put it, on a lease of 3 s ──► leading (term T)
//!      ▲  └─ another was first ─► watch the key                         │ renews each second
//!      └── lease over, not renewed for 3 s by our own clock, resigned ──┘
//!
//!   append of term T: etcd compares the key's creation with T ─► over? refused
//! ```
//!
//! If a leader dies, another follows within the lease and etcd's half second: under 5 s. A leader
//! that only sleeps (stopped, swapped out) steps down by its own clock: it counts three seconds
//! from when it *sent* its last renewal, etcd from when it came, so it stops before another may
//! start. What it sends to etcd after that carries its term and is refused ([`FencingToken`]). What
//! it sends to proxies should carry its term, too.
//!
//! Only with etcd: a single controller leads because its data directory is locked.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use etcd_client::{Compare, CompareOp, Error, PutOptions, Txn, TxnOp, TxnOpResponse};
use tokio::sync::Notify;

use crate::etcd::{EtcdClient, EtcdError, EtcdMembers, runtime, wait_for};
use crate::store::watch_once;

/// One controller that campaigns for leadership; it resigns when dropped.
pub struct Election {
    shared: Arc<ElectionState>,
    thread: Option<JoinHandle<()>>,
}

/// The role of a controller: leader or standby.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// It leads, until its term is over.
    Leader(FencingToken),
    /// It is a standby.
    Standby {
        /// The leader, if known.
        leader: Option<String>,
    },
}

/// The term of one leader: what is appended with it counts only while the term lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencingToken {
    key: String,
    term: i64,
}

/// The key of the leader, below the prefix.
pub(crate) const LEADER: &str = "leader";

impl Election {
    /// Campaigns for leadership under `name` (an address of this controller, for the others)
    /// until the value is dropped.
    pub fn campaign(etcd: &EtcdClient, name: &str) -> Result<Election, EtcdError> {
        let members = EtcdMembers::new(etcd)?;
        let key = members.etcd().key(LEADER);
        let shared = Arc::new(ElectionState::default());
        let mut candidate =
            Candidate { members, key, name: name.to_string(), lease: None, shared: shared.clone() };
        let runtime = runtime()?;
        let thread = std::thread::Builder::new()
            .name("election".into())
            .spawn(api::critical(move || wait_for(&runtime, candidate.run())))
            .map_err(|source| EtcdError::Runtime { source })?;
        Ok(Election { shared, thread: Some(thread) })
    }

    /// Returns the current role of this controller. Call it before each decision.
    pub fn leadership(&self) -> Leadership {
        self.shared.lock().leadership(Instant::now())
    }

    /// Waits until the role is not `seen` any more; returns `seen` after `patience`.
    pub fn wait_for_change(&self, seen: &Leadership, patience: Duration) -> Leadership {
        let deadline = Instant::now() + patience;
        let mut state = self.shared.lock();
        loop {
            let now = Instant::now();
            let office = state.leadership(now);
            if office != *seen || now >= deadline {
                return office;
            }
            let wake = state.until.filter(|until| *until > now).unwrap_or(deadline).min(deadline);
            let waited = self.shared.changed.wait_timeout(state, wake - now);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Election {
    fn drop(&mut self) {
        self.shared.stop.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the election panicked");
        }
    }
}

impl FencingToken {
    /// Returns the term, which increases with each leader: messages of an earlier term than the
    /// latest known one are ignored.
    pub fn term(&self) -> u64 {
        self.term.unsigned_abs()
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn create_revision(&self) -> i64 {
        self.term
    }
}

/// The state that the thread shares with callers.
#[derive(Default)]
struct ElectionState {
    state: Mutex<CandidateState>,
    changed: Condvar,
    stop: Notify,
}

#[derive(Default)]
struct CandidateState {
    fence: Option<FencingToken>,
    /// When the fencing token expires by our own clock.
    until: Option<Instant>,
    /// The other controller that leads.
    leader: Option<String>,
}

impl ElectionState {
    fn lock(&self) -> MutexGuard<'_, CandidateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: CandidateState) {
        *self.lock() = state;
        self.changed.notify_all();
    }
}

impl CandidateState {
    fn leadership(&self, now: Instant) -> Leadership {
        match (&self.fence, self.until) {
            (Some(fence), Some(until)) if now < until => Leadership::Leader(fence.clone()),
            _ => Leadership::Standby { leader: self.leader.clone() },
        }
    }
}

/// The state of the thread.
struct Candidate {
    members: EtcdMembers,
    key: String,
    name: String,
    /// The lease that may hold the key.
    lease: Option<Lease>,
    shared: Arc<ElectionState>,
}

/// A lease as this side knows it: it ends at `until` at the latest.
#[derive(Clone, Copy)]
struct Lease {
    id: i64,
    until: Instant,
}

/// The outcome of a campaign.
enum CampaignOutcome {
    Won(FencingToken),
    /// Another controller leads; with etcd's revision at that time.
    Lost {
        leader: String,
        moment: i64,
    },
}

impl Candidate {
    async fn run(&mut self) {
        let shared = self.shared.clone();
        tokio::select! {
            () = self.run_candidate() => {}
            () = shared.stop.notified() => {}
        }
        shared.set(CandidateState::default());
        self.revoke_lease().await;
    }

    /// Campaigns and leads, term after term.
    async fn run_candidate(&mut self) {
        loop {
            match self.campaign().await {
                Ok(fence) => {
                    tracing::info!(name = self.name, term = fence.term(), "became leader");
                    self.lead(fence).await;
                    tracing::warn!(name = self.name, "lost leadership");
                    self.shared.set(CandidateState::default());
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot campaign for leadership; retrying");
                    tokio::time::sleep(RENEW).await;
                }
            }
            self.revoke_lease().await;
        }
    }

    /// Returns when this one is the leader.
    async fn campaign(&mut self) -> Result<FencingToken, EtcdError> {
        loop {
            let moment = match self.read_leader().await? {
                Some((leader, moment)) => {
                    self.shared
                        .set(CandidateState { leader: Some(leader), ..CandidateState::default() });
                    moment
                }
                None => match self.try_acquire().await? {
                    CampaignOutcome::Won(fence) => return Ok(fence),
                    CampaignOutcome::Lost { leader, moment } => {
                        self.revoke_lease().await;
                        self.shared.set(CandidateState {
                            leader: Some(leader),
                            ..CandidateState::default()
                        });
                        moment
                    }
                },
            };
            watch_once(&mut self.members, &self.key, moment, WATCH).await;
        }
    }

    /// Returns the leader, and etcd's revision at that time.
    async fn read_leader(&mut self) -> Result<Option<(String, i64)>, EtcdError> {
        let key = &self.key;
        let asked = self.members.call("read the leader", TERM, async |mut client, _| {
            client.get(key.clone(), None).await
        });
        let answer = asked.await?;
        let moment = answer.header().map_or(0, |header| header.revision());
        let leader = answer.kvs().first();
        Ok(leader.map(|kv| (String::from_utf8_lossy(kv.value()).into_owned(), moment)))
    }

    /// Takes a lease and puts the key on it, if there is none.
    async fn try_acquire(&mut self) -> Result<CampaignOutcome, EtcdError> {
        let lease = self.grant().await?;
        let txn = Txn::new()
            .when([Compare::version(self.key.clone(), CompareOp::Equal, 0)])
            .and_then([TxnOp::put(
                self.key.clone(),
                self.name.clone(),
                Some(PutOptions::new().with_lease(lease.id)),
            )])
            .or_else([TxnOp::get(self.key.clone(), None)]);
        let asked = self.members.call("campaign for leadership", TERM, async |mut client, _| {
            client.txn(txn.clone()).await
        });
        let answer = asked.await?;
        let moment = answer.header().map_or(0, |header| header.revision());
        let won = |term| CampaignOutcome::Won(FencingToken { key: self.key.clone(), term });
        if answer.succeeded() {
            return Ok(won(moment));
        }
        for found in answer.op_responses() {
            if let TxnOpResponse::Get(found) = found
                && let Some(kv) = found.kvs().first()
            {
                if kv.lease() == lease.id {
                    return Ok(won(kv.create_revision())); // an earlier try whose answer was lost
                }
                let leader = String::from_utf8_lossy(kv.value()).into_owned();
                return Ok(CampaignOutcome::Lost { leader, moment });
            }
        }
        Ok(CampaignOutcome::Lost { leader: "unknown".into(), moment })
    }

    async fn grant(&mut self) -> Result<Lease, EtcdError> {
        let asked = self.members.call("grant a lease", TERM, async |mut client, _| {
            let sent = Instant::now();
            let ttl_s = i64::try_from(TERM.as_secs()).expect("3 s");
            let granted = client.lease_grant(ttl_s, None).await?;
            Ok(Lease { id: granted.id(), until: sent + TERM })
        });
        let lease = asked.await?;
        self.lease = Some(lease);
        Ok(lease)
    }

    /// Returns when the term is over.
    async fn lead(&mut self, fence: FencingToken) {
        while let Some(lease) = self.lease {
            let now = Instant::now();
            if now >= lease.until {
                return;
            }
            let until = Some(lease.until);
            self.shared.set(CandidateState { fence: Some(fence.clone()), until, leader: None });
            tokio::time::sleep(RENEW.min(lease.until - now)).await;
            self.renew(lease).await;
        }
    }

    /// Renews the lease; drops it if etcd has.
    async fn renew(&mut self, lease: Lease) {
        let left = lease.until.saturating_duration_since(Instant::now());
        let asked = self.members.call("renew the leader's lease", left, async |mut client, _| {
            let sent = Instant::now();
            // The client sends one renewal and reads its answer before it returns; a further
            // answer would come to a further renewal only.
            match client.lease_keep_alive(lease.id).await {
                Ok(_) => Ok(Some(sent)),
                Err(Error::LeaseKeepAliveError(_)) => Ok(None),
                Err(error) => Err(error),
            }
        });
        match asked.await {
            Ok(Some(sent)) => self.lease = Some(Lease { until: sent + TERM, ..lease }),
            Ok(None) => self.lease = None,
            Err(error) => {
                tracing::warn!(%error, "cannot renew the lease");
                self.lease = None;
            }
        }
    }

    /// Revokes the lease, and with it the key; if that fails, the lease expires.
    async fn revoke_lease(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        let asked = self.members.call("end the lease", RENEW, async |mut client, _| {
            client.lease_revoke(lease.id).await
        });
        if let Err(error) = asked.await {
            tracing::debug!(%error, "cannot revoke the lease; it expires");
        }
    }
}

/// The time for which a leader leads without a renewal. etcd checks for expired leases twice a
/// second and a standby takes over at once, which leaves a second of the guaranteed five; with a
/// shorter lease, an election among etcd's members would end every term.
const TERM: Duration = Duration::from_secs(3);
/// The interval of renewals.
const RENEW: Duration = Duration::from_secs(1);
/// The longest time of one watch of the leader's key before it is read again.
const WATCH: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_that_slept_through_its_lease_does_not_lead_by_its_own_clock() {
        let now = Instant::now();
        let fence = FencingToken { key: "/x/leader".into(), term: 7 };
        let state =
            CandidateState { fence: Some(fence.clone()), until: Some(now + TERM), leader: None };
        assert_eq!(state.leadership(now), Leadership::Leader(fence));
        assert_eq!(state.leadership(now + TERM), Leadership::Standby { leader: None });
    }
}
