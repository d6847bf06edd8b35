package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/criu"
	"glasshouse/jail"
)

var _ jail.PreDumper = (*Backend)(nil)

// aheadFrom is how much memory, in pages of the processes' own, makes it worth it to
// have CRIU come twice: what it takes to write down 64 MiB while the jail waits is what
// its second coming takes.
var aheadFrom = int64(64<<20) / int64(os.Getpagesize())

// PreDump implements jail.PreDumper.
func (b *Backend) PreDump(ctx context.Context, p jail.Plan, i jail.Instance, dir string) (bool, error) {
	inst, ok := i.(*instance)
	if !ok || b.kind.sentry || inst.memory != nil { // what it is still to be given would be waited for
		return false, nil
	}
	pids, err := inst.cgroup.PIDs()
	if err != nil {
		return false, err
	}
	if residentPages(pids) < aheadFrom {
		return false, nil
	}
	err = b.tracks.of(func() error { return b.criu.Tracks(ctx) })
	if errors.Is(err, fault.Unsupported) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !fitsTwice(dir, residentPages(pids)) {
		return false, nil
	}
	mounts, err := lent(inst.pid)
	if err != nil && fault.KindOf(err) != fault.Conflict { // its secrets, which it still sees
		return false, err
	}
	d := criu.Dump{PID: inst.pid, Netns: b.netnsPath(p), Cgroup: inst.cgroup, Dir: dir}
	for at := range mounts {
		d.Lent = append(d.Lent, at)
	}
	if err := b.criu.PreDump(ctx, d); err != nil {
		return false, fmt.Errorf("write down memory ahead: %w", err)
	}
	return true, nil
}

// Whole implements jail.PreDumper.
func (b *Backend) Whole(dir string) error { return criu.Whole(dir) }

// residentPages is how many pages processes have in memory that no file has.
func residentPages(pids []int) (n int64) {
	for _, pid := range pids {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // it may have ended
		_, after, _ := bytes.Cut(status, []byte("\nRssAnon:"))
		line, _, _ := bytes.Cut(after, []byte("\n"))
		kb, _ := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(line), []byte("kB")))), 10, 64)
		n += kb << 10 / int64(os.Getpagesize())
	}
	return n
}

// fitsTwice reports whether there is room where dir is for all pages twice, which is
// what is there if all are written to meanwhile.
func fitsTwice(dir string, pages int64) bool {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return false
	}
	return int64(st.Bavail)*st.Bsize > 2*pages*int64(os.Getpagesize())+(64<<20)
}
