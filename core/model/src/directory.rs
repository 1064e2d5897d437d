//! Directories that entitlements name.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// A directory below an export, `EXPORT/PATH`; the export's name alone is its root.
///
/// A file is marked with the deepest directory that an entitlement names and by which it was looked
/// up. What is below a directory is so by its name, so a mark has meaning without any table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Directory(Arc<[u8]>);

impl Directory {
    /// The most bytes of a path, as the kernel has it.
    pub const PATH_MAX: usize = 4_096;
    /// The most names of a path.
    pub const DEPTH_MAX: usize = 64;

    /// The directory of that text: an export and, after a slash each, the names below it. `None` if
    /// it is not the name of an export, or has an empty name, `.`, `..`, a null byte, more than
    /// [`Directory::DEPTH_MAX`] names or more than [`Directory::PATH_MAX`] bytes of them.
    pub fn new(text: &[u8]) -> Option<Directory> {
        let mut names = text.split(|byte| *byte == b'/');
        let export = str::from_utf8(names.next()?).ok().filter(|name| is_export_name(name))?;
        let is_name = |name: &[u8]| !matches!(name, b"" | b"." | b"..") && !name.contains(&0);
        let fits = text.len() - export.len() <= Directory::PATH_MAX;
        let valid = fits && names.clone().count() <= Directory::DEPTH_MAX && names.all(is_name);
        valid.then(|| Directory(text.into()))
    }

    /// The text of a file at `path` below an export, by which the directories that hold it are found
    /// ([`Directory::ancestors`]). No more than [`Directory::DEPTH_MAX`] names of it are compared.
    pub fn text(export: &str, path: &[u8]) -> Vec<u8> {
        let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        let mut text = export.as_bytes().to_vec();
        for name in names.take(Directory::DEPTH_MAX) {
            text.push(b'/');
            text.extend_from_slice(name);
        }
        text
    }

    /// The name of its export.
    pub fn export(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == b'/').unwrap_or(self.0.len());
        str::from_utf8(&self.0[..end]).expect("checked when it was made")
    }

    /// Its text, by which it is found in maps.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether another directory is this one or below it.
    pub fn holds(&self, other: &Directory) -> bool {
        let below = other.0.strip_prefix(&*self.0);
        below.is_some_and(|rest| rest.first().is_none_or(|byte| *byte == b'/'))
    }

    /// A directory's text and those of the directories above it, the deepest first, up to its
    /// export.
    pub fn ancestors(text: &[u8]) -> impl Iterator<Item = &[u8]> {
        std::iter::successors(Some(text), |text| {
            Some(&text[..text.iter().rposition(|byte| *byte == b'/')?])
        })
    }
}

impl Borrow<[u8]> for Directory {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", String::from_utf8_lossy(&self.0).escape_debug())
    }
}

/// Whether a text is a name of an export, 1 to 63 letters, digits, `_`, `-` and `.`: it needs no
/// quoting in attach names, paths, tables and metrics.
pub fn is_export_name(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_an_export_and_plain_names_below_it() {
        for text in ["x", "x/a", "x/a b/c.d", "x/\u{e4}"] {
            let directory = Directory::new(text.as_bytes()).unwrap();
            assert_eq!((directory.export(), directory.to_string()), ("x", text.to_owned()));
        }
        assert_eq!(Directory::new(b"x/\xff").unwrap().to_string(), "x/\u{fffd}");
        let long = format!("x/{}", "a".repeat(4_096));
        let deep = format!("x{}", "/a".repeat(65));
        let wrong = ["", "/", "/a", "x/", "x//a", "x/.", "x/../y", "x/a\0", "a b/c", &long, &deep];
        for text in wrong {
            assert_eq!(Directory::new(text.as_bytes()), None, "{text:?}");
        }
        assert!(Directory::new(&long.as_bytes()[..4_097]).is_some());
        assert!(Directory::new(&deep.as_bytes()[..129]).is_some());
    }

    #[test]
    fn a_directory_holds_itself_and_what_is_below_it_by_whole_names() {
        let of = |text: &str| Directory::new(text.as_bytes()).unwrap();
        assert!(of("x").holds(&of("x/a/b")) && of("x/a").holds(&of("x/a/b")));
        assert!(of("x/a").holds(&of("x/a")) && !of("x/a/b").holds(&of("x/a")));
        assert!(!of("x/a").holds(&of("x/ab")) && !of("x").holds(&of("xy")));
        let above: Vec<_> = Directory::ancestors(b"x/a/b").collect();
        assert_eq!(above, [&b"x/a/b"[..], b"x/a", b"x"]);
        assert_eq!(
            [Directory::text("x", b"/"), Directory::text("x", b"/a//b")],
            [&b"x"[..], b"x/a/b"]
        );
        assert_eq!(Directory::text("x", &b"/a".repeat(100)).len(), 1 + 2 * Directory::DEPTH_MAX);
    }
}
