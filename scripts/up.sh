#!/usr/bin/env bash
# From a clone to a running daemon with a demo jail. Every step looks first
# whether it is done already.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=${1:?usage: up.sh DATA_DIR LISTEN}
LISTEN=${2:?usage: up.sh DATA_DIR LISTEN}
export GLASSHOUSE_DATA=$DATA

scripts/setup.sh "$DATA"
make -s build DATA="$DATA"
gh() { bin/glasshouse "$@"; }

# Whether the daemon that this script started is there.
ours() {
	local pid
	pid=$(cat "$DATA/daemon.pid" 2>/dev/null) || return 1
	[[ $(readlink "/proc/$pid/exe" 2>/dev/null) == "$(realpath "$DATA")/bin/glasshouse"* ]]
}

# A daemon of another build makes way for this one; its jails go on.
mkdir -p "$DATA"
new=$(sha256sum bin/glasshouse | cut -d' ' -f1)
old=$(cat "$DATA/daemon.build" 2>/dev/null || true)
if ours && [ "$new" != "$old" ]; then
	scripts/down.sh "$DATA"
fi
# One that a command has started for itself ends with the command.
for _ in $(seq 50); do
	ours || ! gh health >/dev/null 2>&1 && break
	sleep 0.2
done
if gh health >/dev/null 2>&1; then
	ours || echo "daemon    one that make up has not started answers on $DATA; it is used as it is"
else
	install -d -m 0711 "$DATA/bin"
	install -m 0755 bin/glasshouse "$DATA/bin/glasshouse"
	# Agents have a model that plays from a script, unless there is a real one.
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
	# Clients of the E2B protocol are served too, unless somebody else is there.
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
The link logs one browser in, once, within ten minutes; glasshouse ui makes others.
Try next
  bin/glasshouse run -- bash                    a shell in a fresh jail, this directory copy-on-write
  bin/glasshouse jail create --name box && bin/glasshouse jail start box && bin/glasshouse jail exec box -- uname -a
  bin/glasshouse goal "count the files here"    an agent in a jail of its own; its model is played from a script
  eval "$(bin/glasshouse e2b)"                  projects that use an E2B SDK have their sandboxes here
  bin/glasshouse doctor                         what this host can do, and the remedy for what it cannot
  curl --unix-socket $DATA/glasshouse.sock http://glasshouse/jails
NEXT
