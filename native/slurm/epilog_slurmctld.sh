#!/bin/sh
# EpilogSlurmctld: beside slurmctld, as SlurmUser, once for a job, at the same time as its nodes run
# Epilog. Ends the job at the controller, with its reservations and tokens.
#
# A hook that fails costs more than a reservation: only the log of slurmctld has an EpilogSlurmctld
# that failed.
# So it has a limit in time, and its exit status is 0 unless FAIL is yes.

# Settings.
SLUICE=/usr/bin/sluice
LIMIT=2s
FAIL=no

said=$(timeout --kill-after=1s "$LIMIT" "$SLUICE" slurm epilog-slurmctld 2>&1 </dev/null)
status=$?
if [ "$status" -ne 0 ]; then
	logger -t sluice -p daemon.warning \
		"sluice slurm epilog-slurmctld: job $SLURM_JOB_ID: status $status: $said" 2>/dev/null
	[ "$FAIL" = no ] || exit 1
fi
exit 0
