#!/usr/bin/env bash
#
# run.sh [TEST FLAGS]: run the chart in a Kubernetes cluster with two nodes, or CLUSTER_NODES, on this machine.
# Kubernetes, containerd, CoreDNS and the network plugins are built from Go modules, which takes ten minutes or
# more the first time. Needs root, a built bin/glasshouse, and the programs of setup.sh.
#
# All processes are in namespaces of their own, and end with this script. The cluster has only its own network.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "the cluster needs root" >&2; exit 1; }
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -trimpath"

dir=$(mktemp -d /tmp/ghXXXX) # short: unix sockets have at most 108 characters
chmod 711 "$dir"
group=cluster.${dir##*/}
cleanup() {
	status=$?
	# All processes have ended, so the cgroups are empty.
	find /sys/fs/cgroup -depth -type d -path "*/$group*" -exec rmdir {} + || status=1
	rm -rf "$dir"
	exit $status
}
trap cleanup EXIT

say() { printf '%4ds  %s\n' "$SECONDS" "$*"; }
bin=$dir/bin
mkdir "$bin"
say "build Kubernetes"
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
go build -tags cluster -ldflags "-w -X k8s.io/component-base/version.gitVersion=$version" -o "$bin/kubernetes" ./cluster
for part in etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet; do
	ln -s kubernetes "$bin/$part"
done
say "build containerd, CoreDNS and the network plugins"
GOBIN=$bin go install -ldflags=-w \
	github.com/containerd/containerd/v2/cmd/{containerd,containerd-shim-runc-v2,ctr}@v2.4.2
GOBIN=$bin go install -ldflags=-w github.com/coredns/coredns@v1.15.0
GOBIN=$bin go install -ldflags=-w github.com/containernetworking/plugins/plugins/{main/bridge,main/loopback,ipam/host-local}@v1.10.0

# The next version changes the schema of the shared database.
say "build the image, and the program of the next version"
(cd .. && go run ./packaging/image -version 1 bin/glasshouse "$dir" >/dev/null)
migration=$(ls ../store/migrations | tail -n 1)
printf -v next '%04d_next.sql' $((10#${migration%%_*} + 1))
echo "ALTER TABLE nodes ADD COLUMN next BIGINT NOT NULL DEFAULT 0;" >"$dir/next.sql"
echo "{\"Replace\": {\"$(realpath ../store/migrations)/$next\": \"$dir/next.sql\"}}" >"$dir/overlay.json"
(cd .. && go build -overlay "$dir/overlay.json" -ldflags '-s -w -X glasshouse/cli.version=next' -o "$dir/next" ./cmd/glasshouse)
go test -c -tags cluster -o "$dir/test" .
mkdir "$dir/programs"
export GLASSHOUSE_BACKENDTEST_BIN=$dir/programs # see backendtest.Prebuilt
(cd .. && go build -o "$dir/programs" ./jail/backend/backendtest/probe)

say "start the cluster"
export CLUSTER_DIR=$dir CLUSTER_GROUP=$group TMPDIR=$dir
unshare --mount --propagation private --net --pid --fork --kill-child --mount-proc --ipc --uts \
	"$dir/test" -test.run '^TestCluster$' -test.v -test.timeout 30m "$@"
