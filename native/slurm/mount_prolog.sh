#!/bin/sh
# Prolog: gives each job a mount of its own on the node, as root, at $MOUNTS/JOB.
#
#   METHOD=v9fs    the kernel's client of 9P; the proxy attributes all requests of the mount to JOB
#   METHOD=unit    sluice-mount@JOB.service, which runs `sluice mount`
#
# Not needed where the node has one `sluice mount` for all jobs: that one reads the job of each
# request from its process (docs/MOUNT.md). A job whose mount failed would write to the directory
# beneath it, so FAIL is yes here: Slurm drains the node, and requeues the job held.

# Settings.
METHOD=v9fs
HOST=192.0.2.7
PORT=5640
EXPORT=scratch
MOUNTS=/run/sluice/mnt
LIMIT=10s
FAIL=yes

refuse() {
	logger -t sluice -p daemon.err "mount of job $SLURM_JOB_ID: $1" 2>/dev/null
	echo "mount of job $SLURM_JOB_ID: $1" >&2
	[ "$FAIL" = no ] || exit 1
	exit 0
}

# The ID becomes a path and a mount option.
case $SLURM_JOB_ID in
'' | *[!0-9]*) refuse "SLURM_JOB_ID is \"$SLURM_JOB_ID\", not a number" ;;
esac
case $METHOD in
v9fs | unit) ;;
*) refuse "METHOD is \"$METHOD\", not v9fs or unit" ;;
esac
place=$MOUNTS/$SLURM_JOB_ID
# A job on its second way to this node (a step that was requeued) finds its mount.
mountpoint -q "$place" && exit 0
mkdir -p "$place" || refuse "cannot make $place"
chown "$SLURM_JOB_UID" "$place" || refuse "cannot give $place to user $SLURM_JOB_UID"
chmod 700 "$place" || refuse "cannot set the mode of $place"

if [ "$METHOD" = v9fs ]; then
	options=trans=tcp,port=$PORT,version=9p2000.L,access=any
	said=$(timeout --kill-after=1s "$LIMIT" mount -t 9p \
		-o "$options,aname=$EXPORT?job=$SLURM_JOB_ID" "$HOST" "$place" 2>&1 </dev/null)
else
	said=$(timeout --kill-after=1s "$LIMIT" \
		systemctl start "sluice-mount@$SLURM_JOB_ID.service" 2>&1 </dev/null)
fi
status=$?
[ "$status" -eq 0 ] || refuse "METHOD $METHOD: status $status: $said"
exit 0
