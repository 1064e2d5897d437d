//! `sluice top --record` and `--play`: what was seen live is seen again.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::{SLUICE, Setup, until};
use crate::controlled::Reader;
use testkit::TestFolder;

const FRAMES: usize = 5;

fn sluice(args: &[&str]) -> (bool, String) {
    let out = Command::new(SLUICE).arg("top").args(args).output().unwrap();
    let text = if out.status.success() { out.stdout } else { out.stderr };
    (out.status.success(), String::from_utf8(text).unwrap())
}

/// The reports of a live session that is kept in `file`: as many as it takes until `FRAMES` of
/// them show the job at work, for one that waits for a processor has no rate. `None` if the
/// command ended before: it gives up a proxy that waits for one for seconds.
fn record(api: &str, file: &Path) -> Option<Vec<Value>> {
    let _ = fs::remove_file(file);
    let mut child = Command::new(SLUICE)
        .args(["top", "--json", "--interval", "100ms", "--proxy", api, "--record"])
        .arg(file)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (mut reports, mut at_work) = (Vec::new(), 0);
    for line in lines.map_while(Result::ok) {
        reports.push(serde_json::from_str(&line).unwrap());
        at_work += usize::from(reports.last().is_some_and(reads));
        if at_work == FRAMES {
            break;
        }
    }
    // Nobody reads the next line: it ends by itself, behind a whole frame.
    child.wait().unwrap();
    (at_work == FRAMES).then_some(reports)
}

/// Whether the job of a report's first row reads.
fn reads(report: &Value) -> bool {
    let row = &report["rows"][0];
    row["name"] == "dd.1" && row["read_bytes_per_s"].as_u64() > Some(0)
}

#[test]
fn a_session_is_kept_and_shown_again_with_the_same_figures_at_any_speed() {
    let proxy = Setup::new("top-record").api().start();
    let folder = TestFolder::new();
    let (file, api) =
        (folder.path().join("session"), format!("unix://{}", proxy.dir.join("api").display()));
    let _reader = Reader::of_job(&proxy, "dd.1", 1);
    let mut recorded = None;
    until("a session is recorded", || {
        recorded = record(&api, &file);
        recorded.is_some()
    });
    let live = recorded.unwrap();

    let path = file.to_str().unwrap();
    let (ok, played) = sluice(&["--play", path, "--json", "--speed", "10"]);
    // The last frame may have come after the last line that was read.
    assert!(ok, "{played}");
    let again: Vec<Value> =
        played.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(again[..live.len()], live);

    let (ok, table) = sluice(&["--play", path, "--once", "--by", "user"]);
    assert!(ok && table.lines().count() == 2 && table.starts_with("USER"), "{table}");
    let (ok, table) = sluice(&["--play", path, "--once"]);
    let row: Vec<_> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert!(ok && row[0] == "dd.1" && row[1] != "0", "{table}");

    let whole = fs::read(&file).unwrap();
    let (ok, told) = sluice(&["--once", "--proxy", &api, "--record", path]);
    assert!(!ok && told.contains(path), "{told}");
    assert!(fs::read(&file).unwrap() == whole, "a recording is not written over");

    // One that was cut off within a frame, and what is none.
    let cut = std::str::from_utf8(&whole[..whole.len() - 2]).unwrap();
    for (text, names) in [
        (cut, ""),
        ("", ""),
        ("{\"sluice_top\":9}\n", "9"),
        ("hello\n", "line 1"),
        ("{\"sluice_top\":1}\n", ""),
    ] {
        fs::write(&file, text).unwrap();
        let (ok, told) = sluice(&["--play", path, "--json", "--speed", "100"]);
        assert!(!ok && told.contains(names), "{text:?}: {told}");
    }
    let (ok, told) = sluice(&["--play", path, "--speed", "0"]);
    assert!(!ok && told.contains("--speed"), "{told}");
}
