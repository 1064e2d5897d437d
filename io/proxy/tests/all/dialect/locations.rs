//! Where a file lies, for rules on `path` and `projid`: what names a file by handle counts in the
//! directory of the name that was looked up, and a file with several names in all of theirs.
//!
//! What a request was counted as shows in the sums of the classes, whatever the machine's speed.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use api::ProjectsKnown;
use ninep::{SetAttributes, open, setattr};

use crate::peer::errno::*;
use crate::peer::{
    P9Channel, Served, Setup, USER, everybodys, root_here, skip, until, write_as_user,
};

/// A class for the directory, and one for all else.
const DIRECTORY: &str = "
[[rule]]
name = \"dir\"
match = \"path={/dir}\"

[[rule]]
name = \"rest\"
";

/// Requests, and bytes written and read, that the classes of a rule were served. A request is
/// counted once it is over, which may be after its answer.
fn served_to(served: &Served, rule: &str) -> (u64, u64) {
    let mut classes = Vec::new();
    until("nothing is under way", || {
        classes = served.control().classes().classes;
        classes.iter().all(|class| class.usage.queued + class.usage.running == 0)
    });
    let of = classes.iter().filter(|class| class.rule == rule).map(|class| &class.usage);
    of.fold((0, 0), |(requests, bytes), usage| {
        (requests + usage.requests, bytes + usage.read_bytes + usage.written_bytes)
    })
}

/// What `dir` was served by what `act` does.
fn counted<T>(served: &Served, act: impl FnOnce() -> T) -> ((u64, u64), T) {
    let before = served_to(served, "dir");
    let result = act();
    let after = served_to(served, "dir");
    ((after.0 - before.0, after.1 - before.1), result)
}

/// A server with `dir/f` and the directory `other`, and a mount's session with it.
fn with_file(name: &str, rules: &str) -> (Served, P9Channel) {
    let served = Setup::new(name).rules(rules).start();
    for dir in ["dir", "other"] {
        fs::create_dir(served.data().join(dir)).unwrap();
        everybodys(&served.data().join(dir));
    }
    write_as_user(&served.data().join("dir/f"), b"content");
    let client = served.client();
    (served, client)
}

/// The handle of a file at a path below the export, looked up name by name.
fn handle(client: &mut P9Channel, path: &str) -> Vec<u8> {
    let root = client.root.clone();
    path.split('/').fold(root, |dir, name| client.lookup(&dir, name).unwrap().handle)
}

/// How many bytes of a write through a newly opened fid count to `dir`.
fn written(served: &Served, client: &mut P9Channel, handle: &[u8]) -> u64 {
    let (counted, ()) = counted(served, || {
        client.open(handle, 9, "", open::RDWR, 0).unwrap();
        client.write(9, 0, &[1; 1000]).unwrap();
        client.clunk(9).unwrap();
    });
    counted.1
}

#[test]
fn metadata_by_handle_counts_in_the_directory_that_was_looked_up() {
    if !root_here() {
        return;
    }
    let (served, mut client) = with_file("by-handle", DIRECTORY);
    let (dir, file) = (handle(&mut client, "dir"), handle(&mut client, "dir/f"));
    let set = SetAttributes { valid: setattr::MODE, mode: 0o640, ..SetAttributes::default() };
    let (inside, ()) = counted(&served, || {
        client.stat(&file).unwrap();
        client.change(&file, set).unwrap();
        client.lookup(&dir, "f").unwrap();
        assert_eq!(client.lookup(&dir, "absent"), Err(ENOENT));
        client.getxattr(&file, "user.none", 0).unwrap_err();
        client.open(&dir, 1, "new", open::RDWR | open::CREATE, 0o644).unwrap();
        client.clunk(1).unwrap();
        client.unlink(&dir, "new", 0).unwrap();
    });
    assert_eq!(inside.0, 8);
    let root = client.root.clone();
    let (outside, ()) = counted(&served, || {
        client.stat(&root).unwrap();
        client.lookup(&root, "dir").unwrap();
        client.mkdir("made").unwrap();
    });
    assert_eq!(outside.0, 0);
}

#[test]
fn metadata_of_what_was_only_listed_or_just_made_counts_too() {
    if !root_here() {
        return;
    }
    let (served, mut client) = with_file("listed", DIRECTORY);
    let dir = handle(&mut client, "dir");
    client.open(&dir, 1, "", open::RDONLY | open::DIRECTORY, 0).unwrap();
    let listed = client.list_all(1, 0, 4096);
    let file = listed.into_iter().find(|entry| entry.name == "f").unwrap().file.unwrap().handle;
    assert_eq!(counted(&served, || client.stat(&file).unwrap()).0.0, 1);
    let made = client.make(&dir, "sub", 0o040_755, 0, "").unwrap().handle;
    let created = client.open(&made, 2, "deep", open::RDWR | open::CREATE, 0o644).unwrap();
    let both = || (client.stat(&made).unwrap(), client.stat(&created.file.handle).unwrap());
    assert_eq!(counted(&served, both).0.0, 2);
}

#[test]
fn a_handle_from_before_the_rules_or_of_an_earlier_session_counts_from_its_second_message_on() {
    if !root_here() {
        return;
    }
    let (served, mut client) = with_file("earlier", "");
    let file = handle(&mut client, "dir/f");
    served.set_rules(DIRECTORY);
    client.stat(&file).unwrap();
    assert_eq!(counted(&served, || client.stat(&file).unwrap()).0.0, 1);
    let mut other = served.client();
    other.stat(&file).unwrap();
    assert_eq!(counted(&served, || other.stat(&file).unwrap()).0.0, 1);
    // Other rules are asked about the names that are known.
    served.set_rules(&DIRECTORY.replace("/dir", "/other"));
    assert_eq!(counted(&served, || client.stat(&file).unwrap()).0.0, 0);
    served.set_rules(DIRECTORY);
    assert_eq!(counted(&served, || client.stat(&file).unwrap()).0.0, 1);
}

#[test]
fn a_renamed_file_counts_where_its_new_name_is() {
    if !root_here() {
        return;
    }
    let (served, mut client) = with_file("renamed", DIRECTORY);
    let (dir, other) = (handle(&mut client, "dir"), handle(&mut client, "other"));
    let file = handle(&mut client, "dir/f");
    client.rename((&dir, "f"), (&other, "g")).unwrap();
    assert_eq!(counted(&served, || client.stat(&file).unwrap()).0.0, 0);
    assert_eq!(written(&served, &mut client, &file), 0);
    client.rename((&other, "g"), (&dir, "f")).unwrap();
    assert_eq!(counted(&served, || client.stat(&file).unwrap()).0.0, 1);
    assert_eq!(written(&served, &mut client, &file), 1000);
}

#[test]
fn a_hard_link_does_not_take_a_file_out_of_its_meter() {
    if !root_here() {
        return;
    }
    let (served, mut client) = with_file("linked", DIRECTORY);
    let (dir, root) = (handle(&mut client, "dir"), client.root.clone());
    let file = handle(&mut client, "dir/f");
    assert_eq!(written(&served, &mut client, &file), 1000);
    client.link(&file, &root, "link").unwrap();
    assert_eq!(written(&served, &mut client, &file), 1000, "by the name it had");
    let link = handle(&mut client, "link");
    assert_eq!(link, file);
    assert_eq!(written(&served, &mut client, &link), 1000, "by the other name");
    assert_eq!(counted(&served, || client.stat(&link).unwrap()).0.0, 1);
    // Another client has never seen the first name.
    let mut other = served.client();
    let link = handle(&mut other, "link");
    assert_eq!(counted(&served, || other.stat(&link).unwrap()).0.0, 1);
    assert_eq!(written(&served, &mut other, &link), 1000);
    // Nor has one that walks.
    let mut walker = testkit::p9::P9Client::open_door(&served.tcp());
    walker.version(1 << 16);
    walker.attach(0, "x", USER).unwrap();
    walker.open_name(1, "link", open::RDWR).unwrap();
    assert_eq!(counted(&served, || walker.write(1, 0, &[2; 1000]).unwrap()).0.1, 1000);
    // Rules that come later know both names.
    served.set_rules("");
    served.set_rules(DIRECTORY);
    assert_eq!(written(&served, &mut other, &link), 1000);
    // So does a session that begins after the configuration was read again.
    served.reload();
    let mut later = served.client();
    let link = handle(&mut later, "link");
    assert_eq!(written(&served, &mut later, &link), 1000);
    // With one name left, it lies where that is.
    client.unlink(&dir, "f", 0).unwrap();
    let link = handle(&mut other, "link");
    assert_eq!(written(&served, &mut other, &link), 0);
    assert_eq!(counted(&served, || other.stat(&link).unwrap()).0.0, 0);
}

#[test]
fn a_link_inside_and_one_outside_do_not_help_when_the_first_name_goes() {
    if !root_here() {
        return;
    }
    let (served, mut client) = with_file("linked-twice", DIRECTORY);
    let (dir, root) = (handle(&mut client, "dir"), client.root.clone());
    let file = handle(&mut client, "dir/f");
    client.link(&file, &dir, "also").unwrap();
    client.link(&file, &root, "out").unwrap();
    client.unlink(&dir, "f", 0).unwrap();
    let out = handle(&mut client, "out");
    assert_eq!(written(&served, &mut client, &out), 1000);
    client.rename((&dir, "also"), (&dir, "again")).unwrap();
    let out = handle(&mut client, "out");
    assert_eq!(written(&served, &mut client, &out), 1000);
}

#[test]
fn a_link_that_was_made_beside_the_proxy_counts_by_all_names_that_were_looked_up() {
    if !root_here() {
        return;
    }
    let (served, mut client) = with_file("linked-beside", DIRECTORY);
    fs::hard_link(served.data().join("dir/f"), served.data().join("link")).unwrap();
    handle(&mut client, "dir/f");
    let link = handle(&mut client, "link");
    assert_eq!(written(&served, &mut client, &link), 1000);
    assert_eq!(counted(&served, || client.stat(&link).unwrap()).0.0, 1);
    let mut walker = testkit::p9::P9Client::open_door(&served.tcp());
    walker.version(1 << 16);
    walker.attach(0, "x", USER).unwrap();
    walker.open_name(1, "link", open::RDWR).unwrap();
    assert_eq!(counted(&served, || walker.write(1, 0, &[2; 1000]).unwrap()).0.1, 1000);
}

// ---- projects ----

/// A file system with project ids in a file; unmounted when dropped.
pub(crate) struct Projects {
    pub(crate) dir: PathBuf,
    image: PathBuf,
}

impl Projects {
    /// `None`, said aloud, where none can be made or mounted: ext4 needs a kernel with quotas.
    fn mount(name: &str) -> Option<Projects> {
        if !root_here() {
            return None;
        }
        let dir = testkit::place(name);
        let made = Projects { image: dir.with_extension("img"), dir };
        fs::create_dir_all(&made.dir).unwrap();
        let kinds: [(&str, &[&str], u64, &str); 2] = [
            ("mkfs.ext4", &["-q", "-F", "-O", "project,quota"], 64 << 20, "loop,prjquota"),
            ("mkfs.xfs", &["-q", "-f"], 400 << 20, "loop"),
        ];
        for (mkfs, options, size, mount) in kinds {
            fs::File::create(&made.image).unwrap().set_len(size).unwrap();
            let ran = |command: &mut Command| command.output().is_ok_and(|it| it.status.success());
            if ran(Command::new(mkfs).args(options).arg(&made.image))
                && ran(Command::new("mount").args(["-o", mount]).arg(&made.image).arg(&made.dir))
            {
                everybodys(&made.dir);
                return Some(made);
            }
        }
        skip("no ext4 or XFS with project ids can be made and mounted here");
        None
    }

    /// A directory whose project is handed on to what is made in it.
    fn directory(&self, name: &str, project: u32) {
        let at = self.dir.join(name);
        fs::create_dir(&at).unwrap();
        let set = Command::new("chattr").args(["+P", "-p", &project.to_string()]).arg(&at).output();
        assert!(set.unwrap().status.success(), "chattr sets a project");
        everybodys(&at);
    }
}

impl Drop for Projects {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.dir).output();
        let _ = fs::remove_dir(&self.dir);
        let _ = fs::remove_file(&self.image);
    }
}

/// A server of such a file system, in which `seven` is a directory of project 7.
pub(crate) fn projects(name: &str) -> Option<(Projects, Served)> {
    let disk = Projects::mount(name)?;
    disk.directory("seven", 7);
    let table = format!("[[export]]\nname = \"x\"\ndir = \"{}\"\n", disk.dir.display());
    Some((disk, Setup::new(name).tables(&table).rules(PROJECTS).start()))
}

const PROJECTS: &str = "
[[rule]]
name = \"dir\"
match = \"projid={7}\"

[[rule]]
name = \"unknown\"
match = \"projid={-1}\"

[[rule]]
name = \"rest\"
";

/// Whether this kernel tells the project of a file without an open, as the proxy says.
fn tells_without_an_open(served: &Served) -> bool {
    let known = served.control().rules().projid[0].known;
    if known != ProjectsKnown::Files {
        skip("the half about a kernel with file_getattr(2)");
    }
    known == ProjectsKnown::Files
}

#[test]
fn the_project_is_the_files_own_and_that_of_the_directory_for_what_is_made() {
    let Some((disk, served)) = projects("projects") else { return };
    write_as_user(&disk.dir.join("free"), b"free");
    let mut client = served.client();
    let root = client.root.clone();
    let free = client.lookup(&root, "free").unwrap().handle;
    let seven = client.lookup(&root, "seven").unwrap().handle;
    assert_eq!(written(&served, &mut client, &free), 0);
    let (inside, ()) = counted(&served, || {
        client.open(&seven, 1, "f", open::RDWR | open::CREATE, 0o644).unwrap();
        client.write(1, 0, &[1; 500]).unwrap();
        client.clunk(1).unwrap();
    });
    assert_eq!(inside.1, 500);
    // Through a name outside of the directory, too: it is the file's, not the directory's.
    let mut walker = testkit::p9::P9Client::open_door(&served.tcp());
    walker.version(1 << 16);
    walker.attach(0, "x", USER).unwrap();
    fs::rename(disk.dir.join("seven/f"), disk.dir.join("moved")).unwrap();
    walker.open_name(2, "moved", open::RDWR).unwrap();
    assert_eq!(counted(&served, || walker.write(2, 0, &[2; 300]).unwrap()).0.1, 300);
    // Rules that come while it is open ask it again.
    served.set_rules("");
    served.set_rules(PROJECTS);
    assert_eq!(counted(&served, || walker.write(2, 0, &[2; 300]).unwrap()).0.1, 300);
}

#[test]
fn a_file_that_is_only_looked_up_is_of_its_project_or_of_none_that_is_known() {
    let Some((disk, served)) = projects("unopened") else { return };
    write_as_user(&disk.dir.join("seven/f"), b"content");
    let known = tells_without_an_open(&served);
    let mut client = served.client();
    let file = handle(&mut client, "seven/f");
    let before = served_to(&served, "unknown").0;
    let (inside, _) = counted(&served, || client.stat(&file).unwrap());
    assert_eq!((inside.0 == 1, served_to(&served, "unknown").0 - before == 0), (known, known));
    // What the open tells is known from then on.
    client.open(&file, 1, "", open::RDONLY, 0).unwrap();
    assert_eq!(counted(&served, || client.stat(&file).unwrap()).0.0, 1);
    handle(&mut client, "seven/f");
    assert_eq!(counted(&served, || client.stat(&file).unwrap()).0.0, 1, "looked up again");
    // A special file cannot be opened for it: it has what its directory hands on.
    let seven = handle(&mut client, "seven");
    client.open(&seven, 2, "", open::RDONLY | open::DIRECTORY, 0).unwrap();
    let made = client.make(&seven, "sub", 0o040_755, 0, "").unwrap().handle;
    assert_eq!(counted(&served, || client.stat(&made).unwrap()).0.0, 1);
}
