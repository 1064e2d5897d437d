//! What each message grants, and when nothing is.

use ninep::dialect::{LeaseGrants, RENEW_OVER, RENEW_REFUSED, ReturnedLease};
use ninep::{SetAttributes, open, setattr};

use super::{ATTRIBUTES, NAMES, READ, holder, served, setup};
use crate::peer::Served;
use crate::peer::errno::ENOENT;

#[test]
fn a_lookup_grants_the_names_and_the_attributes_and_an_absent_name_the_names() {
    let served = served("lookup");
    let (mut client, _) = holder(&served);
    client.create(1, "f");
    let handle = client.find("f").unwrap().handle;
    assert_eq!(client.granted(), (NAMES, ATTRIBUTES));
    assert_eq!(client.find("absent").unwrap_err(), ENOENT);
    assert_eq!(client.granted(), (NAMES, 0));
    client.find("..").unwrap();
    assert_eq!(client.granted().0, 0, "it is no name of the directory");
    client.stat(&handle).unwrap();
    assert_eq!(client.granted(), (ATTRIBUTES, 0));
    let set = SetAttributes { valid: setattr::MODE, mode: 0o600, ..Default::default() };
    client.change(&handle, set).unwrap();
    assert_eq!(client.granted(), (ATTRIBUTES, 0));
}

#[test]
fn an_open_for_reading_grants_it_and_one_for_writing_the_attributes() {
    let served = served("open");
    let (mut client, _) = holder(&served);
    let root = client.root.clone();
    let handle = client.create(1, "f").handle;
    assert_eq!(client.granted(), (NAMES, ATTRIBUTES));
    client.open(&handle, 2, "", open::RDONLY, 0).unwrap();
    assert_eq!(client.granted(), (ATTRIBUTES | READ, 0));
    client.open(&root, 3, "f", open::RDONLY, 0).unwrap();
    assert_eq!(client.granted(), (NAMES, ATTRIBUTES | READ));
    client.open(&handle, 4, "", open::RDWR, 0).unwrap();
    assert_eq!(client.granted(), (ATTRIBUTES, 0));
    client.mkdir("d").unwrap();
    assert_eq!(client.granted(), (NAMES, ATTRIBUTES));
}

#[test]
fn a_list_grants_the_names_and_the_attributes_of_each_entry() {
    let served = served("list");
    let (mut client, _) = holder(&served);
    (1..4).for_each(|nth| drop(client.create(nth, &format!("f{nth}"))));
    client.open(&client.root.clone(), 9, "", open::RDONLY | open::DIRECTORY, 0).unwrap();
    let all = client.list(9, 0, 64 << 10).unwrap();
    assert_eq!(client.granted(), (NAMES | ATTRIBUTES, 0));
    let files = all.iter().filter(|entry| entry.file.is_some());
    assert_eq!(files.clone().count(), 3);
    assert!(files.clone().all(|entry| entry.lease.kinds == ATTRIBUTES));
}

#[test]
fn nothing_is_granted_that_is_not_asked_for_or_in_a_life_that_is_over() {
    let served = served("old");
    let (mut client, _) = holder(&served);
    client.create(1, "f");
    client.lease_life = 0;
    client.find("f").unwrap();
    assert_eq!(client.head.leases, LeaseGrants::NONE);
    client.join(2);
    client.lease_life = 1;
    client.find("f").unwrap();
    assert_eq!(client.head.leases, LeaseGrants::NONE);
    assert!(!client.renews(), "of a life that is over");
    let mut other = served.client();
    other.lease_life = 1;
    other.find("f").unwrap();
    assert_eq!(other.head.leases, LeaseGrants::NONE, "it has not joined");
    assert_eq!(other.renew(1, ninep::dialect::RENEW_TERM).0, RENEW_OVER);
}

#[test]
fn an_export_without_leases_refuses_to_let_a_client_join() {
    let served = Served::plain("none");
    let mut client = served.client();
    assert_eq!(client.renew(1, ninep::dialect::RENEW_JOIN), (RENEW_REFUSED, 0));
    client.lease_life = 1;
    client.create(1, "f");
    client.find("f").unwrap();
    assert_eq!(client.head.leases, LeaseGrants::NONE);
}

#[test]
fn a_full_table_grants_nothing_and_requests_are_answered_as_before() {
    let served = setup("full", "leases_max = 2").start();
    let (mut client, _) = holder(&served);
    let handle = client.create(1, "a").handle;
    client.find("a").unwrap();
    assert_eq!(client.granted(), (NAMES, ATTRIBUTES), "of two files");
    let before = client.head.leases.found;
    client.create(2, "b");
    assert_eq!(client.granted(), (NAMES, 0), "of a third");
    let file = client.stat(&handle).unwrap().qid.path;
    let grant = client.head.leases.named;
    assert!(grant.number > before.number);
    client.give_back(ReturnedLease { file, grant: before });
    client.find("b").unwrap();
    assert_eq!(client.granted(), (NAMES, 0), "it was granted again since");
    client.give_back(ReturnedLease { file, grant });
    client.find("b").unwrap();
    assert_eq!(client.granted(), (NAMES, ATTRIBUTES));
}

#[test]
fn a_wrong_value_of_leases_is_refused_with_those_that_are_right() {
    let text = |value: &str| {
        let tables = format!("[[export]]\nname = \"x\"\ndir = \"/\"\nleases = \"{value}\"\n");
        sluice_proxy::config::ProxyConfig::parse("f", &tables).unwrap_err().to_string()
    };
    assert!(text("write").contains("use \"read\""), "{}", text("write"));
    assert!(text("all").contains("none, read"), "{}", text("all"));
}
