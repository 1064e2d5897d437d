#!/bin/bash
# Starts a proxy over an empty folder, runs a command against it, stops it.
#
#   tests/with-proxy.sh SLUICE COMMAND…        COMMAND… gets ADDRESS PORT ANAME appended
#
# SLUICE is the binary, which the command finds in $SLUICE; the process is in
# $PROXY_PID and the exported folder in $EXPORT_DIR. With PROXY_UNIX=1 the address is a Unix socket, else TCP on the loopback; PROXY_FLAGS
# adds flags, PROXY_CONFIG a configuration; SLUICE_TEST_LEASES=read has it grant leases. The exported folder is on the file system of DIR_BELOW (default:
# .cache at the root), a real one, so that extended attributes and sparse files
# are there. Exit status: the command's, or 1 if the proxy did not start, crashed,
# or did not end within 30 s of SIGTERM.
set -euo pipefail
ROOT=$(cd "$(dirname "$0")/.." && pwd)
SLUICE=$1
shift

DIR_BELOW=${DIR_BELOW:-$ROOT/.cache}
mkdir -p "$DIR_BELOW"
WORK=$(mktemp -d "$DIR_BELOW/proxy.XXXXXX")
mkdir -m 0777 "$WORK/export"
PROXY=
clean_up() {
	if [ -n "$PROXY" ]; then kill -KILL "$PROXY" 2>/dev/null || true; fi
	rm -rf "$WORK"
}
trap clean_up EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

CONFIG=$WORK/sluice.toml
if [ -n "${PROXY_CONFIG:-}" ]; then cat "$PROXY_CONFIG" >"$CONFIG"; else echo >"$CONFIG"; fi
if [ "${SLUICE_TEST_LEASES:-none}" != none ]; then
	sed -i "1i lease_state = \"$WORK/leases\"" "$CONFIG"
	printf '\n[[export]]\nname = "x"\ndir = "%s"\nleases = "%s"\n' "$WORK/export" "$SLUICE_TEST_LEASES" >>"$CONFIG"
fi
# shellcheck disable=SC2086
"$SLUICE" proxy --config "$CONFIG" --export "x=$WORK/export" --listen tcp://127.0.0.1:0 --listen "unix://$WORK/socket" \
	--squash none ${PROXY_FLAGS:-} >"$WORK/out" 2>"$WORK/err" &
PROXY=$!
export SLUICE PROXY_PID=$PROXY EXPORT_DIR=$WORK/export

for _ in $(seq 1200); do
	if grep -qx ready "$WORK/out"; then break; fi
	if ! kill -0 "$PROXY" 2>/dev/null; then break; fi
	sleep 0.1
done
if ! grep -qx ready "$WORK/out"; then
	echo "with-proxy: the proxy did not get ready" >&2
	cat "$WORK/out" "$WORK/err" >&2
	exit 1
fi

if [ "${PROXY_UNIX:-0}" = 1 ]; then
	at=("$WORK/socket" 0)
else
	at=(127.0.0.1 "$(sed -nE 's|^listening on tcp://127\.0\.0\.1:([0-9]+)$|\1|p' "$WORK/out")")
fi
rc=0
"$@" "${at[@]}" x || rc=$?

if ! kill -TERM "$PROXY" 2>/dev/null; then
	echo "with-proxy: the proxy ended during the tests" >&2
	tail -n 30 "$WORK/err" >&2
	rc=1
else
	for _ in $(seq 1200); do
		kill -0 "$PROXY" 2>/dev/null || break
		sleep 0.1
	done
	if kill -0 "$PROXY" 2>/dev/null; then
		echo "with-proxy: the proxy did not end on SIGTERM" >&2
		rc=1
	elif ! wait "$PROXY"; then
		echo "with-proxy: the proxy ended with a failure" >&2
		tail -n 30 "$WORK/err" >&2
		rc=1
	fi
	PROXY=
fi
if [ "$rc" -ne 0 ]; then
	echo "# the proxy's log:"
	tail -n 30 "$WORK/err"
fi
exit "$rc"
