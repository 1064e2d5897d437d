#!/bin/bash
# Holds io/fuse against POSIX and measures it, without proxy or mount: a mirror of
# a directory (io/fuse/examples/mirror) beside the directory itself, over /dev/fuse
# and over io_uring, as root.
#
#   tests/mirror.sh MIRROR pjdfstest|fio
#
# MIRROR is the example's binary. Ends with `SUITE: N passed, N failed, N skipped`;
# exit status 0 if none failed, 1 if one did, 2 if a tool is missing.
#
#   pjdfstest  POSIX, three times at once: each test that passes in the directory must
#              pass on both mirrors, but for mirror.pjdfstest.expected
#   fio        first that every byte is right, which can fail; then a table of what the
#              mirror costs past the page cache, over ROUNDS (default 5) rounds of SECONDS_EACH
#              (default 1), the places in turn, which cannot
#
# The switch that lets mounts use io_uring (enable_uring of the module fuse) is set for
# the time of the mounting and put back. CACHE (default: .cache at the root) keeps
# pjdfstest, built by guest.sh, and has the directory that is mirrored for it.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
export CACHE=${CACHE:-$(dirname "$HERE")/.cache}
ROUNDS=${ROUNDS:-5} SECONDS_EACH=${SECONDS_EACH:-1}
# shellcheck source=tests/posix.sh
. "$HERE/posix.sh"

[ $# -eq 2 ] || die 2 "usage: tests/mirror.sh MIRROR pjdfstest|fio"
MIRROR=$1 SUITE=$2
SWITCH=/sys/module/fuse/parameters/enable_uring
[ -x "$MIRROR" ] || die 2 "no $MIRROR: cargo build --release --package sluice-fuse --example mirror"
if [ "$(id -u)" != 0 ] || [ ! -e /dev/fuse ]; then
	echo "skipped: mirror $SUITE: needs root and /dev/fuse"
	echo "$SUITE: 0 passed, 0 failed, 1 skipped"
	exit 0
fi

WORK=$(mktemp -d) FOLDER='' SWITCH_WAS='' TRANSPORTS=device
declare -A SERVING=()
clean_up() {
	local transport
	for transport in device ring; do umount -l "$WORK/$transport" 2>/dev/null || true; done
	umount -l "$WORK/beside" 2>/dev/null || true
	switch_back
	clear_seconds
	rm -rf "$WORK" "$FOLDER"
}
trap clean_up EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
chmod 755 "$WORK"
mkdir "$WORK/beside" "$WORK/device" "$WORK/ring"

switch_back() {
	[ -z "$SWITCH_WAS" ] || echo "$SWITCH_WAS" >$SWITCH
	SWITCH_WAS=
}

# mirror_it FOLDER [WORD…]: the folder over each transport that this kernel has, in $TRANSPORTS
mirror_it() {
	local transport before
	if before=$(cat $SWITCH 2>/dev/null); then
		SWITCH_WAS=$before
		if echo Y 2>/dev/null >$SWITCH; then TRANSPORTS="device ring"; fi
	fi
	if [ "$TRANSPORTS" = device ] && [ "$skipped" -eq 0 ]; then
		skipped=1
		echo "skipped: mirror over io_uring: this kernel does not let $SWITCH be Y"
	fi
	for transport in $TRANSPORTS; do
		"$MIRROR" "$1" "$WORK/$transport" "$transport" "${@:2}" >"$WORK/$transport.out" 2>"$WORK/$transport.err" &
		SERVING[$transport]=$!
		until grep -q ^mounted "$WORK/$transport.out"; do
			kill -0 "${SERVING[$transport]}" 2>/dev/null ||
				die 1 "the mirror over $transport failed: $(cat "$WORK/$transport.err")"
			sleep 0.05
		done
		grep -qi "^mounted $transport " "$WORK/$transport.out" || die 1 "it is $(cat "$WORK/$transport.out")"
	done
	switch_back
}

# each must be served to the end, go when it is unmounted, and have had nothing to complain of
unmount_all() {
	local transport
	for transport in $TRANSPORTS; do
		umount "$WORK/$transport" || fail "$transport: umount"
		timeout 120 tail --pid="${SERVING[$transport]}" -f /dev/null || fail "$transport: its process goes on"
		wait "${SERVING[$transport]}" || fail "$transport: its process ended with $?"
		[ ! -s "$WORK/$transport.err" ] || fail "$transport: $(head -n 5 "$WORK/$transport.err")"
	done
}

pjdfstest() {
	program pjdfstest PJDFSTEST
	mkdir -p "$CACHE"
	FOLDER=$(mktemp -d "$CACHE/mirrored.XXXXXX")
	chmod 755 "$FOLDER"
	# by a way that every user may go
	mount --bind "$FOLDER" "$WORK/beside"
	mirror_it "$FOLDER"
	local place running=()
	for place in beside $TRANSPORTS; do
		in_place "$place" "$WORK/$place" &
		running+=($!)
	done
	wait "${running[@]}"
	for place in $TRANSPORTS; do holds "$place" "$HERE/mirror.pjdfstest.expected"; done
	unmount_all
}

# run_fio PLACE PATTERN BLOCK JOBS: reads or writes per second and bytes per second, as one line
run_fio() {
	fio --name="$1" --filename="$WORK/$1/file" --ioengine=psync --rw="$2" --bs="$3" --size=64M --numjobs="$4" \
		--direct=0 --fallocate=none --randrepeat=0 --time_based --runtime="$SECONDS_EACH" --group_reporting \
		--output-format=terse --terse-version=3 | awk -F';' '{ print $8 + $49, ($7 + $48) * 1024 }'
}

# every byte is written with its sum and read again, in pieces of all sizes and by several at once
verify() { # verify PLACE PATTERN BLOCKS JOBS
	if fio --name=verify --directory="$WORK/$1" --ioengine=psync --rw="$2" --bsrange="$3" --size=16M --numjobs="$4" \
		--verify=crc32c --verify_fatal=1 --do_verify=1 --verify_state_save=0 --fallocate=none --output="$WORK/fio.log" 2>&1; then
		pass
	else
		fail "fio: $2 of $3 by $4 jobs over $1"
		tail -n 20 "$WORK/fio.log" | sed 's/^/# /'
	fi
	rm -f "$WORK/$1"/verify.*
}

median() { sort -g | awk '{ at[NR] = $1 } END { print (at[int((NR + 1) / 2)] + at[int(NR / 2) + 1]) / 2 }'; }

# row PATTERN BLOCK JOBS COLUMN UNIT DIVISOR: each round goes through the places, so that
# what disturbs the machine disturbs them alike; ratios are of one round's figures
row() {
	local place line
	rm -f "$WORK"/*.figures "$WORK/ratios"
	for _ in $(seq "$ROUNDS"); do
		for place in beside $TRANSPORTS; do
			run_fio "$place" "$1" "$2" "$3" | awk -v at="$4" -v by="$6" '{ print $at / by }' >>"$WORK/$place.figures"
		done
		if [ "$TRANSPORTS" != device ]; then
			paste <(tail -n 1 "$WORK/ring.figures") <(tail -n 1 "$WORK/device.figures") |
				awk '{ print $1 / $2 }' >>"$WORK/ratios"
		fi
	done
	line=$(printf '| %-24s |' "$2 $1, $3 at once")
	for place in beside $TRANSPORTS; do
		line+=$(printf ' %8.1f %s |' "$(median <"$WORK/$place.figures")" "$5")
	done
	[ "$TRANSPORTS" = device ] || line+=$(printf ' %.2f |' "$(median <"$WORK/ratios")")
	echo "$line"
}

fio_suite() {
	command -v fio >/dev/null || die 2 "no fio here (it comes with fio)"
	# In memory: what is measured is the way there, not a disk.
	FOLDER=$(mktemp -d /dev/shm/sluice.mirrored.XXXXXX)
	mount --bind "$FOLDER" "$WORK/beside"
	mirror_it "$FOLDER"
	local place
	for place in $TRANSPORTS; do
		verify "$place" randwrite 4k-4k 1
		verify "$place" randrw 512-64k 4
		verify "$place" write 1m-1m 2
	done
	unmount_all
	[ "$failed" -eq 0 ] || return 0
	mirror_it "$FOLDER" direct
	head -c 64M /dev/urandom >"$WORK/beside/file"
	echo
	echo "A file in memory, past the page cache of the mirror; medians of $ROUNDS rounds of ${SECONDS_EACH} s."
	echo
	if [ "$TRANSPORTS" = device ]; then
		echo "| fio, psync | directory | /dev/fuse |"
		echo "|---|--:|--:|"
	else
		echo "| fio, psync | directory | /dev/fuse | io_uring | io_uring : /dev/fuse |"
		echo "|---|--:|--:|--:|--:|"
	fi
	row randread 4k 1 1 k/s 1000
	row randread 4k 4 1 k/s 1000
	row randwrite 4k 1 1 k/s 1000
	row randwrite 4k 4 1 k/s 1000
	row read 1m 1 2 GB/s 1000000000
	row write 1m 1 2 GB/s 1000000000
	echo
	unmount_all
}

case $SUITE in
pjdfstest) pjdfstest ;;
fio) fio_suite ;;
*) die 2 "no suite \"$SUITE\"" ;;
esac
suite_done "$SUITE"
