-- Lets a job start when its reservation can (burst_buffer/lua), by `sluice slurm start`.
--
--   slurm_bb_pre_run: sluice slurm start JOB ─┬─ status 0 ─► the job starts
--                                             ├─ status 3 ─► not yet: a batch job is pending again
--                                             └─ another ──► ON_FAILURE
--
-- Slurm calls pre_run when it has chosen the job's nodes, in a process beside slurmctld and as
-- SlurmUser. All other hooks return at once. srun and salloc fail if pre_run fails, so for their jobs
-- `sluice slurm start` waits. docs/SLURM.md describes the installation.

-- Settings.
local SLUICE = "/usr/bin/sluice"
-- What happens if `sluice slurm start` fails or cannot be run: "start" the job, or have it "wait".
local ON_FAILURE = "start"
-- Seconds after which `sluice slurm start` is ended, and has failed. Shorter than OtherTimeout of
-- burst_buffer.conf: what runs into that one counts as "wait", and Slurm logs no reason.
local LIMIT_S = 540

local STARTS, NOT_YET, NEVER = 0, 3, 4

-- Runs a command, and returns its exit status and what it printed. os.execute has no output, and
-- close() of io.popen no status in Lua 5.1, so the shell prints the status.
local function run(command)
  local pipe = io.popen(command .. " 2>&1 </dev/null; echo \"status $?\"", "r")
  if not pipe then return nil, "cannot start a shell" end
  local text = pipe:read("*a") or ""
  pipe:close()
  local said, status = string.match(text, "^(.*)status (%d+)%s*$")
  return tonumber(status), string.gsub(said or text, "%s+$", "")
end

function slurm_bb_pre_run(job_id, job_script, uid, gid)
  -- --foreground: the command stays in the process group that Slurm kills if the job is cancelled.
  local command = string.format("timeout --foreground --kill-after=5 %d '%s' slurm start %d", LIMIT_S, SLUICE,
    tonumber(job_id))
  local status, said = run(command)
  if status == STARTS then return slurm.SUCCESS end
  if status == NOT_YET or status == NEVER then return slurm.ERROR, said end
  slurm.log_error("sluice slurm start %s: status %s: %s", tostring(job_id), tostring(status),
    tostring(said))
  if ON_FAILURE == "wait" then
    return slurm.ERROR, "sluice slurm start: status " .. tostring(status) .. ": " .. tostring(said)
  end
  return slurm.SUCCESS
end

function slurm_bb_pools()
  return slurm.SUCCESS -- none: licences count already
end

function slurm_bb_job_process(job_script)
  return slurm.SUCCESS
end

function slurm_bb_setup(job_id, uid, gid, pool, size, job_script)
  return slurm.SUCCESS
end

function slurm_bb_data_in(job_id, job_script, uid, gid)
  return slurm.SUCCESS
end

function slurm_bb_real_size(job_id, uid, gid)
  return slurm.SUCCESS, ""
end

function slurm_bb_paths(job_id, job_script, path_file, uid, gid)
  return slurm.SUCCESS
end

function slurm_bb_post_run(job_id, job_script, uid, gid)
  return slurm.SUCCESS
end

function slurm_bb_data_out(job_id, job_script, uid, gid)
  return slurm.SUCCESS
end

function slurm_bb_job_teardown(job_id, job_script, hurry, uid, gid)
  return slurm.SUCCESS
end

function slurm_bb_get_status(uid, gid, ...)
  return slurm.SUCCESS, ""
end
