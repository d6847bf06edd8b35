#!/usr/bin/env bash
#
# sdk.sh [check|build]: generate the parts of the clients in sdk/ that depend on the API, and build
# the TypeScript client. With check, fail if the committed files differ from the generated ones.
# With build, only build the TypeScript client if it is missing or out of date; then npm can install
# it without a network.
set -euo pipefail
cd "$(dirname "$0")/.."

# build compiles into a new directory, because other commands may read sdk/typescript/dist.
build() (
	cd sdk/typescript
	local want
	want=$(find src package.json package-lock.json tsconfig.json -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum)
	[ "$(cat dist/.sources 2>/dev/null)" != "$want" ] || [ ! -x node_modules/.bin/tsc ] || return 0
	npm ci --ignore-scripts --loglevel error >/dev/null
	rm -rf dist.new
	npm run --silent build -- --outDir dist.new
	echo "$want" >dist.new/.sources
	rm -rf dist
	mv dist.new dist
)
if [ "${1-}" = build ]; then
	if command -v npm >/dev/null; then
		build
	else
		echo "the TypeScript client is not built: npm is missing"
	fi
	exit
fi

sums() { find sdk/python/src sdk/typescript/src -type f ! -name '*.pyc' ! -path '*/_sync/*' -print0 | sort -z | xargs -0 sha256sum; }
before=$(sums)
${GO:-go} run ./sdk/gen

# Without npm, check only the files that need no Node.
if command -v npm >/dev/null; then
	build
elif [ "${1-}" != check ] || [ -n "${CI:-}" ]; then
	echo "sdk: npm is missing; install Node 20 or newer"
	exit 1
else
	echo "the TypeScript client is not checked: npm is missing"
fi

if command -v mypy >/dev/null; then
	(cd sdk/python && python3 tools/blocking.py && mypy --no-incremental)
elif [ "${1-}" != check ]; then
	echo "the types of the Python client are not checked: mypy is missing"
fi

if [ "${1-}" = check ] && ! diff <(echo "$before") <(sums); then
	echo "the clients in sdk/ are out of date: run make sdk"
	exit 1
fi
