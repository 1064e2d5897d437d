#!/bin/bash
# Runs one conformance suite in the v9fs guest (tests/v9fs-guest) against a 9P
# server that runs already.
#
#   tests/guest.sh fstest|pjdfstest|fsx ADDRESS PORT ANAME
#   tests/guest.sh programs           only builds pjdfstest and fsx, if they aren't there
#
# ADDRESS, PORT and ANAME are as for tests/v9fs-guest/run.sh, and so are the
# VM_… variables. Prints one line for each test and ends with
# `SUITE: N passed, N failed, N skipped`; exit status 0 if none failed, 1 if one
# did, 2 if a tool is missing, 3 if the guest did not finish.
#
#   fstest     our own file operations, tests/v9fs-guest/fstest.c; then, if SLUICE is
#              a binary that can mount the server here, tests/v9fs-guest/beside.c: locks
#              of the guest and of that mount, on the same files
#   pjdfstest  POSIX, twice in one boot: on tmpfs and on the mount. Each test that
#              passes on tmpfs must pass on the mount, but for pjdfstest.expected
#   fsx        random operations on one file, with the mount's cache off and on
#
# CACHE (default: .cache at the root) keeps the kernel and the programs.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
CACHE=${CACHE:-$(dirname "$HERE")/.cache}

PJDFSTEST=0.2.2
FSX=0.3.2

die() { echo "guest: $2" >&2; exit "$1"; }
[ $# -eq 4 ] || [ "$*" = programs ] || die 2 "usage: tests/guest.sh fstest|pjdfstest|fsx ADDRESS PORT ANAME"
SUITE=$1
shift
mkdir -p "$CACHE"
export VM_CACHE=${VM_CACHE:-$CACHE/guest}
# kept, for what did not finish
LOG=$CACHE/last-$SUITE.log
WORK=$(mktemp -d "$CACHE/suite.XXXXXX")
clean_up() {
	if mountpoint -q "$WORK/mount"; then "$SLUICE" umount --force "$WORK/mount" || true; fi
	rm -rf --one-file-system "$WORK"
}
trap clean_up EXIT

# program NAME VERSION: a static build of a published program, in $WORK/extra
program() {
	local built="$CACHE/static/$1-$2"
	if [ ! -x "$built/bin/$1" ]; then
		echo "# building $1 $2"
		# a target by name keeps crt-static away from build scripts and macros
		local host
		host=$(rustc -vV | sed -n 's/^host: //p')
		RUSTFLAGS="-C target-feature=+crt-static" CARGO_TARGET_DIR="$CACHE/static/target" \
			cargo install --quiet --locked --target "$host" --root "$built" "$1" --version "=$2" >&2 ||
			die 2 "$1 $2 does not build"
	fi
	mkdir -p "$WORK/extra"
	cp "$built/bin/$1" "$WORK/extra/"
}

# boot SCRIPT: runs it in the guest, with everything beside it; its output goes to $LOG
boot() {
	cp "$HERE"/pjdfstest.toml "$HERE"/fsx-*.toml "$WORK/extra/"
	local rc=0
	VM_EXTRA="$WORK/extra" VM_CMD="$HERE/$1" VM_LOG="$LOG" \
		"$HERE/v9fs-guest/run.sh" "${ADDRESS[@]}" >"$WORK/shown" || rc=$?
	grep -aE '^(V9FS-|# guest)' "$WORK/shown" || true
	[ "$rc" -ne 2 ] && [ "$rc" -ne 3 ] || exit "$rc"
	grep -qa '^V9FS-MOUNTED' "$LOG" || die 1 "the mount failed"
	if grep -aE 'BUG:|Oops|WARNING: CPU|general protection' "$LOG" >&2; then die 1 "the guest's kernel complained"; fi
}

# results WHERE: `NAME ok|FAILED|skipped`, sorted, from the part of the log about WHERE
results() {
	sed 's/\x1b\[[0-9;]*m//g' "$LOG" | sed -n "/^PJD-BEGIN $1\$/,/^PJD-END $1 /p" |
		sed -nE 's/^([a-z0-9_:]+) +(ok|FAILED|skipped)$/\1 \2/p' | sort
}

fstest() {
	local rc=0 beside=0
	! mount_beside || beside=1
	if [ "$beside" = 1 ]; then
		export VM_EXTRA=$WORK/extra VM_AFTER="/extra/beside /mnt/beside guest host"
		"$WORK/extra/beside" "$WORK/mount/beside" host guest >"$WORK/beside" &
	fi
	"$HERE/v9fs-guest/run.sh" "${ADDRESS[@]}" | tee "$WORK/out" || rc=${PIPESTATUS[0]}
	[ "$rc" -ne 0 ] || grep -q '^fstest: .* 0 failed' "$WORK/out" || rc=1
	if [ "$beside" = 1 ]; then
		# without the guest's last check it would wait for long
		grep -q '^ok beside-guest-range-counts' "$WORK/out" || rc=$((rc == 0 ? 1 : rc))
		[ "$rc" -eq 0 ] || kill $! 2>/dev/null || true
		wait $! || rc=$((rc == 0 ? 1 : rc))
		cat "$WORK/beside"
		"$SLUICE" umount "$WORK/mount" || rc=$((rc == 0 ? 1 : rc))
	fi
	exit "$rc"
}

# mount_beside: mounts the server here as well, with what both sides need in it; or says why not
mount_beside() {
	[ -z "${VM_TESTS:-}" ] && [ -n "${SLUICE:-}" ] || return 1
	if [ "$(id -u)" != 0 ] || [ ! -e /dev/fuse ]; then
		echo "skipped: locks of v9fs beside a mount: needs root and /dev/fuse"
		return 1
	fi
	mkdir -p "$WORK/extra" "$WORK/mount"
	gcc -O2 -static -o "$WORK/extra/beside" "$HERE/v9fs-guest/beside.c" || die 2 "beside.c does not build"
	local source="tcp://${ADDRESS[0]}:${ADDRESS[1]}/${ADDRESS[2]}"
	case ${ADDRESS[0]} in */*) source="unix://${ADDRESS[0]}//${ADDRESS[2]}" ;; esac
	# nothing is seen anew because time passes
	"$SLUICE" mount "$source" "$WORK/mount" -o attr_timeout=1h || die 1 "the mount beside failed"
	"$WORK/extra/beside" "$WORK/mount/beside" || die 1 "nothing can be made in the mount beside"
}

pjdfstest() {
	program pjdfstest "$PJDFSTEST"
	boot pjdfstest.guest
	local passed=0 failed=0 skipped=0 expected=0 name on_tmpfs on_mount
	results tmpfs >"$WORK/tmpfs"
	results mount >"$WORK/mount"
	# a test that is missing on one side counts as not passed there
	while read -r name on_tmpfs on_mount; do
		if [ "$on_tmpfs" = skipped ]; then
			skipped=$((skipped + 1))
		elif [ "$on_mount" = ok ]; then
			passed=$((passed + 1))
			! is_expected "$name" || { failed=$((failed + 1)); echo "not ok $name: passes: take it out of pjdfstest.expected"; }
		elif [ "$on_tmpfs" != ok ]; then
			echo "# $name: $on_tmpfs on tmpfs too"
		elif is_expected "$name"; then
			expected=$((expected + 1))
			echo "# $name fails, as expected: $(why "$name")"
		else
			failed=$((failed + 1))
			echo "not ok $name:$(sed 's/\x1b\[[0-9;]*m//g' "$LOG" | sed -n '/^PJD-BEGIN mount$/,$p' | grep -aA1 "^$name  *FAILED" | tail -n 1)"
		fi
	done < <(join -a1 -a2 -e missing -o 0,1.2,2.2 "$WORK/tmpfs" "$WORK/mount")
	echo "# on tmpfs: $(tally "$WORK/tmpfs"); on the mount: $(tally "$WORK/mount"); expected to fail: $expected"
	sed 's/\x1b\[[0-9;]*m//g' "$LOG" | sed -n '/^PJD-BEGIN tmpfs$/,/^PJD-END tmpfs/p' | grep -aA1 ' skipped$' |
		sed -nE 's/^\t/skipped: pjdfstest: /p' | sort | uniq -c | sed -E 's/^ +([0-9]+) (.*)$/\2 (\1 tests)/'
	# no result at all is a failure, whatever the sets say
	[ $((passed + failed)) -gt 0 ] || failed=1
	echo "pjdfstest: $passed passed, $failed failed, $skipped skipped"
	[ "$failed" -eq 0 ]
}

is_expected() { sed 's/#.*//' "$HERE/pjdfstest.expected" | grep -qxE "$1 *"; }
why() { sed -nE "s/^$1 *# *//p" "$HERE/pjdfstest.expected"; }
tally() { echo "$(grep -c ' ok$' "$1") passed, $(grep -c ' FAILED$' "$1") failed, $(grep -c ' skipped$' "$1") skipped"; }

fsx() {
	program fsx "$FSX"
	boot fsx.guest
	local passed failed
	grep -aE '^(ok|not ok|# )' "$LOG" | grep -av '^# *$' || true
	passed=$(grep -ac '^ok ' "$LOG") || true
	failed=$(grep -ac '^not ok ' "$LOG") || true
	[ $((passed + failed)) -gt 0 ] || failed=1
	echo "fsx: $passed passed, $failed failed"
	[ "$failed" -eq 0 ]
}

programs() {
	program pjdfstest "$PJDFSTEST"
	program fsx "$FSX"
}

ADDRESS=("$@")
case $SUITE in
programs | fstest | pjdfstest | fsx) "$SUITE" ;;
*) die 2 "no suite \"$SUITE\"" ;;
esac
