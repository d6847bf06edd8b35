package main

import "golang.org/x/sys/unix"

func ioPorts() unix.Errno { return call(unix.SYS_IOPL, 3) }
