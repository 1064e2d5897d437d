//! The name by which a message reached a file, for rules that match by directory or project and for
//! entitlements of directories.
//!
//! Only for mounts, which name files by handle, and only while these ask: see handle_paths.rs.

use std::sync::Arc;

use rustix::io::Errno;

use super::{Context, On};
use crate::export::{Export, ExportNode};
use crate::fids::OpenFid;
use crate::handle_paths::KnownFile;
use crate::location::join;

/// How a file came to be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reached<'a> {
    /// Its path below the export, if it was reached by a name.
    pub(super) path: Option<&'a [u8]>,
    /// It was made by this message, in the message's directory.
    pub(super) made: bool,
}

impl On<'_> {
    /// Notes the location of the file behind a handle, if rules need it.
    pub(super) fn learn(
        &self,
        handle: &[u8],
        node: &ExportNode,
        export: &Export,
        how: Reached<'_>,
    ) {
        self.learn_in(None, handle, node, export, how);
    }

    /// Learns about a file that was made in a directory whose project may be its own.
    fn learn_in(
        &self,
        dir: Option<&[u8]>,
        handle: &[u8],
        node: &ExportNode,
        export: &Export,
        how: Reached<'_>,
    ) {
        let wanted = export.target.gate.wanted();
        let Some(mount) = self.mount().filter(|_| wanted.anything()) else { return };
        let project = export.project_of(node);
        let linked = node.has_several_names().then(|| node.key());
        // Facts of a file from an open stay known when it is only looked up again.
        let wants_before = linked.is_some() || how.path.is_none() || project.is_none();
        let before = if wants_before { mount.names.known(handle) } else { None };
        let before = before.unwrap_or_default();
        let kernel = if how.path.is_none() { export.kernel_path(node) } else { None };
        let path = how.path.or(kernel.as_deref()).unwrap_or(&before.path);
        if linked.is_none() {
            export.links.forget(node.key(), || node.names_now() <= 1);
        } else if wanted.names() {
            let rules = export.target.gate.rules();
            // The name by which this client knew it until now is one of its names, too.
            for name in [&*before.path, path].into_iter().filter(|name| !name.is_empty()) {
                export.links.add(node.key(), name, &rules);
            }
        }
        // Where the kernel does not say, what is made in a directory has what that hands on.
        let handed_on = || {
            let known = mount.names.known(dir?)?;
            known.project.filter(|_| how.made && known.inherits)
        };
        let (id, inherits) = match project {
            Some(project) => (Some(project.id), project.inherits),
            None => (before.project.or_else(handed_on), before.inherits),
        };
        let mark = export.mark_of(path);
        let known = KnownFile { path: path.into(), mark, project: id, inherits, linked };
        if !known.path.is_empty() || !wanted.names() {
            mount.names.insert(handle, known);
        }
    }

    /// Looks up the unknown location of a handle's file, for the messages that follow.
    pub(super) fn learn_unknown(&self, handle: &[u8], node: &ExportNode, export: &Export) {
        let Some(mount) = self.mount().filter(|_| export.target.gate.wanted().anything()) else {
            return;
        };
        if !mount.names.has(handle) {
            self.learn(handle, node, export, Reached::default());
        }
    }
}

impl Context<'_> {
    /// Returns the path of the message's own file, if rules need paths and it is known.
    pub(super) fn own_path(&self) -> Option<Box<[u8]>> {
        self.path_of_fid(self.fid(), self.handle)
    }

    fn path_of_fid(&self, fid: &OpenFid, handle: Option<&[u8]>) -> Option<Box<[u8]>> {
        let export = &fid.user.export;
        if !export.target.gate.wanted().names() {
            return None;
        }
        let known = handle.zip(self.mount()).and_then(|(handle, it)| it.names.known(handle));
        match known {
            Some(known) if !known.path.is_empty() => Some(known.path),
            _ => export.kernel_path(&fid.node).map(Into::into),
        }
    }

    /// The path by which `name` reaches a file from the message's own; empty: it is that itself.
    pub(super) fn path_to(&self, name: &[u8]) -> Option<Box<[u8]>> {
        match name {
            b"." | b".." => None,
            b"" => self.own_path(),
            name => self.own_path().map(|dir| join(&dir, name)),
        }
    }

    /// Notes where a file lies that this message reached or made.
    pub(super) fn learn_reached(&self, handle: &[u8], node: &ExportNode, how: Reached<'_>) {
        self.learn_in(self.handle, handle, node, &self.fid().user.export, how);
    }

    /// Notes a renamed file: requests by handle count at the new name.
    pub(super) fn learn_renamed(&self, dir: &OpenFid, name: &[u8]) {
        let export = &self.fid().user.export;
        if self.mount().is_none() || !export.target.gate.wanted().anything() {
            return;
        }
        // Somebody may have renamed it again: then it is known where it is looked up next.
        let Ok(node) = dir.node.lookup(name, export) else { return };
        let Ok(handle) = export.handles.of(&node, export) else { return };
        let path = self.path_of_fid(dir, None).map(|dir| join(&dir, name));
        let how = Reached { path: path.as_deref(), made: false };
        self.learn_reached(&handle, &node, how);
    }

    /// Notes both names of a file that was linked: it lies in the directories of both.
    ///
    /// # Errors
    /// `EXDEV` if there is no room for the name and the link leads out of a directory that rules
    /// name: the link must be undone.
    pub(super) fn learn_link(
        &self,
        file: &Arc<OpenFid>,
        named: ninep::Fid,
        name: &[u8],
    ) -> Result<(), Errno> {
        let export = &file.user.export;
        if !export.target.gate.wanted().names() {
            return Ok(());
        }
        let Some(link) = self.path_of_fid(self.fid(), None).map(|dir| join(&dir, name)) else {
            return Ok(());
        };
        let (rules, key) = (export.target.gate.rules(), file.node.key());
        let looked_up = self.path_of_fid(file, self.handles.get(named));
        let kernel = export.kernel_path(&file.node);
        if looked_up.is_none() && kernel.is_none() {
            export.links.add(key, &link, &rules);
        }
        // Which of them is right is not asked: one that is not adds a directory at most.
        for known in [looked_up.as_deref(), kernel.as_deref()].into_iter().flatten() {
            if !export.links.add_link(key, known, &link, &rules) {
                return Err(Errno::XDEV);
            }
        }
        Ok(())
    }
}
