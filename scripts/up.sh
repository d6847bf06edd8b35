#!/usr/bin/env bash
# Starts a daemon with a demo jail from a clone of the repository. Each step is skipped if its
# result exists.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=${1:?usage: up.sh DATA_DIR LISTEN}
LISTEN=${2:?usage: up.sh DATA_DIR LISTEN}
export GLASSHOUSE_DATA=$DATA

scripts/setup.sh "$DATA" up
(
	. scripts/setup.sh
	TOOLS=$DATA/tools
	PATH=$TOOLS/bin:$PATH
	begin build "bin/glasshouse; the first build downloads modules and takes minutes"
	GOFLAGS="$(go env GOFLAGS) -v" quietly make -s build DATA="$DATA" || fail "make build failed: see above"
	rm -f "$TOOLS/setup.log"
	say build built "bin/glasshouse with $(go env GOVERSION)"
)
gh() { bin/glasshouse "$@"; }
line() { printf '%-23s %-10s %s\n' "$@"; } # as those of setup.sh

# ours: whether the daemon that this script started is running.
ours() {
	local pid
	pid=$(cat "$DATA/daemon.pid" 2>/dev/null) || return 1
	[[ $(readlink "/proc/$pid/exe" 2>/dev/null) == "$(realpath "$DATA")/bin/glasshouse"* ]]
}

# Replace a daemon of another build. Its jails continue to run.
mkdir -p "$DATA"
new=$(sha256sum bin/glasshouse | cut -d' ' -f1)
old=$(cat "$DATA/daemon.build" 2>/dev/null || true)
if ours && [ "$new" != "$old" ]; then
	scripts/down.sh "$DATA"
fi
# A daemon that a command has started for itself ends with the command: wait for that.
for _ in $(seq 50); do
	ours || ! gh health >/dev/null 2>&1 && break
	sleep 0.2
done
if gh health >/dev/null 2>&1; then
	ours || line daemon found "on $DATA; make up did not start it"
else
	install -d -m 0711 "$DATA/bin"
	install -m 0755 bin/glasshouse "$DATA/bin/glasshouse"
	# Without a configured model, agents use a scripted mock model.
	if [ -z "${GLASSHOUSE_MODELS:-}" ]; then
		model=127.0.0.1:8081
		! (: <>/dev/tcp/127.0.0.1/8081) 2>/dev/null || model=127.0.0.1:0 # in use: any other port
		setsid nohup "$DATA/bin/glasshouse" mock-llm --listen $model >"$DATA/mock-llm.log" 2>&1 </dev/null &
		echo $! >"$DATA/mock-llm.pid"
		url=
		while [ -z "$url" ] && kill -0 "$(cat "$DATA/mock-llm.pid")" 2>/dev/null; do
			sleep 0.1
			url=$(sed -n 's/.* listens on //p' "$DATA/mock-llm.log")
		done
		if [ -n "$url" ]; then
			export GLASSHOUSE_MODELS=$url
		else
			line models missing "$(tail -1 "$DATA/mock-llm.log")"
			rm -f "$DATA/mock-llm.pid"
		fi
	fi
	# Also serve clients of the E2B protocol, unless the port is in use.
	if [ -z "${GLASSHOUSE_E2B+set}" ] && ! (: <>/dev/tcp/127.0.0.1/8083) 2>/dev/null; then
		export GLASSHOUSE_E2B=127.0.0.1:8083
	fi
	setsid nohup "$DATA/bin/glasshouse" serve --data "$DATA" --listen "$LISTEN" >>"$DATA/daemon.log" 2>&1 </dev/null &
	echo $! >"$DATA/daemon.pid"
	echo "$new" >"$DATA/daemon.build"
	for _ in $(seq 100); do
		gh health >/dev/null 2>&1 && break
		kill -0 "$(cat "$DATA/daemon.pid")" 2>/dev/null || { tail -5 "$DATA/daemon.log"; exit 1; }
		sleep 0.1
	done
	gh health >/dev/null
fi
line daemon running "log in $DATA/daemon.log"

line rootfs working "the root filesystem of jails; the first time from a Debian mirror, which takes minutes"
began=$SECONDS
rootfs=$(gh rootfs prepare)
line rootfs ready "$rootfs ($((SECONDS - began)) s)"
echo
echo '$ glasshouse run --rm -- sh -c "…"'
gh run --rm -- sh -c 'echo "hello from $(hostname), as $(id -un), pid $$ of $(ls -d /proc/[0-9]* | wc -l)"; echo made in the jail > note.txt'
if [ -e "$DATA/mock-llm.pid" ]; then
	echo
	echo '$ glasshouse goal "say hello"'
	gh goal "say hello"
fi
cat <<NEXT

Glasshouse is up.
  UI       $(gh ui 2>/dev/null || echo "http://$LISTEN   (a link to log in: glasshouse ui)")
  API      http://$LISTEN   (token: $DATA/token)
  CLI      bin/glasshouse --help
The login link works once, within ten minutes; glasshouse ui creates another.
Try next
  bin/glasshouse run -- bash                    a shell in a new jail, with this directory copy-on-write
  bin/glasshouse jail create --name box && bin/glasshouse jail start box && bin/glasshouse jail exec box -- uname -a
  bin/glasshouse goal "count the files here"    an agent in its own jail, with a scripted mock model
  eval "$(bin/glasshouse e2b)"                  make E2B SDKs use this daemon
  bin/glasshouse doctor                         features of this host, and remedies for missing ones
  curl --unix-socket $DATA/glasshouse.sock http://glasshouse/jails
NEXT
