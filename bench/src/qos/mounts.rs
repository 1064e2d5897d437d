//! The guarantees as programs on mounts see them.
//!
//!   return     from a killed proxy's return to the first call that ends well
//!
//! The kernel and `sluice mount` are in between, and everything shares this machine's processors.

mod returns;

use super::QosRun;
use super::table::QosTable;

/// Measures the return of a proxy.
pub(crate) fn measure(run: &QosRun<'_>, table: &mut QosTable) -> anyhow::Result<()> {
    returns::measure(run, table)
}
