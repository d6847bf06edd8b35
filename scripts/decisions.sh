#!/usr/bin/env bash
#
# decisions.sh: print docs/project/decisions/README.md, the index of the design decisions.
set -euo pipefail
cd "$(dirname "$0")/../docs/project/decisions"

cat <<'END'
# Design decisions

Each page is a question, the answer, and the rejected alternatives with the reasons. To add one, copy the form of the
newest page, give it the next number, and run `make docs`, which writes this index. A decision that no longer holds
keeps its page, with the status `superseded by` and the number of the other.

| | decision | date | status |
| --- | --- | --- | --- |
END
for page in [0-9]*.md; do
	title=$(sed -n '1s/^# //p' "$page")
	status=$(sed -nE '3s/^Date: ([0-9-]+)\. Status: (.*)\.$/\1 | \2/p' "$page")
	if [ -z "$title" ] || [ -z "$status" ]; then
		echo "decisions.sh: $page does not begin with a title and a line with date and status" >&2
		exit 1
	fi
	echo "| ${page%%-*} | [$title]($page) | $status |"
done
