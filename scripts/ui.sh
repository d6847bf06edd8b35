#!/usr/bin/env bash
#
# ui.sh [check|install]: build the UI in web/ui into web/dist, and the types of the API
# that it is written against. With check, fail if what is committed is not what
# the sources make, which a changed API is too. With install, only fetch the packages
# that it is built with, unless they are there.
set -euo pipefail
cd "$(dirname "$0")/.."

# Who changes no page needs no Node: the built files are committed.
if ! command -v npm >/dev/null; then
	if [ "${1-}" = "" ]; then
		echo "ui: npm is not there; Node 20 or newer has it"
		exit 1
	fi
	if [ -z "${CI:-}" ] || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
		echo "the UI is not checked: npm is not there"
		exit 0
	fi
	apt-get update -qq >/dev/null && apt-get install -y -qq --no-install-recommends nodejs npm >/dev/null
fi

# install: as the lock file says; it takes half a minute, so not if nothing has changed.
install() {
	local want
	want=$(sha256sum <web/ui/package-lock.json)
	[ "$(cat web/ui/node_modules/.installed 2>/dev/null)" != "$want" ] || return 0
	(cd web/ui && npm ci --loglevel error >/dev/null)
	echo "$want" >web/ui/node_modules/.installed
}
install
[ "${1-}" != install ] || exit 0

sums() { find web/dist web/ui/src/api/schema.d.ts -type f -print0 | sort -z | xargs -0 sha256sum; }
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
	echo "the built UI, or the types of its API, differ from what is committed: run make ui"
	exit 1
fi
