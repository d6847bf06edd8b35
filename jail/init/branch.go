package jailinit

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/init/protocol"
)

const (
	branchHooks = "/etc/glasshouse/branch.d" // hook programs

	maxHooks    = 64
	maxEntries  = 1024 // limit for a directory, which the jail controls
	hookTimeout = 5 * time.Second
	hookBound   = hookTimeout + 2*maxDrain // maximal wait, also for a hook that cannot be killed

	// hookPath is the environment of hooks.
	hookPath = "PATH=" + defaultPath
)

// branched runs the hooks of a branch and sends the signals that processes have registered.
// The daemon has written the notice before. Problems do not fail the request; the daemon logs
// them.
func (in *Init) branched(c *conn, q *protocol.Request) error {
	if err := q.Branched.Check(); err != nil {
		return err
	}
	var reply protocol.BranchedReply
	problem := func(format string, args ...any) {
		if len(reply.Problems) < protocol.MaxProblems {
			reply.Problems = append(reply.Problems, fmt.Sprintf(format, args...))
		}
	}
	in.runHooks(q.Branched, problem)
	in.notifyProcesses(problem)
	return c.reply(reply)
}

// runHooks runs the jail's hooks sequentially, as ordinary commands. A failed one is not
// removed, so that its output can be read.
func (in *Init) runHooks(b *protocol.Branched, problem func(string, ...any)) {
	names, err := in.hooks()
	if err != nil {
		problem("%s: %v", branchHooks, err)
	}
	if len(names) > maxHooks {
		problem("%s: more than %d programs, only the first ones are run", branchHooks, maxHooks)
		names = names[:maxHooks]
	}
	env := []string{hookPath,
		"GLASSHOUSE_JAIL=" + string(b.Jail),
		"GLASSHOUSE_SNAPSHOT=" + string(b.Snapshot),
		"GLASSHOUSE_BRANCH=" + strconv.Itoa(b.Branch),
		"GLASSHOUSE_SEED=" + hex.EncodeToString(b.Seed),
	}
	for _, name := range names {
		if err := in.runHook(name, env); err != nil {
			problem("%s: %v", name, err)
		}
	}
}

// hooks returns the executable files in the hook directory, sorted.
func (in *Init) hooks() (names []string, err error) {
	in.files.slots <- struct{}{}
	defer func() { <-in.files.slots }()
	entries, err := readDir(branchHooks)
	for _, e := range entries {
		name := path.Join(branchHooks, e.Name())
		if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			names = append(names, name)
		}
	}
	return names, err
}

// readDir returns the entries of a directory, sorted. A missing directory is empty.
func readDir(dir string) ([]os.DirEntry, error) {
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(maxEntries + 1)
	if err == io.EOF {
		err = nil
	}
	if len(entries) > maxEntries {
		entries, err = entries[:maxEntries], fmt.Errorf("there are more than %d files; some are ignored", maxEntries)
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

func (in *Init) runHook(name string, env []string) error {
	p, err := in.start(&protocol.Exec{ID: id.NewExec(), Argv: []string{name}, Env: env, Timeout: hookTimeout})
	if err != nil {
		return err
	}
	bound := time.NewTimer(hookBound)
	defer bound.Stop()
	select {
	case <-p.ended:
	case <-bound.C:
		return fmt.Errorf("did not exit and could not be killed (command %s)", p.id)
	}
	switch s := p.snapshot(); {
	case s.TimedOut:
		return fmt.Errorf("did not exit within %v (command %s)", hookTimeout, p.id)
	case s.Code != 0:
		return fmt.Errorf("exited with code %d (command %s)", s.Code, p.id)
	}
	_, err = in.forget(p.id)
	return err
}

// notifyProcesses sends the signals that processes have registered. Without a signal, they
// cannot detect that they have been copied.
func (in *Init) notifyProcesses(problem func(string, ...any)) {
	in.files.slots <- struct{}{}
	defer func() { <-in.files.slots }()
	entries, err := readDir(protocol.NotifyDir)
	if err != nil {
		problem("%s: %v", protocol.NotifyDir, err)
	}
	for _, e := range entries {
		if err := notify(path.Join(protocol.NotifyDir, e.Name())); err != nil {
			problem("%s: %v", path.Join(protocol.NotifyDir, e.Name()), err)
		}
	}
}

// notify sends the signal that is registered in file to the process that the file is named
// after, if the process runs as the file's owner. So a user cannot signal processes of others.
// A process that has ended is not an error.
func notify(file string) error {
	pid, err := strconv.Atoi(path.Base(file))
	// Atoi also accepts +5 and 005, by which one process could be signalled several times.
	if err != nil || pid <= 1 || pid == os.Getpid() || path.Base(file) != strconv.Itoa(pid) {
		return errors.New("not the pid of a process that can be notified")
	}
	sig, owner, err := registration(file)
	if err != nil {
		return err
	}
	fd, err := unix.PidfdOpen(pid, 0) // pins the process for the checks below
	if err == unix.ESRCH {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(fd)
	// If the process ends now and its pid is reused, this reads the status of another one. But
	// the signal goes to the pidfd and fails with ESRCH (pidfd_send_signal(2)).
	uids, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil // it has ended
	}
	if !runsAs(string(uids), owner) {
		return fmt.Errorf("process %d does not run as the owner of the file", pid)
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && err != unix.ESRCH {
		return os.NewSyscallError("pidfd_send_signal", err)
	}
	return nil
}

// maxRegistration bounds the size of a registration file.
const maxRegistration = 32

// registration returns the signal in a registration file and the owner of the file. It rejects
// links.
func registration(file string) (sig unix.Signal, owner uint32, err error) {
	// Without O_NONBLOCK the open of a FIFO would wait for a writer (fifo(7)).
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, 0, fmt.Errorf("open the file: %w", err)
	}
	f := os.NewFile(uintptr(fd), file)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, 0, fmt.Errorf("stat the file: %w", err)
	}
	// With a hard link to a file of another user a process could signal processes of that user.
	// Any user can make one where fs.protected_hardlinks is 0 (proc(5)).
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 {
		return 0, 0, errors.New("not a regular file with one link")
	}
	text, err := io.ReadAll(io.LimitReader(f, maxRegistration))
	if err != nil {
		return 0, 0, err
	}
	sig, err = notification(string(text))
	return sig, st.Uid, err
}

// notification returns the signal that a registration names, SIGUSR1 if it is empty.
func notification(text string) (unix.Signal, error) {
	name := strings.TrimSpace(text)
	if name == "" {
		return unix.SIGUSR1, nil
	}
	sig, err := parseSignal(name)
	if err != nil {
		return 0, err
	}
	if sig == 0 || sig == unix.SIGKILL || sig == unix.SIGSTOP {
		return 0, fault.Fieldf("init.Branched", "signal", "%q cannot be used as a notification signal", name)
	}
	return sig, nil
}

// runsAs reports whether all user ids in a process's status are uid. A program with other ids,
// such as a setuid program, must not be signalled by its caller.
func runsAs(status string, uid uint32) bool {
	for line := range strings.Lines(status) {
		ids, ok := strings.CutPrefix(line, "Uid:")
		if !ok {
			continue
		}
		all := strings.Fields(ids)
		for _, s := range all {
			if n, ok := number(s); !ok || n != uid {
				return false
			}
		}
		return len(all) > 0
	}
	return false
}
