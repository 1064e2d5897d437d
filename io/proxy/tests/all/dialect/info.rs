//! Tinfo: who is told what, before anything that is queued.

use ninep::dialect::{ExtReply, ExtRequest, HandleList};

use crate::peer::errno::*;
use crate::peer::{IDENTITY, P9Channel, Setup, USER};

/// Two hundred requests of the job take more than three minutes.
const RULES: &str = "
[[rule]]
name = \"slow\"
match = \"jobid={dd.1}\"
per = [\"jobid\"]
limit = \"1ops/s\"
";

fn tell(client: &mut P9Channel, what: u8, count: u32) -> Result<String, u32> {
    let frame = client.call(HandleList::NONE, ExtRequest::Info { what, count });
    let told = match frame.own()? {
        ExtReply::Info { data } => String::from_utf8(data.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    };
    Ok(told)
}

#[test]
fn a_job_whose_requests_wait_is_told_at_once_what_they_wait_for() {
    if !crate::peer::root_here() {
        return;
    }
    let served = Setup::new("tell").rules(RULES).start();
    let mut client = served.client_of("x", USER, "dd.1");
    let root = client.root.clone();
    let asked = || ExtRequest::Lookup { fid: ninep::dialect::handle_fid(0), name: b"x" };
    for _ in 0..200 {
        client.send(HandleList::one(&root), asked());
    }
    crate::peer::until("they are known to be held", || {
        let why = tell(&mut client, 0, 4096).unwrap();
        why.contains("slow") && why.contains("jobid=dd.1")
    });
    assert!(tell(&mut client, 1, 4096).unwrap().contains("dd.1"));
    assert!(tell(&mut client, 2, 4096).unwrap().contains("slow"));
    // Whole lines, as many as there is room for.
    let whole = tell(&mut client, 0, 4096).unwrap();
    let first = whole.lines().next().unwrap().len() as u32 + 1;
    let cut = tell(&mut client, 0, first + 100).unwrap();
    assert!(cut.ends_with('\n') && cut.len() as u32 <= first + 100, "{cut}");
    assert_eq!(tell(&mut client, 0, 3), Ok(String::new()));
}

#[test]
fn somebody_who_has_asked_nothing_is_told_the_limits_that_hold() {
    if !crate::peer::root_here() {
        return;
    }
    let rules = "[[rule]]\nname = \"jobs\"\nmatch = \"jobid={dd.*}\"\nper = [\"jobid\"]\n\
                 limit = { write = \"7MB/s\" }\nmax_classes = 1\n\
                 [[meter]]\nname = \"all\"\nmatch = \"*\"\nrate = \"20GB/s\"\n\
                 [[meter]]\nname = \"each\"\nmatch = \"uid={1000}\"\nper = [\"uid\"]\n\
                 rate = \"100ops/s\"\n";
    let served = Setup::new("tell-limits").rules(rules).start();
    let mut client = served.client_of("x", USER, "dd.1");
    let limits = tell(&mut client, 2, 4096).unwrap();
    for names in [&["jobs", "jobid=dd.1"][..], &["meter all"], &["each", "uid=1000"]] {
        let is = |line: &str| names.iter().all(|name| line.contains(name));
        assert!(limits.lines().any(is), "{names:?} are missing in {limits}");
    }
    // Being told took no class away, nor made one.
    assert!(served.control().classes().classes.iter().all(|class| class.rule != "jobs"));
    client.mkdir("made").unwrap();
    let after = tell(&mut client, 2, 4096).unwrap();
    assert_eq!(after.lines().count(), limits.lines().count(), "{limits}{after}");
    let mut other = served.client_of("x", USER + 1, "");
    let limits = tell(&mut other, 2, 4096).unwrap();
    assert!(limits.contains("all") && !limits.contains("jobs"), "{limits}");
}

#[test]
fn nobody_is_told_of_others_and_what_is_wrong_is_einval() {
    if !crate::peer::root_here() {
        return;
    }
    let served = Setup::new("tell-wrong").start();
    let mut client = served.client_of("x", USER, "dd.1");
    client.mkdir("made").unwrap();
    let mut other = served.client_of("x", USER + 1, "dd.1");
    let told = tell(&mut other, 1, 4096).unwrap();
    assert!(!told.contains("user 1000"), "{told}");
    assert_eq!(tell(&mut client, 3, 4096), Err(EINVAL));
    assert_eq!(tell(&mut client, 0, u32::MAX), Err(EINVAL));
    client.identity = IDENTITY + 9;
    assert_eq!(tell(&mut client, 0, 4096), Err(EINVAL), "an identity that nobody has");
}

#[test]
fn who_asks_without_end_is_told_to_come_again_and_keeps_nobody_else_from_asking() {
    if !crate::peer::root_here() {
        return;
    }
    let served = Setup::new("tell-flood").rules(RULES).start();
    let mut flood = served.client_of("x", USER, "dd.1");
    let mut other = served.client_of("x", USER + 1, "dd.2");
    let message = || ExtRequest::Info { what: 0, count: 4096 };
    let tags: Vec<_> = (0..500).map(|_| flood.send(HandleList::NONE, message())).collect();
    let told = tell(&mut other, 1, 4096);
    assert!(told.is_ok(), "{told:?}");
    let mut answers = [0, 0];
    for tag in tags {
        match flood.wait(tag).own() {
            Ok(ExtReply::Info { .. }) => answers[0] += 1,
            Err(EAGAIN) => answers[1] += 1,
            answer => panic!("{answer:?}"),
        }
    }
    // As many at once as are answered so, and as many more as may wait, whatever came meanwhile.
    assert!(answers[0] >= 24 && answers[1] > 0, "{answers:?}");
    assert!(tell(&mut flood, 0, 4096).is_ok(), "it has come again");
}
