# Runs the commands that sudo.sh requests as root, until it is killed. A client that can
# build a template can run steps as root anyway, so this grants no privilege.
set -e
mkdir -p -m 711 /run/glasshouse-sudo
rm -f /run/glasshouse-sudo/request
mkfifo /run/glasshouse-sudo/request
chmod 622 /run/glasshouse-sudo/request
set +e
run() (
	. "$1/env"
	user=$(cat "$1/user")
	argv=$(cat "$1/argv")
	cd "$(cat "$1/dir")" || exit 1
	if [ "$user" != root ]; then
		exec su -s /bin/sh "$user" -c "exec $argv"
	fi
	export HOME=/root USER=root LOGNAME=root
	eval "exec $argv"
)
# Opened for writing too, the pipe stays open when a writer closes it (fifo(7)).
exec 3<>/run/glasshouse-sudo/request
echo ready
while read -r d <&3; do
	(
		run "$d" <"$d/in" >"$d/out" 2>"$d/err"
		echo $? >"$d/status"
	) &
done
