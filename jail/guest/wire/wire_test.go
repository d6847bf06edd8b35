package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"
)

// greetOver greets over a port on which each end finds what earlier connections have left.
// before was written by the daemon before, and stale for it.
func greetOver(t *testing.T, before, stale []byte) (daemon net.Conn, agent io.ReadWriteCloser) {
	t.Helper()
	host, guest := net.Pipe()
	t.Cleanup(func() { host.Close(); guest.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	type result struct {
		c   io.ReadWriteCloser
		err error
	}
	done := make(chan result, 1)
	go func() {
		if len(stale) > 0 {
			if _, err := guest.Write(stale); err != nil {
				done <- result{nil, err}
				return
			}
		}
		c, err := NewGuestPort(guest).Await()
		done <- result{c, err}
	}()
	if len(before) > 0 { // also an empty write to a pipe waits for its reader
		if _, err := host.Write(before); err != nil {
			t.Fatal(err)
		}
	}
	daemon, err := Greet(ctx, host)
	if err != nil {
		t.Fatal(err)
	}
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	return daemon, r.c
}

func TestGreetingDiscardsEarlierConnection(t *testing.T) {
	random := make([]byte, 100_000)
	rand.NewChaCha8([32]byte{}).Read(random)
	var other number
	for name, left := range map[string][]byte{
		"nothing":            nil,
		"bytes":              random,
		"half a mark":        []byte(mark[:5]),
		"mark of a mark":     []byte(mark + mark),
		"half a hello":       message(hello, other)[:20],
		"hello":              message(hello, other),
		"a whole greeting":   append(message(hello, other), message(start, other)[:14]...),
		"welcome":            message(welcome, other),
		"started, then data": append(message(started, other), random...),
	} {
		t.Run(name, func(t *testing.T) {
			daemon, agent := greetOver(t, nil, left)
			exchange(t, daemon, agent)
			if bytes.Contains(left, []byte(mark)) {
				return // a message that is not complete takes the beginning of the next one with it, which is repeated
			}
			daemon, agent = greetOver(t, left, nil)
			exchange(t, daemon, agent)
		})
	}
}

// exchange checks that the first bytes in each direction are those that were written after the greeting.
func exchange(t *testing.T, daemon net.Conn, agent io.ReadWriteCloser) {
	t.Helper()
	for _, way := range []struct {
		to   io.Writer
		from io.Reader
	}{{daemon, agent}, {agent, daemon}} {
		go way.to.Write([]byte("text"))
		got := make([]byte, 4)
		if _, err := io.ReadFull(way.from, got); err != nil || string(got) != "text" {
			t.Errorf("after the greeting = %q, %v, want the text that was written", got, err)
		}
	}
}

// A busy agent answers each hello, although the daemon has sent start already.
func TestGreetingOfSlowAgent(t *testing.T) {
	host, guest := net.Pipe() // without buffers, a write waits for its reader
	defer host.Close()
	defer guest.Close()
	done := make(chan error, 1)
	go func() {
		_, err := NewGuestPort(slowPort{guest}).Await()
		done <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := Greet(ctx, host); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A slowPort answers after another greeting was sent.
type slowPort struct{ net.Conn }

func (p slowPort) Write(b []byte) (int, error) {
	time.Sleep(repeatAfter + repeatAfter/3)
	return p.Conn.Write(b)
}

// A machine that was saved does not notice that the daemon before has disconnected.
func TestGreetingEndsConnection(t *testing.T) {
	host, guest := net.Pipe()
	defer host.Close()
	port := NewGuestPort(guest)
	conns := make(chan io.ReadWriteCloser)
	var before io.Writer
	go func() {
		defer close(conns)
		for {
			c, err := port.Await()
			if err != nil {
				return
			}
			if before != nil {
				if _, err := before.Write([]byte("late")); err == nil {
					t.Error("a connection that has ended could be written to")
				}
			}
			conns <- c
			if _, err := io.Copy(io.Discard, c); err != nil || !port.Greeted() {
				return
			}
			before = c
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for n := range 3 {
		daemon, err := Greet(ctx, host)
		if err != nil {
			t.Fatalf("greeting %d: %v", n, err)
		}
		c := <-conns
		go c.Write([]byte("text"))
		got := make([]byte, 4)
		if _, err := io.ReadFull(daemon, got); err != nil || string(got) != "text" {
			t.Errorf("after greeting %d = %q, %v, want the text that was written", n, got, err)
		}
		if _, err := daemon.Write([]byte("\x00\x01 part of a frame")); err != nil {
			t.Fatal(err)
		}
	}
	host.Close()
	if _, more := <-conns; more {
		t.Error("there is a connection after the end of the port")
	}
}

// An agent that has not noticed the end of a connection discards the first greeting.
func TestGreetingIsRepeated(t *testing.T) {
	host, guest := net.Pipe()
	defer host.Close()
	defer guest.Close()
	done := make(chan error, 1)
	go func() {
		if _, err := io.ReadFull(guest, make([]byte, len(message(hello, number{})))); err != nil {
			done <- err
			return
		}
		_, err := NewGuestPort(guest).Await()
		done <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := Greet(ctx, host); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestGreetingEndsWithContext(t *testing.T) {
	host, guest := net.Pipe()
	defer host.Close()
	defer guest.Close()
	go io.Copy(io.Discard, guest)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, errors.New("too late"))
	defer cancel()
	if _, err := Greet(ctx, host); err == nil || err.Error() != "greet the guest: too late" {
		t.Errorf("greeting without an answer = %v, want the end of the context", err)
	}
}

// FuzzGreeting sends the daemon what a hostile guest could send.
func FuzzGreeting(f *testing.F) {
	f.Add([]byte("x"))
	f.Add(message(welcome, number{}))
	f.Add(message(started, number{}))
	f.Fuzz(func(t *testing.T, sent []byte) {
		host, guest := net.Pipe()
		defer host.Close()
		go io.Copy(io.Discard, guest)
		go func() {
			guest.Write(sent)
			guest.Close()
		}()
		if c, err := Greet(t.Context(), host); err == nil {
			t.Errorf("a greeting without its number was accepted: %v", c)
		}
	})
}
