//! Values that a part of all are below.

/// The value that a part of all are below: 0.5 is the median. Between two values it is linear.
pub(super) fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = part * last as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_between_the_values() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(
            [0.0, 0.25, 0.5, 1.0].map(|part| quantile(&values, part)),
            [1.0, 1.75, 2.5, 4.0]
        );
        assert!(quantile(&[], 0.5).is_nan());
    }
}
