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

	"glasshouse/capability/engine"
	"glasshouse/fault"
)

// maxProgram limits the size of a program, because it is copied to memory.
const maxProgram = 512 << 20

// open returns the program of a capability as a sealed memory file. It returns an error if
// the digest is not the trusted one. The digest is computed from the bytes that are copied and
// executed, so a later change of the file has no effect (no TOCTOU race).
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
		return nil, fault.Fieldf(op, ":runtime :entrypoint", "%s is not executable", c.Runtime.Entrypoint[0])
	case st.Size() > maxProgram:
		return nil, fault.Newf(fault.TooLarge, op, c.ID, "%s is larger than %d MiB", c.Runtime.Entrypoint[0], maxProgram>>20)
	}
	memory, err := memfd()
	if err != nil {
		return nil, fmt.Errorf("create a memory file for the program: %w", err)
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
			Err:    fmt.Errorf("%s is not the trusted program: its digest is %s, want %s", c.Runtime.Entrypoint[0], got, c.Runtime.Digest),
			Remedy: "check why the program has changed; if the change is intended, register the capability with the new digest and trust it"}
	}
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(memory.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, fmt.Errorf("seal the program: %w", err)
	}
	return memory, nil
}

// find opens the program's file. A relative path is below the capability's directory and
// cannot lead out of it.
func find(c *engine.Installed) (*os.File, error) {
	name := c.Runtime.Entrypoint[0]
	const flags = os.O_RDONLY | syscall.O_NONBLOCK // O_NONBLOCK: opening a FIFO would block
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

// memfd creates an executable file in memory. Kernels before Linux 6.3 reject MFD_EXEC and
// create executable files by default (memfd_create(2)).
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
