//! Reading a condition: the language of Lustre's TBF rules, and `path`.
//!
//! ```text
//!   condition   := "*" | conjunction { "," conjunction }        "," is "or"
//!   conjunction := predicate { "&" predicate }                  "&" is "and", binds tighter
//!   predicate   := FIELD "=" "{" item { (SPACE | ",") item } "}"
//!   item        := any run without space , { } " '   |   "…"   |   '…'
//! ```
//!
//! Lustre cuts at every comma before it reads braces, so there `{500,1000}` is an error. Here a
//! comma inside braces divides items, and a list of Lustre's own spelling means the same as there.
//! A quoted item may contain spaces and commas, or nothing at all: `jobid={''}` is a request
//! without a job.
//!
//! Every error carries the bytes at fault.

use std::ops::Range;

use model::{KindSet, OpKind};

use super::glob::Glob;
use super::matcher::{Conjunction, Id, Match, MatchError, PathList, Predicate};
use super::nid::NidPattern;
use super::path::PathPattern;

/// Reads a whole condition.
pub(super) fn parse(text: &str) -> Result<Match, MatchError> {
    let mut reader = RuleTextReader { text, at: 0 };
    reader.skip_spaces();
    if reader.rest().is_empty() {
        return Err(reader.missing("the condition is empty; write \"*\" for every request"));
    }
    if reader.consume("*") {
        reader.end()?;
        return Ok(Match::any());
    }
    let mut any_of = vec![reader.conjunction()?];
    while reader.consume(",") {
        any_of.push(reader.conjunction()?);
    }
    reader.end()?;
    if any_of.iter().any(Conjunction::is_everything) {
        return Ok(Match::any());
    }
    Ok(Match { any_of })
}

/// An item in the form that parses to the same item.
pub(super) fn quote(item: &str) -> String {
    if !item.is_empty() && item.chars().all(is_bare) {
        return item.into();
    }
    let mark = if item.contains('"') { '\'' } else { '"' };
    format!("{mark}{item}{mark}")
}

/// The reader and its current position.
struct RuleTextReader<'t> {
    text: &'t str,
    at: usize,
}

/// An item without its quotes, and its bytes with them.
type RuleTextItem<'t> = (&'t str, Range<usize>);

impl<'t> RuleTextReader<'t> {
    fn conjunction(&mut self) -> Result<Conjunction, MatchError> {
        let mut whole = Conjunction::everything();
        loop {
            self.predicate(&mut whole)?;
            if !self.consume("&") {
                break;
            }
        }
        whole.all_of.sort_by_key(Predicate::rank);
        Ok(whole)
    }

    /// Reads one `FIELD={…}` and adds it to `whole`.
    fn predicate(&mut self, whole: &mut Conjunction) -> Result<(), MatchError> {
        let field = self.field()?;
        let items = self.items(field)?;
        let predicate = match field {
            "jobid" => Predicate::Jobid(each(&items, |item| Ok(Glob::new(item)))?),
            "uid" => Predicate::Uid(each(&items, id)?),
            "gid" => Predicate::Gid(each(&items, id)?),
            "projid" => Predicate::Projid(each(&items, id)?),
            "nid" => Predicate::Nid(each(&items, nid)?),
            "path" => Predicate::Path(PathList::new(each(&items, path)?)),
            _ => return self.narrow(whole, &items),
        };
        whole.all_of.push(predicate);
        Ok(())
    }

    /// `opcode={…}`: the kinds that remain.
    fn narrow(
        &self,
        whole: &mut Conjunction,
        items: &[RuleTextItem<'_>],
    ) -> Result<(), MatchError> {
        let kinds: KindSet = each(items, kind)?.into_iter().collect();
        whole.kinds = whole.kinds.iter().filter(|k| kinds.contains(*k)).collect();
        if whole.kinds == KindSet::NONE {
            let at = items[0].1.start..self.at;
            return Err(error("no kind of request is in every opcode={…} joined by &", at));
        }
        Ok(())
    }

    /// The name of a field and the `=` behind it.
    fn field(&mut self) -> Result<&'t str, MatchError> {
        self.skip_spaces();
        let start = self.at;
        let end = self.rest().find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        self.at += end.unwrap_or(self.rest().len());
        let (name, at) = (&self.text[start..self.at], start..self.at);
        match name {
            "" => return Err(self.unexpected(&format!("a field ({FIELDS})"))),
            "nodemap" => {
                let message = "nodemap is Lustre's alone: its map of nodes does not reach Sluice; \
                               name the nodes by nid={…}";
                return Err(error(message, at));
            }
            _ if !FIELDS.split(", ").any(|field| field == name) => {
                return Err(error(format!("{name:?} is not a field; use one of {FIELDS}"), at));
            }
            _ => {}
        }
        if self.consume("=") { Ok(name) } else { Err(self.unexpected(&format!("= after {name}"))) }
    }

    /// `{…}`, at least one item.
    fn items(&mut self, field: &str) -> Result<Vec<RuleTextItem<'t>>, MatchError> {
        let open = self.at;
        if !self.consume("{") {
            return Err(self.unexpected(&format!("{{ after {field}=")));
        }
        let mut items = Vec::new();
        loop {
            self.skip_spaces();
            if items.is_empty() && self.consume("}") {
                return Err(error(format!("{field}={{}} is empty"), open..self.at));
            }
            items.push(self.item(field == "nid")?);
            if items.len() > ITEMS_MAX {
                let at = open..self.at;
                return Err(error(format!("{field}={{…}} has more than {ITEMS_MAX} items"), at));
            }
            let spaced = self.skip_spaces();
            if self.consume("}") {
                return Ok(items);
            }
            if !self.consume(",") && !spaced && !self.rest().is_empty() {
                return Err(self.unexpected("a space, a comma or }"));
            }
        }
    }

    /// One item; with `brackets`, commas between `[` and `]` belong to it.
    fn item(&mut self, brackets: bool) -> Result<RuleTextItem<'t>, MatchError> {
        let start = self.at;
        if let Some(mark) = self.rest().chars().next().filter(|c| matches!(c, '"' | '\'')) {
            let inner = &self.rest()[1..];
            let Some(length) = inner.find(mark) else {
                return Err(error("the quoted item has no closing quote", start..self.text.len()));
            };
            self.at += length + 2;
            return Ok((&inner[..length], start..self.at));
        }
        let mut within = false;
        let ends = |c: char| {
            within = brackets && (c == '[' || within && c != ']');
            !(is_bare(c) || within && c == ',')
        };
        self.at += self.rest().find(ends).unwrap_or(self.rest().len());
        if self.at == start {
            return Err(self.unexpected("an item or }"));
        }
        Ok((&self.text[start..self.at], start..self.at))
    }

    fn end(&mut self) -> Result<(), MatchError> {
        self.skip_spaces();
        if self.rest().is_empty() { Ok(()) } else { Err(self.unexpected("& or ,")) }
    }

    /// Skips `token` and spaces before it; false, without the token, if it is not next.
    fn consume(&mut self, token: &str) -> bool {
        let rest = self.rest().trim_start();
        let found = rest.starts_with(token);
        if found {
            self.at = self.text.len() - rest.len() + token.len();
        }
        found
    }

    /// Skips spaces; whether there were any.
    fn skip_spaces(&mut self) -> bool {
        let before = self.at;
        self.at = self.text.len() - self.rest().trim_start().len();
        self.at > before
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn unexpected(&mut self, wanted: &str) -> MatchError {
        self.skip_spaces();
        match self.rest().chars().next() {
            None => self.missing(&format!("unexpected end: expected {wanted}")),
            Some(c) => {
                let at = self.at..self.at + c.len_utf8();
                error(format!("unexpected {c:?}: expected {wanted}"), at)
            }
        }
    }

    fn missing(&self, message: &str) -> MatchError {
        error(message, self.text.len()..self.text.len())
    }
}

/// Reads every item, dropping those that were there already.
fn each<T: PartialEq>(
    items: &[RuleTextItem<'_>],
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, MatchError> {
    let mut list = Vec::new();
    for (text, at) in items {
        let value = read(text).map_err(|message| error(message, at.clone()))?;
        if !list.contains(&value) {
            list.push(value);
        }
    }
    Ok(list)
}

fn nid(text: &str) -> Result<NidPattern, String> {
    NidPattern::new(text).map_err(|why| format!("the nid {text:?} {why}"))
}

fn path(text: &str) -> Result<PathPattern, String> {
    PathPattern::new(text).map_err(|why| format!("the path {text:?} {why}"))
}

/// An id in any base that C writes: `500`, `0x1f4`, `0764`; −1 is "not known".
fn id(text: &str) -> Result<Id, String> {
    if text == "-1" {
        return Ok(Id(None));
    }
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix) = match (hex, text.strip_prefix('0')) {
        (Some(digits), _) => (digits, 16),
        (None, Some(digits)) if !digits.is_empty() => (digits, 8),
        _ => (text, 10),
    };
    let number = u32::from_str_radix(digits, radix).ok();
    // `from_str_radix` takes a sign, and all ones is the kernel's own "not known".
    let number = number.filter(|n| *n != u32::MAX && !digits.starts_with('+'));
    let octal = if radix == 8 { " (a leading 0 means octal)" } else { "" };
    number.map(|n| Id(Some(n))).ok_or_else(|| {
        format!("{text:?} is not an id from 0 to 4294967294{octal} or -1 for \"not known\"")
    })
}

/// A kind by its name.
pub(super) fn kind(name: &str) -> Result<OpKind, String> {
    name.parse::<OpKind>().map_err(|error| match lustre_name(name) {
        Some(here) => format!("{name:?} is a name of Lustre; use {here}"),
        None => error.to_string(),
    })
}

/// The name here of a Lustre RPC, for rules that are carried over.
pub(super) fn lustre_name(name: &str) -> Option<&'static str> {
    let known = LUSTRE_NAMES.iter().find(|(rpc, _)| *rpc == name);
    known.map(|(_, here)| *here)
}

fn error(message: impl Into<String>, at: Range<usize>) -> MatchError {
    MatchError { message: message.into(), at }
}

fn is_bare(c: char) -> bool {
    !c.is_whitespace() && !matches!(c, ',' | '{' | '}' | '"' | '\'')
}

/// The most items in one pair of braces. A longer list belongs into groups or projects, and would
/// be searched for each new client.
const ITEMS_MAX: usize = 1024;

const FIELDS: &str = "jobid, uid, gid, projid, nid, opcode, path";

/// The RPCs of Lustre that an administrator is likely to have rules for (`ll_rpc_opcode_table`
/// of lustre/ptlrpc/lproc_ptlrpc.c) and the kinds that do their work here.
const LUSTRE_NAMES: [(&str, &str); 24] = [
    ("ost_read", "\"read\""),
    ("ost_write", "\"write\""),
    ("ost_getattr", "\"getattr\""),
    ("ost_setattr", "\"setattr\""),
    ("ost_punch", "\"setattr\""),
    ("ost_statfs", "\"statfs\""),
    ("ost_sync", "\"fsync\""),
    ("ost_connect", "\"attach\""),
    ("mds_getattr", "\"getattr\""),
    ("mds_getattr_lock", "\"getattr\" and \"walk\""),
    ("mds_setattr", "\"setattr\""),
    ("mds_reint_setattr", "\"setattr\""),
    ("mds_reint_create", "\"create\", \"mkdir\", \"symlink\" and \"mknod\""),
    ("mds_reint_link", "\"link\""),
    ("mds_reint_unlink", "\"unlink\""),
    ("mds_reint_rename", "\"rename\""),
    (
        "mds_reint",
        "\"create\", \"mkdir\", \"symlink\", \"mknod\", \"link\", \"unlink\", \"rename\" and \"setattr\"",
    ),
    ("mds_readpage", "\"readdir\""),
    ("mds_close", "\"clunk\""),
    ("mds_sync", "\"fsync\""),
    ("mds_statfs", "\"statfs\""),
    ("mds_getxattr", "\"getxattr\""),
    ("mds_connect", "\"attach\""),
    ("ldlm_enqueue", "\"walk\", \"getattr\", \"open\" and \"lock\""),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_print_in_their_canonical_form() {
        for (text, printed) in [
            ("*", "*"),
            (" * ", "*"),
            ("projid={500,1000}", "projid={500 1000}"),
            ("projid={500 1000}", "projid={500 1000}"),
            ("jobid={ iozone.500 , dd.*\n*.600 }", "jobid={iozone.500 dd.* *.600}"),
            ("uid={0x1F4 0764 0 -1 500}", "uid={500 0 -1}"),
            ("uid={1} & gid={2} , jobid={a}", "uid={1}&gid={2},jobid={a}"),
            (
                "path={/b* /scratch/a/}&opcode={write,read}&uid={1}",
                "uid={1}&opcode={read write}&path={/b* /scratch/a}",
            ),
            ("nid={10.0.0.[1,3-5]@tcp,0@lo}", "nid={10.0.0.[1,3-5]@tcp 0@lo}"),
            ("opcode={read write}&opcode={write open}", "opcode={write}"),
            ("path={'/My Data'}", "path={\"/My Data\"}"),
            ("jobid={'a\"b c'}", "jobid={'a\"b c'}"),
            ("jobid={''}", "jobid={\"\"}"),
            ("jobid={a=b&c}", "jobid={a=b&c}"),
            ("jobid={é*}", "jobid={é*}"),
        ] {
            let parsed = parse(text).unwrap();
            assert_eq!(parsed.to_string(), printed);
            assert_eq!(parse(printed).unwrap(), parsed);
        }
    }

    #[test]
    fn naming_every_kind_is_no_condition() {
        let all: Vec<&str> = OpKind::ALL.iter().map(|k| k.name()).collect();
        let text = format!("uid={{1}},opcode={{{}}}", all.join(" "));
        assert!(parse(&text).unwrap().is_any());
    }

    /// The text, with what is at fault between ⟨ ⟩, and the message.
    const REFUSED: [(&str, &str); 30] = [
        ("⟨⟩", "the condition is empty; write \"*\" for every request"),
        ("  ⟨⟩", "the condition is empty; write \"*\" for every request"),
        ("* ⟨u⟩id={1}", "unexpected 'u': expected & or ,"),
        (
            "⟨user⟩={1}",
            "\"user\" is not a field; use one of jobid, uid, gid, projid, nid, opcode, path",
        ),
        (
            "⟨UID⟩={1}",
            "\"UID\" is not a field; use one of jobid, uid, gid, projid, nid, opcode, path",
        ),
        (
            "uid={1}&⟨nodemap⟩={a}",
            "nodemap is Lustre's alone: its map of nodes does not reach Sluice; \
             name the nodes by nid={…}",
        ),
        (
            "uid={1},⟨⟩",
            "unexpected end: expected a field (jobid, uid, gid, projid, nid, opcode, path)",
        ),
        (
            "uid={1}&⟨&⟩",
            "unexpected '&': expected a field (jobid, uid, gid, projid, nid, opcode, path)",
        ),
        ("uid⟨⟩", "unexpected end: expected = after uid"),
        ("uid ⟨{⟩1}", "unexpected '{': expected = after uid"),
        ("uid=⟨1⟩", "unexpected '1': expected { after uid="),
        ("uid=⟨{}⟩", "uid={} is empty"),
        ("uid={1⟨⟩", "unexpected end: expected an item or }"),
        ("uid={1,⟨,⟩2}", "unexpected ',': expected an item or }"),
        ("uid={1,⟨}⟩", "unexpected '}': expected an item or }"),
        ("uid={1}⟨}⟩", "unexpected '}': expected & or ,"),
        ("uid={1} ⟨g⟩id={1}", "unexpected 'g': expected & or ,"),
        ("jobid={a⟨{⟩b}}", "unexpected '{': expected a space, a comma or }"),
        ("jobid={⟨\"a}⟩", "the quoted item has no closing quote"),
        ("jobid={\"a\"⟨b⟩}", "unexpected 'b': expected a space, a comma or }"),
        ("uid={1 ⟨ann⟩}", "\"ann\" is not an id from 0 to 4294967294 or -1 for \"not known\""),
        (
            "gid={⟨089⟩}",
            "\"089\" is not an id from 0 to 4294967294 (a leading 0 means octal) or -1 for \"not known\"",
        ),
        (
            "projid={⟨4294967295⟩}",
            "\"4294967295\" is not an id from 0 to 4294967294 or -1 for \"not known\"",
        ),
        ("gid={⟨+5⟩}", "\"+5\" is not an id from 0 to 4294967294 or -1 for \"not known\""),
        ("gid={⟨0x+5⟩}", "\"0x+5\" is not an id from 0 to 4294967294 or -1 for \"not known\""),
        ("opcode={read ⟨ost_write⟩}", "\"ost_write\" is a name of Lustre; use \"write\""),
        (
            "opcode={⟨reads⟩}",
            "\"reads\" is not a kind of request; use one of read, write, walk, getattr, setattr, \
             open, create, mkdir, symlink, mknod, link, unlink, rename, readlink, readdir, statfs, \
             fsync, getxattr, setxattr, lock, unlock, attach, clunk",
        ),
        ("opcode={read}&opcode={⟨write}⟩", "no kind of request is in every opcode={…} joined by &"),
        ("nid={⟨10.0.0.1⟩}", "the nid \"10.0.0.1\" lacks its network; write \"10.0.0.1@tcp\""),
        ("path={/a ⟨b⟩}", "the path \"b\" must begin with / (the root of the export)"),
    ];

    #[test]
    fn refusals_say_what_is_wrong_and_where() {
        for (marked, message) in REFUSED {
            let start = marked.find('⟨').unwrap();
            let end = marked.find('⟩').unwrap() - '⟨'.len_utf8();
            let text = marked.replace(['⟨', '⟩'], "");
            let error = parse(&text).unwrap_err();
            assert_eq!((error.message.as_str(), error.at), (message, start..end), "{marked}");
        }
    }
}
