//! What docs/RULES.md shows is true.

use model::OpKind;

use crate::RuleSet;

const DOCS: &str = include_str!("../../../../docs/RULES.md");

/// The texts between "```toml" and "```".
fn examples() -> impl Iterator<Item = &'static str> {
    DOCS.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next())
}

#[test]
fn every_example_is_accepted_and_none_of_its_rules_is_shadowed() {
    assert_eq!(examples().count(), 14);
    for example in examples() {
        let set = RuleSet::parse(example).unwrap_or_else(|e| panic!("{}", e.in_file("RULES.md")));
        assert_eq!(set.shadowed(), [], "{example}");
        assert_eq!(RuleSet::parse(&set.to_toml()).unwrap(), set);
    }
}

#[test]
fn the_error_at_the_top_is_what_is_printed() {
    let file = "[[rule]]\nname = \"a\"\nweight = 2\n\n[[rule]]\nname = \"b\"\nlimit = \"50 MB\"\n";
    assert!(DOCS.contains(&RuleSet::parse(file).unwrap_err().in_file("rules.toml")));
}

#[test]
fn the_bounds_and_kinds_are_those_of_the_code() {
    for (what, bound) in [
        ("rules", RuleSet::RULES_MAX),
        ("meters in the file", RuleSet::METER_RULES_MAX),
        ("decays in the file", RuleSet::DECAYS_MAX),
        ("meters that one request pays, its rule's limits included", RuleSet::METERS_MAX),
        ("directories named in all conditions together", RuleSet::PATHS_MAX),
    ] {
        assert!(DOCS.contains(&format!("| {what} | {bound} |")), "{what}");
    }
    for kind in OpKind::ALL {
        assert!(DOCS.contains(&format!("`{kind}`")), "{kind}");
    }
}
