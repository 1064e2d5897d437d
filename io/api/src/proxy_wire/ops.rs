//! Operations by kind, as in messages.
//!
//! ```text
//!   JSON: {"read": 7, "open": 1}, kinds without any omitted     compact: pairs of numbers
//! ```

use std::fmt;

use model::OpKind;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The number of operations of each kind, in the order of [`OpKind::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireOps(pub [u64; OpKind::COUNT]);

impl WireOps {
    /// Returns the operations of a kind.
    pub fn of(&self, kind: OpKind) -> u64 {
        self.0[kind as usize]
    }

    /// Returns the kinds with operations.
    pub fn any(&self) -> impl Iterator<Item = (OpKind, u64)> {
        let all = OpKind::ALL.iter().map(|kind| (*kind, self.of(*kind)));
        all.filter(|(_, count)| *count > 0)
    }
}

impl Serialize for WireOps {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match to.is_human_readable() {
            true => to.collect_map(self.any().map(|(kind, count)| (kind.name(), count))),
            false => {
                let pairs: Vec<_> = self.any().map(|(kind, count)| (kind as u8, count)).collect();
                to.collect_seq(pairs)
            }
        }
    }
}

impl<'de> Deserialize<'de> for WireOps {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<WireOps, D::Error> {
        match from.is_human_readable() {
            true => from.deserialize_map(CountedOps),
            false => from.deserialize_seq(CountedOps),
        }
    }
}

struct CountedOps;

impl<'de> Visitor<'de> for CountedOps {
    type Value = WireOps;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("operations by kind")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<WireOps, A::Error> {
        let mut ops = WireOps::default();
        while let Some((name, count)) = from.next_entry::<String, u64>()? {
            let kind = name.parse::<OpKind>();
            let kind = kind.map_err(|_| {
                let shown: String = name.chars().take(60).collect();
                A::Error::custom(format!("{shown:?} is not a kind of request"))
            })?;
            ops.0[kind as usize] = count;
        }
        Ok(ops)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<WireOps, A::Error> {
        let mut ops = WireOps::default();
        while let Some((kind, count)) = from.next_element::<(u8, u64)>()? {
            let ops = ops.0.get_mut(usize::from(kind));
            let ops = ops.ok_or_else(|| {
                A::Error::custom(format!("{kind} is not the number of a kind of request"))
            })?;
            *ops = count;
        }
        Ok(ops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_names_and_controllers_numbers() {
        let mut ops = WireOps::default();
        (ops.0[OpKind::Read as usize], ops.0[OpKind::Open as usize]) = (7, 1);
        let json = serde_json::to_string(&ops).unwrap();
        assert!(json.contains("\"read\":7") && json.contains("\"open\":1"), "{json}");
        assert_eq!(serde_json::from_str::<WireOps>(&json).unwrap(), ops);
        let compact = postcard::to_stdvec(&ops).unwrap();
        assert_eq!(compact.len(), 5);
        assert_eq!(postcard::from_bytes::<WireOps>(&compact).unwrap(), ops);
        let error = serde_json::from_str::<WireOps>("{\"raed\": 1}").unwrap_err().to_string();
        assert!(error.contains("\"raed\" is not a kind of request"), "{error}");
        assert!(postcard::from_bytes::<WireOps>(&[1, 200, 1]).is_err());
    }
}
