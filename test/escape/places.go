package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"glasshouse/policy/egress"
	"glasshouse/policy/egress/egresstest"
)

// Host locations, passed by the test so that the attempts need not guess them.
var (
	apiPort    = os.Getenv("HOST_API")      // port of the daemon, on all host addresses
	socket     = os.Getenv("HOST_SOCKET")   // socket of the daemon
	abstract   = os.Getenv("HOST_ABSTRACT") // an abstract Unix socket of the host
	neighbours = strings.Fields(os.Getenv("HOST_JAILS"))
)

// host returns attempts on the host itself and on the daemon.
func host() []Attempt {
	const refused = "type:syscall name:connect ret:<0"
	local := func(paths func() []string) func() (string, error) {
		return func() (string, error) {
			var last error = fs.ErrNotExist
			for _, path := range paths() {
				c, err := net.DialTimeout("unix", path, patience)
				if err == nil {
					c.Close()
					return egresstest.Reached + path, nil
				}
				last = err
			}
			return "", last
		}
	}
	ask := func(host string) string {
		return "GET http://" + host + "/jails HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"
	}
	return []Attempt{
		{Name: "the daemon at the host's address", Reasons: reasons(egress.ReasonHost), Host: egresstest.Host, try: say("tcp", egresstest.Host+":"+apiPort, get(egresstest.Host+":"+apiPort))},
		{Name: "the daemon at the gateway", Reasons: reasons(egress.ReasonHost), Host: egresstest.Gateway, try: say("tcp", egresstest.Gateway+":"+apiPort, get(egresstest.Gateway+":"+apiPort))},
		{Name: "the daemon at loopback", Log: refused, try: say("tcp", "127.0.0.1:"+apiPort, get("127.0.0.1:"+apiPort))},
		{Name: "the daemon at loopback, by the proxy", Reasons: reasons(egress.ReasonHost), Host: "127.0.0.1", try: say("tcp", egresstest.Proxy, ask("127.0.0.1:"+apiPort))},
		{Name: "the daemon at the host's address, by the proxy", Reasons: reasons(egress.ReasonHost), Host: egresstest.Host, try: say("tcp", egresstest.Proxy, ask(egresstest.Host+":"+apiPort))},
		{Name: "the daemon by an allowed name of loopback", Reasons: reasons(egress.ReasonAddress), Host: "lo.rebind.example", try: say("tcp", egresstest.Proxy, ask("lo.rebind.example:"+apiPort))},
		{Name: "the daemon by an allowed name of the host", Reasons: reasons(egress.ReasonAddress), Host: "host.rebind.example", try: say("tcp", egresstest.Proxy, ask("host.rebind.example:"+apiPort))},
		{Name: "the daemon's socket", Log: refused, try: local(func() []string { return []string{socket, "/proc/1/root" + socket, "/proc/self/root" + socket} })},
		{Name: "the socket of init", Log: "type:syscall name:openat,connect path:/.glasshouse", try: local(func() []string {
			found, _ := filepath.Glob("/.glasshouse/*")
			os.ReadDir("/.glasshouse")
			return append(found, "/.glasshouse/init.sock", "/proc/1/root/.glasshouse/init.sock")
		})},
		{Name: "a socket of the host without a path", Log: refused, try: local(func() []string { return []string{abstract} })},
		{Name: "secrets of other processes", Log: "type:syscall name:openat path:/proc", try: look},
	}
}

// jails returns attempts on other jails: one behind the proxy, one in a network group, one with
// full network.
func jails() []Attempt {
	each := func(f func(addr string) (string, error)) func() (string, error) {
		return func() (string, error) {
			var lines []string
			for _, n := range neighbours {
				answer, err := f(n)
				if strings.Contains(answer, egresstest.Reached) {
					return answer, nil
				}
				lines = append(lines, answer+fmt.Sprint(err))
			}
			return strings.Join(lines, "\n"), nil
		}
	}
	return []Attempt{
		{Name: "other jails by TCP", Reasons: reasons(egress.ReasonHost), try: each(func(a string) (string, error) { return talk("tcp", a, patience, "hello\n") })},
		{Name: "other jails by UDP", Packet: true, try: each(func(a string) (string, error) { return talk("udp", a, 4*time.Second, "hello\n") })},
		{Name: "other jails by the proxy", Reasons: reasons(egress.ReasonHost), try: each(func(a string) (string, error) { return talk("tcp", egresstest.Proxy, patience, connect(a), "hello\n") })},
		{Name: "another jail by an allowed name", Reasons: reasons(egress.ReasonAddress), Host: "jail.rebind.example", try: say("tcp", egresstest.Proxy, "GET http://jail.rebind.example/ HTTP/1.1\r\nHost: jail.rebind.example\r\nConnection: close\r\n\r\n")},
		{Name: "the jail's own address by an allowed name", Reasons: reasons(egress.ReasonAddress), Host: "self.rebind.example", try: say("tcp", egresstest.Proxy, "GET http://self.rebind.example/ HTTP/1.1\r\nHost: self.rebind.example\r\nConnection: close\r\n\r\n")},
		{Name: "the gateway by an allowed name", Reasons: reasons(egress.ReasonAddress), Host: "gate.rebind.example", try: say("tcp", egresstest.Proxy, "GET http://gate.rebind.example/ HTTP/1.1\r\nHost: gate.rebind.example\r\nConnection: close\r\n\r\n")},
	}
}

// canary returns the common prefix of all secrets of the test. It is assembled at run time, so
// that this program does not find itself.
func canary() []byte { return []byte(strings.Join([]string{"gh", "canary", ""}, "-")) }

// look reads data of other processes from /proc and common locations.
func look() (string, error) {
	var read int
	var last error
	for _, pattern := range []string{"/proc/*/environ", "/proc/*/cmdline", "/proc/*/root/run/secrets/*", "/proc/*/cwd/run/secrets/*", "/proc/*/fd/*", "/run/secrets/*", "/run/secrets/*/*", "/.glasshouse/*"} {
		paths, _ := filepath.Glob(pattern)
		for _, path := range paths {
			if fi, err := os.Stat(path); err != nil || !fi.Mode().IsRegular() {
				continue
			}
			b, err := os.ReadFile(path)
			if err != nil {
				last = err
				continue
			}
			read++
			if bytes.Contains(b, canary()) || bytes.Contains(b, []byte("HOST_SECRET")) {
				return egresstest.Reached + path, nil
			}
		}
	}
	return fmt.Sprintf("nothing in %d files; the last that could not be read: %v", read, last), nil
}
