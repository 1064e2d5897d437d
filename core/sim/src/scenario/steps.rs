//! The text of a step: `do = "create, write 320B, clunk"`.
//!
//! ```text
//!   do := request { "," request }      request := KIND [ SIZE ]
//! ```
//!
//! Reads and writes have a size, other kinds have none.

use model::{Amount, Bytes, Direction, OpKind};

use crate::workloads::RequestShape;

/// Reads the requests of a step; the error is a sentence, with the bytes of the text at fault.
pub(super) fn requests(text: &str) -> Result<Vec<RequestShape>, (std::ops::Range<usize>, String)> {
    let mut asks = Vec::new();
    let mut at = 0;
    for part in text.split(',') {
        let lead = part.len() - part.trim_start().len();
        let place = at + lead..at + lead + part.trim().len();
        asks.push(request(part.trim()).map_err(|problem| (place, problem))?);
        at += part.len() + 1;
    }
    Ok(asks)
}

fn request(text: &str) -> Result<RequestShape, String> {
    let (name, size) = text.split_once(' ').unwrap_or((text, ""));
    let kind: OpKind = name.parse().map_err(|error| format!("{error}"))?;
    let size = size.trim();
    let moves = kind.direction() != Direction::Metadata;
    match (moves, size) {
        (true, "") => Err(format!("{kind} needs a size, such as \"{kind} 1MiB\"")),
        (false, "") => Ok(RequestShape { kind, amount: Amount::new(0, 1) }),
        (false, size) => Err(format!("{kind} moves no bytes; remove {size:?}")),
        (true, size) => {
            let bytes: Bytes = size.parse().map_err(|error| format!("{error}"))?;
            match bytes {
                Bytes::ZERO => Err(format!("the size of {text:?} must be above zero")),
                _ => Ok(RequestShape { kind, amount: Amount::new(bytes.get(), 1) }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_a_list_of_kinds_with_sizes() {
        let asks = requests("create, write 320B,clunk").unwrap();
        let kinds: Vec<_> = asks.iter().map(|ask| (ask.kind, ask.amount.bytes.get())).collect();
        assert_eq!(kinds, [(OpKind::Create, 0), (OpKind::Write, 320), (OpKind::Clunk, 0)]);
    }

    #[test]
    fn what_is_wrong_with_a_step_is_named_with_its_place() {
        let wrong = |text: &str| requests(text).unwrap_err();
        assert_eq!(wrong("read"), (0..4, "read needs a size, such as \"read 1MiB\"".into()));
        assert_eq!(wrong("clunk, open 4KiB").1, "open moves no bytes; remove \"4KiB\"");
        assert_eq!(wrong("clunk, open 4KiB").0, 7..16);
        assert!(wrong("read 4").1.starts_with("\"4\" is not an amount of data"));
        assert!(wrong("ost_read 4KiB").1.starts_with("\"ost_read\" is not a kind of request"));
    }
}
