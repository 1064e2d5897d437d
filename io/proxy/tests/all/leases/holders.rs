//! Holders over restarts of the proxy, and the record of them.

use ninep::dialect::{RENEW_DONE, RENEW_JOIN, RENEW_LEAVE, RENEW_REFUSED, ReturnedLease};
use ninep::{Fid, Request, Tag, open};

use super::{ATTRIBUTES, holder, recall, served, setup, shows};
use crate::peer::{P9Channel, P9Client, Served, until, write_as_user};

#[test]
fn after_a_restart_a_change_waits_until_all_holders_have_joined_again() {
    let mut served = served("restart");
    let (mut first, _) = holder(&served);
    let (mut second, _) = holder(&served);
    first.create(1, "f");
    served.start_again();
    let mut plain = served.plain_client();
    plain.open_name(1, "f", open::RDWR).unwrap();
    let tag = plain.send(&Request::Write { fid: Fid(1), offset: 0, data: b"x" });
    for client in [&mut first, &mut second] {
        client.door = served.tcp();
        client.reconnect();
        assert!(!client.renews(), "its life is over");
        client.identify(1, crate::peer::USER, "").unwrap();
    }
    first.join(2);
    first.find("f").unwrap();
    assert_eq!(first.granted(), (0, 0), "the other may hold what is not known");
    assert!(!plain.readable(0));
    second.join(2);
    assert!(plain.wait(tag).is_ok());
    first.find("f").unwrap();
    assert_eq!(first.granted().1, ATTRIBUTES);
}

#[test]
fn after_a_restart_a_holder_that_does_not_come_is_waited_for_as_long_as_its_term() {
    let mut served = setup("away", "lease_term = \"1s\"").start();
    let (mut client, _) = holder(&served);
    client.create(1, "f");
    served.start_again();
    let mut plain = served.plain_client();
    plain.open_name(1, "f", open::RDWR).unwrap();
    let tag = plain.send(&Request::Write { fid: Fid(1), offset: 0, data: b"x" });
    assert!(plain.wait(tag).is_ok());
}

/// A plain client, and its change of `f` that has begun to wait.
fn waiting_change(served: &Served) -> (P9Client, Tag) {
    let mut plain = served.plain_client();
    plain.open_name(1, "f", open::RDWR).unwrap();
    let tag = plain.send(&Request::Write { fid: Fid(1), offset: 0, data: b"x" });
    until("it waits", || shows(served, "_waiting_requests", 1));
    (plain, tag)
}

/// Number of mounts on the record.
fn recorded(served: &Served) -> usize {
    std::fs::read_to_string(served.dir.join("leases")).unwrap().lines().count() - 3
}

#[test]
fn after_a_restart_with_a_shorter_term_a_holder_is_waited_for_as_long_as_it_was_granted() {
    let mut served = setup("shorter", "lease_term = \"1h\"").start();
    let (mut client, _) = holder(&served);
    client.create(1, "f");
    served.configure("\"1h\"", "\"1s\"");
    served.start_again();
    let (mut plain, tag) = waiting_change(&served);
    let _other = holder(&served);
    until("the term of another is over", || shows(&served, "_holders", 1));
    assert!(!plain.readable(0));
    client.door = served.tcp();
    client.reconnect();
    client.join(2);
    assert!(plain.wait(tag).is_ok());
}

#[test]
fn a_holder_that_joins_under_another_term_is_recorded_with_the_longer_one_as_long_as_it_counts() {
    let mut served = setup("other-term", "lease_term = \"1s\"").start();
    let (mut client, _) = holder(&served);
    let terms = |served: &Served, term: &str| {
        let text = std::fs::read_to_string(served.dir.join("leases")).unwrap();
        text.lines().filter(|line| line.ends_with(term)).count() == 1
    };
    assert!(terms(&served, " 1000000000"));
    for (before, after, life) in [("\"1s\"", "\"1h\"", 2), ("\"1h\"", "\"1s\"", 3)] {
        served.configure(before, after);
        served.start_again();
        client.door = served.tcp();
        client.reconnect();
        assert!(terms(&served, if life == 2 { " 1000000000" } else { " 3600000000000" }));
        client.join(life);
        match life {
            2 => assert!(terms(&served, " 3600000000000"), "before it may get a lease"),
            _ => until("it is recorded", || client.renews() && terms(&served, " 1000000000")),
        }
    }
}

#[test]
fn a_proxy_that_grants_no_leases_any_more_waits_for_those_that_had_some() {
    let mut served = setup("none", "lease_term = \"1h\"").start();
    let (mut client, _) = holder(&served);
    client.create(1, "f");
    served.configure("\"read\"", "\"none\"");
    served.start_again();
    let (plain, _) = waiting_change(&served);
    assert_eq!(recorded(&served), 1);
    served.start_again();
    drop(plain);
    let (mut plain, tag) = waiting_change(&served);
    client.door = served.tcp();
    client.reconnect();
    assert_eq!(client.renew(2, RENEW_JOIN).0, RENEW_REFUSED);
    assert!(plain.wait(tag).is_ok());
    until("the record is cleared", || recorded(&served) == 0);
    served.start_again();
    let mut plain = served.plain_client();
    plain.open_name(1, "f", open::RDWR).unwrap();
    assert!(plain.call(&Request::Write { fid: Fid(1), offset: 0, data: b"y" }).is_ok());
}

#[test]
fn a_proxy_without_leases_forgets_those_that_do_not_come_once_their_terms_are_over() {
    let mut served = setup("none-away", "lease_term = \"1s\"").start();
    let (mut client, _) = holder(&served);
    client.create(1, "f");
    served.configure("\"read\"", "\"none\"");
    served.start_again();
    let (mut plain, tag) = waiting_change(&served);
    assert!(plain.wait(tag).is_ok());
    until("the record is cleared", || recorded(&served) == 0);
    assert!(shows(&served, "_holders", 0));
}

#[test]
fn what_a_mount_says_of_recalls_and_leases_of_before_a_restart_frees_nothing_after_it() {
    let mut served = served("earlier");
    let (mut client, mut listening) = holder(&served);
    client.create(1, "f");
    let file = client.find("f").unwrap().attributes.qid.path;
    let granted = |client: &mut P9Channel| {
        client.find("f").unwrap();
        client.head.leases.found
    };
    let mut old_grant = granted(&mut client);
    for _ in 0..50 {
        old_grant = granted(&mut client);
    }
    let (plain, _) = waiting_change(&served);
    let old = recall(&mut client, &mut listening);
    drop(plain);
    served.start_again();
    client.door = served.tcp();
    client.reconnect();
    client.identify(1, crate::peer::USER, "").unwrap();
    client.join(2);
    let mut listening = client.listen();
    assert!(granted(&mut client).number > old_grant.number);
    client.give_back(ReturnedLease { file, grant: old_grant });
    let (mut plain, tag) = waiting_change(&served);
    let new = recall(&mut client, &mut listening);
    assert!(new.access > old.access);
    client.give_up(&old, true);
    assert!(!plain.readable(0));
    client.give_up(&new, true);
    assert!(plain.wait(tag).is_ok());
}

#[test]
fn one_that_has_left_is_not_waited_for_after_a_restart() {
    let mut served = setup("left", "lease_term = \"1h\"").start();
    let (mut client, _) = holder(&served);
    client.create(1, "f");
    assert_eq!(recorded(&served), 1);
    assert_eq!(client.renew(1, RENEW_LEAVE).0, RENEW_DONE);
    until("the record is written again", || {
        client.ping();
        recorded(&served) == 0
    });
    served.start_again();
    let mut plain = served.plain_client();
    plain.open_name(1, "f", open::RDWR).unwrap();
    let tag = plain.send(&Request::Write { fid: Fid(1), offset: 0, data: b"x" });
    assert!(plain.wait(tag).is_ok(), "or it would wait for an hour");
}

#[test]
fn a_holder_is_on_the_record_before_its_first_grant_and_not_by_its_sessions_number() {
    let served = served("record");
    let (client, _) = holder(&served);
    let text = std::fs::read_to_string(served.dir.join("leases")).unwrap();
    assert_eq!(text.lines().count(), 4, "{text}");
    assert!(!text.contains(&format!("{:032x}", client.id())), "{text}");
}

#[test]
fn where_holders_cannot_be_recorded_none_may_join() {
    let served = served("unwritable");
    let mut client = served.client();
    // Root writes into any directory, but over no directory.
    std::fs::create_dir(served.dir.join("leases.new")).unwrap();
    assert_eq!(client.renew(1, RENEW_JOIN).0, RENEW_REFUSED);
    std::fs::remove_dir(served.dir.join("leases.new")).unwrap();
    client.join(1);
    write_as_user(&served.data().join("f"), b"");
    client.find("f").unwrap();
    assert_eq!(client.granted().1, ATTRIBUTES);
}
