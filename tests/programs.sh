#!/bin/bash
# Runs real software on mounts of `sluice mount` and beside them, and compares.
#
#   tests/programs.sh SLUICE short|long [PROGRAM…]      all programs
#
# SLUICE is the binary. Each program runs in several places: `plain` is a
# directory without Sluice, `one` a mount, `two` a pair of mounts of one proxy,
# `homes` a pair of mounts of two proxies. Prints `ok NAME PLACE` or
# `not ok NAME PLACE: why` for each check and ends with
# `programs: N passed, N failed, N skipped`; exit status 0 if none failed, 1 if
# one did, 2 if it was called wrongly. tests/programs/README.md has the programs.
#
# SECONDS_SQLITE (default 60, in `long` 3600) is how long SQLite runs; MOUNT_OPTIONS
# are added to the options of each mount, PLACES limits the places.
# CACHE (default: .cache at the root) is where everything is, until the end.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
export CACHE=${CACHE:-$(dirname "$HERE")/.cache}

case ${2:-} in
short | long) ;;
*)
	echo "usage: tests/programs.sh SLUICE short|long [PROGRAM…]" >&2
	exit 2
	;;
esac
if [ "$(id -u)" != 0 ] || [ ! -e /dev/fuse ]; then
	echo "skipped: programs: needs root and /dev/fuse"
	echo "programs: 0 passed, 0 failed, 1 skipped"
	exit 0
fi
if ! command -v python3 >/dev/null; then
	echo "skipped: programs: no python3 here (it comes with python3)"
	echo "programs: 0 passed, 0 failed, 1 skipped"
	exit 0
fi
mkdir -p "$CACHE"
# A make that is tested is not a part of the make that this may run in.
unset MAKEFLAGS MAKELEVEL MFLAGS
# -B: nothing is left in the tree
exec python3 -B "$HERE/programs/run.py" "$@"
