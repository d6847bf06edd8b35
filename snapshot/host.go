package snapshot

import (
	"errors"
	"fmt"
	"strings"

	"glasshouse/fault"
)

// fits returns nil if a snapshot of the host from can be used on the host to, with
// its processes or without. A program chooses its instructions when it begins:
// another processor may not have them. What the kernel offers, newer ones offer
// too.
func fits(from, to Host, processes, force bool) error {
	const op = "snapshot.Import"
	if from.Arch != to.Arch {
		return fault.Cannot(op, fmt.Sprintf("it was taken on %s, and this host is %s", from.Arch, to.Arch), "use a host of the same architecture")
	}
	if !processes || force {
		return nil
	}
	var why error
	switch {
	case from.CPU != to.CPU:
		why = fmt.Errorf("its processes ran on the processor %.100q, and this host has %.100q", from.CPU, to.CPU)
	case older(to.Kernel, from.Kernel):
		why = fmt.Errorf("its processes ran on the kernel %.100q, and this host has %.100q, which is older", from.Kernel, to.Kernel)
	default:
		return nil
	}
	return &fault.Error{Op: op, Kind: fault.Unsupported, Err: errors.Join(why),
		Remedy: "leave the processes behind with --files-only, or try with --force: where an instruction is missing they die"}
}

// older reports whether a kernel's release comes before another's.
func older(a, b string) bool {
	return strings.Compare(release(a), release(b)) < 0
}

// release is the version and major revision of a kernel, so that they sort.
func release(s string) string {
	var major, minor int
	if _, err := fmt.Sscanf(s, "%d.%d", &major, &minor); err != nil {
		return ""
	}
	return fmt.Sprintf("%05d.%05d", major, minor)
}
