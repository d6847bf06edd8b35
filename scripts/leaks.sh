#!/usr/bin/env bash
#
# leaks.sh DIR: list the processes, mounts, loop devices and cgroups that a test run left on the
# host. All temporary files of the run are below DIR, so a resource that refers to DIR belongs to
# the run. Those of other daemons and other runs do not refer to it.
set -u
dir=${1:?usage: leaks.sh DIR}

for p in /proc/[0-9]*; do
	pid=${p#/proc/}
	[ "$pid" != $$ ] || continue
	# A jail's processes do not have the run's environment, but the layers of their root file
	# system are below DIR.
	if grep -qF "$dir/" "$p/environ" "$p/cmdline" 2>/dev/null ||
		awk '$5 == "/"' "$p/mountinfo" 2>/dev/null | grep -qF "$dir/"; then
		echo "process $pid $(tr '\0' ' ' <"$p/cmdline" 2>/dev/null | cut -c1-120)"
	fi
done
awk '{print "mount " $5}' /proc/self/mountinfo | grep -F "$dir/"
for f in /sys/block/loop*/loop/backing_file; do
	[ -e "$f" ] && grep -F "$dir/" "$f" 2>/dev/null | sed 's/^/loop /'
done
# An extended attribute of a daemon's cgroup contains its data directory; see host/claims.
for d in /sys/fs/cgroup/glasshouse-* /sys/fs/cgroup/unified/glasshouse-*; do
	[ -d "$d" ] || continue
	python3 - "$d" "$dir/" <<'PY' 2>/dev/null
import os, sys
if sys.argv[2].encode() in os.getxattr(sys.argv[1], "trusted.glasshouse"):
    print("cgroup", sys.argv[1])
PY
done
exit 0
