#!/usr/bin/env bash
# fuzz.sh: run each fuzz target of the tree for FUZZTIME (default 60s), one after the
# other, beginning with the one after the last that ended. FUZZPARALLEL is how many
# workers run at the same time (default 2). Stops at the first find and prints the
# command that reproduces it. FUZZCOUNT ends after so many targets (default: all, once).
# Minimizing an input is limited to five seconds. Otherwise large inputs would take all the time.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 LC_ALL=C
time=${FUZZTIME:-60s}
parallel=${FUZZPARALLEL:-2}
record=${FUZZRECORD:-${XDG_CACHE_HOME:-$HOME/.cache}/glasshouse/fuzz-next}

mapfile -t targets < <(grep -rHo '^func Fuzz[A-Za-z0-9_]*' --include='*_test.go' . | sed -E 's#/[^/]*:func # #' | LC_ALL=C sort -u)
total=${#targets[@]}
[ "$total" -gt 0 ] || { echo "no fuzz targets found" >&2; exit 1; }
count=${FUZZCOUNT:-$total}

# The record contains the name of the next target, because positions change when targets are
# added or removed. If the target no longer exists, the next one in the order is used.
next=$(cat "$record" 2>/dev/null || true)
first=0
for i in "${!targets[@]}"; do
	if [[ ! "${targets[$i]}" < "$next" ]]; then
		first=$i
		break
	fi
done

mkdir -p "$(dirname "$record")"
for ((n = 0; n < count; n++)); do
	target=${targets[$(((first + n) % total))]}
	read -r package name <<<"$target"
	echo "$target" >"$record"
	echo "=== $package $name ($((n + 1)) of $count, $time)"
	if ! go test -run '^$' -fuzz "^$name\$" -fuzztime "$time" -fuzzminimizetime 5s -parallel "$parallel" "$package"; then
		echo >&2
		echo "$name found an input. It is in $package/testdata/fuzz/$name; reproduce it with:" >&2
		echo "  go test -run '^$name\$' $package" >&2
		exit 1
	fi
	echo "${targets[$(((first + n + 1) % total))]}" >"$record"
done
