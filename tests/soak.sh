#!/bin/bash
# Load for a long time: nothing may grow with uptime.
#
#   tests/soak.sh SLUICE [SECONDS]        [1800]
#
# Starts a proxy and gives it every kind of load in turn, a minute each. After
# each round it looks at the proxy's memory and open descriptors; the first two
# rounds are warm-up. Fails if the memory at the end is more than 8 MiB and a
# tenth above that after the warm-up, or if descriptors were left open.
# Prints one line a round and `soak: N passed, N failed`.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)

if [ $# -le 2 ]; then
	SLUICE=${1:?usage: tests/soak.sh SLUICE [SECONDS]}
	exec "$HERE/with-proxy.sh" "$SLUICE" "$HERE/soak.sh" "$SLUICE" "${2:-1800}"
fi
SLUICE=$1 TOTAL=$2 ADDRESS=tcp://$3:$4 ANAME=$5

OPS=(randread randwrite getattr create read write fsync mixed)
EACH=$((TOTAL / (2 * ${#OPS[@]})))
[ "$EACH" -le 60 ] || EACH=60
[ "$EACH" -ge 1 ] || EACH=1

memory_kib() { sed -nE 's/^VmRSS:\s+([0-9]+) kB/\1/p' "/proc/$PROXY_PID/status"; }
descriptors() { find "/proc/$PROXY_PID/fd" -mindepth 1 | wc -l; }

passed=0 failed=0 round=0 memory_warm=0 descriptors_warm=0
end=$(($(date +%s) + TOTAL))
while [ "$(date +%s)" -lt "$end" ] || [ $round -lt 3 ]; do
	round=$((round + 1))
	for op in "${OPS[@]}"; do
		if "$SLUICE-bench" p9 "$ADDRESS" --aname "$ANAME" --uname root --op "$op" --connections 4 --depth 16 --time "${EACH}s" >/dev/null; then
			passed=$((passed + 1))
		else
			failed=$((failed + 1))
			echo "not ok round $round: $op"
		fi
		kill -0 "$PROXY_PID" 2>/dev/null || { echo "not ok: the proxy ended"; exit 1; }
	done
	memory=$(memory_kib) open=$(descriptors)
	echo "round $round: $memory KiB, $open descriptors"
	if [ $round -eq 2 ]; then memory_warm=$memory descriptors_warm=$open; fi
done
check() { # check NAME VALUE MOST
	if [ "$2" -le "$3" ]; then
		passed=$((passed + 1))
		echo "ok $1: $2, at most $3"
	else
		failed=$((failed + 1))
		echo "not ok $1: $2, more than $3"
	fi
}
check "memory in KiB" "$memory" $((memory_warm * 11 / 10 + 8192))
check "descriptors" "$open" "$descriptors_warm"
echo "soak: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
