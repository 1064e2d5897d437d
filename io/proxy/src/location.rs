//! Where a file lies, for rules on `path` and `projid` and for entitlements: in which directories
//! that they name, and in which project.
//!
//! ```text
//!   one name      what the kernel says of the open file; the name that was looked up where it
//!                 cannot say
//!   more names    those two, and all that are remembered (hard_links.rs): it lies in the directories
//!                 of each of them
//!   mark          the deepest directory that an entitlement names, by the name that was looked up
//!   project       the file's own: of its descriptor where that is open, by file_getattr(2) where
//!                 it is not and the kernel has that; else not known
//! ```
//!
//! Nothing is opened to find out, and nothing is asked that no rule and no entitlement asks for.

use std::sync::Arc;

use api::ProjectsKnown;
use model::{Directory, FilePlace, PathSet};
use rules::RuleSet;
use rustix::fs::FileType;

use crate::export::{Export, ExportNode};
use crate::sys::Project;

/// Facts of a file for rules and entitlements, beside identity and kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Location {
    /// In which of the directories that rules and entitlements name it lies.
    pub(crate) place: FilePlace,
    /// Its project quota id; `None`, the −1 of rules, is "not known".
    pub(crate) project: Option<u32>,
}

/// Fields of a file that rules and entitlements need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WantedFields {
    pub(crate) paths: bool,
    pub(crate) marks: bool,
    pub(crate) projects: bool,
}

/// Rules with their number: a [`model::PathSet`] is good only for the rules that made it.
#[derive(Clone, Debug)]
pub(crate) struct NumberedRules {
    pub(crate) number: u64,
    pub(crate) set: Arc<RuleSet>,
}

impl WantedFields {
    pub(crate) fn of(rules: &RuleSet) -> WantedFields {
        WantedFields { paths: rules.has_paths(), marks: false, projects: rules.has_projids() }
    }

    pub(crate) fn anything(self) -> bool {
        self.names() || self.projects
    }

    /// Whether it matters by which name a file was reached.
    pub(crate) fn names(self) -> bool {
        self.paths || self.marks
    }
}

impl Export {
    /// Of a file of which nothing is known. Without rules that ask, it counts to the project of
    /// the export's root, so that the sums of a tree that is one project are whole.
    pub(crate) fn unknown(&self) -> Location {
        let project = match self.target.gate.wanted().projects {
            true => None,
            false => self.project.map(|project| project.id),
        };
        Location { place: FilePlace::default(), project }
    }

    /// Returns the place of a file that was reached by `name`, a path below the export, if that is
    /// known; `None` if it cannot be found: a path may be too long. A file with several names is in
    /// the directories of rules of all of them, and has the mark of the one that was looked up.
    pub(crate) fn place_of(&self, node: &ExportNode, name: Option<&[u8]>) -> Option<FilePlace> {
        if !self.target.gate.wanted().names() {
            return Some(FilePlace::default());
        }
        let rules = self.target.gate.rules();
        let kernel = self.kernel_path(node);
        if !node.has_several_names() {
            self.links.forget(node.key(), || node.names_now() <= 1);
            let name = kernel.as_deref().or(name)?;
            let paths = rules.set.path_set(name);
            return Some(FilePlace { paths, mark: self.mark_of(name) });
        }
        let known = self.links.paths(node.key(), &rules);
        let names = [kernel.as_deref(), name].into_iter().flatten();
        let each = names.map(|name| self.links.add(node.key(), name, &rules));
        let paths = each.chain(known).reduce(|all, paths| PathSet(all.0 | paths.0))?;
        let mark = name.or(kernel.as_deref()).and_then(|name| self.mark_of(name));
        Some(FilePlace { paths, mark })
    }

    /// Returns the mark of a file that was reached by `name`, a path below the export.
    pub(crate) fn mark_of(&self, name: &[u8]) -> Option<Directory> {
        let gate = &self.target.gate;
        if !gate.wanted().marks {
            return None;
        }
        let path = Directory::text(&self.name, name);
        gate.with_dispatcher(|d, _| d.mark_of(&path)).flatten()
    }

    /// A file's path as the kernel has it: one of several.
    pub(crate) fn kernel_path(&self, node: &ExportNode) -> Option<Vec<u8>> {
        let path = node.path_below(self).ok()?;
        // A file that was opened by handle while the kernel knew no name of it.
        let nameless = path == b"/" && node.kind != FileType::Directory;
        (!nameless).then_some(path)
    }

    /// The project of a file. That of one that is open costs a call; any other is asked for only if
    /// rules want to know, and where the kernel tells it without an open. A file system without
    /// projects is not asked: it may ask its own server.
    pub(crate) fn project_of(&self, node: &ExportNode) -> Option<Project> {
        match self.projects {
            ProjectsKnown::NoProjects => None,
            ProjectsKnown::OpenFiles => node.project(false),
            ProjectsKnown::Files => node.project(self.target.gate.wanted().projects),
        }
    }

    /// Where a file lies that is in this place.
    pub(crate) fn location(&self, node: &ExportNode, place: FilePlace) -> Location {
        let project = self.project_of(node).map(|project| project.id);
        Location { place, project: project.or(self.unknown().project) }
    }
}

/// The path of a name in the directory at `dir`.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Box<[u8]> {
    let dir = dir.strip_suffix(b"/").unwrap_or(dir);
    [dir, b"/", name].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_joined_below_the_root_too() {
        assert_eq!(&*join(b"/", b"a"), b"/a");
        assert_eq!(&*join(b"/a/b", b"c"), b"/a/b/c");
    }
}
