package native

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"glasshouse/engine"
	"glasshouse/fault"
)

// maxProgram bounds a program: it is copied into memory.
const maxProgram = 512 << 20

// open returns the program of a capability, if it is the one that is trusted: a copy
// in memory that nobody can change, made of the very bytes whose digest was taken. So
// what is executed is what was looked at, whatever happens to the file.
func open(c *engine.Installed) (_ *os.File, err error) {
	const op = "engine.Prepare"
	f, err := find(c)
	if err != nil {
		return nil, fault.Fieldf(op, ":runtime :entrypoint", "%w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch {
	case !st.Mode().IsRegular():
		return nil, fault.Fieldf(op, ":runtime :entrypoint", "%s is not a file", c.Runtime.Entrypoint[0])
	case st.Mode().Perm()&0o111 == 0:
		return nil, fault.Fieldf(op, ":runtime :entrypoint", "%s may not be executed", c.Runtime.Entrypoint[0])
	case st.Size() > maxProgram:
		return nil, fault.Newf(fault.TooLarge, op, c.ID, "%s is larger than %d MiB", c.Runtime.Entrypoint[0], maxProgram>>20)
	}
	memory, err := memfd()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			memory.Close()
		}
	}()
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(memory, sum), io.LimitReader(f, maxProgram+1)); err != nil {
		return nil, fmt.Errorf("read %s: %w", c.Runtime.Entrypoint[0], err)
	}
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != c.Runtime.Digest {
		return nil, &fault.Error{Op: op, On: c.ID, Kind: fault.Denied, Field: ":runtime :digest",
			Err:    fmt.Errorf("%s is not the program that is trusted: its digest is %s, and not %s", c.Runtime.Entrypoint[0], got, c.Runtime.Digest),
			Remedy: "find out who changed it; if that was meant, register the capability with the new digest, and have it trusted"}
	}
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(memory.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, fmt.Errorf("seal the program: %w", err)
	}
	return memory, nil
}

// find opens the program's file: of the capability's directory, out of which nothing
// leads, or by its absolute path.
func find(c *engine.Installed) (*os.File, error) {
	name := c.Runtime.Entrypoint[0]
	const flags = os.O_RDONLY | syscall.O_NONBLOCK // which does not wait at a pipe
	if filepath.IsAbs(name) {
		return os.OpenFile(name, flags, 0)
	}
	root, err := os.OpenRoot(c.Dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.OpenFile(filepath.Clean(name), flags, 0)
}

// memfd makes a file in memory that may be executed. Kernels before Linux 6.3 do not
// know the flag, and need none.
func memfd() (*os.File, error) {
	fd, err := unix.MemfdCreate("capability", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("capability", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), "capability"), nil
}
