//go:build !amd64

package main

import "golang.org/x/sys/unix"

// ioPorts has nothing to ask for: other machines have no ports.
func ioPorts() unix.Errno { return unix.ENOSYS }
