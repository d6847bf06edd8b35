#!/bin/sh
# Installs Glasshouse from the files of a release. usage() describes it. It needs only a POSIX
# shell and the programs of a minimal Linux system, and curl or wget for a release on a server.
set -eu
umask 022
export LC_ALL=C

# The public key of the release, from scripts/release.sh. Empty if the release is not signed.
RELEASE_KEY=''

usage() {
	cat <<'END'
usage: install.sh [OPTION...] [SOURCE]
       install.sh --uninstall [--prefix DIR]

Install Glasshouse from a release. SOURCE is a directory or URL with the files of the
release (default: the directory of install.sh). An installed version is replaced; its
configuration and data stay. As root in /usr/local, the service is installed and
started if systemd is running.

  --prefix DIR       installation directory (default /usr/local, without root ~/.local)
  --version VERSION  version to install, if SOURCE has several
  --key FILE         SSH public key that must have signed the release
  --no-service       do not install the service
  --force            install also next to a package, or over files of unknown origin
  --uninstall        remove the installation; configuration and data stay
  --help             this text
END
}

say() { printf '%s\n' "$*"; }
fail() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
root() { [ "$(id -u)" = 0 ]; }

UNIT=/etc/systemd/system/glasshouse.service
CONFIG=/etc/glasshouse/config.yaml

main() {
	prefix='' source='' version='' key=$RELEASE_KEY chosen='' service=yes force='' uninstall=''
	while [ $# -gt 0 ]; do
		case $1 in
		--prefix | --version | --key) [ $# -gt 1 ] || fail "$1 needs a value" ;;
		esac
		case $1 in
		--prefix) prefix=$2; shift ;;
		--version) version=$2; shift ;;
		--key)
			key=$(cat "$2") || exit 1
			[ -n "$key" ] || fail "$2 is empty"
			chosen=yes
			shift
			;;
		--no-service) service='' ;;
		--force) force=yes ;;
		--uninstall) uninstall=yes ;;
		--help | -h) usage; exit ;;
		-*) usage >&2; fail "unknown option $1" ;;
		*) [ -z "$source" ] || fail "more than one SOURCE"; source=$1 ;;
		esac
		shift
	done
	if [ -z "$prefix" ]; then
		prefix=/usr/local
		root || prefix=${HOME:?HOME is not set: pass --prefix}/.local
	fi
	case $prefix in
	/*) ;;
	*) prefix=$(pwd)/$prefix ;;
	esac
	manifest=$prefix/lib/glasshouse/installed

	if [ -n "$uninstall" ]; then
		remove
		return
	fi
	# An installation in another directory leaves the machine's service alone.
	if ! root || [ "$prefix" != /usr/local ] || [ ! -d /run/systemd/system ]; then
		service=''
	fi
	refuse_foreign
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	trap 'exit 130' INT TERM
	find_files
	install_files
	[ -z "$service" ] || start_service
	finish
}

# refuse_foreign: do not replace files that install.sh has not installed.
refuse_foreign() {
	[ -z "$force" ] || return 0
	if [ "$(dpkg-query -W -f '${db:Status-Status}' glasshouse 2>/dev/null)" = installed ]; then
		fail "the Debian package glasshouse $(dpkg-query -W -f '${Version}' glasshouse) is installed. Upgrade it with: apt install ./glasshouse_*.deb
Remove it with: apt remove glasshouse
To install next to it, pass --force"
	fi
	if have rpm && rpm -q glasshouse >/dev/null 2>&1; then
		fail "the package $(rpm -q glasshouse) is installed. Remove it, or pass --force to install next to it"
	fi
	if [ -e "$prefix/bin/glasshouse" ] && [ ! -e "$manifest" ]; then
		fail "$prefix/bin/glasshouse was not installed by install.sh. Remove it, or pass --force to replace it"
	fi
}

# find_files sets $files to a directory with the files of an archive, verified unless the user has
# unpacked it.
find_files() {
	here=''
	case $0 in
	*/*) here=$(cd "$(dirname "$0")" && pwd) ;;
	esac
	if [ -z "$source" ] && [ -n "$here" ] && [ -x "$here/bin/glasshouse" ]; then
		[ -z "$chosen" ] || fail "cannot check an unpacked archive: --key needs the files of the release"
		say "checksum    not checked: this is an unpacked archive"
		files=$here
		return
	fi
	if [ -z "$source" ]; then
		[ -n "$here" ] && [ -e "$here/SHA256SUMS" ] || { usage >&2; fail "name the directory or URL of a release"; }
		source=$here
	fi
	[ "$(uname -s)" = Linux ] || fail "Glasshouse runs on Linux"
	case $(uname -m) in
	x86_64) arch=amd64 ;;
	aarch64 | arm64) arch=arm64 ;;
	*) fail "unsupported architecture $(uname -m): Glasshouse runs on amd64 and arm64" ;;
	esac

	fetch SHA256SUMS || fail "$source has no SHA256SUMS, or cannot be reached"
	check_signature
	versions=$(sed -n "s/^[0-9a-f]\{64\}  glasshouse_\([^/]*\)_linux_$arch\.tar\.gz\$/\1/p" "$work/SHA256SUMS")
	[ -n "$versions" ] || fail "$source has no archive for $arch"
	if [ -z "$version" ]; then
		[ "$(printf '%s\n' "$versions" | wc -l)" = 1 ] || fail "$source has several versions. Pass --version with one of:
$versions"
		version=$versions
	fi
	printf '%s\n' "$versions" | grep -qxF -e "$version" || fail "$source has no version $version for $arch; it has: $versions"

	name=glasshouse_${version}_linux_$arch
	fetch "$name.tar.gz" || fail "cannot fetch $name.tar.gz from $source"
	want=$(grep -F "  $name.tar.gz" "$work/SHA256SUMS" | cut -d' ' -f1)
	got=$(sha256sum <"$work/$name.tar.gz" | cut -d' ' -f1)
	[ "$got" = "$want" ] || fail "wrong checksum of $name.tar.gz: $got, not $want as in SHA256SUMS. Nothing was installed"
	say "checksum    ok, $name.tar.gz"
	tar -xzf "$work/$name.tar.gz" --no-same-owner -C "$work"
	files=$work/$name
}

# fetch NAME: copy a file of the release into $work.
fetch() {
	case $source in
	http://* | https://*)
		if have curl; then
			curl -fsSL -o "$work/$1" "${source%/}/$1"
		elif have wget; then
			wget -q -O "$work/$1" "${source%/}/$1" || { rm -f "$work/$1"; return 1; }
		else
			fail "curl and wget are missing: install one, or download the release and pass its directory"
		fi
		;;
	*) cp "$source/$1" "$work/$1" 2>/dev/null ;;
	esac
}

# check_signature checks SHA256SUMS.sig with $key. Without a key, or without ssh-keygen, it says
# that the signature was not checked.
check_signature() {
	if [ -z "$key" ]; then
		say "signature   not checked: install.sh has no key of the release; pass one with --key"
		return
	fi
	fetch SHA256SUMS.sig 2>/dev/null || fail "SHA256SUMS is not signed, but a key is given. Nothing was installed"
	if ! have ssh-keygen; then
		say "signature   not checked: ssh-keygen is missing (Debian: apt install openssh-client)"
		return
	fi
	printf 'release %s\n' "$key" >"$work/signers"
	ssh-keygen -Y verify -f "$work/signers" -I release -n glasshouse-release -s "$work/SHA256SUMS.sig" \
		<"$work/SHA256SUMS" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "wrong signature of SHA256SUMS. Nothing was installed"; }
	say "signature   ok"
}

# install_files copies the files under $prefix. Each one replaces the old one in one step, so a
# running program is not disturbed. The manifest lists what --uninstall removes.
install_files() {
	"$files/bin/glasshouse" --version >/dev/null || fail "bin/glasshouse of the release does not run on this machine. Nothing was installed"
	list=$(cd "$files" && find bin lib share -type f | LC_ALL=C sort)
	mkdir -p "$prefix/lib/glasshouse"
	old=''
	[ ! -e "$manifest" ] || old=$(cat "$manifest")
	# The old list stays valid until the new one is complete.
	printf '%s\n' "$old" "$list" lib/glasshouse/install.sh | sed '/^$/d' | LC_ALL=C sort -u >"$manifest"
	printf '%s\n' "$list" | while read -r file; do
		place "$files/$file" "$prefix/$file"
	done
	place "$files/install.sh" "$prefix/lib/glasshouse/install.sh"
	if [ -n "$service" ]; then
		sed "s|^ExecStart=/usr/bin/|ExecStart=$prefix/bin/|" "$files/glasshouse.service" >"$work/unit"
		place "$work/unit" "$UNIT"
		[ -e "$CONFIG" ] || place "$files/config.yaml" "$CONFIG"
	fi
	{
		printf '%s\n' "$list" lib/glasshouse/install.sh
		if [ -n "$service" ] || { [ "$prefix" = /usr/local ] && printf '%s\n' "$old" | grep -qxF "$UNIT"; }; then
			printf '%s\n' "$UNIT"
		fi
	} >"$manifest.new"
	printf '%s\n' "$old" | grep -vxF -f "$manifest.new" | delete
	mv "$manifest.new" "$manifest"
}

# place FILE DESTINATION
place() {
	mkdir -p "$(dirname "$2")"
	cp "$1" "$2.new"
	chmod "$(mode "$1")" "$2.new"
	mv -f "$2.new" "$2"
}

mode() {
	if [ -x "$1" ]; then
		echo 0755
	else
		echo 0644
	fi
}

# delete removes the files on standard input, which are absolute or relative to $prefix.
delete() {
	while read -r file; do
		case $file in
		'') ;;
		/*) rm -f "$file" ;;
		*) rm -f "$prefix/$file" ;;
		esac
	done
}

start_service() {
	install -d -m 0711 /var/lib/glasshouse
	group=root
	! grep -q '^adm:' /etc/group || group=adm
	install -d -m 2750 -g $group /var/log/glasshouse # the head of the audit log: config.yaml
	systemctl daemon-reload
	systemctl enable glasshouse.service >/dev/null 2>&1 || fail "systemctl enable glasshouse failed"
	# Jails continue to run when the daemon restarts.
	systemctl restart glasshouse.service || fail "the service does not start; see: journalctl -u glasshouse"
	say "service     running; its configuration is $CONFIG"
}

finish() {
	say "installed   $("$prefix/bin/glasshouse" --version), $prefix/bin/glasshouse"
	case :$PATH: in
	*":$prefix/bin:"*) ;;
	*) say "            $prefix/bin is not in PATH: add it" ;;
	esac
	data=/var/lib/glasshouse
	root || data=\~/.local/share/glasshouse
	say "next        glasshouse doctor   shows what this machine supports; on Debian and Ubuntu,
            $prefix/lib/glasshouse/setup.sh $data   installs missing programs"
	[ -n "$service" ] || say "            glasshouse serve    starts the daemon"
}

remove() {
	[ -e "$manifest" ] || fail "there is no installation by install.sh in $prefix"
	list=$(cat "$manifest")
	if printf '%s\n' "$list" | grep -qxF "$UNIT"; then
		stop_service
	fi
	printf '%s\n' "$list" | delete
	rm -f "$manifest"
	rmdir "$prefix/lib/glasshouse" "$prefix/share/doc/glasshouse" 2>/dev/null || true
	! have systemctl || [ ! -d /run/systemd/system ] || systemctl daemon-reload || true
	say "removed     $prefix/bin/glasshouse"
	data=/var/lib/glasshouse
	root || data=${HOME:-}/.local/share/glasshouse
	for kept in $data /etc/glasshouse /var/log/glasshouse; do
		[ ! -e "$kept" ] || say "kept        $kept"
	done
}

# stop_service stops the jails and the daemon. Without the program nothing could stop the jails.
stop_service() {
	if [ -d /run/systemd/system ] && systemctl is-active --quiet glasshouse.service; then
		"$prefix/bin/glasshouse" jail ls -q | while read -r jail; do
			"$prefix/bin/glasshouse" jail stop "$jail" </dev/null >/dev/null 2>&1 || true
		done
	fi
	systemctl disable --now glasshouse.service >/dev/null 2>&1 || true
}

main "$@"
