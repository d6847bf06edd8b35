package daemon

import (
	"bufio"
	"os"
	"runtime"
	"strconv"
	"strings"

	"glasshouse/fleet"
	"glasshouse/jail/snapshot"
)

// facts describes this host for the other nodes of the fleet.
func (d *Daemon) facts() fleet.Facts {
	h := snapshot.ThisHost()
	f := fleet.Facts{Arch: h.Arch, CPU: h.CPU, Kernel: h.Kernel, CPUs: runtime.NumCPU()}
	var err error
	f.Memory, f.FreeMemory, err = memorySize("/proc/meminfo")
	if err != nil {
		d.log.Debug("cannot read the free memory of the host", "err", err)
	}
	f.Disk, f.FreeDisk, err = diskSize(d.Config.Data)
	if err != nil {
		d.log.Debug("cannot read the free disk space", "err", err)
	}
	if g := d.reports.Load(); g != nil {
		f.Unshipped = g.Unshipped()
	}
	return f
}

// memorySize returns the memory of the host and the part of it that can be used without swapping, in
// bytes, from a file in the format of /proc/meminfo (proc_meminfo(5)).
func memorySize(file string) (total, free int64, err error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	for in.Scan() {
		name, value, _ := strings.Cut(in.Text(), ":")
		into := map[string]*int64{"MemTotal": &total, "MemAvailable": &free}[name]
		if into == nil {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(value, "kB")), 10, 64)
		if err != nil {
			return 0, 0, err
		}
		*into = kib << 10
	}
	return total, free, in.Err()
}
