package control_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// listener creates the socket of an init and returns a client. It serves each connection with
// serve, and closes all connections when the test ends.
func listener(t testing.TB, serve func(net.Conn)) *control.Client {
	t.Helper()
	l, err := net.Listen("unix", shortDir(t)+"/s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			go serve(c)
		}
	}()
	return control.Dial(l.Addr().String())
}

func TestCallsToStoppedInitTimeOut(t *testing.T) {
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			c := listener(t, func(net.Conn) {}) // accepts requests and does not reply
			c.Hurry(50 * time.Millisecond)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			err := call(ctx, c)
			if !errors.Is(err, fault.Timeout) {
				t.Fatalf("%s = %v, want a timeout", name, err)
			}
			if ctx.Err() != nil {
				t.Errorf("%s ended with its context, want the silence limit", name)
			}
		})
	}
}

func TestParkOfStoppedInitTimesOut(t *testing.T) {
	c := listener(t, func(net.Conn) {})
	c.Hurry(50 * time.Millisecond)
	begun := time.Now()
	err := c.Park(t.Context(), 10*time.Millisecond)
	if !errors.Is(err, fault.Timeout) {
		t.Errorf("Park = %v, want a timeout", err)
	}
	if took, most := time.Since(begun), 30*time.Second; took > most {
		t.Errorf("Park took %v, want at most %v", took, most)
	}
}

// TestLongCallContinuesWhileInitAnswers waits for the end of a command while init replies to
// other requests, and then stops.
func TestLongCallContinuesWhileInitAnswers(t *testing.T) {
	stopped := make(chan struct{})
	hellos := make(chan struct{}, 1000)
	c := listener(t, func(nc net.Conn) {
		_, payload, err := protocol.NewReader(nc).Next()
		if err != nil || strings.Contains(string(payload), string(protocol.OpWait)) {
			return
		}
		select {
		case <-stopped:
		default:
			protocol.NewWriter(nc).JSON(protocol.FrameReply, protocol.Hello{Version: protocol.Version})
			hellos <- struct{}{}
		}
	})
	c.Hurry(time.Second) // long enough for a busy machine
	done := make(chan error, 1)
	go func() {
		_, err := c.Wait(t.Context(), x)
		done <- err
	}()
	for range 2 {
		select {
		case <-hellos:
		case err := <-done:
			t.Fatalf("Wait = %v while init replies, want no return", err)
		}
	}
	close(stopped)
	if err := <-done; !errors.Is(err, fault.Timeout) {
		t.Errorf("Wait = %v after init was stopped, want a timeout", err)
	}
}

func TestFrozenJailIsNotTimedOut(t *testing.T) {
	c := listener(t, func(net.Conn) {})
	c.Hurry(20 * time.Millisecond)
	asked := make(chan struct{}, 1000)
	c.SetFrozenFunc(func() bool { asked <- struct{}{}; return true })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := c.Wait(ctx, x)
		done <- err
	}()
	for range 5 {
		select {
		case <-asked:
		case err := <-done:
			t.Fatalf("Wait = %v while the jail is frozen, want no return", err)
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Wait = %v after its context ended, want canceled", err)
	}
}
