#!/usr/bin/env bash
#
# tarball.sh PACKAGE VERSION INSTALLER OUTPUT_DIRECTORY: make an archive with the files of a Debian
# package for other installations, with INSTALLER as its install.sh, and print its name. It has the
# directories of an installation prefix: bin, lib and share. The archive is reproducible.
set -euo pipefail
usage="usage: tarball.sh PACKAGE VERSION INSTALLER OUTPUT_DIRECTORY"
package=$(realpath "${1:?$usage}")
version=${2:?$usage}
installer=$(realpath "${3:?$usage}")
out=$(realpath "${4:?$usage}")
cd "$(dirname "$0")/.."
umask 022

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
name=glasshouse_${version}_linux_$(dpkg-deb -f "$package" Architecture)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
dpkg-deb -x "$package" "$tree/package"
usr=$tree/package/usr to=$tree/$name

mkdir -p "$to/lib/glasshouse"
mv "$usr/bin" "$usr/share" "$to/"
mv "$to/share/glasshouse/setup.sh" "$to/lib/glasshouse/"
mv "$usr/lib/systemd/system/glasshouse.service" "$tree/package/etc/glasshouse/config.yaml" "$to/"
install -m 0644 LICENSE NOTICE README.md "$to/"
install -m 0755 "$installer" "$to/install.sh"
# What is only for Debian's package manager, and zsh's directory outside of packages.
rm -r "$to/share/lintian" "$to/share/glasshouse" "$to/share/doc/glasshouse"/{README.Debian,changelog.gz}
mv "$to/share/zsh/vendor-completions" "$to/share/zsh/site-functions"

tar --format=gnu --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -C "$tree" -c "$name" |
	gzip -9n >"$out/$name.tar.gz"
echo "$out/$name.tar.gz"
