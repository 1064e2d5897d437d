//! The compact form of reports: postcard of the same message.
//!
//! A controller receives a report of a thousand lines from each of a thousand proxies each second,
//! and most of the cost would be parsing JSON. Postcard names no fields, so both sides must have
//! the same message: the content type has a number that changes with it, and a controller that does
//! not know the number gets the report as JSON. A report with replies to queries is also sent as
//! JSON, because replies omit absent fields, which needs names.

use super::ProxyReport;

/// The content type of a report in its compact form.
pub const COMPACT_REPORT: &str = "application/vnd.sluice.report-4+postcard";

impl ProxyReport {
    /// Returns the report in its compact form; `None` if it has replies to queries.
    pub fn to_compact(&self) -> Option<Vec<u8>> {
        let compact = || postcard::to_stdvec(self).expect("memory takes all of it");
        self.replies.is_empty().then(compact)
    }
}

/// A scope or subject within a report: in the compact form a byte string of its own, so that a
/// reader that knows the bytes need not decode them.
pub(super) mod apart {
    use serde::de::DeserializeOwned;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(in crate::proxy_wire) fn serialize<T: Serialize, S: Serializer>(
        what: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match to.is_human_readable() {
            true => what.serialize(to),
            false => {
                let bytes = postcard::to_stdvec(what).map_err(serde::ser::Error::custom)?;
                to.serialize_bytes(&bytes)
            }
        }
    }

    pub(in crate::proxy_wire) fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
        from: D,
    ) -> Result<T, D::Error> {
        match from.is_human_readable() {
            true => T::deserialize(from),
            false => {
                let bytes = <&[u8]>::deserialize(from)?;
                postcard::from_bytes(bytes).map_err(serde::de::Error::custom)
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::proxy_wire::{
        WireHoldings, WireKey, WireOps, WireScope, WireScopeService, WireScopeUsage,
        WireServiceTotal, WireSubjectId, WireTargetReport,
    };
    use crate::why::{ProxyReply, QueryReply};
    use crate::{UsageLine, UsageReport, WireCounters};

    pub(in crate::proxy_wire) fn report() -> ProxyReport {
        let key = vec![
            WireKey::Jobid("dd.500".into()),
            WireKey::Uid(5),
            WireKey::Projid(None),
            WireKey::Opcode("write".into()),
        ];
        let scope = WireScope { section: "rule".into(), name: "jobs".into(), key };
        let counters = WireCounters {
            read_bytes: 1 << 40,
            delayed: 3,
            ops: WireOps([7; model::OpKind::COUNT]),
            ..WireCounters::default()
        };
        let target = WireTargetReport {
            sequence: 9,
            holdings: Some(WireHoldings::default()),
            uses: Some(vec![WireScopeUsage { scope: scope.clone(), used: Some(5), waiting: true }]),
            served: vec![WireScopeService {
                scope,
                served: WireServiceTotal { generation: 1, cost_ns: 2 },
            }],
            ..WireTargetReport::default()
        };
        let payer =
            WireSubjectId { job: "dd.500".into(), project: Some(8), ..WireSubjectId::default() };
        let line = UsageLine { id: 4, subject: payer, counters: counters.clone() };
        let usage =
            UsageReport { sequence: 3, total: counters, lines: vec![line], dropped_lines: vec![1] };
        ProxyReport {
            epoch: u64::MAX,
            rules: Some("v".into()),
            targets: BTreeMap::from([("fs".into(), target)]),
            usage: Some(usage),
            contended: true,
            replies: Vec::new(),
        }
    }

    #[test]
    fn a_report_comes_out_as_it_went_in_and_is_a_third_of_its_json() {
        let (report, bytes) = (report(), report().to_compact().unwrap());
        assert_eq!(postcard::from_bytes::<ProxyReport>(&bytes).unwrap(), report);
        let json = serde_json::to_vec(&report).unwrap();
        assert!(bytes.len() * 3 < json.len(), "{} and {} bytes", bytes.len(), json.len());
        let what = QueryReply::Why(Box::default());
        let replies = vec![ProxyReply { number: 1, what }];
        assert_eq!(ProxyReport { replies, ..report }.to_compact(), None);
    }

    /// If this fails, the message has changed: increase the number in `COMPACT_REPORT` and in the
    /// description of the API, then put the new sum here.
    #[test]
    fn the_number_in_the_content_type_stands_for_this_message() {
        let sum = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        let sum = report().to_compact().unwrap().iter().fold(0xcbf2_9ce4_8422_2325, sum);
        assert_eq!(
            (COMPACT_REPORT, sum),
            ("application/vnd.sluice.report-4+postcard", 361_439_885_868_411_325)
        );
    }
}
