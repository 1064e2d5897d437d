//! Service as a row of numbers, in the order of files and copies.
//!
//! ```text
//!   Service: 8 amounts, operations of each kind, sizes and order of reads and of writes
//! ```

use model::{Accesses, OpKind, Service};

/// Numbers of a row. A row of few is the beginning of one of more, so what files have keeps its
/// place.
pub(crate) const FIELDS: usize = TIMES + 2;
/// Numbers in the first form of a proxy's state.
pub(crate) const FIELDS_1: usize = LAST + 1;
/// Where operations end.
const LAST: usize = 5 + OpKind::COUNT;
/// Where times begin.
const TIMES: usize = FIELDS_1 + 2 * ACCESSES;
/// Fields of [`Accesses`].
const ACCESSES: usize = Accesses::SIZES + 1;

// one bit for each number in the mask of a row
const _: () = assert!(FIELDS < 64);

/// The numbers of a service.
pub(crate) fn fields(of: &Service) -> [u64; FIELDS] {
    let mut fields = [0; FIELDS];
    fields[..5].copy_from_slice(&[
        of.read_bytes,
        of.written_bytes,
        of.cost_ns,
        of.delayed,
        of.delayed_ns,
    ]);
    fields[5..LAST].copy_from_slice(&of.ops);
    fields[LAST] = of.delayed_bytes;
    fields[FIELDS_1..FIELDS_1 + ACCESSES].copy_from_slice(&of.reads.fields());
    fields[FIELDS_1 + ACCESSES..TIMES].copy_from_slice(&of.writes.fields());
    fields[TIMES..].copy_from_slice(&[of.active_ns, of.delayed_span_ns]);
    fields
}

/// The service of these numbers.
pub(crate) fn service(fields: [u64; FIELDS]) -> Service {
    let accesses =
        |from: usize| Accesses::from_fields(std::array::from_fn(|nth| fields[from + nth]));
    Service {
        read_bytes: fields[0],
        written_bytes: fields[1],
        cost_ns: fields[2],
        delayed: fields[3],
        delayed_ns: fields[4],
        ops: std::array::from_fn(|kind| fields[5 + kind]),
        delayed_bytes: fields[LAST],
        reads: accesses(FIELDS_1),
        writes: accesses(FIELDS_1 + ACCESSES),
        active_ns: fields[TIMES],
        delayed_span_ns: fields[TIMES + 1],
    }
}

/// A bit for each number that is not zero.
pub(crate) fn mask(fields: &[u64; FIELDS]) -> u64 {
    fields.iter().enumerate().fold(0, |mask, (i, field)| mask | (u64::from(*field != 0) << i))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::codec::{LedgerReader, put_sums};

    #[test]
    fn a_row_keeps_each_number_apart() {
        let numbers = std::array::from_fn(|i| if i % 3 == 0 { 0 } else { i as u64 * 1_000 });
        let sums = service(numbers);
        assert_eq!(fields(&sums), numbers);
        let mut out = Vec::new();
        put_sums(&mut out, &sums);
        assert_eq!(LedgerReader::new(&out).sums(), Ok(sums));
    }
}
