package pages

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A Server loads the memory of the branches of one set of images.
type Server struct {
	socket *net.UnixListener
	path   string        // path of the socket
	wake   chan struct{} // capacity 1: a process may have exited

	mu sync.Mutex
	// +checklocks:mu
	branches map[string]*branch
	// +checklocks:mu
	files map[node]*content
	// +checklocks:mu
	used time.Time // when the last branch ended
	// +checklocks:mu
	closing bool // no branch is accepted
}

type node struct{ dev, ino uint64 }

// A content is a pages file, mapped as long as the server lives. The file stays open and
// locked, so that InUse detects it.
type content struct {
	b []byte
	f *os.File
}

const (
	lookEvery = 5 * time.Second
	idleTime  = 30 * time.Second // a server without a branch exits after this time
)

// Main runs the server process. It uses the socket that Start created at path and returns after
// an idle time without a branch.
func Main(path string) error {
	var most unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &most); err == nil {
		most.Cur = max(most.Max, 1<<20) // each forked process needs a descriptor
		most.Max = most.Cur
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &most) // best effort: this may need a privilege
	}
	f := os.NewFile(socketFD, "socket")
	l, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("use the inherited socket: %w", err)
	}
	f.Close()
	unix.CloseOnExec(socketFD)
	socket, ok := l.(*net.UnixListener)
	if !ok {
		return errors.New("the socket is not a unix socket")
	}
	socket.SetUnlinkOnClose(false) // its path as seen by the package is that of Start's descriptor
	s := &Server{
		socket: socket, path: path, wake: make(chan struct{}, 1),
		branches: map[string]*branch{}, files: map[node]*content{}, used: time.Now(),
	}
	go s.watch()
	return s.serve()
}

// serve accepts connections until the socket is closed.
func (s *Server) serve() error {
	for {
		conn, err := s.socket.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept a client: %w", err)
		}
		go s.talk(conn)
	}
}

// watch periodically drops exited processes and stops an idle server.
func (s *Server) watch() {
	tick := time.NewTicker(lookEvery)
	for {
		select {
		case <-tick.C:
		case <-s.wake:
		}
		s.mu.Lock()
		var all []*branch
		for _, b := range s.branches {
			all = append(all, b)
		}
		if len(all) > 0 {
			s.used = time.Now()
		}
		idle := time.Since(s.used) > idleTime
		if idle {
			// Remove the socket first: a client that is disconnected later starts a new
			// server at that path.
			os.Remove(s.path)
			os.Remove(s.path + ".log")
			s.closing = true
		}
		s.mu.Unlock()
		for _, b := range all {
			b.look()
		}
		if idle {
			s.socket.Close()
			return
		}
	}
}

func (s *Server) look() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Server) forget(b *branch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.branches[b.name] == b {
		delete(s.branches, b.name)
	}
	s.used = time.Now()
}

// mapped returns the mapped pages file of a task.
func (s *Server) mapped(dir string, t Task) ([]byte, error) {
	if len(t.Runs) == 0 {
		return nil, nil
	}
	if filepath.Base(t.File) != t.File {
		return nil, fmt.Errorf("%q is not the name of a pages file", t.File)
	}
	f, err := os.Open(filepath.Join(dir, t.File))
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, fmt.Errorf("stat %s: %w", t.File, err)
	}
	for _, r := range t.Runs {
		if n := int64(r.End - r.Start); n > st.Size || r.Off > st.Size-n {
			f.Close()
			return nil, fmt.Errorf("%s is truncated", t.File)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	of := node{uint64(st.Dev), st.Ino}
	if c, ok := s.files[of]; ok {
		f.Close()
		return c.b, nil
	}
	var b []byte
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if err == nil {
		b, err = unix.Mmap(int(f.Fd()), 0, int(st.Size), unix.PROT_READ, unix.MAP_SHARED)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("map %s: %w", t.File, err)
	}
	s.files[of] = &content{b, f}
	return b, nil
}

// A request is a request of a Client.
type request struct {
	Op     string `json:"op"` // serve, watch, fill, left
	Name   string `json:"name"`
	Dir    string `json:"dir,omitempty"`
	Marker string `json:"marker,omitempty"`
}

// A reply answers a request. On the connection of serve and watch a second reply reports the
// result of the branch.
type reply struct {
	PID   int    `json:"pid"`
	Left  int64  `json:"left,omitempty"`
	None  bool   `json:"none,omitempty"` // the branch does not exist
	Error string `json:"error,omitempty"`
}

// talk handles one connection.
func (s *Server) talk(conn *net.UnixConn) {
	defer conn.Close()
	var q request
	if json.NewDecoder(conn).Decode(&q) != nil {
		return
	}
	say := func(r reply, err error) {
		r.PID = os.Getpid()
		if err != nil {
			r.Error = err.Error()
		}
		json.NewEncoder(conn).Encode(r)
	}
	if q.Op == "serve" {
		s.take(conn, q, say)
		return
	}
	s.mu.Lock()
	b := s.branches[q.Name]
	s.mu.Unlock()
	switch {
	case b == nil:
		say(reply{None: true}, nil)
	case q.Op == "watch":
		say(reply{}, nil)
		b.await(conn, say)
	case q.Op == "fill":
		say(reply{}, b.fill())
	case q.Op == "left":
		b.look()
		say(reply{Left: b.left()}, nil)
	default:
		say(reply{}, errors.New("unknown operation "+strconv.Quote(q.Op)))
	}
}

// take registers a branch. If the requester disconnects before the processes exist, the branch
// is cancelled.
func (s *Server) take(conn *net.UnixConn, q request, say func(reply, error)) {
	b, err := s.newBranch(q.Name, q.Dir, q.Marker)
	if err == nil {
		s.mu.Lock()
		switch {
		case s.closing:
			// No reply: Client.Serve then returns ErrNoServer, and its caller starts a server.
			s.mu.Unlock()
			b.socket.Close()
			return
		case s.branches[q.Name] != nil:
			err = errors.New("branch already exists")
			b.socket.Close()
		default:
			s.branches[q.Name] = b
		}
		s.mu.Unlock()
	}
	say(reply{}, err)
	if err != nil {
		return
	}
	go b.receive()
	b.await(conn, say)
}

// await sends the result of the branch to the client, if the client waits for it.
func (b *branch) await(conn *net.UnixConn, say func(reply, error)) {
	left := make(chan struct{})
	go func() {
		defer close(left)
		conn.Read(make([]byte, 1)) // returns when the client disconnects
	}()
	select {
	case <-b.gone:
		b.mu.Lock()
		err := b.err
		b.mu.Unlock()
		say(reply{}, err)
	case <-left:
		b.forgo() // this also stops receive
		b.socket.Close()
		b.server.look()
	}
}
