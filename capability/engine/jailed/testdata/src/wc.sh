#!/bin/sh
echo "$# arguments: $*"
wc -c
echo complaint >&2
exit 4
