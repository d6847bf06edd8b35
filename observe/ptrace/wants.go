package ptrace

import (
	"sync"

	"golang.org/x/sys/unix"

	"glasshouse/observe/event"
	"glasshouse/observe/syscalls"
)

// An abi is the index of a system call ABI.
type abi uint8

const (
	native abi = iota
	compat
	x32
)

var abis = [...]string{native: syscalls.Native, compat: syscalls.Compat, x32: syscalls.X32}

func abiOf(arch uint32, nr int32) abi {
	switch {
	case arch == compatArch:
		return compat
	case nativeArch == unix.AUDIT_ARCH_X86_64 && nr > 0 && nr&syscalls.X32Bit != 0:
		return x32
	}
	return native
}

// A kind marks the few calls with special handling.
type kind uint8

const (
	plain kind = iota
	forks
	makesTask  // clone
	makesTask3 // clone3
	prctl
	debugs
	opens
	opensAt
	opensHow
	creates
	mapsFile
)

var kinds = map[string]kind{
	"fork": forks, "vfork": forks, "clone": makesTask, "clone3": makesTask3, "prctl": prctl, "ptrace": debugs,
	"open": opens, "openat": opensAt, "openat2": opensHow, "creat": creates, "mmap": mapsFile, "mmap2": mapsFile,
}

// A known describes a system call number.
type known struct {
	name  string
	kind  kind
	shape syscalls.Shape
}

// Indexed by ABI and number.
var table = sync.OnceValue(func() (t [len(abis)][]known) {
	for a, name := range abis {
		t[a] = make([]known, syscalls.Count(name))
		for nr := range t[a] {
			t[a][nr] = describe(abi(a), int32(nr))
		}
	}
	return t
})

func describe(a abi, nr int32) known {
	name := syscalls.Name(abis[a], nr)
	return known{name, kinds[name], syscalls.Shapes[name]}
}

func lookup(a abi, nr int32) known {
	if a == x32 {
		nr &^= syscalls.X32Bit
	}
	if t := table()[a]; nr >= 0 && int(nr) < len(t) {
		return t[nr]
	}
	return describe(a, nr)
}

// wants is an evaluated selection.
type wants struct {
	stops bool // tasks stop at calls
	calls [len(abis)][]bool
	files bool
}

// selection sets the selection for subsequent events.
func (tr *tracer) selection(s event.Selection) {
	tr.sel = s.Defaults(event.Selection{})
	tr.wants = wants{stops: calls(tr.sel) || files(tr.sel), files: files(tr.sel)}
	for a, t := range table() {
		tr.wants.calls[a] = make([]bool, len(t))
		for nr := range t {
			tr.wants.calls[a][nr] = tr.sel.Wants(t[nr].name)
		}
	}
}

// wanted reports whether a call is recorded.
func (tr *tracer) wanted(a abi, nr int32, name string) bool {
	if a == x32 {
		nr &^= syscalls.X32Bit
	}
	want := false
	if w := tr.wants.calls[a]; nr >= 0 && int(nr) < len(w) {
		want = w[nr]
	} else {
		want = tr.sel.Wants(name)
	}
	if want && tr.sel.Sample > 1 {
		tr.samples++
		want = tr.samples%tr.sel.Sample == 0
	}
	return want
}
