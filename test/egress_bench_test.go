//go:build bench

package test_test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/api/wire"
	"glasshouse/host/netns"
)

// The host names of the benchmark's server.
const (
	shopHost = "shop.example.com"  // TLS passthrough
	glass    = "glass.example.com" // TLS interception
	gig      = 1 << 30
)

// A lane is a path to the server.
type lane struct {
	name  string
	dial  func(port string) (net.Conn, error)
	proxy bool   // uses an explicit proxy: CONNECT and absolute URLs
	host  string // the requested host
	size  int64  // size of the stream; less for a slow lane
	err   error
}

// TestBenchEgress measures the proxy of a real jail, with its daemon, rules and audit log, and
// compares it with a direct connection and other proxies.
func TestBenchEgress(t *testing.T) {
	out := filepath.Join(t.TempDir(), "report")
	if os.Getenv(reportFile) == "" {
		t.Setenv(reportFile, out)
	}
	if !ownWorld(t) {
		text, _ := os.ReadFile(out)
		fmt.Print(string(text))
		return
	}
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil {
		files.Cur = files.Max
		unix.Setrlimit(unix.RLIMIT_NOFILE, &files)
	}
	world := internet(t)
	named(t, map[string]string{shopHost: serverAddr, glass: serverAddr})
	cert, ca := certificate(t, shopHost, glass)
	t.Setenv("SSL_CERT_FILE", ca)
	website(t, world, serverAddr+":80", nil, http.HandlerFunc(zeros))
	website(t, world, serverAddr+":443", &tls.Config{Certificates: []tls.Certificate{cert}}, http.HandlerFunc(zeros))
	flood(t, world, serverAddr+":9000")
	flood(t, world, serverAddr+":9001")

	h := open(t, tools()+"pool: {size: 0}\n")
	j := h.running(wire.CreateJail{Network: "proxy", Egress: &wire.Egress{Allow: []wire.EgressRule{
		{Host: shopHost}, {Host: glass, Intercept: true}, {Host: serverAddr, Ports: []uint16{9000, 9001}},
	}}})
	ns := filepath.Join(h.data, "run/netns", string(j.ID))
	direct := &lane{name: "direct", host: shopHost, size: gig, dial: func(port string) (net.Conn, error) { return dialFrom(here, serverAddr+":"+port) }}
	inside := func(port string) (net.Conn, error) { return dialFrom(ns, serverAddr+":"+port) }
	jail := &lane{name: "from a jail", host: shopHost, size: gig, dial: inside}
	looked := &lane{name: "from a jail, looked into", host: glass, size: gig, dial: inside}
	tiny, mitm := peers(t)

	benchStreams(h, direct, jail, looked, tiny, mitm)
	benchLatency(direct, jail, looked, tiny, mitm)
	benchConnections(h, jail)
}

// here is the network namespace of this process.
const here = "/proc/self/ns/net"

// dialFrom connects from a network namespace. All lanes use it, so that all include its cost.
func dialFrom(ns, addr string) (c net.Conn, err error) {
	err = netns.Do(ns, func() (err error) {
		c, err = net.Dial("tcp", addr)
		return err
	})
	return c, err
}

// zeros responds with as many bytes as the path says.
func zeros(w http.ResponseWriter, r *http.Request) {
	n, _ := strconv.ParseInt(strings.TrimPrefix(r.URL.Path, "/"), 10, 64)
	w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	block := make([]byte, 256<<10)
	for n > 0 {
		k, err := w.Write(block[:min(n, int64(len(block)))])
		if n -= int64(k); err != nil {
			return
		}
	}
}

// flood reads numbers and writes that many bytes for each.
func flood(t *testing.T, ns, addr string) {
	t.Helper()
	var l net.Listener
	if err := netns.Do(ns, func() (err error) {
		l, err = net.Listen("tcp4", addr)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	block := make([]byte, 256<<10)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for r := bufio.NewReaderSize(c, 64); ; {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					n, _ := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
					for n > 0 {
						k, err := c.Write(block[:min(n, int64(len(block)))])
						if n -= int64(k); err != nil {
							return
						}
					}
				}
			}()
		}
	}()
}

// certificate returns a certificate for names, and a file with its authority.
func certificate(t *testing.T, names ...string) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, file
}

// peers starts the other proxies, if scripts/peers.sh has unpacked them or the system has them.
func peers(t *testing.T) (tiny, mitm *lane) {
	t.Helper()
	dir := os.Getenv("GLASSHOUSE_PEERS")
	find := func(name, path string) (string, error) {
		if p := filepath.Join(dir, path); dir != "" && exists(p) {
			return p, nil
		}
		return exec.LookPath(name)
	}
	start := func(l *lane, addr string, cmd *exec.Cmd) *lane {
		l.proxy = true
		l.dial = func(string) (net.Conn, error) { return dialFrom(here, addr) }
		cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
		l.err = cmd.Start()
		if l.err != nil {
			return l
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			c, err := net.Dial("tcp", addr)
			if err == nil {
				c.Close()
				return l
			}
		}
		l.err = errors.New("the proxy does not listen")
		return l
	}
	tiny = &lane{name: "tinyproxy", host: shopHost, size: gig / 2}
	if name, err := find("tinyproxy", "tinyproxy/usr/bin/tinyproxy"); err != nil {
		tiny.err = errors.New("not installed")
	} else {
		conf := filepath.Join(t.TempDir(), "tinyproxy.conf")
		if err := os.WriteFile(conf, []byte("Port 8888\nListen 127.0.0.1\nTimeout 60\nMaxClients 200\nLogLevel Error\nLogFile \""+conf+".log\"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		tiny = start(tiny, "127.0.0.1:8888", exec.Command(name, "-d", "-c", conf))
	}
	mitm = &lane{name: "mitmproxy", host: glass, size: gig / 8}
	if name, err := find("mitmdump", "mitmproxy/usr/bin/mitmdump"); err != nil {
		mitm.err = errors.New("not installed")
	} else {
		cmd := exec.Command(name, "-q", "--listen-host", "127.0.0.1", "--listen-port", "8889", "--ssl-insecure",
			"--set", "stream_large_bodies=1m", "--set", "confdir="+t.TempDir())
		if strings.HasPrefix(name, dir) && dir != "" {
			cmd = exec.Command("/usr/bin/python3", append([]string{name}, cmd.Args[1:]...)...)
			libs, _ := filepath.Glob(filepath.Join(dir, "mitmproxy/usr/lib/*-linux-gnu"))
			cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(dir, "mitmproxy/usr/lib/python3/dist-packages"), "LD_LIBRARY_PATH="+strings.Join(libs, ":"))
		}
		mitm = start(mitm, "127.0.0.1:8889", cmd)
	}
	return tiny, mitm
}

// A talk is a connection for HTTP requests.
type talk struct {
	net.Conn
	r    *bufio.Reader
	host string // with the scheme if an explicit proxy is used
}

// talk connects to the server, with or without TLS.
func (l *lane) talk(secure bool) (*talk, error) {
	if l.err != nil {
		return nil, l.err
	}
	port := "80"
	if secure {
		port = "443"
	}
	c, err := l.dial(port)
	if err != nil {
		return nil, err
	}
	t := &talk{Conn: c, r: bufio.NewReaderSize(c, 256<<10), host: l.host}
	t.SetDeadline(time.Now().Add(time.Minute))
	if l.proxy && !secure {
		t.host = "http://" + l.host
	}
	if l.proxy && secure {
		fmt.Fprintf(c, "CONNECT %s:443 HTTP/1.1\r\nHost: %[1]s:443\r\n\r\n", l.host)
		resp, err := http.ReadResponse(t.r, &http.Request{Method: "CONNECT"})
		if err == nil && resp.StatusCode != 200 {
			err = errors.New(resp.Status)
		}
		if err != nil {
			c.Close()
			return nil, err
		}
	}
	if secure {
		s := tls.Client(c, &tls.Config{ServerName: l.host, InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
		if err := s.Handshake(); err != nil {
			c.Close()
			return nil, err
		}
		t.Conn, t.r = s, bufio.NewReaderSize(s, 256<<10)
	}
	return t, nil
}

// get requests n bytes and reads them.
func (t *talk) get(n int64) error {
	target, host := t.host, strings.TrimPrefix(t.host, "http://")
	if target == host {
		target = ""
	}
	fmt.Fprintf(t, "GET %s/%d HTTP/1.1\r\nHost: %s\r\n\r\n", target, n, host)
	resp, err := http.ReadResponse(t.r, nil)
	if err != nil {
		return err
	}
	got, err := io.Copy(io.Discard, resp.Body)
	if err == nil && (resp.StatusCode != 200 || got != n) {
		err = fmt.Errorf("%s, %d bytes", resp.Status, got)
	}
	return err
}

// benchStreams downloads a gigabyte and samples the daemon's memory.
func benchStreams(h *daemonHarness, direct, jail, looked, tiny, mitm *lane) {
	type way struct {
		name   string
		lane   *lane
		target float64 // fraction of the direct rate
		run    func(l *lane) error
		took   []time.Duration
		before int64
		most   int64
	}
	raw := func(l *lane) error {
		c, err := l.dial("9000")
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprintln(c, l.size)
		_, err = io.CopyN(io.Discard, c, l.size)
		return err
	}
	http := func(secure bool) func(l *lane) error {
		return func(l *lane) error {
			c, err := l.talk(secure)
			if err != nil {
				return err
			}
			defer c.Close()
			return c.get(l.size)
		}
	}
	for _, group := range []struct {
		title string
		ways  []*way
	}{
		{"bytes, by address", []*way{{name: direct.name, lane: direct, run: raw}, {name: jail.name, lane: jail, run: raw, target: 80}}},
		{"an answer of HTTP", []*way{
			{name: direct.name, lane: direct, run: http(false)}, {name: jail.name, lane: jail, run: http(false), target: 80},
			{name: tiny.name, lane: tiny, run: http(false)}, {name: mitm.name, lane: mitm, run: http(false)},
		}},
		{"an answer of HTTPS", []*way{
			{name: direct.name, lane: direct, run: http(true)}, {name: jail.name, lane: jail, run: http(true), target: 80}, {name: tiny.name + ", CONNECT", lane: tiny, run: http(true)},
			{name: looked.name, lane: looked, run: http(true)}, {name: mitm.name + ", looked into", lane: mitm, run: http(true)},
		}},
	} {
		for range 3 {
			for _, w := range group.ways {
				if w.lane.err != nil || len(w.took) > 0 && w.took[0] > 8*time.Second {
					continue // missing or slow: one round is enough
				}
				w.before = h.rss()
				stop := make(chan struct{})
				var watch sync.WaitGroup
				watch.Go(func() {
					for {
						select {
						case <-stop:
							return
						case <-time.After(20 * time.Millisecond):
							w.most = max(w.most, h.rss()-w.before)
						}
					}
				})
				began := time.Now()
				err := w.run(w.lane)
				took := time.Since(began)
				close(stop)
				watch.Wait()
				if err != nil {
					w.lane.err = err
					continue
				}
				w.took = append(w.took, took)
			}
		}
		var list []figure
		base := 0.0
		for _, w := range group.ways {
			if w.lane.err != nil {
				list = append(list, figure{name: w.name, note: "did not run: " + w.lane.err.Error()})
				continue
			}
			rate := float64(w.lane.size) / 1e6 / quantile(w.took, 0).Seconds()
			if base == 0 {
				base = rate
			}
			f := figure{name: w.name, value: 100 * rate / base, unit: "%", target: w.target, least: true, note: fmt.Sprintf("%.0f MB/s of %d MB", rate, w.lane.size>>20)}
			if w.lane == jail || w.lane == looked {
				f.note += fmt.Sprintf("; the daemon had at most %.1f MB more", float64(w.most)/1e6)
			}
			list = append(list, f)
		}
		figures("A stream: "+group.title+", best of 3 (load "+load()+")", list...)
	}
}

// benchLatency sends small requests.
func benchLatency(direct, jail, looked, tiny, mitm *lane) {
	for _, group := range []struct {
		title  string
		secure bool
		fresh  bool // a connection for each request
		rounds int
		lanes  []*lane
	}{
		{"requests of HTTP on a connection that is kept", false, false, 1500, []*lane{direct, jail, mitm}},
		{"requests of HTTPS on a connection that is kept", true, false, 1500, []*lane{direct, jail, looked, tiny, mitm}},
		{"connections with one request of HTTP", false, true, 300, []*lane{direct, jail, tiny, mitm}},
		{"connections with one request of HTTPS", true, true, 150, []*lane{direct, jail, looked, tiny, mitm}},
	} {
		took, talks, failed := map[*lane][]time.Duration{}, map[*lane]*talk{}, map[*lane]error{}
		once := func(l *lane) (err error) {
			c := talks[l]
			if c == nil {
				c, err = l.talk(group.secure)
				if err != nil {
					return err
				}
				if !group.fresh {
					talks[l] = c
				}
			}
			if group.fresh {
				defer c.Close()
			}
			return c.get(10)
		}
		for round := range group.rounds {
			for _, l := range group.lanes {
				if failed[l] != nil || l == mitm && round > group.rounds/5 {
					continue
				}
				began := time.Now()
				failed[l] = once(l)
				if round >= 10 {
					took[l] = append(took[l], time.Since(began))
				}
			}
		}
		for _, c := range talks {
			c.Close()
		}
		var list []figure
		base := quantile(took[direct], 0.5)
		for _, l := range group.lanes {
			if failed[l] != nil {
				list = append(list, figure{name: l.name, note: "did not run: " + failed[l].Error()})
				continue
			}
			f := figure{name: l.name + ", p50", value: ms(quantile(took[l], 0.5)), unit: "ms", note: fmt.Sprintf("p99 %.2f ms", ms(quantile(took[l], 0.99)))}
			if l != direct {
				f.name, f.value = l.name+", more at p50", ms(quantile(took[l], 0.5)-base)
			}
			if l == jail {
				f.target = 0.3
			}
			list = append(list, f)
		}
		figures("Small "+group.title+", taking turns (load "+load()+")", list...)
	}
}

// benchConnections opens as many connections as a jail may have, and uses all of them
// concurrently.
func benchConnections(h *daemonHarness, l *lane) {
	const n = 1000
	time.Sleep(2 * time.Second) // until the previous connections have ended
	before := h.rss()
	conns := make([]net.Conn, n)
	errs := make(chan error, 2*n)
	began := time.Now()
	var wg sync.WaitGroup
	lanes := make(chan struct{}, 64)
	for i := range conns {
		wg.Go(func() {
			lanes <- struct{}{}
			defer func() { <-lanes }()
			c, err := l.dial("9001")
			if err == nil {
				conns[i] = c
				err = exchange(c)
			}
			if err != nil {
				errs <- err
			}
		})
	}
	wg.Wait()
	opened := time.Since(began)
	idle := h.rss()
	began = time.Now()
	for _, c := range conns {
		if c != nil {
			wg.Go(func() {
				if err := exchange(c); err != nil {
					errs <- err
				}
			})
		}
	}
	wg.Wait()
	said := time.Since(began)
	for _, c := range conns {
		if c != nil {
			c.Close()
		}
	}
	close(errs)
	var first error
	failed := 0
	for err := range errs {
		failed++
		first = err
	}
	list := []figure{
		{name: "connections that work at once", value: float64(n - failed), target: n, least: true, note: fmt.Sprintf("opened in %.0f ms, 64 at a time", ms(opened))},
		{name: "all of them ask and are answered, together", value: ms(said), unit: "ms"},
		{name: "the daemon's memory for each, at rest", value: float64(idle-before) / n / 1e3, unit: "kB"},
	}
	if first != nil {
		list[0].note += ": " + first.Error()
	}
	figures("Connections of one jail (load "+load()+")", list...)
}

func exchange(c net.Conn) error {
	c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.WriteString(c, "100\n"); err != nil {
		return err
	}
	_, err := io.CopyN(io.Discard, c, 100)
	return err
}
