package jailinit

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jailinit/protocol"
)

const opExec = "exec.Start"

// defaultPath is searched for a command if its environment has no PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// start runs a command.
func (in *Init) start(e *protocol.Exec) (*process, error) {
	if err := check(e); err != nil {
		return nil, err
	}
	if err := in.reserve(e.ID); err != nil {
		return nil, err
	}
	p, err := in.launch(e)
	in.settle(e.ID, p)
	if err != nil {
		return nil, err
	}
	p.run(e.Timeout)
	return p, nil
}

// check refuses what cannot be run as it is written.
func check(e *protocol.Exec) error {
	if !id.Valid('x', string(e.ID)) {
		return fault.Fieldf(opExec, "id", "%q is not the identifier of a command", e.ID)
	}
	if len(e.Argv) == 0 || e.Argv[0] == "" {
		return fault.Fieldf(opExec, "argv", "there is no command")
	}
	for _, a := range e.Argv {
		if strings.ContainsRune(a, 0) {
			return fault.Fieldf(opExec, "argv", "%.40q contains a zero byte", a)
		}
	}
	for _, v := range e.Env {
		if strings.ContainsRune(v, 0) || strings.IndexByte(v, '=') <= 0 {
			return fault.Fieldf(opExec, "env", "%.40q is not KEY=VALUE", v)
		}
	}
	if e.Cwd != "" && (e.Cwd[0] != '/' && !inHome(e.Cwd) || strings.ContainsRune(e.Cwd, 0)) {
		return fault.Fieldf(opExec, "cwd", "%q is not an absolute path", e.Cwd)
	}
	if e.Timeout < 0 {
		return fault.Fieldf(opExec, "timeout", "%v is negative", e.Timeout)
	}
	if len(e.Note) > protocol.MaxNote {
		return fault.Fieldf(opExec, "note", "%d bytes, at most %d are kept", len(e.Note), protocol.MaxNote)
	}
	if e.Ring < 0 || e.Ring > protocol.MaxRing {
		return fault.Fieldf(opExec, "ring", "%d is over the maximum of %d", e.Ring, protocol.MaxRing)
	}
	return nil
}

// inHome tells whether a directory is said as beneath the user's home.
func inHome(dir string) bool { return dir == "~" || strings.HasPrefix(dir, "~/") }

// launch looks up what the command needs and forks it.
func (in *Init) launch(e *protocol.Exec) (*process, error) {
	in.forks <- struct{}{}
	defer func() { <-in.forks }()

	env := e.Env
	if env == nil {
		env = os.Environ()
	}
	who, err := in.lookUp(e.User)
	if err != nil {
		return nil, err
	}
	env = who.complete(in, env)
	cwd := who.directory(in, e.Cwd)
	if err := checkDir(cwd); err != nil {
		return nil, err
	}
	file, err := resolve(e.Argv[0], cwd, env)
	if err != nil {
		return nil, err
	}
	std, err := openStdio(e, who)
	if err != nil {
		return nil, exhausted(err, e.Argv[0])
	}
	defer std.closeChild()

	p := &process{
		id: e.ID, in: in, tty: std.tty, stdin: std.stdin, outs: std.outs,
		reaped:  make(chan struct{}),
		ended:   make(chan struct{}),
		status:  protocol.ExecStatus{ID: e.ID, Argv: truncated(e.Argv), Note: e.Note, PTY: e.PTY != nil},
		ring:    ring{limit: max(cmp.Or(e.Ring, protocol.DefaultRing), firstRing), budget: &in.rings},
		readers: map[*reader]struct{}{},
		pumps:   len(std.outs),
	}
	attr := &syscall.ProcAttr{
		Dir:   cwd,
		Env:   env,
		Files: std.child(),
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: std.tty != nil, Credential: who.credential()},
	}
	if err := in.fork(p, file, e.Argv, attr); err != nil {
		std.closeParent()
		return nil, refused(err, e, cwd, file)
	}
	return p, nil
}

func (in *Init) fork(p *process, file string, argv []string, attr *syscall.ProcAttr) error {
	if in.asking() {
		return in.forkAsking(p, file, argv, attr)
	}
	in.pids.Lock()
	defer in.pids.Unlock()
	// Commands are sorted by Started, and a restored jail's monotonic clock may lie behind.
	// p is not among the commands yet, and the reaper of p needs in.pids.
	p.status.Started = time.Now().Round(0) // +checklocksignore
	pid, err := syscall.ForkExec(file, argv, attr)
	if err != nil {
		return err
	}
	p.pid, p.status.PID = pid, pid // +checklocksignore
	in.byPID[pid] = p
	preferAsVictim(pid) // it cannot have been reaped yet
	return nil
}

// checkDir makes the most common mistakes about a working directory clear.
func checkDir(cwd string) error {
	info, err := os.Stat(cwd)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fault.Fieldf(opExec, "cwd", "%s: no such directory", cwd)
	case err != nil:
		return fault.Fieldf(opExec, "cwd", "%s: %w", cwd, errno(err))
	case !info.IsDir():
		return fault.Fieldf(opExec, "cwd", "%s: not a directory", cwd)
	}
	return nil
}

// resolve finds the file of a command, as a shell would.
func resolve(name, cwd string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		file := name
		if file[0] != '/' {
			file = path.Join(cwd, file)
		}
		return name, executable(name, file)
	}
	search, denied := defaultPath, error(nil)
	for _, v := range env {
		if value, ok := strings.CutPrefix(v, "PATH="); ok {
			search = value
		}
	}
	for dir := range strings.SplitSeq(search, ":") {
		file := path.Join(dir, name)
		if !path.IsAbs(dir) {
			file = path.Join(cwd, dir, name)
		}
		err := executable(name, file)
		if err == nil {
			return file, nil
		}
		if fault.KindOf(err) == fault.Invalid {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", notFound(name, "not found in PATH")
}

// executable reports why file, called name by the caller, cannot be executed.
// Whether the user may is the kernel's to say.
func executable(name, file string) error {
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return notFound(name, "no such file")
	case err != nil:
		return fault.Fieldf(opExec, "argv", "exec: %q: %w", name, errno(err))
	case info.IsDir():
		return fault.Fieldf(opExec, "argv", "exec: %q: is a directory", name)
	case info.Mode()&0o111 == 0:
		return fault.Fieldf(opExec, "argv", "exec: %q: permission denied", name)
	}
	return nil
}

func notFound(name, why string) error {
	return &fault.Error{Op: opExec, Kind: fault.NotFound, Field: "argv", Err: fmt.Errorf("exec: %q: %s", name, why)}
}

// refused explains why fork or exec did not work.
func refused(err error, e *protocol.Exec, cwd, file string) error {
	name := e.Argv[0]
	switch {
	case errors.Is(err, unix.E2BIG):
		return fault.Fieldf(opExec, "argv", "exec: %q: the argument list and environment are too long", name)
	case errors.Is(err, unix.ENOEXEC):
		return fault.Fieldf(opExec, "argv", "exec: %q: not a program this machine can run (a script needs a #! line)", name)
	case errors.Is(err, unix.ENOENT):
		return fault.Fieldf(opExec, "argv", "exec: %q: the interpreter it names is missing", name)
	case errors.Is(err, unix.EACCES) && !reachable(cwd, e.User):
		return fault.Fieldf(opExec, "cwd", "%s: the user may not enter it", cwd)
	case errors.Is(err, unix.EACCES):
		return fault.Fieldf(opExec, "argv", "exec: %q: permission denied", name)
	case errors.Is(err, unix.EPERM) && e.User == "":
		// Linux security modules refuse programs with EPERM, the one of package enforce too.
		return &fault.Error{Op: opExec, Kind: fault.Invalid, Field: "argv", Err: fmt.Errorf("exec: %q: operation not permitted", name),
			Remedy: "change the policy of the jail, if it denies this program: see glasshouse policy show"}
	case errors.Is(err, unix.EINVAL) && e.User != "", errors.Is(err, unix.EPERM) && e.User != "":
		return fault.Fieldf(opExec, "user", "%q cannot be taken on in this jail: %w", e.User, err)
	}
	return exhausted(err, name)
}

// reachable tells for an exec that was denied whether the directory rather
// than the file may be to blame: nobody else may enter it.
func reachable(cwd, user string) bool {
	info, err := os.Stat(cwd)
	return user == "" || err == nil && info.Mode()&0o001 != 0
}

// exhausted turns what the kernel says at a limit into the limit's name.
func exhausted(err error, name string) error {
	switch {
	case errors.Is(err, unix.EAGAIN):
		return &fault.Error{Op: opExec, Kind: fault.Exhausted, Remedy: "end some of the jail's processes, or give it a higher limits.max_pids",
			Err: errors.New("the jail's process limit is reached")}
	case errors.Is(err, unix.ENOMEM):
		return &fault.Error{Op: opExec, Kind: fault.Exhausted, Remedy: "end some of the jail's processes, or give it a higher limits.memory_mb",
			Err: errors.New("the jail's memory limit is reached")}
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return fault.Newf(fault.Exhausted, opExec, "", "the jail's init has too many open files")
	}
	return fmt.Errorf("exec: %q: %w", name, err)
}

// errno takes the path out of err: the message has it already.
func errno(err error) error {
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	return err
}

// stdio is both ends of a command's standard streams.
type stdio struct {
	tty   *os.File   // master side of a terminal, or nil
	stdin *os.File   // where its input is written, or nil
	outs  []*os.File // where its output is read
	in    *os.File   // the command's own ends
	out   []*os.File
}

func openStdio(e *protocol.Exec, who user) (s *stdio, err error) {
	s = &stdio{}
	defer func() {
		if err != nil {
			s.closeChild()
			s.closeParent()
		}
	}()
	if e.PTY != nil {
		return s, s.openTerminal(*e.PTY, who)
	}
	if e.Stdin {
		if s.in, s.stdin, err = pipe(true); err != nil {
			return s, err
		}
		who.own(s.in)
	} else if s.in, err = null(); err != nil {
		return s, err
	}
	for range 2 {
		r, w, err := pipe(false)
		if err != nil {
			return s, err
		}
		s.outs, s.out = append(s.outs, r), append(s.out, w)
		who.own(w) // so that it can open /dev/stdout
	}
	return s, nil
}

func (s *stdio) openTerminal(size protocol.Size, who user) error {
	master, slave, err := pty.Open()
	if err != nil {
		return fault.Newf(fault.Unavailable, opExec, "", "open a terminal: %w", err)
	}
	s.tty, s.stdin, s.outs, s.in, s.out = master, master, []*os.File{master}, slave, []*os.File{slave, slave}
	who.own(slave)
	return setSize(master, size)
}

func setSize(tty *os.File, size protocol.Size) error {
	err := pty.Setsize(tty, &pty.Winsize{Cols: size.Cols, Rows: size.Rows})
	if errors.Is(err, os.ErrClosed) || errors.Is(err, unix.EBADF) {
		return fault.Newf(fault.Conflict, "exec.Resize", "", "the terminal is closed")
	}
	return err
}

// child is the descriptors of the command.
func (s *stdio) child() []uintptr {
	return []uintptr{s.in.Fd(), s.out[0].Fd(), s.out[1].Fd()}
}

func (s *stdio) closeChild() {
	for _, f := range append(slices.Clone(s.out), s.in) {
		if f != nil {
			f.Close()
		}
	}
}

func (s *stdio) closeParent() {
	for _, f := range append(slices.Clone(s.outs), s.stdin) {
		if f != nil {
			f.Close()
		}
	}
}

// pipe returns a pipe of which init's end is non-blocking and the command's is
// an ordinary one.
func pipe(initWrites bool) (r, w *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	ours := fds[0]
	if initWrites {
		ours = fds[1]
	}
	if err := unix.SetNonblock(ours, true); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe"), nil
}

// null is an input at its end. A jail without /dev/null gets an empty pipe.
func null() (*os.File, error) {
	fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		return os.NewFile(uintptr(fd), "/dev/null"), nil
	}
	r, w, err := pipe(true)
	if err != nil {
		return nil, err
	}
	return r, w.Close()
}
