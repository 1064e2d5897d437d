//! Reports in few bytes: postcard of the same message.
//!
//! A controller takes a report of a thousand lines from each of a thousand proxies each second,
//! and reading JSON is most of what that costs. Postcard names no fields, so both sides must
//! have the same message: the content type has a number that changes with it, and who does not
//! know that number is told the report as JSON. So is, each time, a report with answers: they
//! leave out what is not there, which takes names.

use super::{ProxyReport, WrongMessage};

/// The content type of a report in its compact form.
pub const COMPACT_REPORT: &str = "application/vnd.sluice.report-1+postcard";

impl ProxyReport {
    /// The report in its compact form; `None` if it has answers.
    pub fn to_compact(&self) -> Option<Vec<u8>> {
        let compact = || postcard::to_stdvec(self).expect("memory takes all of it");
        self.answers.is_empty().then(compact)
    }

    /// The report of a compact form.
    ///
    /// # Errors
    /// If the bytes are no such message, or more than one, or it has answers.
    pub fn from_compact(bytes: &[u8]) -> Result<ProxyReport, WrongMessage> {
        const WANT: &str = "a report in the form of its content type";
        match postcard::take_from_bytes::<ProxyReport>(bytes) {
            Ok((report, [])) if report.answers.is_empty() => Ok(report),
            Ok((_, [])) => Err(WrongMessage::new("a report with answers", WANT)),
            Ok((_, rest)) => {
                Err(WrongMessage::new(format!("{} bytes after the end", rest.len()), WANT))
            }
            Err(why) => Err(WrongMessage::new(why, WANT)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::link::{
        HoldingsForm, KeyForm, OpsForm, ScopeForm, ServedForm, ServedOf, TargetReportForm, UseOf,
    };
    use crate::why::{Answer, ProxyAnswer};
    use crate::{CountersForm, UsageLine, UsageReport};

    fn report() -> ProxyReport {
        let key = vec![
            KeyForm::Jobid("dd.500".into()),
            KeyForm::Uid(5),
            KeyForm::Projid(None),
            KeyForm::Opcode("write".into()),
        ];
        let scope = ScopeForm { section: "rule".into(), name: "jobs".into(), key };
        let counters = CountersForm {
            read_bytes: 1 << 40,
            delayed: 3,
            ops: OpsForm([7; model::Kind::COUNT]),
            ..CountersForm::default()
        };
        let target = TargetReportForm {
            sequence: 9,
            holdings: Some(HoldingsForm::default()),
            uses: vec![UseOf { scope: scope.clone(), used: Some(5), waiting: true }],
            served: vec![ServedOf { scope, served: ServedForm { lap: 1, cost_ns: 2 } }],
            ..TargetReportForm::default()
        };
        let line = UsageLine {
            id: 4,
            job: "dd.500".into(),
            project: Some(8),
            counters: counters.clone(),
            ..UsageLine::default()
        };
        let usage = UsageReport { sequence: 3, total: counters, lines: vec![line], gone: vec![1] };
        ProxyReport {
            epoch: u64::MAX,
            rules: Some("v".into()),
            targets: BTreeMap::from([("fs".into(), target)]),
            usage: Some(usage),
            contended: true,
            answers: Vec::new(),
        }
    }

    #[test]
    fn a_report_comes_out_as_it_went_in_and_is_a_third_of_its_json() {
        let (report, bytes) = (report(), report().to_compact().unwrap());
        assert_eq!(ProxyReport::from_compact(&bytes).unwrap(), report);
        let json = serde_json::to_vec(&report).unwrap();
        assert!(bytes.len() * 3 < json.len(), "{} and {} bytes", bytes.len(), json.len());
    }

    /// Where this fails the message is another: count up the number in `COMPACT_REPORT` and in
    /// the API's description, then put the new sum here.
    #[test]
    fn the_number_in_the_content_type_stands_for_this_message() {
        let sum = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        let sum = report().to_compact().unwrap().iter().fold(0xcbf2_9ce4_8422_2325, sum);
        assert_eq!(
            (COMPACT_REPORT, sum),
            ("application/vnd.sluice.report-1+postcard", 9_732_674_720_564_332_997)
        );
    }

    #[test]
    fn bytes_that_are_no_report_are_refused_and_take_no_memory() {
        let bytes = report().to_compact().unwrap();
        for short in 0..bytes.len() {
            let error = ProxyReport::from_compact(&bytes[..short]).unwrap_err().to_string();
            assert!(error.contains("is not a report in the form"), "{error}");
        }
        let long = [bytes.as_slice(), b"x"].concat();
        let error = ProxyReport::from_compact(&long).unwrap_err().to_string();
        assert!(error.contains("1 bytes after the end"), "{error}");
        let what = Answer::Why(Box::default());
        let answers = vec![ProxyAnswer { number: 1, what }];
        let answers = ProxyReport { answers, ..ProxyReport::default() };
        assert_eq!(answers.to_compact(), None);
        let error = ProxyReport::from_compact(&postcard::to_stdvec(&answers).unwrap());
        assert!(error.is_err());
        // Lengths that nothing follows.
        assert!(ProxyReport::from_compact(&[0xff; 64]).is_err());
        assert!(ProxyReport::from_compact(&[0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f]).is_err());
    }
}
