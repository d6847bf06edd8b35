#!/usr/bin/env bash
#
# check.sh DATA_DIR: check that generated files match their sources: formatting, eBPF programs, the
# UI, the clients; that the code is valid for the other architecture; and that comments, messages
# and documents use established terms (internal/wording). A check is skipped if it has passed with
# the same inputs before.
#
# It works on a copy of the sources, so that it does not change them.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=${1:?usage: check.sh DATA_DIR}
passed=$DATA/checked
[ -d "$DATA" ] || install -d -m 711 "$DATA"
mkdir -p "$passed"

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard | xargs -0 -I{} sh -c '[ ! -e "{}" ] || printf "%s\0" "{}"' | tar -c --null -T - | tar -x -C "$copy"
cp -r cmd/glasshouse/embedded "$copy/cmd/glasshouse/" 2>/dev/null || true
packages=$PWD/web/ui/node_modules
cd "$copy"
git init -q && git add -A

# sum PATH...: a hash of the contents of files and of the versions of the tools.
sum() {
	{
		git ls-files -s -- "$@"
		go version
		node --version 2>/dev/null || true
		echo "CI=${CI:-}" # in CI missing tools are installed; otherwise their checks are skipped
		clang-14 --version 2>/dev/null | head -n 1 || true
	} | sha256sum | cut -d' ' -f1
}

status=0
# check NAME SUM COMMAND...: run a command unless it passed with the same sum.
check() {
	local name=$1 sum=$2
	shift 2
	if [ "$(cat "$passed/$name" 2>/dev/null)" = "$sum" ]; then
		echo "$name: unchanged since it passed"
		return
	fi
	if "$@"; then
		echo "$name: ok, ${SECONDS}s"
		echo "$sum" >"$passed/$name"
	else
		echo "$name: FAILED"
		status=1
	fi
}

ui() {
	if [ -d "$packages" ]; then
		cp -al "$packages" web/ui/node_modules 2>/dev/null || cp -rT "$packages" web/ui/node_modules
	fi
	scripts/ui.sh check
}

# listed checks that the tests in the lists exist.
listed() {
	local missing
	missing=$({ grep -v '^#' test/slow.txt; sed -E '/^#/d;s|/.*||' test/ci.txt; sed -nE 's|^glasshouse/\S+ ([^/]+).*|\1|p' test/skips.txt; } |
		grep -vxFf <(git grep -hoE '^func (Test|Example|Fuzz)\w+' -- '*_test.go' | cut -d' ' -f2) || true)
	[ -z "$missing" ] || { echo "test/slow.txt, test/ci.txt or test/skips.txt lists tests that do not exist: $missing"; return 1; }
}

formatted() {
	local files
	files=$(git ls-files -z '*.go' | xargs -0 gofmt -l)
	[ -z "$files" ] || { echo "gofmt wanted: $files"; return 1; }
}

other() { case $(go env GOHOSTARCH) in arm64) echo amd64 ;; *) echo arm64 ;; esac; }

# decided checks the index of the design decisions.
decided() {
	scripts/decisions.sh | diff docs/project/decisions/README.md - || { echo "docs/project/decisions/README.md is not current; run make docs"; return 1; }
}

valid() {
	go build -C scripts/lint -o "$copy/typecheck" ./typecheck && ./typecheck "$1" ./...
}

check formatting "$(sum '*.go')" formatted
check listed-tests "$(sum "*_test.go" test/slow.txt test/ci.txt test/skips.txt)" listed
check decisions "$(sum docs/project/decisions scripts/decisions.sh)" decided
check wording "$(sum .)" go run ./internal/wording internal/wording/limits.txt
check generated "$(sum observe policy/enforce api/wire/eventfields.go scripts/generated.sh)" scripts/generated.sh
document=$(go run ./cmd/glasshouse docs openapi | sha256sum)
check ui "$(sum web/ui web/dist scripts/ui.sh scripts/npm.sh) $document" ui
check docs "$(sum docs web/docs web/docs.sum '*.md' scripts/docs.sh) $document" scripts/docs.sh check
check sdk "$(sum sdk scripts/sdk.sh) $document" scripts/sdk.sh check
check "$(other)" "$(sum '*.go' '*go.mod' '*go.sum')" valid "$(other)"
exit $status
