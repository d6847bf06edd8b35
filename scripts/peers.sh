#!/usr/bin/env bash
#
# peers.sh DIR: unpack the proxies that `make bench` compares with, tinyproxy and mitmproxy from
# this machine's Debian, into DIR. Nothing is installed. The benchmarks report missing proxies.
set -euo pipefail
DIR=${1:?usage: peers.sh DIR}
command -v apt-get >/dev/null || { echo "peers: apt-get is missing"; exit 0; }

# fetch NAME PACKAGE: a package and its dependencies that are not installed.
fetch() {
    local into=$DIR/$1 new=$DIR/$1.new list deb
    [ ! -d "$into" ] || return 0
    list=$(apt-get install --simulate --no-install-recommends "$2" 2>/dev/null | sed -n 's/^Inst \([^ ]*\) .*/\1/p')
    [ -n "$list" ] || { echo "peers: apt has no $2, or it is installed"; return 0; }
    rm -rf "$new"
    mkdir -p "$new/debs" "$new/root"
    # shellcheck disable=SC2086 # a list of words
    (cd "$new/debs" && apt-get -q -o APT::Sandbox::User="$(id -un)" download $list >/dev/null 2>&1) ||
        { echo "peers: $2 cannot be fetched"; rm -rf "$new"; return 0; }
    for deb in "$new"/debs/*.deb; do
        dpkg-deb -x "$deb" "$new/root"
    done
    mv "$new/root" "$into"
    rm -rf "$new"
}

mkdir -p "$DIR"
fetch tinyproxy tinyproxy-bin
fetch mitmproxy mitmproxy
