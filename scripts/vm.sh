#!/usr/bin/env bash
#
# vm.sh: a whole machine to try Glasshouse on: Debian with systemd, its own kernel,
# unified cgroups, kprobes and the bpf security module, emulated by QEMU.
#
#   vm.sh image                     make the machine's disk, once
#   vm.sh run [OPTION...] COMMAND   start a machine, run COMMAND on it, end it
#   vm.sh start [OPTION...]         start a machine and leave it running
#   vm.sh exec COMMAND              run COMMAND on the machine that was started
#   vm.sh put FILE... DIRECTORY     copy files to it
#   vm.sh reset                     pull its plug and put it in again: its disk stays
#   vm.sh stop                      end it
#   vm.sh suite                     what is tried on it: the package, from install to purge
#   vm.sh test PACKAGE [ARG...]     run the tests of a package on the machine that was
#                                   started, such as vm.sh test ./enforce -test.run LSM
#
#   --lsm LIST    security modules, as for the kernel's lsm= (default: the kernel's and bpf)
#   --append TEXT more for the kernel's command line
#   --memory MB   (default 2560)    --cpus N   (default 1)
#
# COMMAND goes to a shell, as root; its output and exit status are vm.sh's. Everything
# comes from Debian's mirror, and the machine itself has no network: only its port of
# ssh can be reached, from this host. What it writes to its disk is gone with it.
#
# A machine is emulated, and ten to twenty times slower than this one: --accel kvm
# (or GLASSHOUSE_VM_ACCEL=kvm) where the host lets it.
set -euo pipefail
export LC_ALL=C.UTF-8
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
cd "$(dirname "$0")/.."

RELEASE=${GLASSHOUSE_VM_RELEASE:-trixie}
HOME_OF_VM=${GLASSHOUSE_VM:-${GLASSHOUSE_DATA:-/var/lib/glasshouse}/vm}
DISK=$HOME_OF_VM/$RELEASE.img
KERNEL=$HOME_OF_VM/$RELEASE.vmlinuz
INITRD=$HOME_OF_VM/$RELEASE.initrd
KEY=$HOME_OF_VM/key
RUN=$HOME_OF_VM/run # of the machine that is running

# What our package depends on and recommends, what its users and our tests run besides.
PACKAGES=linux-image-amd64,initramfs-tools,lz4,zstd,systemd-sysv,dbus,udev,kmod,openssh-server,apparmor,apparmor-utils,
PACKAGES+=runc,crun,bubblewrap,criu,nftables,iptables,iproute2,mmdebstrap,e2fsprogs,uidmap,patchelf,ca-certificates,
PACKAGES+=debian-archive-keyring,libpam-systemd,python3-minimal,procps,psmisc,curl,socat,strace,bpftool,gdb-minimal

# A machine that is emulated on a busy one takes minutes for what others do in seconds.
PATIENCE='systemd.default_timeout_start_sec=1800 systemd.default_device_timeout_sec=1800 rcupdate.rcu_cpu_stall_suppress=1'
PATIENCE+=' nowatchdog tsc=nowatchdog mitigations=off systemd.mask=serial-getty@ttyS0.service systemd.mask=getty@tty1.service'

LSM=
APPEND=
MEMORY=2560
CPUS=1
ACCEL=${GLASSHOUSE_VM_ACCEL:-tcg}

fail() { printf 'vm: %s\n' "$*" >&2; exit 1; }

image() {
	local tree
	[ "$(id -u)" = 0 ] || fail "making a machine's disk needs root"
	for tool in mmdebstrap mke2fs ssh-keygen; do
		command -v "$tool" >/dev/null || fail "$tool is missing: apt-get install mmdebstrap e2fsprogs openssh-client"
	done
	install -d -m 0700 "$HOME_OF_VM"
	[ -e "$KEY" ] || ssh-keygen -q -t ed25519 -N '' -C glasshouse-vm -f "$KEY"
	tree=$HOME_OF_VM/tree
	rm -rf --one-file-system "$tree"
	# shellcheck disable=SC2064 # its value now
	trap "rm -rf --one-file-system '$tree' '$DISK.new'" EXIT

	# The initrd has the few modules of this machine: an emulated one unpacks slowly.
	mmdebstrap --quiet --variant=minbase --include="$PACKAGES" \
		--essential-hook='mkdir -p "$1/etc/initramfs-tools/conf.d" && printf "MODULES=list\nCOMPRESS=lz4\n" >"$1/etc/initramfs-tools/conf.d/vm" && printf "virtio_pci\nvirtio_blk\next4\n" >"$1/etc/initramfs-tools/modules.vm"' \
		--customize-hook='cat "$1/etc/initramfs-tools/modules.vm" >>"$1/etc/initramfs-tools/modules" && chroot "$1" update-initramfs -u' \
		"$RELEASE" "$tree"
	settle "$tree"
	cp -L "$tree"/boot/vmlinuz-* "$KERNEL"
	cp -L "$tree"/boot/initrd.img-* "$INITRD"
	cp -L "$tree"/boot/config-* "$HOME_OF_VM/$RELEASE.config"
	rm -f "$tree"/var/cache/apt/archives/*.deb
	rm -f "$DISK.new"
	mke2fs -q -t ext4 -L vm -d "$tree" "$DISK.new" 16G
	mv "$DISK.new" "$DISK"
	rm -rf --one-file-system "$tree"
	trap - EXIT
	echo "$DISK"
}

# settle TREE: what makes a machine of a tree.
settle() {
	local tree=$1
	echo glasshouse-vm >"$tree/etc/hostname"
	printf '127.0.0.1 localhost glasshouse-vm\n::1 localhost\n' >"$tree/etc/hosts"
	echo "LABEL=vm / ext4 defaults 0 1" >"$tree/etc/fstab"
	: >"$tree/etc/machine-id"
	install -d -m 0700 "$tree/root/.ssh"
	install -m 0600 "$KEY.pub" "$tree/root/.ssh/authorized_keys"
	chroot "$tree" useradd -m -s /bin/bash -u 1000 user
	install -d -m 0700 -o 1000 -g 1000 "$tree/home/user/.ssh"
	install -m 0600 -o 1000 -g 1000 "$KEY.pub" "$tree/home/user/.ssh/authorized_keys"
	cat >"$tree/etc/systemd/network/80-vm.network" <<-EOT
		[Match]
		Type=ether
		Kind=!veth
		[Network]
		Address=10.0.2.15/24
		Gateway=10.0.2.2
	EOT
	chroot "$tree" systemctl -q enable systemd-networkd ssh
	chroot "$tree" systemctl -q mask apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer systemd-networkd-wait-online.service
	sed -i 's/^#\?UseDNS.*//; $ a UseDNS no' "$tree/etc/ssh/sshd_config"
	mkdir -p "$tree/etc/systemd/journald.conf.d"
	printf '[Journal]\nStorage=persistent\n' >"$tree/etc/systemd/journald.conf.d/vm.conf"
}

running() { [ -e "$RUN/pid" ] && kill -0 "$(cat "$RUN/pid")" 2>/dev/null; }

vm_ssh() {
	ssh -q -T -i "$KEY" -p "$(cat "$RUN/port")" -o BatchMode=yes -o StrictHostKeyChecking=no \
		-o UserKnownHostsFile=/dev/null -o ConnectTimeout=20 -o ServerAliveInterval=30 -o ServerAliveCountMax=20 \
		"${VM_USER:-root}@127.0.0.1" "$@"
}

# await: until the machine has started, which is when all of its units have.
await() {
	local until=$((SECONDS + 1800))
	until vm_ssh "systemctl is-system-running --wait" >"$RUN/state" 2>/dev/null || grep -qx degraded "$RUN/state"; do
		running || fail "the machine ended: $(tail -n 20 "$RUN/console")"
		[ $SECONDS -lt $until ] || fail "the machine does not start: $(tail -n 20 "$RUN/console")"
		sleep 1
	done
}

start() {
	[ -e "$DISK" ] || image
	! running || fail "a machine is running: vm.sh stop"
	command -v qemu-system-x86_64 >/dev/null || fail "qemu is missing: apt-get install qemu-system-x86"
	rm -rf "$RUN"
	install -d -m 0700 "$RUN"
	qemu-img create -q -f qcow2 -b "$DISK" -F raw "$RUN/disk" 2>/dev/null
	local port accel=$ACCEL cpu=max
	# With several processors one runs, now and then, into what another is just patching
	# in the kernel ("Oops: int3"), and to take turns is slower than to be one.
	[ "$accel" != tcg ] || accel=tcg,thread=single
	[ "$ACCEL" != kvm ] || cpu=host
	port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
	echo "$port" >"$RUN/port"
	setsid qemu-system-x86_64 -accel "$accel" -cpu "$cpu" -smp "$CPUS" -m "$MEMORY" \
		-nodefaults -display none -no-user-config \
		-kernel "$KERNEL" -initrd "$INITRD" \
		-append "root=/dev/vda rw console=ttyS0 quiet panic=-1 $PATIENCE ${LSM:+lsm=$LSM} $APPEND" \
		-drive "file=$RUN/disk,if=virtio,format=qcow2,cache=unsafe,discard=unmap" \
		-netdev "user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:$port-:22" -device virtio-net-pci,netdev=net,romfile= \
		-device virtio-rng-pci -serial "file:$RUN/console" -qmp "unix:$RUN/qmp,server=on,wait=off" \
		>"$RUN/qemu.log" 2>&1 </dev/null &
	echo $! >"$RUN/pid"
	await
}

# qmp COMMAND: to the machine's own switches.
qmp() {
	python3 - "$RUN/qmp" "$1" <<-'EOT'
		import json, socket, sys
		s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); f = s.makefile("rw")
		f.readline()
		for c in ("qmp_capabilities", sys.argv[2]):
		    f.write(json.dumps({"execute": c}) + "\n"); f.flush(); f.readline()
	EOT
}

stop() {
	local pid
	running || return 0
	pid=$(cat "$RUN/pid")
	vm_ssh "systemctl poweroff" >/dev/null 2>&1 || true
	for _ in $(seq 60); do
		kill -0 "$pid" 2>/dev/null || break
		sleep 0.5
	done
	kill -9 "$pid" 2>/dev/null || true
	rm -f "$RUN/disk" "$RUN/pid"
}

# suite: the package on a machine, by the steps of test/deb/machine.sh.
suite() {
	local step debs
	[ -x bin/glasshouse ] || fail "make build first"
	debs=$(mktemp -d)
	# shellcheck disable=SC2064 # its value now
	trap "rm -rf '$debs'; stop" EXIT
	DEB_VERSION=1.0 scripts/deb.sh bin/glasshouse "$debs" >/dev/null
	DEB_VERSION=2.0 scripts/deb.sh bin/glasshouse "$debs" >/dev/null
	mv "$debs"/*_1.0_*.deb "$debs/old.deb"
	mv "$debs"/*_2.0_*.deb "$debs/new.deb"
	cp test/deb/machine.sh "$debs"
	start
	put "$debs"/old.deb "$debs"/new.deb "$debs"/machine.sh /root/suite
	for step in install jails snapshot begin restart kill; do step "$step"; done
	reset
	for step in back upgrade user purge; do step "$step"; done
}

step() {
	echo "== $1"
	vm_ssh "cd /root/suite && ./machine.sh $1"
}

# put FILE... DIRECTORY: each by its own name.
put() {
	local into=${*: -1} file
	local args=()
	for file in "${@:1:$#-1}"; do args+=(-C "$(realpath "$(dirname "$file")")" "$(basename "$file")"); done
	tar -cf - "${args[@]}" | vm_ssh "mkdir -p '$into' && tar -C '$into' -xf -"
}

# a_test PACKAGE [ARG...]
a_test() {
	local package=$1 binary
	shift
	binary=$(mktemp -d)
	# shellcheck disable=SC2064 # its value now
	trap "rm -rf '$binary'" EXIT
	export CGO_ENABLED=0
	"${GO:-go}" test -c -o "$binary/it.test" "$package"
	"${GO:-go}" build -trimpath -o "$binary/built/" ./cmd/glasshouse-init ./backend/backendtest/probe
	tar -C "$package" -cf - . | vm_ssh "mkdir -p '/root/tests/$package' && tar -C '/root/tests/$package' -xf -"
	put "$binary/it.test" "/root/tests/$package"
	put "$binary"/built/* /root/tests/built # the machine has no Go
	vm_ssh "cd '/root/tests/$package' && GLASSHOUSE_BACKENDTEST_BIN=/root/tests/built ./it.test -test.timeout 6h -test.v $*"
}

# reset: as a power cut, but that the disk is told of what was written.
reset() {
	local was
	was=$(vm_ssh 'cat /proc/sys/kernel/random/boot_id')
	qmp system_reset
	# What still answers is the machine as it was.
	until [ "$(vm_ssh 'cat /proc/sys/kernel/random/boot_id' 2>/dev/null || echo "$was")" != "$was" ]; do sleep 1; done
	await
}

options() {
	while [ $# -gt 0 ]; do
		case $1 in
		--lsm) LSM=$2 && shift 2 ;;
		--append) APPEND=$2 && shift 2 ;;
		--memory) MEMORY=$2 && shift 2 ;;
		--cpus) CPUS=$2 && shift 2 ;;
		--accel) ACCEL=$2 && shift 2 ;;
		--) shift && break ;;
		-*) fail "no such option: $1" ;;
		*) break ;;
		esac
	done
	REST=("$@")
}

command=${1:-}
[ $# = 0 ] || shift
case $command in
image) image ;;
start) options "$@" && start ;;
stop) stop ;;
exec) running || fail "no machine is running: vm.sh start"; vm_ssh "$*" ;;
put)
	running || fail "no machine is running: vm.sh start"
	[ $# -gt 1 ] || fail "put what where?"
	put "$@"
	;;
reset)
	running || fail "no machine is running: vm.sh start"
	reset
	;;
suite) options "$@" && suite ;;
test)
	running || fail "no machine is running: vm.sh start"
	[ $# -gt 0 ] || fail "test what?"
	a_test "$@"
	;;
run)
	options "$@"
	[ ${#REST[@]} -gt 0 ] || fail "run what?"
	trap stop EXIT
	start
	vm_ssh "${REST[*]}"
	;;
*) sed -n '3,/^set/p' "$0" | sed -e '$d' -e 's/^# \?//' && exit 2 ;;
esac
