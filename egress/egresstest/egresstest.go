// Package egresstest has the ways by which a program in a jail of network mode
// proxy might get out, as a table, and the small world in which they are tried.
// Each is a function of how to connect, so that the same table is run from a bare
// network namespace and from a whole jail.
package egresstest

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"glasshouse/egress"
)

// The world beyond the jail. Every server in it answers with Reached and the name
// of what was reached.
const (
	Reached = "reached: "

	Gateway   = "10.0.0.1" // of the jail
	ProxyPort = "3128"     // of its HTTP proxy
	Proxy     = Gateway + ":" + ProxyPort

	API      = "198.51.100.7"    // api.example.com, allowed: HTTP 80, HTTPS 443, what speaks first 2222, an echo 7000, others 8443
	Evil     = "198.51.100.8"    // evil.example, not allowed
	Front    = "198.51.100.9"    // front.example.com, allowed, and hidden.example.com, not allowed, by their names
	Bare     = "198.51.100.10"   // allowed by address, port 80 alone
	Metadata = "169.254.169.254" // of a cloud
	Private  = "10.9.9.9"        // a neighbour of the host
	Host     = "203.0.113.1"     // the host itself
	Internet = "203.0.113.2"     // the host's way out
)

// Names are what the host's resolver answers.
var Names = map[string][]netip.Addr{
	"api.example.com":       addrs(API),
	"a.wild.example.com":    addrs(API),
	"look.example.com":      addrs(API), // looked into
	"strict.example.com":    addrs(API), // only GET /open/*
	"secret.example.com":    addrs(API), // a secret is put in
	"front.example.com":     addrs(Front),
	"hidden.example.com":    addrs(Front),
	"evil.example":          addrs(Evil),
	"lo.rebind.example":     addrs("127.0.0.1"),
	"zero.rebind.example":   addrs("0.0.0.0"),
	"meta.rebind.example":   addrs(Metadata),
	"lan.rebind.example":    addrs(Private),
	"host.rebind.example":   addrs(Host),
	"six.rebind.example":    addrs("::1"),
	"mapped.rebind.example": addrs("::ffff:169.254.169.254"),
	"nat64.rebind.example":  addrs("64:ff9b::a9fe:a9fe"),
	"6to4.rebind.example":   addrs("2002:a9fe:a9fe::1"),
	"ula.rebind.example":    addrs("fd00:ec2::254"),
}

func addrs(s ...string) (a []netip.Addr) {
	for _, s := range s {
		a = append(a, netip.MustParseAddr(s))
	}
	return a
}

// Allow is what the jail may reach.
var Allow = []egress.Rule{
	{Name: "the API", Host: "api.example.com", Ports: []uint16{80, 443, 2222, 7000}},
	{Name: "wild", Host: "*.wild.example.com"},
	{Name: "front", Host: "front.example.com"},
	{Name: "looked into", Host: "look.example.com", Intercept: true},
	{Name: "strict", Host: "strict.example.com", Methods: []string{"GET", "POST"}, Paths: []string{"/open/*"}},
	{Name: "rebinding", Host: "*.rebind.example"},
	{Name: "bare", Host: Bare, Ports: []uint16{80}},
}

// Connect connects from the jail, as net.Dial does. Addresses are literal.
type Connect func(network, address string) (net.Conn, error)

// An Attempt is one way to get out.
type Attempt struct {
	Name string

	// Reasons are those of which the proxy's record has one. There are none if the
	// attempt does not get as far as the proxy.
	Reasons []egress.Reason

	// Try returns what came back. It is a way out if that has Reached in it.
	Try func(Connect) (string, error)
}

// wait is how long an attempt waits for an answer to each thing it says.
const wait = 3 * time.Second

// say connects, says one thing after another, and returns what is answered until
// the end.
func say(address string, what ...string) func(Connect) (string, error) {
	return func(connect Connect) (string, error) {
		c, err := connect("tcp", address)
		if err != nil {
			return "", err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(wait))
		return exchange(c, what...)
	}
}

func exchange(c net.Conn, what ...string) (string, error) {
	for _, s := range what {
		if _, err := c.Write([]byte(s)); err != nil {
			break // it may have answered already
		}
	}
	var got []byte
	b := make([]byte, 4096)
	for {
		n, err := c.Read(b)
		got = append(got, b[:n]...)
		if err != nil || len(got) > 1<<16 {
			return string(got), err
		}
	}
}

// get is a request of HTTP/1.1 that is the last of its connection.
func get(host string) string {
	return fmt.Sprintf("GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host)
}
