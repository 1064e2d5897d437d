//! Directories that rules name: `path={/scratch/a /b*}`.
//!
//! A pattern is compared component by component, so a `*` never matches a
//! `/`. A file matches when the directory is one of its parents or the file itself.

use std::fmt;

use super::glob::Glob;

/// One directory below the export, as components that may be globs; `/` has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PathPattern {
    components: Box<[Glob]>,
}

impl PathPattern {
    /// Parses a pattern; the error is what is wrong with the text.
    pub(super) fn new(text: &str) -> Result<PathPattern, &'static str> {
        let below = text.strip_prefix('/').ok_or("must begin with / (the root of the export)")?;
        let below = below.strip_suffix('/').unwrap_or(below);
        if below.is_empty() {
            return Ok(PathPattern { components: Box::default() });
        }
        let names = || below.split('/');
        if names().any(str::is_empty) {
            return Err("has an empty component");
        }
        if names().any(|name| name == "." || name == "..") {
            return Err("must not contain . or ..");
        }
        Ok(PathPattern { components: names().map(Glob::new).collect() })
    }

    /// Whether the file at `path` (from the export's root, beginning with `/`) is in this directory
    /// or is it.
    pub(super) fn matches(&self, path: &[u8]) -> bool {
        let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        self.components.iter().all(|glob| names.next().is_some_and(|name| glob.matches(name)))
    }

    pub(super) fn covers(&self, other: &PathPattern) -> bool {
        let fit = |(mine, its): (&Glob, &Glob)| mine.covers(its);
        self.components.len() <= other.components.len()
            && self.components.iter().zip(&other.components).all(fit)
    }

    pub(super) fn excludes(&self, other: &PathPattern) -> bool {
        self.components.iter().zip(&other.components).any(|(mine, its)| mine.excludes(its))
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.components.is_empty() {
            return f.write_str("/");
        }
        self.components.iter().try_for_each(|name| write!(f, "/{name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &[u8]) -> bool {
        PathPattern::new(pattern).unwrap().matches(path)
    }

    #[test]
    fn a_directory_takes_itself_and_what_lies_below() {
        assert!(matches("/scratch/a", b"/scratch/a"));
        assert!(matches("/scratch/a/", b"/scratch/a/deep/file"));
        assert!(!matches("/scratch/a", b"/scratch"));
        assert!(!matches("/scratch/a", b"/scratch/ab"));
        assert!(matches("/", b"/") && matches("/", b"/anything"));
    }

    #[test]
    fn a_star_stays_within_its_component() {
        assert!(matches("/b*", b"/bob/x"));
        assert!(matches("/home/*/tmp", b"/home/ann/tmp/f"));
        assert!(!matches("/home/*/tmp", b"/home/ann/x/tmp"));
        assert!(!matches("/*", b"/"));
    }

    #[test]
    fn names_need_not_be_utf8() {
        assert!(matches("/a*z", b"/a\xff\xfez/file"));
    }

    #[test]
    fn paths_that_could_never_fit_are_refused() {
        for text in ["scratch", "", "/a//b", "/a/../b", "/./a"] {
            assert!(PathPattern::new(text).is_err(), "{text}");
        }
    }

    #[test]
    fn parents_cover_children_and_siblings_exclude_each_other() {
        let path = |text| PathPattern::new(text).unwrap();
        assert!(path("/a").covers(&path("/a/b")) && !path("/a/b").covers(&path("/a")));
        assert!(path("/a").excludes(&path("/b")) && path("/a/x").excludes(&path("/a/y*")));
        assert!(!path("/a").excludes(&path("/a/b")) && !path("/*/x").excludes(&path("/a")));
    }
}
