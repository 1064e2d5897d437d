#!/bin/sh
# PrologSlurmctld: beside slurmctld, as SlurmUser, once for a job and before its nodes run Prolog.
# Registers the job at the controller with its user and nodes.
#
# A hook that fails costs more than a reservation: Slurm kills an srun job, and requeues a batch job,
# after a PrologSlurmctld that failed.
# So it has a limit in time, and its exit status is 0 unless FAIL is yes.

# Settings.
SLUICE=/usr/bin/sluice
LIMIT=2s
FAIL=no

said=$(timeout --kill-after=1s "$LIMIT" "$SLUICE" slurm prolog-slurmctld 2>&1 </dev/null)
status=$?
if [ "$status" -ne 0 ]; then
	logger -t sluice -p daemon.warning \
		"sluice slurm prolog-slurmctld: job $SLURM_JOB_ID: status $status: $said" 2>/dev/null
	[ "$FAIL" = no ] || exit 1
fi
exit 0
