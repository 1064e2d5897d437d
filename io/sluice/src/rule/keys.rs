//! Converts the flags of `start` and `change` to lines of a rule file, with `api::key_edit`.

use api::key_edit;
use rules::KeyEdit;

/// The keys of a rule; `none` removes a key.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Keys of the rule (docs/RULES.md)")]
pub(super) struct RuleKeyArgs {
    /// Condition on requests: 'jobid={dd.* cp.*}&uid={500}', or '*' for all.
    #[arg(long = "match", value_name = "CONDITION")]
    condition: Option<String>,
    /// Fields whose distinct values make a class each: jobid, uid, gid, projid, nid, opcode,
    /// separated by commas [default: none, one class]
    #[arg(long, value_name = "FIELDS")]
    per: Option<String>,
    /// Relative claim on the service that reservations leave, 1 to 1000000 [default: 1, with
    /// --spare the rate]
    #[arg(long, value_name = "N")]
    weight: Option<String>,
    /// Guaranteed rate of each class, such as 50MB/s or 500ops/s.
    #[arg(long, value_name = "RATE")]
    reservation: Option<String>,
    /// Part of the device time of a reservation in bytes that requests without bytes, such as
    /// opens, may take before others: 0% to 100% [default: 10%]
    #[arg(long, value_name = "PART")]
    reservation_metadata: Option<String>,
    /// Highest rates of each class: 100MB/s, or by kind of request
    /// read=100MB/s,metadata=1kops/s,burst=1s, or TOML [default burst: 100ms, --realtime: 500ms]
    #[arg(long, value_name = "RATES")]
    limit: Option<String>,
    /// Limit that is also a reservation of its rate; --realtime=none removes it.
    #[arg(long, value_name = "true|none", num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    realtime: Option<String>,
    /// Limit that is a reservation and not a ceiling: spare service is divided in proportion to
    /// rates; --spare=none removes it.
    #[arg(long, value_name = "true|none", num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    spare: Option<String>,
    /// Rule on which the limit depends, and how: RULE,when_idle=500ms, RULE,follow=50% or
    /// RULE,remainder_of=2GB/s; with min=10MB/s as the lowest limit.
    #[arg(long, value_name = "RULE,KEY=VALUE")]
    depends_on: Option<String>,
    /// Maximum number of device slots that each class uses at once [default: all]
    #[arg(long, value_name = "N")]
    slots: Option<String>,
    /// Number of device slots that are kept free for reservations [default: 0]
    #[arg(long, value_name = "N")]
    reserved_slots: Option<String>,
    /// Part of its service that a class keeps at each proxy, whatever service it had at other
    /// proxies: 0% to 100% [default: 0%]
    #[arg(long, value_name = "PART")]
    min_local_service: Option<String>,
    /// Mode of writes at the backend: direct, dontcache, paced or cached [default: the target's]
    #[arg(long, value_name = "MODE")]
    write_mode: Option<String>,
    /// Maximum number of classes that --per makes; with --per, a reservation requires it.
    #[arg(long, value_name = "N")]
    max_classes: Option<String>,
}

impl RuleKeyArgs {
    /// Returns the keys to set and to remove.
    pub(super) fn edits(&self) -> Vec<KeyEdit> {
        let all = [
            ("match", &self.condition),
            ("per", &self.per),
            ("weight", &self.weight),
            ("reservation", &self.reservation),
            ("reservation_metadata", &self.reservation_metadata),
            ("limit", &self.limit),
            ("realtime", &self.realtime),
            ("spare", &self.spare),
            ("depends_on", &self.depends_on),
            ("slots", &self.slots),
            ("reserved_slots", &self.reserved_slots),
            ("min_local_service", &self.min_local_service),
            ("write_mode", &self.write_mode),
            ("max_classes", &self.max_classes),
        ];
        let given = all.into_iter().filter_map(|(key, flag)| Some((key, flag.as_deref()?)));
        given.map(|(key, flag)| key_edit(key, flag).expect("it is a key of a rule")).collect()
    }

    pub(super) fn has_condition(&self) -> bool {
        self.condition.is_some()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rules::{RuleEdit, RulePosition};

    use super::*;

    #[derive(Debug, Parser)]
    struct RuleKeysCli {
        #[command(flatten)]
        keys: RuleKeyArgs,
    }

    fn edits(flags: &[&str]) -> Vec<KeyEdit> {
        RuleKeysCli::try_parse_from(["start"].iter().chain(flags)).unwrap().keys.edits()
    }

    fn started(flags: &[&str]) -> String {
        let (name, keys) = ("x".into(), edits(flags));
        let edit = RuleEdit::Start { name, keys, position: RulePosition::Last };
        edit.apply("[[rule]]\nname = \"ckpt\"\nmatch = \"uid={1}\"\n").unwrap()
    }

    #[test]
    fn flags_become_the_lines_of_a_rule_file() {
        let text = started(&[
            "--max-classes",
            "8",
            "--match",
            "jobid={'a \"b'}&uid={5 6}",
            "--per",
            "jobid, uid",
            "--weight",
            "4",
            "--reservation",
            "5MB/s",
            "--reservation-metadata",
            "25%",
            "--limit",
            "100MB/s",
            "--slots",
            "2",
            "--write-mode",
            "paced",
            "--depends-on",
            "ckpt,when_idle=500ms,min=10MB/s",
        ]);
        let expected = "\n[[rule]]\nname = \"x\"\nmatch = \"jobid={'a \\\"b'}&uid={5 6}\"\n\
                        per = [\"jobid\", \"uid\"]\nweight = 4\nreservation = \"5MB/s\"\n\
                        reservation_metadata = \"25%\"\nlimit = \"100MB/s\"\n\
                        depends_on = { rule = \"ckpt\", when_idle = \"500ms\", min = \"10MB/s\" }\n\
                        slots = 2\nwrite_mode = \"paced\"\nmax_classes = 8\n";
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn a_limit_may_be_one_several_by_kind_or_toml() {
        for (flag, value) in [
            ("100MB/s", "\"100MB/s\""),
            ("100MB/s, 5kops/s", "[\"100MB/s\", \"5kops/s\"]"),
            ("read=1MB/s,burst=1s", "{ read = \"1MB/s\", burst = \"1s\" }"),
            ("1MB/s,create=5ops/s", "{ all = \"1MB/s\", create = \"5ops/s\" }"),
            ("[\"1MB/s\"]", "[\"1MB/s\"]"),
        ] {
            let text = started(&["--limit", flag]);
            assert!(text.ends_with(&format!("\nlimit = {value}\n")), "{text}");
        }
    }

    #[test]
    fn a_limit_may_be_promised_until_that_is_ended() {
        let text = started(&[
            "--limit",
            "9ops/s",
            "--realtime",
            "--reserved-slots",
            "2",
            "--min-local-service",
            "50%",
        ]);
        let expected = "limit = \"9ops/s\"\nrealtime = true\nreserved_slots = 2\nmin_local_service = \"50%\"\n";
        assert!(text.ends_with(expected), "{text}");
        assert!(started(&["--limit", "9ops/s", "--spare"]).ends_with("\nspare = true\n"));
        let (none, spare) = (edits(&["--spare=none"]), KeyEdit { key: "spare", value: None });
        assert_eq!(none, [spare]);
    }

    #[test]
    fn none_takes_a_key_away_and_what_is_not_named_stays() {
        let none = KeyEdit { key: "limit", value: None };
        assert_eq!(edits(&["--limit", "none"]), [none]);
        assert_eq!(edits(&[]), []);
    }

    #[test]
    fn what_is_no_number_is_shown_by_the_parser_in_its_line() {
        let keys = edits(&["--weight", "many"]);
        let edit = RuleEdit::Start { name: "x".into(), keys, position: RulePosition::First };
        let error = edit.apply("").unwrap_err().to_string();
        assert!(
            error.contains("3:10: weight must be a whole number such as 4, not a text"),
            "{error}"
        );
        assert!(error.ends_with("  3 | weight = \"many\"\n    |          ^^^^^^"), "{error}");
    }
}
