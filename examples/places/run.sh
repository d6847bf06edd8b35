#!/usr/bin/env bash
#
# run.sh [gvisor]: a skill, its capabilities, a sandbox, the proxy, a secret, a result
# and the chain, end to end. It needs root and bin/glasshouse (make build); with gvisor
# the sandboxes have a kernel of their own, gVisor's.
#
# All of it is in a network of its own, in which places.googleapis.com is a server of
# the example's, and on a data directory of its own: nothing of this host's is touched
# and nothing is left, but for the Debian tree that the sandboxes stand on. That is made
# once, with the network, and kept where the daemon of this host keeps its own.

set -euo pipefail
cd "$(dirname "$(realpath "$0")")"
GLASSHOUSE=$(realpath "${GLASSHOUSE:-../../bin/glasshouse}")
HOUSE=${GLASSHOUSE_DATA:-/var/lib/glasshouse}
RUNTIME=${1:-container}
CALL='{"query":"coffee","location":{"lat":51.5,"lng":-0.1}}'

fail() { printf 'places: %s\n' "$*" >&2; exit 1; }
title() { printf '\n== %s\n' "$*"; }
gh() { GLASSHOUSE_DATA=$WORK/data "$GLASSHOUSE" "$@"; }

# run COMMAND...: show a command of glasshouse and what it prints, and keep that in $out.
run() {
    printf '$ glasshouse %s\n' "$*"
    out=$(gh "$@") || fail "glasshouse $1 failed"
    [ -z "$out" ] || cut -c "1-${COLUMNS:-200}" <<<"$out"
}

# wants TEXT...: what was printed last has all of it.
wants() {
    for text; do
        [[ $out == *"$text"* ]] || fail "there should be $text"
    done
}

# sandbox CAPABILITY: the jail in which it was called.
sandbox() { gh --json audit ls --capability "$1" --kind call.ended | grep -o '"sandbox": "j-[a-z0-9]*"' | grep -o 'j-[a-z0-9]*'; }

# recorded CAPABILITY TEXT: whether the chain says so of that jail.
recorded() { gh audit ls --jail "$(sandbox "$1")" | grep -qF -- "$2"; }

no_jails() { [ -z "$(gh jail ls -q)" ]; }

# eventually WHAT COMMAND...: wait until it succeeds, half a minute at most.
eventually() {
    local what=$1 log
    shift
    for _ in $(seq 300); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    for log in "$WORK"/*.log; do
        tail -n 5 "$log" >&2
    done
    fail "there is not $what"
}

# prepare: what needs the host's own network, or its compiler.
prepare() {
    [[ $RUNTIME =~ ^(container|gvisor)$ ]] || fail "usage: run.sh [gvisor]"
    [ "$(id -u)" = 0 ] || fail "jails with a network need root"
    [ -x "$GLASSHOUSE" ] || fail "there is no $GLASSHOUSE: make build"
    for tool in go ip nsenter unshare; do
        command -v "$tool" >/dev/null || fail "$tool is missing: make setup"
    done
    WORK=$(mktemp -d)
    trap 'rm -rf "$WORK"' EXIT
    chmod 711 "$WORK"
    install -d -m 0711 "$HOUSE" "$WORK/data"
    install -d -m 0700 "$HOUSE/images"
    ln -s "$HOUSE/images" "$WORK/data/images"
    cp -r capabilities ./*.rtfs local-places.md "$WORK"
    sed -i "s/:type :container/:type :$RUNTIME/" "$WORK"/*.rtfs
    CGO_ENABLED=0 go build -o "$WORK/upstream" ./upstream
    printf 'rootfs    %s\n' "$(gh rootfs prepare debian:bookworm)"
}

# world: a host and, behind a wire, the Internet with a places API in it. What listens
# at an address of the host itself no jail may reach.
world() {
    printf '%s' "$PLACES_KEY" >"$WORK/key"
    unshare --net -- "$WORK/upstream" -ca "$WORK/ca.pem" -key "$WORK/key" >"$WORK/upstream.log" 2>&1 &
    UPSTREAM=$!
    eventually "a places API" test -s "$WORK/ca.pem"
    ip link add wan0 type veth peer name eth0 netns "$UPSTREAM"
    ip address add 203.0.113.1/24 dev wan0
    ip link set lo up && ip link set wan0 up
    nsenter --target "$UPSTREAM" --net -- ip address add 203.0.113.2/24 dev eth0
    nsenter --target "$UPSTREAM" --net -- ip link set eth0 up
    printf '127.0.0.1 localhost\n203.0.113.2 places.googleapis.com maps.googleapis.com collect.example\n' >"$WORK/hosts"
    mount --bind "$WORK/hosts" /etc/hosts
}

# daemon: one that trusts the authority of this Internet, as others trust the world's.
daemon() {
    printf 'tools: %s\npool: {size: 0}\n' "$HOUSE/tools/bin" >"$WORK/config.yaml"
    SSL_CERT_FILE=$WORK/ca.pem SSL_CERT_DIR=$WORK/none \
        "$GLASSHOUSE" serve --data "$WORK/data" --config "$WORK/config.yaml" --listen "" >"$WORK/daemon.log" 2>&1 &
    DAEMON=$!
    eventually "a daemon" gh health
}

# leave: the daemon ends its sandboxes with itself.
leave() {
    local code=$?
    trap - EXIT
    for process in ${DAEMON-} ${UPSTREAM-}; do
        kill "$process" 2>/dev/null && wait "$process" || true
    done
    exit $code
}

story() {
    title "1. A secret, which the daemon keeps"
    run secret set GOOGLE_PLACES_API_KEY --file "$WORK/key"
    run secret ls

    title "2. Capabilities: what they may do is asked about"
    run capability register "$WORK/places.rtfs"
    wants "places.search@1.0.0 is pending" "places.resolve@1.0.0 is approved"
    run approval show "$(gh approval ls | grep -o '^a-[a-z0-9]*')"
    wants "places.googleapis.com" "GOOGLE_PLACES_API_KEY"
    run approve "$(gh approval ls | grep -o '^a-[a-z0-9]*')"

    title "3. A skill, which teaches an agent to use them"
    run skill add "$WORK/local-places.md"
    run skill show local-places
    wants "places__search" "places__resolve"

    title "4. What the agent then calls"
    run call places.resolve '{"location_text":"Soho, London"}'
    run call places.search "$CALL"
    wants "The Glass Cup" "Causal Coffee"
    printf '\nthe places API was asked:\n'
    out=$(cat "$WORK/upstream.log")
    printf '  %s\n' "$out"
    wants "places:searchText with a key that is good"

    title "5. A thief in its place: same jail, same secret, same network"
    gh capability register "$WORK/hunt.rtfs" >/dev/null
    gh approve "$(gh approval ls | grep -o '^a-[a-z0-9]*')" >/dev/null
    run call places.hunt '{"pattern":"AIza[0-9A-Za-z_-]{35}"}'
    wants '"found":[]' '403' '****'
    if grep -rqF --exclude-dir run -- "$PLACES_KEY" "$WORK/data" "$WORK/daemon.log"; then
        fail "the key is in what the daemon has written"
    fi
    echo "the key is in no file, process or memory of the jail, and in nothing that the daemon has written"

    title "6. What is on record: who asked for what, and what that did"
    run audit ls --capability places.search
    wants "capability pending" "capability approved" "call.started" "call.ended"
    for text in "secret.granted" "secret.used" "request POST places.googleapis.com:443/v1/places:searchText 200" "jail.deleted"; do
        eventually "$text in the chain" recorded places.search "$text"
    done
    run audit ls --jail "$(sandbox places.search)"
    eventually "the refusal in the chain" recorded places.hunt "collect.example:443: refused"
    run audit ls --jail "$(sandbox places.hunt)" --kind egress
    run audit verify
    eventually "an end to the sandboxes" no_jails
    printf '\nEvery step is there, and the key has never been in a jail.\n'
}

if [ "${2-}" != inside ]; then
    prepare
    # A key of the form that Google's have, so that the thief knows what to look for.
    PLACES_KEY=${PLACES_KEY:-AIza$(head -c 300 /dev/urandom | base64 | tr -dc 'A-Za-z0-9' | head -c 35)}
    export WORK PLACES_KEY GLASSHOUSE
    unshare --net --mount --propagation private -- "$BASH" "$PWD/run.sh" "$RUNTIME" inside
else
    trap leave EXIT
    world
    daemon
    story
fi
