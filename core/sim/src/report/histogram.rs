//! Spans counted in buckets that grow with them: exact to one part in 64.
//!
//! ```text
//!   0 1 2 … 63 │ 64 … 127 │ 128 130 … 254 │ 256 260 … │ …   64 buckets for each doubling
//! ```

/// A histogram of spans of time.
#[derive(Debug, Default)]
pub(super) struct SimHistogram {
    /// The counts, up to the largest span that was added.
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    max: u64,
}

const BITS: u32 = 6;

impl SimHistogram {
    pub(super) fn add(&mut self, value: u64) {
        let bucket = bucket_of(value);
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.count += 1;
        self.sum += u128::from(value);
        self.max = self.max.max(value);
    }

    pub(super) fn sum(&self) -> u128 {
        self.sum
    }

    pub(super) fn max(&self) -> u64 {
        self.max
    }

    /// The value that a fraction in millionths does not exceed; the middle of its bucket.
    pub(super) fn at_ppm(&self, ppm: u64) -> u64 {
        let rank = (u128::from(self.count) * u128::from(ppm)).div_ceil(1_000_000) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank && *count > 0 {
                return middle_of(bucket).min(self.max);
            }
        }
        self.max
    }
}

fn bucket_of(value: u64) -> usize {
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(BITS + 1);
    ((u64::from(shift) << BITS) + (value >> shift)) as usize
}

fn middle_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket >> BITS).saturating_sub(1);
    let low = (bucket - (shift << BITS)) << shift;
    low + ((1 << shift) - 1) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_within_a_64th_of_its_buckets_middle() {
        for value in (0..4096).chain((12..63).map(|bit| (1u64 << bit) + 12_345)) {
            let middle = middle_of(bucket_of(value));
            assert!(middle.abs_diff(value) <= value / 64, "{value} counts as {middle}");
        }
    }

    #[test]
    fn medians_and_tails_are_those_of_the_values() {
        let mut histogram = SimHistogram::default();
        (1..=1000).for_each(|value| histogram.add(value * 1_000_000));
        let near = |ppm, value: u64| histogram.at_ppm(ppm).abs_diff(value) <= value / 64;
        assert!(near(500_000, 500_000_000) && near(990_000, 990_000_000));
        assert_eq!((histogram.max(), histogram.sum() / 1000), (1_000_000_000, 500_500_000));
        assert_eq!(SimHistogram::default().at_ppm(500_000), 0);
    }
}
