//! The structs of `sluice.h`, as C lays them out, and their conversion from and to messages.
//!
//! The first field of each is its size, so that later versions can append fields. The layout is
//! checked from the other side by `native/tests/layout.c`.

use std::ffi::c_char;

use api::{
    AddedPhase, NewPhase, WireCredit, WireRate, WireRefusal, WireReservation, WireReservationState,
};

use crate::error::CallError;
use crate::usage::ServedUsage;

/// `sluice_settings`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SluiceSettings {
    pub(crate) struct_size: usize,
    pub(crate) controller: *const c_char,
    pub(crate) ca_file: *const c_char,
    pub(crate) token_file: *const c_char,
    pub(crate) cert_file: *const c_char,
    pub(crate) key_file: *const c_char,
}

/// `sluice_phase`, which is in arrays and so has no size of its own
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SluicePhase {
    start_ns: u64,
    tolerance_ns: u64,
    duration_ns: u64,
    read_bytes_per_s: u64,
    write_bytes_per_s: u64,
    metadata_ops_per_s: u64,
    reserved: [u64; 2],
}

/// `sluice_request`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SluiceRequest {
    pub(crate) struct_size: usize,
    pub(crate) read_bytes_per_s: u64,
    pub(crate) write_bytes_per_s: u64,
    pub(crate) metadata_ops_per_s: u64,
    pub(crate) duration_ns: u64,
    pub(crate) not_before_ns: u64,
    pub(crate) by_ns: u64,
    pub(crate) claim_window_ns: u64,
    pub(crate) after: u64,
    pub(crate) job: *const c_char,
    pub(crate) path: *const c_char,
    pub(crate) idempotency_key: *const c_char,
    pub(crate) phases: *const SluicePhase,
    pub(crate) phase_count: usize,
    pub(crate) flags: u32,
    pub(crate) nodes: u32,
}

/// `sluice_details`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SluiceDetails {
    struct_size: usize,
    id: u64,
    state: i32,
    reduced_ppm: u32,
    start_ns: u64,
    end_ns: u64,
    guaranteed_ns: u64,
    claim_by_ns: u64,
    claimed_ns: u64,
    read_bytes_per_s: u64,
    write_bytes_per_s: u64,
    metadata_ops_per_s: u64,
    used_bytes: u64,
    credit_bytes: u64,
    phase_of: u64,
    next_phase: u64,
    next_phase_start_ns: u64,
    ended: [u8; 32],
    target: [u8; 128],
    reduced_because: [u8; 256],
}

/// `sluice_refusal`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SluiceRefusal {
    struct_size: usize,
    next_start_ns: u64,
    fits_now_ppm: u32,
    reserved: u32,
    kind: [u8; 32],
    bottleneck: [u8; 128],
    taken_by: [u8; 512],
}

/// `sluice_usage`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SluiceUsage {
    struct_size: usize,
    read_bytes: u64,
    written_bytes: u64,
    delayed_ns: u64,
}

/// `sluice_credit`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SluiceCredit {
    struct_size: usize,
    bytes: u64,
    outstanding_bytes: u64,
    outstanding: u32,
    reserved: u32,
}

/// Bits of `sluice_request.flags`.
pub(crate) const FLAG_EXACT: u32 = 1;
pub(crate) const FLAG_SPONTANEOUS: u32 = 2;
pub(crate) const FLAG_SPEND_CREDIT: u32 = 4;

impl SluicePhase {
    /// A phase of a request, whose start counts from that of the reservation.
    pub(crate) fn to_new(self) -> Result<NewPhase, CallError> {
        self.check()?;
        Ok(NewPhase {
            start_ns: self.start_ns,
            tolerance_ns: self.tolerance_ns,
            duration_ns: self.duration_ns,
            read: bytes(self.read_bytes_per_s),
            write: bytes(self.write_bytes_per_s),
            metadata: operations(self.metadata_ops_per_s),
        })
    }

    /// A phase of an accepted reservation, whose start is a time; 0: now.
    pub(crate) fn to_added(self) -> Result<AddedPhase, CallError> {
        self.check()?;
        Ok(AddedPhase {
            not_before_ns: some(self.start_ns),
            tolerance_ns: self.tolerance_ns,
            duration_ns: self.duration_ns,
            read: bytes(self.read_bytes_per_s),
            write: bytes(self.write_bytes_per_s),
            metadata: operations(self.metadata_ops_per_s),
            ..AddedPhase::default()
        })
    }

    pub(crate) fn start_ns(self) -> u64 {
        self.start_ns
    }

    fn check(self) -> Result<(), CallError> {
        match self.reserved {
            [0, 0] => Ok(()),
            _ => Err(CallError::argument("reserved fields of a sluice_phase are not 0")),
        }
    }
}

impl SluiceDetails {
    pub(crate) fn of(found: &WireReservation) -> SluiceDetails {
        let next = found
            .phases
            .iter()
            .filter(|phase| phase.state == WireReservationState::Scheduled)
            .min_by_key(|phase| phase.start_ns);
        let because = found.reduced.as_ref().map_or("", |reduced| &reduced.because);
        SluiceDetails {
            struct_size: size_of::<SluiceDetails>(),
            id: found.id,
            state: state_number(found.state),
            reduced_ppm: found.reduced.as_ref().map_or(1_000_000, |reduced| reduced.ppm),
            start_ns: found.start_ns.unwrap_or(0),
            end_ns: found.end_ns.unwrap_or(0),
            guaranteed_ns: found.guaranteed_ns.unwrap_or(0),
            claim_by_ns: found.claim_by_ns.unwrap_or(0),
            claimed_ns: found.claimed_ns.unwrap_or(0),
            read_bytes_per_s: per_second(found.read),
            write_bytes_per_s: per_second(found.write),
            metadata_ops_per_s: per_second(found.metadata),
            used_bytes: found.used_bytes.unwrap_or(0),
            credit_bytes: found.credit.unwrap_or(0),
            phase_of: found.phase_of.unwrap_or(0),
            next_phase: next.map_or(0, |phase| phase.id),
            next_phase_start_ns: next.map_or(0, |phase| phase.start_ns),
            ended: text(found.ended.as_deref().unwrap_or("")),
            target: text(&found.target),
            reduced_because: text(because),
        }
    }
}

impl SluiceRefusal {
    pub(crate) fn of(refusal: &WireRefusal) -> SluiceRefusal {
        SluiceRefusal {
            struct_size: size_of::<SluiceRefusal>(),
            next_start_ns: refusal.next_start_ns.unwrap_or(0),
            fits_now_ppm: refusal.fits_now_ppm,
            reserved: 0,
            kind: text(&refusal.kind),
            bottleneck: text(&refusal.bottleneck),
            taken_by: text(&refusal.taken_by.join("; ")),
        }
    }
}

impl SluiceUsage {
    pub(crate) fn of(served: ServedUsage) -> SluiceUsage {
        SluiceUsage {
            struct_size: size_of::<SluiceUsage>(),
            read_bytes: served.read_bytes,
            written_bytes: served.written_bytes,
            delayed_ns: served.delayed_ns,
        }
    }
}

impl SluiceCredit {
    pub(crate) fn of(credit: &WireCredit) -> SluiceCredit {
        SluiceCredit {
            struct_size: size_of::<SluiceCredit>(),
            bytes: credit.bytes,
            outstanding_bytes: credit.outstanding_bytes,
            outstanding: credit.outstanding,
            reserved: 0,
        }
    }
}

/// `SLUICE_UNDEFINED`, `SLUICE_SCHEDULED` or `SLUICE_ACTIVE`.
pub(crate) fn state_number(state: WireReservationState) -> i32 {
    match state {
        WireReservationState::Undefined => 0,
        WireReservationState::Scheduled => 1,
        WireReservationState::Active => 2,
    }
}

/// A number of which 0 means that it is absent.
pub(crate) fn some(number: u64) -> Option<u64> {
    Some(number).filter(|number| *number != 0)
}

pub(crate) fn bytes(rate: u64) -> Option<WireRate> {
    some(rate).map(WireRate::Bytes)
}

pub(crate) fn operations(rate: u64) -> Option<WireRate> {
    some(rate).map(WireRate::Ops)
}

fn per_second(rate: Option<WireRate>) -> u64 {
    match rate {
        Some(WireRate::Bytes(rate) | WireRate::Ops(rate)) => rate,
        None => 0,
    }
}

/// Text with a NUL after it, cut between two characters if it is too long.
fn text<const N: usize>(from: &str) -> [u8; N] {
    let mut end = from.len().min(N - 1);
    while !from.is_char_boundary(end) {
        end -= 1;
    }
    let mut to = [0; N];
    to[..end].copy_from_slice(&from.as_bytes()[..end]);
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_is_too_long_is_cut_between_characters() {
        assert_eq!(text::<4>("ab"), *b"ab\0\0");
        assert_eq!(text::<4>("abcd"), *b"abc\0");
        assert_eq!(text::<4>("abä"), *b"ab\0\0");
    }
}
