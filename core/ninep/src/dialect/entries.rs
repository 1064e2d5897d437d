//! Lists in a reply's data: directory entries with attributes, and events.
//!
//! ```text
//!   entry: offset[8] kind[1] name[s] n[1] n × (handle[s] attributes kinds[1] number[8])     n is 0 or 1
//!   event: kind[1] body[s]                                  unknown kinds are skipped
//! ```

use super::leases::LeaseGrant;
use crate::attributes::Attributes;
use crate::error::FrameError;
use crate::wire::{FrameReader, FrameWriter};

/// One entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListEntry<'a> {
    /// The offset of the next List after this entry: all 64 bits are the file system's own.
    pub offset: u64,
    /// The file's type, a `DT_` value as in `getdents`; 0 when unknown.
    pub kind: u8,
    /// The name in its directory.
    pub name: &'a [u8],
    /// Its handle and attributes; `None` for `.` and `..` and for a failed lookup. The client
    /// requests them if necessary.
    pub file: Option<(&'a [u8], Attributes)>,
    /// Leases of the file, granted with its attributes.
    pub lease: LeaseGrant,
}

/// The entries of a List's `data`, in order; ends after the first error.
#[derive(Clone, Debug)]
pub struct ListEntries<'a> {
    data: &'a [u8],
}

/// An event of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEvent<'a> {
    /// The window of an identity has changed, on every channel.
    Window {
        /// The number of the identity.
        identity: u32,
        /// The most requests in flight.
        requests: u32,
        /// The most bytes of payload in flight.
        bytes: u64,
    },
    /// Leases are recalled; answered by Return once they are not used any more.
    Recall {
        /// The number of the access that waits for them.
        access: u64,
        /// The path of the file's qid.
        file: u64,
        /// The bits of the kinds.
        kinds: u8,
        /// The one name that is recalled of a directory; empty: all kinds wholly.
        name: &'a [u8],
    },
}

/// The events of an Events reply's `data`, in order; ends after the first error. Unknown kinds are skipped,
/// so that a newer server can send more.
#[derive(Clone, Debug)]
pub struct SessionEvents<'a> {
    data: &'a [u8],
}

/// The error of data that is not a list of entries or events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an item of the list, {left} bytes before its end, is cut short or has an invalid value")]
pub struct EntryError {
    /// Bytes from the item's beginning to the end of the list.
    pub left: usize,
}

const WINDOW: u8 = 1;
const RECALL: u8 = 2;

impl<'a> ListEntry<'a> {
    /// Appends the entry to a List's data.
    ///
    /// # Panics
    /// If the name or the handle is longer than 65,535 bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut put = FrameWriter::part(out);
        put.u64(self.offset);
        put.u8(self.kind);
        put.name(self.name);
        put.u8(self.file.is_some().into());
        if let Some((handle, attributes)) = self.file {
            put.handle(handle);
            put.attributes(attributes);
            put.lease(self.lease);
        }
    }

    fn read(get: &mut FrameReader<'a>) -> Result<ListEntry<'a>, FrameError> {
        let (offset, kind) = (get.u64("offset")?, get.u8("kind")?);
        let name = get.name("name")?;
        let (file, lease) = match get.u8("files")? {
            0 => (None, LeaseGrant::NONE),
            1 => (Some((get.handle("handle")?, get.attributes("attributes")?)), get.lease()?),
            more => return Err(get.bad_value("files", more)),
        };
        Ok(ListEntry { offset, kind, name, file, lease })
    }
}

impl<'a> ListEntries<'a> {
    /// The entries in `data`, the whole payload of one List.
    pub fn new(data: &'a [u8]) -> ListEntries<'a> {
        ListEntries { data }
    }
}

impl<'a> Iterator for ListEntries<'a> {
    type Item = Result<ListEntry<'a>, EntryError>;

    fn next(&mut self) -> Option<Self::Item> {
        read_item(&mut self.data, ListEntry::read)
    }
}

impl<'a> SessionEvent<'a> {
    /// Appends the event to an Events reply's data.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut body = Vec::with_capacity(32);
        let mut put = FrameWriter::part(&mut body);
        let kind = match *self {
            SessionEvent::Window { identity, requests, bytes } => {
                put.u32(identity);
                put.u32(requests);
                put.u64(bytes);
                WINDOW
            }
            SessionEvent::Recall { access, file, kinds, name } => {
                put.u64(access);
                put.u64(file);
                put.u8(kinds);
                put.raw(name);
                RECALL
            }
        };
        let mut put = FrameWriter::part(out);
        put.u8(kind);
        put.raw(&body);
    }

    /// Returns `None` for an unknown kind.
    fn read(get: &mut FrameReader<'a>) -> Result<Option<SessionEvent<'a>>, FrameError> {
        let (kind, body) = (get.u8("event")?, get.raw("body")?);
        let mut get = FrameReader::part(body);
        let event = match kind {
            WINDOW => SessionEvent::Window {
                identity: get.u32("identity")?,
                requests: get.u32("requests")?,
                bytes: get.u64("bytes")?,
            },
            RECALL => SessionEvent::Recall {
                access: get.u64("access")?,
                file: get.u64("file")?,
                kinds: get.u8("kinds")?,
                name: get.raw("name")?,
            },
            _ => return Ok(None),
        };
        get.finish()?;
        Ok(Some(event))
    }
}

impl<'a> SessionEvents<'a> {
    /// The events in `data`, the whole payload of one Events reply.
    pub fn new(data: &'a [u8]) -> SessionEvents<'a> {
        SessionEvents { data }
    }
}

impl<'a> Iterator for SessionEvents<'a> {
    type Item = Result<SessionEvent<'a>, EntryError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match read_item(&mut self.data, SessionEvent::read)? {
                Ok(None) => {}
                Ok(Some(event)) => return Some(Ok(event)),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Reads one item off the front of a list; the list is empty after an error.
pub(super) fn read_item<'a, T>(
    data: &mut &'a [u8],
    take: impl FnOnce(&mut FrameReader<'a>) -> Result<T, FrameError>,
) -> Option<Result<T, EntryError>> {
    let left = data.len();
    if left == 0 {
        return None;
    }
    let mut get = FrameReader::part(data);
    let item = take(&mut get).map_err(|_| EntryError { left });
    *data = if item.is_ok() { get.rest() } else { &[] };
    Some(item)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_as_they_went() {
        let attributes = Attributes { mode: 0o100644, size: 1 << 40, ..Attributes::default() };
        let all = [
            ListEntry {
                offset: 1 << 63,
                kind: 4,
                name: b"..",
                file: None,
                lease: LeaseGrant::NONE,
            },
            ListEntry {
                offset: 7,
                kind: 8,
                name: &[0xff; 255],
                file: Some((b"handle", attributes)),
                lease: LeaseGrant { kinds: 3, number: 1 << 40 },
            },
            ListEntry {
                offset: u64::MAX,
                kind: 0,
                name: b"x",
                file: None,
                lease: LeaseGrant::NONE,
            },
        ];
        let mut data = Vec::new();
        all.iter().for_each(|entry| entry.encode(&mut data));
        assert!(ListEntries::new(&data).map(Result::unwrap).eq(all));
        for len in 1..data.len() {
            let ends = ListEntries::new(&data[..len]).filter(Result::is_err).count();
            let whole = ListEntries::new(&data[..len]).filter(Result::is_ok).count();
            assert!(ends <= 1 && whole <= 2, "{len} bytes: {whole} entries, {ends} errors");
        }
    }

    #[test]
    fn an_entry_without_a_name_that_can_be_one_is_refused() {
        for name in [&b"a/b"[..], b"a\0b"] {
            let mut data = Vec::new();
            ListEntry { offset: 1, kind: 8, name, file: None, lease: LeaseGrant::NONE }
                .encode(&mut data);
            let left = data.len();
            assert_eq!(ListEntries::new(&data).collect::<Vec<_>>(), [Err(EntryError { left })]);
        }
    }

    #[test]
    fn events_of_a_newer_server_are_passed_over() {
        let window = SessionEvent::Window { identity: 3, requests: 64, bytes: 1 << 23 };
        let mut data = vec![200, 3, 0, b'n', b'e', b'w'];
        window.encode(&mut data);
        data.extend([9, 0, 0]);
        let recall = SessionEvent::Recall { access: 7, file: 1 << 60, kinds: 9, name: b"x" };
        recall.encode(&mut data);
        assert_eq!(SessionEvents::new(&data).collect::<Vec<_>>(), [Ok(window), Ok(recall)]);
        data.push(1);
        assert_eq!(SessionEvents::new(&data).last(), Some(Err(EntryError { left: 1 })));
    }
}
