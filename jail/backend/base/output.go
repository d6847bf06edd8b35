package base

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Memfd returns a close-on-exec descriptor of an anonymous file (memfd_create(2)).
func Memfd(name string, content []byte) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	if _, err := unix.Pwrite(fd, content, 0); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("write memfd %s: %w", name, err)
	}
	return fd, nil
}

// OutputFile returns a file of fixed size for the output of a program that outlives the daemon. The
// file cannot grow, because the program may belong to a jail, and further output is lost.
func OutputFile(size int) (*os.File, error) {
	fd, err := Memfd("output", make([]byte, size))
	if err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("seal: %w", err)
	}
	return os.NewFile(uintptr(fd), "output"), nil
}

// OutputText returns the text in an OutputFile.
func OutputText(f *os.File) string {
	st, err := f.Stat()
	if err != nil {
		return ""
	}
	b, _ := io.ReadAll(io.NewSectionReader(f, 0, st.Size()))
	return strings.TrimSpace(string(bytes.Trim(b, "\x00")))
}
