//! Every scenario of the project comes true, under every scheduler that it names.
//!
//! `SLUICE_SCENARIO=name cargo test -p sluice-sim --test all scenarios -- --nocapture` runs one and
//! prints what it found.

use std::path::{Path, PathBuf};

use sluice_sim::{Scenario, World, judge};

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let entries = std::fs::read_dir(&folder).expect("the folder of scenarios");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    files
}

#[test]
fn every_scenario_comes_true() {
    let only = std::env::var("SLUICE_SCENARIO").ok();
    let mut wrong = Vec::new();
    let mut ran = 0;
    for file in files() {
        let name = file.file_stem().expect("a name").to_string_lossy().into_owned();
        if only.as_ref().is_some_and(|only| *only != name) {
            continue;
        }
        let text = std::fs::read_to_string(&file).expect("a readable file");
        let scenario = Scenario::parse(&text, &name).unwrap_or_else(|error| panic!("{error}"));
        assert!(!scenario.expected().is_empty(), "{name} expects nothing");
        let run = |policy: &_| World::new(&scenario, *policy, scenario.seed).run();
        let reports: Vec<_> = scenario.policies.iter().map(run).collect();
        ran += 1;
        println!("{name}");
        for verdict in judge(&scenario, &reports) {
            println!("    {verdict}");
            if !verdict.met {
                wrong.push(format!("{name}: {verdict}"));
            }
        }
        for violation in reports.iter().flat_map(|report| &report.violations) {
            println!("    {violation}");
            wrong.push(format!("{name}: {violation}"));
        }
    }
    assert!(ran > 0, "no scenario is called {only:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
