// Package postgrestest starts a PostgreSQL server for a test from the host's package, and removes
// its files afterwards.
package postgrestest

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
)

// A Server is a running PostgreSQL server that listens on a unix socket only.
type Server struct {
	dir     string
	command func() *exec.Cmd
	log     bytes.Buffer
	stop    func(syscall.Signal) // stops the running server
	n       atomic.Int64
}

// Start starts a server that is stopped at the end of t. If the host has no PostgreSQL, it skips t.
func Start(t testing.TB) *Server {
	t.Helper()
	bin := find(t)
	cred := credential(t)

	// t.TempDir does not work: the server's user cannot access its parent directory, and its path can
	// be too long for a unix socket.
	dir, err := os.MkdirTemp("", "pg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if cred != nil {
		if err := os.Chown(dir, int(cred.Uid), int(cred.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(dir, "data")
	initdb := command(cred, filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	initdb.Dir = dir
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	s := &Server{dir: dir, command: func() *exec.Cmd {
		return command(cred, filepath.Join(bin, "postgres"), "-D", data, "-k", dir,
			"-c", "listen_addresses=", "-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=200")
	}}
	s.run(t)
	t.Cleanup(func() { // stops the process of the latest Restart as well
		s.stop(syscall.SIGQUIT)
		if t.Failed() {
			t.Logf("PostgreSQL said:\n%s", s.log.String())
		}
	})
	s.wait(t)
	return s
}

// Restart makes the server exit without a shutdown, which breaks all connections, and starts it again
// after a delay.
func (s *Server) Restart(t testing.TB, after time.Duration) {
	t.Helper()
	s.restart(t, syscall.SIGQUIT, after)
}

// Kill is like Restart, but kills all processes of the server.
func (s *Server) Kill(t testing.TB, after time.Duration) {
	t.Helper()
	s.restart(t, syscall.SIGKILL, after)
}

func (s *Server) restart(t testing.TB, signal syscall.Signal, after time.Duration) {
	t.Helper()
	s.stop(signal)
	time.Sleep(after)
	s.run(t)
	s.wait(t)
}

// URL returns the URL of a new, empty database.
func (s *Server) URL(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("test%d", s.n.Add(1))
	db, err := sql.Open("pgx", s.url("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("CREATE DATABASE " + name); err != nil {
		t.Fatal(err)
	}
	return s.url(name)
}

func (s *Server) url(database string) string {
	q := url.Values{"host": {s.dir}, "user": {"postgres"}, "sslmode": {"disable"}}
	return "postgres:///" + database + "?" + q.Encode()
}

// find returns the directory of the newest PostgreSQL installed.
func find(t testing.TB) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if path, err := exec.LookPath("initdb"); err == nil {
		found = append(found, path)
	}
	if len(found) == 0 {
		t.Skip("no PostgreSQL on this host: apt-get install postgresql")
	}
	slices.Sort(found)
	return filepath.Dir(found[len(found)-1])
}

// credential returns the user that the server runs as, because PostgreSQL refuses to run as root.
func credential(t testing.TB) *syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		t.Skip("no user postgres on this host, and PostgreSQL does not run as root")
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32)
	gid, _ := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

func command(cred *syscall.Credential, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	return cmd
}

// run runs the server until stop is called. If the test binary is killed, the kernel sends the
// server SIGQUIT, which is its immediate shutdown. The parent death signal is sent when the thread
// that forked ends (prctl(2)), so run keeps that thread.
func (s *Server) run(t testing.TB) {
	t.Helper()
	cmd := s.command()
	cmd.Stdout, cmd.Stderr = &s.log, &s.log
	cmd.Dir = "/"
	cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT
	started, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	s.stop = func(signal syscall.Signal) {
		if signal == syscall.SIGKILL {
			killChildren(cmd.Process.Pid)
		}
		cmd.Process.Signal(signal)
		<-done
	}
}

// killChildren kills the children of a server, which would otherwise notice its end later, and
// prevent a new one from starting. The server is stopped before, so that it has no further ones.
func killChildren(server int) {
	syscall.Kill(server, syscall.SIGSTOP)
	list, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", server, server))
	for field := range strings.FieldsSeq(string(list)) {
		if pid, err := strconv.Atoi(field); err == nil {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

func (s *Server) wait(t testing.TB) {
	t.Helper()
	db, err := sql.Open("pgx", s.url("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		err := db.PingContext(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("PostgreSQL does not answer: %v", errors.Join(err, ctx.Err()))
		case <-time.After(50 * time.Millisecond):
		}
	}
}
