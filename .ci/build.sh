#!/bin/bash
# Builds the release binaries. The product's is stripped; its debug symbols are beside it,
# where gdb, perf and backtraces look for them.
#
#   .ci/build.sh [sluice] [sluice-library] [sluice-bench]      [sluice]
#
# sluice-bench starts sluice, so that one is built in any case, and with it: built alone it
# would need other features of what both use, and so all of that once more. A binary that
# names its symbols is left as it is; whatever cargo links anew names none.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$HOME/.cargo/bin:$PATH"

packages=(--package sluice)
for name in "$@"; do
	case $name in
	sluice) ;;
	sluice-bench | sluice-library) packages+=(--package "$name") ;;
	*) echo "build: no program \"$name\"" >&2; exit 2 ;;
	esac
done
"${CARGO:-cargo}" build --release "${packages[@]}"

dir=${CARGO_TARGET_DIR:-target}/release
sections=$(readelf --section-headers --wide "$dir/sluice")
case $sections in *.gnu_debuglink*) exit 0 ;; esac

stripped=$(mktemp "$dir/sluice.XXXXXX")
trap 'rm -f "$stripped"' EXIT
objcopy --only-keep-debug "$dir/sluice" "$dir/sluice.debug"
chmod -x "$dir/sluice.debug"
strip -o "$stripped" "$dir/sluice"
objcopy --add-gnu-debuglink="$dir/sluice.debug" "$stripped"
chmod --reference="$dir/sluice" "$stripped"
# What lies here is a second name of a file of cargo's. Both become the new file: cargo would
# put its own back. A file that runs cannot be written to, so it is replaced.
linked=$(find "$dir/deps" -samefile "$dir/sluice" | head -n 1)
mv -f "$stripped" "$dir/sluice"
if [ -n "$linked" ]; then ln -f "$dir/sluice" "$linked"; fi
