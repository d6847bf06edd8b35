package jailinit

import (
	"errors"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/internal/fork"
	asks "glasshouse/internal/notify"
	"glasshouse/internal/thread"
	"glasshouse/jailinit/protocol"
)

const opEnforce = "init.Enforce"

// Enforcement. A thread that does nothing else has the daemon's filter on it, and
// all commands are its children: so they have it, and all that they start, and
// init has not. The daemon takes a copy of the descriptor on which the filter
// asks. Init keeps one too, so that calls wait for the next daemon when one dies
// and do not fail. A memory image cannot hold it: it is given up when init is
// parked, and the daemon gives it back.

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

// newForker returns when the filter is installed.
func newForker(filter []byte) (f *forker, listener int, err error) {
	f = &forker{orders: make(chan forkOrder)}
	installed := make(chan error, 1)
	go thread.Alone(func() (err error) { // for good
		listener, err = asks.Install(filter)
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

// asking tells whether commands are to ask.
func (in *Init) asking() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.forker != nil
}

// enforce has every command from now on ask before it starts programs, changes
// files and makes connections.
func (in *Init) enforce(c *conn, q *protocol.Request) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.forker != nil {
		return fault.Newf(fault.Conflict, opEnforce, "", "commands of this jail ask already")
	}
	if len(in.execs) > 0 {
		return fault.Newf(fault.Conflict, opEnforce, "", "a command was started already")
	}
	f, listener, err := newForker(q.Filter)
	if err != nil {
		return fault.Newf(fault.Unsupported, opEnforce, "", "the kernel does not take the filter: %w", err)
	}
	in.forker, in.listening = f, os.NewFile(uintptr(listener), "listener")
	return c.reply(protocol.Enforced{FD: listener})
}

// keep takes the listener of the jail's filter to keep.
func (in *Init) keep(c *conn, _ *protocol.Request) error {
	uc, ok := c.net.(*net.UnixConn)
	if !ok {
		return errors.ErrUnsupported
	}
	if err := c.reply(nil); err != nil { // the client sends nothing before it has this
		return err
	}
	uc.SetReadDeadline(time.Now().Add(requestPatience))
	fd, err := receiveFD(uc)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "listener")
	if link, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); err == nil && !asks.Is(link) {
		return errors.Join(fault.Newf(fault.Invalid, "init.Keep", "", "not a listener"), f.Close())
	}
	in.mu.Lock()
	old := in.listening
	in.listening = f
	in.mu.Unlock()
	if old != nil {
		old.Close()
	}
	return c.reply(nil)
}

// receiveFD reads one byte, with which exactly one descriptor comes.
func receiveFD(uc *net.UnixConn) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4*4))
	_, n, _, _, err := uc.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return -1, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return -1, err
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
		return -1, fault.Newf(fault.Invalid, "init.Keep", "", "%d descriptors instead of one", len(fds))
	}
	return fds[0], nil
}

// letGo gives up the listener, which cannot be part of a memory image. in.mu is
// held.
//
// +checklocks:in.mu
func (in *Init) letGo() {
	if in.listening != nil {
		in.listening.Close()
		in.listening = nil
	}
}

// startsWithin is how long who asks for a command is kept waiting until its
// program has started. It may be that a person is asked first.
const startsWithin = 250 * time.Millisecond

// forkAsking is fork for commands that ask.
func (in *Init) forkAsking(p *process, file string, argv []string, attr *syscall.ProcAttr) error {
	c := &fork.Command{
		File: file, Argv: argv, Env: attr.Env, Dir: attr.Dir,
		Files: [3]uintptr{attr.Files[0], attr.Files[1], attr.Files[2]}, Ctty: attr.Sys.Setctty, Who: attr.Sys.Credential,
		Failing: "glasshouse: " + argv[0] + " was not started: it is not permitted, or cannot be run\n",
	}
	if c.File[0] != '/' { // as the shell would find it
		c.File = attr.Dir + "/" + c.File
	}
	in.pids.Lock()
	// p is not among the commands yet, and reaping it needs in.pids.
	p.status.Started = time.Now().Round(0) // +checklocksignore
	// The forker was set before asking returned true, and is never replaced.
	pid, start, err := in.forker.start(c) // +checklocksignore
	if err != nil {
		in.pids.Unlock()
		return err
	}
	p.pid, p.status.PID = pid, pid // +checklocksignore
	in.byPID[pid] = p
	preferAsVictim(pid)
	in.pids.Unlock()

	start.File().SetReadDeadline(time.Now().Add(startsWithin))
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
	delete(in.byPID, pid) // its end is nobody's business
	in.pids.Unlock()
	start.End(false)
	return err
}
