//go:build !amd64

package main

import "golang.org/x/sys/unix"

// ioPorts has no effect: other architectures have no I/O ports.
func ioPorts() unix.Errno { return unix.ENOSYS }
