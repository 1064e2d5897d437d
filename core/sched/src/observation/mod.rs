//! Observation: what was used, for what requests waited, and in which pattern they came.
//!
//! ```text
//!   dispatch   ─ head goes ────► wait causes of its class, delayed time of its job
//!   completion ─ CompletedRequest ─► sums of the class, account of its subject there
//!   access     ─ sizes, order ─► pattern of the account
//! ```
//!
//! Nothing here decides anything: without it each request would be chosen the same way. The other
//! owners pass what they know; this one calls none of them.

mod account;
mod activity;
mod donations;
mod pattern;
mod report;
mod unreported;
mod usage;
mod wait;

use std::sync::Arc;

use model::{Nanos, Ops, Scope, Service, TargetId, Time};

use crate::ids::ClassId;
use crate::index::{ClassIndex, DormantIndex, JobIndex, SubjectIndex};
use crate::keys::ClassKey;
use crate::slab::{Parts, Slab};

pub(crate) use account::{AccessedBytes, AccountPlace, ClosedSubject};
pub use account::{AccountReport, ClosedAccounts};

pub use donations::DonationReport;
pub(crate) use donations::PendingDonation;
pub use report::{ClassReport, SubjectReport};
pub(crate) use usage::CompletedRequest;
pub use usage::Usage;
pub(crate) use wait::{
    AREA_MAX_NS, CausePlace, MeterId, QueueWait, ReadyCause, WAIT_MIN_NS, WaitCauses, WaitedArea,
    WaitedHead,
};
pub use wait::{
    MeterPayers, MeterStatus, ReservedRow, SubjectDetail, WaitCause, WaitCauseReport, WaitReport,
};

use account::Accounts;
use activity::ActiveJob;
use donations::Donations;
use unreported::UnreportedMetadata;

/// Without the feature `observation` nothing is counted, and the compiler leaves it out.
const IS_COUNTED: bool = cfg!(feature = "observation");

/// Everything that is counted and decides nothing.
#[derive(Debug, Default)]
pub(crate) struct Observation {
    subjects: Parts<SubjectIndex, SubjectRecord>,
    classes: Parts<ClassIndex, ClassRecord>,
    dormant: Parts<DormantIndex, ClassRecord>,
    jobs: Slab<JobIndex, ActiveJob>,
    /// By target: sums of the subjects that are forgotten, and how many of their operations are
    /// metadata.
    forgotten: Vec<(Usage, Ops)>,
    /// Accounts of forgotten subjects; `None` until they are taken for the first time.
    closed: Option<ClosedAccounts>,
    unreported: UnreportedMetadata,
    donations: Donations,
    /// When the usage of scopes was taken last.
    usage_taken: Time,
}

/// What is counted of a subject.
#[derive(Debug)]
struct SubjectRecord {
    accounts: Accounts,
    /// The place of its job.
    job: JobIndex,
}

/// What is counted of a class: first what each request changes.
#[derive(Clone, Debug, Default)]
#[repr(C)]
struct ClassRecord {
    /// Its wait causes, if it ever waited.
    causes: Option<Box<WaitCauses>>,
    usage: Usage,
    /// Its total cost when its usage was taken last.
    cost_taken: Nanos,
}

impl Observation {
    // ---- subjects and classes come and go ----

    /// Begins to count for a subject. `sibling` is another subject of its job, if there is one.
    pub(crate) fn add_subject(
        &mut self,
        index: SubjectIndex,
        sibling: Option<SubjectIndex>,
        now: Time,
    ) {
        let job = self.join_job(sibling, now);
        self.subjects.put(index, SubjectRecord { accounts: Accounts::default(), job });
    }

    /// Begins to count for a target.
    pub(crate) fn add_target(&mut self) {
        self.forgotten.push(Default::default());
    }

    /// Keeps the sums of a subject that is forgotten.
    pub(crate) fn drop_subject(&mut self, index: SubjectIndex, of: &ClosedSubject) {
        let record = &mut self.subjects[index];
        let (accounts, job) = (std::mem::take(&mut record.accounts), record.job);
        let (usage, ops) = &mut self.forgotten[of.target.index()];
        *usage += accounts.usage();
        *ops += accounts.metadata();
        self.close_accounts(&accounts, of);
        self.leave_job(job);
    }

    /// Begins to count for a class; a class that was dormant goes on from its sums.
    pub(crate) fn add_class(&mut self, index: ClassIndex, dormant: Option<DormantIndex>) {
        let record = dormant.map(|dormant| std::mem::take(&mut self.dormant[dormant]));
        let mut record = record.unwrap_or_default();
        record.cost_taken = record.usage.cost;
        self.classes.put(index, record);
    }

    /// Keeps the sums of a class that becomes dormant.
    pub(crate) fn rest_class(&mut self, index: ClassIndex, dormant: DormantIndex) {
        let record = std::mem::take(&mut self.classes[index]);
        self.dormant.put(dormant, record);
    }

    /// Forgets the sums of a dormant class.
    pub(crate) fn drop_dormant(&mut self, dormant: DormantIndex) {
        self.dormant[dormant] = ClassRecord::default();
    }

    // ---- requests ----

    /// Counts the cost of an attempt that found nothing in the cache.
    pub(crate) fn count_missed(&mut self, class: ClassIndex, cost: Nanos) {
        if !IS_COUNTED {
            return;
        }
        self.classes[class].usage.cost += cost;
    }

    /// Counts remote service of a class, and of a subject where it is known.
    pub(crate) fn count_remote(
        &mut self,
        subject: Option<SubjectIndex>,
        class: ClassIndex,
        cost: Nanos,
    ) {
        if !IS_COUNTED {
            return;
        }
        if let Some(subject) = subject {
            self.subjects[subject].accounts.add_remote(cost);
        }
        self.classes[class].usage.remote += cost;
    }

    /// Counts metadata service that its client reports to no other server.
    pub(crate) fn count_unreported(&mut self, id: ClassId, key: &Arc<ClassKey>, cost: Nanos) {
        self.unreported.count(id, key, cost);
    }

    /// Takes what was counted so since the last call, by class of a target.
    pub(crate) fn take_unreported(&mut self, target: TargetId) -> Vec<(Scope, Nanos)> {
        self.unreported.take(target)
    }

    /// Counts a request that another subject waited for.
    pub(crate) fn count_donation(&mut self, donation: PendingDonation) {
        if !IS_COUNTED {
            return;
        }
        self.donations.count(donation);
    }

    /// Recent donations, the last first.
    pub(crate) fn donations(&self) -> impl Iterator<Item = &PendingDonation> {
        self.donations.iter()
    }

    // ---- sums ----

    /// The time since the usage of scopes was taken last; now it is.
    pub(crate) fn begin_taking_usage(&mut self, now: Time) -> Nanos {
        let span = now.since(self.usage_taken);
        self.usage_taken = now;
        span
    }

    /// Whether a class was served since its usage was taken last; now it is.
    pub(crate) fn take_class_usage(&mut self, class: ClassIndex) -> bool {
        let record = &mut self.classes[class];
        let before = std::mem::replace(&mut record.cost_taken, record.usage.cost);
        before != record.usage.cost
    }

    pub(crate) fn usage_of_subject(&self, subject: SubjectIndex) -> Usage {
        self.subjects[subject].accounts.usage()
    }

    /// A subject's operations that neither read nor wrote a file.
    pub(crate) fn metadata_of_subject(&self, subject: SubjectIndex) -> Ops {
        self.subjects[subject].accounts.metadata()
    }

    /// The service of a subject in all its classes.
    pub(crate) fn service_of_subject(&self, subject: SubjectIndex) -> Service {
        self.subjects[subject].accounts.service()
    }

    pub(crate) fn usage_of_class(&self, class: ClassIndex) -> Usage {
        self.classes[class].usage
    }

    pub(crate) fn usage_of_dormant(&self, dormant: DormantIndex) -> Usage {
        self.dormant[dormant].usage
    }

    /// The causes of a dormant class, if it ever waited.
    pub(crate) fn causes_of_dormant(&self, dormant: DormantIndex) -> Option<&WaitCauses> {
        self.dormant[dormant].causes.as_deref()
    }

    /// The sums of a target's subjects that are forgotten, and how many of their operations are
    /// metadata.
    pub(crate) fn forgotten(&self, target: TargetId) -> (Usage, Ops) {
        self.forgotten[target.index()]
    }
}
