package egress_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"golang.org/x/net/dns/dnsmessage"

	"glasshouse/policy/egress"
	"glasshouse/policy/egress/egresstest"
)

func TestHostsAreCanonicalized(t *testing.T) {
	for _, tt := range []struct {
		in, host string
		port     uint16
		ok       bool
	}{
		{"example.com", "example.com", 0, true},
		{"EXAMPLE.com.:80", "example.com", 80, true},
		{"a_b-c.example", "a_b-c.example", 0, true},
		{"xn--bcher-kva.example", "xn--bcher-kva.example", 0, true},
		{"1.2.3.4:65535", "1.2.3.4", 65535, true},
		{"[2001:DB8::1]:443", "2001:db8::1", 443, true},
		{"[::ffff:1.2.3.4]", "1.2.3.4", 0, true},
		{"1e100.net", "1e100.net", 0, true},
		{"", "", 0, false}, {".", "", 0, false}, {"..", "", 0, false}, {"a..b", "", 0, false},
		{":80", "", 0, false}, {"a:", "", 0, false}, {"a:0", "", 0, false}, {"a:+1", "", 0, false}, {"a:00080", "a", 80, true}, {"a:000080", "", 0, false},
		{"1.2.3", "", 0, false}, {"0x7f.1", "", 0, false}, {"0x", "", 0, false}, {"a.0x1", "", 0, false}, {"01.2.3.4", "", 0, false}, {"1.2.3.4.", "", 0, false},
		{"[1.2.3.4]", "", 0, false}, {"[::1", "", 0, false}, {"[::1]a", "", 0, false}, {"::1", "", 0, false}, {"[fe80::1%eth0]", "", 0, false},
		{"bücher.example", "", 0, false}, {"a b", "", 0, false}, {"a\x00b", "", 0, false}, {"u@h", "", 0, false}, {"a/b", "", 0, false}, {"%61.example", "", 0, false},
		{strings.Repeat("a", 64) + ".example", "", 0, false}, {strings.Repeat("a.", 130) + "example", "", 0, false},
	} {
		host, _, port, err := egress.ParseHostPort(tt.in)
		if (err == nil) != tt.ok || tt.ok && (host != tt.host || port != tt.port) {
			t.Errorf("%q: %q, %d, %v", tt.in, host, port, err)
		}
	}
}

func TestSpecialAddressesAreNotPublic(t *testing.T) {
	for _, s := range []string{
		"0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254", "168.63.129.16",
		"169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.19.255.255",
		"224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
		"::", "::1", "::ffff:10.0.0.1", "::127.0.0.1", "fe80::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1",
		"2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2002:a9fe:a9fe::", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1",
		"2a00::5efe:7f00:1", "2a00::200:5efe:7f00:1", "3ffe:ffff::1:0:5efe:a00:1",
	} {
		if a := netip.MustParseAddr(s); egress.CheckInternetAddr(a) == nil {
			t.Errorf("Public(%s) = true, want false", s)
		}
	}
	for _, s := range []string{"1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255", "2606:4700::1111", "::ffff:1.1.1.1"} {
		if a := netip.MustParseAddr(s); egress.CheckInternetAddr(a) != nil {
			t.Errorf("Public(%s) = false, want true", s)
		}
	}
	if egress.CheckInternetAddr(netip.Addr{}) == nil {
		t.Error("the zero address is public")
	}
}

func TestGlob(t *testing.T) {
	for _, tt := range []struct {
		pattern, s string
		want       bool
	}{
		{"/a", "/a", true}, {"/a", "/ab", false}, {"/a*", "/a/b/c", true}, {"/a/*", "/a", false}, {"*", "", true}, {"*", "/x", true},
		{"/*/b", "/a/b", true}, {"/*/b", "/a/c/b", true}, {"/*/b", "/a/bc", false}, {"/*a*b*", "/xxaxxbxx", true}, {"", "", true}, {"", "a", false},
	} {
		if got := egress.Glob(tt.pattern, tt.s); got != tt.want {
			t.Errorf("%q matches %q: %v", tt.pattern, tt.s, got)
		}
	}
}

func TestInvalidRules(t *testing.T) {
	ca, _ := newCA(t)
	for field, r := range map[string]egress.Rule{
		"allow[0].host":        {Host: ""},
		"allow[0].host ":       {Host: "http://example.com"},
		"allow[0].host  ":      {Host: "*.*.example.com"},
		"allow[0].host   ":     {Host: "exam*ple.com"},
		"allow[0].host    ":    {Host: "*.1.2.3.4"},
		"allow[0].host     ":   {Host: "1.2.3.4/33"},
		"allow[0].host      ":  {Host: "example.com:80"},
		"allow[0].inject":      {Host: "a.example", Inject: []egress.Inject{{As: egress.Bearer}}},
		"allow[0].inject ":     {Host: "a.example", Inject: []egress.Inject{{Secret: "K", As: "cookie"}}},
		"allow[0].inject  ":    {Host: "a.example", Inject: []egress.Inject{{Secret: "K", As: egress.Header, Name: "Host"}}},
		"allow[0].inject   ":   {Host: "a.example", Inject: []egress.Inject{{Secret: "K", As: egress.Header, Name: "a b"}}},
		"allow[0].inject    ":  {Host: "a.example", Inject: []egress.Inject{{Secret: "K", As: egress.Query}}},
		"allow[0].inject     ": {Host: "a.example", Inject: []egress.Inject{{Secret: "K", As: egress.Basic, Name: "a:b"}}},
		"allow[0].paths":       {Host: "a.example", Paths: []string{"v1/*"}},
		"allow[0].limit":       {Host: "a.example", Limit: egress.Limit{Bytes: -1}},
	} {
		_, err := egress.New(egress.Config{CA: ca, Secret: secrets, Rules: egress.Rules{Allow: []egress.Rule{r}}})
		if err == nil || !strings.Contains(err.Error(), strings.TrimSpace(field)) {
			t.Errorf("%+v: %v, want an error about %s", r, err, field)
		}
	}
	for name, conf := range map[string]egress.Config{
		"no authority for TLS": {Secret: secrets, Rules: egress.Rules{Allow: []egress.Rule{{Host: "a.example", Intercept: true}}}},
		"no secrets":           {CA: ca, Rules: egress.Rules{Allow: []egress.Rule{{Host: "a.example", Inject: []egress.Inject{{Secret: "K", As: egress.Bearer}}}}}},
		"two limits of one capability": {Rules: egress.Rules{Allow: []egress.Rule{
			{Host: "a.example", Capability: "c", Limit: egress.Limit{Requests: 1}}, {Host: "b.example", Capability: "c", Limit: egress.Limit{Requests: 2}}}}},
	} {
		if _, err := egress.New(conf); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	p, err := egress.New(egress.Config{Rules: egress.Rules{Allow: []egress.Rule{{Host: "Bücher.example"}, {Host: "*.Example.COM."}}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestSetParameter(t *testing.T) {
	for _, tt := range [][2]string{
		{"", "k=v%26"}, {"a=1", "a=1&k=v%26"}, {"k=x&a=1&K=y", "a=1&k=v%26"}, {"%6b=x", "k=v%26"}, {"k", "k=v%26"}, {"a=%zz&b=1", "a=%zz&b=1&k=v%26"}, {"%zz=1", "k=v%26"},
	} {
		if got := egress.SetParameter(tt[0], "k", "v&"); got != tt[1] {
			t.Errorf("%q: %q, want %q", tt[0], got, tt[1])
		}
	}
}

func TestSecretsAreMaskedAcrossReads(t *testing.T) {
	const one, two = "hunter2hunter2!", "hunter2!hunter"
	text := "a " + one + " b" + two + two + "c hunter2hunter2 d " + base64.StdEncoding.EncodeToString([]byte("xy"+one)) + " " + url.QueryEscape(one) + one[:5]
	want := egress.MaskText(text, one, two)
	if strings.Contains(want, "r2!") || !strings.HasSuffix(want, one[:5]) || !strings.Contains(want, "c hunter2hunter2 d") || len(want) != len(text) {
		t.Fatalf("whole: %q", want)
	}
	for name, r := range map[string]io.Reader{
		"by bytes": iotest.OneByteReader(strings.NewReader(text)), "by halves": iotest.HalfReader(strings.NewReader(text)), "with its end": iotest.DataErrReader(strings.NewReader(text)),
	} {
		if b, err := io.ReadAll(egress.Masked(r, one, two)); string(b) != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", name, b, err, want)
		}
	}
	for cut := range len(text) {
		r := io.MultiReader(strings.NewReader(text[:cut]), strings.NewReader(text[cut:]))
		if b, _ := io.ReadAll(iotest.OneByteReader(egress.Masked(r, one, two))); string(b) != want {
			t.Errorf("cut at %d: %q, want %q", cut, b, want)
		}
	}
}

func TestMaskForwardsNonSecretDataImmediately(t *testing.T) {
	r, w := io.Pipe()
	m := egress.Masked(r, "secret-value")
	b := make([]byte, 100)
	for _, tt := range []struct {
		written []string
		want    string
	}{
		{[]string{"data: x\n\n"}, "data: x\n\n"}, {[]string{"and a sec"}, "and a "}, {[]string{"ond\n"}, "second\n"}, {[]string{"secret-valu", "e."}, "************."},
	} {
		go func() {
			for _, s := range tt.written {
				io.WriteString(w, s)
			}
		}()
		if n, err := m.Read(b); string(b[:n]) != tt.want || err != nil {
			t.Errorf("after %q: %q, %v, want %q", tt.written, b[:n], err, tt.want)
		}
	}
}

func TestClassify(t *testing.T) {
	hello := string(egresstest.Hello("example.com"))
	for _, tt := range []struct {
		said string
		want int
	}{
		{"", egress.SpokeNothing}, {"G", egress.SpokeNothing}, {"GET / HT", egress.SpokeNothing}, {"\r\n \r\n", egress.SpokeNothing},
		{"GET / HTTP/", egress.SpokeHTTP}, {"get\t/\thttp/9\n", egress.SpokeHTTP}, {"\r\n\r\nGET / HTTP/1.1\r\n", egress.SpokeHTTP}, {"PRI * HTTP/2.0\r\n", egress.SpokeHTTP},
		{"GET /" + strings.Repeat("a", 9000), egress.SpokeHTTP},
		{"EHLO example.com\r\n", egress.SpokeOther}, {"\x00\x00\x00\x08", egress.SpokeOther}, {"*1\r\n$4\r\nPING\r\n", egress.SpokeOther}, {"NICK me\n", egress.SpokeOther}, {strings.Repeat("a", 64), egress.SpokeOther}, {"SSH-2.0-x\r\n", egress.SpokeOther},
		{hello, egress.SpokeTLS}, {hello[:5], egress.SpokeNothing}, {hello[:1], egress.SpokeNothing}, {hello[:len(hello)-1], egress.SpokeNothing}, {"\x16\x03\x01\x00\x04\x02\x00\x00\x00", egress.SpokeTLS},
	} {
		if got := egress.Spoken([]byte(tt.said)); got != tt.want {
			t.Errorf("%.40q: %d, want %d", tt.said, got, tt.want)
		}
	}
	// A ClientHello in records of one byte each has the same name.
	var pieces []byte
	for _, c := range []byte(hello[5:]) {
		pieces = append(pieces, 22, 3, 1, 0, 1, c)
	}
	for n := range pieces {
		if _, _, more, err := egress.ParseHello(pieces[:n]); !more || err != nil {
			t.Fatalf("%d bytes of a hello: more %v, %v", n, more, err)
		}
	}
	if name, ech, more, err := egress.ParseHello(pieces); name != "example.com" || ech || more || err != nil {
		t.Errorf("fragmented ClientHello: got %q, %v, %v, %v", name, ech, more, err)
	}
}

func FuzzHello(f *testing.F) {
	f.Add(egresstest.Hello("example.com"))
	f.Add(egresstest.Hello(""))
	f.Fuzz(func(t *testing.T, b []byte) {
		name, _, more, err := egress.ParseHello(b)
		if more && (err != nil || name != "") {
			t.Errorf("incomplete ClientHello: got %q, %v", name, err)
		}
		if more || err != nil {
			return
		}
		// Data after a ClientHello does not change the result.
		if again, _, _, err := egress.ParseHello(append(slices.Clip(b), "more"...)); again != name || err != nil {
			t.Errorf("%q, then %q, %v", name, again, err)
		}
	})
}

// The proxy and net/http must agree on what a request is.
func FuzzHead(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
	f.Add([]byte("POST http://b/ HTTP/1.0\r\nHost: a:80\r\nContent-Length: 5\r\n\r\nhello"))
	f.Add([]byte("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n"))
	f.Add([]byte("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := egress.HeadEnd(b)
		if n == 0 {
			return
		}
		method, target, host, err := egress.CheckHead(b[:n])
		if err != nil {
			return
		}
		r := bufio.NewReaderSize(bytes.NewReader(b[:n]), 1<<16)
		req, err := http.ReadRequest(r)
		if err != nil {
			return // refused as well
		}
		if r.Buffered() > 0 && req.ContentLength == 0 && len(req.TransferEncoding) == 0 {
			t.Errorf("proxy and net/http disagree on the length of the head: %q", b[:n])
		}
		if req.Method != method || req.RequestURI != target {
			t.Errorf("%q %q, and %q %q", method, target, req.Method, req.RequestURI)
		}
		if strings.HasPrefix(target, "/") && req.Host != host {
			t.Errorf("the host is %q, and %q", host, req.Host)
		}
		if len(req.TransferEncoding) > 0 && req.ContentLength >= 0 {
			t.Errorf("two lengths: %q", b[:n])
		}
	})
}

func FuzzDNS(f *testing.F) {
	for _, q := range []string{"a.example.", "evil.example."} {
		for _, typ := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeTXT} {
			m := dnsmessage.Message{Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(q), Type: typ, Class: dnsmessage.ClassINET}}}
			b, err := m.Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	w := &egresstest.World{}
	w.SetAddrs("a.example", "198.51.100.1")
	p, err := egress.New(egress.Config{Resolver: w, Rules: egress.Rules{Allow: []egress.Rule{{Host: "a.example"}}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got := p.DNS(b)
		for _, name := range w.Queries() {
			if name != "a.example" {
				t.Fatalf("the host's resolver was asked for %q", name)
			}
		}
		if got == nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(got); err != nil {
			t.Fatalf("the answer cannot be read: %v", err)
		}
		if !m.Response || len(b) < 2 || m.ID != uint16(b[0])<<8|uint16(b[1]) {
			t.Errorf("the answer is to another question: %+v", m)
		}
		if len(m.Answers) > 0 && (len(m.Questions) != 1 || !strings.EqualFold(m.Questions[0].Name.String(), "a.example.")) {
			t.Errorf("an answer to what is not allowed: %+v", m)
		}
	})
}

func FuzzMask(f *testing.F) {
	f.Add("the secret is hunter2hunter2", "hunter2", uint8(3))
	f.Add("aabaabaac", "aabaac", uint8(1))
	f.Fuzz(func(t *testing.T, text, secret string, step uint8) {
		if len(secret) < 4 || len(secret) > 100 {
			return
		}
		want := egress.MaskText(text, secret)
		b, err := io.ReadAll(egress.Masked(&steps{text, int(step)%7 + 1}, secret))
		if string(b) != want || err != nil {
			t.Errorf("in pieces: %q, %v, whole: %q", b, err, want)
		}
		if strings.Trim(secret, "*") != "" && strings.Contains(want, secret) {
			t.Errorf("it shows: %q", want)
		}
		if len(want) != len(text) {
			t.Errorf("of %d bytes become %d", len(text), len(want))
		}
	})
}

// steps gives a text in pieces of one length.
type steps struct {
	s string
	n int
}

func (r *steps) Read(b []byte) (int, error) {
	if r.s == "" {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), r.n)], r.s)
	r.s = r.s[n:]
	return n, nil
}
