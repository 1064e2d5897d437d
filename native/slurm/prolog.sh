#!/bin/sh
# Prolog: on each node of a job, as root, before its first step. Puts the token of the job into
# /run/sluice/jobs/JOB/token, for the tasks of the job.
#
# A hook that fails costs more than a reservation: Slurm drains the node and requeues the job,
# held, after a Prolog that failed.
# So it has a limit in time, and its exit status is 0 unless FAIL is yes.

# Settings.
SLUICE=/usr/bin/sluice
LIMIT=2s
FAIL=no

said=$(timeout --kill-after=1s "$LIMIT" "$SLUICE" slurm prolog 2>&1 </dev/null)
status=$?
if [ "$status" -ne 0 ]; then
	logger -t sluice -p daemon.warning \
		"sluice slurm prolog: job $SLURM_JOB_ID: status $status: $said" 2>/dev/null
	[ "$FAIL" = no ] || exit 1
fi
exit 0
