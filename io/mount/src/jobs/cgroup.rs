//! The name of a job in the path of a control group.
//!
//! ```text
//!   /proc/TID/cgroup   9:memory:/slurm/uid_1000/job_123/step_0/task_0     v1: a line a hierarchy
//!                      0::/system.slice/slurmstepd.scope/job_123/step_0   v2: one line
//!                                                            └─┬─┘
//!   pattern            /system.slice/slurmstepd.scope/job_{}   └ what is below does not matter
//! ```
//!
//! A path is compared from its root, component by component. That is what makes it safe: a user can
//! make groups below one that was delegated to the user, but none in the place that a pattern
//! names.

use std::borrow::Cow;
use std::fmt;

/// Where the name stands in a group's path: `/a/b_*/job_{}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CgroupPattern(String);

/// The form of a pattern.
pub(super) const WANT: &str = "a pattern is an absolute path with one {} for the job, such as \
                               /batch/*/job_{}, and without * and {} side by side";

/// Where batch systems and Kubernetes put the processes of a job or pod.
///
/// Slurm, v1: `CgroupPrepend` of cgroup.conf, `/slurm` or with several slurmd on a node
/// `/slurm_NODE`, then `uid_N/job_ID` (Slurm 22.05, src/plugins/cgroup/v1/cgroup_v1.c). v2: the
/// scope that slurmd has systemd make, then `job_ID` (src/plugins/cgroup/v2/cgroup_v2.c). Processes
/// that pam_slurm_adopt put into a job are in `job_ID/step_extern`.
///
/// PBS: the hook pbs_cgroups of OpenPBS and PBS Professional, `jobid` in v1, `jobs` in v2. LSF:
/// `LSF_PROCESS_TRACKING`, with the job's number, a number of LSF and a time after `job`.
/// Kubernetes: the kubelet's drivers systemd and cgroupfs; the groups of guaranteed pods are not
/// below one of their class. The name is the pod's UID.
const KNOWN: [&str; 11] = [
    "/system.slice/slurmstepd.scope/job_{}",
    "/slurm/uid_*/job_{}",
    "/system.slice/*_slurmstepd.scope/job_{}",
    "/slurm_*/uid_*/job_{}",
    "/pbs_jobs.service/jobid/{}",
    "/pbs_jobs.service/jobs/{}",
    "/lsf/*/job.{}.*.*",
    "/kubepods.slice/kubepods-pod{}.slice",
    "/kubepods.slice/*/kubepods-*-pod{}.slice",
    "/kubepods/pod{}",
    "/kubepods/*/pod{}",
];

impl CgroupPattern {
    /// A pattern; `None` if it is not what [`WANT`] says.
    pub(super) fn new(text: &str) -> Option<CgroupPattern> {
        let parts: Vec<_> = text.strip_prefix('/')?.split('/').collect();
        let one_name = text.matches("{}").count() == 1
            && text.matches(['{', '}']).count() == 2
            && !["**", "*{}", "{}*"].iter().any(|side_by_side| text.contains(side_by_side));
        (one_name && !parts.contains(&"")).then(|| CgroupPattern(text.into()))
    }

    /// The job's name in a group's path. A `-` of a pod's UID is a `_` in the name of a slice, where
    /// `-` separates slices.
    fn job<'p>(&self, path: &'p str) -> Option<Cow<'p, str>> {
        let name = self.find(path)?;
        match self.0.starts_with("/kubepods.slice/") {
            true => Some(name.replace('_', "-").into()),
            false => Some(name.into()),
        }
    }

    /// What stands for the name in a group's path; never empty.
    fn find<'p>(&self, path: &'p str) -> Option<&'p str> {
        let mut components = path.strip_prefix('/')?.split('/');
        let mut name = None;
        for part in self.0[1..].split('/') {
            let found = fits(part, components.next()?)?;
            if part.contains("{}") {
                name = Some(found);
            }
        }
        name
    }
}

impl fmt::Display for CgroupPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The patterns of batch systems and Kubernetes.
pub(super) fn known() -> Vec<CgroupPattern> {
    KNOWN.map(|text| CgroupPattern::new(text).expect("they are patterns")).into()
}

/// The first name that a pattern finds in the text of /proc/TID/cgroup.
pub(super) fn job_in<'t>(text: &'t [u8], patterns: &[CgroupPattern]) -> Option<Cow<'t, str>> {
    // A group's name cannot hold a line feed: the kernel refuses to make it.
    let paths = text.split(|byte| *byte == b'\n').filter_map(|line| {
        let line = std::str::from_utf8(line).ok()?;
        line.splitn(3, ':').nth(2)
    });
    paths.into_iter().find_map(|path| patterns.iter().find_map(|pattern| pattern.job(path)))
}

/// Returns the text of `{}` if `part` of a pattern matches a whole component; empty if the part has
/// no `{}`. `*` stands for any characters or none, `{}` for at least one.
fn fits<'t>(part: &str, component: &'t str) -> Option<&'t str> {
    let literal = part.find(['*', '{']).unwrap_or(part.len());
    let component = component.strip_prefix(&part[..literal])?;
    let part = &part[literal..];
    let ends = || component.char_indices().map(|(at, _)| at).chain([component.len()]);
    if let Some(rest) = part.strip_prefix("{}") {
        return ends()
            .filter(|end| *end > 0)
            .find(|end| fits(rest, &component[*end..]).is_some())
            .map(|end| &component[..end]);
    }
    match part.strip_prefix('*') {
        Some(rest) => ends().find_map(|end| fits(rest, &component[end..])),
        None => component.is_empty().then_some(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Option<String> {
        job_in(text.as_bytes(), &known()).map(Cow::into_owned)
    }

    fn job<'p>(pattern: &str, path: &'p str) -> Option<&'p str> {
        CgroupPattern::new(pattern).unwrap().find(path)
    }

    #[test]
    fn slurm_jobs_are_found_in_both_versions_of_cgroups() {
        let v1 = "12:cpuset:/\n\
                  9:memory:/slurm/uid_2101171/job_280678/step_interactive/task_0\n\
                  4:freezer:/slurm/uid_2101171/job_280678/step_interactive\n\
                  1:name=systemd:/system.slice/slurmd.service\n";
        assert_eq!(found(v1).as_deref(), Some("280678"));
        let v2 = "0::/system.slice/slurmstepd.scope/job_1392969/step_0/user/task_0\n";
        assert_eq!(found(v2).as_deref(), Some("1392969"));
        let adopted = "0::/system.slice/slurmstepd.scope/job_42/step_extern/user\n";
        assert_eq!(found(adopted).as_deref(), Some("42"));
    }

    #[test]
    fn slurm_jobs_are_found_where_several_slurmd_share_a_node() {
        assert_eq!(found("7:devices:/slurm_cn1/uid_0/job_5/step_batch").as_deref(), Some("5"));
        let v2 = "0::/system.slice/cn1_slurmstepd.scope/job_6/step_batch/user/task_special\n";
        assert_eq!(found(v2).as_deref(), Some("6"));
    }

    #[test]
    fn jobs_of_pbs_and_lsf_are_found() {
        for (text, job) in [
            ("5:memory:/pbs_jobs.service/jobid/12345.pbs\n", "12345.pbs"),
            ("5:memory:/pbs_jobs.service/jobid/12345[2].pbs/child\n", "12345[2].pbs"),
            ("0::/pbs_jobs.service/jobs/12345.pbs\n", "12345.pbs"),
            ("3:freezer:/lsf/cluster1/job.103.9378.1383687845\n", "103"),
        ] {
            assert_eq!(found(text).as_deref(), Some(job), "{text}");
        }
        assert_eq!(found("0::/pbs_jobs.service/jobid\n"), None);
        assert_eq!(found("0::/lsf/cluster1\n"), None);
    }

    #[test]
    fn a_pod_is_found_by_its_uid_with_both_drivers_and_in_each_class() {
        let uid = "099b88fb-2a99-45ad-af94-d91eb81a87e9";
        let slice = "099b88fb_2a99_45ad_af94_d91eb81a87e9";
        for path in [
            format!("/kubepods.slice/kubepods-pod{slice}.slice/cri-containerd-0f.scope"),
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/crio-0f.scope"
            ),
            format!("/kubepods/pod{uid}/0f"),
            format!("/kubepods/besteffort/pod{uid}/0f"),
        ] {
            assert_eq!(found(&format!("0::{path}\n")).as_deref(), Some(uid), "{path}");
        }
        assert_eq!(found("0::/kubepods.slice/kubepods-burstable.slice\n"), None);
    }

    #[test]
    fn what_belongs_to_no_job_has_none() {
        for text in [
            "",
            "0::/\n",
            "0::/user.slice/user-1000.slice/session-3.scope\n",
            "0::/system.slice/slurmstepd.scope/system\n",
            "0::/system.slice/slurmstepd.scope/job_\n",
            "4:memory:/slurm/uid_1000\n",
            "nonsense\n",
        ] {
            assert_eq!(found(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_group_below_a_users_own_is_no_proof() {
        let own = "/user.slice/user-1000.slice/user@1000.service";
        for below in ["/slurm/uid_1000/job_7", "/system.slice/slurmstepd.scope/job_7/step_0"] {
            assert_eq!(found(&format!("0::{own}{below}\n")), None);
        }
        assert_eq!(found("0::/../../system.slice/slurmstepd.scope/job_7\n"), None);
    }

    #[test]
    fn a_path_with_colons_is_whole() {
        let patterns = [CgroupPattern::new("/a:b/{}").unwrap()];
        let found = job_in(b"3:cpu,cpuacct:/a:b/c:d/e", &patterns);
        assert_eq!(found.as_deref(), Some("c:d"));
    }

    #[test]
    fn stars_stay_within_a_component_and_braces_take_at_least_a_character() {
        assert_eq!(job("/pbs/*.server/{}", "/pbs/x.server/12"), Some("12"));
        assert_eq!(job("/pbs/*.server/{}", "/pbs/x/y.server/12"), None);
        assert_eq!(job("/b/{}.sh", "/b/.sh"), None);
        assert_eq!(job("/b/{}.sh", "/b/a.sh.sh/below"), Some("a.sh"));
        assert_eq!(job("/b/*-{}-*", "/b/-é-"), Some("é"));
        assert_eq!(job("/b/j*b_{}x/c*", "/b/jb_1x/c"), Some("1"));
        assert_eq!(job("/b/j*b_{}x/c*", "/b/jb_1x"), None);
    }

    #[test]
    fn patterns_that_would_be_guesses_are_refused() {
        for text in ["", "/", "job_{}", "/a", "/a/*", "/{}/{}", "/a//{}", "/{}*", "/**{}", "/{x}"] {
            assert_eq!(CgroupPattern::new(text), None, "{text:?}");
        }
    }
}
