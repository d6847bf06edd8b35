#!/usr/bin/env bash
#
# vm.sh: a virtual machine to test Glasshouse on: Debian with systemd, its own kernel,
# unified cgroups, kprobes and the bpf security module, emulated by QEMU.
#
#   vm.sh image                     make the machine's disk, once
#   vm.sh run [OPTION...] COMMAND   start a machine, run COMMAND on it, stop it
#   vm.sh start [OPTION...]         start a machine and leave it running
#   vm.sh exec COMMAND              run COMMAND on the machine that was started
#   vm.sh put FILE... DIRECTORY     copy files to it
#   vm.sh reset                     reset it without a shutdown; its disk stays
#   vm.sh reboot                    reboot it in order
#   vm.sh stop                      stop it
#   vm.sh suite [OPTION...]         the Debian package on a machine, from install to purge
#   vm.sh deliver                   build what the steps of the suite need, and copy it
#   vm.sh step NAME                 run one step of the suite on the machine that was started
#   vm.sh test PACKAGE [ARG...]     run the tests of a package on the machine that was
#                                   started, such as vm.sh test ./policy/enforce -test.run LSM
#
#   --lsm LIST    security modules, as for the kernel's lsm= (default: the kernel's)
#   --append TEXT more for the kernel's command line
#   --memory MB   (default 2560)    --cpus N   (default 1)
#
# GLASSHOUSE_VM_RELEASE selects the release of Debian: bookworm, trixie (default) or sid.
# GLASSHOUSE_VM_ARCH selects the architecture: amd64 or arm64 (default: this host's). The disk
# of another architecture than the host's is made with qemu-user-static and binfmt_misc. The
# suite has only the steps install and jails on arm64.
# GLASSHOUSE_VM is the directory of the disks. COMMAND is run by a shell, as root; its
# output and exit status are those of vm.sh. Everything comes from Debian's mirror. The
# machine has no network: only its ssh port can be reached, from this host. Each start
# begins with the disk as it was made.
#
# Emulation is ten to twenty times slower than the host: use --accel kvm (or
# GLASSHOUSE_VM_ACCEL=kvm) where the host has KVM.
set -euo pipefail
export LC_ALL=C.UTF-8
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
cd "$(dirname "$0")/.."

fail() { printf 'vm: %s\n' "$*" >&2; exit 1; }

HOST_ARCH=$(dpkg --print-architecture)
ARCH=${GLASSHOUSE_VM_ARCH:-$HOST_ARCH}
RELEASE=${GLASSHOUSE_VM_RELEASE:-trixie}
HOME_OF_VM=${GLASSHOUSE_VM:-${GLASSHOUSE_DATA:-/var/lib/glasshouse}/vm}
DISK=$HOME_OF_VM/$RELEASE-$ARCH.img
KERNEL=$HOME_OF_VM/$RELEASE-$ARCH.vmlinuz
INITRD=$HOME_OF_VM/$RELEASE-$ARCH.initrd
KEY=$HOME_OF_VM/key
RUN=$HOME_OF_VM/run # of the machine that is running

# What make build has built for the machine.
BIN=bin
[ "$ARCH" = "$HOST_ARCH" ] || BIN=bin/$ARCH

case $ARCH in
amd64)
	QEMU=qemu-system-x86_64 QEMU_PACKAGE=qemu-system-x86 CONSOLE=ttyS0 CLOCK=hpet
	MACHINE=(-M pc -cpu max)
	;;
arm64)
	# A processor without pointer authentication and SVE, which are slow to emulate.
	QEMU=qemu-system-aarch64 QEMU_PACKAGE=qemu-system-arm CONSOLE=ttyAMA0 CLOCK=arch_sys_counter
	MACHINE=(-M virt -cpu neoverse-n1)
	;;
*) fail "GLASSHOUSE_VM_ARCH is amd64 or arm64, not $ARCH" ;;
esac

# Dependencies of the package, what it recommends, and what users and tests run in addition.
PACKAGES=linux-image-$ARCH,initramfs-tools,lz4,zstd,systemd-sysv,dbus,udev,kmod,openssh-server,apparmor,apparmor-utils,
PACKAGES+=runc,crun,bubblewrap,criu,nftables,iptables,iproute2,mmdebstrap,e2fsprogs,uidmap,patchelf,ca-certificates,
PACKAGES+=debian-archive-keyring,libpam-systemd,python3,procps,psmisc,curl,socat,strace,bpftool,gdb-minimal,podman,netavark

# Units take minutes to start on an emulated machine, and time between two instructions
# is long enough for the kernel's watchdogs to report a hang. On a busy host the kernel
# measures a wrong frequency of the TSC: with a load of 30, a machine's clock ran 13 times too
# fast, and services timed out. HPET has a known frequency.
PATIENCE='systemd.default_timeout_start_sec=1800 systemd.default_device_timeout_sec=1800 rcupdate.rcu_cpu_stall_suppress=1'
PATIENCE+=' clocksource='$CLOCK' nowatchdog mitigations=off systemd.mask=serial-getty@'$CONSOLE'.service systemd.mask=getty@tty1.service'

LSM=
APPEND=
MEMORY=2560
CPUS=1
ACCEL=${GLASSHOUSE_VM_ACCEL:-tcg}

# needs TOOL PACKAGE
needs() { command -v "$1" >/dev/null || fail "$1 is missing: apt-get install $2"; }

# image: a subshell, so that its trap is not that of its caller.
image() (
	[ "$(id -u)" = 0 ] || fail "making a machine's disk needs root"
	needs mmdebstrap mmdebstrap
	needs mke2fs e2fsprogs
	needs ssh-keygen openssh-client
	needs patchelf patchelf
	if [ "$ARCH" != "$HOST_ARCH" ]; then
		needs arch-test arch-test
		arch-test "$ARCH" >/dev/null ||
			fail "this host cannot run programs for $ARCH: apt-get install qemu-user-static, and mount binfmt_misc"
	fi
	install -d -m 0700 "$HOME_OF_VM"
	[ -e "$KEY" ] || ssh-keygen -q -t ed25519 -N '' -C glasshouse-vm -f "$KEY"
	tree=$HOME_OF_VM/tree
	rm -rf --one-file-system "$tree"
	trap 'rm -rf --one-file-system "$tree" "$DISK.new"' EXIT

	# The index of sid expires. A host that uses an old copy of the mirror has this setting.
	expires=$(apt-config dump --format %v Acquire::Check-Valid-Until)

	# The initrd has the few modules of this machine: an emulated one unpacks slowly.
	mmdebstrap --quiet --architectures="$ARCH" --variant=minbase --include="$PACKAGES" \
		--aptopt="Acquire::Check-Valid-Until \"${expires:-true}\"" \
		--essential-hook='mkdir -p "$1/etc/initramfs-tools/conf.d" && printf "MODULES=list\nCOMPRESS=lz4\n" >"$1/etc/initramfs-tools/conf.d/vm" && printf "virtio_pci\nvirtio_blk\next4\n" >"$1/etc/initramfs-tools/modules.vm"' \
		--customize-hook='cat "$1/etc/initramfs-tools/modules.vm" >>"$1/etc/initramfs-tools/modules" && chroot "$1" update-initramfs -u' \
		"$RELEASE" "$tree"
	settle "$tree"
	tools "$tree"
	cp -L "$tree"/boot/vmlinuz-* "$KERNEL"
	cp -L "$tree"/boot/initrd.img-* "$INITRD"
	cp -L "$tree"/boot/config-* "$HOME_OF_VM/$RELEASE-$ARCH.config"
	rm -f "$tree"/var/cache/apt/archives/*.deb
	rm -f "$DISK.new"
	mke2fs -q -t ext4 -L vm -d "$tree" "$DISK.new" 16G
	mv "$DISK.new" "$DISK"
	echo "$DISK"
)

# tools TREE: fetch CRIU with setup.sh on a machine with a network, because the VM has none. The
# suite puts it into the data directory. CRIU finds its libraries by their absolute path, so it is
# fetched into a directory with the later path.
tools() {
	local tree=$1 later=/var/lib/glasshouse fetched=$HOME_OF_VM/fetched/$ARCH
	mkdir -p "$fetched" "$later"
	printf 'APT::Architecture "%s";\nAPT::Architectures { "%s"; };\n' "$ARCH" "$ARCH" >"$fetched/apt.conf"
	# The settings are at the later path, too, which may hide that of $fetched.
	APT_CONFIG=$later/apt.conf unshare --mount \
		sh -c 'mount --bind "$1" "$2" && scripts/setup.sh "$2" criu' sh "$fetched" "$later"
	cp -a "$fetched/tools" "$tree/srv/tools"
}

# settle TREE: configure the machine of a tree.
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
		-o UserKnownHostsFile=/dev/null -o ConnectTimeout=20 -o ServerAliveInterval=30 -o ServerAliveCountMax=240 \
		"${VM_USER:-root}@127.0.0.1" "$@"
}

# await: wait until all units of the machine have started.
await() {
	local until=$((SECONDS + 1800))
	until vm_ssh "systemctl is-system-running --wait" >"$RUN/state" 2>/dev/null || grep -qx degraded "$RUN/state"; do
		running || fail "the machine ended: $(tail -n 20 "$RUN/console")"
		[ $SECONDS -lt $until ] || fail "the machine does not start: $(tail -n 20 "$RUN/console")"
		sleep 1
	done
}

start() {
	! running || fail "a machine is running: vm.sh stop"
	needs "$QEMU" "$QEMU_PACKAGE"
	needs qemu-img qemu-utils
	[ -e "$DISK" ] || image
	rm -rf "$RUN"
	install -d -m 0700 "$RUN"
	qemu-img create -q -f qcow2 -b "$DISK" -F raw "$RUN/disk" 2>/dev/null
	local port accel=$ACCEL machine=("${MACHINE[@]}")
	# With several threads an emulated processor sometimes executes kernel code that another
	# one is patching ("Oops: int3"). One thread for all processors is slower than one processor.
	[ "$accel" != tcg ] || accel=tcg,thread=single
	[ "$ACCEL" != kvm ] || machine+=(-cpu host)
	port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
	echo "$port" >"$RUN/port"
	setsid "$QEMU" "${machine[@]}" -accel "$accel" -smp "$CPUS" -m "$MEMORY" \
		-nodefaults -display none -no-user-config \
		-kernel "$KERNEL" -initrd "$INITRD" \
		-append "root=/dev/vda rw console=$CONSOLE quiet panic=-1 $PATIENCE ${LSM:+lsm=$LSM} $APPEND" \
		-drive "file=$RUN/disk,if=virtio,format=qcow2,cache=unsafe,discard=unmap" \
		-netdev "user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:$port-:22" -device virtio-net-pci,netdev=net,romfile= \
		-device virtio-rng-pci -serial "file:$RUN/console" -qmp "unix:$RUN/qmp,server=on,wait=off" \
		>"$RUN/qemu.log" 2>&1 </dev/null &
	echo $! >"$RUN/pid"
	await
}

# qmp COMMAND: send a command to QEMU.
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
	local name
	deliver_files
	trap stop EXIT
	start
	deliver
	if [ "$ARCH" = arm64 ]; then
		for name in install jails; do step "$name"; done
		echo "suite: $RELEASE on arm64 passed install and jails in $((SECONDS / 60)) min"
		return
	fi
	for name in install jails lsm govern egress agent snapshot random clock begin restart kill; do step "$name"; done
	reset
	for name in back upgrade; do step "$name"; done
	reboot
	for name in back rootless purge container; do step "$name"; done
	echo "suite: $RELEASE passed in $((SECONDS / 60)) min"
}

# deliver_files: two versions of the package, from the same program.
deliver_files() {
	[ -x "$BIN/glasshouse" ] || fail "$BIN/glasshouse is missing: make ARCH=$ARCH build"
	DEBS=$(mktemp -d)
	DEB_VERSION=1.0 DEB_COMPRESSION=zstd scripts/deb.sh "$BIN/glasshouse" "$DEBS" >/dev/null
	DEB_VERSION=2.0 DEB_COMPRESSION=zstd scripts/deb.sh "$BIN/glasshouse" "$DEBS" >/dev/null
	mv "$DEBS"/*_1.0_*.deb "$DEBS/old.deb"
	mv "$DEBS"/*_2.0_*.deb "$DEBS/new.deb"
}

# deliver: copy them, the steps and, if make image has made one, the container image.
deliver() {
	local image newest=
	[ -n "${DEBS-}" ] || deliver_files
	for image in bin/glasshouse_*_"$ARCH".oci.tar; do
		if [ "$image" -nt "$newest" ]; then newest=$image; fi
	done
	[ -z "$newest" ] || cp "$newest" "$DEBS/image.tar"
	cp test/deb/machine.sh "$DEBS"
	put "$DEBS"/* /srv/suite
	rm -rf "$DEBS"
}

# step NAME: the step rootless is run by an ordinary user with a systemd session.
step() {
	local began=$SECONDS user=root
	[ "$1" != rootless ] || user=user
	echo "== $1"
	VM_USER=$user vm_ssh "cd /srv/suite && bash ./machine.sh $1" || {
		vm_ssh "journalctl -q -u glasshouse -n 15 --no-pager" >&2 || true
		fail "step $1 failed"
	}
	echo "== $1: $((SECONDS - began)) s"
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
	export CGO_ENABLED=0 GOARCH=$ARCH
	"${GO:-go}" test -c -o "$binary/it.test" "$package"
	"${GO:-go}" build -trimpath -o "$binary/built/" ./cmd/glasshouse-init ./jail/backend/backendtest/probe
	tar -C "$package" -cf - . | vm_ssh "mkdir -p '/root/tests/$package' && tar -C '/root/tests/$package' -xf -"
	put "$binary/it.test" "/root/tests/$package"
	put "$binary"/built/* /root/tests/built # the machine has no Go
	vm_ssh "cd '/root/tests/$package' && GLASSHOUSE_BACKENDTEST_BIN=/root/tests/built ./it.test -test.timeout 6h -test.v $*"
}

# reset: as in a power cut, except that what was written to the disk is not lost.
reset() {
	local was
	was=$(boot_id)
	qmp system_reset
	restarted "$was"
}

reboot() {
	local was
	was=$(boot_id)
	vm_ssh "systemctl reboot" || true # which ends the connection
	restarted "$was"
}

boot_id() { vm_ssh 'cat /proc/sys/kernel/random/boot_id'; }

# restarted BOOT_ID: wait until the machine has another boot id, and has started.
restarted() {
	until [ "$(boot_id 2>/dev/null || echo "$1")" != "$1" ]; do sleep 1; done
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
reset | reboot | deliver)
	running || fail "no machine is running: vm.sh start"
	"$command"
	;;
step)
	running || fail "no machine is running: vm.sh start"
	step "${1:?which step?}"
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
