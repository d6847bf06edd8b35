#!/usr/bin/env bash
# Stops the daemon that up.sh started, and its scripted model. Jails continue to run.
set -euo pipefail
DATA=${1:?usage: down.sh DATA_DIR}
model=$(cat "$DATA/mock-llm.pid" 2>/dev/null || true)
if [[ -n $model && $(readlink "/proc/$model/exe" 2>/dev/null) == "$(realpath "$DATA")/bin/glasshouse"* ]]; then
	kill -TERM "$model"
fi
rm -f "$DATA/mock-llm.pid"
pid=$(cat "$DATA/daemon.pid" 2>/dev/null || true)
# Check the executable, because the PID may belong to another process now.
[[ -n $pid && $(readlink "/proc/$pid/exe" 2>/dev/null) == "$(realpath "$DATA")/bin/glasshouse"* ]] ||
	{ echo "no daemon of make up is running on $DATA"; exit 0; }
kill -TERM "$pid"
for _ in $(seq 100); do
	kill -0 "$pid" 2>/dev/null || { rm -f "$DATA/daemon.pid"; exit 0; }
	sleep 0.1
done
echo "the daemon, process $pid, did not exit within 10 s; see $DATA/daemon.log" >&2
exit 1
