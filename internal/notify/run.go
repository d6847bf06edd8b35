package notify

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// asker is the descriptor by which Run talks with Start's caller.
const asker = 4

// maxFilter bounds a filter on its way.
const maxFilter = 64 << 10

// Run makes this process one that asks, by the filter that comes on descriptor 4,
// and then another program, which goes on only if somebody listens.
func Run(argv []string) error {
	runtime.LockOSThread() // who installs the filter is who starts the program
	unix.CloseOnExec(asker)
	filter := make([]byte, maxFilter)
	n, err := unix.Read(asker, filter)
	if err != nil || n <= 0 {
		return fmt.Errorf("read the filter: %w", err)
	}
	fd, err := Install(filter[:n])
	if err != nil {
		return err
	}
	if _, err := unix.Write(asker, []byte(strconv.Itoa(fd))); err != nil {
		return err
	}
	if n, err := unix.Read(asker, filter[:1]); err != nil || n != 1 {
		return errors.New("nobody listens")
	}
	return os.NewSyscallError("execve", unix.Exec(argv[0], argv, os.Environ()))
}

// A Starting is a process on its way to be one that asks: started with the file of
// Theirs as descriptor 4, it calls Run.
type Starting struct {
	ours, theirs *os.File
}

// Prepare makes what it takes to talk with such a process.
func Prepare() (*Starting, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	unix.SetNonblock(pair[0], true)
	return &Starting{os.NewFile(uintptr(pair[0]), "asker"), os.NewFile(uintptr(pair[1]), "asker")}, nil
}

// Theirs is the process's end.
func (s *Starting) Theirs() *os.File { return s.theirs }

// Close may be called at any time.
func (s *Starting) Close() error { return errors.Join(s.ours.Close(), s.closeTheirs()) }

func (s *Starting) closeTheirs() error {
	if s.theirs == nil {
		return nil
	}
	err := s.theirs.Close()
	s.theirs = nil
	return err
}

// Filter gives the process its filter and returns what it asks on. It waits until
// GoOn.
func (s *Starting) Filter(pid int, filter []byte) (*Listener, error) {
	s.closeTheirs()
	s.ours.SetDeadline(time.Now().Add(15 * time.Second))
	if _, err := s.ours.Write(filter); err != nil {
		return nil, err
	}
	var b [16]byte
	n, err := s.ours.Read(b[:])
	if err != nil {
		return nil, fmt.Errorf("the process could not be made to ask: %w", err)
	}
	fd, err := strconv.Atoi(string(b[:n]))
	if err != nil {
		return nil, err
	}
	return Take(pid, fd)
}

// GoOn has the process run its program.
func (s *Starting) GoOn() error {
	_, err := s.ours.Write([]byte{1})
	return err
}
