// Package wire is what the daemon and the guest agent of a virtual machine say to each other.
//
// They are connected by a stream of bytes, the control port of the machine. Over it the daemon is
// the client and the agent the server of HTTP/2, so that requests run concurrently and none can
// block another one. The stream can be interrupted at any byte when a daemon ends and another one
// connects. Each connection therefore begins with a greeting, before which both ends discard what
// is left of the connection before.
//
// The daemon does not trust the agent: a jail that has taken over its kernel can send anything.
package wire

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/internal/text"
)

// Port is the name of the control port.
const Port = "glasshouse.control"

// VsockPort is the number of the control port in machines without a serial port. Only root can listen on it.
const VsockPort = 52

// Paths of the machine's initial file system.
const (
	AgentPath   = "/init"
	InitProgram = "/glasshouse-init"
	ModulesDir  = "/modules" // loaded in the order of their names
)

// The disk with the workspace: its serial number, and its directory with the files.
const (
	WorkspaceDisk = "workspace"
	WorkspaceRoot = "root"
)

// The paths of the agent's requests. All are POST requests with JSON bodies, except for Init, which
// is a stream in both directions.
const (
	SetupPath   = "/setup"   // Setup: starts the jail
	StatsPath   = "/stats"   // returns Stats
	NetworkPath = "/network" // Network: closes the jail's connections to others, and changes its address
	FreezePath  = "/freeze"  // freezes the jail, and writes its files to the disk
	ThawPath    = "/thaw"    // Resume: thaws the jail
	StopPath    = "/stop"    // ends the jail, writes its files to the disk, and switches the machine off
	InitPath    = "/init"    // a connection to the jail's init
	EventsPath  = "/events"  // a request to the recorder of package observe/guest
	SyncPath    = "/sync"    // writes the files of the jail to the disk
	ChangesPath = "/changes" // Changes: returns a list of jail.Change

	SecretKeyPath   = "/secrets/key"  // SecretKey: returns another, for the next SecretsPath
	SecretsPath     = "/secrets"      // SealedSecrets: makes exactly these secrets visible
	HideSecretsPath = "/secrets/hide" // removes all secrets, or returns fault.Conflict if one is in use
	AccountPath     = "/account"      // Account: returns another with ids
)

// A Setup describes the jail that the agent starts.
type Setup struct {
	Resume
	Layers []string `json:"layers"`          // serial numbers of the disks with the read-only layers, topmost first
	Volume string   `json:"volume"`          // serial number of the disk with the writable layer
	Other  string   `json:"other"`           // serial number of the disk with the writable layer that Changes compares with; "" is none
	Disks  []string `json:"disks,omitempty"` // the names of all disks in the order of their devices, if they have no serial numbers
	Base   []File   `json:"base"`
	Mounts []Mount  `json:"mounts,omitempty"`
	Limits Limits   `json:"limits"`

	Workspace string  `json:"workspace,omitempty"` // where the disk with the workspace is mounted; "" is no such disk
	Network   Network `json:"network"`
}

// A Network describes the jail's network.
type Network struct {
	Connected bool       `json:"connected"` // false: only loopback
	Address   netip.Addr `json:"address"`   // in its group; the zero value is none
}

// A Mount is a disk with a copy of a file or directory of the host, which the jail can only read.
type Mount struct {
	Disk   string `json:"disk"`   // serial number
	Target string `json:"target"` // absolute path in the jail
	File   bool   `json:"file"`   // MountedFile of the disk is mounted
}

// MountedFile is the only file of a disk with one file.
const MountedFile = "file"

// Limits are the limits of the jail in the guest.
type Limits struct {
	MemoryBytes int64 `json:"memory_bytes"`
	PIDs        int64 `json:"pids"` // with the threads of init
}

// A File is a file or directory of a layer that is not a disk. It belongs to root of the jail.
type File struct {
	Name string `json:"name"` // without a leading slash
	Mode uint32 `json:"mode"` // as os.FileMode
	Data []byte `json:"data,omitempty"`
}

// A Resume is what has changed while a machine was frozen, or since the snapshot that it was restored
// from.
type Resume struct {
	Clock    time.Time `json:"clock"`  // of the host
	Uptime   int64     `json:"uptime"` // the host's monotonic clock, in nanoseconds
	Seed     []byte    `json:"seed"`   // for the random numbers of the kernel; other machines may have the same state
	Hostname string    `json:"hostname"`
	Identity []File    `json:"identity"` // the layer with the files that contain the host name
}

// Stats are the statistics of the jail as its kernel sees them.
type Stats struct {
	MemoryBytes int64 `json:"memory_bytes"`
	CacheBytes  int64 `json:"cache_bytes"`
	MemoryPeak  int64 `json:"memory_peak"`
	PIDs        int64 `json:"pids"`
	OOMKills    int64 `json:"oom_kills"`
	DiskBytes   int64 `json:"disk_bytes"`
}

// Changes selects changes of the files of the jail.
type Changes struct {
	Other bool   `json:"other,omitempty"` // those between the other disk and that of the jail
	Below string `json:"below,omitempty"` // as in jail.ChangesOptions, and the next three
	Text  bool   `json:"text,omitempty"`
	After string `json:"after,omitempty"`

	Workspace bool `json:"workspace,omitempty"`
}

// A Failure is the body of a response with an error status.
type Failure struct {
	Kind    fault.Kind `json:"kind"`
	Message string     `json:"message"`
	Remedy  string     `json:"remedy,omitempty"`
}

// FailureOf returns the failure that describes an error.
func FailureOf(err error) Failure {
	return Failure{fault.KindOf(err), err.Error(), fault.RemedyOf(err)}
}

// Fault returns the error that a failure describes. It may come from a hostile guest.
func (f Failure) Fault(op string) error {
	return &fault.Error{Op: op, Kind: f.Kind, Err: errors.New(text.ForTerminal(text.Clip(f.Message, 2000))), Remedy: text.ForTerminal(text.Clip(f.Remedy, 200))}
}

// A greeting consists of four messages: the daemon repeats hello until the agent answers welcome, and
// then sends start, which the agent answers with started. What either end has read before its last
// message of these is left of an earlier connection. Each message is a mark, its kind, and a random
// number of the daemon, which tells it from those of any other greeting.
const (
	mark = "\x00glasshouse\x00"

	hello   = 'h'
	welcome = 'w'
	start   = 's'
	started = 'r'
)

type number [16]byte

func message(kind byte, n number) []byte { return append(append([]byte(mark), kind), n[:]...) }

// maxStale bounds what an end discards during a greeting. The buffers between the ends are smaller.
const maxStale = 64 << 20

// repeatAfter is the time after which the daemon repeats hello: an agent that has not noticed yet
// that the connection before has ended may have discarded it.
const repeatAfter = 300 * time.Millisecond

// Greet greets the agent and returns the connection to it. It waits for the agent until ctx ends.
func Greet(ctx context.Context, c net.Conn) (_ net.Conn, err error) {
	defer func() {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			err = fmt.Errorf("greet the guest: %w", err)
		}
	}()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var own number
	rand.Read(own[:])
	in := bufio.NewReader(c)

	// The agent can be about to answer a second hello, so reading never waits for writing.
	answered, sent := make(chan struct{}), make(chan error, 1)
	go func() {
		err := repeat(c, message(hello, own), answered)
		if err == nil {
			_, err = c.Write(message(start, own))
		}
		sent <- err
	}()
	err = await(in, message(welcome, own))
	close(answered)
	if err == nil {
		err = await(in, message(started, own))
	}
	if err != nil { // the write may wait for an agent that does not read
		c.SetWriteDeadline(time.Unix(1, 0))
	}
	if err := errors.Join(err, <-sent); err != nil {
		return nil, err
	}
	return &bufferedConn{c, in}, nil
}

// repeat writes a message at intervals until done is closed.
func repeat(w io.Writer, message []byte, done <-chan struct{}) error {
	tick := time.NewTicker(repeatAfter)
	defer tick.Stop()
	for {
		if _, err := w.Write(message); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-done:
			return nil
		}
	}
}

// A GuestPort is the guest's end of the control port.
type GuestPort struct {
	rw io.ReadWriteCloser
	in *bufio.Reader

	greeted bool // the last connection has ended because a daemon greets
}

// NewGuestPort returns a port that was opened.
func NewGuestPort(rw io.ReadWriteCloser) *GuestPort {
	return &GuestPort{rw: rw, in: bufio.NewReaderSize(rw, 64<<10)}
}

// Greeted reports whether a connection has ended because a daemon greets, so that Await can be
// called again. Otherwise the port is closed.
func (p *GuestPort) Greeted() bool { return p.greeted }

// Await answers the greeting of a daemon and returns the connection to it.
func (p *GuestPort) Await() (io.ReadWriteCloser, error) {
	p.greeted = false
	var greeted number
	for {
		kind, n, err := next(p.in)
		if err != nil {
			return nil, err
		}
		switch {
		case kind == hello:
			greeted = n
			_, err = p.rw.Write(message(welcome, n))
		case kind == start && n == greeted:
			if _, err := p.rw.Write(message(started, n)); err != nil {
				return nil, err
			}
			return &portConn{port: p}, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// A portConn is the connection over a port. It ends when a daemon greets: if a machine was frozen or
// saved meanwhile, the guest does not notice otherwise that the daemon before has disconnected.
type portConn struct {
	port *GuestPort

	mu sync.Mutex // locked while the connection writes, so that no late answer reaches the next one
	// +checklocks:mu
	ended bool
}

func (c *portConn) hasEnded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

func (c *portConn) Read(b []byte) (int, error) {
	if c.hasEnded() {
		return 0, io.EOF
	}
	in := c.port.in
	if in.Buffered() == 0 {
		if _, err := in.Peek(1); err != nil {
			return 0, err
		}
		// A greeting is written alone. One that arrives together with other bytes is repeated.
		if arrived, _ := in.Peek(in.Buffered()); bytes.HasPrefix(arrived, []byte(mark)) {
			c.mu.Lock()
			c.ended, c.port.greeted = true, true
			c.mu.Unlock()
			return 0, io.EOF
		}
	}
	return in.Read(b)
}

func (c *portConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return 0, io.ErrClosedPipe
	}
	return c.port.rw.Write(b)
}

// Close ends the connection, and closes the port if no other one begins.
func (c *portConn) Close() error {
	if c.hasEnded() {
		return nil
	}
	return c.port.rw.Close()
}

// next discards bytes until a message, and returns it.
func next(in *bufio.Reader) (kind byte, n number, err error) {
	if err := await(in, []byte(mark)); err != nil {
		return 0, n, err
	}
	kind, err = in.ReadByte()
	if err == nil {
		_, err = io.ReadFull(in, n[:])
	}
	return kind, n, err
}

var errNoGreeting = errors.New("the other end sends something else than a greeting")

// await discards bytes until it has read want.
func await(in *bufio.Reader, want []byte) error {
	last := make([]byte, len(want)) // a ring of the latest bytes
	for read := range maxStale {
		b, err := in.ReadByte()
		if err != nil {
			return err
		}
		at := read % len(last)
		last[at] = b
		if b == want[len(want)-1] && bytes.Equal(last[at+1:], want[:len(want)-at-1]) && bytes.Equal(last[:at+1], want[len(want)-at-1:]) {
			return nil
		}
	}
	return errNoGreeting
}

// A bufferedConn is a connection whose beginning was read already.
type bufferedConn struct {
	net.Conn
	in *bufio.Reader
}

func (c *bufferedConn) Read(b []byte) (int, error) { return c.in.Read(b) }
