#!/usr/bin/env bash
# Runs every test. Packages run one after the other: they count the host's
# mounts, loop devices and cgroups to see that none leaks.
# What should run here and was skipped fails the run when CI is set.
# A few tests that fail are run once more, for a host that had a bad moment; what
# failed once and then passed is listed at the end, and is a bug to be found.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=${1:?usage: test.sh DATA_DIR}
export PATH="$DATA/tools/bin:$PATH"

log=$(mktemp)
twice=$(mktemp)
trap 'rm -f "$log" "$twice"' EXIT

before=$(scripts/leaks.sh)
status=0
go tool gotestsum --format pkgname --format-hide-empty-pkg --hide-summary=skipped --jsonfile "$log" \
	--rerun-fails=1 --rerun-fails-max-failures=20 --rerun-fails-report="$twice" --packages=./... -- \
	-count=1 -p 1 -timeout 40m || status=$?
if [ -s "$twice" ]; then
	echo "run twice:"
	cat "$twice"
fi

# A server of memory waits half a minute for another branch before it ends.
for _ in $(seq 45); do
	after=$(scripts/leaks.sh)
	[ "$before" != "$after" ] || break
	sleep 1
done
if [ "$before" != "$after" ]; then
	echo "the tests left something behind:"
	diff <(echo "$before") <(echo "$after") || true
	status=1
fi

skipped=$(grep '"Action":"skip"' "$log" | sed -nE 's/.*"Package":"([^"]*)","Test":"([^"]*)".*/\1 \2/p' | sort || true)
unexpected=$(grep -vxFf <(grep -v '^#' test/skips.txt) <<<"$skipped" || true)
if [ -n "${CI:-}" ] && [ "$(id -u)" = 0 ] && [ -n "${unexpected// /}" ]; then
	echo "skipped, and test/skips.txt does not expect it:"
	echo "$unexpected"
	status=1
fi
exit $status
