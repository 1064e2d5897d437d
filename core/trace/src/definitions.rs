//! Definitions of subjects and classes, each once for the whole trace.

use model::{Identity, JobId, Nid};

use crate::decoder::TraceSubject;
use crate::format::{ChunkType, Cursor, chunk_of, put_text, put_varint};

/// Encoded definitions, all of subjects or all of classes.
#[derive(Debug, Default)]
pub struct Definitions {
    count: u32,
    bytes: Vec<u8>,
}

/// The number of an unknown uid or gid, as `-1` is in rules.
pub const ID_UNKNOWN: u32 = u32::MAX;

impl Definitions {
    /// Defines the subject of this number.
    pub fn put_subject(&mut self, number: u32, who: &Identity, export: &str, target: &str) {
        let out = &mut self.bytes;
        put_varint(out, number.into());
        put_varint(out, who.uid.into());
        put_varint(out, who.gid.into());
        put_varint(out, who.projid.map_or(0, |projid| u64::from(projid) + 1));
        for text in [who.job.as_str(), who.nid.as_str(), export, target] {
            put_text(out, text);
        }
        self.count += 1;
    }

    /// Names a class of a target.
    pub fn put_class(&mut self, number: u64, target: &str, name: &str) {
        put_varint(&mut self.bytes, number);
        put_text(&mut self.bytes, target);
        put_text(&mut self.bytes, name);
        self.count += 1;
    }

    /// Adopts the definitions of `more`.
    pub fn append(&mut self, more: Definitions) {
        self.count += more.count;
        self.bytes.extend_from_slice(&more.bytes);
    }

    /// Whether nothing is defined.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The length of the definitions in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The chunk of these subjects; `origin_unix_ns` is when the proxy's clock showed zero.
    pub fn subjects_chunk(&self, origin_unix_ns: u64) -> Vec<u8> {
        let payload = [&origin_unix_ns.to_le_bytes()[..], &self.bytes].concat();
        chunk_of(ChunkType::Subjects, self.count, &payload)
    }

    /// The chunk of these classes.
    pub fn classes_chunk(&self) -> Vec<u8> {
        chunk_of(ChunkType::Classes, self.count, &self.bytes)
    }
}

/// The next subject of a chunk.
pub(crate) fn read_subject(from: &mut Cursor<'_>) -> Option<(u32, TraceSubject)> {
    let number = from.varint32()?;
    let (uid, gid) = (from.varint32()?, from.varint32()?);
    let projid = match from.varint()? {
        0 => None,
        more => Some(u32::try_from(more - 1).ok()?),
    };
    let job = JobId::new(from.text()?)?;
    let nid = nid(from.text()?)?;
    let who = Identity { job, uid, gid, projid, nid };
    let (export, target) = (from.text()?.to_owned(), from.text()?.to_owned());
    Some((number, TraceSubject { identity: who, export, target }))
}

/// Writes the node's name, in one of two forms.
fn nid(text: &str) -> Option<Nid> {
    match text.strip_suffix("@tcp") {
        Some(address) => Some(Nid::tcp(address.parse().ok()?)),
        None => (text == Nid::local().as_str()).then(Nid::local),
    }
}
