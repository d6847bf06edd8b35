#!/usr/bin/env bash
# Runs every test. Packages run one after the other: they count the host's
# mounts, loop devices and cgroups to see that none leaks.
# What should run here and was skipped fails the run when CI is set.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=${1:?usage: test.sh DATA_DIR}
export PATH="$DATA/tools/bin:$PATH"

log=$(mktemp)
trap 'rm -f "$log"' EXIT

before=$(scripts/leaks.sh)
status=0
go tool gotestsum --format pkgname --format-hide-empty-pkg --hide-summary=skipped --jsonfile "$log" -- \
	-count=1 -p 1 -timeout 40m ./... || status=$?

after=$(scripts/leaks.sh)
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
