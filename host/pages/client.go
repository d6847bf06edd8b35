package pages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// socketFD is the descriptor of the server's socket.
const socketFD = 3

// Start starts a server, a program that calls Main with its last argument, for the socket at
// sock. An existing socket is replaced. Crash output goes to sock.log. Start returns the
// server's pid. The server outlives this process.
func Start(sock string, argv ...string) (pid int, err error) {
	if err := os.Remove(sock); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("remove the earlier socket: %w", err)
	}
	l, err := listen(sock)
	if err != nil {
		return 0, fmt.Errorf("listen for clients of the page server: %w", err)
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	f, err := l.File()
	if err != nil {
		return 0, fmt.Errorf("pass the socket to the page server: %w", err)
	}
	defer f.Close()
	log, err := os.Create(sock + ".log")
	if err != nil {
		return 0, fmt.Errorf("create the log of the page server: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(argv[0], append(argv[1:], sock)...)
	// The server outlives the daemon. So it gets no signals of the daemon's terminal, keeps no
	// mount busy with its working directory, and inherits no secrets in the environment.
	cmd.Stderr = log
	cmd.Dir = "/"
	cmd.Env = []string{}
	cmd.ExtraFiles = []*os.File{f}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start page server: %w", err)
	}
	go cmd.Wait()
	// Protect the server from the OOM killer, because its death kills jails. Best effort: this
	// needs a privilege.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", cmd.Process.Pid), []byte("-1000"), 0)
	return cmd.Process.Pid, nil
}

// listen listens at a path of any length.
func listen(path string) (l *net.UnixListener, err error) {
	err = near(path, func(short string) error {
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
		return err
	})
	if err == nil {
		l.SetUnlinkOnClose(false)
	}
	return l, err
}

// near calls f with a short name for path, because a socket address has at most 107 bytes
// (unix(7)).
func near(path string, f func(short string) error) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return f(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
}

// A Client talks to the server at a socket.
type Client struct {
	Sock string
}

// ErrNoServer means that no server listens on the socket: the memory that branches had not yet
// loaded is lost.
var ErrNoServer = errors.New("the page server has exited")

// ErrUnknownBranch means that the server does not know the branch, so the branch needs no memory.
var ErrUnknownBranch = errors.New("the server has no such branch")

// ask sends one request and returns the reply. The connection stays open.
func (c Client) ask(ctx context.Context, q request) (conn net.Conn, r reply, err error) {
	err = near(c.Sock, func(short string) error {
		var d net.Dialer
		conn, err = d.DialContext(ctx, "unix", short)
		return err
	})
	if err != nil && ctx.Err() != nil {
		return nil, r, context.Cause(ctx)
	}
	if err != nil {
		return nil, r, fmt.Errorf("%w: %w", ErrNoServer, err)
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err = json.NewEncoder(conn).Encode(q)
	if err == nil {
		err = json.NewDecoder(conn).Decode(&r)
	}
	switch {
	case err != nil && ctx.Err() != nil: // after a cancellation the state of the server is unknown
		err = context.Cause(ctx)
	case err != nil:
		err = fmt.Errorf("%w: %w", ErrNoServer, err)
	}
	if err == nil && r.Error != "" {
		err = errors.New(r.Error)
	}
	if err == nil && r.None {
		err = ErrUnknownBranch
	}
	if err != nil {
		conn.Close()
		return nil, r, err
	}
	return conn, r, nil
}

// A Branch is a jail that is about to be restored from images in Dir, which contains its Map
// and CRIU's socket.
type Branch struct {
	Name   string
	Dir    string
	Marker string // a file that the server removes when all memory is loaded
}

// PutMap writes the map of a branch to the image directory dir.
func PutMap(dir string, m Map) error {
	return os.WriteFile(filepath.Join(dir, mapFile), m.Encode(), 0o600)
}

// Serve registers a branch with the server, which waits for its processes. Closing the Watch
// before they exist cancels the registration.
func (c Client) Serve(ctx context.Context, b Branch) (*Watch, error) {
	conn, _, err := c.ask(ctx, request{Op: "serve", Name: b.Name, Dir: b.Dir, Marker: b.Marker})
	if err != nil {
		return nil, err
	}
	return &Watch{conn}, nil
}

// Watch returns a Watch of a branch that an earlier process registered.
func (c Client) Watch(ctx context.Context, name string) (*Watch, error) {
	conn, _, err := c.ask(ctx, request{Op: "watch", Name: name})
	if err != nil {
		return nil, err
	}
	return &Watch{conn}, nil
}

// Fill loads all missing memory of a branch. Afterwards the branch does not need the server.
func (c Client) Fill(ctx context.Context, name string) error {
	conn, _, err := c.ask(ctx, request{Op: "fill", Name: name})
	if err == nil {
		conn.Close()
	}
	if errors.Is(err, ErrUnknownBranch) {
		return nil
	}
	return err
}

// Left returns the number of missing bytes of a branch.
func (c Client) Left(ctx context.Context, name string) (int64, error) {
	conn, r, err := c.ask(ctx, request{Op: "left", Name: name})
	if err == nil {
		conn.Close()
	}
	if errors.Is(err, ErrUnknownBranch) {
		return 0, nil
	}
	return r.Left, err
}

// A Watch waits for the result of a branch.
type Watch struct {
	conn net.Conn
}

// Wait returns nil when all memory is loaded, net.ErrClosed after Close, and another error if
// memory is lost.
func (w *Watch) Wait() error {
	var r reply
	err := json.NewDecoder(w.conn).Decode(&r)
	switch {
	case err == nil && r.Error != "":
		return errors.New(r.Error)
	case err == nil, errors.Is(err, net.ErrClosed):
		return err
	}
	return ErrNoServer
}

// Close ends the watch. The server continues to serve the branch.
func (w *Watch) Close() error { return w.conn.Close() }

// InUse reports whether a server has a pages file mapped. Removing such a file does not free
// its memory.
func InUse(name string) bool {
	f, err := os.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == unix.EWOULDBLOCK
}
