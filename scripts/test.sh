#!/usr/bin/env bash
#
# test.sh DATA_DIR: run the tests of all packages. HOST is a regular expression of the packages
# whose tests start jails or daemons, or change the host.
#
# setup.sh installs missing programs while the tests are compiled. Then several test processes run
# in parallel (internal/testrun). The go command caches the results of packages that do not match
# HOST, and testrun those of the others. Failed tests are not retried.
#
# By default tests run with -short and without those in test/ci.txt. If CI is set, all run, without
# -short and without results of an earlier run, and a skipped test that test/skips.txt does not list
# fails the run. With GLASSHOUSE_TEST=all, slow and repetitive tests run as well.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=${1:?usage: test.sh DATA_DIR}
# Tests mostly wait for processes, timeouts and disks, so run more than one per processor.
JOBS=${JOBS:-$((2 * $(nproc)))}

run=$(mktemp -d /tmp/ghXXXX) # short: unix sockets have at most 108 characters
chmod 711 "$run"
# Programs of tests are kept for the next run. Another run at the same time has its own.
[ -d "$DATA" ] || install -d -m 711 "$DATA"
mkdir -p "$DATA/test/built"
built=$(realpath "$DATA/test/built")
exec 8>"$built/.lock"
flock --nonblock 8 || built=$run
status=0
jobs_started=()
cleanup() {
	for pid in "${jobs_started[@]}"; do
		kill "$pid" 2>/dev/null || true
	done
	rm -rf "$run"
}
trap cleanup EXIT
say() { printf '%4ds  %s\n' "$SECONDS" "$*"; }

scripts/setup.sh "$DATA" tests 8>&- & # without the lock's descriptor, because it can start services
setup=$!
jobs_started+=("$setup")
say "compile, next to setup"
go build -o "$run/testrun" ./internal/testrun
go build -o "$run/gotestsum" gotest.tools/gotestsum
testrun=("$run/testrun" -jobs "$JOBS" -dir "$run" -built "$built" -host "$HOST")
"${testrun[@]}" -compile ./...
wait "$setup"
export PATH="$DATA/tools/bin:$PATH"
results=$DATA/test/results
if [ -z "${CI:-}${GLASSHOUSE_TEST:-}" ]; then
	testrun+=(-short -skip "$(sed -n '/^#/!{s|/|$/^|g;s|.*|^&$|;p}' test/ci.txt | paste -sd '|')")
	# The kernel, the user, the processors, the memory, the system's packages and the fetched programs.
	if git rev-parse --git-dir >/dev/null 2>&1; then
		state=$({
			uname -srvm && id && nproc && grep MemTotal /proc/meminfo
			dpkg-query -W 2>/dev/null || true
			find "$DATA/tools/bin/" -printf '%f %l %s %T@\n' | sort
			env | grep ^GLASSHOUSE_ || true
		} | sha256sum)
		mkdir -p "$results"
		testrun+=(-results "$results" -state "$state")
	fi
fi
scripts/ui.sh install # the tests of pages use some of its packages
scripts/sdk.sh build  # the test of the client installs it

say "tests, $JOBS processes at a time"
log=$run/log
"$run/gotestsum" --format pkgname --format-hide-empty-pkg --hide-summary=skipped --jsonfile "$log" \
	--raw-command -- "${testrun[@]}" ./... || status=1

# The page server waits half a minute for further branches before it exits.
for _ in $(seq 45); do
	left=$(scripts/leaks.sh "$run")
	[ -n "$left" ] || break
	sleep 1
done
if [ -n "$left" ]; then
	status=1
elif [ -d "$run/results" ]; then # not those of tests that have left something behind
	find "$run/results" -type f -exec mv -t "$results" {} +
	find "$results" -type f -mtime +14 -delete
fi
# Times are per test, because the processes of a package overlap with those of others.
echo "the slowest tests:"
"$run/gotestsum" tool slowest --threshold 10s --jsonfile "$log" | head -n 25 || true
echo "the processes with the most processor time, in seconds:"
sort -rn "$run/times" 2>/dev/null | cut -c 1-120 | head -n 15 || true
if [ -n "${TEST_LOG:-}" ]; then
	cp "$log" "$TEST_LOG"
	cp "$run/times" "$TEST_LOG.times" || true
fi

skipped=$(grep '"Action":"skip"' "$log" | sed -nE 's/.*"Package":"([^"]*)","Test":"([^"]*)".*/\1 \2/p' | sort || true)
unexpected=$(grep -vxFf <(grep -v '^#' test/skips.txt) <<<"$skipped" || true)
if [ -n "${CI:-}" ] && [ "$(id -u)" = 0 ] && [ -n "${unexpected// /}" ]; then
	echo "skipped, but not listed in test/skips.txt:"
	echo "$unexpected"
	status=1
fi

# Last, because often only the end of a log is kept.
failed=$(sed -nE 's/.*"Action":"fail".*"Package":"([^"]*)","Test":"([^"]*)".*/\1 \2/p' "$log" | head -n 10 || true)
while read -r package test; do
	[ -n "$test" ] || continue
	echo "failed: $package $test"
	grep -F "\"Package\":\"$package\",\"Test\":\"$test\",\"Output\"" "$log" |
		sed -nE 's/.*"Output":"(.*_test\.go:[0-9]+: .*)"\}$/\1/p' | cut -c 1-400 | head -n 3 || true
done <<<"$failed"
sed -nE 's/.*"Output":"(FAIL glasshouse.*|panic: .*|WARNING: DATA RACE)\\n".*/\1/p' "$log" |
	cut -c 1-400 | head -n 5 || true
[ -z "$left" ] || printf 'left by the tests: %s\n' "$left"
say "done, status $status"
exit $status
