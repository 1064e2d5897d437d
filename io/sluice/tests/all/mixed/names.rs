//! Workers that change names and attributes of names.
//!
//! A step makes a file, a directory, a link and a symbolic link, moves the file, and removes
//! all or some of it again. What is left over is compared as a whole, so that nothing may be
//! missing and nothing too much.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;

use rustix::fs::XattrFlags;

use super::{Checks, Work};

/// What a name has: a file's content, a symbolic link's target, a directory.
type Tree = BTreeMap<String, String>;

/// create-exclusive, mkdir, rename, link, symlink, unlink, rmdir.
pub(super) fn names(work: Work) -> Checks {
    let (folder, mut expected) = (work.folder(), Tree::new());
    let mut round = 0u64;
    while work.goes_on() {
        let text = format!("text of {round}");
        step(&folder, round, &text);
        match round % 16 {
            0 => {
                expected.insert(format!("dir{round}"), "a directory".into());
                expected.insert(format!("dir{round}/moved"), text.clone());
                expected.insert(format!("link{round}"), text.clone());
                expected.insert(format!("symlink{round}"), format!("-> {text}"));
            }
            8 => {
                fs::remove_file(folder.join(format!("dir{round}/moved"))).unwrap();
                fs::remove_dir(folder.join(format!("dir{round}"))).unwrap();
                expected.insert(format!("link{round}"), text.clone());
                expected.insert(format!("symlink{round}"), format!("-> {text}"));
            }
            _ => {
                for gone in ["dir#/moved", "link#", "symlink#"] {
                    fs::remove_file(folder.join(gone.replace('#', &round.to_string()))).unwrap();
                }
                fs::remove_dir(folder.join(format!("dir{round}"))).unwrap();
            }
        }
        round += 1;
    }
    let name = work.name;
    Box::new(move |root| {
        let mut found = Tree::new();
        walk(&root.join(&name), "", &mut found);
        assert_eq!(found, expected);
        let links = |of: &str| fs::metadata(root.join(&name).join(of)).unwrap().nlink();
        assert_eq!(links("link0"), 2);
        assert!(!expected.contains_key("link8") || links("link8") == 1);
    })
}

/// Each of these fails if it is executed twice, and the next one if it is not at all.
fn step(folder: &Path, round: u64, text: &str) {
    let name = |kind: &str| folder.join(format!("{kind}{round}"));
    let mut file = File::create_new(name("file")).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    drop(file);
    let again = File::create_new(name("file")).map(|_| ()).map_err(|error| error.kind());
    assert_eq!(again, Err(ErrorKind::AlreadyExists));
    fs::create_dir(name("dir")).unwrap();
    fs::rename(name("file"), name("dir").join("moved")).unwrap();
    fs::hard_link(name("dir").join("moved"), name("link")).unwrap();
    symlink(text, name("symlink")).unwrap();
    assert_eq!(fs::read_to_string(name("link")).unwrap(), text);
    assert_eq!(fs::read_link(name("symlink")).unwrap(), Path::new(text));
}

fn walk(folder: &Path, before: &str, found: &mut Tree) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{before}{}", entry.file_name().to_str().unwrap());
        let kind = entry.file_type().unwrap();
        let what = match () {
            () if kind.is_dir() => "a directory".to_owned(),
            () if kind.is_symlink() => {
                format!("-> {}", fs::read_link(entry.path()).unwrap().display())
            }
            () => fs::read_to_string(entry.path()).unwrap(),
        };
        let twice = found.insert(name.clone(), what);
        assert_eq!(twice, None, "{name} is listed twice");
        if kind.is_dir() {
            walk(&entry.path(), &format!("{name}/"), found);
        }
    }
}

/// setxattr in its three ways, and removexattr.
pub(super) fn attributes(mut work: Work) -> Checks {
    let path = work.folder().join("file");
    File::create_new(&path).unwrap();
    let mut expected = BTreeMap::<String, String>::new();
    let mut round = 0u64;
    while work.goes_on() {
        let name = format!("user.a{}", work.dice.below(6));
        let value = format!("value {round}");
        let set = |flags| rustix::fs::setxattr(&path, &name, value.as_bytes(), flags).unwrap();
        match (expected.contains_key(&name), work.dice.below(3)) {
            (true, 0) => {
                rustix::fs::removexattr(&path, &name).unwrap();
                expected.remove(&name);
                round += 1;
                continue;
            }
            (true, 1) => set(XattrFlags::REPLACE),
            (false, 0..2) => set(XattrFlags::CREATE),
            _ => set(XattrFlags::empty()),
        }
        expected.insert(name, value);
        round += 1;
    }
    let name = work.name;
    Box::new(move |root| {
        let path = root.join(&name).join("file");
        let mut list = vec![0; 4096];
        let len = rustix::fs::listxattr(&path, &mut list[..]).unwrap();
        let mut found = BTreeMap::new();
        for name in list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let name = String::from_utf8(name.to_vec()).unwrap();
            let mut value = vec![0; 64];
            let len = rustix::fs::getxattr(&path, &name, &mut value[..]).unwrap();
            value.truncate(len);
            found.insert(name, String::from_utf8(value).unwrap());
        }
        assert_eq!(found, expected);
    })
}
