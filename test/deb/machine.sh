#!/bin/bash
# Tests the Debian package on a whole machine with systemd. scripts/vm.sh suite runs one
# step after the other there, and resets and reboots the machine in between:
#   machine.sh install|jails|lsm|govern|egress|agent|snapshot|random|clock
#   machine.sh begin|restart|kill|back|upgrade|rootless|container|purge
# The directory has old.deb, new.deb and, for the step container, image.tar. An emulated
# machine is slow, so that no step measures time: a step waits until something happens.
set -euo pipefail
fail() { echo "machine: $*" >&2; exit 1; }

# says WANTED COMMAND...: check what a command prints.
says() {
	local want=$1 got
	shift
	got=$("$@") || fail "$*: exit $?, and $got"
	[ "$got" = "$want" ] || fail "$*: says $got, not $want"
}

# until_true COMMAND...: wait until a command succeeds.
until_true() {
	for _ in $(seq 600); do
		"$@" >/dev/null 2>&1 && return
		sleep 1
	done
	fail "$*: not within 10 minutes"
}

answers() {
	for _ in $(seq 600); do
		glasshouse health >/dev/null 2>&1 && return
		case $(systemctl is-active glasshouse) in
		active | activating) ;;
		*) fail "the daemon is $(systemctl is-active glasshouse)" ;;
		esac
		sleep 1
	done
	fail "the daemon does not answer"
}

# json EXPRESSION COMMAND...: evaluate Python on the JSON that a command prints, as d.
json() {
	local expression=$1
	shift
	glasshouse --json "$@" | python3 -c "import json, sys; d = json.load(sys.stdin); print($expression)"
}
id_of() { json 'd["id"]' jail show "$1"; }
state() { json 'd["state"]' jail show "$1"; }
group() { echo /sys/fs/cgroup/"$(cat "$data/cgroup")/$(id_of "$1")"; }
inside() { glasshouse jail exec "$1" -- sh -c "$2"; }
first_process() { head -n 1 "$(group "$1")/cgroup.procs"; }
remove() { glasshouse jail stop "$1" >/dev/null; glasshouse jail rm "$1" >/dev/null; }

# recorded JAIL TERM...: check that the event log has events that match.
recorded() {
	glasshouse events "$@" >events
	[ -s events ] || { glasshouse events "$1" --tail 10; fail "no events: $*"; }
}

# observed JAIL SOURCE...: check which sources record a jail, without loss.
observed() {
	local name=$1 got
	shift
	got=$(json '" ".join(sorted(d["observation"]["sources"]))' jail show "$name")
	[ "$got" = "$*" ] || fail "$name is recorded by: $got"
	json '[(n, s) for n, s in d["observation"]["sources"].items() if s.get("err") or s["lost"]]' jail show "$name" | grep -qx '\[\]' ||
		fail "$name: $(json 'd["observation"]' jail show "$name")"
}

data=/var/lib/glasshouse
[ "$(id -u)" = 0 ] || data=$HOME/.local/share/glasshouse

# The machine has no network, so that the root filesystem of jails is a copy of some of
# its own files.
tree=/srv/tree
if [ "$(id -u)" = 0 ] && [ ! -e $tree ]; then
	mkdir -p $tree.new/{usr/lib,proc,sys,dev,run,var,tmp,root,home}
	for dir in /bin /sbin /lib /lib64 /etc; do [ ! -e $dir ] || cp -a $dir $tree.new; done
	for dir in /usr/bin /usr/lib64 /usr/lib/ld-linux* /usr/lib/*-linux-gnu /usr/lib/python3*; do
		[ ! -e "$dir" ] || cp -a "$dir" "$tree.new/$(dirname "$dir")/"
	done
	mv $tree.new $tree
fi

# web: a web server with a public address, in a network namespace of its own.
web() {
	ip netns list | grep -q web || {
		ip netns add web
		ip link add wan0 type veth peer name eth0 netns web
		ip address add 203.0.113.1/24 dev wan0
		ip link set wan0 up
		ip -n web address add 203.0.113.2/24 dev eth0
		ip -n web address add 198.51.100.7/32 dev lo
		ip -n web link set lo up
		ip -n web link set eth0 up
		ip route add 198.51.100.7 via 203.0.113.2
	}
	printf 'HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n' >page
	systemctl is-active -q web || systemd-run --unit web --collect -q ip netns exec web \
		socat TCP-LISTEN:80,fork,reuseaddr SYSTEM:'cat /srv/suite/page; sleep 1'
	grep -q web.example.com /etc/hosts || echo '198.51.100.7 web.example.com other.example.com' >>/etc/hosts
	until_true ip netns exec web bash -c ': </dev/tcp/198.51.100.7/80'
}

case $1 in
install)
	mkdir -p -m 0711 $data
	[ ! -d /srv/tools ] || cp -a /srv/tools $data/
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ./old.deb >apt.log 2>&1 || { cat apt.log; fail "it cannot be installed"; }
	printf 'rootfs:\n  allow: [/srv]\n  default: {dir: %s}\npool:\n  size: 0\n' $tree >>/etc/glasshouse/config.yaml
	echo GLASSHOUSE_MODELS=http://127.0.0.1:8081 >/etc/glasshouse/environment
	/usr/share/glasshouse/setup.sh $data | tee setup.out
	grep -q '^criu  *found' setup.out || fail "setup.sh finds no CRIU that fits"
	systemctl restart glasshouse
	answers
	systemctl is-enabled -q glasshouse || fail "it does not start with the machine"
	[ "$(systemctl show -P NoNewPrivileges glasshouse)" = yes ] || fail "the unit is not hardened"
	pid=$(systemctl show -P MainPID glasshouse)
	grep -q '^NoNewPrivs:.*1' "/proc/$pid/status" || fail "the daemon may get new privileges"
	caps=$((16#$(sed -n 's/^CapBnd:\t//p' "/proc/$pid/status")))
	(( caps >> 16 & 1 )) && fail "the daemon may load modules"
	glasshouse doctor | tee doctor.out
	rows=('root ' 'cgroup limits ' 'cgroup freeze' 'overlay with idmapped' nftables 'bpf ' 'bpf tracing' 'bpf lsm' 'seccomp user'
		runc crun bubblewrap criu 'observe: calls' 'observe: packets')
	# tcx: Linux 6.6. Written pages are tracked by soft-dirty bits, which arm64 lacks.
	[ "$(printf '6.6\n%s\n' "$(uname -r)" | sort -V | head -n 1)" != 6.6 ] || rows+=(tcx)
	[ "$(uname -m)" != x86_64 ] || rows+=('tracking of written')
	for row in "${rows[@]}"; do
		grep -q "^ok *$row" doctor.out || fail "doctor: $row is not ok"
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
		[ "$(cat "$g/memory.max")" = $((64 << 20)) ] && [ "$(cat "$g/pids.max")" -ge 32 ] || fail "$name: its limits are $(cat "$g/memory.max") and $(cat "$g/pids.max")"
		inside "$name" 'head -c 200000000 /dev/zero | tail -c 200000000 >/dev/null' && fail "$name: more memory than its limit"
		grep -q '^oom_kill [1-9]' "$g/memory.events" || fail "$name: no process was killed for its memory"
		inside "$name" 'echo x | timeout 20 bash -c "cat >/dev/udp/127.0.0.1/9"' || true
		inside "$name" 'for i in $(seq 64); do sleep 1000 & done' 2>/dev/null || true
		[ "$(cat "$g/pids.current")" -le "$(cat "$g/pids.max")" ] || fail "$name: more processes than its limit"
		glasshouse jail exec --detach "$name" -- sh -c 'n=0; while :; do n=$((n+1)); echo $n >/tmp/count; done' >/dev/null
		glasshouse jail pause "$name" >/dev/null
		grep -q '^frozen 1' "$g/cgroup.events" || fail "$name: it is not frozen"
		glasshouse jail resume "$name" >/dev/null
		grep -q '^frozen 0' "$g/cgroup.events" || fail "$name: it is still frozen"
		observed "$name" kernel network
		recorded "$name" type:proc comm:head
		recorded "$name" type:syscall name:openat path:/dev/zero
		recorded "$name" type:file path:/tmp/count
		recorded "$name" type:net dir:loopback proto:udp
		glasshouse jail stop "$name" >/dev/null
		[ ! -e "$g" ] || fail "$name: its cgroup was not removed"
		glasshouse jail rm "$name" >/dev/null
		echo "$name: ok"
	done
	;;
lsm) # The kernel refuses what the policy denies: also the commands and files of the operator, which are not asked about.
	echo '{"permission": {"edit": {"*": "allow", "/etc/*": "deny"}, "bash": {"*": "allow", "chmod *": "deny"}, "external_directory": "allow"}}' >lsm.json
	glasshouse jail create --start --name lsm --policy lsm.json --enforce >/dev/null
	glasshouse cp lsm.json lsm:/tmp/x
	says refused inside lsm 'chmod 600 /tmp/x 2>/dev/null || echo refused'
	code=0
	glasshouse jail exec lsm -- chmod 600 /tmp/x || code=$?
	[ $code = 126 ] || fail "a program that is denied: exit $code"
	glasshouse jail exec lsm -- tee /etc/passwd </dev/null && fail "a file that must not be edited was cut"
	glasshouse cp lsm.json lsm:/etc/passwd && fail "a file that must not be edited was replaced"
	inside lsm 'grep -q root /etc/passwd' || fail "a file that must not be edited was changed"
	echo '{"permission": {"edit": "allow", "bash": "allow", "external_directory": "allow"}}' >lsm.json
	glasshouse policy set lsm --policy lsm.json >/dev/null
	glasshouse jail exec lsm -- chmod 600 /tmp/x || fail "refused without a denial"
	remove lsm
	;;
govern)
	echo '{"permission": {"edit": {"*": "allow", "/etc/*": "deny"}, "bash": {"sh *": "allow", "ls *": "allow", "touch *": "allow", "rm -rf *": "deny", "*": "ask"}, "external_directory": "allow"}}' >govern.json
	glasshouse jail create --start --name govern --policy govern.json --enforce >/dev/null
	glasshouse decide govern bash 'ls /' || fail "an allowed command was denied"
	glasshouse decide govern bash 'rm -rf /' && fail "a denied command was allowed"
	says refused inside govern 'touch /tmp/x; rm -rf /tmp/x 2>/dev/null || echo refused'
	says refused inside govern '(echo x >/etc/motd) 2>/dev/null || echo refused'
	glasshouse jail exec --detach govern -- sh -c 'id -u >/tmp/id' >/dev/null
	pending() { json '[a["id"] for a in (d if isinstance(d, list) else d["items"] if "items" in d else d["approvals"])][0]' approval ls govern; }
	until_true pending
	glasshouse approve "$(pending)"
	until_true inside govern 'test -s /tmp/id'
	glasshouse trail govern | tee trail.out
	grep -q APPROVED trail.out && grep -q DENIED trail.out || fail "the trail lacks a decision"
	glasshouse audit verify
	remove govern
	;;
egress)
	web
	glasshouse jail create --start --name egress --allow web.example.com >/dev/null
	says hello inside egress 'curl -sS http://web.example.com/'
	inside egress 'curl -sSf http://other.example.com/' && fail "a host that is not allowed was reached"
	inside egress 'curl -sSf --noproxy "*" --connect-timeout 5 http://198.51.100.7/' && fail "an address that is not allowed was reached"
	says hello inside egress 'curl -sS --noproxy "*" http://web.example.com/'
	glasshouse egress log egress
	recorded egress type:net host:web.example.com
	observed egress kernel network
	remove egress
	;;
agent)
	systemctl is-active -q models || systemd-run --unit models --collect -q glasshouse mock-llm
	until_true bash -c ': </dev/tcp/127.0.0.1/8081'
	rm -rf /srv/work && mkdir /srv/work && echo one >/srv/work/given
	glasshouse goal "cat given && echo two >made" --agent shell -C /srv/work --keep | tee goal.out
	[ ! -e /srv/work/made ] || fail "the agent changed the directory itself"
	jail=$(json 'max((d if isinstance(d, list) else d["items"] if "items" in d else d["jails"]), key=lambda j: j["created_at"])["id"]' jail ls)
	glasshouse apply --rm "$jail"
	says two cat /srv/work/made
	glasshouse goal "say hello" | tee goal.out
	glasshouse agent ls | tee runs.out
	[ "$(grep -c done runs.out)" = 2 ] || fail "a run is not done"
	systemctl stop models
	;;
snapshot)
	counts() { # wait until the program in a jail has written another number
		local was
		was=$(inside "$1" 'cat /tmp/count')
		until_true bash -c '[ "$(glasshouse jail exec "$1" -- cat /tmp/count)" != "$2" ]' bash "$1" "$was"
	}
	glasshouse jail create --start --name big --memory 512m >/dev/null
	glasshouse jail exec --detach big -- python3 -c 'import time; b = b"x" * (100 << 20); n = 0
while True:
    n += 1; time.sleep(0.1)
    open("/tmp/count", "w").write(f"{len(b)} {n}")' >/dev/null
	until_true inside big 'test -s /tmp/count'
	glasshouse snapshot create big
	glasshouse --json snapshot ls big
	sid=$(json '(d if isinstance(d, list) else d["snapshots"])[0]["id"]' snapshot ls big)
	glasshouse branch "$sid" -n 2 --name copy | tee branches
	while read -r branch; do
		counts "$branch"
		observed "$branch" kernel network
		remove "$branch"
	done <branches
	glasshouse rewind big "$sid"
	counts big
	glasshouse snapshot create big --stop
	says stopped state big
	glasshouse jail rm big >/dev/null
	;;
random) # branches of a program that has drawn random numbers before
	glasshouse jail create --start --name random >/dev/null
	glasshouse jail exec --detach random -- python3 -c 'import os, random, time
os.urandom(16), random.random()
open("/tmp/ready", "w").write("x")
while not os.path.exists("/tmp/go"): time.sleep(0.05)
child = os.fork() # both draw
open(f"/tmp/drawn-{bool(child):d}", "w").write(f"{os.urandom(16).hex()} {random.random()}\n")
if child: os.wait(); open("/tmp/done", "w").write("x"); time.sleep(1e6)' >/dev/null
	until_true inside random 'test -s /tmp/ready'
	# Where the vDSO has getrandom, its state is in memory with the flag dp (droppable).
	inside random 'grep -c " dp " $(ls -d /proc/[0-9]*/smaps) | grep -v ":0" || echo "no process has droppable memory"'
	glasshouse branch random -n 3 >branches
	for jail in random $(cat branches); do
		inside "$jail" 'touch /tmp/go'
		until_true inside "$jail" 'test -e /tmp/done'
		inside "$jail" 'cat /tmp/drawn-0 /tmp/drawn-1'
	done | tee drawn
	[ "$(wc -l <drawn)" = 8 ] || fail "$(wc -l <drawn) draws"
	[ "$(cut -d' ' -f1 drawn | sort | uniq -d | wc -l)" = 0 ] || fail "random numbers of the kernel are equal in two branches"
	echo "different values of Python's random: $(cut -d' ' -f2 drawn | sort -u | wc -l) of 8"
	for jail in random $(cat branches); do remove "$jail"; done
	;;
clock) # Somebody sets the machine's clock while a command is running.
	glasshouse jail create --start --name clock >/dev/null
	for change in '+2 days' '-4 days' '+2 days'; do
		glasshouse jail exec --timeout 30m clock -- sh -c 'touch /tmp/begun; while [ ! -e /tmp/go ]; do sleep 0.2; done; echo over' >over &
		command=$!
		until_true inside clock 'test -e /tmp/begun'
		date -s "$change" >/dev/null
		answers
		inside clock 'touch /tmp/go'
		wait $command || fail "$change: the command: exit $?"
		says over cat over
		inside clock 'rm /tmp/go /tmp/begun'
		recorded clock type:proc comm:rm --since 10m # by the clock as it is now
		observed clock kernel network
		branch=$(glasshouse branch clock -n 1)
		says over inside "$branch" 'echo over'
		remove "$branch"
		glasshouse audit verify
		systemctl restart glasshouse
		answers
		says running state clock
		echo "clock: $change: ok"
	done
	remove clock
	;;
begin) # a jail for the steps restart, kill and back
	glasshouse jail create --start --name stays >/dev/null
	inside stays 'echo 1 >/tmp/x'
	;;
restart)
	init=$(first_process stays)
	systemctl restart glasshouse
	answers
	says running state stays
	says "$init" first_process stays
	says 1 inside stays 'cat /tmp/x'
	observed stays kernel network
	;;
kill)
	init=$(first_process stays)
	kill -9 "$(systemctl show -P MainPID glasshouse)"
	while glasshouse health >/dev/null 2>&1; do :; done
	answers # systemd has started it again
	says running state stays
	says "$init" first_process stays
	says 1 inside stays 'cat /tmp/x'
	;;
back) # after a reset or a reboot
	answers
	says stopped state stays
	json 'd["reason"]' jail show stays | tee reason
	grep -qi 'host.*restart' reason || fail "the jail does not say why it is stopped"
	glasshouse jail start stays >/dev/null
	says 1 inside stays 'cat /tmp/x'
	observed stays kernel network
	glasshouse audit verify
	;;
upgrade)
	init=$(first_process stays)
	echo 'listen: 127.0.0.1:9000' >>/etc/glasshouse/config.yaml
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq ./new.deb >apt.log 2>&1 || { cat apt.log; fail "it cannot be upgraded"; }
	answers
	says 2.0 dpkg-query -W -f '${Version}' glasshouse
	grep -q '^listen: 127.0.0.1:9000' /etc/glasshouse/config.yaml || fail "the configuration was lost"
	says running state stays
	says "$init" first_process stays
	;;
rootless) # as an ordinary user, with a session of systemd
	[ "$(id -u)" != 0 ] || fail "this step is for an ordinary user"
	cd
	glasshouse doctor || true
	glasshouse run --rootfs host -- sh -c 'id -u; echo hello' | tee run.out
	grep -qx hello run.out || fail "no jail without a service"
	# The user's manager delegates its controllers to units that ask for them.
	cat "/sys/fs/cgroup/user.slice/user-$(id -u).slice/user@$(id -u).service/cgroup.controllers"
	systemd-run --user --unit glasshouse --collect -q -p Delegate=yes glasshouse serve --listen ''
	until_true glasshouse health
	glasshouse doctor | tee doctor.out
	for row in 'cgroup limits' 'cgroup freeze' bubblewrap 'observe: fallback'; do
		grep -q "^ok *$row" doctor.out || fail "doctor: $row is not ok"
	done
	glasshouse jail create --start --name mine --rootfs host --memory 64m --pids 32 >/dev/null
	says hello inside mine 'echo hello'
	g=$(find "/sys/fs/cgroup/user.slice/user-$(id -u).slice" -type d -name "$(id_of mine)")
	[ -n "$g" ] || fail "the jail has no cgroup"
	[ "$(cat "$g/memory.max")" = $((64 << 20)) ] && [ "$(cat "$g/pids.max")" -ge 32 ] || fail "its limits are $(cat "$g/memory.max") and $(cat "$g/pids.max")"
	inside mine 'head -c 200000000 /dev/zero | tail -c 200000000 >/dev/null' && fail "more memory than its limit"
	grep -q '^oom_kill [1-9]' "$g/memory.events" || fail "no process was killed for its memory"
	glasshouse jail pause mine >/dev/null
	grep -q '^frozen 1' "$g/cgroup.events" || fail "it is not frozen"
	glasshouse jail resume mine >/dev/null
	recorded mine type:proc comm:head
	recorded mine type:syscall name:openat
	glasshouse goal "echo made >made" --agent shell
	glasshouse jail stop mine >/dev/null
	[ ! -e "$g" ] || fail "its cgroup was not removed"
	glasshouse jail rm mine >/dev/null
	systemctl --user stop glasshouse
	;;
container) # the container image, without the package
	[ -e image.tar ] || { echo "no container image was delivered: run make image first" >&2; exit 1; }
	podman load -i image.tar
	image=$(podman images --format '{{.Repository}}:{{.Tag}}' | grep glasshouse)
	printf 'listen: ""\nrootfs:\n  allow: [/srv]\n  default: {dir: %s}\npool:\n  size: 0\n' $tree >settings.yaml
	podman run -d --name glasshouse --privileged --pid=host --cgroupns=host --network=host \
		-v /dev:/dev -v glasshouse:/var/lib/glasshouse -v $tree:$tree:ro -v "$PWD/settings.yaml:/etc/glasshouse.yaml" --stop-timeout 300 \
		--health-cmd '/usr/bin/glasshouse health' "$image" serve --stop-jails --config /etc/glasshouse.yaml
	in_container() { podman exec glasshouse glasshouse "$@"; }
	until_true in_container health
	in_container doctor
	in_container jail create --start --name box --memory 64m >/dev/null
	says hello in_container jail exec box -- sh -c 'echo hello; echo here >/tmp/x'
	in_container --json jail show box | python3 -c 'import json, sys; d = json.load(sys.stdin)["observation"]["sources"]; print(d); assert "kernel" in d and not d["kernel"].get("err")'
	in_container events box type:proc >events # grep -q would end before the command has written everything
	grep -q sh events || fail "the jail in the container is not recorded"
	until_true podman healthcheck run glasshouse
	podman stop glasshouse
	podman start glasshouse
	until_true in_container health
	in_container jail start box >/dev/null
	says here in_container jail exec box -- cat /tmp/x
	podman stop glasshouse
	podman rm glasshouse
	podman volume rm glasshouse
	podman rmi -a
	;;
purge)
	systemctl stop web models 2>/dev/null || true
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
