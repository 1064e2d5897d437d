//! What a rule set is written as.

use crate::RuleSet;

/// A file in its canonical form: it is written as it was read.
const CANONICAL: &str = r#"[[rule]]
name = "checkpoint"
match = "jobid={ckpt.* \"a b\"}&opcode={write}&path={/scratch}"
per = ["jobid"]
weight = 4
reservation = "50MB/s"
limit = "100MB/s"
slots = 3
write_mode = "direct"
max_classes = 8

[[rule]]
name = "table"
limit = { metadata = "1kops/s", read = "100MB/s", create = "10ops/s" }

[[rule]]
name = "list"
limit = ["1MB/s", { kinds = ["read", "metadata"], rate = "9ops/s", burst = "3ops" }]

[[rule]]
name = "both"
limit = ["1MB/s", "10ops/s"]

[[rule]]
name = "follows"
limit = "50MB/s"
depends_on = { rule = "table", follow = "12.5%", min = "1MB/s" }

[[rule]]
name = "complements"
limit = "500ops/s"
depends_on = { rule = "follows", remainder_of = "1kops/s", min = "5ops/s" }

[[rule]]
name = "gated"
limit = "500ops/s"
depends_on = { rule = "complements", when_idle = "500ms", min = "5ops/s" }

[[rule]]
name = "burst"
limit = { rate = "1MB/s", burst = "64KiB" }

[[meter]]
name = "users"
match = "uid={500 1000},gid={-1}"
per = ["uid"]
kinds = ["create", "mkdir"]
rate = "50ops/s"
burst = "5ops"
"#;

#[test]
fn a_canonical_file_is_written_as_it_was_read() {
    assert_eq!(RuleSet::parse(CANONICAL).unwrap().to_toml(), CANONICAL);
}

#[test]
fn other_spellings_are_written_canonically() {
    let text = "meter = [{ name = 'm', rate = '1000 ops/s', kinds = ['all'], burst = '1s' }]\n\
                [[rule]]\nname = \"r\"\nmatch = 'uid={0x10,1}'\nweight = 1\nper = []\n\
                limit = { all = '1000kB/s', write = '1MB/s' }\n";
    assert_eq!(
        RuleSet::parse(text).unwrap().to_toml(),
        "[[rule]]\nname = \"r\"\nmatch = \"uid={16 1}\"\n\
         limit = { all = \"1MB/s\", write = \"1MB/s\" }\n\
         \n\
         [[meter]]\nname = \"m\"\nrate = \"1kops/s\"\nburst = \"1kops\"\n"
    );
}

#[test]
fn an_empty_set_is_an_empty_file() {
    assert_eq!(RuleSet::default().to_toml(), "");
}
