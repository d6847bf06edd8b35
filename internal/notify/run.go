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

// asker is the descriptor of the socket between Run and its starter.
const asker = 4

// maxFilter is the maximum size of a filter.
const maxFilter = 64 << 10

// Run installs the filter received on descriptor 4 on this process and then executes a
// program. It continues only if the starter has taken the listener.
func Run(argv []string) error {
	runtime.LockOSThread() // the thread that installs the filter must execute the program
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
		return errors.New("the parent did not receive the listener")
	}
	return os.NewSyscallError("execve", unix.Exec(argv[0], argv, os.Environ()))
}

// A Starting is a process that is about to install a filter: it was started with ChildFile as
// descriptor 4 and calls Run.
type Starting struct {
	ours, theirs *os.File
}

// Prepare creates the socket pair.
func Prepare() (*Starting, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	unix.SetNonblock(pair[0], true)
	return &Starting{os.NewFile(uintptr(pair[0]), "asker"), os.NewFile(uintptr(pair[1]), "asker")}, nil
}

// ChildFile returns the process's end of the socket pair.
func (s *Starting) ChildFile() *os.File { return s.theirs }

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

// Filter sends the filter to the process and returns its listener. The process waits until Exec
// is called.
func (s *Starting) Filter(pid int, filter []byte) (*Listener, error) {
	s.closeTheirs()
	s.ours.SetDeadline(time.Now().Add(15 * time.Second))
	if _, err := s.ours.Write(filter); err != nil {
		return nil, err
	}
	var b [16]byte
	n, err := s.ours.Read(b[:])
	if err != nil {
		return nil, fmt.Errorf("install the filter on the process: %w", err)
	}
	fd, err := strconv.Atoi(string(b[:n]))
	if err != nil {
		return nil, err
	}
	return Take(pid, fd)
}

// Exec lets the process execute its program.
func (s *Starting) Exec() error {
	_, err := s.ours.Write([]byte{1})
	return err
}
