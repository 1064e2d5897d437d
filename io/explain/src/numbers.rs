//! Rounded numbers for people: three digits and a unit.

/// Formats bytes with a decimal unit and three digits, such as `1.23 GB`.
pub fn amount(bytes: u64) -> String {
    scaled(bytes, &["B", "kB", "MB", "GB", "TB", "PB", "EB"])
}

/// Formats bytes or operations per second, such as `20.0 MB/s` or `150 ops/s`.
pub fn per_second(units: u64, in_bytes: bool) -> String {
    match in_bytes {
        true => format!("{}/s", amount(units)),
        false => {
            scaled(units, &["ops/s", "kops/s", "Mops/s", "Gops/s", "Tops/s", "Pops/s", "Eops/s"])
        }
    }
}

/// Formats a part of a whole, such as `99 %`.
pub fn percent(part: u64, whole: u64) -> String {
    let percent = (u128::from(part) * 100).checked_div(u128::from(whole)).unwrap_or(0);
    format!("{percent} %")
}

/// Formats a span of time in one unit or two, such as `3.41 ms`, `12.0 s` or `2 h 05 min`.
pub fn span(nanos: u64) -> String {
    let seconds = nanos / 1_000_000_000;
    match nanos {
        0..1_000_000_000 => scaled_by(nanos, 1_000, &["ns", "µs", "ms"]),
        1_000_000_000..60_000_000_000 => scaled_by(nanos / 1_000_000, 1_000, &["ms", "s"]),
        60_000_000_000..3_600_000_000_000 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        3_600_000_000_000..86_400_000_000_000 => {
            format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60)
        }
        _ => format!("{} d {:02} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

fn scaled(count: u64, units: &[&str]) -> String {
    scaled_by(count, 1_000, units)
}

/// Formats three digits and a unit; counts of the first unit are whole numbers.
fn scaled_by(count: u64, step: u64, units: &[&str]) -> String {
    let mut size = 1u64;
    let mut at = 0;
    while at + 1 < units.len() && count / size >= step {
        size *= step;
        at += 1;
    }
    let hundredths = u128::from(count) * 100 / u128::from(size);
    let (whole, rest) = (hundredths / 100, hundredths % 100);
    match (at, whole) {
        (0, _) => format!("{count} {}", units[0]),
        (_, 0..10) => format!("{whole}.{rest:02} {}", units[at]),
        (_, 10..100) => format!("{whole}.{} {}", rest / 10, units[at]),
        _ => format!("{whole} {}", units[at]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let amounts = [0, 999, 1_000, 12_345, 999_999, 20_000_000].map(amount);
        assert_eq!(amounts, ["0 B", "999 B", "1.00 kB", "12.3 kB", "999 kB", "20.0 MB"]);
        let spans =
            [0, 999, 1_500, 61_000_000_000, 3_600_000_000_000, 90_000_000_000_000].map(span);
        assert_eq!(spans, ["0 ns", "999 ns", "1.50 µs", "1 min 01 s", "1 h 00 min", "1 d 01 h"]);
    }
}
