package control_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// hostile returns a client of an init that answers every request with the same bytes.
func hostile(t testing.TB, answer []byte) *control.Client {
	t.Helper()
	return listener(t, func(c net.Conn) {
		defer c.Close()
		protocol.NewReader(c).Next()
		c.Write(answer)
	})
}

// shortDir returns a directory with a path that is short enough for a socket.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "control")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

const x = id.Exec("x-aaaaaaaaaaaa")

// calls are all methods that get a reply.
var calls = map[string]func(context.Context, *control.Client) error{
	"Hello": func(ctx context.Context, c *control.Client) error { _, err := c.Hello(ctx); return err },
	"Exec": func(ctx context.Context, c *control.Client) error {
		_, _, err := c.Exec(ctx, protocol.Exec{ID: x, Argv: []string{"true"}}, nil)
		return err
	},
	"ExecStream": func(ctx context.Context, c *control.Client) error {
		s, _, err := c.Exec(ctx, protocol.Exec{ID: x, Argv: []string{"true"}}, &control.AttachOptions{Lossless: true})
		return drain(s, err)
	},
	"Attach": func(ctx context.Context, c *control.Client) error {
		s, err := c.Attach(ctx, x, control.AttachOptions{From: -1, Follow: true})
		return drain(s, err)
	},
	"Stdin": func(ctx context.Context, c *control.Client) error {
		w, err := c.Stdin(ctx, x)
		if err != nil {
			return err
		}
		_, err = w.Write(make([]byte, 1<<20))
		return errors.Join(err, w.Close())
	},
	"Resize":     func(ctx context.Context, c *control.Client) error { return c.Resize(ctx, x, protocol.Size{}) },
	"Signal":     func(ctx context.Context, c *control.Client) error { return c.Signal(ctx, x, "TERM", true) },
	"Terminate":  func(ctx context.Context, c *control.Client) error { _, err := c.Terminate(ctx, "TERM"); return err },
	"Wait":       func(ctx context.Context, c *control.Client) error { _, err := c.Wait(ctx, x); return err },
	"ExecStatus": func(ctx context.Context, c *control.Client) error { _, err := c.ExecStatus(ctx, x); return err },
	"Execs":      func(ctx context.Context, c *control.Client) error { _, err := c.Execs(ctx); return err },
	"Forget":     func(ctx context.Context, c *control.Client) error { return c.Forget(ctx, x) },
	"Stat":       func(ctx context.Context, c *control.Client) error { _, err := c.Stat(ctx, "/"); return err },
	"List": func(ctx context.Context, c *control.Client) error {
		infos, _, err := c.List(ctx, "/d", "", 0)
		for _, i := range infos {
			if filepath.Dir(i.Path) != "/d" {
				panic(fmt.Sprintf("an entry of /d is %q", i.Path))
			}
		}
		return err
	},
	"Read": func(ctx context.Context, c *control.Client) error {
		r, _, err := c.Read(ctx, "/f", 0, 10)
		if err != nil {
			return err
		}
		defer r.Close()
		n, err := io.Copy(io.Discard, r)
		if n > 10 {
			panic("more than was asked for")
		}
		return err
	},
	"Write": func(ctx context.Context, c *control.Client) error {
		_, err := c.Write(ctx, "/f", strings.NewReader("x"), protocol.WriteOptions{})
		return err
	},
	"Mkdir":  func(ctx context.Context, c *control.Client) error { return c.Mkdir(ctx, "/d", 0, true) },
	"Remove": func(ctx context.Context, c *control.Client) error { return c.Remove(ctx, "/d", true) },
	"Move":   func(ctx context.Context, c *control.Client) error { return c.Move(ctx, "/a", "/b", true) },
	"Tar": func(ctx context.Context, c *control.Client) error {
		r, err := c.Tar(ctx, "/")
		if err != nil {
			return err
		}
		defer r.Close()
		_, err = io.Copy(io.Discard, r)
		return err
	},
	"Untar": func(ctx context.Context, c *control.Client) error { return c.Untar(ctx, "/", strings.NewReader("x")) },
	"Watch": func(ctx context.Context, c *control.Client) error {
		events, err := c.Watch(ctx, "/", true)
		if err != nil {
			return err
		}
		for range events {
		}
		return errors.New("the watch ended")
	},
	"Park": func(ctx context.Context, c *control.Client) error {
		defer c.Unpark()
		return c.Park(ctx, time.Second)
	},
	"Branched": func(ctx context.Context, c *control.Client) error {
		return c.Branched(ctx, protocol.Branched{Jail: "j-aaaaaaaaaaaa", Snapshot: "s-aaaaaaaaaaaa", Seed: make([]byte, protocol.SeedSize)})
	},
}

func TestMain(m *testing.M) {
	control.HurryBack()
	os.Exit(m.Run())
}

func drain(s *control.Stream, err error) error {
	if err != nil {
		return err
	}
	defer s.Close()
	for err == nil {
		_, err = s.Next()
	}
	return err
}

func frame(kind protocol.Frame, payload string) string {
	n := len(payload)
	return string([]byte{byte(kind), byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}) + payload
}

func TestHostileRepliesAreRejected(t *testing.T) {
	status := frame(protocol.FrameReply, `{"id":"`+string(x)+`"}`)
	for what, answer := range map[string]string{
		"nothing":                         "",
		"no frame":                        "HTTP/1.1 200 OK\r\n\r\n",
		"half a frame":                    "\x02\x00\x00",
		"an endless frame":                "\x02\xff\xff\xff\xff",
		"no JSON":                         frame(protocol.FrameReply, "{"),
		"deep JSON":                       frame(protocol.FrameReply, strings.Repeat("[", 1<<20)),
		"a frame of the wrong kind":       frame(protocol.FrameRequest, "{}"),
		"another command's status":        frame(protocol.FrameReply, `{"id":"x-bbbbbbbbbbbb","type":"no","pid":-1}`) + "junk",
		"impossible numbers":              frame(protocol.FrameReply, `{"id":"`+string(x)+`","type":"file","size":-1,"code":99999,"oldest":-5}`) + "junk",
		"output out of order":             status + frame(protocol.FrameChunk, "\x01\x00\x00\x00\x00\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00\x00x"),
		"output of no stream":             status + frame(protocol.FrameChunk, "\x09\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00x"),
		"empty output":                    status + frame(protocol.FrameChunk, "\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
		"too much of a file":              frame(protocol.FrameReply, `{"type":"file"}`) + frame(protocol.FrameData, "more than ten bytes"),
		"a listing with paths":            frame(protocol.FrameReply, `[{"name":"../../etc/passwd","type":"file"}]`),
		"a listing of the directory":      frame(protocol.FrameReply, `[{"name":".","type":"dir"}]`) + frame(protocol.FrameEnd, "{}"),
		"a listing of the parent":         frame(protocol.FrameReply, `[{"name":"..","type":"dir"}]`) + frame(protocol.FrameEnd, "{}"),
		"a listing out of order":          frame(protocol.FrameReply, `[{"name":"b","type":"file"},{"name":"a","type":"file"}]`),
		"that it is always parked":        frame(protocol.FrameParked, "{}"),
		"that it is always parked then":   status + frame(protocol.FrameParked, "{}"),
		"stdin taken before it was given": frame(protocol.FrameReply, `{"id":"`+string(x)+`","counted":true}`) + frame(protocol.FrameAck, "\x00\x00\x00\x00\x7f\xff\xff\xff"),
		"stdin given back":                frame(protocol.FrameReply, `{"id":"`+string(x)+`","counted":true}`) + frame(protocol.FrameParked, `{"taken":-5}`),
		"more after it has parked":        frame(protocol.FrameReply, "") + frame(protocol.FrameReply, ""),
		"an event of no kind":             frame(protocol.FrameReply, "{}") + frame(protocol.FrameEvent, `{"op":"format disk"}`),
	} {
		c := hostile(t, []byte(answer))
		for name, call := range calls {
			if err := finish(t, call, c); err == nil && answerMeansNothing(what, name) {
				t.Errorf("%s: %s = nil, want an error", what, name)
			}
		}
	}
}

// A command whose jail died has not ended with its output complete and exit code 0.
func TestStreamOfDeadJailIsIncomplete(t *testing.T) {
	status := frame(protocol.FrameReply, `{"id":"`+string(x)+`","running":true}`)
	output := frame(protocol.FrameChunk, "\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00x")
	for what, answer := range map[string]string{"before its output": status, "after its output": status + output} {
		for name, call := range calls {
			if name != "ExecStream" && name != "Attach" {
				continue
			}
			t.Run(name+" "+what, func(t *testing.T) {
				err := finish(t, call, hostile(t, []byte(answer)))
				if !errors.Is(err, fault.Unavailable) || errors.Is(err, io.EOF) {
					t.Errorf("got %v, want %v and not %v", err, fault.Unavailable, io.EOF)
				}
			})
		}
	}
}

// answerMeansNothing reports whether a reply cannot be invalid for a call.
func answerMeansNothing(what, call string) bool {
	switch call {
	case "Hello", "Terminate", "Mkdir", "Remove", "Move", "Branched", "Park":
		return what == "that it is always parked" || call == "Park" && what == "more after it has parked" || what == "nothing" || what == "no frame" || what == "half a frame" || what == "an endless frame" || what == "a frame of the wrong kind"
	case "Exec", "Resize", "Signal", "Wait", "ExecStatus", "Forget":
		return !strings.Contains(what, "output") && !strings.HasPrefix(what, "stdin") && !strings.HasSuffix(what, "then")
	case "Stat":
		return what != "too much of a file"
	case "Tar": // its replies have the form of listings
		return !strings.HasPrefix(what, "a listing of the")
	}
	return true
}

// finish makes a call that must end soon.
func finish(t testing.TB, call func(context.Context, *control.Client) error, c *control.Client) error {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := call(ctx, c)
	if ctx.Err() != nil {
		t.Errorf("timeout: the call has not returned: %v", err)
	}
	return err
}

func TestInitThatDoesNotReply(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", dir+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // accepts no connection
	for name, call := range calls {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		began := time.Now()
		err := call(ctx, control.Dial(dir+"/s"))
		if !errors.Is(err, fault.Timeout) || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 30*time.Second {
			t.Errorf("%s: %v after %v, want a timeout", name, err, time.Since(began))
		}
		cancel()
	}
}

// Root in a jail can replace init's socket by a symlink. The daemon, which is root on the
// host, must not connect to its target.
func TestSymlinkIsNotFollowed(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", dir+"/host-service")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Symlink(dir+"/host-service", dir+"/init.sock"); err != nil {
		t.Fatal(err)
	}
	reached := make(chan struct{}, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			c.Close()
			reached <- struct{}{}
		}
	}()
	if _, err := control.Dial(dir + "/init.sock").Hello(t.Context()); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Hello = %v, want unavailable", err)
	}
	select {
	case <-reached:
		t.Error("the client has followed the symlink")
	case <-time.After(50 * time.Millisecond):
	}
	if err := os.WriteFile(dir+"/plain", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := control.Dial(dir + "/plain").Hello(t.Context()); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Hello to a plain file: %v, want unavailable", err)
	}
}

func FuzzClient(f *testing.F) {
	var b bytes.Buffer
	w := protocol.NewWriter(&b)
	w.JSON(protocol.FrameReply, protocol.ExecStatus{ID: x})
	w.Chunk(protocol.Chunk{Stream: protocol.Stdout, Data: []byte("hi")})
	w.JSON(protocol.FrameEnd, protocol.ExecStatus{ID: x, Next: 2})
	f.Add(b.Bytes())
	b.Reset()
	w.JSON(protocol.FrameReply, []protocol.FileInfo{{Name: "a", Type: "file"}})
	w.JSON(protocol.FrameEnd, protocol.Listed{More: true})
	f.Add(b.Bytes())
	b.Reset()
	w.JSON(protocol.FrameReply, protocol.FileInfo{Name: "a", Type: "file"})
	w.Data([]byte("0123456789"))
	w.JSON(protocol.FrameEnd, nil)
	f.Add(b.Bytes())
	b.Reset()
	w.JSON(protocol.FrameReply, protocol.StdinBegun{ExecStatus: protocol.ExecStatus{ID: x}, Counted: true, Written: 9})
	w.Ack(1000)
	w.JSON(protocol.FrameParked, protocol.Parked{Acknowledged: 2000, Written: 2000})
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, answer []byte) {
		c := hostile(t, answer)
		for _, call := range calls {
			finish(t, call, c)
		}
	})
}

// lateTimer is a context whose deadline has passed, and whose timer has not fired yet.
type lateTimer struct {
	context.Context
	deadline time.Time
}

func (c lateTimer) Deadline() (time.Time, bool) { return c.deadline, true }

func TestPassedDeadlineIsTimeout(t *testing.T) {
	c := listener(t, func(c net.Conn) { c.Close() })
	deadline := time.Now()
	ctx, end := context.WithDeadline(t.Context(), deadline.Add(50*time.Millisecond))
	defer end()
	err := calls["Exec"](lateTimer{ctx, deadline}, c)
	if got := fault.KindOf(err); got != fault.Timeout {
		t.Errorf("Exec: got %v (%s), want %s", err, got, fault.Timeout)
	}
}
