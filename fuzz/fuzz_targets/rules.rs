//! Any text as a rule file, the way SIGHUP and `sluice rule` bring it.
//!
//! What is accepted prints as a text that gives the same set, and no request has to
//! pay more meters than the dispatcher keeps room for; each of its rules can be edited or
//! is refused to be. What is refused is shown at a place that the text has.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_model::{Identity, JobId, Nid, OpKind, PathSet};
use sluice_rules::{KeyEdit, RuleEdit, RuleFileError, RulePosition, RuleSet};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let set = match RuleSet::parse(text) {
        Ok(set) => set,
        Err(error) => return check_place(text, &error),
    };
    assert_eq!(RuleSet::parse(&set.to_toml()).as_ref(), Ok(&set));
    for shadowed in set.shadowed() {
        assert!(shadowed.by < shadowed.rule && shadowed.rule < set.rules.len());
    }
    check_meters(&set);
    check_edits(text, &set);
});

fn check_place(text: &str, error: &RuleFileError) {
    let excerpt = &error.excerpt;
    let line = text.split('\n').nth(excerpt.line - 1).expect("the text has this line");
    assert!(line.starts_with(&excerpt.text));
    assert!(excerpt.column <= excerpt.text.chars().count() + 1);
    assert!(excerpt.width >= 1 && error.to_string().ends_with('^'));
}

/// An edit compares what comes out with what went in, and so checks itself.
fn check_edits(text: &str, set: &RuleSet) {
    for rule in set.rules.iter().take(4) {
        let name = &rule.name;
        let keys = [("weight", Some("7".into())), ("limit", None)];
        let keys = keys.map(|(key, value)| KeyEdit { key, value }).to_vec();
        for edit in [
            RuleEdit::Stop { name: name.clone() },
            RuleEdit::Rank { name: name.clone(), position: RulePosition::First },
            RuleEdit::Change { name: name.clone(), keys: keys.clone() },
            RuleEdit::Start { name: format!("{name}2"), keys, position: RulePosition::Last },
        ] {
            let _ = edit.apply(text);
        }
    }
}

fn check_meters(set: &RuleSet) {
    for (job, uid, nid) in [("", 0, Nid::local()), ("dd.500", 500, Nid::tcp([192, 0, 2, 7].into()))]
    {
        let job = JobId::new(job).expect("a job's name");
        let who = Identity { job, uid, gid: uid, projid: None, nid };
        for paths in [PathSet(0), PathSet(u64::MAX), set.path_set(b"/a/b")] {
            for kind in OpKind::ALL.iter().copied() {
                let rule = set.rule_for(&who, kind, paths).map(|rule| &set.rules[rule]);
                let limits = rule.into_iter().flat_map(|rule| rule.ceilings());
                let own = limits.filter(|limit| limit.kinds.contains(kind)).count();
                let others = set.meters_for(&who, kind, paths).count();
                assert!(own + others <= RuleSet::METERS_MAX, "{own} and {others} of a {kind}");
            }
        }
    }
}
