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
	"glasshouse/jail/init/protocol"
)

const opExec = "exec.Start"

// defaultPath is searched for a command if its environment has no PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// start starts a command.
func (in *Init) start(e *protocol.Exec) (*process, error) {
	if err := check(e); err != nil {
		return nil, err
	}
	// Reserved before the start: of two requests with the same id only one starts a command.
	if err := in.reserve(e.ID); err != nil {
		return nil, err
	}
	p, err := in.launch(e)
	in.publish(e.ID, p)
	if err != nil {
		return nil, err
	}
	p.run(e.Timeout)
	return p, nil
}

// check returns an error if the request is invalid.
func check(e *protocol.Exec) error {
	if !id.Valid('x', string(e.ID)) {
		return fault.Fieldf(opExec, "id", "%q is not the identifier of a command", e.ID)
	}
	if len(e.Argv) == 0 || e.Argv[0] == "" {
		return fault.Fieldf(opExec, "argv", "argv is empty")
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
		return fault.Fieldf(opExec, "note", "%d bytes exceed the maximum of %d", len(e.Note), protocol.MaxNote)
	}
	if e.Ring < 0 || e.Ring > protocol.MaxRing {
		return fault.Fieldf(opExec, "ring", "%d exceeds the maximum of %d", e.Ring, protocol.MaxRing)
	}
	return nil
}

// inHome reports whether a directory is given relative to the user's home, with ~.
func inHome(dir string) bool { return dir == "~" || strings.HasPrefix(dir, "~/") }

// launch resolves the user, directory and file of the command and forks it.
func (in *Init) launch(e *protocol.Exec) (*process, error) {
	in.forks <- struct{}{}
	defer func() { <-in.forks }()

	env := e.Env
	if env == nil {
		env = os.Environ()
	}
	u, err := in.files.lookUp(e.User)
	if err != nil {
		return nil, err
	}
	env = u.addHomeAndUser(&in.files, env)
	cwd := u.directory(&in.files, e.Cwd)
	if err := checkDir(cwd); err != nil {
		return nil, err
	}
	file, err := resolve(e.Argv[0], cwd, env)
	if err != nil {
		return nil, err
	}
	std, err := openStdio(e, u)
	if err != nil {
		return nil, explainLimit(err, e.Argv[0])
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
	// A session leader can get a controlling terminal (TIOCSCTTY, ioctl_tty(2)), and timeOut
	// finds the processes of a command by its session.
	attr := &syscall.ProcAttr{
		Dir:   cwd,
		Env:   env,
		Files: std.child(),
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: std.tty != nil, Credential: u.credential()},
	}
	if err := in.fork(p, file, e.Argv, attr); err != nil {
		std.closeParent()
		return nil, explainExecError(err, e, cwd, file)
	}
	return p, nil
}

func (in *Init) fork(p *process, file string, argv []string, attr *syscall.ProcAttr) error {
	if in.enforcing() {
		return in.forkEnforced(p, file, argv, attr)
	}
	// Held until byPID has the command. Otherwise reap could collect it before and discard its
	// exit status.
	in.pids.Lock()
	defer in.pids.Unlock()
	// Commands are sorted by Started. Round removes the monotonic clock reading, which can go
	// backwards in a restored jail. p is not published yet, and the reaper of p needs in.pids.
	p.status.Started = time.Now().Round(0) // +checklocksignore
	pid, err := syscall.ForkExec(file, argv, attr)
	if err != nil {
		return err
	}
	p.pid, p.status.PID = pid, pid // +checklocksignore
	in.byPID[pid] = p
	preferAsVictim(pid) // not reaped yet, because in.pids is held
	return nil
}

// checkDir returns a clear error for common mistakes about a working directory.
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

// resolve finds the file of a command in PATH, as a shell does.
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

// executable returns the reason why file, which the caller calls name, cannot be executed. It
// does not check the user's permission, which the kernel does.
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

// explainExecError returns a readable error for a failed fork or exec.
func explainExecError(err error, e *protocol.Exec, cwd, file string) error {
	name := e.Argv[0]
	switch {
	case errors.Is(err, unix.E2BIG):
		return fault.Fieldf(opExec, "argv", "exec: %q: the argument list and environment are too long", name)
	case errors.Is(err, unix.ENOEXEC):
		return fault.Fieldf(opExec, "argv", "exec: %q: not a program this machine can run (a script needs a #! line)", name)
	case errors.Is(err, unix.ENOENT):
		return fault.Fieldf(opExec, "argv", "exec: %q: the interpreter it names is missing", name)
	case errors.Is(err, unix.EACCES) && !reachable(cwd, e.User):
		return fault.Fieldf(opExec, "cwd", "%s: the user has no permission to enter the directory", cwd)
	case errors.Is(err, unix.EACCES):
		return fault.Fieldf(opExec, "argv", "exec: %q: permission denied", name)
	case errors.Is(err, unix.EPERM) && e.User == "":
		// Linux security modules deny programs with EPERM, and so does package enforce.
		return &fault.Error{Op: opExec, Kind: fault.Invalid, Field: "argv", Err: fmt.Errorf("exec: %q: operation not permitted", name),
			Remedy: "change the policy of the jail, if it denies this program: see glasshouse policy show"}
	case errors.Is(err, unix.EINVAL) && e.User != "", errors.Is(err, unix.EPERM) && e.User != "":
		return fault.Fieldf(opExec, "user", "cannot switch to user %q in this jail: %w", e.User, err)
	}
	return explainLimit(err, name)
}

// reachable reports, for a denied exec, whether the directory is accessible to the user. It
// returns false if others have no permission to enter it.
func reachable(cwd, user string) bool {
	info, err := os.Stat(cwd)
	return user == "" || err == nil && info.Mode()&0o001 != 0
}

// explainLimit names the limit for an error that the kernel returns at a limit.
func explainLimit(err error, name string) error {
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

// errno returns the error number in err without the path, which the message already has.
func errno(err error) error {
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	return err
}

// stdio has both ends of a command's standard streams.
type stdio struct {
	tty   *os.File   // master side of a terminal, or nil
	stdin *os.File   // write end of its input, or nil
	outs  []*os.File // read ends of its output
	in    *os.File   // the command's own ends
	out   []*os.File
}

func openStdio(e *protocol.Exec, u user) (s *stdio, err error) {
	s = &stdio{}
	defer func() {
		if err != nil {
			s.closeChild()
			s.closeParent()
		}
	}()
	if e.PTY != nil {
		return s, s.openTerminal(*e.PTY, u)
	}
	if e.Stdin {
		if s.in, s.stdin, err = pipe(true); err != nil {
			return s, fmt.Errorf("create the standard input: %w", err)
		}
		u.chown(s.in)
	} else if s.in, err = null(); err != nil {
		return s, fmt.Errorf("open an empty standard input: %w", err)
	}
	for range 2 {
		r, w, err := pipe(false)
		if err != nil {
			return s, fmt.Errorf("create the standard output: %w", err)
		}
		s.outs, s.out = append(s.outs, r), append(s.out, w)
		u.chown(w) // so that it can open /dev/stdout
	}
	return s, nil
}

func (s *stdio) openTerminal(size protocol.Size, u user) error {
	master, slave, err := pty.Open()
	if err != nil {
		return fault.Newf(fault.Unavailable, opExec, "", "open a terminal: %w", err)
	}
	s.tty, s.stdin, s.outs, s.in, s.out = master, master, []*os.File{master}, slave, []*os.File{slave, slave}
	u.chown(slave)
	return setSize(master, size)
}

func setSize(tty *os.File, size protocol.Size) error {
	err := pty.Setsize(tty, &pty.Winsize{Cols: size.Cols, Rows: size.Rows})
	if errors.Is(err, os.ErrClosed) || errors.Is(err, unix.EBADF) {
		return fault.Newf(fault.Conflict, "exec.Resize", "", "the terminal is closed")
	}
	if err != nil {
		return fmt.Errorf("set the size of the terminal: %w", err)
	}
	return nil
}

// child returns the descriptors of the command.
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

// pipe returns a pipe. Init's end is non-blocking, the command's end is blocking.
func pipe(initWrites bool) (r, w *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	ours := fds[0]
	if initWrites {
		ours = fds[1]
	}
	// O_NONBLOCK belongs to the open file description (open(2)), and each end of a pipe has its
	// own. Programs do not expect EAGAIN from their standard streams.
	if err := unix.SetNonblock(ours, true); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe"), nil
}

// null returns an empty input. A jail without /dev/null gets a closed pipe.
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
