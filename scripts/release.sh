#!/usr/bin/env bash
#
# release.sh OUTPUT_DIRECTORY [BINARY...]: make the files of a release: for each architecture a
# Debian package, an archive and an SBOM (CycloneDX), then install.sh, SHA256SUMS and, with a key,
# its signature SHA256SUMS.sig. Without BINARY, programs for amd64 and arm64 are built.
#
# GLASSHOUSE_RELEASE_KEY is an SSH private key that signs, as a file name or as the key itself. Its
# public key is put into install.sh, which then accepts only releases that the key has signed.
# VERSION is the version, by default that of the tag at the commit, or of the commit.
#
# The files are reproducible: the same commit, Go, dpkg and, if it is an ed25519 key, key produce
# the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: release.sh OUTPUT_DIRECTORY [BINARY...]}
shift
umask 022
fail() { printf 'release: %s\n' "$*" >&2; exit 1; }

SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH TZ=UTC LC_ALL=C.UTF-8
# The version names the commit. With flags that depend on the processors or on the state of the
# clone, two machines would build different programs or packages.
export GOFLAGS=-buildvcs=false GOAMD64=v1 GOARM64=v8.0 DPKG_DEB_THREADS_MAX=1

if [ -z "${VERSION:-}" ]; then
	if tag=$(git describe --tags --exact-match --match 'v[0-9]*' 2>/dev/null); then
		VERSION=${tag#v}
	else
		VERSION=0.1.0-git$(git rev-list --count HEAD).$(git rev-parse --short HEAD)
	fi
	if [ -n "$(git status --porcelain --untracked-files=no)" ]; then
		VERSION+=.dirty
		echo "release: the clone has uncommitted changes: the version is $VERSION" >&2
	fi
fi
export VERSION
export DEB_VERSION=${VERSION/-/\~} # a version before 0.1.0, as dpkg compares versions

if [ $# = 0 ]; then
	for arch in amd64 arm64; do
		make --no-print-directory -s ARCH=$arch build
	done
	case $("${GO:-go}" env GOHOSTARCH) in
	amd64) set -- bin/glasshouse bin/arm64/glasshouse ;;
	*) set -- bin/amd64/glasshouse bin/glasshouse ;;
	esac
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
out=$(realpath "$out")
# Files of an earlier release would get into the checksums.
rm -f "$out"/glasshouse_* "$out"/{install.sh,SHA256SUMS,SHA256SUMS.sig}

key=$work/key public=
if [ -n "${GLASSHOUSE_RELEASE_KEY:-}" ]; then
	case $GLASSHOUSE_RELEASE_KEY in
	-----BEGIN*) (umask 077 && printf '%s\n' "$GLASSHOUSE_RELEASE_KEY" >"$key") ;;
	*) key=$(realpath "$GLASSHOUSE_RELEASE_KEY") ;;
	esac
	public=$(ssh-keygen -y -f "$key" | cut -d' ' -f1,2) || fail "GLASSHOUSE_RELEASE_KEY is not an SSH private key"
fi
sed "s|^RELEASE_KEY=.*|RELEASE_KEY='$public'|" scripts/install.sh >"$work/install.sh"
grep -qxF "RELEASE_KEY='$public'" "$work/install.sh"

for binary in "$@"; do
	package=$(scripts/deb.sh "$binary" "$out")
	arch=$(dpkg-deb -f "$package" Architecture)
	echo "$package"
	scripts/tarball.sh "$package" "$VERSION" "$work/install.sh" "$out"
	sbom=$out/glasshouse_${VERSION}_linux_$arch.cdx.json
	"${GO:-go}" run ./packaging/notices -sbom "$VERSION" "$binary" cmd/glasshouse/embedded/"$arch"/glasshouse-* >"$sbom"
	echo "$sbom"
done
install -m 0755 "$work/install.sh" "$out/install.sh"
(cd "$out" && sha256sum glasshouse_* install.sh) >"$work/SHA256SUMS"
mv "$work/SHA256SUMS" "$out/"
echo "$out/install.sh"
echo "$out/SHA256SUMS"

if [ -z "$public" ]; then
	echo "not signed: GLASSHOUSE_RELEASE_KEY is not set"
	exit 0
fi
ssh-keygen -q -Y sign -f "$key" -n glasshouse-release "$out/SHA256SUMS" 2>"$work/log" || { cat "$work/log" >&2; fail "cannot sign SHA256SUMS"; }
echo "$out/SHA256SUMS.sig"
printf 'signed by %s\n' "$(ssh-keygen -l -f <(printf '%s\n' "$public"))"
