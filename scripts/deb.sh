#!/usr/bin/env bash
#
# deb.sh BINARY OUTPUT_DIRECTORY: make a Debian package of a built glasshouse. Prints
# the package's name. The same commit makes the same package, byte by byte.
set -euo pipefail
cd "$(dirname "$0")/.."
binary=$(realpath "${1:?usage: deb.sh BINARY OUTPUT_DIRECTORY}")
out=$(realpath "${2:?usage: deb.sh BINARY OUTPUT_DIRECTORY}")
umask 022

version=${DEB_VERSION:-0.1.0~git$(git rev-list --count HEAD).$(git rev-parse --short HEAD)}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
# The processor is the one the program is for, which need not be this machine's: then one
# like it, of the same source, says what is in the manual.
arch=$("${GO:-go}" version -m "$binary" | sed -n 's/^\tbuild\tGOARCH=//p')
speaks=$binary
case $arch in
amd64 | arm64) ;;
*) echo "deb.sh: no package is made for ${arch:-a program that does not say what for}" >&2; exit 1 ;;
esac

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
chmod 0755 "$tree"
if [ "$arch" != "$("${GO:-go}" env GOHOSTARCH)" ]; then
	speaks=$(mktemp)
	trap 'rm -rf "$tree" "$speaks"' EXIT
	GOARCH='' "${GO:-go}" build -o "$speaks" ./cmd/glasshouse
fi
share=$tree/usr/share
mkdir -p "$tree"/{DEBIAN,usr/bin,usr/lib/systemd/system,etc/glasshouse} "$share"/{man/man1,doc/glasshouse,glasshouse,lintian/overrides} \
	"$share"/{bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d}

install -m 0755 "$binary" "$tree/usr/bin/glasshouse"
install -m 0644 packaging/deb/glasshouse.service "$tree/usr/lib/systemd/system/"
install -m 0755 scripts/setup.sh "$share/glasshouse/"

"$speaks" docs man "$share/man/man1"
gzip -9n "$share"/man/man1/*.1
"$speaks" completion bash >"$share/bash-completion/completions/glasshouse"
"$speaks" completion zsh >"$share/zsh/vendor-completions/_glasshouse"
"$speaks" completion fish >"$share/fish/vendor_completions.d/glasshouse.fish"

install -m 0644 docs/*.md packaging/deb/README.Debian "$share/doc/glasshouse/"
"${GO:-go}" run ./packaging/notices "$binary" cmd/glasshouse/embedded/$arch/glasshouse-* >"$share/doc/glasshouse/copyright"
gzip -9nc CHANGELOG.md >"$share/doc/glasshouse/CHANGELOG.md.gz"
gzip -9n >"$share/doc/glasshouse/changelog.gz" <<END
glasshouse ($version) unstable; urgency=medium

  * Built of commit $(git rev-parse --short HEAD).
  * What is new is in CHANGELOG.md.gz, beside this file.

 -- Glasshouse <glasshouse@localhost>  $(date -Ru -d "@$SOURCE_DATE_EPOCH")
END
install -m 0644 packaging/deb/lintian-overrides "$share/lintian/overrides/glasshouse"

# Every setting, as the documentation has it, with its default.
{
	echo "# Glasshouse. Every setting is here with its default, but for audit.head_file, which is set:"
	echo "# take the # away from a line to change it, and from the lines that it is within."
	echo "# docs: /usr/share/doc/glasshouse"
	echo
	# The package has a directory for the head of the audit log, outside of the data directory.
	sed -n '/^```yaml$/,/^```$/p' docs/configuration.md | sed -e '/^```/d' -e 's/^\(.\)/#\1/' \
		-e 's/^#audit:$/audit:/' -e 's|^#  head_file: ""|  head_file: /var/log/glasshouse/audit-heads|'
} >"$tree/etc/glasshouse/config.yaml"
grep -q '^  head_file: /var/log/glasshouse/audit-heads ' "$tree/etc/glasshouse/config.yaml"
install -D -m 0644 packaging/deb/logrotate "$tree/etc/logrotate.d/glasshouse"
printf '%s\n' /etc/glasshouse/config.yaml /etc/logrotate.d/glasshouse >"$tree/DEBIAN/conffiles"

size=$(du -sk --apparent-size "$tree" | cut -f1)
sed -e "s/@VERSION@/$version/" -e "s/@ARCH@/$arch/" -e "s/@SIZE@/$size/" packaging/deb/control >"$tree/DEBIAN/control"
install -m 0755 packaging/deb/{postinst,prerm,postrm} "$tree/DEBIAN/"
(cd "$tree" && find usr etc -type f -print0 | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"

package=$out/glasshouse_${version}_$arch.deb
# Debian's own format; DEB_COMPRESSION=zstd takes a fifth of the time, and Debian 12 to unpack.
dpkg-deb --root-owner-group -Z"${DEB_COMPRESSION:-xz}" --build "$tree" "$package" >/dev/null
echo "$package"
