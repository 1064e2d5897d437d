//! Directories that another node removes while this one is in them: what a local disk says, the mount says.
//!
//! ```text
//!   a: open, listed, gone into      b: removed, or made anew under the same name
//!   a: by the descriptor ─► what a directory without a name answers: ENOENT
//!   a: by the path ───────► the new directory
//! ```

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use crate::common::PATIENCE;
use crate::posix_pair::Pair;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, RenameFlags};
use rustix::io::Errno;

/// What is done in a directory that is open, and what comes of it. A name that is only looked at may be
/// believed, and is not among them.
type Call = (&'static str, fn(&File) -> Result<(), Errno>);

const CALLS: [Call; 14] = [
    ("look at what was not there", |dir| {
        rustix::fs::statat(dir, "none", AtFlags::SYMLINK_NOFOLLOW).map(drop)
    }),
    ("open", |dir| rustix::fs::openat(dir, "file", OFlags::RDONLY, Mode::empty()).map(drop)),
    ("open a directory", |dir| {
        rustix::fs::openat(dir, "sub", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).map(drop)
    }),
    ("open below", |dir| {
        rustix::fs::openat(dir, "sub/file", OFlags::RDONLY, Mode::empty()).map(drop)
    }),
    ("make a file", |dir| {
        let flags = OFlags::WRONLY | OFlags::CREATE;
        rustix::fs::openat(dir, "made", flags, Mode::RUSR).map(drop)
    }),
    ("make a directory", |dir| rustix::fs::mkdirat(dir, "made", Mode::RWXU)),
    ("make a pipe", |dir| rustix::fs::mknodat(dir, "made", FileType::Fifo, Mode::RWXU, 0)),
    ("make a link", |dir| rustix::fs::symlinkat("file", dir, "made")),
    ("give a second name", |dir| rustix::fs::linkat(dir, "file", dir, "made", AtFlags::empty())),
    ("rename", |dir| rustix::fs::renameat_with(dir, "file", dir, "made", RenameFlags::empty())),
    ("change", |dir| rustix::fs::chmodat(dir, "file", Mode::RUSR, AtFlags::empty())),
    ("remove", |dir| rustix::fs::unlinkat(dir, "file", AtFlags::empty())),
    ("remove a directory", |dir| rustix::fs::unlinkat(dir, "sub", AtFlags::REMOVEDIR)),
    ("look at it", |dir| rustix::fs::fstat(dir).map(drop)),
];

/// Makes a directory with something in it, knows all of it by `here`, and has it removed by `there`.
fn removed_directory(here: &Path, there: &Path) -> File {
    fs::create_dir_all(here.join("dir/sub")).unwrap();
    for name in ["dir/file", "dir/sub/file"] {
        fs::write(here.join(name), name).unwrap();
        fs::metadata(here.join(name)).unwrap();
    }
    let dir = File::open(here.join("dir")).unwrap();
    fs::remove_dir_all(there.join("dir")).unwrap();
    dir
}

/// Whether there is anything in a directory: `ENOENT` is what Linux says of the end of one that was removed.
fn list(dir: &File) -> Result<(), Errno> {
    match RawDir::new(dir, &mut [MaybeUninit::uninit(); 4096]).next() {
        Some(Ok(_)) => Err(Errno::EXIST),
        Some(Err(Errno::NOENT)) | None => Ok(()),
        Some(Err(error)) => Err(error),
    }
}

/// What each call says of a directory that was removed.
fn said(here: &Path, there: &Path, remade: bool) -> Vec<(&'static str, Result<(), Errno>)> {
    let mut said = Vec::new();
    for (what, call) in CALLS {
        let dir = removed_directory(here, there);
        if remade {
            fs::create_dir_all(there.join("dir/sub")).unwrap();
        }
        said.push((what, call(&dir)));
        said.push(("list", list(&dir)));
        drop(dir);
        if remade {
            fs::remove_dir_all(there.join("dir")).unwrap();
        }
    }
    said
}

#[test]
fn directory_that_another_node_removed_is_empty() {
    for options in ["allow_other", "allow_other,attr_timeout=1h", "allow_other,attr_timeout=0"] {
        let Some(pair) = Pair::new("removed-directory", options) else { return };
        let beside = pair.beside("plain");
        fs::create_dir(&beside).unwrap();
        for remade in [false, true] {
            let local = said(&beside, &beside, remade);
            for (by, there) in [("b", &pair.b), ("itself", &pair.a)] {
                let both = said(pair.a.at(), there.at(), remade).into_iter().zip(&local);
                let other: Vec<_> = both.filter(|(here, local)| here != *local).collect();
                assert!(other.is_empty(), "{options}, by {by}, remade {remade}: {other:?}");
            }
        }
    }
}

#[test]
fn path_through_a_directory_that_another_node_recreated_leads_to_the_new_one() {
    let Some(pair) = Pair::new("remade-directory", "allow_other,attr_timeout=1h") else { return };
    type Use = (&'static str, fn(&Path) -> io::Result<()>);
    let uses: [Use; 6] = [
        ("read", |dir| {
            assert_eq!(fs::read_to_string(dir.join("file"))?, "new");
            Ok(())
        }),
        ("look", |dir| {
            assert_eq!(fs::metadata(dir.join("more"))?.len(), 4);
            Ok(())
        }),
        ("write", |dir| fs::write(dir.join("made"), "made")),
        ("make a directory", |dir| fs::DirBuilder::new().mode(0o700).create(dir.join("made"))),
        ("make a link", |dir| symlink("file", dir.join("made"))),
        ("rename", |dir| fs::rename(dir.join("more"), dir.join("made"))),
    ];
    for round in 0..5 {
        for (what, use_it) in uses {
            fs::create_dir_all(pair.a.join("top/dir")).unwrap();
            fs::write(pair.a.join("top/dir/file"), "old").unwrap();
            assert_eq!(fs::read_to_string(pair.a.join("top/dir/file")).unwrap(), "old");
            fs::remove_dir_all(pair.b.join("top/dir")).unwrap();
            fs::create_dir(pair.b.join("top/dir")).unwrap();
            fs::write(pair.b.join("top/dir/file"), "new").unwrap();
            fs::write(pair.b.join("top/dir/more"), "more").unwrap();
            let used = use_it(&pair.a.join("top/dir"));
            assert!(used.is_ok(), "{what}, round {round}: {used:?}");
            if what != "read" && what != "look" {
                assert!(fs::symlink_metadata(pair.beside("top/dir/made")).is_ok(), "{what}");
            }
            fs::remove_dir_all(pair.b.join("top")).unwrap();
        }
    }
}

/// The kernel holds the directory and waits for the file, whose change waits for an answer: that must not wait
/// for the directory.
#[test]
fn a_file_that_was_replaced_elsewhere_is_changed_and_removed_at_once() {
    let Some(pair) = Pair::new("changed-and-removed", "allow_other,attr_timeout=1h") else {
        return;
    };
    for round in 0..20 {
        fs::write(pair.a.join("file"), "old").unwrap();
        fs::metadata(pair.a.join("file")).unwrap();
        fs::write(pair.b.join("new"), "new").unwrap();
        fs::rename(pair.b.join("new"), pair.b.join("file")).unwrap();
        let (tell, ended) = mpsc::channel();
        let calls: [fn(&Path) -> io::Result<()>; 2] = [
            |file| fs::set_permissions(file, Permissions::from_mode(0o600)),
            |file| fs::remove_file(file),
        ];
        for call in calls {
            let (tell, file) = (tell.clone(), pair.a.join("file"));
            // Not waited for: one that hangs ends with the mount.
            thread::spawn(move || tell.send(call(&file)));
        }
        for _ in calls {
            let outcome = ended.recv_timeout(PATIENCE).expect("a call hangs");
            assert!(outcome.or_else(not_there).is_ok(), "round {round}");
        }
        assert!(!pair.beside("file").exists(), "round {round}");
    }
}

/// Makes a tree; gives how many inodes it has.
fn make_tree(at: &Path, depth: usize) -> usize {
    fs::create_dir(at).unwrap();
    for number in 0..12 {
        File::create(at.join(format!("file{number}"))).unwrap();
    }
    let below = if depth == 0 { 0 } else { 3 };
    let made = (0..below).map(|number| make_tree(&at.join(format!("dir{number}")), depth - 1));
    13 + made.sum::<usize>()
}

#[test]
fn two_nodes_that_remove_one_tree_both_succeed() {
    let Some(pair) = Pair::new("two-removals", "allow_other") else { return };
    for round in 0..10 {
        let made = make_tree(&pair.a.join("tree"), 2);
        assert_eq!(made, 13 * 13);
        let remove = |at: PathBuf| {
            Command::new("rm").arg("-rf").arg(at).stdin(Stdio::null()).spawn().unwrap()
        };
        let removers = pair.both().map(|mount| remove(mount.join("tree")));
        for remover in removers {
            let output = remover.wait_with_output().unwrap();
            assert!(output.status.success(), "round {round}: {output:?}");
        }
        assert!(!pair.beside("tree").exists(), "round {round}");
    }
}

/// Makes, renames, looks at and removes files and directories, none under a name that was there before.
/// Gives what went wrong, but for what others have removed.
fn work(tree: &Path, who: usize, rounds: usize) -> BTreeSet<i32> {
    let mut errors = BTreeSet::new();
    for round in 0..rounds {
        let name = |what: &str| tree.join(format!("{what}-{who}-{round}"));
        let outcomes = [
            fs::create_dir_all(name("dir").join("deep")),
            fs::write(name("dir").join("deep/file"), "content"),
            fs::read(name("dir").join("deep/file")).map(drop),
            fs::rename(name("dir").join("deep"), name("moved")),
            fs::metadata(name("moved").join("file")).map(drop),
            fs::write(name("file"), "content"),
            fs::hard_link(name("file"), name("dir").join("link")),
            fs::read_dir(name("moved")).map(|names| names.for_each(drop)),
            fs::remove_file(name("file")),
        ];
        errors.extend(
            outcomes
                .into_iter()
                .filter_map(Result::err)
                .map(|error| error.raw_os_error().expect("what the kernel says")),
        );
    }
    errors.remove(&Errno::NOENT.raw_os_error());
    errors
}

#[test]
fn removal_of_a_tree_in_use_fails_as_on_a_local_disk() {
    let Some(pair) = Pair::new("worked-in", "allow_other") else { return };
    fs::create_dir(pair.a.join("tree")).unwrap();
    let done = AtomicBool::new(false);
    let errors: Vec<BTreeSet<i32>> = thread::scope(|scope| {
        let removers = pair.both().map(|mount| {
            let (done, tree) = (&done, mount.join("tree"));
            scope.spawn(move || {
                let mut errors = BTreeSet::new();
                while !done.load(Ordering::SeqCst) {
                    if let Err(error) = fs::remove_dir_all(&tree)
                        && error.kind() != ErrorKind::DirectoryNotEmpty
                    {
                        errors.extend(error.raw_os_error());
                    }
                }
                errors.remove(&Errno::NOENT.raw_os_error());
                errors
            })
        });
        let workers = [0, 1, 2, 3].map(|who| {
            let tree = pair.both()[who % 2].join("tree");
            scope.spawn(move || work(&tree, who, 60))
        });
        let worked: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        done.store(true, Ordering::SeqCst);
        removers.into_iter().map(|remover| remover.join().unwrap()).chain(worked).collect()
    });
    assert!(errors.iter().all(BTreeSet::is_empty), "{errors:?}");
    fs::remove_dir_all(pair.a.join("tree")).or_else(not_there).unwrap();
    assert_eq!(fs::metadata(pair.a.at()).unwrap().ino(), fs::metadata(pair.b.at()).unwrap().ino());
}

fn not_there(error: io::Error) -> io::Result<()> {
    if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) }
}
