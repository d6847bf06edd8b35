package eventlog

import (
	"fmt"
	"strconv"
	"strings"

	"glasshouse/observe/event"
)

// A class is one of the four files that hold the records.
type class uint8

const (
	syscalls class = iota
	filesystem
	network
	processes
	classes = 4
)

var classNames = [classes]string{"syscalls", "filesystem", "network", "processes"}

// source is the event type that a gap names when records of a class are missing.
var source = [classes]event.Type{event.Syscall, event.File, event.Net, event.Proc}

var byType = [...]class{
	event.Syscall: syscalls, event.File: filesystem, event.Net: network,
	event.Proc: processes, event.Usage: processes, event.Gap: processes, event.Lineage: processes,
}

// classOf returns the class of e. A gap is stored in the class of the records that it reports.
func classOf(e *event.Event) class {
	t := e.Type
	if t == event.Gap {
		t = e.Source
	}
	if int(t) >= len(byType) || t == 0 {
		return processes
	}
	return byType[t]
}

const (
	textSuffix   = ".jsonl"
	packedSuffix = ".jsonl.zst"
	indexSuffix  = ".idx"
	tempSuffix   = ".tmp"
	badSuffix    = ".bad"
)

// activeName returns the name of the file that a class is written to. closedName returns that
// of a closed segment whose first record has the sequence number first. The caller adds a
// suffix.
func activeName(c class) string { return classNames[c] }

func closedName(c class, first uint64) string {
	// A uint64 has up to 20 digits. With all of them, names sort by number.
	return fmt.Sprintf("%s-%020d", classNames[c], first)
}

// parseName is the inverse of closedName with one of the suffixes added.
func parseName(name string) (c class, first uint64, suffix string, ok bool) {
	base, suffix := name, ""
	for _, s := range []string{packedSuffix, textSuffix, indexSuffix} {
		if b, cut := strings.CutSuffix(name, s); cut {
			base, suffix = b, s
			break
		}
	}
	prefix, digits, found := strings.Cut(base, "-")
	if suffix == "" || !found || len(digits) != 20 {
		return 0, 0, "", false
	}
	first, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return 0, 0, "", false
	}
	for c, n := range classNames {
		if n == prefix {
			return class(c), first, suffix, true
		}
	}
	return 0, 0, "", false
}
