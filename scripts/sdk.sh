#!/usr/bin/env bash
#
# sdk.sh [check]: generate the parts of the clients in sdk/ that depend on the API, and build
# the TypeScript client, which is committed so that npm can install it from this repository.
# With check, fail if the committed files differ from the generated ones.
set -euo pipefail
cd "$(dirname "$0")/.."

sums() { find sdk/python/src sdk/typescript/src sdk/typescript/dist -type f ! -name '*.pyc' ! -path '*/_sync/*' -print0 | sort -z | xargs -0 sha256sum; }
before=$(sums)
${GO:-go} run ./sdk/gen

# Without npm, check only the files that need no Node.
if command -v npm >/dev/null; then
	cd sdk/typescript
	npm ci --loglevel error >/dev/null
	rm -rf dist
	npm run --silent build
	cd ../..
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
