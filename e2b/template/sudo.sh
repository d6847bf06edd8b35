#!/bin/sh
# sudo in the steps of a template build. No process of a jail gains privileges, so setuid
# programs do not work. This program asks a helper, which the build runs as root, to run
# the command. Sandboxes have neither.
fail() {
	echo "sudo: $*" >&2
	exit 1
}
user=root
while [ $# -gt 0 ]; do
	case $1 in
	--) shift; break ;;
	-u | --user) user=$2; shift 2 ;;
	--user=*) user=${1#*=}; shift ;;
	-u?*) user=${1#-u}; shift ;;
	-i | -s | --login | --shell) shift; [ $# -gt 0 ] || set -- /bin/sh ;;
	-[EHnSkKbPAB]* | --preserve-env* | --set-home | --non-interactive | --stdin) shift ;;
	-*) fail "the option $1 is not available in a template build" ;;
	*=*) export "$1"; shift ;;
	*) break ;;
	esac
done
[ $# -gt 0 ] || fail "no command is given"

d=$(mktemp -d) && mkfifo "$d/in" "$d/out" "$d/err" "$d/status" || fail "mktemp and mkfifo are needed"
trap 'rm -rf "$d"' EXIT
pwd >"$d/dir"
echo "$user" >"$d/user"
export -p >"$d/env"
for a; do
	printf "'%s' " "$(printf %s "$a" | sed "s/'/'\\\\''/g")"
done >"$d/argv"

# A shell gives background commands /dev/null for their input, unless it is redirected.
exec 4<&0
cat <&4 >"$d/in" &
in=$!
cat <"$d/out" &
out=$!
cat <"$d/err" >&2 &
err=$!
echo "$d" >/run/glasshouse-sudo/request
read -r code <"$d/status"
kill $in 2>/dev/null
# A program that runs on in the background keeps the output open.
(sleep 2; kill $out $err) >/dev/null 2>&1 &
late=$!
wait $out $err 2>/dev/null
kill $late 2>/dev/null
exit "$code"
