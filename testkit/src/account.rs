//! Accounts whose service a test reports.

use model::{AccountSubject, Identity, JobId, Nid, PathSet};

/// The account of a job and a user in the default class, through the export `scratch`.
pub fn account_subject(job: &str, uid: u32) -> AccountSubject {
    let job = JobId::new(job).expect("a short name");
    AccountSubject {
        identity: Identity { job, uid, gid: 100, projid: None, nid: Nid::local() },
        paths: PathSet::default(),
        export: "scratch".into(),
        class: "default".into(),
    }
}
