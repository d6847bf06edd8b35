package snapshot

import (
	"errors"
	"fmt"
	"strings"

	"glasshouse/fault"
)

// checkHost returns nil if a snapshot of the host from can be used on the host to, with or
// without its processes. Programs select CPU instructions when they start, and another
// processor may lack them. Newer kernels provide the interfaces of older ones.
func checkHost(from, to Host, processes, force bool) error {
	const op = "snapshot.Import"
	if from.Arch != to.Arch {
		return fault.Cannot(op, fmt.Sprintf("the snapshot was taken on %s, but the host is %s", from.Arch, to.Arch), "use a host of the same architecture")
	}
	if !processes || force {
		return nil
	}
	var why error
	switch {
	case from.CPU != to.CPU:
		why = fmt.Errorf("the processes ran on CPU %.100q, but the host has %.100q", from.CPU, to.CPU)
	case older(to.Kernel, from.Kernel):
		why = fmt.Errorf("the processes ran on kernel %.100q, but the host has the older %.100q", from.Kernel, to.Kernel)
	default:
		return nil
	}
	return &fault.Error{Op: op, Kind: fault.Unsupported, Err: errors.Join(why),
		Remedy: "import with --files-only, or try --force: processes that need a missing CPU instruction will crash"}
}

// CheckHost returns nil if a snapshot of the host from can be used on the host to, with or without
// its processes, as far as that is known before an import.
func CheckHost(from, to Host, processes bool) error { return checkHost(from, to, processes, false) }

// older reports whether kernel release a precedes b.
func older(a, b string) bool {
	return strings.Compare(release(a), release(b)) < 0
}

// release returns the version and major revision of a kernel in a sortable form.
func release(s string) string {
	var major, minor int
	if _, err := fmt.Sscanf(s, "%d.%d", &major, &minor); err != nil {
		return ""
	}
	return fmt.Sprintf("%05d.%05d", major, minor)
}
