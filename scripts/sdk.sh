#!/usr/bin/env bash
#
# sdk.sh [check]: make what of the clients in sdk/ follows from the API, and build the
# one for TypeScript, which is committed so that npm can install it from here. With
# check, fail if what is committed is not what the sources make.
set -euo pipefail
cd "$(dirname "$0")/.."

sums() { find sdk/python/src sdk/typescript/src sdk/typescript/dist -type f ! -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum; }
before=$(sums)
${GO:-go} run ./sdk/gen

# Who changes no route needs no Node.
if command -v npm >/dev/null; then
	cd sdk/typescript
	npm ci --loglevel error >/dev/null
	rm -rf dist
	npm run --silent build
	cd ../..
elif [ "${1-}" != check ] || [ -n "${CI:-}" ]; then
	echo "sdk: npm is not there; Node 20 or newer has it"
	exit 1
else
	echo "the client for TypeScript is not checked: npm is not there"
fi

if command -v mypy >/dev/null; then
	(cd sdk/python && mypy --no-incremental)
elif [ "${1-}" != check ]; then
	echo "the types of the client for Python are not checked: mypy is not there"
fi

if [ "${1-}" = check ] && ! diff <(echo "$before") <(sums); then
	echo "the clients in sdk/ differ from what the API says: run make sdk"
	exit 1
fi
