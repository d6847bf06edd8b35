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

// preDumpThreshold is the amount of anonymous memory, in pages, from which a pre-dump pays
// off: the second CRIU run costs as much as dumping 64 MiB while the jail is paused.
var preDumpThreshold = int64(64<<20) / int64(os.Getpagesize())

// PreDump implements jail.PreDumper.
func (b *Backend) PreDump(ctx context.Context, p jail.Plan, i jail.Instance, dir string) (bool, error) {
	inst, ok := i.(*instance)
	if !ok || b.kind.sentry || inst.memory != nil { // a pre-dump would wait for lazily loaded memory
		return false, nil
	}
	pids, err := inst.cgroup.PIDs()
	if err != nil {
		return false, err
	}
	if residentPages(pids) < preDumpThreshold {
		return false, nil
	}
	err = b.dirtyTracking.Of(func() error { return b.criu.ProbeDirtyTracking(ctx) })
	if errors.Is(err, fault.Unsupported) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("probe dirty page tracking: %w", err)
	}
	if !fitsTwice(dir, residentPages(pids)) {
		return false, nil
	}
	mounts, err := externalMounts(inst.PID())
	if err != nil && fault.KindOf(err) != fault.Conflict { // Conflict: its secrets are still mounted
		return false, err
	}
	d := criu.Dump{PID: inst.PID(), Netns: b.networks.Path(p), Cgroup: inst.cgroup, Dir: dir}
	for at := range mounts {
		d.External = append(d.External, at)
	}
	if err := b.criu.PreDump(ctx, d); err != nil {
		return false, fmt.Errorf("pre-dump memory: %w", err)
	}
	return true, nil
}

// MergeImages implements jail.PreDumper.
func (b *Backend) MergeImages(dir string) error { return criu.MergePreDump(dir) }

// residentPages returns the number of anonymous pages that the processes have in memory.
func residentPages(pids []int) (n int64) {
	for _, pid := range pids {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // it may have exited
		_, after, _ := bytes.Cut(status, []byte("\nRssAnon:"))
		line, _, _ := bytes.Cut(after, []byte("\n"))
		kb, _ := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(line), []byte("kB")))), 10, 64)
		n += kb << 10 / int64(os.Getpagesize())
	}
	return n
}

// fitsTwice reports whether the filesystem of dir has space for twice the pages, which is
// needed if all pages are written to after the pre-dump.
func fitsTwice(dir string, pages int64) bool {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return false
	}
	return int64(st.Bavail)*st.Bsize > 2*pages*int64(os.Getpagesize())+(64<<20)
}
