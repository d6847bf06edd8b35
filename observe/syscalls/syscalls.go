// Package syscalls contains tables of Linux system calls: their names by number, and which of
// their arguments are paths, descriptors and addresses.
package syscalls

import (
	"runtime"
	"strconv"
)

//go:generate go run gen.go

// System call ABIs. Native is the native ABI, which is "" in events. Compat is the ABI of
// 32-bit programs.
const (
	Native = ""
	X32    = "x32"
)

// Compat names the ABI of 32-bit programs on this machine.
var Compat = map[string]string{"amd64": "i386", "arm64": "arm"}[runtime.GOARCH]

// X32Bit is set in the numbers of x32 calls, which otherwise equal those of amd64.
const X32Bit = 0x40000000

var tables = map[string][]string{
	Native: map[string][]string{"amd64": amd64, "arm64": arm64}[runtime.GOARCH],
	X32:    amd64,
	"i386": i386, "arm": arm, "amd64": amd64, "arm64": arm64,
}

// Name returns a call's name, or "syscall_451" for a number without one.
func Name(abi string, nr int32) string {
	t := tables[abi]
	if abi == X32 {
		nr &^= X32Bit
	}
	if nr >= 0 && int(nr) < len(t) && t[nr] != "" {
		return t[nr]
	}
	return "syscall_" + strconv.Itoa(int(nr))
}

var numbers = func() map[string]map[string]int32 {
	all := map[string]map[string]int32{}
	for abi, t := range tables {
		all[abi] = map[string]int32{}
		for nr, name := range t {
			if name != "" {
				all[abi][name] = int32(nr)
			}
		}
	}
	return all
}()

// Number returns the number of a call, if the ABI has it.
func Number(abi, name string) (nr int32, ok bool) {
	nr, ok = numbers[abi][name]
	return nr, ok
}

// Known reports whether any architecture has a call of that name.
func Known(name string) bool {
	for _, t := range numbers {
		if _, ok := t[name]; ok {
			return true
		}
	}
	return false
}

// Count is the largest number of an ABI's calls plus one.
func Count(abi string) int { return len(tables[abi]) }
