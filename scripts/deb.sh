#!/usr/bin/env bash
#
# deb.sh BINARY OUTPUT_DIRECTORY: build a Debian package of a built glasshouse and print its name.
# The build is reproducible: the same commit produces the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."
binary=$(realpath "${1:?usage: deb.sh BINARY OUTPUT_DIRECTORY}")
out=$(realpath "${2:?usage: deb.sh BINARY OUTPUT_DIRECTORY}")
umask 022

version=${DEB_VERSION:-0.1.0~git$(git rev-list --count HEAD).$(git rev-parse --short HEAD)}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
# The package is for the architecture of the binary. If that is not the host's, the manual pages
# and completions come from a build of the same source for the host.
arch=$("${GO:-go}" version -m "$binary" | sed -n 's/^\tbuild\tGOARCH=//p')
speaks=$binary
case $arch in
amd64 | arm64) ;;
*) echo "deb.sh: unsupported architecture: ${arch:-unknown}" >&2; exit 1 ;;
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

install -m 0644 packaging/deb/README.Debian "$share/doc/glasshouse/"
(cd docs && find . -name '*.md' -o -name '*.svg') | while read -r page; do
	install -D -m 0644 "docs/$page" "$share/doc/glasshouse/$page"
done
"${GO:-go}" run ./packaging/notices "$binary" cmd/glasshouse/embedded/$arch/glasshouse-* >"$share/doc/glasshouse/copyright"
gzip -9nc CHANGELOG.md >"$share/doc/glasshouse/CHANGELOG.md.gz"
gzip -9n >"$share/doc/glasshouse/changelog.gz" <<END
glasshouse ($version) unstable; urgency=medium

  * Built from commit $(git rev-parse --short HEAD).
  * See CHANGELOG.md.gz in this directory for changes.

 -- Glasshouse <glasshouse@localhost>  $(date -Ru -d "@$SOURCE_DATE_EPOCH")
END
install -m 0644 packaging/deb/lintian-overrides "$share/lintian/overrides/glasshouse"

# A configuration file with every setting of the documentation, commented out.
{
	echo "# Glasshouse. All settings with their defaults, except for audit.head_file, which is set."
	echo "# To change a setting, remove the # from its line and from the lines of its parents."
	echo "# docs: /usr/share/doc/glasshouse"
	echo
	# The package has a directory for the head of the audit log, outside of the data directory.
	sed -n '/^```yaml$/,/^```$/p' docs/reference/configuration.md | sed -e '/^```/d' -e 's/^\(.\)/#\1/' \
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
# xz is Debian's default. DEB_COMPRESSION=zstd takes a fifth of the time; unpacking needs Debian 12.
dpkg-deb --root-owner-group -Z"${DEB_COMPRESSION:-xz}" --build "$tree" "$package" >/dev/null
echo "$package"
