package microvm

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/jail/guest/wire"
)

// openTestLink returns a link to an agent that is a handler of this test.
func openTestLink(t *testing.T, agent http.HandlerFunc) *link {
	t.Helper()
	dir := t.TempDir()
	port, err := net.Listen("unix", filepath.Join(dir, "port"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { port.Close() })
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: agent, Protocols: protocols}
	t.Cleanup(func() { server.Close() })
	go server.Serve(&greetingListener{port})
	l, err := openLink(func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", filepath.Join(dir, "port"))
	}, filepath.Join(dir, "init"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	return l
}

// A greetingListener answers the greeting of each connection.
type greetingListener struct{ net.Listener }

func (l *greetingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	greeted, err := wire.NewGuestPort(c).Await()
	if err != nil {
		return nil, err
	}
	return &greetedConn{c, greeted}, nil
}

type greetedConn struct {
	net.Conn
	in io.Reader
}

func (c *greetedConn) Read(b []byte) (int, error) { return c.in.Read(b) }

func TestAnswersOfHostileAgent(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"no JSON": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "x") },
		"endless": func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := w.Write(bytes.Repeat([]byte(" "), 64<<10)); err != nil {
					return
				}
			}
		},
		"large header":   func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) },
		"status":         func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) },
		"reset":          func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"half an answer": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "{"); panic(http.ErrAbortHandler) },
		"another location": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		},
		"no answer": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			l := openTestLink(t, answer)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			var s wire.Stats
			began := time.Now()
			if err := l.call(ctx, wire.StatsPath, struct{}{}, &s); !errors.Is(err, fault.Unavailable) {
				t.Errorf("call = %v, want unavailable", err)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("the call took %v", took)
			}
		})
	}
}

func TestFailureOfAgent(t *testing.T) {
	l := openTestLink(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		io.WriteString(w, `{"kind":"conflict","message":"the jail is not set up"}`)
	})
	var s wire.Stats
	if err := l.call(t.Context(), wire.StatsPath, struct{}{}, &s); !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "not set up") {
		t.Errorf("call = %v, want the failure of the agent", err)
	}
}

// dialInit connects to the socket of a link as a client of init.
func dialInit(t *testing.T, l *link) *net.UnixConn {
	t.Helper()
	c, err := net.Dial("unix", l.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(10 * time.Second))
	return c.(*net.UnixConn)
}

func TestConnectionToInit(t *testing.T) {
	l := openTestLink(t, func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).Flush()
		io.Copy(w, r.Body) // until the client has closed its side
	})
	sent := bytes.Repeat([]byte("0123456789"), 300_000)
	c := dialInit(t, l)
	go func() {
		c.Write(sent)
		c.CloseWrite()
	}()
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("received %d bytes, %v, want %d", len(got), err, len(sent))
	}
}

// A client sees the end of its connection although it has not closed its own side, whatever the agent does.
func TestConnectionToInitEnds(t *testing.T) {
	for name, agent := range map[string]http.HandlerFunc{
		"at its end":    func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "text") },
		"reset":         func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "text"); panic(http.ErrAbortHandler) },
		"not connected": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusConflict) },
	} {
		t.Run(name, func(t *testing.T) {
			c := dialInit(t, openTestLink(t, agent))
			got, err := io.ReadAll(c)
			if err != nil || len(got) > 0 && string(got) != "text" {
				t.Errorf("received %q, %v, want the end", got, err)
			}
		})
	}
}

// The next request makes a new connection after one has ended.
func TestLinkConnectsAgain(t *testing.T) {
	calls := 0
	l := openTestLink(t, func(w http.ResponseWriter, _ *http.Request) {
		calls++
		io.WriteString(w, "{}")
	})
	var s wire.Stats
	for range 3 {
		if err := l.call(t.Context(), wire.StatsPath, struct{}{}, &s); err != nil {
			t.Fatal(err)
		}
		l.mu.Lock()
		l.conn.Close()
		l.mu.Unlock()
	}
	if calls != 3 {
		t.Errorf("%d calls arrived, want 3", calls)
	}
}
