//! The rules that the demo puts in force: what an administrator would write who has
//! seen in `sluice top` what the bully takes.
//!
//! A weight says who goes first while both wait. It cannot give back what the bully
//! uses up beside the queue, above all the processors that copy its bytes and a device
//! that is busy with them, so the bully gets a limit as well.

/// The text of the rule file, after the bully took `mb_per_sec` without rules.
pub(super) fn text(mb_per_sec: f64) -> String {
    let limit = limit_mb(mb_per_sec);
    format!(
        "[[rule]]
name = \"victim\"
match = \"jobid={{victim}}\"
weight = 8                        # while both wait, it goes first eight times of nine

[[rule]]
name = \"bully\"
match = \"jobid={{bully}}\"
weight = 1
limit = {{ write = \"{limit}MB/s\" }}    # a fifth of what it took without rules
"
    )
}

/// A fifth, in a round figure, as a person would write it: one digit and zeros.
fn limit_mb(mb_per_sec: f64) -> u64 {
    let fifth = (mb_per_sec / 5.0).max(1.0);
    let unit = 10f64.powf(fifth.log10().floor());
    ((fifth / unit).round() * unit) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_a_fifth_in_a_round_figure_and_never_nothing() {
        let cases = [(2030.0, 400), (1157.0, 200), (97.0, 20), (480.0, 100), (12.0, 2), (0.0, 1)];
        for (took, limit) in cases {
            assert_eq!(limit_mb(took), limit, "{took}");
        }
    }

    #[test]
    fn the_rule_parser_takes_the_text() {
        let rules = rules::RuleSet::parse(&text(2030.0)).unwrap();
        assert_eq!(rules.rules.len(), 2);
    }
}
