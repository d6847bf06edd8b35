#!/bin/bash
# Tests make up in a bare Debian without Go: newcomer.sh TREE SOURCE. TREE is a Debian with
# make, SOURCE is a copy of the repository. It runs as root in a mount namespace of its own:
#   unshare --mount --propagation private newcomer.sh TREE SOURCE
# The daemon runs in the tree, on this host's kernel, devices and network. Its data directory
# has a name of its own, because this host may have a daemon on the usual one.
set -euo pipefail
tree=$1
source=$2
data=${NEWCOMER_DATA:-/var/lib/newcomer-$$}
port=$((20000 + $$ % 10000))
fail() { echo "newcomer: $*" >&2; exit 1; }

mount --bind "$tree" "$tree"
for dir in proc sys dev; do
	mount --rbind "/$dir" "$tree/$dir"
done
mount -t tmpfs tmpfs "$tree/run"
# The fetched Go compiles into this host's cache, so that the next tree does not take minutes again.
cache=$(go env GOCACHE)
mkdir -p "$cache" "$tree/root/.cache/go-build"
mount --bind "$cache" "$tree/root/.cache/go-build"
mount -t tmpfs tmpfs "$tree/dev/shm"
# The network of this host: names, certificate authorities, proxies.
cat /etc/resolv.conf >"$tree/etc/resolv.conf"
cat /etc/hosts >"$tree/etc/hosts"
cp "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "$tree/host.crt"
apt-config dump | grep -iE '^acquire::(https?::proxy|check-valid-until)' >"$tree/etc/apt/apt.conf.d/99host" || true
cp -a "$source" "$tree/src"

network=$(env | grep -iE '^(https?_proxy|no_proxy)=' || true)
mapfile -t network <<<"$network"
goproxy=$(go env GOPROXY)
gosumdb=$(go env GOSUMDB)
npm=("NPM_CONFIG_REGISTRY=$(npm config get registry 2>/dev/null || echo https://registry.npmjs.org/)" NODE_EXTRA_CA_CERTS=/host.crt)

# A process in a chroot may not create user namespaces (user_namespaces(7)), which jails need. So
# the tree becomes the root of the mount namespace.
mkdir -p "$tree/host"
cd "$tree"
pivot_root . host
cd /
umount --lazy /host
guest() { # with background=yes, a background job is the command itself, which can be killed
	${background:+exec} env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb \
		${network[0]:+"${network[@]}"} SSL_CERT_FILE=/host.crt \
		GOPROXY="$goproxy" GOSUMDB="$gosumdb" "$@"
}
gh() { guest env GLASSHOUSE_DATA=$data /src/bin/glasshouse "$@"; }
up() { guest make -s -C /src up DATA=$data LISTEN=127.0.0.1:$port 2>&1 | tee /up.out; }

finish() {
	gh jail ls -q 2>/dev/null | while read -r jail; do
		gh jail stop "$jail" </dev/null >/dev/null 2>&1 || true
		gh jail rm "$jail" </dev/null >/dev/null 2>&1 || true
	done || true
	guest make -s -C /src down DATA=$data || true
}
trap finish EXIT

! guest sh -c 'command -v go' || fail "the tree has Go: this tests nothing"
guest apt-get -q update >/dev/null # a new machine has its package lists

began=$SECONDS
up || fail "make up: exit $?"
echo "newcomer: make up took $((SECONDS - began)) s"
grep -qE '^go +working' /up.out || fail "the download of Go is not announced"
grep -qE '^go +fetched .* \([0-9]+ s\)$' /up.out || fail "no line says that Go was fetched, and how long it took"
grep -qE '^packages +installed .* \([0-9]+ s\)$' /up.out || fail "no line says that packages were installed"
grep -qE '^build +built .* \([0-9]+ s\)$' /up.out || fail "no line says that the program was built"
grep -qE '^rootfs +ready .* \([0-9]+ s\)$' /up.out || fail "no line says that the root filesystem is ready"
grep -q '^hello from ' /up.out || fail "the demo jail printed nothing"
grep -q '^Glasshouse is up' /up.out || fail "make up did not finish"
gh health || fail "no daemon answers"
[ "$(gh run --rm --no-workspace -- sh -c 'echo $((6 * 7))' 2>/dev/null)" = 42 ] || fail "no further jail runs"
gh doctor || true

# The first change: made in a jail, reviewed, applied.
guest sh -c 'mkdir /project && echo "items // size" >/project/pages.py'
gh_in() { guest env -C /project GLASSHOUSE_DATA=$data /src/bin/glasshouse "$@" </dev/null; }
gh_in run --name first -- sed -i 's|items // size|-(-items // size)|' pages.py || fail "run: exit $?"
grep -qx 'items // size' /project/pages.py || fail "the file changed before apply"
gh_in diff first /pages.py --workspace --unified | grep -qx '+-(-items // size)' || fail "diff does not show the change"
gh_in apply --rm first || fail "apply: exit $?"
grep -qx -- '-(-items // size)' /project/pages.py || fail "apply did not change the file"
# The key of a vendor is granted without a configuration.
guest sh -c 'echo key' | gh secret set VENDOR_KEY || fail "secret set: exit $?"
gh secret grant VENDOR_KEY --models anthropic || fail "secret grant: exit $?"
gh secret rm --force VENDOR_KEY || fail "secret rm: exit $?"

# The first change of a real agent, which npm installs. A scripted model answers it.
began=$SECONDS
guest apt-get -q install --yes npm git python3 >/apt.out 2>&1 || { cat /apt.out; fail "apt-get install npm: exit $?"; }
echo "newcomer: the installation of npm took $((SECONDS - began)) s"
guest make -s -C /src down DATA=$data || fail "make down: exit $?"
cat >/script.yaml <<-'END'
	conversations:
	  - when: {user: failing test}
	    turns:
	      - calls:
	          - {tool: Bash, arguments: {command: "sed -i 's|items // size|-(-items // size)|' pages.py", description: Round up}}
	      - text: It rounds up now.
END
background=yes guest /src/bin/glasshouse mock-llm --listen 127.0.0.1:$((port + 1)) --script /script.yaml >/model.out 2>&1 &
started=($!)
background=yes guest env "${npm[@]}" GLASSHOUSE_DATA=$data GLASSHOUSE_LISTEN=127.0.0.1:$port \
	GLASSHOUSE_MODELS=http://127.0.0.1:$((port + 1)) /src/bin/glasshouse serve >/serve.out 2>&1 &
started+=($!)
for _ in $(seq 100); do gh health 2>/dev/null && break; sleep 0.2; done
guest sh -c 'cd /project && echo "items // size" >pages.py && git init -q . && git add . &&
	git -c user.name=Ada -c user.email=ada@example.com commit -q -m "Count pages"'
began=$SECONDS
gh_in goal "Fix the failing test" --agent claude -C . || { cat /model.out /serve.out; fail "goal: exit $?"; }
echo "newcomer: the run of Claude Code, with its installation, took $((SECONDS - began)) s"
grep -qx 'items // size' /project/pages.py || fail "the agent changed the file before apply"
gh_in diff claude --workspace --unified | grep -qx '+-(-items // size)' || fail "diff does not show the change of the agent"
gh_in apply --rm claude || fail "apply of the agent's change: exit $?"
grep -qx -- '-(-items // size)' /project/pages.py || fail "apply did not change the file"
kill "${started[@]}"
wait "${started[@]}" || true
! gh health 2>/dev/null || fail "the daemon of the agent run did not stop"

began=$SECONDS
up || fail "make up again: exit $?"
echo "newcomer: make up took $((SECONDS - began)) s the second time"
! grep -E '^(go|packages|criu|rootfs) .*(fetched|installed)' /up.out || fail "the second make up fetched something again"
guest make -s -C /src build DATA=$data || fail "make build does not find the fetched Go"
echo "newcomer: done"
