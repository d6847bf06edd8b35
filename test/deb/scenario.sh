#!/bin/sh
# What becomes of the package on a clean Debian, in the tree $1: installed, used,
# upgraded, removed, installed again, purged. $OLD and $NEW are its two versions; $FORCE
# is said to dpkg where what it depends on is not in the tree.
set -eu
tree=$1
cp "$OLD" "$tree/old.deb"
cp "$NEW" "$tree/new.deb"
guest() { chroot "$tree" "$@"; }
fail() { echo "deb: $*" >&2; exit 1; }

# Installed: there, at home, and with a manual.
guest dpkg $FORCE -i /old.deb
[ -z "$(guest dpkg --verify glasshouse)" ] || fail "not what is in the package: $(guest dpkg --verify glasshouse)"
guest glasshouse --version
[ "$(stat -c %a "$tree/var/lib/glasshouse")" = 711 ] || fail "the data directory is not closed"
[ -L "$tree/etc/systemd/system/multi-user.target.wants/glasshouse.service" ] || fail "the service is not enabled"
zcat "$tree/usr/share/man/man1/glasshouse-jail-create.1.gz" | grep -q '^\.SH NAME' || fail "there is no manual"
bash -n "$tree/usr/share/bash-completion/completions/glasshouse"
[ "$(guest glasshouse __complete jail cre 2>/dev/null | head -n 1 | cut -f1)" = create ] || fail "nothing is completed"
grep -q '^#compdef glasshouse' "$tree/usr/share/zsh/vendor-completions/_glasshouse"
grep -q '^complete' "$tree/usr/share/fish/vendor_completions.d/glasshouse.fish"

grep -q 'Licensed under the Apache License' "$tree/usr/share/doc/glasshouse/copyright" || fail "the licence is missing"
grep -q '^modernc.org/sqlite v' "$tree/usr/share/doc/glasshouse/copyright" || fail "the notices of others are missing"

# Used: with the configuration as it comes, a daemon answers. Its data directory has a
# name of its own: what it does to the kernel it does by that name, and this host may
# have a daemon in the usual place.
data=/var/lib/glasshouse/tried-$$
chroot "$tree" glasshouse serve --config /etc/glasshouse/config.yaml --data $data --listen "" 2>"$tree/log" &
daemon=$!
trap 'kill $daemon 2>/dev/null || true' EXIT
for _ in $(seq 600); do
	guest glasshouse --data $data health >/dev/null 2>&1 && break
	kill -0 $daemon 2>/dev/null || { cat "$tree/log" >&2; fail "the daemon ended"; }
	sleep 0.1
done
guest glasshouse --data $data jail ls
kill $daemon
wait $daemon || true
trap - EXIT
[ -e "$tree$data/token" ] || fail "the daemon has kept nothing"
heads=$tree/var/log/glasshouse/audit-heads
grep -q '"checkpoint"' "$heads" || fail "the head of the audit log is not outside of the data directory"
[ "$(stat -c '%a %G' "$heads")" = '640 adm' ] || fail "the head file has $(stat -c '%a %G' "$heads")"
grep -q 'head of the audit log' "$tree/log" || fail "the head of the audit log is not in the daemon's log"

# Upgraded: what the administrator has written stays.
sed -i 's/^#listen: .*/listen: 127.0.0.1:9000/' "$tree/etc/glasshouse/config.yaml"
guest dpkg $FORCE -i /new.deb
guest dpkg-query -W -f '${Version}' glasshouse | grep -qx 2.0 || fail "it is not upgraded"
grep -qx 'listen: 127.0.0.1:9000' "$tree/etc/glasshouse/config.yaml" || fail "the configuration was lost"

# Removed: data and configuration stay. Purged: nothing does.
guest dpkg -r glasshouse
[ ! -e "$tree/usr/bin/glasshouse" ] && [ -e "$tree$data/token" ] && [ -e "$tree/etc/glasshouse/config.yaml" ] || fail "removed too much, or too little"
guest dpkg $FORCE -i /new.deb
guest dpkg -P glasshouse
left=$(guest find / -xdev -iname '*glasshouse*' -not -path '/proc/*' -not -path '/sys/*' -not -path '/var/log/*')
[ -z "$left" ] && [ ! -e "$tree/var/log/glasshouse" ] || fail "purged, and left: $left $(ls -d "$tree"/var/log/glasshouse* 2>/dev/null)"
rm "$tree/old.deb" "$tree/new.deb" "$tree/log"
echo "deb: done"
