//! Sizes and order of reads or writes, as in reports of proxies and tables.

use model::Accesses;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Sizes and order of reads or writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireAccesses {
    /// The number that moved less than 4 KiB, less than 64 KiB, less than 1 MiB, and more.
    pub sizes: [u64; Accesses::SIZES],
    /// The number that did not begin where a recent one through the same open file ended.
    pub random: u64,
}

impl From<Accesses> for WireAccesses {
    fn from(Accesses { sizes, random }: Accesses) -> WireAccesses {
        WireAccesses { sizes, random }
    }
}

impl From<WireAccesses> for Accesses {
    fn from(WireAccesses { sizes, random }: WireAccesses) -> Accesses {
        Accesses { sizes, random }
    }
}
