//! Donations: requests that another subject waited for, for both to see.

use std::sync::Arc;

use model::{Bytes, Identity, TargetId, Time};

use super::wait::{MeterStatus, WaitCause};
use crate::keys::MeterKey;

/// Donated requests of one writer for one waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DonationReport {
    /// The target of the requests.
    pub target: TargetId,
    /// The subject whose requests they are.
    pub writer: Arc<Identity>,
    /// The subject that waits for them.
    pub waiter: Arc<Identity>,
    /// The file that they write, as the caller named it; empty without a name.
    pub file: Arc<str>,
    /// The cause for which the last of them waited in its own class.
    pub by: WaitCause,
    /// The status of that meter, where it is one that still exists.
    pub meter: Option<MeterStatus>,
    /// The number of requests that were waited for.
    pub requests: u64,
    /// The payload of these requests.
    pub bytes: Bytes,
    /// The number of requests that went in the waiter's lane.
    pub donated: u64,
    /// When the first request was waited for.
    pub since: Time,
    /// When the last request was waited for.
    pub last: Time,
}

/// Recent donations, the last at the end.
#[derive(Debug, Default)]
pub(super) struct Donations(Vec<PendingDonation>);

/// Requests of a writer that a waiter waited for.
#[derive(Debug)]
pub(crate) struct PendingDonation {
    pub(crate) target: TargetId,
    pub(crate) writer: Arc<Identity>,
    pub(crate) waiter: Arc<Identity>,
    pub(crate) file: Arc<str>,
    /// The meter that held the last of them; none where it waited by weight.
    pub(crate) by: Option<MeterKey>,
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    pub(crate) donated: u64,
    pub(crate) since: Time,
    pub(crate) last: Time,
}

impl Donations {
    pub(super) fn count(&mut self, new: PendingDonation) {
        let same = |known: &PendingDonation| {
            known.target == new.target
                && known.writer == new.writer
                && known.waiter == new.waiter
                && known.file == new.file
        };
        let known = self.0.iter().position(same).map(|at| self.0.remove(at));
        if self.0.len() == DONATIONS_MAX {
            self.0.remove(0);
        }
        let new = match known {
            None => new,
            Some(known) => PendingDonation {
                requests: known.requests + new.requests,
                bytes: known.bytes.saturating_add(new.bytes),
                donated: known.donated + new.donated,
                since: known.since,
                ..new
            },
        };
        self.0.push(new);
    }

    /// Recent donations, the last first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &PendingDonation> {
        self.0.iter().rev()
    }
}

impl PendingDonation {
    /// The report of it, with the status of its meter, where that still exists.
    pub(crate) fn report(&self, meter: Option<MeterStatus>) -> DonationReport {
        let by = self.by.as_ref().map_or(WaitCause::Weight, |key| WaitCause::Meter {
            scope: key.scope(),
            in_bytes: key.in_bytes,
        });
        DonationReport {
            target: self.target,
            writer: self.writer.clone(),
            waiter: self.waiter.clone(),
            file: self.file.clone(),
            by,
            meter,
            requests: self.requests,
            bytes: Bytes::new(self.bytes),
            donated: self.donated,
            since: self.since,
            last: self.last,
        }
    }
}

/// How many pairs of writer and waiter, with files, are remembered.
const DONATIONS_MAX: usize = 64;
