#!/usr/bin/env bash
#
# npm.sh DIRECTORY: install the npm packages of a directory. npm ci takes half a minute, so it runs
# only if the lock file has changed.
set -euo pipefail
cd "${1:?usage: npm.sh DIRECTORY}"
want=$(sha256sum <package-lock.json)
[ "$(cat node_modules/.installed 2>/dev/null)" != "$want" ] || exit 0
npm ci --loglevel error >/dev/null
echo "$want" >node_modules/.installed
