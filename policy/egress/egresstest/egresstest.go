// Package egresstest has a table of attempts to escape the egress proxy from a jail in network
// mode proxy, and a simulated network in which to run them. Each attempt takes the function
// that connects, so the same table runs in a bare network namespace and in a complete jail.
package egresstest

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"glasshouse/policy/egress"
)

// Addresses of the simulated network outside the jail. Each server responds with Reached and
// its name.
const (
	Reached = "reached: "

	Gateway   = "10.0.0.1" // gateway of the jail
	ProxyPort = "3128"     // port of the jail's HTTP proxy
	Proxy     = Gateway + ":" + ProxyPort

	API      = "198.51.100.7"    // api.example.com, allowed: HTTP 80, HTTPS 443, a server that sends first on 2222, an echo server on 7000, 8443
	Evil     = "198.51.100.8"    // evil.example, not allowed
	Front    = "198.51.100.9"    // front.example.com, allowed, and hidden.example.com, not allowed, on one address
	Bare     = "198.51.100.10"   // allowed by address, port 80 only
	Metadata = "169.254.169.254" // cloud metadata service
	Private  = "10.9.9.9"        // a neighbor of the host
	Host     = "203.0.113.1"     // the host
	Internet = "203.0.113.2"     // the host's default gateway
)

// Names are the records of the host's resolver.
var Names = map[string][]netip.Addr{
	"api.example.com":       addrs(API),
	"a.wild.example.com":    addrs(API),
	"look.example.com":      addrs(API), // intercepted
	"strict.example.com":    addrs(API), // only GET /open/*
	"secret.example.com":    addrs(API), // a secret is injected
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

// Allow are the rules of the jail.
var Allow = []egress.Rule{
	{Name: "the API", Host: "api.example.com", Ports: []uint16{80, 443, 2222, 7000}},
	{Name: "wild", Host: "*.wild.example.com"},
	{Name: "front", Host: "front.example.com"},
	{Name: "looked into", Host: "look.example.com", Intercept: true},
	{Name: "strict", Host: "strict.example.com", Methods: []string{"GET", "POST"}, Paths: []string{"/open/*"}},
	{Name: "rebinding", Host: "*.rebind.example"},
	{Name: "bare", Host: Bare, Ports: []uint16{80}},
}

// Connect connects from the jail, like net.Dial. Addresses are literal.
type Connect func(network, address string) (net.Conn, error)

// An Attempt is one attempt to escape.
type Attempt struct {
	Name string

	// Reasons are the acceptable reasons in the proxy's record. Empty if the attempt does not
	// reach the proxy.
	Reasons []egress.Reason

	// Try returns the response. The attempt succeeded if the response contains Reached.
	Try func(Connect) (string, error)
}

// wait is the timeout for each response.
const wait = 3 * time.Second

// say connects, sends the messages one after another, and returns the response until EOF.
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
			break // a response may have arrived already
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

// get returns an HTTP/1.1 request that closes its connection.
func get(host string) string {
	return fmt.Sprintf("GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host)
}
