#!/bin/sh
# Epilog: removes the mount that mount_prolog.sh made for the job. Its processes have ended by then;
# a file that is still open keeps the mount until it is closed (umount --lazy), and no longer.

# Settings, as in mount_prolog.sh.
METHOD=v9fs
MOUNTS=/run/sluice/mnt
LIMIT=10s
FAIL=no

case $SLURM_JOB_ID in
'' | *[!0-9]*) exit 0 ;;
esac
place=$MOUNTS/$SLURM_JOB_ID
[ -d "$place" ] || exit 0

if [ "$METHOD" = unit ]; then
	said=$(timeout --kill-after=1s "$LIMIT" \
		systemctl stop "sluice-mount@$SLURM_JOB_ID.service" 2>&1 </dev/null)
else
	said=$(timeout --kill-after=1s "$LIMIT" umount "$place" 2>&1 </dev/null) ||
		said=$(timeout --kill-after=1s "$LIMIT" umount --lazy "$place" 2>&1 </dev/null)
fi
# rmdir, not rm: a directory with something in it is a mount, or data that missed one.
if ! rmdir "$place" 2>/dev/null; then
	logger -t sluice -p daemon.warning "mount of job $SLURM_JOB_ID: $place stays: $said" 2>/dev/null
	[ "$FAIL" = no ] || exit 1
fi
exit 0
