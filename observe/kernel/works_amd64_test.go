package kernel_test

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// int80 makes calls with the 32-bit ABI, with generated code.
func int80(args []string) {
	code, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
	check(err)
	copy(code, []byte{0xb8, 65, 0, 0, 0, 0xcd, 0x80, 0xc3}) // mov eax, getpgrp; int 0x80; ret
	signal.Ignore(syscall.SIGSEGV)
	at := uintptr(unsafe.Pointer(&code[0]))
	fn := &at
	call := *(*func())(unsafe.Pointer(&fn))
	n, _ := strconv.Atoi(args[0])
	for range n {
		call()
	}
	fmt.Fprintln(os.Stdout, "done")
}
