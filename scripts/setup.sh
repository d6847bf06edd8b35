#!/usr/bin/env bash
#
# setup.sh DATA [up|tests|criu|microvm]: install the missing programs that Glasshouse needs. With up, leave
# out gVisor, which takes minutes to build and which jails do not need. With tests, also install
# programs that only tests need. With criu, only fetch CRIU into DATA/tools. With microvm, also install
# QEMU, and fetch a kernel for virtual machines into DATA/tools, which tests need as well.
#
# Packages come from the machine's apt. If a version is too old for the running kernel (CRIU) or in
# general (runsc), a newer one is fetched from the next Debian release into DATA/tools, not into the
# system. Existing programs are not changed, so a second run takes about a second. No service is
# enabled and no configuration file is changed.
#
# In a clone of the repository it also fetches the Go toolchain that go.mod names, from the module
# proxy of the user's configuration, if no installed Go fits.
#
# The output has one line for each program: name, found, installed or fetched, and version. A step
# that can take long has a line before it, its last message every ten seconds, and its duration.

set -euo pipefail
export LC_ALL=C.UTF-8
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

RELEASE=trixie               # release of newer packages
CRIU_RELEASE=${CRIU_RELEASE:-forky} # the first release with CRIU 4.2
CRIU_SINCE=4.1               # older ones lack required features
CRIU_SINCE_6_11=4.2          # older ones copy the state of getrandom(2) into every branch; from Linux 6.16 on they fail at sockets
RUNSC_SINCE=20240101         # older ones lack required features
RUNSC_WRITES=20260905        # older ones cannot checkpoint running jails
RUNSC_MODULE=gvisor.dev/gvisor/runsc@v0.0.0-20260905035102-160fafc42237
GO_SINCE=1.21                # older ones cannot fetch the toolchain of another version
GO_MOD=$(dirname "${BASH_SOURCE[0]}")/../go.mod # a package has none: it is not built there

# A command or file of each package, and the package. Those marked with ? are optional.
NEEDED='
runc        runc
crun        crun            ?
bwrap       bubblewrap
nft         nftables
iptables    iptables
ip          iproute2
mmdebstrap  mmdebstrap
mkfs.ext4   e2fsprogs
newuidmap   uidmap
patchelf    patchelf
/etc/ssl/certs/ca-certificates.crt             ca-certificates
/usr/share/keyrings/debian-archive-keyring.gpg debian-archive-keyring
'
# The browser for tests of the UI, which is large, and the programs that check packet captures and
# disk images and sign releases.
TESTS='
chromium    chromium        ?
tshark      tshark          ?
ssh-keygen  openssh-client  ?
qemu-io     qemu-utils      ?
'

# Virtual machines for jails.
MICROVM='
qemu-system-x86_64 qemu-system-x86 ?
'

STEP= # the name of the step that has begun

# say NAME STATE [TEXT]: one line of output, with the duration of the step if NAME began one.
say() {
    local took=
    if [ -n "$1" ] && [ "$1" = "$STEP" ]; then
        took=" ($((SECONDS - STEP_BEGAN)) s)"
        STEP=
    fi
    printf '%-23s %-10s %s\n' "$1" "$2" "${3-}$took"
}

# begin NAME TEXT: announce a step that can take long.
begin() {
    STEP=
    say "$1" working "$2"
    STEP=$1 STEP_BEGAN=$SECONDS
}

fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }
root() { [ "$(id -u)" = 0 ]; }
have() { case $1 in /*) [ -e "$1" ] ;; *) command -v "$1" >/dev/null ;; esac; }

# quietly COMMAND...: show its last message every ten seconds, and its output only if it fails.
quietly() {
    local log=$TOOLS/setup.log status=0
    : >"$log"
    exec 7> >(messages "$log")
    local messages=$! # it ends when descriptor 7 is closed, which the command does not inherit
    "$@" >"$log" 2>&1 7>&- || status=$?
    exec 7>&-
    wait $messages
    [ $status = 0 ] || tail -n 20 "$log" >&2
    return $status
}

# messages LOG: print the last line of LOG every ten seconds until standard input ends.
messages() {
    local status line began=$SECONDS
    while :; do
        status=0
        read -r -t 10 || status=$?
        [ $status -gt 128 ] || return 0 # not a timeout
        line=$(tail -c 1000 "$1" | tr '\r' '\n' | sed '/^ *$/d' | tail -n 1 | cut -c 1-80)
        say "" "$((SECONDS - began)) s" "$line"
    done
}

apt_installed() { dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed; }
apt_version()   { dpkg-query -W -f '${Version}' "$1" 2>/dev/null || true; }
apt_candidate() { apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: //p' | grep -vx '(none)' || true; }

# apt_install PACKAGE...
apt_install() {
    DEBIAN_FRONTEND=noninteractive quietly apt-get install -y --no-install-recommends "$@"
}

# packages: install the missing packages of $NEEDED with apt.
packages() {
    local file name optional missing=() wanted=()
    while read -r file name optional; do
        [ -n "$file" ] || continue
        if have "$file"; then
            say "$name" found "$(apt_version "$name")"
        elif [ -n "$optional" ]; then
            wanted+=("$name")
        else
            missing+=("$name")
        fi
    done <<<"$NEEDED"

    if [ ${#missing[@]} -gt 0 ]; then
        have apt-get || fail "missing: ${missing[*]}. This is no Debian or Ubuntu: install them with this system's own tools and run again"
        root || fail "missing: ${missing[*]}. Run: sudo apt-get install --no-install-recommends ${missing[*]}"
        begin packages "apt installs ${missing[*]}"
        quietly apt-get update || fail "apt-get update failed: check the network and /etc/apt"
        apt_install "${missing[@]}" || fail "apt-get install ${missing[*]} failed: see above"
        say packages installed "${#missing[@]}, and what they depend on"
    fi
    for name in "${wanted[@]}"; do
        if ! have apt-get || ! root; then
            say "$name" missing "not needed; to have it: sudo apt-get install $name"
        elif { [ -n "$(apt_candidate "$name")" ] || quietly apt-get update; } && apt_install "$name"; then
            missing+=("$name")
        else
            say "$name" missing "not needed, and apt has none"
        fi
    done
    for name in "${missing[@]}"; do
        say "$name" installed "$(apt_version "$name")"
    done
}

# mirror: the Debian mirror of this machine, or the default one.
mirror() {
    local uri
    # shellcheck disable=SC2016 # apt's variables, not the shell's
    uri=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
        sed -nE 's|^(https?://[^ ]*/debian)/? [a-z]+ main$|\1|p' | head -n 1) || true
    echo "${uri:-http://deb.debian.org/debian}"
}

# private_apt COMMAND...: apt-get with its own sources, lists, cache and an empty list of installed
# packages, so that it knows only one release.
private_apt() {
    local home=$TOOLS/apt
    apt-get -q \
        -o Dir::Etc::SourceList="$home/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null \
        -o Dir::State::Lists="$home/lists" -o Dir::State::Status="$home/status" \
        -o Dir::Cache="$home/cache" \
        -o Acquire::Languages=none -o APT::Sandbox::User="$(id -un)" "$@"
}

# private_update RELEASE: update the package lists of the release, once per run.
private_update() {
    local home=$TOOLS/apt keys=/usr/share/keyrings/debian-archive-keyring.gpg
    [ "${PRIVATE_UPDATED-}" != "$1" ] || return 0
    have apt-get || { echo "apt-get is missing" >&2; return 1; }
    mkdir -p "$home/lists/partial" "$home/cache/archives/partial"
    : >"$home/status"
    echo "deb [signed-by=$keys] $(mirror) $1 main" >"$home/sources.list"
    quietly private_apt update && PRIVATE_UPDATED=$1
}

# unpack RELEASE DIR PACKAGE...: fetch packages of a release and unpack them
# under DIR.
unpack() {
    local release=$1 into=$2 deb debs=$TOOLS/apt/debs
    shift 2
    private_update "$release" || return 1
    rm -rf "$debs"
    mkdir -p "$debs" "$into"
    (cd "$debs" && quietly private_apt download "$@") || return 1
    for deb in "$debs"/*.deb; do
        dpkg-deb -x "$deb" "$into" || return 1
    done
    rm -rf "$debs"
}

# at_least VERSION WANTED: whether VERSION is WANTED or newer.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# criu_fits FILE: whether this CRIU can work with the running kernel.
criu_fits() {
    local since=$CRIU_SINCE
    ! at_least "$(uname -r)" 6.11 || since=$CRIU_SINCE_6_11
    have "$1" && at_least "$(criu_version "$1")" "$since" && "$1" check >/dev/null 2>&1
}

criu_version() { "$1" --version 2>/dev/null | sed -n 's/^Version: *//p' | head -n 1; }

# criu: use the distribution's CRIU if it supports the kernel, or else fetch one.
criu() {
    local ours=$TOOLS/bin/criu theirs
    if ! root; then
        say criu skipped "snapshots need root"
        return
    fi
    if criu_fits "$ours"; then
        say criu found "$(criu_version "$ours"), $ours"
        return
    fi
    begin criu "no CRIU for kernel $(uname -r) yet; apt looks for one"
    if ! type -P criu >/dev/null && [ -n "$(apt_candidate criu)" ]; then
        apt_install criu || true
    fi
    theirs=$(type -P criu || true)
    if [ -n "$theirs" ] && criu_fits "$theirs"; then
        say criu found "$(criu_version "$theirs"), $theirs"
        return
    fi
    if criu_fetch && criu_fits "$ours"; then
        say criu fetched "$(criu_version "$ours") of Debian $CRIU_RELEASE, $ours"
        return
    fi
    say criu missing "no CRIU for kernel $(uname -r): snapshots of memory are not available. Try: criu check"
}

# criu_fetch: unpack CRIU with its libraries, including the C library, and set its RPATH to them.
# RUNPATH does not work, because libraries do not inherit it (ld.so(8)).
criu_fetch() {
    local dir=$TOOLS/criu new=$TOOLS/criu.new bin lib loader packages
    rm -rf "$new"
    private_update "$CRIU_RELEASE" || return 1
    packages=$(private_apt install --simulate --no-install-recommends criu | sed -n 's/^Inst \([^ ]*\) .*/\1/p') || return 1
    # shellcheck disable=SC2086 # a list of words
    unpack "$CRIU_RELEASE" "$new/root" criu $packages || return 1
    mkdir -p "$new/lib"
    # Only libraries, not the modules in subdirectories.
    find "$new/root" -regextype egrep -regex '.*/lib/[^/]+-linux-gnu[^/]*/[^/]+\.so(\.[^/]*)?' \
        -exec cp -a -t "$new/lib" {} + || return 1
    bin=$(find "$new/root" -type f -path '*bin/criu' | head -n 1)
    loader=$(find "$new/lib" -name 'ld-linux*.so*' | head -n 1)
    [ -n "$bin" ] && [ -n "$loader" ] || return 1
    lib=$dir/lib
    cp "$bin" "$new/criu"
    patchelf --force-rpath --set-rpath "$lib" --set-interpreter "$lib/$(basename "$loader")" "$new/criu" || return 1
    rm -rf "$new/root" "$dir"
    mv "$new" "$dir"
    ln -sfn ../criu/criu "$TOOLS/bin/criu"
}

# runsc_fits FILE [SINCE]: whether this runsc is new enough.
runsc_fits() {
    local date
    have "$1" || return 1
    date=$(runsc_version "$1" | grep -oE '20[0-9]{6}' | head -n 1) || true
    [ -z "$date" ] || [ "$date" -ge "${2:-$RUNSC_SINCE}" ]
}

# runsc_version FILE: its version, or the version of the Go module that it was built from.
runsc_version() {
    local version
    version=$("$1" --version 2>/dev/null | sed -n 's/^runsc version *//p')
    if [ "$version" = VERSION_MISSING ] && have go; then
        version=$(go version -m "$1" 2>/dev/null | awk '$1 == "mod" { print $3 }')
    fi
    printf '%s\n' "$version"
}

# runsc: build one that can checkpoint running jails with Go. Without Go, use apt's if it is new
# enough, or else that of the next release.
runsc() {
    local ours=$TOOLS/bin/runsc theirs date
    if runsc_fits "$ours" "$RUNSC_WRITES"; then
        say runsc found "$(runsc_version "$ours"), $ours"
        return
    fi
    begin runsc "no gVisor that checkpoints running jails yet"
    if runsc_build && runsc_fits "$ours" "$RUNSC_WRITES"; then
        say runsc built "$RUNSC_MODULE, $ours"
        return
    fi
    if runsc_fits "$ours"; then
        say runsc found "$(runsc_version "$ours"), $ours; snapshots of running jails need $RUNSC_WRITES"
        return
    fi
    date=$(apt_candidate runsc | grep -oE '20[0-9]{6}' || true)
    if ! type -P runsc >/dev/null && root && [ "${date:-0}" -ge "$RUNSC_SINCE" ]; then
        apt_install runsc || true
    fi
    theirs=$(type -P runsc || true)
    if [ -n "$theirs" ] && runsc_fits "$theirs"; then
        say runsc found "$(runsc_version "$theirs"), $theirs"
        return
    fi
    if runsc_fetch && runsc_fits "$ours"; then
        say runsc fetched "$(runsc_version "$ours") of Debian $RELEASE, $ours"
        return
    fi
    say runsc missing "not needed: jails run on runc. To have it, see https://gvisor.dev/docs/user_guide/install"
}

runsc_fetch() {
    local new=$TOOLS/runsc.new bin
    rm -rf "$new"
    unpack "$RELEASE" "$new" runsc || return 1
    bin=$(find "$new" -type f -path '*bin/runsc' | head -n 1)
    [ -n "$bin" ] || return 1
    mv "$bin" "$TOOLS/bin/runsc"
    rm -rf "$new"
}

runsc_build() {
    have go || return 1
    say "" "" "building it with Go, which takes minutes"
    GOBIN=$TOOLS/bin GOFLAGS=-trimpath CGO_ENABLED=0 quietly go install "$RUNSC_MODULE"
}

# golang: use an installed Go that fits, or else fetch the version of go.mod. The go command that
# fetches it verifies it with the checksum database (https://go.dev/ref/mod#checksum-database).
golang() {
    local ours=$TOOLS/bin/go wanted file go="" version root
    [ -f "$GO_MOD" ] || return 0
    wanted=$(sed -n 's/^go //p' "$GO_MOD")
    while read -r file; do
        version=$(go_version "$file") || continue
        if at_least "$version" "$wanted"; then
            [ "$file" = "$ours" ] || rm -f "$ours" "$TOOLS/bin/gofmt"
            say go found "$version, $file"
            return
        fi
        ! at_least "$version" "$GO_SINCE" || go=$file
    done < <(type -aP go | grep -vxF "$ours" || true; echo "$ours")

    begin go "no Go $wanted or newer yet; fetching it"
    if [ -z "$go" ]; then
        say "" "" "the go command of Debian $RELEASE, to fetch the other"
        go_fetch || fail "cannot fetch Debian's go command: see above. Or install Go $wanted or newer: https://go.dev/doc/install"
        go=$TOOLS/go/usr/lib/go/bin/go
    fi
    say "" "" "Go $wanted, from the module proxy"
    quietly env GOTOOLCHAIN="go$wanted" "$go" version ||
        fail "cannot fetch Go $wanted from the module proxy: see above. Check the network, or set GOPROXY to a proxy that you can reach"
    root=$(GOTOOLCHAIN="go$wanted" "$go" env GOROOT)
    ln -sfn "$root/bin/go" "$ours"
    ln -sfn "$root/bin/gofmt" "$TOOLS/bin/gofmt"
    rm -rf "$TOOLS/go"
    say go fetched "$wanted, $root"
}

# go_version GO: the version of this go command itself, not of a toolchain that it would switch to.
go_version() {
    local version
    version=$(GOTOOLCHAIN=local "$1" version 2>/dev/null) || return 1
    expr "$version" : '.* go\([0-9.]*\)'
}

# go_fetch: unpack the go command of the release into $TOOLS/go, without the system's knowledge.
go_fetch() {
    local packages
    rm -rf "$TOOLS/go"
    private_update "$RELEASE" || return 1
    packages=$(private_apt install --simulate --no-install-recommends golang-go | sed -n 's/^Inst \(golang-[^ ]*\) .*/\1/p') || return 1
    # shellcheck disable=SC2086 # a list of words
    unpack "$RELEASE" "$TOOLS/go" $packages
}

# kernel: fetch a kernel for virtual machines, with its modules.
kernel() {
    local into=$TOOLS/kernel package image
    image=$(find "$into/boot" -name 'vmlinuz-*-cloud-*' 2>/dev/null | sort -V | tail -n 1) || true
    if [ -n "$image" ]; then
        say kernel found "$image"
        return
    fi
    if [ "$(uname -m)" != x86_64 ]; then
        say kernel skipped "virtual machines are supported on amd64 only"
        return
    fi
    begin kernel "apt fetches the kernel of virtual machines"
    if ! private_update "$RELEASE" || ! package=$(private_apt install --simulate --no-install-recommends linux-image-cloud-amd64 | sed -n 's/^Inst \(linux-image-[0-9][^ ]*\) .*/\1/p' | head -n 1) ||
        [ -z "$package" ] || ! unpack "$RELEASE" "$into.part" "$package"; then
        rm -rf "$into.part"
        say kernel missing "not needed, and apt has none"
        return
    fi
    rm -rf "$into" "$into.part/usr/share"
    mv "$into.part" "$into"
    say kernel fetched "$package of Debian $RELEASE"
}

main() {
    case ${2-} in
    "") ;;
    tests) NEEDED+=$TESTS$MICROVM ;;
    microvm) NEEDED+=$MICROVM ;;
    up | criu) ;;
    *) set -- ;;
    esac
    if [ $# -lt 1 ] || [ $# -gt 2 ] || [ -z "$1" ]; then
        echo "usage: $0 DATA_DIRECTORY [up|tests|criu|microvm]" >&2
        exit 2
    fi
    [ "$(uname -s)" = Linux ] || fail "Glasshouse runs on Linux"
    [ -d "$1" ] || install -d -m 0711 "$1" || fail "cannot create $1"
    TOOLS=$(cd "$1" && pwd)/tools
    mkdir -p "$TOOLS/bin" || fail "cannot write to $1"

    exec 9>"$TOOLS/.lock"
    flock 9 # concurrent runs would interfere with each other

    if [ "${2-}" = criu ]; then
        [ -x "$TOOLS/bin/criu" ] || criu_fetch || fail "cannot fetch CRIU: see above"
    else
        packages
        golang
        PATH=$TOOLS/bin:$PATH
        criu
        case ${2-} in tests | microvm) kernel ;; esac
        if [ "${2-}" != up ] && [ "${2-}" != microvm ]; then
            runsc
        elif ! have runsc; then
            say runsc skipped "gVisor is optional; make setup builds it"
        fi
    fi
    rm -rf "$TOOLS/setup.log" "$TOOLS/apt"
}

# Tests source this file for its functions.
[ "${BASH_SOURCE[0]}" != "$0" ] || main "$@"
