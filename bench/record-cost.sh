#!/bin/bash
# What `sluice proxy --trace` costs: the server's processor time for each cached 4 KiB
# read, of two proxies in turn, one of which records.
#
# sluice-bench must lie beside SLUICE (.ci/build.sh sluice-bench builds both).
#
#   bench/record-cost.sh [SLUICE [ROUNDS [TIME [DIR]]]]     [target/release/sluice 9 4s /dev/shm]
#
# Prints one line a round and the medians. Each round runs both, another one first each
# time, since the machine drifts; the ratio is taken within a round. DIR is where the
# file that is read and the trace are: on a memory file system no disk is measured.
set -euo pipefail
SLUICE=${1:-target/release/sluice} ROUNDS=${2:-9} TIME=${3:-4s} DIR=${4:-/dev/shm}

work=$(mktemp -d "$DIR/sluice-record-XXXXXX")
pids=()
trap 'kill "${pids[@]}" 2>/dev/null; wait; rm -rf "$work"' EXIT
mkdir -m 777 "$work/data"
tick=$(getconf CLK_TCK)

# start NAME FLAGS...: a proxy on the Unix socket NAME
start() {
	local name=$1
	shift
	"$SLUICE" proxy --export "x=$work/data" --listen "unix://$work/$name" --api off "$@" >"$work/$name.log" 2>&1 &
	pids+=($!)
	until grep -q ready "$work/$name.log"; do
		kill -0 $! || { cat "$work/$name.log"; exit 1; }
		sleep 0.02
	done
}

# cpu PID: its processor time in µs, all threads, user and system
cpu() {
	awk -v tick="$tick" '{ sub(/.*\) /, ""); print ($12 + $13) * 1000000 / tick }' "/proc/$1/stat"
}

# load NAME PID: the server's µs for each read
load() {
	local before ops
	before=$(cpu "$2")
	ops=$("$SLUICE-bench" p9 "unix://$work/$1" --aname x --op randread --size 4KiB --file-size 16MiB -c 4 -d 16 \
		--warmup 0s --time "$TIME" --json | sed -n 's/.*"ops":\([0-9]*\).*/\1/p')
	awk -v before="$before" -v after="$(cpu "$2")" -v ops="$ops" 'BEGIN { printf "%.3f", (after - before) / ops }'
}

median() { sort -n | awk '{ v[NR] = $1 } END { printf "%.3f", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'; }

start plain
start trace --trace "$work/t.slt"
# the first of each finds nothing ready
load plain "${pids[0]}" >/dev/null
load record "${pids[1]}" >/dev/null
for ((round = 1; round <= ROUNDS; round++)); do
	if ((round % 2)); then
		plain=$(load plain "${pids[0]}")
		record=$(load record "${pids[1]}")
	else
		record=$(load record "${pids[1]}")
		plain=$(load plain "${pids[0]}")
	fi
	ratio=$(awk -v a="$record" -v b="$plain" 'BEGIN { printf "%.3f", a / b }')
	echo "$plain" >>"$work/plain.all"
	echo "$record" >>"$work/record.all"
	echo "$ratio" >>"$work/ratio.all"
	echo "round $round: plain $plain, recording $record µs/op, ratio $ratio"
done
echo "median of $ROUNDS: plain $(median <"$work/plain.all"), recording $(median <"$work/record.all") µs/op, ratio $(median <"$work/ratio.all")"
