#!/usr/bin/env bash
# Lists what Glasshouse may hold on a host, so that before and after can be
# compared: its processes, mounts, loop devices, cgroups, namespaces, links.
# The daemon that `make up` starts is not counted.
set -u
own='/var/lib/glasshouse/|/.local/share/glasshouse/'
ps -eo args= | grep -E 'glasshouse-(init|agent)|runsc-(gofer|sandbox)' | grep -v grep | grep -vE "$own" | sort
awk '{print "mount " $5}' /proc/self/mountinfo | grep -iE 'glasshouse|/j-[a-z2-9]{12}|/tmp/.*Test' | grep -vE "$own" | sort
for f in /sys/block/loop*/loop/backing_file; do
	[ -e "$f" ] && echo "loop $(cat "$f")"
done 2>/dev/null | grep -vE "$own" | sort
find /sys/fs/cgroup -maxdepth 3 -type d -name 'j-*' 2>/dev/null | grep -vF "$(cat /var/lib/glasshouse/cgroup 2>/dev/null || echo no jails there)" | sort
ls /run/netns 2>/dev/null | sed 's/^/netns /' | sort
ip -o link 2>/dev/null | awk -F': ' '$2 ~ /^gh/ {print "link " $2}' | sort
exit 0
