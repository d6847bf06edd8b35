#!/usr/bin/env bash
#
# node.sh NAME ADDRESS: the first process of a node of the cluster, in namespaces of its own. It starts
# containerd, imports the images, and starts the kubelet and the proxy. Their configuration is in
# $CLUSTER_DIR/NAME.
set -euo pipefail
name=$1 address=$2
dir=$CLUSTER_DIR/$name
cgroups=/sys/fs/cgroup

# The node's cgroups are below one of their own. In a cgroup namespace that is the root.
enter_cgroups() {
	local c g
	if [ -e $cgroups/cgroup.controllers ]; then
		g=$cgroups/$CLUSTER_GROUP
		mkdir -p "$g/$name"
		for c in $cgroups "$g"; do
			sed 's/\</+/g' "$c/cgroup.controllers" >"$c/cgroup.subtree_control"
		done
		echo $$ >"$g/$name/cgroup.procs"
		return
	fi
	for c in $cgroups/*/; do
		g=$c$CLUSTER_GROUP
		mkdir -p "$g/$name"
		if [ -e "$g/cpuset.cpus" ]; then
			cat "${c}cpuset.cpus" >"$g/cpuset.cpus" && cat "${c}cpuset.mems" >"$g/cpuset.mems"
			cat "${c}cpuset.cpus" >"$g/$name/cpuset.cpus" && cat "${c}cpuset.mems" >"$g/$name/cpuset.mems"
		fi
		echo $$ >"$g/$name/cgroup.procs"
	done
}

# mount_cgroups LIST: mount the hierarchies of a list in the form of /proc/mounts. In a cgroup namespace they
# begin with the node's cgroup.
mount_cgroups() {
	local path type options
	if ! grep -q ' cgroup ' <<<"$1"; then
		mount -t cgroup2 cgroup2 $cgroups
		mkdir $cgroups/init
		echo $$ >$cgroups/init/cgroup.procs # a cgroup with processes distributes nothing to others
		return
	fi
	mount -t tmpfs -o mode=755 tmpfs $cgroups
	while read -r _ path type options _; do
		mkdir "$path"
		options=$(sed -E 's/\b(rw|relatime|nosuid|nodev|noexec|nsdelegate|memory_recursiveprot)\b,?//g; s/,$//; s/^name=/none,&/' <<<"$options")
		mount -t "$type" -o "${options:-rw}" cgroup "$path"
	done <<<"$1"
}

if [ "${3-}" != inside ]; then
	CGROUPS=$(awk '$3 ~ /^cgroup/' /proc/mounts)
	export CGROUPS
	enter_cgroups
	exec ip netns exec "$name" unshare --mount --propagation private --pid --fork --kill-child --mount-proc \
		--uts --ipc --cgroup "$0" "$name" "$address" inside
fi

hostname "$name"
mount_cgroups "$CGROUPS" # ip netns exec has mounted another /sys
mount -t bpf bpf /sys/fs/bpf
mount -t tracefs tracefs /sys/kernel/tracing
for d in /run /var/lib /var/log; do
	mount -t tmpfs -o mode=755 tmpfs "$d"
done
mkdir -p /var/lib/glasshouse /run/lock
chmod 711 /var/lib/glasshouse
mkdir -p /var/lib/volumes/data
sysctl -qw net.ipv4.ip_forward=1

export PATH=$CLUSTER_DIR/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
containerd --config "$dir/containerd.toml" >"$dir/containerd.log" 2>&1 &
until ctr -a /run/containerd/containerd.sock version >/dev/null 2>&1; do sleep 0.1; done
for image in "$CLUSTER_DIR"/images/*.tar; do
	ctr -a /run/containerd/containerd.sock -n k8s.io images import "$image" >>"$dir/import.log" 2>&1
done
kubelet --config "$dir/kubelet.yaml" --kubeconfig "$dir/kubeconfig" --hostname-override "$name" --node-ip "$address" \
	--root-dir /var/lib/kubelet >"$dir/kubelet.log" 2>&1 &
kube-proxy --proxy-mode nftables --kubeconfig "$CLUSTER_DIR/admin/kubeconfig" --hostname-override "$name" \
	--cluster-cidr 10.98.0.0/16 >"$dir/proxy.log" 2>&1 &
wait
