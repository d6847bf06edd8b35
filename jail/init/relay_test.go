package jailinit_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"glasshouse/fault"
)

// forEachTransport runs a test with an init that has a unix socket, and with one that has an
// fdListener.
func forEachTransport(t *testing.T, f func(*testing.T, *jail)) {
	t.Run("socket", func(t *testing.T) { f(t, start(t)) })
	t.Run("door", func(t *testing.T) {
		j, _ := startWithFDListener(t)
		f(t, j)
	})
}

// echo accepts connections and sends all data back until EOF.
func echo(t *testing.T, l net.Listener) (port int) {
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	if a, ok := l.Addr().(*net.TCPAddr); ok {
		return a.Port
	}
	return 0
}

// exchange sends text and EOF, and returns the reply.
func exchange(t *testing.T, c net.Conn, text []byte) []byte {
	t.Helper()
	var said sync.WaitGroup
	defer said.Wait()
	said.Go(func() {
		if _, err := c.Write(text); err != nil {
			t.Error(err)
		}
		if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Error(err)
		}
	})
	got, err := io.ReadAll(c)
	if err != nil {
		t.Error(err)
	}
	return got
}

func TestDial(t *testing.T) {
	for _, host := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", host)
		if err != nil {
			t.Logf("this host has no %s: %v", host, err)
			continue
		}
		port := echo(t, l)
		forEachTransport(t, func(t *testing.T, j *jail) {
			text := bytes.Repeat([]byte("and so on. "), 50_000)
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					ctx, cancel := context.WithCancel(j.t.Context())
					c, err := j.Dial(ctx, port)
					if err != nil {
						t.Error(err)
						cancel()
						return
					}
					cancel() // the context covers only the dial
					defer c.Close()
					if got := exchange(t, c, text); !bytes.Equal(got, text) {
						t.Errorf("received %d bytes, want %d", len(got), len(text))
					}
				})
			}
			all.Wait()
		})
	}
}

func TestDialWithoutServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	j := start(t)
	if _, err := j.Dial(j.t.Context(), port); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Dial of a closed port = %v, want unavailable", err)
	}
	for _, port := range []int{0, -1, 1 << 16} {
		if _, err := j.Dial(j.t.Context(), port); !errors.Is(err, fault.Invalid) {
			t.Errorf("Dial(%d) = %v, want invalid", port, err)
		}
	}
}

func TestRelayEndsWithServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		c.Read(make([]byte, 1)) // waits until the connection is established
		c.Write([]byte("half"))
		c.(*net.TCPConn).SetLinger(0) // sends RST, as the end of a killed process does
		c.Close()
	}()
	j := start(t)
	c, err := j.Dial(j.t.Context(), l.Addr().(*net.TCPAddr).Port)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read after the end of the server = %v, want an end of the connection", err)
	}
}

func TestListenUnixSocket(t *testing.T) {
	forEachTransport(t, func(t *testing.T, j *jail) {
		path := filepath.Join(j.dir, "made", "call.sock")
		l, err := j.Listen(j.t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		echo(t, l)
		text := bytes.Repeat([]byte("and so on. "), 50_000)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				c, err := net.Dial("unix", path)
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				if got := exchange(t, c, text); !bytes.Equal(got, text) {
					t.Errorf("received %d bytes, want %d", len(got), len(text))
				}
			})
		}
		all.Wait()
	})
}

func TestListenPort(t *testing.T) {
	free, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	forEachTransport(t, func(t *testing.T, j *jail) {
		if _, err := j.ListenTCP(j.t.Context(), port); !errors.Is(err, fault.Conflict) {
			t.Errorf("ListenTCP at a used port = %v, want conflict", err)
		}
	})
	free.Close()
	j := start(t)
	l, err := j.ListenTCP(j.t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Addr().String(); got != free.Addr().String() {
		t.Errorf("Addr = %s", got)
	}
	echo(t, l)
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	text := bytes.Repeat([]byte("and so on. "), 50_000)
	if got := exchange(t, c, text); !bytes.Equal(got, text) {
		t.Errorf("received %d bytes, want %d", len(got), len(text))
	}
	for _, port := range []int{0, -1, 1 << 16} {
		if _, err := j.ListenTCP(j.t.Context(), port); !errors.Is(err, fault.Invalid) {
			t.Errorf("ListenTCP(%d) = %v, want invalid", port, err)
		}
	}
}

func TestEndpointQueuesConnections(t *testing.T) {
	j := start(t)
	path := filepath.Join(j.dir, "call.sock")
	first, err := j.Listen(j.t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error)
	go func() {
		_, err := first.Accept()
		accepted <- err
	}()
	first.Close()
	if err := <-accepted; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept of a closed listener = %v, want an error", err)
	}
	c, err := net.Dial("unix", path) // no Accept request is pending
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	second, err := j.Listen(j.t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	echo(t, second)
	if got := exchange(t, c, []byte("hello")); string(got) != "hello" {
		t.Errorf("reply through the next listener = %q", got)
	}
}

func TestListenValidatesAddress(t *testing.T) {
	j := start(t)
	for _, path := range []string{"", "call.sock", j.dir + "/../call.sock", j.dir + "/" + string(bytes.Repeat([]byte("x"), 120))} {
		if _, err := j.Listen(j.t.Context(), path); !errors.Is(err, fault.Invalid) {
			t.Errorf("Listen(%q) = %v, want invalid", path, err)
		}
	}
}

func TestParkClosesRelayedConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := echo(t, l)
	j := start(t)
	c, err := j.Dial(j.t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	path := filepath.Join(j.dir, "call.sock")
	calls, err := j.Listen(j.t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	echo(t, calls) // waits in Accept
	if err := j.Park(j.t.Context(), parkPatience); err != nil {
		t.Fatalf("Park: %v", err)
	}
	if n, err := c.Read(make([]byte, 1)); err == nil {
		t.Errorf("read %d bytes from a closed connection, want none", n)
	}
	j.Unpark()
	again, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if got := exchange(t, again, []byte("hello")); string(got) != "hello" {
		t.Errorf("reply through the listener after the park = %q", got)
	}
}
