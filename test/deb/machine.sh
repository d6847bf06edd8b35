#!/bin/bash
# What becomes of the package on a whole machine with systemd: scripts/vm.sh suite runs
# it there, once for each of its steps, for a machine's plug is pulled in between.
#   machine.sh install|jails|snapshot|begin|restart|kill|back|upgrade|user|purge
# in the directory with old.deb and new.deb. Nothing here waits for a time: an emulated
# machine is as slow as it is.
set -euo pipefail
fail() { echo "machine: $*" >&2; exit 1; }
says() { # says WANTED COMMAND...: what it prints
	local want=$1 got
	shift
	got=$("$@") || fail "$*: exit $?, and $got"
	[ "$got" = "$want" ] || fail "$*: says $got, not $want"
}
answers() {
	for _ in $(seq 600); do
		glasshouse health >/dev/null 2>&1 && return
		systemctl is-active -q glasshouse || systemctl is-active glasshouse | grep -q activating || fail "the daemon is $(systemctl is-active glasshouse)"
		sleep 1
	done
	fail "the daemon does not answer"
}
id_of() { glasshouse --json jail show "$1" | python3 -c 'import json, sys; print(json.load(sys.stdin)["id"])'; }
state() { glasshouse --json jail show "$1" | python3 -c 'import json, sys; print(json.load(sys.stdin)["state"])'; }
group() { echo /sys/fs/cgroup/"$(cat /var/lib/glasshouse/cgroup)/$(id_of "$1")"; }
inside() { glasshouse jail exec "$1" -- sh -c "$2"; }

# What jails are made of: some of the machine's own files, for it has no network to get
# others.
tree=/srv/tree
if [ ! -e $tree ]; then
	mkdir -p $tree.new/{usr/lib,proc,sys,dev,run,var,tmp,root,home}
	cp -a /bin /sbin /lib /lib64 /etc $tree.new
	cp -a /usr/bin /usr/lib64 /usr/lib/x86_64-linux-gnu /usr/lib/python3* $tree.new/usr/lib/
	mv $tree.new/usr/lib/bin $tree.new/usr/lib/lib64 $tree.new/usr/
	mv $tree.new $tree
fi

case $1 in
install)
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ./old.deb >apt.log 2>&1 || { cat apt.log; fail "it cannot be installed"; }
	printf 'rootfs:\n  allow: [/srv]\n' >>/etc/glasshouse/config.yaml
	systemctl restart glasshouse
	answers
	systemctl is-enabled -q glasshouse || fail "it does not start with the machine"
	[ "$(systemctl show -P NoNewPrivileges glasshouse)" = yes ] || fail "the unit takes nothing away"
	pid=$(systemctl show -P MainPID glasshouse)
	grep -q '^NoNewPrivs:.*1' "/proc/$pid/status" || fail "the daemon may get new privileges"
	caps=$((16#$(sed -n 's/^CapBnd:\t//p' "/proc/$pid/status")))
	(( caps >> 16 & 1 )) && fail "the daemon may load modules"
	glasshouse doctor
	for row in 'root ' 'cgroup limits ' 'cgroup freeze' 'overlay with idmapped' 'nftables' 'bpf ' 'bpf tracing' 'bpf lsm' 'tcx' 'seccomp user' 'runc' 'crun' 'bubblewrap' 'criu' 'tracking of written' 'observe: calls' 'observe: packets'; do
		glasshouse doctor | grep -q "^ok *$row" || fail "doctor: $row is not ok"
	done
	;;
jails)
	for how in oci:runc oci:crun bwrap:; do
		name=${how%:*}-${how#*:}
		runtime=${how#*:}
		rootfs=dir:$tree
		[ -n "$runtime" ] || rootfs=host
		glasshouse jail create --start --name "$name" --backend "${how%:*}" ${runtime:+--runtime "$runtime"} --rootfs "$rootfs" --memory 64m --pids 32 --cpu-shares 128 >/dev/null
		says hello inside "$name" 'echo hello'
		g=$(group "$name")
		[ "$(cat "$g/memory.max")" = $((64 << 20)) ] && [ "$(cat "$g/pids.max")" = 32 ] || fail "$name: its limits are $(cat "$g/memory.max") and $(cat "$g/pids.max")"
		inside "$name" 'head -c 200000000 /dev/zero | tail -c 200000000 >/dev/null' && fail "$name: more memory than there is"
		grep -q '^oom_kill [1-9]' "$g/memory.events" || fail "$name: nothing was ended for its memory"
		inside "$name" 'for i in $(seq 64); do sleep 1000 & done' 2>/dev/null || true
		[ "$(cat "$g/pids.current")" -le 32 ] || fail "$name: more processes than there may be"
		glasshouse jail exec --detach "$name" -- sh -c 'n=0; while :; do n=$((n+1)); echo $n >/tmp/count; done' >/dev/null
		glasshouse jail pause "$name" >/dev/null
		grep -q '^frozen 1' "$g/cgroup.events" || fail "$name: it is not frozen"
		glasshouse jail resume "$name" >/dev/null
		grep -q '^frozen 0' "$g/cgroup.events" || fail "$name: it is still frozen"
		glasshouse events "$name" type:proc >events; grep -q head events || fail "$name: it is not recorded"
		glasshouse jail stop "$name" >/dev/null
		[ ! -e "$g" ] || fail "$name: its cgroup is still there"
		glasshouse jail rm "$name" >/dev/null
		echo "$name: ok"
	done
	;;
begin) # a jail that is to be found again
	glasshouse jail create --start --name stays --rootfs dir:$tree >/dev/null
	inside stays 'echo 1 >/tmp/x'
	;;
restart)
	init=$(head -n 1 "$(group stays)/cgroup.procs")
	systemctl restart glasshouse
	answers
	says running state stays
	[ "$(head -n 1 "$(group stays)/cgroup.procs")" = "$init" ] || fail "it is another one"
	says 1 inside stays 'cat /tmp/x'
	;;
kill)
	init=$(head -n 1 "$(group stays)/cgroup.procs")
	kill -9 "$(systemctl show -P MainPID glasshouse)"
	while glasshouse health >/dev/null 2>&1; do :; done
	answers # systemd starts it again
	says running state stays
	[ "$(head -n 1 "$(group stays)/cgroup.procs")" = "$init" ] || fail "it is another one"
	says 1 inside stays 'cat /tmp/x'
	;;
back) # after the plug was pulled
	answers
	says stopped state stays
	glasshouse --json jail show stays
	glasshouse --json jail show stays | grep -qi 'host.*restart' || fail "nobody says why it is stopped"
	glasshouse jail start stays >/dev/null
	says 1 inside stays 'cat /tmp/x'
	;;
snapshot)
	glasshouse jail create --start --name big --rootfs dir:$tree --memory 512m >/dev/null
	glasshouse jail exec --detach big -- python3 -c 'b = b"x" * (100 << 20); n = 0
while True:
    n += 1
    open("/tmp/count", "w").write(f"{len(b)} {n}")' >/dev/null
	until inside big 'test -s /tmp/count'; do :; done
	glasshouse snapshot big
	glasshouse --json snapshots big
	sid=$(glasshouse --json snapshots big | python3 -c 'import json, sys; d = json.load(sys.stdin); print((d if isinstance(d, list) else d["snapshots"])[0]["id"])')
	glasshouse branch "$sid" -n 1
	glasshouse rewind big "$sid"
	was=$(inside big 'cat /tmp/count')
	until [ "$(inside big 'cat /tmp/count')" != "$was" ]; do :; done
	;;
upgrade)
	init=$(head -n 1 "$(group stays)/cgroup.procs")
	echo 'listen: 127.0.0.1:9000' >>/etc/glasshouse/config.yaml
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq ./new.deb >apt.log 2>&1 || { cat apt.log; fail "it cannot be upgraded"; }
	answers
	says 2.0 dpkg-query -W -f '${Version}' glasshouse
	grep -q '^listen: 127.0.0.1:9000' /etc/glasshouse/config.yaml || fail "the configuration was lost"
	says running state stays
	[ "$(head -n 1 "$(group stays)/cgroup.procs")" = "$init" ] || fail "it is another one"
	;;
user)
	su - user -c 'glasshouse doctor' || true
	su - user -c 'glasshouse run --rootfs host -- sh -c "id -u; echo hello"'
	;;
purge)
	rm -rf $tree
	DEBIAN_FRONTEND=noninteractive apt-get purge -y -qq glasshouse >apt.log 2>&1 || { cat apt.log; fail "it cannot be purged"; }
	left=$(find / -xdev -iname '*glasshouse*' -not -path '/proc/*' -not -path '/var/log/*' -not -path '/home/*' -not -path '/sys/*' -not -path '/etc/host*' || true)
	[ -z "$left" ] || fail "purged, and left: $left"
	! grep glasshouse /proc/self/mountinfo || fail "purged, and mounted"
	[ -z "$(find /sys/fs/cgroup -maxdepth 1 -name 'glasshouse*')" ] || fail "purged, and cgroups left: $(find /sys/fs/cgroup -maxdepth 1 -name 'glasshouse*')"
	[ -z "$(find /sys/fs/bpf -iname '*glasshouse*' 2>/dev/null)" ] || fail "purged, and programs left"
	;;
*) fail "no such step: $1" ;;
esac
echo "machine: $1: done"
