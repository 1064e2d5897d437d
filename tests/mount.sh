#!/bin/bash
# Holds `sluice mount` against POSIX: programs that try file systems, run on a
# mount of a proxy over a directory of a real file system, as root.
#
#   tests/mount.sh SLUICE pjdfstest|fsx|stress
#
# SLUICE is the binary. Prints one line for each test and ends with
# `SUITE: N passed, N failed, N skipped`; exit status 0 if none failed, 1 if one
# did, 2 if a tool is missing.
#
#   pjdfstest  POSIX, twice: in the directory and on a mount of it. Each test that
#              passes in the directory must pass on the mount, but for
#              mount.pjdfstest.expected
#   fsx        random operations on one file, with and without maps and direct reads
#   stress     stress-ng's stressors of file systems, mount.stress, one after another;
#              after each the mount must answer
#
# LONG=1 is for soaks: a million operations of fsx, a minute for each stressor.
# CACHE (default: .cache at the root) keeps the programs, built by guest.sh.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
export CACHE=${CACHE:-$(dirname "$HERE")/.cache}
LONG=${LONG:-}
# seconds until what must happen counts as never: only a failure waits for so long
PATIENCE=120
# shellcheck source=tests/posix.sh
. "$HERE/posix.sh"

if [ $# -eq 2 ]; then
	if [ "$(id -u)" != 0 ] || [ ! -e /dev/fuse ]; then
		echo "skipped: mount-$2: needs root and /dev/fuse"
		echo "$2: 0 passed, 0 failed, 1 skipped"
		exit 0
	fi
	# the mount says which groups a process is in, as pjdfstest makes them up
	PROXY_CONFIG=$HERE/mount.toml \
		exec "$HERE/with-proxy.sh" "$1" "$HERE/mount.sh" "$1" "$2"
fi
[ $# -eq 5 ] || die 2 "usage: tests/mount.sh SLUICE pjdfstest|fsx|stress"
SLUICE=$1 SUITE=$2 SOURCE=tcp://$3:$4/$5

WORK=$(mktemp -d)
MOUNT=$WORK/mount BESIDE=$WORK/beside
clean_up() {
	"$SLUICE" umount "$MOUNT" --force >/dev/null 2>&1 || true
	umount -l "$BESIDE" 2>/dev/null || true
	clear_seconds
	rm -rf "$WORK"
}
trap clean_up EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
chmod 755 "$WORK"
mkdir "$MOUNT" "$BESIDE"

mount_it() { # mount_it OPTIONS
	"$SLUICE" mount "$SOURCE" "$MOUNT" -o "$1" || die 1 "the mount failed"
}

# at the end it must go as an administrator would have it
unmount_it() {
	if timeout $PATIENCE "$SLUICE" umount "$MOUNT"; then return; fi
	fail "umount"
	"$SLUICE" umount "$MOUNT" --force || true
}

pjdfstest() {
	program pjdfstest PJDFSTEST
	# by a way that every user may go
	mount --bind "$EXPORT_DIR" "$BESIDE"
	mount_it allow_other,suid,dev
	in_place beside "$BESIDE"
	in_place mount "$MOUNT"
	holds mount "$HERE/mount.pjdfstest.expected"
	unmount_it
}

# run_fsx NAME CONFIG OPERATIONS SEED…
run_fsx() {
	local name=$1 config=$2 operations=$3 seed
	shift 3
	for seed in "$@"; do
		if timeout "$((PATIENCE + operations / 50))" "$PROGRAM" -q -f "$HERE/$config" -N "$operations" -S "$seed" -P "$WORK" \
			"$MOUNT/fsx-$seed" >"$WORK/fsx.log" 2>&1; then
			pass
			echo "ok $name seed $seed, $operations operations"
		else
			fail "$name seed $seed: fsx -f $config -N $operations -S $seed"
			tail -n 30 "$WORK/fsx.log" | sed 's/^/# /'
		fi
		rm -f "$MOUNT/fsx-$seed"
	done
}

fsx() {
	program fsx FSX
	local operations=10000 options
	[ -z "$LONG" ] || operations=100000
	for options in allow_other attr_timeout=0; do
		mount_it "$options"
		run_fsx "$options, mapped" mount.fsx-mapped.toml $operations 1 2 3
		run_fsx "$options, unmapped" mount.fsx-unmapped.toml $operations 4 5
		unmount_it
	done
}

# Bounds on what the stressors write; those of others do no harm.
BOUNDS="--copy-file-bytes 128M --dirdeep-bytes 4M --fallocate-bytes 64M --hdd-bytes 32M --iomix-bytes 16M --sync-file-bytes 16M"

stress() {
	command -v stress-ng >/dev/null || die 2 "no stress-ng here (it comes with stress-ng)"
	local seconds=2 names folder log=$WORK/stress.log
	[ -z "$LONG" ] || seconds=60
	mount_it allow_other
	folder=$MOUNT/stress
	mkdir -m 0777 "$folder"
	while read -r names; do
		# shellcheck disable=SC2046,SC2086
		if ! timeout -k 5 $((seconds + PATIENCE)) stress-ng --temp-path "$folder" --timeout "${seconds}s" --oomable --verify \
			$BOUNDS $(printf -- '--%s 1 ' $names) >"$log" 2>&1 </dev/null; then
			fail "$names"
			tail -n 20 "$log" | sed 's/^/# /'
			find "$folder" -mindepth 1 -delete
		elif grep -aE ' (fail|error): |unsuccessful' "$log"; then
			fail "$names: it says so"
		elif [ -n "$(find "$folder" -mindepth 1 -print -quit)" ]; then
			fail "$names: left $(find "$folder" -mindepth 1 -printf '%P ' -quit)"
			find "$folder" -mindepth 1 -delete
		else
			pass
			echo "ok $names"
			grep -aE 'skipped|skipping|not implemented' "$log" | sed 's/^/# /' || true
		fi
		if ! timeout $PATIENCE stat "$folder" >/dev/null || ! kill -0 "$PROXY_PID" 2>/dev/null; then
			fail "$names: the mount or the proxy doesn't answer any more"
			break
		fi
	done < <(sed -E '/^#/d; /^$/d; /^-/d' "$HERE/mount.stress")
	sed -nE 's/^- ([a-z-]+) +# (.*)/# left out: \1: \2/p' "$HERE/mount.stress"
	rmdir "$folder" || fail "rmdir"
	unmount_it
}

case $SUITE in
pjdfstest | fsx | stress) "$SUITE" ;;
*) die 2 "no suite \"$SUITE\"" ;;
esac
suite_done "$SUITE"
