//! What programs do with names: create, stat, rename, remove, list and unpack many small
//! files.
//!
//! ```text
//!   metadata  create ─► stat ─► open, read 4 KiB, close ─► rename ─► unlink   each kind timed
//!   find, ls  over what was made beside the mount, with a client that knows nothing
//!   source    tar ─► 10,000 files ─► stat each five times
//! ```

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::tool::MountTools;

/// Makes, looks at, reads, renames and removes `files` below `root`; operations per second of
/// each.
pub(crate) fn metadata(root: &Path, files: usize) -> anyhow::Result<Vec<f64>> {
    let top = root.join("metadata");
    for dir in 0..META_DIRS {
        fs::create_dir_all(top.join(dir.to_string())).context("making directories")?;
    }
    let paths: Vec<(PathBuf, PathBuf)> = (0..files)
        .map(|file| {
            let dir = top.join((file % META_DIRS).to_string());
            (dir.join(format!("file{file}")), dir.join(format!("renamed{file}")))
        })
        .collect();
    let rate = |what: &str, each: &dyn Fn(&Path, &Path) -> std::io::Result<()>| {
        let began = Instant::now();
        for (path, renamed) in &paths {
            each(path, renamed).with_context(|| format!("{what} {}", path.display()))?;
        }
        anyhow::Ok(files as f64 / began.elapsed().as_secs_f64())
    };
    let created = rate("create", &|path, _| File::create_new(path).map(drop))?;
    let looked_at = rate("stat", &|path, _| path.symlink_metadata().map(drop))?;
    rate("fill", &|path, _| fs::write(path, [0x5a; META_LEN]))?;
    let read = rate("read", &|path, _| {
        let mut buffer = [0; META_LEN];
        File::open(path)?.read_exact(&mut buffer)
    })?;
    let renamed = rate("rename", &|path, renamed| fs::rename(path, renamed))?;
    let removed = rate("unlink", &|_, renamed| fs::remove_file(renamed))?;
    fs::remove_dir_all(&top).context("removing directories")?;
    Ok(vec![created, looked_at, read, renamed, removed])
}

/// Makes `files` in directories of [`TREE_WIDTH`], to be found.
pub(crate) fn make_tree(root: &Path, files: usize) -> anyhow::Result<()> {
    for dir in 0..files.div_ceil(TREE_WIDTH) {
        let dir = root.join(TREE).join(format!("d{dir:04}"));
        make_files(&dir, TREE_WIDTH)?;
    }
    Ok(())
}

/// Makes one directory of [`FLAT_FILES`].
pub(crate) fn make_flat(root: &Path) -> anyhow::Result<()> {
    make_files(&root.join(FLAT), FLAT_FILES)
}

fn make_files(dir: &Path, count: usize) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for file in 0..count {
        let path = dir.join(format!("f{file:05}"));
        // A length without data: only attributes are looked at.
        let made = File::create(&path).and_then(|made| made.set_len(file as u64 * 7 % 20_000));
        made.with_context(|| format!("cannot make {}", path.display()))?;
    }
    Ok(())
}

/// How long `find` takes to tell the lengths of `files` in the tree, and how many names it saw.
pub(crate) fn find(
    root: &Path,
    files: usize,
    tools: &MountTools<'_>,
) -> anyhow::Result<(Duration, u64)> {
    let ran = tools.run(Command::new("find").arg(root.join(TREE)).args(["-printf", "%s\\n"]))?;
    let expected = files + files.div_ceil(TREE_WIDTH) + 1;
    let found = ran.text.lines().count();
    ensure!(found == expected, "find saw {found} names of {expected}");
    Ok((ran.took, found as u64))
}

/// How long `ls -l` of the one directory takes, and how many names it saw.
pub(crate) fn list(root: &Path, tools: &MountTools<'_>) -> anyhow::Result<(Duration, u64)> {
    let ran = tools.run(Command::new("ls").arg("-l").arg(root.join(FLAT)))?;
    // The first line is the total.
    let found = ran.text.lines().count() - 1;
    ensure!(found == FLAT_FILES, "ls saw {found} names of {FLAT_FILES}");
    Ok((ran.took, found as u64))
}

/// A source tree in an archive.
pub(crate) struct NamesSource {
    archive: PathBuf,
    /// From the top of the tree.
    names: Vec<String>,
    bytes: u64,
}

impl NamesSource {
    /// Makes one of `files` in `dir`, with lengths from 1 to 20 KiB and any contents.
    pub(crate) fn make(
        dir: &Path,
        files: usize,
        tools: &MountTools<'_>,
    ) -> anyhow::Result<NamesSource> {
        let top = dir.join("source");
        let mut source =
            NamesSource { archive: dir.join("source.tar"), names: Vec::new(), bytes: 0 };
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let noise: Vec<u8> = (0..64 << 10).map(|_| next() as u8).collect();
        for file in 0..files {
            let folder = format!("lib{}", file / SOURCE_WIDTH);
            if file % SOURCE_WIDTH == 0 {
                fs::create_dir_all(top.join(&folder)).context("making a source tree")?;
            }
            let len = 1024 + next() as usize % (19 << 10);
            let start = next() as usize % (noise.len() - len);
            let name = format!("{folder}/unit{file}.c");
            fs::write(top.join(&name), &noise[start..start + len])
                .context("making a source tree")?;
            source.names.push(name);
            source.bytes += len as u64;
        }
        tools.run(
            Command::new("tar").arg("-cf").arg(&source.archive).arg("-C").arg(&top).arg("."),
        )?;
        fs::remove_dir_all(&top).context("removing a source tree")?;
        Ok(source)
    }

    /// How long it takes to unpack the tree below `root`, and to look at each file five times.
    pub(crate) fn measure(
        &self,
        root: &Path,
        tools: &MountTools<'_>,
    ) -> anyhow::Result<[Duration; 2]> {
        let top = root.join("source");
        fs::create_dir(&top).context("making a place to unpack in")?;
        let unpacked =
            tools.run(Command::new("tar").arg("-xf").arg(&self.archive).arg("-C").arg(&top))?.took;
        let paths: Vec<PathBuf> = self.names.iter().map(|name| top.join(name)).collect();
        let began = Instant::now();
        for _ in 0..STATS {
            let mut bytes = 0;
            for path in &paths {
                let found = path.symlink_metadata();
                bytes += found.with_context(|| path.display().to_string())?.len();
            }
            ensure!(bytes == self.bytes, "{bytes} bytes were unpacked, not {}", self.bytes);
        }
        let looked_at = began.elapsed();
        fs::remove_dir_all(&top).context("removing what was unpacked")?;
        Ok([unpacked, looked_at])
    }
}

/// Files in the one directory that is listed.
pub(crate) const FLAT_FILES: usize = 10_000;
const TREE: &str = "tree";
const FLAT: &str = "flat";
const TREE_WIDTH: usize = 100;
const META_DIRS: usize = 20;
const META_LEN: usize = 4096;
const SOURCE_WIDTH: usize = 100;
const STATS: usize = 5;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn an_unpacked_source_tree_has_the_bytes_that_were_packed() {
        let dir = std::env::temp_dir().join(format!("sluice-source-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let tools = MountTools { stop: &stop, one_cpu: false };
        let mut source = NamesSource::make(&dir, 150, &tools).unwrap();
        assert!(source.measure(&dir, &tools).is_ok());
        assert!(!dir.join("source").exists());
        source.bytes += 1;
        let told = source.measure(&dir, &tools).unwrap_err().to_string();
        assert!(told.contains("bytes were unpacked"), "{told}");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn find_and_ls_must_see_every_name() {
        let dir = std::env::temp_dir().join(format!("sluice-tree-{}", std::process::id()));
        let stop = Arc::new(AtomicBool::new(false));
        let tools = MountTools { stop: &stop, one_cpu: false };
        make_tree(&dir, 300).unwrap();
        assert_eq!(find(&dir, 300, &tools).unwrap().1, 304);
        fs::remove_file(dir.join(TREE).join("d0002/f00099")).unwrap();
        let told = find(&dir, 300, &tools).unwrap_err().to_string();
        assert_eq!(told, "find saw 303 names of 304");
        fs::remove_dir_all(&dir).unwrap();
    }
}
