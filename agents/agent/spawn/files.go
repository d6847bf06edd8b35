package spawn

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// inheritedFiles collects the files that a program inherits in addition to its streams.
type inheritedFiles struct {
	files []*os.File
}

// add adds f and returns its descriptor number in the program. f is closed by close.
func (in *inheritedFiles) add(f *os.File) int {
	in.files = append(in.files, f)
	return 2 + len(in.files)
}

func (in *inheritedFiles) close() {
	for _, f := range in.files {
		f.Close()
	}
}

// addData adds a memory file (memfd_create(2)) with the data.
func (in *inheritedFiles) addData(name string, data []byte) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return 0, fmt.Errorf("create a memory file for %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	n := in.add(f)
	if _, err := f.Write(data); err != nil {
		return 0, fmt.Errorf("create a memory file for %s: %w", name, err)
	}
	if _, err := f.Seek(0, 0); err != nil {
		return 0, fmt.Errorf("rewind the memory file for %s: %w", name, err)
	}
	return n, nil
}

// addSecret adds a pipe with the data, which can be read once. The data must fit into one
// page, the minimum capacity of a pipe, so that the write does not block.
func (in *inheritedFiles) addSecret(data []byte) (int, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("create the pipe of the token: %w", err)
	}
	defer w.Close()
	n := in.add(r)
	if _, err := w.Write(data); err != nil {
		return 0, fmt.Errorf("write the token to its pipe: %w", err)
	}
	return n, nil
}

// addStatusPipe adds the write end of a pipe and returns the read end.
func (in *inheritedFiles) addStatusPipe() (parent *os.File, n int, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, 0, fmt.Errorf("create a status pipe: %w", err)
	}
	return r, in.add(w), nil
}

// addLifeline adds the read end of a pipe and returns the write end. The program sees the end
// of the pipe when the daemon closes it or dies.
func (in *inheritedFiles) addLifeline() (parent *os.File, n int, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, 0, fmt.Errorf("create the lifeline pipe: %w", err)
	}
	return w, in.add(r), nil
}
