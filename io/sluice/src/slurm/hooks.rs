//! The prologs and epilogs of Slurm.
//!
//! ```text
//!   PrologSlurmctld ─► srun, salloc: wait for the reservation ─► register the job and its nodes; claim it
//!   Prolog, each node ─► the job's token ─► RUNDIR/JOB/token: 0400, of the user; the directory is root's
//!   Epilog, each node ─► remove RUNDIR/JOB
//!   EpilogSlurmctld ─► end the job: its reservations finish with their credit, its token is invalid
//! ```
//!
//! Each ends with success: an error is a line in Slurm's log, and `follow` ends later what was not
//! ended. Only with `on_failure = "wait"` a job does not start without the controller.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use api::ErrorCode;
use http::ApiClient;
use rustix::fs::{Gid, Uid};

use super::begin::{BeginOutcome, begin, start_known};
use super::config::{OnFailure, SlurmConfig};
use super::queue::{self, SlurmJob, SlurmState};
use super::request;
use crate::log;

/// One of Slurm's hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlurmHook {
    /// Before a job, on slurmctld's machine, as SlurmUser.
    PrologSlurmctld,
    /// Before a job, on each of its nodes, as root.
    Prolog,
    /// After a job, on each of its nodes, as root.
    Epilog,
    /// After a job, on slurmctld's machine, as SlurmUser.
    EpilogSlurmctld,
}

/// Runs a hook for the job of Slurm's variables.
pub(super) fn run(hook: SlurmHook, config: &SlurmConfig) -> ExitCode {
    let done = job_id().and_then(|job| {
        match hook {
            SlurmHook::PrologSlurmctld => return admit(config, &job),
            SlurmHook::Prolog => fetch_token(config, &job)?,
            SlurmHook::Epilog => remove(&config.run_dir.join(&job))?,
            SlurmHook::EpilogSlurmctld => end(config, &job)?,
        }
        Ok(ExitCode::SUCCESS)
    });
    let error = match done {
        Ok(status) => return status,
        Err(error) => error,
    };
    log::print_line(&format!("sluice: {hook:?}: {error:#}"));
    match hook == SlurmHook::PrologSlurmctld && config.on_failure == OnFailure::Wait {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

/// Lets a job begin that was chosen its nodes: one of srun or salloc not before its reservation.
fn admit(config: &SlurmConfig, id: &str) -> anyhow::Result<ExitCode> {
    let job = queue::job(id)?.with_context(|| format!("Slurm has no job {id}"))?;
    let waits = !job.is_batch && job.comment.split_whitespace().any(|word| word == GATE);
    if waits {
        let status = start_known(config, id, Ok(Some(job.clone())))?;
        if status != ExitCode::SUCCESS {
            return Ok(status);
        }
    }
    let client = config.batch_client()?;
    register(&client, &job)?;
    if !waits {
        claim(&client, config, &job)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn register(client: &ApiClient, job: &SlurmJob) -> anyhow::Result<()> {
    let (new, id) = (request::registration(job, nodes()?), job.id.as_str());
    client.register_job(id, &new).map(drop).with_context(|| format!("cannot register job {id}"))
}

/// Begins and claims the reservation of a job that has passed the gate, or whose site has none.
fn claim(client: &ApiClient, config: &SlurmConfig, job: &SlurmJob) -> anyhow::Result<()> {
    let id = &job.id;
    match begin(client, config, job, None)? {
        BeginOutcome::NoRequest | BeginOutcome::Active => {}
        // Without burst_buffer.lua nothing holds the job back: it begins as best effort.
        BeginOutcome::Later(why) => {
            log::print_line(&format!("sluice: job {id} begins as best effort: {why}"));
        }
        BeginOutcome::Never(why) => bail!("job {id} gets no bandwidth: {why}"),
    }
    Ok(())
}

/// Ends the attempt of a job that was registered. After a requeue Slurm's variable has the count of
/// the attempt that follows, and after the death of a node that of the one that ends.
fn end(config: &SlurmConfig, id: &str) -> anyhow::Result<()> {
    let client = config.batch_client()?;
    let registered = match client.job(id) {
        Ok(job) => job.attempt,
        // The controller was away when it began, or it has ended already.
        Err(error) if error.code() == ErrorCode::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let counted = match variable("SLURM_JOB_RESTART_COUNT") {
        Some(text) => text.parse().with_context(|| format!("restart count {text:?}"))?,
        None => 0,
    };
    // Slurm calls this, too, for an attempt that was refused its start: it waits, or runs again.
    let goes_on = || -> anyhow::Result<bool> {
        let job = queue::job(id)?.filter(|job| job.attempt == registered);
        Ok(job.is_some_and(|job| job.state != SlurmState::Over || job.is_refused))
    };
    // A late epilog: the attempt after the one that it is of is registered.
    if registered > counted || (registered == counted && goes_on()?) {
        return Ok(());
    }
    client.end_job(id, Some(registered)).map(drop).with_context(|| format!("cannot end job {id}"))
}

fn fetch_token(config: &SlurmConfig, id: &str) -> anyhow::Result<()> {
    let dir = config.run_dir.join(id);
    remove(&dir)?;
    let token = config.node_client()?.job_token(id)?;
    let text = variable("SLURM_JOB_UID").context("SLURM_JOB_UID is missing")?;
    let user: u32 = text.parse().with_context(|| format!("SLURM_JOB_UID {text:?}"))?;
    if token.user != user {
        bail!("the controller knows job {id} as one of user {}, and Slurm of {user}", token.user);
    }
    write_token(&dir, user, &token.token)
}

/// Writes a token that only `user` can read, into a directory in which only root writes.
fn write_token(dir: &Path, user: u32, token: &str) -> anyhow::Result<()> {
    let above = dir.parent().unwrap_or(Path::new("/"));
    let written = || -> io::Result<()> {
        fs::create_dir_all(above)?;
        let found = fs::symlink_metadata(above)?;
        if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
            let why = format!("{} is not a directory of this user", above.display());
            return Err(io::Error::other(why));
        }
        // Another user must not be able to rename it.
        fs::set_permissions(above, Permissions::from_mode(0o755))?;
        DirBuilder::new().mode(0o711).create(dir)?;
        let mut options = File::options();
        options.write(true).create_new(true).mode(0o400);
        let mut file = options.open(dir.join("token"))?;
        file.write_all(format!("{token}\n").as_bytes())?;
        Ok(rustix::fs::fchown(&file, Some(Uid::from_raw(user)), None::<Gid>)?)
    };
    written().with_context(|| format!("cannot write the token to {}", dir.display()))
}

/// Removes the directory of a job, if there is one.
fn remove(dir: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.with_context(|| format!("cannot remove {}", dir.display())),
    }
}

/// Returns the names of the job's nodes, `cn[1-3]` written out by Slurm itself.
fn nodes() -> anyhow::Result<Vec<String>> {
    let list = variable("SLURM_JOB_NODELIST").context("SLURM_JOB_NODELIST is missing")?;
    queue::host_names(&list)
}

/// Returns the job ID of Slurm's variable: digits alone, as it becomes part of a path.
fn job_id() -> anyhow::Result<String> {
    let id =
        variable("SLURM_JOB_ID").context("SLURM_JOB_ID is missing: Slurm runs this command")?;
    match id.bytes().all(|byte| byte.is_ascii_digit()) {
        true => Ok(id),
        false => bail!("SLURM_JOB_ID: {id:?} is not a job ID"),
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The word of job_submit.lua in the admin comment of a job of srun or salloc that waits for its reservation.
const GATE: &str = "sluice-gate";

#[cfg(test)]
mod tests {
    use testkit::TestFolder;

    use super::*;

    #[test]
    fn a_token_is_read_by_its_user_alone_and_goes_with_its_directory() {
        let folder = TestFolder::new();
        let dir = folder.path().join("jobs/7");
        let user = rustix::process::getuid().as_raw();
        write_token(&dir, user, "slc_x").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!((mode(&dir), mode(&dir.join("token"))), (0o711, 0o400));
        assert_eq!(fs::metadata(dir.join("token")).unwrap().uid(), user);
        assert_eq!(fs::read_to_string(dir.join("token")).unwrap(), "slc_x\n");
        let error = format!("{:#}", write_token(&dir, user, "slc_y").unwrap_err());
        assert!(error.contains("cannot write the token to"), "{error}");
        remove(&dir).unwrap();
        remove(&dir).unwrap();
        assert!(!dir.exists());
    }
}
