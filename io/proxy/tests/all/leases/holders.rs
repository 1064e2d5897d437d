//! Holders over restarts of the proxy, and the record of them.

use ninep::dialect::{RENEW_DONE, RENEW_JOIN, RENEW_LEAVE, RENEW_REFUSED};
use ninep::{Fid, Request, open};

use super::{ATTRIBUTES, holder, served, setup};
use crate::peer::{until, write_as_user};

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

#[test]
fn one_that_has_left_is_not_waited_for_after_a_restart() {
    let mut served = setup("left", "lease_term = \"1h\"").start();
    let (mut client, _) = holder(&served);
    client.create(1, "f");
    let record = served.dir.join("leases");
    let recorded = || std::fs::read_to_string(&record).unwrap().lines().count() - 2;
    assert_eq!(recorded(), 1);
    assert_eq!(client.renew(1, RENEW_LEAVE).0, RENEW_DONE);
    until("the record is written again", || {
        client.ping();
        recorded() == 0
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
    assert_eq!(text.lines().count(), 3, "{text}");
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
