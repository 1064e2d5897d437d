#!/bin/bash
# Fuzzes every target of fuzz/ for a share of SECONDS, led by coverage.
#
#   tests/fuzz.sh [SECONDS]        [$SLUICE_FUZZ_S, or 120]
#
# cargo-fuzz would ask for a nightly compiler only for the sanitizers, which safe
# code does not need; the coverage counters are flags that a stable compiler has.
# Prints `fuzz: N passed, N failed`; what broke a target is kept in fuzz/artifacts
# and the command that repeats it is printed.
set -euo pipefail
cd "$(dirname "$0")/.."
SECONDS_ALL=${1:-${SLUICE_FUZZ_S:-120}}

HOST=$(rustc -vV | sed -n 's/^host: //p')
TARGET=${CARGO_TARGET_DIR:-$PWD/target}/fuzz
COVERAGE="-Cpasses=sancov-module -Ccodegen-units=1 --cfg fuzzing"
for flag in level=4 inline-8bit-counters pc-table trace-compares; do
	COVERAGE+=" -Cllvm-args=-sanitizer-coverage-$flag"
done

mapfile -t targets < <(basename -s .rs fuzz/fuzz_targets/*.rs)
# a target by name keeps the counters out of build scripts
RUSTFLAGS=$COVERAGE CARGO_TARGET_DIR=$TARGET cargo build --quiet --locked --manifest-path fuzz/Cargo.toml --release --bins --target "$HOST"
if [ -f fuzz/examples/seeds.rs ]; then
	CARGO_TARGET_DIR=$TARGET cargo run --quiet --locked --manifest-path fuzz/Cargo.toml --example seeds -- fuzz/corpus
fi

passed=0 failed=0
for target in "${targets[@]}"; do
	seconds=$((SECONDS_ALL / ${#targets[@]}))
	corpus=fuzz/corpus/$target artifacts=fuzz/artifacts/$target/
	mkdir -p "$corpus" "$artifacts"
	echo "# $target for $seconds s"
	if "$TARGET/$HOST/release/$target" "$corpus" -max_total_time="$seconds" -max_len=65536 -timeout=60 -rss_limit_mb=2048 \
		-artifact_prefix="$artifacts" -print_final_stats=1 >"$artifacts/log" 2>&1; then
		passed=$((passed + 1))
		echo "ok $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$artifacts/log") inputs"
	else
		failed=$((failed + 1))
		tail -n 40 "$artifacts/log"
		echo "not ok $target: repeat with $target and the file named above: tests/fuzz.sh builds it as $TARGET/$HOST/release/$target"
	fi
done
echo "fuzz: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
