//! Tests of how sources get their names, and of each error.

use super::*;

fn sources(count: usize) -> Vec<MountSource> {
    let source = |n| format!("tcp://127.0.0.1:{}/x", n + 1).parse().unwrap();
    (0..count).map(source).collect()
}

fn view(epoch: u64, names: &str) -> GroupView {
    GroupView { epoch, names: names.split(' ').map(str::to_owned).collect() }
}

fn member(name: &str, epoch: u64, names: &str) -> GroupMember {
    GroupMember { name: name.into(), view: view(epoch, names) }
}

/// Sources by their names in a group: `?` cannot be reached, `-` has no group.
fn probed(names: &[&str], of: &str) -> Vec<ProbedSource> {
    let probed = names.iter().map(|name| match *name {
        "?" => ProbedSource::Unreachable,
        "-" => ProbedSource::Ungrouped,
        name => ProbedSource::Member(member(name, 1, of)),
    });
    probed.collect()
}

fn group(names: &[&str], of: &str) -> Result<MountGroup, String> {
    MountGroup::new(&sources(names.len()), &probed(names, of)).map_err(|error| error.to_string())
}

fn names(group: &MountGroup) -> Vec<Option<&str>> {
    group.homes.iter().map(|home| home.get().map(HomeCandidate::name)).collect()
}

fn handles() -> impl Iterator<Item = [u8; 8]> {
    (0..1_000u64).map(u64::to_le_bytes)
}

#[test]
fn mounts_with_other_orders_and_fewer_sources_agree_on_homes() {
    let all = ["c", "a", "b"];
    let (one, other) = (group(&["a", "b", "c"], "a b c").unwrap(), group(&all, "a b c").unwrap());
    let few = group(&["b", "c"], "a b c").unwrap();
    let proxies = view(1, "a b c");
    for handle in handles() {
        let home = proxies.home_of(ObjectId::of(&handle)).unwrap();
        assert_eq!(["a", "b", "c"][one.home_of(&handle)], home);
        assert_eq!(all[other.home_of(&handle)], home);
        if home != "a" {
            assert_eq!(["b", "c"][few.home_of(&handle)], home);
        }
    }
}

#[test]
fn a_source_that_cannot_be_reached_has_the_one_name_that_is_left() {
    let known = group(&["?", "b"], "a b").unwrap();
    assert_eq!(names(&known), [Some("a"), Some("b")]);
    assert_eq!(known.order_for(0), [0, 1]);
    let renamed = known.check(0, Some(&member("c", 1, "a b c")));
    let (said, expected) = ("c".into(), "a".into());
    assert_eq!(renamed, Err(GroupMismatch::Renamed { said, expected }));
    assert_eq!(known.check(0, Some(&member("a", 1, "a b"))), Ok(()));
}

#[test]
fn sources_with_several_possible_names_are_named_when_they_are_reached() {
    let late = group(&["?", "b", "?"], "a b c").unwrap();
    assert_eq!(names(&late), [None, Some("b"), None]);
    assert!(handles().all(|handle| late.home_of(&handle) == 1));
    assert_eq!(late.order_for(1), [1, 0, 2]);
    let no_place = |said: &str| Err(GroupMismatch::NoPlace { said: said.into() });
    assert_eq!(late.check(0, Some(&member("b", 1, "a b c"))), no_place("b"));
    assert_eq!(late.check(0, Some(&member("d", 2, "a b c d"))), no_place("d"));
    assert_eq!(late.check(0, None), Err(GroupMismatch::Ungrouped));
    assert_eq!(late.check(0, Some(&member("c", 1, "a b c"))), Ok(()));
    assert_eq!(late.check(2, Some(&member("c", 1, "a b c"))), no_place("c"));
    assert_eq!(late.check(2, Some(&member("a", 1, "a b c"))), Ok(()));
    assert_eq!(names(&late), [Some("c"), Some("b"), Some("a")]);
    let all = group(&["c", "b", "a"], "a b c").unwrap();
    assert!(handles().all(|handle| late.home_of(&handle) == all.home_of(&handle)));
}

#[test]
fn a_list_that_changes_later_changes_no_home() {
    let group = group(&["a", "b"], "a b").unwrap();
    let before: Vec<_> = handles().map(|handle| group.home_of(&handle)).collect();
    let is_warned = |group: &MountGroup| group.warned[0].load(Ordering::Relaxed);
    assert!(!is_warned(&group));
    assert_eq!(group.check(0, Some(&member("a", 2, "a b c"))), Ok(()));
    assert!(is_warned(&group));
    assert_eq!(group.check(0, None), Ok(()), "a group that is gone is a change, too");
    assert!(is_warned(&group));
    assert_eq!(group.check(0, Some(&member("a", 1, "a b"))), Ok(()));
    assert!(!is_warned(&group));
    assert!(handles().map(|handle| group.home_of(&handle)).eq(before));
}

#[test]
fn one_source_has_every_file_whatever_its_group() {
    let alone = group(&["-"], "").unwrap();
    assert_eq!((alone.home_of(b"h"), alone.order_for(0)), (0, vec![0]));
    assert_eq!(alone.check(0, Some(&member("a", 1, "a b"))), Ok(()));
    let one = group(&["b"], "a b").unwrap();
    assert_eq!((one.home_of(b"h"), names(&one)), (0, vec![Some("b")]));
    assert_eq!(one.check(0, Some(&member("c", 2, "a c"))), Ok(()));
}

#[test]
fn each_error_names_the_sources_and_what_would_be_right() {
    let said = |probed: &[ProbedSource]| {
        MountGroup::new(&sources(probed.len()), probed).unwrap_err().to_string()
    };
    let of = |name: &str, epoch, names: &str| ProbedSource::Member(member(name, epoch, names));
    let cases = [
        (
            probed(&["?", "-", "-"], ""),
            "the proxy at tcp://127.0.0.1:2 has no [group], which a mount of several proxies needs; \
             add to the configuration of each proxy a [group] with its name and the names of all",
        ),
        (
            probed(&["a", "-"], "a b"),
            "the proxy at tcp://127.0.0.1:2 has no [group], but the one at tcp://127.0.0.1:1 has: \
             a, b (epoch 1); add the same to its configuration, or remove the source",
        ),
        (
            vec![of("a", 1, "a b"), of("c", 1, "c d")],
            "the proxy at tcp://127.0.0.1:2 is \"c\", which is not in the group of the one at \
             tcp://127.0.0.1:1: a, b (epoch 1); add it to the [group] of all proxies with a higher \
             epoch, or remove the source",
        ),
        (
            vec![of("a", 1, "a b"), of("b", 2, "a b c")],
            "the proxies at tcp://127.0.0.1:1 and tcp://127.0.0.1:2 have different groups: a, b \
             (epoch 1), and a, b, c (epoch 2); give all proxies the same proxies and epoch in [group]",
        ),
        (
            probed(&["a", "b", "a"], "a b"),
            "the sources tcp://127.0.0.1:1 and tcp://127.0.0.1:3 are the same proxy, \"a\"; remove \
             one of them",
        ),
        (
            probed(&["a", "b", "?"], "a b"),
            "the source tcp://127.0.0.1:3 cannot be reached, and the other sources are all proxies \
             of the group: a, b (epoch 1); remove a source that is not one of them, or is one twice",
        ),
    ];
    for (probed, expected) in cases {
        assert_eq!(said(&probed), expected);
    }
    assert!(group(&["a", "?", "?"], "a b").is_err(), "two for one name");
}
