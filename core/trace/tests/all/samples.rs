//! Requests to record: those of a test of the bytes and of one of the recorder.

use model::{Amount, Bytes, Identity, JobId, Lane, Nanos, Nid, OpKind, Time};
use proptest::prelude::*;
use trace::{Access, TraceOutcome, TraceRequest};

/// Who makes them.
pub(crate) fn identity(job: &str) -> Identity {
    let nid = Nid::tcp("192.0.2.7".parse().unwrap());
    Identity { job: JobId::new(job).unwrap(), uid: 500, gid: 100, projid: Some(0), nid }
}

/// One request, at a time of its own.
pub(crate) fn request(subject: u32, number: u64) -> TraceRequest {
    TraceRequest {
        subject,
        class: None,
        kind: OpKind::Getattr,
        lane: Lane::Device,
        access: None,
        arrived: Time::from_nanos(number * 1000),
        queued: Nanos::new(number),
        service: Nanos::new(7),
        requested: Bytes::ZERO,
        served: Amount::new(0, 1),
        outcome: TraceOutcome::Done,
    }
}

fn any_number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64u32).prop_map(|(number, shift)| number >> shift)
}

/// A request of one of so many subjects, with any values.
pub(crate) fn any_request(subjects: u32) -> impl Strategy<Value = TraceRequest> {
    let class = prop::option::of(any_number());
    let access = prop::option::of(prop::sample::select(&Access::ALL[..]));
    let lane = prop::sample::select(&[Lane::Cached, Lane::Device][..]);
    let what = (1..=subjects, class, prop::sample::select(OpKind::ALL), lane, access);
    let failed = any::<u32>().prop_map(TraceOutcome::of);
    let outcome = prop_oneof![Just(TraceOutcome::Done), failed, Just(TraceOutcome::Cancelled)];
    let when = (any_number(), any_number(), any_number());
    let amounts = (any_number(), prop::option::of(any_number()), any_number());
    (what, when, amounts, outcome).prop_map(|(what, when, amounts, outcome)| {
        let (subject, class, kind, lane, access) = what;
        TraceRequest {
            subject,
            class,
            kind,
            lane,
            access,
            arrived: Time::from_nanos(when.0),
            queued: Nanos::new(when.1),
            service: Nanos::new(when.2),
            requested: Bytes::new(amounts.1.unwrap_or(amounts.0)),
            served: Amount::new(amounts.0, amounts.2),
            outcome,
        }
    })
}
