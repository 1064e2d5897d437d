//! Names that change on another node while this one believes them: what is done by a name is done to
//! the file that has it now.
//!
//! ```text
//!   a: looked at, believed for an hour      b: removed, renamed, replaced
//!   a: open, truncate, chmod, … by the name ─► the file that b made, or none
//! ```

#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use crate::posix_pair::{Mounted, Pair};
use rustix::fs::{Timestamps, XattrFlags, setxattr};

/// Two mounts that believe what they were told for an hour.
fn believing(name: &str) -> Option<Pair> {
    Pair::new(name, "allow_other,attr_timeout=1h")
}

fn append(path: &Path, text: &str) {
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

/// Makes a file by way of a mount that then believes in it.
fn known(mount: &Mounted, name: &str, content: &str) {
    fs::write(mount.join(name), content).unwrap();
    assert_eq!(text(&mount.join(name)), content);
}

/// Puts another file in the place of one.
fn replace(mount: &Mounted, name: &str, content: &str) {
    fs::write(mount.join("new"), content).unwrap();
    fs::rename(mount.join("new"), mount.join(name)).unwrap();
}

#[test]
fn write_to_a_name_that_another_node_removed_creates_the_file() {
    let Some(pair) = believing("removed") else { return };
    for round in 0..20 {
        known(&pair.a, "file", "old");
        fs::remove_file(pair.b.join("file")).unwrap();
        fs::write(pair.a.join("file"), format!("new {round}")).unwrap();
        assert_eq!(text(&pair.beside("file")), format!("new {round}"));
        fs::remove_file(pair.a.join("file")).unwrap();
    }
    known(&pair.a, "file", "old");
    fs::remove_file(pair.b.join("file")).unwrap();
    assert_eq!(File::open(pair.a.join("file")).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn append_to_a_log_that_another_node_rotated_opens_the_new_log() {
    let Some(pair) = believing("rotated") else { return };
    for round in 0..10 {
        append(&pair.a.join("log"), "before\n");
        fs::rename(pair.b.join("log"), pair.b.join(&format!("log.{round}"))).unwrap();
        append(&pair.a.join("log"), "after\n");
        assert_eq!(text(&pair.beside(&format!("log.{round}"))), "before\n");
        assert_eq!(text(&pair.beside("log")), "after\n");
        fs::remove_file(pair.b.join("log")).unwrap();
    }
}

#[test]
fn open_of_a_file_that_another_node_replaced_opens_the_new_file() {
    let Some(pair) = believing("replaced") else { return };
    known(&pair.a, "file", "first");
    for round in 0..20 {
        let content = format!("round {round}");
        replace(&pair.b, "file", &content);
        assert_eq!(text(&pair.a.join("file")), content);
    }
}

#[test]
fn missing_name_is_found_once_another_node_creates_it() {
    let Some(pair) = believing("made") else { return };
    for round in 0..20 {
        let name = format!("file{round}");
        assert_eq!(File::open(pair.a.join(&name)).unwrap_err().kind(), ErrorKind::NotFound);
        fs::write(pair.b.join(&name), "made").unwrap();
        assert_eq!(text(&pair.a.join(&name)), "made");
    }
}

#[test]
fn listing_of_a_directory_that_another_node_replaced_is_of_the_new_directory() {
    let Some(pair) = believing("directory") else { return };
    fs::create_dir(pair.a.join("dir")).unwrap();
    fs::write(pair.a.join("dir/old"), "").unwrap();
    assert_eq!(fs::read_dir(pair.a.join("dir")).unwrap().count(), 1);
    fs::rename(pair.b.join("dir"), pair.b.join("away")).unwrap();
    fs::create_dir(pair.b.join("dir")).unwrap();
    assert_eq!(fs::read_dir(pair.a.join("dir")).unwrap().count(), 0);
}

#[test]
fn second_lookup_of_one_name_leaves_other_names_checked() {
    let Some(pair) = believing("again") else { return };
    for round in 0..10 {
        known(&pair.a, "gone", "old");
        known(&pair.a, "replaced", "old");
        replace(&pair.b, "replaced", "new");
        fs::remove_file(pair.b.join("gone")).unwrap();
        // Both are looked for once more, here and now.
        assert_eq!(File::open(pair.a.join("gone")).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(text(&pair.a.join("replaced")), "new");
        let (later, content) = (format!("later{round}"), format!("round {round}"));
        fs::write(pair.b.join(&later), "old").unwrap();
        assert_eq!(fs::metadata(pair.a.join(&later)).unwrap().len(), 3);
        replace(&pair.b, &later, &content);
        assert_eq!(text(&pair.a.join(&later)), content);
    }
}

#[test]
fn attributes_set_by_a_path_are_those_of_the_file_that_has_the_name_now() {
    let Some(pair) = believing("attributes") else { return };
    type Change = (&'static str, fn(&Path));
    let changes: [Change; 6] = [
        ("truncate", |path| {
            let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
            nix::unistd::truncate(path.as_c_str(), 1).unwrap();
        }),
        ("chmod", |path| fs::set_permissions(path, Permissions::from_mode(0o604)).unwrap()),
        ("chown", |path| chown(path, Some(7), Some(8)).unwrap()),
        ("utimes", |path| {
            let time = rustix::fs::Timespec { tv_sec: 1_000, tv_nsec: 0 };
            let times = Timestamps { last_access: time, last_modification: time };
            rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::empty())
                .unwrap();
        }),
        ("setxattr", |path| setxattr(path, "user.a", b"b", XattrFlags::empty()).unwrap()),
        ("setxattr that must make it", |path| {
            setxattr(path, "user.a", b"b", XattrFlags::CREATE).unwrap();
        }),
    ];
    for (what, change) in changes {
        // Open here all the time: the change could go to this one.
        known(&pair.a, "file", "old file");
        let old = File::open(pair.a.join("file")).unwrap();
        fs::rename(pair.b.join("file"), pair.b.join("away")).unwrap();
        fs::write(pair.b.join("file"), "new file").unwrap();
        let state = |path: &Path| {
            let meta = fs::metadata(path).unwrap();
            let names = rustix::fs::listxattr(path, &mut [0; 99][..]).unwrap();
            (meta.len(), meta.mode(), meta.uid(), meta.gid(), meta.mtime(), names)
        };
        let before = [state(&pair.beside("away")), state(&pair.beside("file"))];
        change(&pair.a.join("file"));
        assert_eq!(state(&pair.beside("away")), before[0], "{what}");
        assert_ne!(state(&pair.beside("file")), before[1], "{what}");
        drop(old);
        fs::remove_file(pair.b.join("file")).unwrap();
        fs::remove_file(pair.b.join("away")).unwrap();
    }
}

#[test]
fn attributes_set_by_a_descriptor_are_those_of_its_file_wherever_that_is() {
    let Some(pair) = believing("descriptor") else { return };
    known(&pair.a, "file", "old file");
    let file = OpenOptions::new().read(true).write(true).open(pair.a.join("file")).unwrap();
    fs::rename(pair.b.join("file"), pair.b.join("away")).unwrap();
    fs::write(pair.b.join("file"), "new file").unwrap();
    file.set_permissions(Permissions::from_mode(0o604)).unwrap();
    file.set_len(3).unwrap();
    rustix::fs::fsetxattr(&file, "user.a", b"b", XattrFlags::empty()).unwrap();
    std::os::unix::fs::fchown(&file, Some(7), None).unwrap();
    let away = fs::metadata(pair.beside("away")).unwrap();
    assert_eq!((away.mode() & 0o777, away.len(), away.uid()), (0o604, 3, 7));
    assert_eq!(text(&pair.beside("file")), "new file");
    // Opened anew without a name: still that file.
    let again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    assert_eq!(again.metadata().unwrap().ino(), file.metadata().unwrap().ino());
}

#[test]
fn a_file_with_several_names_is_checked_by_all_of_them() {
    let Some(pair) = believing("links") else { return };
    for [used, changed] in [["one", "other"], ["other", "one"], ["one", "one"]] {
        known(&pair.a, "one", "both");
        fs::hard_link(pair.a.join("one"), pair.a.join("other")).unwrap();
        assert_eq!(text(&pair.a.join("other")), "both");
        replace(&pair.b, changed, "changed");
        let expected = if used == changed { "changed" } else { "both" };
        assert_eq!(text(&pair.a.join(used)), expected, "{used} after a change of {changed}");
        assert_eq!(text(&pair.a.join(changed)), "changed");
        fs::remove_file(pair.a.join("one")).unwrap();
        fs::remove_file(pair.a.join("other")).unwrap();
    }
}

#[test]
fn a_file_with_very_many_names_is_right_by_each() {
    let Some(pair) = believing("many-links") else { return };
    known(&pair.a, "name0", "all");
    for number in 1..100 {
        fs::hard_link(pair.a.join("name0"), pair.a.join(&format!("name{number}"))).unwrap();
    }
    for number in 0..100 {
        let name = format!("name{number}");
        assert_eq!(text(&pair.a.join(&name)), "all");
        replace(&pair.b, &name, "one");
        assert_eq!(text(&pair.a.join(&name)), "one", "{name}");
    }
}

#[test]
fn what_this_mount_itself_renames_and_removes_is_known_to_it() {
    let Some(pair) = believing("itself") else { return };
    known(&pair.a, "file", "content");
    let file = File::open(pair.a.join("file")).unwrap();
    fs::rename(pair.a.join("file"), pair.a.join("moved")).unwrap();
    assert_eq!(text(&pair.a.join("moved")), "content");
    file.set_permissions(Permissions::from_mode(0o600)).unwrap();
    fs::remove_file(pair.a.join("moved")).unwrap();
    file.set_permissions(Permissions::from_mode(0o640)).unwrap();
    let again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    assert_eq!(again.metadata().unwrap().mode() & 0o777, 0o640);
}
