package jailinit

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/internal/fork"
	seccompnotify "glasshouse/internal/notify"
	"glasshouse/internal/thread"
	"glasshouse/jail/init/protocol"
)

const opEnforce = "init.Enforce"

// Enforcement. A dedicated thread has the daemon's seccomp filter, and all commands are its
// children. So all commands and their children have the filter, but init does not. The daemon has a
// copy of the notification listener. Init also keeps a copy, so that system calls wait for the next
// daemon if one dies, and do not fail. A checkpoint cannot include the listener: init closes it
// when it is parked, and the daemon sends it again.

// A forker is that thread.
type forker struct {
	orders chan forkOrder
}

type forkOrder struct {
	command *fork.Command
	done    chan<- forked
}

type forked struct {
	pid   int
	start *fork.Start
	err   error
}

func (f *forker) start(c *fork.Command) (int, *fork.Start, error) {
	done := make(chan forked, 1)
	f.orders <- forkOrder{c, done}
	r := <-done
	return r.pid, r.start, r.err
}

// newForker starts the thread and returns when the filter is installed.
func newForker(filter []byte) (f *forker, listener int, err error) {
	f = &forker{orders: make(chan forkOrder)}
	installed := make(chan error, 1)
	go thread.Alone(func() (err error) { // never ends
		listener, err = seccompnotify.Install(filter)
		installed <- err
		if err != nil {
			return err
		}
		for o := range f.orders {
			pid, start, err := o.command.Start()
			o.done <- forked{pid, start, err}
		}
		return nil
	})
	return f, listener, <-installed
}

// enforcing reports whether commands get the filter.
func (in *Init) enforcing() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.forker != nil
}

// enforce installs the filter for all later commands.
func (in *Init) enforce(c *conn, q *protocol.Request) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.forker != nil {
		return fault.Newf(fault.Conflict, opEnforce, "", "enforcement is already active in this jail")
	}
	if len(in.execs) > 0 {
		return fault.Newf(fault.Conflict, opEnforce, "", "commands have already been started")
	}
	f, listener, err := newForker(q.Filter)
	if err != nil {
		return fault.Newf(fault.Unsupported, opEnforce, "", "the kernel rejects the filter: %w", err)
	}
	in.forker, in.enforceListener = f, os.NewFile(uintptr(listener), "listener")
	return c.reply(protocol.Enforced{FD: listener})
}

// keep receives the notification listener and stores it.
func (in *Init) keep(c *conn, _ *protocol.Request) error {
	uc, ok := c.net.(*net.UnixConn)
	if !ok {
		return errors.ErrUnsupported
	}
	if err := c.reply(nil); err != nil { // the client sends the descriptor after this reply
		return err
	}
	uc.SetReadDeadline(time.Now().Add(requestTimeout))
	fd, err := receiveFD(uc)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "listener")
	if link, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); err == nil && !seccompnotify.IsListener(link) {
		return errors.Join(fault.Newf(fault.Invalid, "init.Keep", "", "not a listener"), f.Close())
	}
	in.mu.Lock()
	old := in.enforceListener
	in.enforceListener = f
	in.mu.Unlock()
	if old != nil {
		old.Close()
	}
	return c.reply(nil)
}

// receiveFD reads one byte with exactly one SCM_RIGHTS descriptor.
func receiveFD(uc *net.UnixConn) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4*4))
	_, n, _, _, err := uc.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return -1, fmt.Errorf("receive the listener: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return -1, fmt.Errorf("parse the control message: %w", err)
	}
	var fds []int
	for _, m := range messages {
		got, err := unix.ParseUnixRights(&m)
		if err == nil {
			fds = append(fds, got...)
		}
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	if len(fds) != 1 {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return -1, fault.Newf(fault.Invalid, "init.Keep", "", "got %d descriptors, want one", len(fds))
	}
	return fds[0], nil
}

// closeListener closes the notification listener, which a checkpoint cannot include. in.mu is
// held.
//
// +checklocks:in.mu
func (in *Init) closeListener() {
	if in.enforceListener != nil {
		in.enforceListener.Close()
		in.enforceListener = nil
	}
}

// startWait is how long a request waits until the program of its command has started. It is
// limited because the start may need an approval by a person.
const startWait = 250 * time.Millisecond

// forkEnforced is like fork, but for commands with enforcement.
func (in *Init) forkEnforced(p *process, file string, argv []string, attr *syscall.ProcAttr) error {
	c := &fork.Command{
		File: file, Argv: argv, Env: attr.Env, Dir: attr.Dir,
		Files: [3]uintptr{attr.Files[0], attr.Files[1], attr.Files[2]}, Ctty: attr.Sys.Setctty, Who: attr.Sys.Credential,
		Failing: "glasshouse: " + argv[0] + " was not started: it is not permitted, or cannot be run\n",
	}
	if c.File[0] != '/' { // relative to the working directory, as in a shell
		c.File = attr.Dir + "/" + c.File
	}
	in.pids.Lock()
	// p is not published yet, and reaping it needs in.pids.
	p.status.Started = time.Now().Round(0) // +checklocksignore
	// The forker was set before enforcing returned true, and is never replaced.
	pid, start, err := in.forker.start(c) // +checklocksignore
	if err != nil {
		in.pids.Unlock()
		return err
	}
	p.pid, p.status.PID = pid, pid // +checklocksignore
	in.byPID[pid] = p
	preferAsVictim(pid)
	in.pids.Unlock()

	start.File().SetReadDeadline(time.Now().Add(startWait))
	err = start.Wait()
	switch {
	case err == nil:
		start.End(false)
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		start.File().SetReadDeadline(time.Time{})
		in.wg.Go(func() { start.End(start.Wait() != nil) })
		return nil
	}
	in.pids.Lock()
	delete(in.byPID, pid) // its exit status is not needed
	in.pids.Unlock()
	start.End(false)
	return err
}
