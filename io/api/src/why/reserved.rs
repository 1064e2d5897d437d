//! Reservations in the answer to "why am I slow?": those that serve the queried requests, and those
//! of others that leave a proxy a share of a target's slots.
//!
//! ```text
//!   row of a reservation at a proxy ─► WhyReservation: rate, share, what went by it
//!   share of a target's slots < 1 ───► WhyDivision ◄─ controller: the reservations that are active
//! ```

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::WireRate;

/// A reservation that serves requests of the queried subjects at one proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhyReservation {
    /// The proxy; empty in the reply of one proxy.
    #[serde(default)]
    pub proxy: String,
    /// The name of the target.
    pub target: String,
    /// The number of the reservation.
    pub id: u64,
    /// `read`, `write` or `metadata`.
    pub direction: String,
    /// The rate that is in force, over all proxies.
    pub rate: WireRate,
    /// The share of this proxy, in billionths.
    pub share_ppb: u32,
    /// The time until it ends; absent: until it is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_ns: Option<u64>,
    /// The job whose requests it serves; absent: all of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The user whose requests it serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// The directory to whose files it is limited, as `EXPORT/PATH`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// Bytes or operations that went by it at this proxy.
    pub served: u64,
    /// Bytes or operations of its direction that its requests' jobs had at this proxy in all, also
    /// before it began and beside it.
    pub total: u64,
}

/// A target whose slots are divided over its proxies while something is reserved there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhyDivision {
    /// The proxy; empty in the reply of one proxy.
    #[serde(default)]
    pub proxy: String,
    /// The name of the target.
    pub target: String,
    /// The share of the slots that this proxy has, in billionths.
    pub share_ppb: u32,
    /// The active reservations of the target that the caller may see; none in the reply of a proxy.
    #[serde(default)]
    pub holders: Vec<SlotHolder>,
    /// Active reservations of the target that are not listed.
    #[serde(default)]
    pub others: u64,
}

/// An active reservation of a target whose slots are divided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SlotHolder {
    /// The number of the reservation.
    pub id: u64,
    /// Its job, if it is limited to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The user who owns it.
    pub user: u32,
}

impl WhyReservation {
    /// The part of the rate that this proxy serves, in its unit a second.
    pub fn here_per_s(&self) -> u64 {
        let (WireRate::Bytes(per_s) | WireRate::Ops(per_s)) = self.rate;
        let here = u128::from(per_s) * u128::from(self.share_ppb) / 1_000_000_000;
        u64::try_from(here).unwrap_or(u64::MAX)
    }
}

impl WhyDivision {
    /// The most holders that are listed of one target.
    pub const HOLDERS_MAX: usize = 16;
}
