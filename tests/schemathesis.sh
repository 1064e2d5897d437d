#!/bin/bash
# Wrong and right input to both APIs, made from their own descriptions by
# schemathesis: a controller with tokens and a proxy that reports to it are started,
# and each of the two is asked.
#
#   tests/schemathesis.sh SLUICE [EXAMPLES]
#
# SLUICE is the binary, EXAMPLES how many calls are made up for each operation
# (default 15) on top of those that go over every bound. The same calls are made
# each time. Ends with `api: N passed, N failed`: one test a run.
#
# A proxy's report is left out, too: it is binary (io/sluice/tests/all/wrong_input.rs sends wrong ones).
# Two checks are left out everywhere: ensure_resource_availability, since the token that
# it shows must not be revoked (hooks.py names another then, which is none), and positive_data_acceptance wants everything accepted that
# the description allows, and no schema says that a rule of that name exists or that
# a text is a rule file.
set -euo pipefail
ROOT=$(cd "$(dirname "$0")/.." && pwd)
SLUICE=$(realpath "$1")
EXAMPLES=${2:-15}
VENV=$ROOT/.cache/schemathesis

if [ ! -x "$VENV/bin/st" ]; then
	echo "skipped: api: no schemathesis here (.ci/install-deps.sh test puts it into .cache)"
	echo "api: 0 passed, 0 failed, 2 skipped"
	exit 0
fi

umask 077
WORK=$(mktemp -d)
PIDS=()
clean_up() {
	for pid in "${PIDS[@]}"; do kill "$pid" 2>/dev/null || true; done
	for pid in "${PIDS[@]}"; do wait "$pid" 2>/dev/null || true; done
	rm -rf "$WORK"
}
trap clean_up EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

# started NAME PATTERN: what the process of that name said, once it has
started() {
	local said
	for _ in $(seq 1200); do
		said=$(sed -nE "s|$2|\1|p" "$WORK/$1.out")
		if [ -n "$said" ]; then echo "$said"; return; fi
		sleep 0.1
	done
	echo "schemathesis: $1 did not start" >&2
	cat "$WORK/$1.out" "$WORK/$1.err" >&2
	return 1
}

cd "$WORK"
mkdir data export
"$SLUICE" token create harness --role admin --data data >admin.token
"$SLUICE" token create a --role proxy --data data >proxy.token
"$SLUICE" controller --data data --listen http://127.0.0.1:0 >controller.out 2>controller.err &
PIDS+=($!)
URL=$(started controller '^listening on (http://.*)$')
started controller '^(ready)$' >/dev/null
"$SLUICE" proxy --export "x=$WORK/export" --listen tcp://127.0.0.1:0 --api "unix://$WORK/api" \
	--controller "$URL" --name a --token-file proxy.token >proxy.out 2>proxy.err &
PIDS+=($!)
started proxy '^(ready)$' >/dev/null
"$VENV/bin/python3" "$ROOT/tests/schemathesis/relay.py" "$WORK/api" >relay.out 2>relay.err &
PIDS+=($!)
PORT=$(started relay '^([0-9]+)$')

export SCHEMATHESIS_HOOKS=hooks PYTHONPATH=$ROOT/tests/schemathesis PYTHONDONTWRITEBYTECODE=1 OWN_TOKEN=harness
ask() {
	"$VENV/bin/st" run "$1/openapi.json" --no-color --warnings off --generation-deterministic \
		--max-examples "$EXAMPLES" --request-timeout 120 --checks all \
		--exclude-checks positive_data_acceptance,ensure_resource_availability "${@:2}"
}

passed=0 failed=0
count() { if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi; }
token="Authorization: Bearer $(cat admin.token)"
count ask "$URL" --header "$token" --exclude-path '/v1/proxies/{name}/report'
count ask "http://127.0.0.1:$PORT"
for name in controller proxy; do
	if grep -i 'panicked' "$name.err"; then failed=$((failed + 1)); fi
done
echo "api: $passed passed, $failed failed"
[ "$failed" = 0 ]
