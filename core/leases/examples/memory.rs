//! Memory of the leases of a proxy: grants a million, of 100 holders, and prints what they take.
//!
//!     cargo run --release -p sluice-leases --example memory

use model::{Nanos, Time};
use sluice_leases::{HolderId, LeaseKinds, LeaseTable, LeaseTerms, ObjectId};

const HOLDERS: u32 = 100;
const LEASES: u64 = 1_000_000;

fn main() {
    let now = Time::ZERO;
    let terms = LeaseTerms { peer_limit: Nanos::ZERO, ..LeaseTerms::default() };
    let mut table = LeaseTable::new(terms);
    table.confirm(Time::MAX);
    let before = resident();
    for holder in 1..=HOLDERS {
        table.join(HolderId(holder), 1, &[], now).expect("the place is confirmed");
    }
    let kinds = LeaseKinds::ATTRIBUTES.and(LeaseKinds::READ);
    for lease in 0..LEASES {
        let holder = HolderId((lease % u64::from(HOLDERS)) as u32 + 1);
        // Inode numbers come in no order.
        let object = ObjectId([1, lease.wrapping_mul(0x9e37_79b9_7f4a_7c15)]);
        let number = table.acquire(holder, 1, object, kinds, now);
        assert!(number.is_some(), "there is room for {LEASES} leases");
    }
    let bytes = resident() - before;
    println!("{} leases: {} MB, {} bytes each", table.len(), bytes / 1_000_000, bytes / LEASES);
}

/// Resident memory of the process in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("it is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it is there");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}
