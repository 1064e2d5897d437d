//! What the other keys of a rule promise, kept by a running proxy: by the order in which a disk of
//! the test is asked, or by how many requests went while others wait.
//!
//! ```text
//!   a write holds the disk ─► requests of all jobs wait in the proxy ─► it ends ─► the disk's log
//!   a limit of 1 B/s ─► the first write goes, the others wait for an hour ─► other rules ─► they go
//! ```
//!
//! Nothing here depends on how fast anything is.

#![allow(clippy::unwrap_used)]

use std::fs;

use ninep::dialect::{ExtRequest, HandleList, RequestHeader};
use ninep::{Fid, Tag, open};

use crate::dialect::locations::projects;
use crate::disk::{Disk, Done, HOLD};
use crate::peer::{
    IDENTITY, P9Address, P9Channel, Served, Setup, USER, everybodys, fresh_id, open_request,
    root_here, until, write_as_user,
};
use crate::reserved::{Bench, COSTS, Job, NO_TIME};

/// Requests of the classes of a rule that run, that wait, and that were served.
fn load(served: &Served, rule: &str) -> [u64; 3] {
    let classes = served.control().classes().classes;
    let of = classes.iter().filter(|class| class.rule == rule).map(|class| &class.usage);
    of.fold([0; 3], |[running, queued, done], usage| {
        [running + usage.running, queued + usage.queued, done + usage.requests]
    })
}

/// A rule for the jobs `vip` with these keys, and a class for each other job.
fn vip_and_others(keys: &str) -> String {
    format!(
        "[[rule]]\nname = \"vip\"\nmatch = \"jobid={{vip}}\"\n{keys}\n\
         [[rule]]\nname = \"others\"\nper = [\"jobid\"]\n"
    )
}

fn count(order: &[Done], first: u8) -> usize {
    order.iter().filter(|done| **done == Done::Write(first)).count()
}

// ---- by order ----

#[test]
fn a_realtime_limit_is_reserved_and_a_plain_one_is_not() {
    let Some(disk) = Disk::mount("realtime", NO_TIME) else { return };
    let first = |name: &str, keys: &str| {
        let mut bench = Bench::new(&disk, name, keys);
        let mut jobs = ["a", "b", "c", "d", "vip"].map(|name| bench.job(name));
        let order = bench.order_of(&mut jobs, |job, of| {
            (0..4).for_each(|_| of.write(if job == 4 { b'v' } else { b'o' }));
        });
        assert_eq!(order.len(), 20);
        count(&order[..4], b'v')
    };
    // The rate is more than any machine gives, so the writes are always due.
    assert_eq!(first("realtime", "limit = \"1TB/s\"\nrealtime = true"), 4);
    assert!(first("plain-limit", "limit = \"1TB/s\"") <= 1);
}

#[test]
fn spare_service_is_divided_by_rate_and_the_rate_is_no_ceiling() {
    let Some(disk) = Disk::mount("spare", NO_TIME) else { return };
    let rules = ["three", "two"].map(|name| {
        let rate = if name == "three" { 3 } else { 2 };
        format!(
            "[[rule]]\nname = \"{name}\"\nmatch = \"jobid={{{name}}}\"\nlimit = \"{rate}ops/s\"\n\
             spare = true\n"
        )
    });
    let rules = format!("{}[[rule]]\nname = \"others\"\nper = [\"jobid\"]\n", rules.concat());
    let mut bench = Bench::with_rules(&disk, "spare", COSTS, &rules);
    let mut jobs = ["three", "two", "other"].map(|name| bench.job(name));
    let order = bench.order_of(&mut jobs, |job, of| (0..60).for_each(|_| of.write(b"320"[job])));
    assert_eq!(order.len(), 180, "a ceiling would let three of them go in a second");
    // Weights 3 : 2 : 1, and what is due by the rates is divided 3 : 2 as well.
    let [three, two] = [b'3', b'2'].map(|job| count(&order[..60], job));
    assert!((28..=34).contains(&three) && (18..=23).contains(&two), "{three} and {two} of 60");
}

#[test]
fn a_minimum_of_local_service_is_kept_however_much_a_job_had_elsewhere() {
    let Some(disk) = Disk::mount("local", NO_TIME) else { return };
    // Each open of `vip` says that a thousand went to other proxies since the last one.
    let first = |name: &str, keys: &str| {
        let mut bench = Bench::new(&disk, name, keys);
        let mut jobs = ["vip", "other"].map(|name| bench.job(name));
        let order = bench.order_of(&mut jobs, |job, of| match job {
            0 => (0..32).for_each(|_| open_with_remote(of, "large", 1_000)),
            _ => (0..32).for_each(|_| of.open("small")),
        });
        assert_eq!(order.len(), 64);
        order[..30].iter().filter(|done| **done == Done::Open { large: true }).count()
    };
    let total = first("total", "");
    assert!(total <= 1, "{total} of 30");
    // Half as fast as a class without remote service: one open for each two.
    let half = first("half", "min_local_service = \"50%\"");
    assert!((9..=12).contains(&half), "{half} of 30");
}

fn open_with_remote(job: &mut Job, name: &str, remote_ops: u32) {
    job.fids += 1;
    // A tag that no call of the client has.
    let tag = Tag(0x8000 + job.fids as u16);
    let root = job.client.root.clone();
    let handles = HandleList::one(&root);
    let header =
        RequestHeader { identity: IDENTITY, remote_ops, handles, ..RequestHeader::SESSION };
    let request = open_request(job.fids, name, open::WRONLY, 0);
    job.client.send_as(tag, &header, &request.into());
    job.sent.push(tag);
}

#[test]
fn reserved_slots_stay_free_for_reservations_and_others_use_the_rest() {
    let Some(disk) = Disk::mount("slots", NO_TIME) else { return };
    let costs = COSTS.replace("slots_max = 1", "slots_max = 4");
    // As many of the other jobs and of `vip` run while the disk is held.
    let run = |name: &str, reserved_slots: &str, [others, vips]: [u64; 2]| {
        let keys = format!("reservation = \"1TB/s\"\n{reserved_slots}");
        let mut bench = Bench::with_rules(&disk, name, &costs, &vip_and_others(&keys));
        let (mut other, mut vip) = (bench.job("other"), bench.job("vip"));
        disk.take_log();
        bench.holder.write(HOLD);
        until("the disk is held", || disk.is_held());
        (0..8).for_each(|_| other.write(b'o'));
        other.client.ping();
        until("others use what they may", || {
            load(&bench.served, "others")[..2] == [others, 9 - others]
        });
        (0..2).for_each(|_| vip.write(b'v'));
        vip.client.ping();
        until("the reservation uses what it may", || {
            load(&bench.served, "vip")[..2] == [vips, 2 - vips]
        });
        assert_eq!(load(&bench.served, "others")[..2], [others, 9 - others]);
        disk.release();
        [&mut bench.holder, &mut other, &mut vip].into_iter().for_each(Job::finish);
    };
    // Two of four are left free; without that all are taken, and a reservation waits.
    run("two-slots", "reserved_slots = 2", [2, 2]);
    run("no-slots", "", [4, 0]);
}

// ---- rules that depend on others ----

/// A rule for the job `child` that depends on that of the job `parent`.
fn depends_on(limit: &str, how: &str, min: &str, parent: &str) -> String {
    format!(
        "[[rule]]\nname = \"parent\"\nmatch = \"jobid={{parent}}\"\n{parent}\n\
         [[rule]]\nname = \"child\"\nmatch = \"jobid={{child}}\"\nlimit = {limit}\n\
         depends_on = {{ rule = \"parent\", {how}, min = \"{min}\" }}\n\
         [[rule]]\nname = \"others\"\nper = [\"jobid\"]\n"
    )
}

#[test]
fn a_rule_waits_until_another_one_is_idle() {
    let Some(disk) = Disk::mount("idle", NO_TIME) else { return };
    let limit = "{ all = \"1TB/s\", burst = \"1B\" }";
    let rules = depends_on(limit, "when_idle = \"1ms\"", "1B/s", "");
    let mut bench = Bench::with_rules(&disk, "idle", COSTS, &rules);
    let mut jobs = ["parent", "child", "other"].map(|name| bench.job(name));
    let order = bench.order_of(&mut jobs, |job, of| (0..16).for_each(|_| of.write(b"pco"[job])));
    assert_eq!(order.len(), 48, "it goes on when the other one is idle");
    let last = order.iter().rposition(|done| *done == Done::Write(b'p')).unwrap();
    let early = count(&order[..last], b'c');
    assert!(early <= 1, "{early} while the other rule had requests: {order:?}");
    // Beside others than that rule it has its share.
    let order = bench.order_of(&mut jobs[1..], |job, of| {
        (0..16).for_each(|_| of.write(b"co"[job]));
    });
    assert!((7..=9).contains(&count(&order[..16], b'c')), "{order:?}");
}

#[test]
fn a_rule_gets_what_another_one_leaves() {
    if !root_here() {
        return;
    }
    let rules = depends_on("\"1TB/s\"", "remainder_of = \"1kB/s\"", "1B/s", "");
    let served = served_with_file("remainder", &rules);
    let limit = || {
        let rules = served.control().rules().rules;
        let child = rules.into_iter().find(|rule| rule.name == "child").unwrap();
        child.targets[0].effective_limit.clone().unwrap()
    };
    let mut parent = client_of(&served, USER, "parent");
    let root = parent.root.clone();
    // A limit is computed while the target has requests; those without bytes are no use of it.
    let mut is_after = |expected: &str, act: &mut dyn FnMut(&mut P9Channel)| {
        until(expected, || {
            act(&mut parent);
            limit() == expected
        });
    };
    is_after("1kB/s", &mut |parent| assert!(parent.stat(&root).is_ok()));
    is_after("1B/s", &mut |parent| assert!(parent.write(1, 0, &[1; 4096]).is_ok()));
    is_after("1kB/s", &mut |parent| assert!(parent.stat(&root).is_ok()));
}

#[test]
fn a_rule_follows_the_limit_of_another_one() {
    if !root_here() {
        return;
    }
    let rules = |parent: &str| {
        let limit = format!("limit = \"{parent}\"");
        // What is saved is kept when the limit falls, so little may be saved.
        depends_on("{ all = \"1TB/s\", burst = \"1B\" }", "follow = \"50%\"", "1B/s", &limit)
    };
    let served = served_with_file("follow", &rules("2B/s"));
    let mut child = client_of(&served, USER, "child");
    let held = first_goes(&served, "child", &mut child, 1);
    served.set_rules(&rules("1TB/s"));
    all_answered(&mut child, held);
}

// ---- what a limit applies to ----

/// Writes that a limit of 1 B/s gets: the first goes.
const WRITES: u64 = 4;

/// A server with the file `f`, and `dir/f`.
fn served_with_file(name: &str, rules: &str) -> Served {
    let served = Setup::new(name)
        .top("groups = \"client\"\ntrusted = [\"127.0.0.0/8\"]")
        .rules(rules)
        .start();
    files_in(&served.data());
    served
}

fn files_in(data: &std::path::Path) {
    fs::create_dir(data.join("dir")).unwrap();
    everybodys(&data.join("dir"));
    ["f", "dir/f"].iter().for_each(|name| write_as_user(&data.join(name), b"content"));
}

/// A client with `f` open as fid 1.
fn client_of(served: &Served, uid: u32, job: &str) -> P9Channel {
    opened(served.client_of("x", uid, job))
}

fn opened(mut client: P9Channel) -> P9Channel {
    client.open_name(1, "f", open::RDWR).unwrap();
    client
}

/// A client from an address, or with a group of its own.
fn client_from(served: &Served, address: [u8; 4], gid: u32) -> P9Channel {
    let P9Address::Tcp(to) = served.tcp() else { unreachable!("it is TCP's") };
    let mut client = P9Channel::connect(P9Address::From(address.into(), to));
    client.begin(1 << 20);
    client.session(fresh_id(), 0, 64, "x").unwrap();
    client.identify_with(IDENTITY, USER, gid, &[], b"").unwrap();
    client
}

fn send_writes(client: &mut P9Channel) -> Vec<Tag> {
    let data = [7; 4096];
    let write = || ExtRequest::Write { fid: Fid(1), offset: 0, flags: 0, data: &data };
    (0..WRITES).map(|_| client.send(HandleList::NONE, write())).collect()
}

/// Sends writes of which the first goes and the others wait, in a rule's class that had some
/// requests before.
fn first_goes(served: &Served, rule: &str, client: &mut P9Channel, before: u64) -> Vec<Tag> {
    let mut sent = send_writes(client);
    all_answered(client, vec![sent.remove(0)]);
    // All are read, and the first is counted.
    client.ping();
    until("nothing runs", || {
        let classes = served.control().classes().classes;
        classes.iter().all(|class| class.usage.running == 0)
    });
    assert_eq!(load(served, rule), [0, WRITES - 1, before + 1], "{rule}");
    sent
}

fn all_answered(client: &mut P9Channel, sent: Vec<Tag>) {
    for tag in sent {
        let frame = client.wait(tag);
        assert!(frame.own().is_ok(), "{frame:?}");
    }
}

/// Only the first write of `limited` goes under a rule with this match and a limit, whatever `free`
/// does meanwhile; without the limit the others go, too.
fn is_limited(
    served: &Served,
    matches: &str,
    limited: &mut P9Channel,
    free: impl FnOnce(&mut P9Channel),
) {
    // A rule keeps what it owes as long as it keeps its name: each field has one of its own.
    let (name, _) = matches.split_once('=').unwrap();
    let rule = |limit: &str| {
        format!(
            "[[rule]]\nname = \"{name}\"\nmatch = \"{matches}\"\n{limit}\n\
             [[rule]]\nname = \"rest\"\n"
        )
    };
    served.set_rules(&rule("limit = \"1B/s\""));
    let before = load(served, name)[2];
    let held = first_goes(served, name, limited, before);
    free(limited);
    assert_eq!(load(served, name), [0, WRITES - 1, before + 1], "{matches}");
    served.set_rules(&rule(""));
    all_answered(limited, held);
}

/// All writes of another client are answered.
fn is_free(mut client: P9Channel) {
    let sent = send_writes(&mut client);
    all_answered(&mut client, sent);
}

#[test]
fn a_limit_applies_to_the_nodes_groups_and_kinds_that_its_rule_matches_and_to_no_others() {
    if !root_here() {
        return;
    }
    let served = served_with_file("matches", "");
    let mut client = opened(client_from(&served, [127, 0, 0, 2], USER));
    is_limited(&served, "nid={127.0.0.2@tcp}", &mut client, |_| {
        is_free(opened(client_from(&served, [127, 0, 0, 3], USER)));
    });
    let mut client = opened(client_from(&served, [127, 0, 0, 1], 77));
    is_limited(&served, "gid={77}", &mut client, |_| {
        is_free(opened(client_from(&served, [127, 0, 0, 1], 78)));
    });
    let mut client = client_of(&served, USER, "");
    is_limited(&served, "opcode={write}", &mut client, |same| {
        let root = same.root.clone();
        same.stat(&root).unwrap();
        assert_eq!(same.read(1, 0, 4).unwrap(), [7; 4], "the first write went, reads go on");
    });
}

#[test]
fn a_limit_applies_to_a_directory_and_to_a_project() {
    if !root_here() {
        return;
    }
    let below = |served: &Served, path: &[&str]| {
        let mut client = served.client();
        let root = client.root.clone();
        let (name, dirs) = path.split_last().unwrap();
        let dir = dirs.iter().fold(root, |dir, name| client.lookup(&dir, name).unwrap().handle);
        client.open(&dir, 1, name, open::RDWR, 0).unwrap();
        client
    };
    let served = served_with_file("path", "");
    is_limited(&served, "path={/dir}", &mut below(&served, &["dir", "f"]), |_| {
        is_free(below(&served, &["f"]));
    });
    let Some((disk, served)) = projects("limited-project") else { return };
    files_in(&disk.dir);
    write_as_user(&disk.dir.join("seven/f"), b"content");
    is_limited(&served, "projid={7}", &mut below(&served, &["seven", "f"]), |_| {
        is_free(below(&served, &["dir", "f"]));
    });
}
