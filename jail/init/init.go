// Package jailinit implements init, PID 1 of a jail. Init reaps processes, and runs commands
// and transfers files for the daemon, which connects through a unix socket.
//
// Init must survive everything that the jail does to itself. Its memory is bounded: ring
// buffers bound output, and limits bound everything else. All threads are created at the start
// (see thread.Reserve), because the Go runtime aborts if it needs a thread and the jail has
// reached its process limit.
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
	jailfs "glasshouse/jail/fs"
	"glasshouse/jail/init/protocol"
)

const (
	maxConns     = 256
	ringBudget   = 32 << 20 // memory of the output of all commands
	finishedKept = 16 << 20 // memory of the output of finished commands
)

// Init serves one jail. Set the fields before Open.
type Init struct {
	Socket      string        // path to listen on
	FDListener  bool          // accept connections through standard input instead of Socket
	ReaderGrace time.Duration // how long a silent lossless reader may block its command; 0 means 10 s
	Idle        time.Duration // time without output that ends a command whose output is held open by others; 0 means 100 ms

	started   time.Time
	listener  net.Listener
	files     fileService
	secrets   secretMounts
	forks     chan struct{} // one per start or end of a command, separate so that they do not wait for files
	conns     chan struct{} // one per connection
	rings     budget
	endpoints endpoints
	children  chan os.Signal
	wg        sync.WaitGroup

	// The lock order is pids, mu, process.mu.

	// pids is held while a pid must not be reaped and therefore cannot be reused.
	pids sync.Mutex
	// +checklocks:pids
	byPID map[int]*process

	mu sync.Mutex
	// +checklocks:mu
	execs map[id.Exec]*process // nil while a command is being started
	// +checklocks:mu
	finished []*process // oldest first
	// +checklocks:mu
	open map[*conn]struct{}
	// +checklocks:mu
	connClosed broadcast // signals the removal of a connection from open
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	parking *conn // the connection of the Park request, or nil
	// +checklocks:mu
	parked bool // timers are stopped
	// +checklocks:mu
	forker *forker // starts commands with enforcement; nil without it
	// +checklocks:mu
	enforceListener *os.File // seccomp notification listener, or nil
	// +checklocks:mu
	unparkTimer *time.Timer // unparks if no client connects
}

// Open prepares the process to be an init and starts to listen.
func (in *Init) Open() error {
	in.ReaderGrace = cmp.Or(in.ReaderGrace, 10*time.Second)
	in.Idle = cmp.Or(in.Idle, 100*time.Millisecond)
	in.started = time.Now()
	in.files.slots = make(chan struct{}, fileSlots)
	in.forks = make(chan struct{}, forkSlots)
	in.conns = make(chan struct{}, maxConns)
	in.rings.left.Store(ringBudget)
	// No other goroutine uses in before Open returns.
	in.byPID = map[int]*process{}     // +checklocksignore
	in.execs = map[id.Exec]*process{} // +checklocksignore
	in.open = map[*conn]struct{}{}    // +checklocksignore

	var err error
	in.files.root, err = jailfs.Open("/")
	if err != nil {
		return err
	}
	in.files.root.Hide(in.secrets.contains)
	if in.FDListener { // before the standard streams are replaced
		in.listener, err = listenStdin()
		if err != nil {
			return errors.Join(err, in.files.root.Close())
		}
	}
	in.children = make(chan os.Signal, 1)
	if err := becomeInit(in.children); err != nil {
		return errors.Join(err, in.files.root.Close())
	}
	if in.FDListener {
		if err := protect(); err != nil {
			return errors.Join(err, in.listener.Close(), in.files.root.Close())
		}
	} else {
		if in.listener, err = listen(in.Socket); err != nil {
			return errors.Join(err, in.files.root.Close())
		}
	}
	return nil
}

// Serve serves requests until ctx ends. Commands continue to run; the daemon ends jails.
func (in *Init) Serve(ctx context.Context) error {
	in.wg.Go(func() { in.reapLoop(ctx) })
	stop := context.AfterFunc(ctx, in.closeAll)
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
		if err != nil { // no free descriptors, or the peer has closed the connection
			time.Sleep(5 * time.Millisecond)
			continue
		}
		in.admit(conn)
	}
}

// Close releases the resources of Open.
func (in *Init) Close() error {
	if in.listener == nil {
		return nil
	}
	in.closeAll()
	in.endpoints.closeAll()
	in.wg.Wait()
	return in.files.root.Close()
}

func (in *Init) closeAll() {
	in.listener.Close()
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	for c := range in.open {
		c.net.Close()
	}
}

// admit serves conn, or rejects it if there are too many connections.
func (in *Init) admit(conn net.Conn) {
	select {
	case in.conns <- struct{}{}:
	default:
		protocol.NewWriter(conn).JSON(protocol.FrameError, protocol.NewFailure(
			fault.Newf(fault.Exhausted, "jailinit.admit", "", "%d connections to the jail are open", maxConns)))
		conn.Close()
		return
	}
	c := newConn(conn)
	in.register(c)
	in.wg.Go(func() {
		in.serve(c)
		in.unregister(c)
		<-in.conns
	})
}

// register records a connection. During a Park request the connection is closed; the first
// connection after it unparks init.
func (in *Init) register(c *conn) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.open[c] = struct{}{}
	if in.closed {
		c.net.Close()
	}
	switch {
	case in.parking != nil:
		c.requestPark()
	case in.parked:
		in.unpark()
	}
}

// unregister removes a closed connection.
func (in *Init) unregister(c *conn) {
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.open, c)
	in.connClosed.send()
}

// listen listens on path with access for the owner only. It replaces the socket of an earlier
// init.
func listen(path string) (net.Listener, error) {
	addr := path
	if len(path) > 100 { // unix(7): sun_path has 108 bytes
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
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false) // the path may belong to another init at that time
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

// reapLoop reaps all children, including adopted orphans.
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

// reserve reserves the id of a command that is about to be started.
func (in *Init) reserve(x id.Exec) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if _, ok := in.execs[x]; ok {
		return fault.Newf(fault.Conflict, opExec, string(x), "a command with this id exists")
	}
	if running := len(in.execs) - len(in.finished); running >= protocol.MaxRunning {
		return fault.Newf(fault.Exhausted, opExec, string(x), "%d commands are running in the jail", running)
	}
	in.execs[x] = nil
	return nil
}

// publish assigns the reserved id to p, or releases it if p is nil.
func (in *Init) publish(x id.Exec, p *process) {
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
	return nil, fault.Newf(fault.NotFound, "exec", string(x), "no such command, or its status was removed")
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

// retire adds p to the finished commands, and removes the oldest ones if there are too many or
// their output uses too much memory. in.mu is held.
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
