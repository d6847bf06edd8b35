#!/usr/bin/env bash
#
# docs.sh [check]: build the documentation site from docs/ and web/docs into web/docs.tar.zst, which
# the daemon serves at /docs, unless it is current. With check, only fail if it is not current, which
# needs no Node: web/docs.sum has the hash of everything that it was built from.
set -euo pipefail
cd "$(dirname "$0")/.."

document=$(mktemp --suffix=.json)
trap 'rm -f "$document"' EXIT
${GO:-go} run ./cmd/glasshouse docs openapi >"$document"

inputs() {
	find docs web/docs/pack web/docs/src -type f ! -path 'web/docs/src/content/docs/*' ! -name sidebar.json
	printf '%s\n' README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md web/docs/{package.json,package-lock.json,prepare.mjs,astro.config.mjs}
}
sum=$({
	inputs | LC_ALL=C sort | xargs -d '\n' sha256sum
	sha256sum <"$document"
} | sha256sum | cut -d' ' -f1)
[ "$(cat web/docs.sum)" != "$sum" ] || exit 0
if [ "${1-}" = check ]; then
	echo "web/docs.tar.zst is out of date: run make docs"
	exit 1
fi

echo "building the documentation site; this takes about a minute"
scripts/npm.sh web/docs
cd web/docs
node prepare.mjs "$document"
ASTRO_TELEMETRY_DISABLED=1 npm run --silent build
cd ../..
${GO:-go} run ./web/docs/pack web/docs/dist web/docs.tar.zst
echo "$sum" >web/docs.sum
size=$(stat -c %s web/docs.tar.zst)
echo "web/docs.tar.zst: $((size / 1024)) KiB"
[ "$size" -le $((4 << 20)) ] || {
	echo "the archive is larger than 4 MiB"
	exit 1
}
