#!/usr/bin/env bash
# Starts a daemon with a demo jail from a clone of the repository. Each step is skipped if its
# result exists.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=${1:?usage: up.sh DATA_DIR LISTEN}
LISTEN=${2:?usage: up.sh DATA_DIR LISTEN}
export GLASSHOUSE_DATA=$DATA

scripts/setup.sh "$DATA"
make -s build DATA="$DATA"
gh() { bin/glasshouse "$@"; }

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
	ours || echo "daemon    using the running daemon on $DATA, which make up did not start"
else
	install -d -m 0711 "$DATA/bin"
	install -m 0755 bin/glasshouse "$DATA/bin/glasshouse"
	# Without a configured model, agents use a scripted mock model.
	if [ -z "${GLASSHOUSE_MODELS:-}" ]; then
		setsid nohup "$DATA/bin/glasshouse" mock-llm >"$DATA/mock-llm.log" 2>&1 </dev/null &
		echo $! >"$DATA/mock-llm.pid"
		sleep 0.5
		if kill -0 "$(cat "$DATA/mock-llm.pid")" 2>/dev/null; then
			export GLASSHOUSE_MODELS=http://127.0.0.1:8081
		else
			echo "models    none: $(tail -1 "$DATA/mock-llm.log")"
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
echo "daemon    running, log in $DATA/daemon.log"

echo "rootfs    $(gh rootfs prepare)"
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
