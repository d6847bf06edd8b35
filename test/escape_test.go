package test_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/policy/egress"
	"glasshouse/policy/egress/egresstest"
)

// An escape is an attempt of test/escape, as the program lists it.
type escape struct {
	Name      string
	Reasons   []egress.Reason
	Host      string
	Port      uint16
	Packet    bool
	Log       string
	Forwarded string
	Silent    bool
	Slow      bool
}

// prompt is the time limit for a failing attempt on a busy host. It is shorter than the response
// timeout of test/escape.
const prompt = 15 * time.Second

// A prisoner is a jail in which escapes are attempted.
type prisoner struct {
	*daemonHarness
	world *wild
	jail  id.Jail
	env   map[string]string
}

// TestEgressEscapes makes each attempt of test/escape in jails of network mode proxy. Each must
// fail immediately with a clear error, reach nothing that is denied, and be recorded: in the
// audit log with a matching reason, or, if the jail's kernel rejected it, in the jail's event
// log.
func TestEgressEscapes(t *testing.T) {
	if !ownWorld(t) {
		return
	}
	program := buildEscape(t)
	all := listEscapes(t, program)
	w := newWild(t)
	secret := "gh-canary-of-the-inside-0123456789"
	t.Setenv("HOST_SECRET", "of the daemon's environment")
	conf := tools()
	if backendtest.Thorough { // also in virtual machines, which an emulated processor makes slow
		conf += fmt.Sprintf("microvm: {emulate: true, kernel: %q}\n", setupKernel())
	}
	h := open(t, conf, "--listen", "0.0.0.0:0", "--insecure")
	_, api, _ := net.SplitHostPort(h.tcpAddr())

	rules := egressRules(t, api)
	runc := wire.CreateJail{Backend: "oci", Runtime: "runc", Network: "proxy", Egress: &rules}
	p := &prisoner{daemonHarness: h, world: w, jail: h.running(runc).ID, env: map[string]string{
		"HOST_API": api, "HOST_SOCKET": filepath.Join(h.data, "glasshouse.sock"),
		"HOST_ABSTRACT": listenAbstract(t), "HOST_JAILS": strings.Join(otherJails(t, h, w, secret), " "),
	}}
	p.addProgram(program)
	if err := h.PutSecret(t.Context(), "inside", wire.PutSecret{Value: &secret}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.GrantSecret(t.Context(), "inside", wire.GrantSecret{Jail: p.jail, Delivery: "inject", Hosts: []string{"echo.secret.example.com"}}); err != nil {
		t.Fatal(err)
	}
	if got := p.attempt(t, "-list"); !strings.Contains(got, "HTTP/0.9") {
		t.Fatalf("the program does not start in the jail: %.300q", got)
	}

	slow := p.begin(all)
	for _, e := range all {
		switch {
		case e.Slow, e.Name == privateAfterPublic:
		default:
			t.Run(e.Name, func(t *testing.T) { p.in(t).fails(e, nil) })
		}
	}
	outcomes := slow()
	for _, e := range all {
		if e.Slow {
			t.Run(e.Name, func(t *testing.T) { p.in(t).fails(e, outcomes[e.Name]) })
		}
	}
	t.Run("what was allowed in part", func(t *testing.T) {
		if n, _ := w.received("few.example.com"); n == 0 || n > 3 {
			t.Errorf("the server received %d requests, want 1 to 3", n)
		}
		if _, n := w.received("small.example.com"); n > 64<<10 {
			t.Errorf("the server received %d bytes, want at most %d", n, 64<<10)
		}
	})
	t.Run("while the daemon is away", func(t *testing.T) {
		q := p.in(t)
		defer func() { h.cmd, h.log, h.Client = q.cmd, q.log, q.Client }()
		q.away()
	})
	t.Run("another runtime", func(t *testing.T) { p.in(t).otherRuntimes(program, all, rules) })

	if names := unasked(w.Queries()); len(names) > 0 {
		t.Errorf("the host's name server was queried for %q", names)
	}
	if got := w.strayPackets(); len(got) > 0 {
		t.Errorf("at the end, packets were sent to %q", got)
	}
	if len(all) < 150 {
		t.Errorf("got %d attempts, want at least 150", len(all))
	}
	if r, err := h.VerifyChain(t.Context(), true); err != nil || r.Bad != nil {
		t.Errorf("verifying the audit log: %+v, %v", r, err)
	}
}

// buildEscape builds the program of the attempts and returns its path.
func buildEscape(t *testing.T) string {
	t.Helper()
	program, err := backendtest.Find("./test/escape")
	if err != nil {
		t.Fatal(err)
	}
	return program
}

func listEscapes(t *testing.T, program string) (all []escape) {
	t.Helper()
	out, err := exec.Command(program, "-list").Output()
	if err != nil {
		t.Fatal(err)
	}
	fields := json.NewDecoder(bytes.NewReader(out))
	fields.DisallowUnknownFields() // else a renamed field of the program would be empty here
	if err := fields.Decode(&all); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, e := range all {
		if seen[e.Name] {
			t.Errorf("two attempts have the name %q", e.Name)
		}
		seen[e.Name] = true
		if len(e.Reasons) == 0 && !e.Packet && e.Log == "" && e.Forwarded == "" {
			t.Errorf("%s: the attempt does not say how it is recorded", e.Name)
		}
	}
	return all
}

// egressRules returns the rules of the table, and those of the servers with limits.
func egressRules(t *testing.T, api string) wire.Egress {
	t.Helper()
	var port uint16
	if _, err := fmt.Sscan(api, &port); err != nil {
		t.Fatal(err)
	}
	e := wire.Egress{}
	for _, r := range egresstest.Allow {
		if r.Host == "*.rebind.example" { // a deliberately careless rule
			r.Ports = []uint16{80, 443, port}
		}
		e.Allow = append(e.Allow, wire.EgressRule{Name: r.Name, Host: r.Host, Ports: r.Ports, Methods: r.Methods, Paths: r.Paths, Intercept: r.Intercept})
	}
	e.Allow = append(e.Allow,
		wire.EgressRule{Host: "fields.example.com"},
		wire.EgressRule{Host: "small.example.com", Limit: wire.EgressLimit{Bytes: 64 << 10}},
		wire.EgressRule{Host: "few.example.com", Limit: wire.EgressLimit{Requests: 3, PerMS: 3_600_000}},
		wire.EgressRule{Host: "echo.secret.example.com", Inject: []wire.EgressInject{{Secret: "inside", As: "bearer"}}},
	)
	return e
}

// listenAbstract listens on the host at an abstract Unix socket (unix(7)).
func listenAbstract(t *testing.T) string {
	t.Helper()
	name := "@glasshouse-escape-test"
	l, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return name
}

// otherJails creates a jail of each network mode and returns the addresses of listeners in them
// that no other jail may reach.
func otherJails(t *testing.T, h *daemonHarness, w *wild, secret string) (at []string) {
	t.Helper()
	named := secret + "-of-another"
	if err := h.PutSecret(t.Context(), "another", wire.PutSecret{Value: &named}); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"proxy", "bridged", "full"} {
		req := wire.CreateJail{Network: mode}
		if mode == "bridged" {
			req.Group = "others"
		}
		j := h.running(req)
		if _, err := h.GrantSecret(t.Context(), "another", wire.GrantSecret{Jail: j.ID}); err != nil {
			t.Fatal(err)
		}
		if got := h.sh(j.ID, "cat /run/secrets/another"); got != named {
			t.Fatalf("jail with a granted secret reads %q", got)
		}
		ns := filepath.Join(h.data, "run/netns", string(j.ID))
		addrs := addressesIn(t, ns)
		if len(addrs) == 0 {
			t.Fatalf("jail with network %s has no address", mode)
		}
		for _, a := range addrs {
			at = append(at, listenIn(t, ns, a))
		}
	}
	for _, a := range neighbours(t) {
		at = append(at, a+":80")
		w.SetAddrs("jail.rebind.example", a)
	}
	w.SetAddrs("self.rebind.example", "10.0.0.2")
	w.SetAddrs("gate.rebind.example", "10.0.0.1")
	w.SetAddrs("both.rebind.example", egresstest.Metadata, serversAddr)
	w.SetAddrs("flip.rebind.example", egresstest.API)
	return at
}

// in returns p for another test.
func (p *prisoner) in(t *testing.T) *prisoner {
	h, q := *p.daemonHarness, *p
	h.T, q.daemonHarness = t, &h
	return &q
}

func (p *prisoner) addProgram(program string) {
	p.Helper()
	f, err := os.Open(program)
	if err != nil {
		p.Fatal(err)
	}
	defer f.Close()
	if _, err := p.WriteFile(p.Context(), p.jail, "/root/escape", f, client.WriteOptions{Mode: 0o755}); err != nil {
		p.Fatal(err)
	}
}

// attempt runs the program and returns its output.
func (p *prisoner) attempt(t *testing.T, what string) string {
	t.Helper()
	x, err := p.Exec(t.Context(), p.jail, wire.ExecRequest{Argv: []string{"/root/escape", what}, Env: p.env, TimeoutMS: 60_000, KeepBytes: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr, err := client.Output(x)
	if err != nil {
		t.Fatal(err)
	}
	if len(stderr) > 0 {
		t.Errorf("unexpected stderr: %s", stderr)
	}
	return string(stdout)
}

// An outcome is the result of an escape attempt.
type outcome struct {
	Answer, Err string
	Timeout     bool
	Took        time.Duration
	after       int64 // the last audit log entry before the attempt
	since       time.Time
}

func (p *prisoner) try(t *testing.T, e escape) *outcome {
	t.Helper()
	head, err := p.ChainHead(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o := &outcome{after: head.Entries, since: time.Now()}
	if text := p.attempt(t, e.Name); json.Unmarshal([]byte(text), o) != nil {
		t.Fatalf("the program printed %.300q", text)
	}
	return o
}

// begin starts the slow attempts in parallel. The function it returns waits for their results.
func (p *prisoner) begin(all []escape) func() map[string]*outcome {
	var mu sync.Mutex
	outcomes := map[string]*outcome{}
	var wg sync.WaitGroup
	for _, e := range all {
		if !e.Slow {
			continue
		}
		wg.Go(func() {
			o := p.try(p.T, e)
			mu.Lock()
			defer mu.Unlock()
			outcomes[e.Name] = o
		})
	}
	return func() map[string]*outcome { wg.Wait(); return outcomes }
}

// fails makes an attempt, unless o has its result, and checks that it failed.
func (p *prisoner) fails(e escape, o *outcome) {
	p.Helper()
	if o == nil {
		o = p.try(p.T, e)
	}
	p.Logf("after %v: %.300q %s", o.Took.Round(time.Millisecond), o.Answer, o.Err)
	if strings.Contains(o.Answer, egresstest.Reached) {
		p.Errorf("the attempt escaped: %q", o.Answer)
	}
	if e.Forwarded != "" && o.Err != "" {
		p.Errorf("an allowed request failed: %s", o.Err)
	}
	if o.Took > prompt && !e.Slow {
		p.Errorf("the attempt took %v to fail", o.Took)
	}
	if !e.Silent && (o.Timeout || o.Answer == "" && o.Err == "") && !closesWithoutError(e) {
		p.Errorf("no clear error: got %q, %q after %v", o.Answer, o.Err, o.Took)
	}
	if got := p.world.strayPackets(); len(got) > 0 {
		p.Errorf("packets were sent to %q", got)
	}
	p.checkRecorded(e, o)
}

// closesWithoutError reports whether the proxy closes the connection of an attempt without an error.
// It cannot report an error for malformed DNS over TCP.
func closesWithoutError(e escape) bool { return strings.HasPrefix(e.Name, "DNS") }

// checkRecorded searches for the attempt in the audit log and in the jail's event log.
func (p *prisoner) checkRecorded(e escape, o *outcome) {
	p.Helper()
	var seen []string
	inChain := func() bool {
		seen = nil
		query := url.Values{"jail": {string(p.jail)}, "kind": {"egress"}, "after": {fmt.Sprint(o.after)}}
		entries, err := client.Collect(p.Chain(p.Context(), query))
		if err != nil {
			p.Fatal(err)
		}
		for _, entry := range entries {
			var r egress.Record
			if err := json.Unmarshal(entry.Body, &r); err != nil {
				p.Fatal(err)
			}
			seen = append(seen, string(entry.Body))
			if e.fits(r) {
				return true
			}
		}
		return false
	}
	inLog := func() bool {
		for _, err := range p.Events(p.Context(), p.jail, client.EventQuery{Filter: e.Log, Since: o.since, Limit: 1}) {
			if err != nil {
				p.Fatal(err)
			}
			return true
		}
		return false
	}
	if !within(30*time.Second, func() bool {
		return inChain() || e.Log != "" && inLog()
	}) {
		p.Errorf("the attempt is not recorded; the audit log has %q", seen)
	}
}

// fits reports whether a record belongs to the attempt.
func (e escape) fits(r egress.Record) bool {
	if e.Host != "" && r.Host != e.Host || e.Port != 0 && r.Port != e.Port {
		return false
	}
	switch {
	case e.Forwarded != "":
		return r.Allowed && r.Reason == "" && r.Addr == e.Forwarded
	case r.Kind == "packet":
		return e.Packet && !r.Allowed
	}
	return !r.Allowed && slices.Contains(e.Reasons, r.Reason)
}

// privateAfterPublic runs before the daemon has resolved the name.
const privateAfterPublic = "rebinding: private after public"

// away kills the daemon while a program repeats all attempts.
func (p *prisoner) away() {
	public := escape{Name: privateAfterPublic, Forwarded: egresstest.API + ":80"}
	p.checkRecorded(public, p.try(p.T, public))

	if _, err := p.Exec(p.Context(), p.jail, wire.ExecRequest{Argv: []string{"/root/escape", "-away"}, Env: p.env, Detach: true}); err != nil {
		p.Fatal(err)
	}
	var file string // as the host sees it, because the jail's files cannot be read through a killed daemon
	if !within(20*time.Second, func() bool { file = roundsOf("/root/escape\x00-away\x00"); return file != "" }) {
		p.Fatal("the program does not start")
	}
	rounds := func(since time.Time, word string) (n int) {
		b, err := os.ReadFile(file)
		if err != nil {
			p.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			var at int64
			var said string
			if _, err := fmt.Sscan(line, &at, &said); err == nil && said == word && time.Unix(0, at).After(since) {
				n++
			}
		}
		if strings.Contains(string(b), egresstest.Reached) {
			p.Fatalf("an attempt escaped:\n%s", b)
		}
		return n
	}
	if !within(20*time.Second, func() bool { return rounds(time.Time{}, "carried") > 2 }) {
		p.Fatal("allowed requests fail")
	}
	p.kill()
	killed := time.Now()
	if !within(30*time.Second, func() bool { return rounds(killed, "refused") > 2 }) {
		p.Error("without a daemon, allowed requests do not fail immediately")
	}
	if n := rounds(killed, "carried"); n > 0 {
		p.Errorf("%d requests succeeded without a daemon", n)
	}
	p.start()
	again := time.Now()
	p.world.SetAddrs("flip.rebind.example", egresstest.Metadata)
	if !within(20*time.Second, func() bool { return rounds(again, "carried") > 2 }) {
		p.Error("allowed requests fail after the restart")
	}
	p.sh(p.jail, "touch /root/stop")
	if got := p.world.strayPackets(); len(got) > 0 {
		p.Errorf("packets were sent to %q", got)
	}
	p.fails(escape{Name: privateAfterPublic, Reasons: []egress.Reason{egress.ReasonAddress}, Host: "flip.rebind.example"}, nil)
}

// roundsOf returns the file to which a program in a jail writes, found by its command line.
func roundsOf(cmdline string) string {
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		if b, err := os.ReadFile(p); err == nil && string(b) == cmdline {
			file := filepath.Join(filepath.Dir(p), "root/root/rounds")
			if _, err := os.Stat(file); err == nil {
				return file
			}
		}
	}
	return ""
}

// otherRuntimes makes some of the attempts in jails of the other runtimes.
func (p *prisoner) otherRuntimes(program string, all []escape, rules wire.Egress) {
	for b, err := range p.Backends(p.Context()) {
		if err != nil {
			p.Fatal(err)
		}
		if _, lacks := b.Lacks["network"]; lacks || !b.Usable || b.Runtime == "runc" {
			continue
		}
		p.T.Run(strings.TrimSpace(b.Name+" "+b.Runtime), func(t *testing.T) {
			q := p.in(t)
			q.jail = q.running(wire.CreateJail{Backend: b.Name, Runtime: b.Runtime, Network: "proxy", Egress: &rules}).ID
			q.addProgram(program)
			for _, e := range all {
				if b.Name == "microvm" && e.Log != "" {
					continue // the events of virtual machines are not recorded yet
				}
				if slices.Contains(everywhere, e.Name) && (b.Runtime != "runsc" || !slices.Contains(unreported, e.Name)) {
					t.Run(e.Name, func(t *testing.T) { q.in(t).fails(e, nil) })
				}
			}
		})
	}
}

// everywhere lists the attempts that depend on how a runtime sets up the jail.
var everywhere = []string{
	"a direct address by HTTP", "cloud metadata by HTTP", "UDP to the port of QUIC", "IPv6 TCP", "ICMP", "a raw socket", "frames",
	"another DNS server, udp", "another DNS server, tcp", "proxy: CONNECT to metadata", "TLS: a host that is not allowed",
	"a route past the gateway", "rules of a firewall", "another's network", "a network of its own", "settings of the network",
	"the daemon at the host's address", "the daemon's socket", "a socket of the host without a path", "other jails by TCP",
	"another jail by an allowed name", "secrets of other processes", "an allowed name at another address in hosts",
}

// unreported lists attempts that fail in gVisor's kernel, which has no trace point for them.
var unreported = []string{"frames", "another's network", "a network of its own"}
