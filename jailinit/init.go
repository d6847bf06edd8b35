// Package jailinit is PID 1 of a jail: it reaps what dies, and runs commands
// and moves files for the daemon, which talks to it through a unix socket.
//
// Init must outlive everything the jail does to itself. Memory is bounded: by
// rings for output, by limits for everything else. Threads are made at the
// start and none later (see spawnThreads), since the Go runtime dies when it
// needs one and the jail has used up its process limit.
package jailinit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jailfs"
	"glasshouse/jailinit/protocol"
)

const (
	maxConns     = 256
	ringBudget   = 32 << 20 // of all commands together
	finishedKept = 16 << 20 // of the output of finished ones
)

// Init serves one jail. Set the fields before Open.
type Init struct {
	Socket string        // path to listen on
	Door   bool          // or else: take the connections that come in by standard input
	Grace  time.Duration // how long a lossless reader that is not heard from may stall its command; 0 means 10 s
	Idle   time.Duration // silence that ends a command whose output others hold open; 0 means 100 ms

	started  time.Time
	listener net.Listener
	files    *jailfs.Root
	hiding   hiding
	slots    chan struct{} // one per blocking file operation
	forks    chan struct{} // the same for starting and ending commands, so that they wait for no files
	conns    chan struct{} // one per connection
	rings    budget
	doorways doorways
	children chan os.Signal
	wg       sync.WaitGroup

	// Locks are taken in the order pids, mu, process.mu.

	// pids is held while a pid must not be reaped and so cannot be reused.
	pids sync.Mutex
	// +checklocks:pids
	byPID map[int]*process

	mu sync.Mutex
	// +checklocks:mu
	execs map[id.Exec]*process // nil while one is being started
	// +checklocks:mu
	finished []*process // oldest first
	// +checklocks:mu
	open map[*conn]struct{}
	// +checklocks:mu
	fewer notice // a connection is gone from open
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	parking *conn // the connection on which init is asked to park, or nil
	// +checklocks:mu
	parked bool // time stands still
	// +checklocks:mu
	forker *forker // starts commands that ask; nil if they do not
	// +checklocks:mu
	listening *os.File // on which they ask, or nil
	// +checklocks:mu
	unparked *time.Timer // ends parking without a client
}

// Open prepares the process to be an init and listens.
func (in *Init) Open() error {
	in.Grace = cmp.Or(in.Grace, 10*time.Second)
	in.Idle = cmp.Or(in.Idle, 100*time.Millisecond)
	in.started = time.Now()
	in.slots = make(chan struct{}, fileSlots)
	in.forks = make(chan struct{}, forkSlots)
	in.conns = make(chan struct{}, maxConns)
	in.rings.left.Store(ringBudget)
	// Nothing else uses in before Open returns.
	in.byPID = map[int]*process{}     // +checklocksignore
	in.execs = map[id.Exec]*process{} // +checklocksignore
	in.open = map[*conn]struct{}{}    // +checklocksignore

	var err error
	if in.files, err = jailfs.Open("/"); err != nil {
		return err
	}
	in.files.Hide(in.hiding.on)
	if in.Door { // before the standard streams become init's own
		if in.listener, err = openDoor(); err != nil {
			return errors.Join(err, in.files.Close())
		}
	}
	in.children = make(chan os.Signal, 1)
	if err := becomeInit(in.children); err != nil {
		return errors.Join(err, in.files.Close())
	}
	if in.Door {
		if err := protect(); err != nil {
			return errors.Join(err, in.listener.Close(), in.files.Close())
		}
	} else {
		if in.listener, err = listen(in.Socket); err != nil {
			return errors.Join(err, in.files.Close())
		}
	}
	return nil
}

// Serve answers until ctx ends. What runs goes on then: the daemon ends jails.
func (in *Init) Serve(ctx context.Context) error {
	in.wg.Go(func() { in.reapLoop(ctx) })
	stop := context.AfterFunc(ctx, in.shut)
	defer stop()
	defer in.wg.Wait()

	for {
		conn, err := in.listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil { // no descriptors left, or the peer has gone
			time.Sleep(5 * time.Millisecond)
			continue
		}
		in.admit(conn)
	}
}

// Close releases what Open took.
func (in *Init) Close() error {
	if in.listener == nil {
		return nil
	}
	in.shut()
	in.closeDoorways()
	in.wg.Wait()
	return in.files.Close()
}

func (in *Init) shut() {
	in.listener.Close()
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	for c := range in.open {
		c.net.Close()
	}
}

// admit serves conn, or refuses it if there are too many.
func (in *Init) admit(conn net.Conn) {
	select {
	case in.conns <- struct{}{}:
	default:
		protocol.NewWriter(conn).JSON(protocol.FrameError, protocol.NewFailure(
			fault.Newf(fault.Exhausted, "init", "", "%d connections to the jail are open", maxConns)))
		conn.Close()
		return
	}
	c := newConn(conn)
	in.enter(c)
	in.wg.Go(func() {
		in.serve(c)
		in.leave(c)
		<-in.conns
	})
}

// enter records a connection. While init is being parked it is turned away;
// the first one after that wakes a parked init.
func (in *Init) enter(c *conn) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.open[c] = struct{}{}
	if in.closed {
		c.net.Close()
	}
	switch {
	case in.parking != nil:
		c.giveUp()
	case in.parked:
		in.goOn()
	}
}

// leave forgets a connection that is closed.
func (in *Init) leave(c *conn) {
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.open, c)
	in.fewer.wake()
}

// listen binds path for the owner alone, in place of whatever an earlier init
// left there.
func listen(path string) (net.Listener, error) {
	addr := path
	if len(path) > 100 { // sun_path has 108 bytes
		dir, err := os.Open(dirOf(path))
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		addr = fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), path[len(dirOf(path))+1:])
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	old := syscall.Umask(0o177)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: addr, Net: "unix"})
	syscall.Umask(old)
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the name may be another init's by then
	return l, nil
}

func dirOf(path string) string {
	for i := len(path) - 1; i > 0; i-- {
		if path[i] == '/' {
			return path[:i]
		}
	}
	return "."
}

// reapLoop waits for every child that dies, also those it inherits.
func (in *Init) reapLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-in.children:
			in.reap()
		}
	}
}

func (in *Init) reap() {
	in.pids.Lock()
	defer in.pids.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if p := in.byPID[pid]; p != nil {
			delete(in.byPID, pid)
			p.exit(status)
		}
	}
}

// reserve takes the identifier of a command about to be started.
func (in *Init) reserve(x id.Exec) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if _, ok := in.execs[x]; ok {
		return fault.Newf(fault.Conflict, opExec, string(x), "there is a command of this id already")
	}
	if running := len(in.execs) - len(in.finished); running >= protocol.MaxRunning {
		return fault.Newf(fault.Exhausted, opExec, string(x), "%d commands are running in the jail", running)
	}
	in.execs[x] = nil
	return nil
}

// settle gives the reserved identifier to p, or frees it if p is nil.
func (in *Init) settle(x id.Exec, p *process) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if p == nil {
		delete(in.execs, x)
		return
	}
	in.execs[x] = p
}

func (in *Init) find(x id.Exec) (*process, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if p := in.execs[x]; p != nil {
		return p, nil
	}
	return nil, fault.Newf(fault.NotFound, "exec", string(x), "no such command, or it was forgotten")
}

// list returns every command, oldest first.
func (in *Init) list() []protocol.ExecStatus {
	in.mu.Lock()
	var all []*process
	for _, p := range in.execs {
		if p != nil {
			all = append(all, p)
		}
	}
	in.mu.Unlock()

	statuses := make([]protocol.ExecStatus, len(all))
	for i, p := range all {
		statuses[i] = p.snapshot()
	}
	slices.SortFunc(statuses, func(a, b protocol.ExecStatus) int {
		return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.ID, b.ID))
	})
	return statuses
}

// retire remembers that p has ended, and forgets the oldest if there are too
// many or their output takes too much memory. in.mu is held.
//
// +checklocks:in.mu
func (in *Init) retire(p *process) {
	in.finished = append(in.finished, p)
	kept := 0
	for _, f := range in.finished {
		kept += f.memory()
	}
	for len(in.finished) > protocol.MaxFinished || kept > finishedKept && len(in.finished) > 1 {
		kept -= in.finished[0].memory()
		in.drop(in.finished[0])
	}
}

// drop removes a finished command. in.mu is held.
//
// +checklocks:in.mu
func (in *Init) drop(p *process) {
	in.finished = slices.DeleteFunc(in.finished, func(f *process) bool { return f == p })
	delete(in.execs, p.id)
	p.release()
}

func (in *Init) forget(x id.Exec) (protocol.ExecStatus, error) {
	p, err := in.find(x)
	if err != nil {
		return protocol.ExecStatus{}, err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if !slices.Contains(in.finished, p) {
		return protocol.ExecStatus{}, fault.Newf(fault.Conflict, "exec.Forget", string(x), "the command is still running")
	}
	status := p.snapshot()
	in.drop(p)
	return status, nil
}
