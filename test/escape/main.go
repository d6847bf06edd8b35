// Command escape tries to get out of a jail of network mode proxy. It is built by
// the test of the same name and runs in the jail, one attempt at a time:
//
//	escape -list     lists the attempts, and how each is recorded
//	escape -away     repeats all attempts while the daemon is stopped
//	escape -quick    makes all attempts but the slow ones and writes their results
//	escape NAME      makes one attempt and writes its result
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"glasshouse/policy/egress"
	"glasshouse/policy/egress/egresstest"
)

// An Attempt is one way to escape, and how it is recorded: by at least one of the fields below.
type Attempt struct {
	Name string

	Reasons   []egress.Reason // reasons of a denial in the audit log
	Host      string          // host of the denial, if it matters
	Port      uint16          // port of the denial, if it matters
	Packet    bool            // a packet that the kernel dropped, in the audit log
	Log       string          // filter of the jail's event log, if the attempt does not reach the proxy
	Forwarded string          // the allowed destination to which the proxy forwarded it instead

	Silent bool // the attempt gets no response
	Slow   bool // the response takes long

	try func() (string, error)
}

// Outcome is the result of an attempt.
type Outcome struct {
	Answer  string
	Err     string
	Timeout bool // there was no response
	Took    time.Duration
}

func attempts() []Attempt {
	return slices.Concat(table(), sockets(), kernel(), names(), proxies(), host(), jails(), secrets(), limits())
}

// table returns the attempts that are also tested on the proxy alone.
func table() []Attempt {
	var all []Attempt
	for _, a := range egresstest.Attempts() {
		t := Attempt{Name: a.Name, Reasons: a.Reasons, try: func() (string, error) { return a.Try(dial) }}
		switch {
		case len(a.Reasons) > 0:
		case strings.HasPrefix(a.Name, "UDP"):
			t.Packet, t.Silent = true, true // the sender does not learn that the second datagram was dropped
		default: // a jail cannot send such packets
			t.Log = "type:syscall name:socket,connect ret:<0"
		}
		all = append(all, t)
	}
	return all
}

func main() {
	switch {
	case len(os.Args) != 2:
		fmt.Fprintln(os.Stderr, "usage: escape -list | -away | -quick | NAME")
		os.Exit(2)
	case os.Args[1] == "-list":
		write(attempts())
	case os.Args[1] == "-away":
		away()
	case os.Args[1] == "-quick":
		patience = 4 * time.Second
		write(quick())
	default:
		all := attempts()
		i := slices.IndexFunc(all, func(a Attempt) bool { return a.Name == os.Args[1] })
		if i < 0 {
			fmt.Fprintln(os.Stderr, "no such attempt")
			os.Exit(2)
		}
		write(all[i].make())
	}
}

// quick makes the attempts that do not take long, in parallel.
func quick() map[string]Outcome {
	var mu sync.Mutex
	var wg sync.WaitGroup
	became, room := map[string]Outcome{}, make(chan struct{}, 64)
	for _, a := range attempts() {
		if a.Slow {
			continue
		}
		room <- struct{}{}
		wg.Go(func() {
			o := a.make()
			mu.Lock()
			became[a.Name] = o
			mu.Unlock()
			<-room
		})
	}
	wg.Wait()
	return became
}

func write(v any) {
	if err := json.NewEncoder(os.Stdout).Encode(v); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (a Attempt) make() Outcome {
	begun := time.Now()
	answer, err := a.try()
	o := Outcome{Answer: answer, Took: time.Since(begun)}
	if len(o.Answer) > 4096 && !strings.Contains(o.Answer, egresstest.Reached) {
		o.Answer = o.Answer[:4096]
	}
	if err != nil && err != io.EOF {
		o.Err = err.Error()
		ne, ok := errors.AsType[net.Error](err)
		o.Timeout = ok && ne.Timeout() || errors.Is(err, os.ErrDeadlineExceeded)
	}
	return o
}

// patience is the response timeout of an attempt. All attempts without a limit of their own get
// a prompt response, so the timeout matters only on busy hosts. It is shorter with -quick, where
// the kind of failure does not matter.
var patience = 20 * time.Second

func dial(network, address string) (net.Conn, error) {
	return net.DialTimeout(network, address, patience)
}

// say connects, sends one message after another, and returns the data received until the end.
func say(network, address string, what ...string) func() (string, error) {
	return func() (string, error) { return talk(network, address, patience, what...) }
}

func talk(network, address string, d time.Duration, what ...string) (string, error) {
	c, err := dial(network, address)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(d))
	return converse(c, what...)
}

func converse(c net.Conn, what ...string) (string, error) {
	for _, s := range what {
		if _, err := c.Write([]byte(s)); err != nil {
			break // a response may already be available
		}
	}
	if _, ok := c.(*net.UDPConn); ok {
		b := make([]byte, 1<<16)
		n, err := c.Read(b)
		return string(b[:n]), err
	}
	b, err := io.ReadAll(io.LimitReader(c, 1<<16))
	return string(b), err
}

func get(host string) string {
	return fmt.Sprintf("GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host)
}

func connect(target string) string {
	return fmt.Sprintf("CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", target)
}

func reasons(r ...egress.Reason) []egress.Reason { return r }
