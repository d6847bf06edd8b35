package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"glasshouse/agents/agent/builtin"
)

// A shim serves the agent endpoint on a TCP port for an agent that cannot use a unix socket.
// The token stays in the shim, which adds it to each request. The agent, which may run
// untrusted code, never has it.
type shim struct {
	listen  string
	socket  string
	tokenFD string
	child   child
}

func shimMain(args []string, stderr io.Writer) int {
	s := &shim{child: child{token: -1}}
	flags := flag.NewFlagSet("glasshouse-agent shim", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.listen, "listen", "127.0.0.1:4097", "serve the agent endpoint at `address`")
	flags.StringVar(&s.socket, "socket", "/.glasshouse/gateway.sock", "the unix socket of the gateway is at `path`; empty serves nothing")
	s.child.flags(flags)
	flags.StringVar(&s.tokenFD, "token-fd", "", "read a token for the gateway from descriptor `n`")
	if err := flags.Parse(args); err != nil {
		return exitUsage
	}
	if s.child.argv = flags.Args(); len(s.child.argv) == 0 {
		fmt.Fprintln(stderr, "glasshouse-agent shim: no command: give one after --")
		return exitUsage
	}
	code, err := s.run(stderr)
	if err != nil {
		fmt.Fprintln(stderr, "glasshouse-agent shim:", err)
	}
	return code
}

// run serves the endpoint while the agent runs, and returns the agent's exit code.
func (s *shim) run(stderr io.Writer) (code int, err error) {
	// Before the token is read: prevents ptrace(2) and access to /proc/PID/mem by processes of
	// the same user.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return exitShim, fmt.Errorf("hide from other processes: %w", err)
	}
	var token string
	if s.tokenFD != "" {
		if token, err = readToken(s.tokenFD); err != nil {
			return exitShim, err
		}
	}
	if err := s.child.closeOthers(); err != nil {
		return exitShim, err
	}
	if s.socket == "" {
		return s.child.run()
	}
	if err := loopbackUp(); err != nil {
		return exitShim, fmt.Errorf("bring up the loopback: %w", err)
	}
	l, err := net.Listen("tcp", s.listen)
	if err != nil {
		return exitShim, fmt.Errorf("serve the agent endpoint: %w", err)
	}
	server := &http.Server{Handler: s.forward(token, stderr), ErrorLog: log.New(stderr, "", 0)}
	go server.Serve(l)
	defer server.Close()
	return s.child.run()
}

// forward passes requests and responses on unchanged.
func (s *shim) forward(token string, stderr io.Writer) http.Handler {
	var dialer net.Dialer
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", "door"
			r.Out.Host = r.In.Host
			r.Out.URL.RawQuery = r.In.URL.RawQuery // including parts that url.ParseQuery would reject
			r.Out.Header.Del(builtin.TokenHeader)
			if token != "" {
				r.Out.Header.Set(builtin.TokenHeader, token)
			}
		},
		FlushInterval: -1,
		Transport: &http.Transport{
			DisableCompression:  true,
			MaxIdleConnsPerHost: 16,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, "unix", s.socket)
			},
		},
		ErrorLog: log.New(stderr, "", 0),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() != nil {
				return // the client has disconnected
			}
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusServiceUnavailable)
			io.WriteString(w, `{"type":"about:blank","title":"unavailable","status":503,"detail":"the gateway does not respond","remedy":"try again later"}`)
		},
	}
}

// loopbackUp brings up the loopback interface of a new network namespace. If it is up already,
// no privileges are needed.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCGIFFLAGS, uintptr(unsafe.Pointer(r))); e != 0 {
		return os.NewSyscallError("SIOCGIFFLAGS", e)
	}
	if r.Uint16()&unix.IFF_UP != 0 {
		return nil
	}
	r.SetUint16(r.Uint16() | unix.IFF_UP)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFFLAGS, uintptr(unsafe.Pointer(r))); e != 0 {
		return os.NewSyscallError("SIOCSIFFLAGS", e)
	}
	return nil
}
