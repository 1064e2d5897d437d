//! One line of a proxy: its last reported service, and what of it is not summed yet.
//!
//! ```text
//!   100, then 130 reported ─► pending 30      130, then 20 reported ─► a restart: pending + 20
//! ```
//!
//! A million lines may be reported each second, so a line keeps only the fields that it ever had,
//! and adding to the sums of its subjects waits until they are read.

use model::Service;

use super::row::{self, FIELDS};
use super::subjects::LineSubjects;

/// The service of one proxy for one account.
pub(crate) struct LineCounters {
    pub(crate) id: u64,
    pub(crate) subjects: LineSubjects,
    /// The fields that were ever reported other than 0.
    mask: u64,
    /// The fields as last reported, then as many that are not summed yet.
    values: Box<[u64]>,
    /// Whether it is in its proxy's list of lines with something pending.
    pub(crate) is_pending: bool,
    /// The generation of copies in which it last changed.
    pub(crate) changed: u32,
    /// The generation in which it was first reported.
    pub(crate) defined: u32,
}

impl LineCounters {
    pub(crate) fn new(id: u64, subjects: LineSubjects, generation: u32) -> LineCounters {
        LineCounters {
            id,
            subjects,
            mask: 0,
            values: Box::default(),
            is_pending: false,
            changed: generation,
            defined: generation,
        }
    }

    /// Takes reported service. Adds what is new to `news` and returns whether there is any.
    pub(crate) fn add_report(&mut self, told: &Service, news: &mut [u64; FIELDS]) -> bool {
        let fields = row::fields(told);
        self.widen(row::mask(&fields));
        let (last, pending) = self.values.split_at_mut(self.mask.count_ones() as usize);
        let restarted = bits(self.mask).zip(&*last).any(|(bit, last)| fields[bit] < *last);
        let mut any = false;
        for ((bit, last), pending) in bits(self.mask).zip(last).zip(pending) {
            let now = fields[bit];
            let more = if restarted { now } else { now - *last };
            *last = now;
            *pending = pending.saturating_add(more);
            news[bit] = news[bit].saturating_add(more);
            any |= more != 0;
        }
        any
    }

    /// Takes reported service as summed already.
    pub(crate) fn adopt(&mut self, told: &Service) {
        self.restore(told, &Service::default());
    }

    /// Takes both halves as they were.
    pub(crate) fn restore(&mut self, last: &Service, pending: &Service) {
        let (last, pending) = (row::fields(last), row::fields(pending));
        self.widen(row::mask(&last) | row::mask(&pending));
        let (own_last, own_pending) = self.values.split_at_mut(self.mask.count_ones() as usize);
        for ((bit, own_last), own_pending) in bits(self.mask).zip(own_last).zip(own_pending) {
            (*own_last, *own_pending) = (last[bit], pending[bit]);
        }
    }

    /// Returns what is not summed yet: the mask of fields, and their values.
    pub(crate) fn pending(&self) -> (u64, &[u64]) {
        (self.mask, &self.values[self.mask.count_ones() as usize..])
    }

    /// Marks it as summed.
    pub(crate) fn clear_pending(&mut self) {
        self.values[self.mask.count_ones() as usize..].fill(0);
        self.is_pending = false;
    }

    /// Returns both halves: as last reported, and not summed yet.
    pub(crate) fn halves(&self) -> (Service, Service) {
        let (last, pending) = self.values.split_at(self.mask.count_ones() as usize);
        let wide = |values: &[u64]| {
            let mut fields = [0; FIELDS];
            bits(self.mask).zip(values).for_each(|(bit, value)| fields[bit] = *value);
            row::service(fields)
        };
        (wide(last), wide(pending))
    }

    /// Makes room for fields that were 0 until now.
    fn widen(&mut self, mask: u64) {
        if mask & !self.mask == 0 {
            return;
        }
        let (last, pending) = self.halves();
        self.mask |= mask;
        let pick = |service: Service| {
            let fields = row::fields(&service);
            bits(self.mask).map(move |bit| fields[bit])
        };
        self.values = pick(last).chain(pick(pending)).collect();
    }
}

/// Returns the positions of set bits, lowest first.
fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = mask.trailing_zeros() as usize;
        let found = mask != 0;
        mask &= mask.wrapping_sub(1);
        found.then_some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(read_bytes: u64, delayed: u64) -> Service {
        Service { read_bytes, delayed, ..Service::default() }
    }

    fn pending_after(tales: &[Service]) -> Service {
        let mut line = LineCounters::new(1, [None; 6], 0);
        tales.iter().for_each(|tale| {
            line.add_report(tale, &mut [0; FIELDS]);
        });
        line.halves().1
    }

    #[test]
    fn what_is_pending_is_the_sum_of_differences() {
        assert_eq!(pending_after(&[told(100, 0), told(130, 2), told(130, 7)]), told(130, 7));
    }

    #[test]
    fn a_lower_value_is_a_restart_of_the_whole_line() {
        assert_eq!(pending_after(&[told(100, 5), told(20, 5)]), told(120, 10));
        assert_eq!(pending_after(&[told(100, 5), Service::default(), told(1, 1)]), told(101, 6));
    }

    #[test]
    fn a_field_that_appears_late_moves_none_of_the_others() {
        let mut line = LineCounters::new(1, [None; 6], 0);
        let mut news = [0; FIELDS];
        line.add_report(&told(0, 9), &mut news);
        line.clear_pending();
        line.add_report(&told(50, 10), &mut news);
        assert_eq!(line.halves(), (told(50, 10), told(50, 1)));
        assert_eq!(row::service(news), told(50, 10));
    }
}
