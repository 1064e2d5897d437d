//! The README, docs/CONTROLLER.md, docs/MOUNT.md, docs/RESERVATIONS.md and docs/RULES.md are typed as they stand, and what
//! they say is seen comes true.
//!
//! ```text
//!   document ─► blocks ─► typed::Shell ─► the status of each command
//!                  └─► facts: sluice top --json, sluice usage --json, … ─► as the text says
//! ```

use serde_json::Value;

use crate::typed::markdown::Block;
use crate::typed::{Shell, Untyped, typed_blocks};

/// Types the blocks of the sections that are wanted, with `before` and `after` each.
fn play(
    shell: &Shell,
    (document, pictures, untyped): (&str, &[&str], Untyped),
    sections: &[&str],
    before: impl Fn(&Block),
    after: impl Fn(&Block),
) {
    let blocks = typed_blocks(document, pictures, untyped);
    let blocks: Vec<_> =
        blocks.iter().filter(|block| sections.contains(&block.section.as_str())).collect();
    for section in sections {
        assert!(blocks.iter().any(|block| block.section == *section), "{document}: {section}");
    }
    for block in blocks {
        before(block);
        if shell.type_in(document, block, untyped) {
            after(block);
        }
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or(Value::Null)
}

/// The row of a name in what `--json` printed.
fn row(text: &str, name: &str) -> Value {
    let rows = json(text)["rows"].as_array().cloned().unwrap_or_default();
    rows.into_iter().find(|row| row["name"] == name).unwrap_or_default()
}

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or(0)
}

const TOP: &str = "sluice top --once --json";

/// Waits until a job writes, as fast as may be or held to so much a second.
fn until_it_writes(shell: &Shell, job: &str, held_to: Option<u64>) {
    let what = format!("{job} writes, {held_to:?}");
    shell.until(&what, TOP, |text| {
        let row = row(text, job);
        let written = number(&row, "written_bytes_per_s");
        // A block more or less of 1 MiB in the second that is looked at.
        let held = held_to.is_none_or(|rate| written <= rate + rate / 5);
        written > 0 && held && row["throttled"] == held_to.is_some()
    });
}

fn until_all_is_over(shell: &Shell) {
    shell.until("all jobs of the shell have ended", "jobs -r", str::is_empty);
    let (_, mounts) = shell.ask("cat /proc/self/mounts");
    // Elsewhere are those that this machine had when the shell was given a table of its own.
    let of_shell = |line: &str| line.contains(" /mnt/") && line.contains("fuse.sluice");
    assert!(!mounts.lines().any(of_shell), "{mounts}");
}

const README: (&str, &[&str], Untyped) = (
    "README.md",
    &["programs ─►"],
    &[
        ("make demo", "it takes minutes and has a test of its own"),
        ("make build", "what is tested is built already"),
        ("mount -t 9p", "needs the kernel's 9P client, which has tests of its own"),
    ],
);

#[test]
fn the_readme_tries_it_as_it_says() {
    let Some(shell) = Shell::start() else { return };
    play(
        &shell,
        README,
        &["Try it"],
        |_| {},
        |block| {
            let has = |text: &str| block.text.contains(text);
            if has("SLURM_JOB_ID=post3") {
                until_it_writes(&shell, "ckpt17", None);
                shell
                    .until("post3 lists", TOP, |text| number(&row(text, "post3"), "ops_per_s") > 0);
            } else if has("sluice rule import rules.toml") {
                until_it_writes(&shell, "ckpt17", Some(50_000_000));
            } else if has("kill -9") {
                until_it_writes(&shell, "ckpt17", Some(50_000_000));
                shell.until("post3 goes on", TOP, |text| {
                    number(&row(text, "post3"), "ops_per_s") > 0
                });
            } else if has("sluice umount") {
                until_all_is_over(&shell);
            }
        },
    );
}

#[test]
fn the_readme_holds_many_proxies_to_one_limit() {
    let Some(shell) = Shell::start() else { return };
    play(
        &shell,
        README,
        &["Many proxies, one limit"],
        |_| {},
        |block| {
            let has = |text: &str| block.text.contains(text);
            if has("$(seq 16)") {
                until_it_writes(&shell, "ckpt17", Some(100_000_000));
                shell.until(
                    "both proxies carry streams",
                    "sluice usage --by proxy --json",
                    |text| {
                        ["a", "b"].iter().all(|name| number(&row(text, name), "written_bytes") > 0)
                    },
                );
                let (_, why) = shell.ask("SLURM_JOB_ID=ckpt17 cat /mnt/data/.sluice/why");
                assert!(why.contains("limit of rule jobs"), "{why}");
            } else if has("[[decay]]") {
                shell.until("who wrote too much is held", "sluice events --since 1h", |text| {
                    text.contains("writers of uid=0")
                });
                until_it_writes(&shell, "ckpt17", Some(2_000_000));
            } else if has("sluice umount") {
                until_all_is_over(&shell);
            }
        },
    );
}

#[test]
fn the_readme_has_no_section_that_nobody_types() {
    let typed = ["", "Try it", "Many proxies, one limit", "One measurement"];
    for block in typed_blocks(README.0, README.1, README.2) {
        assert!(typed.contains(&block.section.as_str()), "{block:?}");
    }
}

const CONTROLLER: (&str, &[&str], Untyped) = (
    "docs/CONTROLLER.md",
    &["job ─► proxy a"],
    &[
        ("sluice controller --data DIR --on-event", "names a program that a site has"),
        ("sluice controller --data DIR --store", "needs an etcd of three members"),
        ("sluice proxy … --controller http://C1", "needs an etcd of three members"),
    ],
);

#[test]
fn a_controller_is_there_in_ten_minutes() {
    let Some(shell) = Shell::start() else { return };
    shell.must("mkdir -p /mnt/scratch /mnt/x", "a file system that both proxies see");
    let sections = [
        "Start",
        "One limit",
        "Proxies and usage",
        "Decays and events",
        "Delays",
        "The page",
        "Several controllers",
    ];
    play(
        &shell,
        CONTROLLER,
        &sections,
        |_| {},
        |block| {
            if block.text.contains("--name b") {
                let mount = "sluice mount tcp://127.0.0.1:5641/x,tcp://127.0.0.1:5642/x /mnt/x";
                shell.must(mount, "it is mounted");
                let write =
                    "SLURM_JOB_ID=1234 dd if=/dev/zero of=/mnt/x/f bs=1M count=20 conv=fsync";
                shell.must(write, "a job writes");
                let report = "sluice report --job 1234 --controller http://127.0.0.1:5650";
                shell.until("the job is in the ledger", report, |text| text.contains("Job 1234"));
            } else if block.text.contains("rule change") {
                let (_, list) = shell.ask("sluice rule list");
                assert!(list.contains("100MB/s"), "{list}");
            } else if block.text.contains("/v1/rules/edits") {
                let (_, list) = shell.ask("sluice rule list");
                assert!(list.contains("jobid={dd.*}"), "{list}");
            }
        },
    );
    let (there, _) = shell.ask("test -s 1234.svg");
    assert!(there);
}

#[test]
fn other_machines_reach_a_controller_over_tls_with_tokens() {
    let Some(shell) = Shell::start() else { return };
    shell.must("mkdir -p /mnt/scratch", "a file system that the proxy sees");
    play(&shell, CONTROLLER, &["Other machines"], |_| {}, |_| {});
    let ask = "sluice rule list --controller https://c1.site:5650 --ca /etc/sluice/tls/ca.pem";
    assert!(!shell.ask(ask).0, "without a token nobody is answered");
    let ask = format!("{ask} --token-file root.token --json");
    shell.until("with one there is an answer", &ask, |text| !text.is_empty());
}

const RESERVATIONS: (&str, &[&str], Untyped) =
    ("docs/RESERVATIONS.md", &["sluice reserve add ─►", "RESOURCE   14:00:00"], &[]);

#[test]
fn bandwidth_is_reserved_in_ten_minutes() {
    let Some(shell) = Shell::start() else { return };
    let sections = [
        "Start",
        "Reserve and use",
        "Later, or never",
        "In a batch script",
        "Phases",
        "The page",
        "qosp",
    ];
    let document = typed_blocks(RESERVATIONS.0, RESERVATIONS.1, RESERVATIONS.2);
    assert!(document.iter().all(|block| sections.contains(&block.section.as_str())));
    let reservations = |query: &str| {
        let (_, list) = shell.ask(&format!("sluice reserve list --json {query}"));
        json(&list)["reservations"].as_array().cloned().unwrap_or_default()
    };
    let before = |block: &Block| {
        if block.text.contains("--job 4711 --wait") {
            // The proxy reports what its target gives some moments after its start.
            let calendar = "sluice reserve calendar --json";
            shell.until("the calendar has the target", calendar, |text| {
                json(text)["resources"].as_array().is_some_and(|all| !all.is_empty())
            });
        }
    };
    play(&shell, RESERVATIONS, &sections, before, |block| {
        let has = |text: &str| block.text.contains(text);
        if has("--job 4711 --wait") {
            let held = reservations("--job 4711");
            assert_eq!((held.len(), &held[0]["state"]), (1, &Value::from("ACTIVE")), "{held:?}");
        } else if has("# refused") {
            let status = |rate: &str| {
                let add = format!("sluice reserve add --bandwidth {rate} --direction write");
                shell.ask(&format!("{add} --for 10min --at 1h; echo $?")).1
            };
            assert_eq!((status("60MB/s").trim(), status("90MB/s").trim()), ("3", "4"));
        } else if has("reserve finish") {
            assert_eq!(reservations("--job 4712"), [] as [Value; 0]);
        } else if has("phases.toml") {
            let held = reservations("--job 4714");
            let phases = held.iter().filter(|one| one["phase_of"].is_number());
            assert_eq!((held.len(), phases.count()), (3, 2), "{held:?}");
        } else if has("calendar.svg") {
            assert!(shell.ask("test -s calendar.svg").0);
        } else if has("qosp delete") {
            assert_eq!(reservations("--job 4713"), [] as [Value; 0]);
        }
    });
}

const MOUNT: (&str, &[&str], Untyped) = (
    "docs/MOUNT.md",
    &["program ─► kernel", "tcp://192.0.2.7:5640/scratch  /mnt/scratch"],
    &[
        ("mount -t 9p", "needs the kernel's 9P client, which has tests of its own"),
        ("ln -s", "it would change this machine's /sbin"),
    ],
);

#[test]
fn mounts_are_made_and_ended_as_the_document_says() {
    let Some(shell) = Shell::start() else { return };
    shell.must("mkdir -p /mnt/scratch /srv/scratch", "there are a directory and a mount point");
    for (nth, host) in [7, 8, 9].iter().enumerate() {
        let listen = format!("--listen tcp://192.0.2.{host}:5640 --api unix:///run/sluice/{nth}");
        let group = format!("--name io{} --group io1,io2,io3", nth + 1);
        let proxy = format!("sluice proxy --export scratch=/srv/scratch {listen} {group} &");
        shell.must(&proxy, "a proxy runs on a machine of the example");
    }
    let is_mounted = || shell.ask("grep -q ' /mnt/scratch fuse.sluice ' /proc/self/mounts").0;
    let document = typed_blocks(MOUNT.0, MOUNT.1, MOUNT.2);
    let sections = [
        "Mount, use, unmount",
        "Several jobs on one node",
        "Why is it slow here?",
        "At boot: fstab",
        "Several proxies",
        "Servers that support only 9P2000.L",
    ];
    assert!(document.iter().all(|block| sections.contains(&block.section.as_str())));
    let before = |block: &Block| {
        let has = |text: &str| block.text.contains(text);
        if has("sluice mount ") && is_mounted() {
            shell.must("sluice umount /mnt/scratch", "what was mounted before");
        }
        if has(".sluice/why") {
            let mount = "sluice mount tcp://192.0.2.7:5640/scratch /mnt/scratch";
            shell.must(mount, "it is mounted");
        }
    };
    play(&shell, MOUNT, &sections, before, |block| {
        let ends = block.text.contains("sluice umount");
        if block.text.contains("sluice mount ") {
            assert_eq!(is_mounted(), !ends, "{}", block.text);
        }
    });
}

const RULES: (&str, &[&str], Untyped) = (
    "docs/RULES.md",
    &["rules.toml:7:9", "             ", "condition   :=", "sluice rule list      "],
    &[],
);

#[test]
fn rules_are_right_and_are_changed_while_requests_wait() {
    let Some(shell) = Shell::start() else { return };
    shell.must("mkdir -p /srv/data; touch fs.toml", "there is a directory");
    let proxy =
        "sluice proxy --export data=/srv/data --listen tcp://127.0.0.1:5640 --rules fs.toml &";
    shell.must(proxy, "a proxy runs");
    let sections = ["Worked examples", "Rates and bursts", "Changing rules at run time"];
    let document = typed_blocks(RULES.0, RULES.1, RULES.2);
    assert!(document.iter().all(|block| sections.contains(&block.section.as_str())));
    play(
        &shell,
        RULES,
        &sections,
        |_| {},
        |block| {
            if block.text.contains("rule import") {
                let (_, list) = shell.ask("cat fs.toml");
                assert!(list.contains("200MB/s"), "--save keeps it: {list}");
            }
        },
    );
}
