#!/usr/bin/env bash
#
# ui.sh [check|install]: generate the UI's TypeScript types of the API, which are not committed,
# and build the UI in web/ui into web/dist, and the list of the packages in it into web/ui/bundled.txt.
# With check, fail if the committed files differ from the result. With install, only install the npm packages if they are missing or out of date.
set -euo pipefail
cd "$(dirname "$0")/.."

# The built files are committed, so that a check without Node is possible if the UI is unchanged.
if ! command -v npm >/dev/null; then
	if [ "${1-}" = "" ]; then
		echo "ui: npm is missing; install Node 20 or newer"
		exit 1
	fi
	if [ -z "${CI:-}" ] || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
		echo "the UI is not checked: npm is missing"
		exit 0
	fi
	apt-get update -qq >/dev/null && apt-get install -y -qq --no-install-recommends nodejs npm >/dev/null
fi

scripts/npm.sh web/ui
[ "${1-}" != install ] || exit 0

sums() { find web/dist web/ui/bundled.txt -type f -print0 | sort -z | xargs -0 sha256sum; }
document=$(mktemp --suffix=.json)
trap 'rm -f "$document"' EXIT
before=$(sums)
${GO:-go} run ./cmd/glasshouse docs openapi >"$document"
cd web/ui
npx openapi-typescript "$document" -o src/api/schema.d.ts >/dev/null
npm run --silent check
npm run --silent test
npm run --silent build
cd ../..

if [ "${1-}" = check ] && ! diff <(echo "$before") <(sums); then
	echo "the built UI is out of date: run make ui"
	exit 1
fi
