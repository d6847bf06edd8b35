package api_test

import (
	"context"
	"io"
	"strings"
	"syscall"
	"unsafe"

	"glasshouse/jail"
)

type contextT = context.Context

// chunked is a body of unknown length.
func chunked(s string) io.Reader { return io.MultiReader(strings.NewReader(s)) }

func apitestChange(path string) jail.Change {
	return jail.Change{Path: path, Kind: "added", Type: "file", Size: 1, Mode: 0o644}
}

// setgroups sets the supplementary groups of this thread.
func setgroups(list []uint32) error {
	var p unsafe.Pointer
	if len(list) > 0 {
		p = unsafe.Pointer(&list[0])
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(len(list)), uintptr(p), 0); e != 0 {
		return e
	}
	return nil
}
