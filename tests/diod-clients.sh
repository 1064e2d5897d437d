#!/bin/bash
# Another implementation's client, diod's tools, against a server that runs already.
#
#   EXPORT_DIR=DIR tests/diod-clients.sh ADDRESS PORT ANAME
#
# DIR is the exported folder (tests/with-proxy.sh sets it). ADDRESS is 127.0.0.1,
# or the path of a Unix socket with PORT 0. Prints one line for each check and
# `diod-clients: N passed, N failed`.
set -euo pipefail
[ $# -eq 3 ] || { echo "usage: EXPORT_DIR=DIR tests/diod-clients.sh ADDRESS PORT ANAME" >&2; exit 2; }
case $1 in
*/*) SERVER=$1 ;;
*) SERVER=$1:$2 ;;
esac
ANAME=$3 DIR=$EXPORT_DIR/diod-clients
PATH=$PATH:/usr/sbin
WORK=$(mktemp -d)
trap 'rm -rf "$WORK" "$DIR"' EXIT

passed=0 failed=0
check() { # check NAME COMMAND…
	local name=$1
	shift
	if "$@" >"$WORK/said" 2>&1; then
		passed=$((passed + 1))
		echo "ok $name"
	else
		failed=$((failed + 1))
		echo "not ok $name: $*"
		sed 's/^/# /' "$WORK/said" | tail -n 5
	fi
}
ls9() { timeout 60 diodls -s "$SERVER" -a "$1" "${@:2}" | grep -vxE '\.\.?' | sort; }
cat9() { timeout 60 diodcat -s "$SERVER" -a "$1" "${@:2}"; }

lists_every_name() { cmp <(ls9 "$ANAME" diod-clients/many) <(find "$DIR/many" -mindepth 1 -printf '%f\n' | sort); }
reads_every_byte() { cmp <(cat9 "$ANAME" diod-clients/bytes) "$DIR/bytes"; }
reads_small_msize() { cmp <(cat9 "$ANAME" -m 4096 diod-clients/bytes) "$DIR/bytes"; }
shows_sizes() { timeout 60 diodls -s "$SERVER" -a "$ANAME" -l diod-clients | grep -qE ' 3000001 .* bytes$'; }
names_a_job() { cmp <(cat9 "$ANAME?job=diod.1" diod-clients/bytes) "$DIR/bytes"; }
misses_a_file() { { cat9 "$ANAME" diod-clients/nothing 2>&1 || true; } | grep -q 'No such file'; }
refuses_an_export() { ! cat9 "$ANAME-not" diod-clients/bytes; }

mkdir -p "$DIR/many"
(cd "$DIR/many" && seq -f 'a-name-of-some-length-%06g' 3000 | xargs touch)
head -c 3000001 /dev/urandom >"$DIR/bytes"
chmod -R a+rX "$DIR"

check "lists 3000 names" lists_every_name
check "reads 3 MB" reads_every_byte
check "reads 3 MB at msize 4096" reads_small_msize
check "shows sizes" shows_sizes
if [ "${NO_JOB:-0}" = 0 ]; then check "names its job in aname" names_a_job; fi
check "misses a file" misses_a_file
check "refuses an unknown export" refuses_an_export
echo "diod-clients: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
