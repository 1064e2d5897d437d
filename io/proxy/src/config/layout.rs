//! Assignment of exports to targets.
//!
//! An export without a target gets the target of its file system, which `st_dev` identifies.
//! Requests to one file system wait for the same devices, so one scheduler must see all of
//! these requests.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{ConfigError, ExportConfig, LeasePolicy, ProxyConfig, TargetConfig};

/// The exports to serve and the targets that schedule them; every target has an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The exports, in the order of the configuration; at least one.
    pub exports: Vec<ServedExport>,
    /// The targets of the configuration, then the targets of file systems.
    pub targets: Vec<TargetConfig>,
}

/// An exported directory and its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedExport {
    /// The name that clients attach to.
    pub name: String,
    /// The directory, absolute and without symbolic links.
    pub dir: PathBuf,
    /// Whether the proxy refuses every change.
    pub readonly: bool,
    /// What mounts may keep of it under leases.
    pub leases: LeasePolicy,
    /// Its target: an index into [`Layout::targets`].
    pub target: usize,
}

impl ProxyConfig {
    /// Reads the exported directories and assigns each export its target.
    ///
    /// Repeats the checks of the file, since flags may have changed values.
    pub fn layout(&self) -> Result<Layout, ConfigError> {
        self.check().map_err(|fault| fault.without_text())?;
        let value = |message: &str| ConfigError::Value { message: message.into() };
        if self.export.is_empty() {
            return Err(value("no exports; add --export NAME=DIR, or an [[export]] to --config"));
        }
        if self.listen.is_empty() {
            return Err(value(
                "no addresses to listen on; add --listen tcp://IP:PORT or unix:///path",
            ));
        }
        let mut targets = Targets { targets: self.target.clone(), devices: Vec::new() };
        let mut exports = Vec::new();
        for export in &self.export {
            exports.push(targets.serve(export)?);
        }
        for (index, target) in self.target.iter().enumerate() {
            if !exports.iter().any(|export| export.target == index) {
                return Err(value(&format!(
                    "no export uses the target {:?}; name it in an [[export]], or rename it \
                     to the mount point of one",
                    target.name
                )));
            }
        }
        Ok(Layout { exports, targets: targets.targets })
    }
}

struct Targets {
    targets: Vec<TargetConfig>,
    /// The targets that file systems got: `st_dev`, index into `targets`.
    devices: Vec<(u64, usize)>,
}

impl Targets {
    fn serve(&mut self, export: &ExportConfig) -> Result<ServedExport, ConfigError> {
        let failed = |source| ConfigError::ExportDir {
            name: export.name.clone(),
            dir: export.dir.clone(),
            source,
        };
        let dir = fs::canonicalize(&export.dir).map_err(failed)?;
        let metadata = fs::metadata(&dir).map_err(failed)?;
        if !metadata.is_dir() {
            return Err(failed(io::ErrorKind::NotADirectory.into()));
        }
        let target = match export.target.as_deref().and_then(|name| self.named(name)) {
            Some(index) => index,
            None => self.of_file_system(&dir, metadata.dev()).map_err(failed)?,
        };
        let (name, readonly, leases) = (export.name.clone(), export.readonly, export.leases);
        Ok(ServedExport { name, dir, readonly, leases, target })
    }

    fn named(&self, name: &str) -> Option<usize> {
        self.targets.iter().position(|target| target.name == name)
    }

    fn of_file_system(&mut self, dir: &Path, device: u64) -> io::Result<usize> {
        if let Some((_, index)) = self.devices.iter().find(|(known, _)| *known == device) {
            return Ok(*index);
        }
        let name = mount_point(dir, device)?.display().to_string();
        let index = self.named(&name).unwrap_or_else(|| {
            self.targets.push(TargetConfig::of_file_system(name));
            self.targets.len() - 1
        });
        self.devices.push((device, index));
        Ok(index)
    }
}

/// Finds the topmost parent of `dir` on the same file system.
///
/// `dir` has no symbolic links, so each parent is the one that the kernel would use.
fn mount_point(dir: &Path, device: u64) -> io::Result<PathBuf> {
    let mut point = dir;
    while let Some(parent) = point.parent() {
        if fs::metadata(parent)?.dev() != device {
            break;
        }
        point = parent;
    }
    Ok(point.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exporting(dirs: &[&Path]) -> ProxyConfig {
        let export =
            dirs.iter().enumerate().map(|(i, dir)| ExportConfig::new(&format!("e{i}"), dir));
        ProxyConfig { export: export.collect(), ..ProxyConfig::default() }
    }

    fn target(name: &str) -> TargetConfig {
        TargetConfig { slots_max: Some(7), ..TargetConfig::of_file_system(name.into()) }
    }

    #[test]
    fn exports_of_one_file_system_share_a_target_named_after_its_mount_point() {
        let layout = exporting(&[Path::new("/proc/self"), Path::new("/proc/sys")]).layout();
        let layout = layout.unwrap();
        assert_eq!(layout.targets, [TargetConfig::of_file_system("/proc".into())]);
        assert_eq!(layout.exports.iter().map(|e| e.target).collect::<Vec<_>>(), [0, 0]);
    }

    #[test]
    fn exports_of_two_file_systems_have_two_targets() {
        let layout = exporting(&[Path::new("/proc"), Path::new("/")]).layout().unwrap();
        let names: Vec<_> = layout.targets.iter().map(|target| target.name.as_str()).collect();
        assert_eq!(names, ["/proc", "/"]);
        assert_eq!(layout.exports.iter().map(|e| e.target).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn a_target_named_like_the_mount_point_takes_its_exports() {
        let config =
            ProxyConfig { target: vec![target("/proc")], ..exporting(&[Path::new("/proc")]) };
        assert_eq!(config.layout().unwrap().targets, [target("/proc")]);
    }

    #[test]
    fn an_export_that_names_its_target_has_it_wherever_it_lies() {
        let mut config = exporting(&[Path::new("/proc"), Path::new("/")]);
        config.target = vec![target("one")];
        for export in &mut config.export {
            export.target = Some("one".into());
        }
        let layout = config.layout().unwrap();
        assert_eq!(layout.targets, [target("one")]);
        assert_eq!(layout.exports.iter().map(|e| e.target).collect::<Vec<_>>(), [0, 0]);
    }

    #[test]
    fn a_target_that_nothing_uses_is_refused_since_its_settings_would_be_lost() {
        let config = ProxyConfig { target: vec![target("fast")], ..exporting(&[Path::new("/")]) };
        assert_eq!(
            config.layout().unwrap_err().to_string(),
            "no export uses the target \"fast\"; name it in an [[export]], or rename it to the \
             mount point of one"
        );
    }

    #[test]
    fn a_directory_that_is_missing_or_none_is_named() {
        let missing = exporting(&[Path::new("/nonexistent")]).layout().unwrap_err();
        assert_eq!(missing.to_string(), "export \"e0\": cannot use the directory /nonexistent");
        let file = exporting(&[Path::new("/proc/version")]).layout().unwrap_err();
        assert!(matches!(file, ConfigError::ExportDir { source, .. }
            if source.kind() == io::ErrorKind::NotADirectory));
    }

    #[test]
    fn a_proxy_without_exports_or_listeners_is_refused() {
        assert_eq!(
            ProxyConfig::default().layout().unwrap_err().to_string(),
            "no exports; add --export NAME=DIR, or an [[export]] to --config"
        );
        let deaf = ProxyConfig { listen: vec![], ..exporting(&[Path::new("/")]) };
        assert_eq!(
            deaf.layout().unwrap_err().to_string(),
            "no addresses to listen on; add --listen tcp://IP:PORT or unix:///path"
        );
    }

    #[test]
    fn a_flag_that_doubles_an_export_is_refused_without_a_line() {
        let mut config = exporting(&[Path::new("/"), Path::new("/proc")]);
        config.export[1].name = "e0".into();
        assert_eq!(
            config.layout().unwrap_err().to_string(),
            "export.name: \"e0\" names two exports; rename one"
        );
    }
}
