#!/bin/sh
# PrologSlurmctld: beside slurmctld, as SlurmUser, once for a job and before its nodes run Prolog.
# Registers the job at the controller with its user and nodes. A job of srun or salloc with reserved
# bandwidth waits here for its reservation, and ends if it gets none.
#
# A hook that fails costs more than a reservation: Slurm kills an srun job, and requeues a batch job,
# after a PrologSlurmctld that failed.
# So it has a limit in time, longer than the setting `wait` of slurm.toml, and its exit status is 0 unless
# FAIL is yes, or the job may not start: status 3 and 4.

# Settings.
SLUICE=/usr/bin/sluice
LIMIT=540s
FAIL=no

said=$(timeout --kill-after=1s "$LIMIT" "$SLUICE" slurm prolog-slurmctld 2>&1 </dev/null)
status=$?
if [ "$status" -ne 0 ]; then
	logger -t sluice -p daemon.warning \
		"sluice slurm prolog-slurmctld: job $SLURM_JOB_ID: status $status: $said" 2>/dev/null
	case $status in 3 | 4) exit 1 ;; esac
	[ "$FAIL" = no ] || exit 1
fi
exit 0
