#!/usr/bin/env bash
#
# run.sh: vet all packages with the analyzers of main.go, and check changed lines for
# effects in heads of if statements (internal/ifhead). Any report is a failure.
#
# The go command caches the results of each package: only what has changed, and what
# depends on it, is analyzed again.
set -euo pipefail
cd "$(dirname "$0")/../.."

# Without paths in it, the program is the same in each checkout, and so is the cache's key.
mkdir -p bin
(cd scripts/lint && go build -trimpath -o ../../bin/lint .)
status=0
go vet -vettool="$PWD/bin/lint" -tags bench ./... || status=1

# On main itself these are the lines that are not committed.
if git rev-parse --verify --quiet HEAD >/dev/null; then
	base=$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main 2>/dev/null || git rev-parse HEAD)
	go run ./internal/ifhead "$base" || status=1
fi
exit $status
