# shellcheck shell=bash
# What mount.sh and mirror.sh share: programs that try file systems, pjdfstest in
# several places, and the count of what passed. Read by them (`.`), not run.
#
#   in_place NAME FOLDER       runs pjdfstest there: $WORK/NAME.log, $WORK/NAME.results
#   holds NAME EXPECTED        what passed beside passes there, but for the file's tests
#   suite_done SUITE            the last line, and the exit status
#
# The caller has HERE, CACHE and WORK, and has run `in_place beside` before `holds`.

passed=0 failed=0 skipped=0
die() { echo "${0##*/}: $2" >&2; exit "$1"; }
pass() { passed=$((passed + 1)); }
fail() { failed=$((failed + 1)); echo "not ok $1"; }

program() { # program NAME VARIABLE: the path of what guest.sh builds
	local version
	version=$(sed -n "s/^$2=//p" "$HERE/guest.sh")
	"$HERE/guest.sh" programs
	PROGRAM=$CACHE/static/$1-$version/bin/$1
	[ -x "$PROGRAM" ] || die 2 "no $PROGRAM"
}

# in_place NAME FOLDER: with a second file system of its own, so that several can run at once
in_place() {
	local second=/dev/shm/sluice.$$.$1
	mkdir -m 755 "$second" "$2/$1"
	"$PROGRAM" -c "$HERE/mount.pjdfstest.toml" -p "$2/$1" -s "$second" 2>&1 |
		sed 's/\x1b\[[0-9;]*m//g' >"$WORK/$1.log" || true
	# `NAME ok|FAILED|skipped`, sorted
	sed -nE 's/^([a-z0-9_:]+) +(ok|FAILED|skipped)$/\1 \2/p' "$WORK/$1.log" | sort >"$WORK/$1.results"
	echo "# $1: $(grep -c ' ok$' "$WORK/$1.results") passed," \
		"$(grep -c ' FAILED$' "$WORK/$1.results") failed, $(grep -c ' skipped$' "$WORK/$1.results") skipped"
}

# holds NAME EXPECTED: a test that is missing on one side counts as not passed there
holds() {
	local name beside there why expected=0
	while read -r name beside there; do
		why=$(sed -nE "s/^$name *# *//p" "$2")
		case "$beside $there" in
		"skipped skipped") skipped=$((skipped + 1)) ;;
		*" ok")
			pass
			[ -z "$why" ] || fail "$1: $name: passes: take it out of ${2##*/}"
			;;
		"ok "*)
			if [ -n "$why" ]; then
				expected=$((expected + 1))
				echo "# $1: $name fails, as expected: $why"
			else
				fail "$1: $name:$(grep -A1 "^$name  *FAILED" "$WORK/$1.log" | tail -n 1)"
			fi
			;;
		*) echo "# $1: $name: $beside in the directory too" ;;
		esac
	done < <(join -a1 -a2 -e missing -o 0,1.2,2.2 "$WORK/beside.results" "$WORK/$1.results")
	echo "# $1: expected to fail: $expected"
	grep -A1 ' skipped$' "$WORK/$1.log" | sed -nE "s/^\t/skipped: pjdfstest on the $1: /p" |
		sort | uniq -c | sed -E 's/^ +([0-9]+) (.*)$/\2 (\1 tests)/'
}

clear_seconds() { rm -rf "/dev/shm/sluice.$$".*; }

suite_done() { # suite_done SUITE: no result at all is a failure
	[ $((passed + failed)) -gt 0 ] || failed=1
	echo "$1: $passed passed, $failed failed, $skipped skipped"
	[ "$failed" -eq 0 ]
}
