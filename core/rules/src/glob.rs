//! Text with `*` in it, the only wildcard of the rule language.
//!
//! `io*.10*` is kept as the literal pieces between its stars, so that a match is
//! a prefix test, a suffix test and one search for each piece between them:
//! nothing is allocated and nothing is tried twice.
//!
//! Invariant: there is at least one piece, and no piece but the first and the
//! last is empty (`**` is `*`).

use std::fmt;

/// A text in which each `*` matches any run of bytes, also an empty one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Glob {
    pieces: Box<[Box<str>]>,
}

impl Glob {
    pub(super) fn new(text: &str) -> Glob {
        let last = text.split('*').count() - 1;
        let pieces = text.split('*').enumerate();
        let kept = pieces.filter(|(i, piece)| *i == 0 || *i == last || !piece.is_empty());
        Glob { pieces: kept.map(|(_, piece)| piece.into()).collect() }
    }

    /// Whether the whole of `text` matches.
    pub(super) fn matches(&self, text: &[u8]) -> bool {
        let Some((first, last, middle)) = self.ends() else {
            return self.pieces[0].as_bytes() == text;
        };
        let Some(rest) = text.strip_prefix(first.as_bytes()) else { return false };
        let Some(mut rest) = rest.strip_suffix(last.as_bytes()) else { return false };
        // Taking the leftmost place for each piece leaves the most for the next ones,
        // so a piece that is not found now could not be found any other way.
        for piece in middle {
            let Some(at) = find(rest, piece.as_bytes()) else { return false };
            rest = &rest[at + piece.len()..];
        }
        true
    }

    /// Whether everything that matches `other` provably matches this too.
    ///
    /// A star of `other` can be matched only by a star here, since no piece contains one. Whatever
    /// that star matches is then matched as well.
    pub(super) fn covers(&self, other: &Glob) -> bool {
        self.matches(other.to_string().as_bytes())
    }

    /// Whether provably no text matches both.
    pub(super) fn excludes(&self, other: &Glob) -> bool {
        let (Some((first, last, _)), Some((other_first, other_last, _))) =
            (self.ends(), other.ends())
        else {
            return match self.ends() {
                None => !other.matches(self.pieces[0].as_bytes()),
                Some(_) => !self.matches(other.pieces[0].as_bytes()),
            };
        };
        let one_begins = first.starts_with(other_first) || other_first.starts_with(first);
        let one_ends = last.ends_with(other_last) || other_last.ends_with(last);
        !one_begins || !one_ends
    }

    /// Whether every text matches.
    pub(super) fn is_everything(&self) -> bool {
        self.pieces.len() == 2 && self.pieces.iter().all(|piece| piece.is_empty())
    }

    /// The one text that matches a glob without a star.
    pub(super) fn whole(&self) -> Option<&str> {
        match &*self.pieces {
            [only] => Some(only),
            _ => None,
        }
    }

    /// First piece, last piece and those between; `None` for a text without a star.
    fn ends(&self) -> Option<(&str, &str, &[Box<str>])> {
        match &*self.pieces {
            [first, middle @ .., last] => Some((first, last, middle)),
            _ => None,
        }
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.pieces[0])?;
        self.pieces[1..].iter().try_for_each(|piece| write!(f, "*{piece}"))
    }
}

fn find(text: &[u8], piece: &[u8]) -> Option<usize> {
    text.windows(piece.len()).position(|window| window == piece)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(glob: &str, text: &str) -> bool {
        Glob::new(glob).matches(text.as_bytes())
    }

    #[test]
    fn a_star_stands_for_any_run_also_for_none() {
        for (glob, text) in [
            ("iozone.500", "iozone.500"),
            ("dd.*", "dd."),
            ("*.600", "cp.600"),
            ("io*.10*", "iozone.1000"),
            ("*", ""),
            ("*", "x"),
            ("", ""),
            ("a*b*c", "abc"),
            ("a*b*c", "a-b-b-c"),
            ("*a*a*", "aa"),
            ("*aab*", "aaab"),
        ] {
            assert!(matches(glob, text), "{glob} should take {text}");
        }
        for (glob, text) in [
            ("dd.*", "dd"),
            ("*.600", "x.6000"),
            ("ab*ba", "aba"),
            ("a*a", "a"),
            ("*a*a*", "a"),
            ("a*b*c", "acb"),
            ("", "x"),
        ] {
            assert!(!matches(glob, text), "{glob} should not take {text}");
        }
    }

    #[test]
    fn several_stars_in_a_row_are_one() {
        assert_eq!(Glob::new("a***b"), Glob::new("a*b"));
        assert_eq!(Glob::new("**").to_string(), "*");
        assert!(Glob::new("**").is_everything());
    }

    #[test]
    fn a_wider_glob_covers_a_narrower_one() {
        for (wide, narrow) in [("*", "a*"), ("a*", "a*b"), ("a*c", "a*b*c"), ("dd.*", "dd.5")] {
            assert!(Glob::new(wide).covers(&Glob::new(narrow)));
            assert!(!Glob::new(narrow).covers(&Glob::new(wide)));
        }
    }

    #[test]
    fn globs_exclude_each_other_only_when_that_is_certain() {
        for (a, b) in [("a", "b"), ("a*", "b*"), ("*a", "*b"), ("dd.*", "cp.5"), ("a*", "")] {
            assert!(Glob::new(a).excludes(&Glob::new(b)) && Glob::new(b).excludes(&Glob::new(a)));
        }
        for (a, b) in [("a", "a"), ("a*", "*b"), ("a*", "ab*"), ("*", "x"), ("*x*", "*y*")] {
            assert!(!Glob::new(a).excludes(&Glob::new(b)) && !Glob::new(b).excludes(&Glob::new(a)));
        }
    }
}
