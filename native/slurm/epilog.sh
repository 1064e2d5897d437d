#!/bin/sh
# Epilog: on each node of a job, as root, after its last step. Removes /run/sluice/jobs/JOB.
#
# A hook that fails costs more than a reservation: Slurm drains the node after an Epilog that failed.
# So it has a limit in time, and its exit status is 0 unless FAIL is yes.

# Settings.
SLUICE=/usr/bin/sluice
LIMIT=2s
FAIL=no

said=$(timeout --kill-after=1s "$LIMIT" "$SLUICE" slurm epilog 2>&1 </dev/null)
status=$?
if [ "$status" -ne 0 ]; then
	logger -t sluice -p daemon.warning \
		"sluice slurm epilog: job $SLURM_JOB_ID: status $status: $said" 2>/dev/null
	[ "$FAIL" = no ] || exit 1
fi
exit 0
