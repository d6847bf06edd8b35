package test_test

import (
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
	"glasshouse/backend/backendtest"
	"glasshouse/egress"
	"glasshouse/egress/egresstest"
	"glasshouse/id"
)

// An escape is an attempt of test/escape, as that tells of it.
type escape struct {
	Name    string
	Reasons []egress.Reason
	Host    string
	Port    uint16
	Packet  bool
	Log     string
	Carried string
	Silent  bool
	Slow    bool
}

// prompt is how soon an attempt must have failed, on a host that is busy. It is less than
// what test/escape waits for an answer.
const prompt = 15 * time.Second

// A prisoner is a jail in which escapes are attempted.
type prisoner struct {
	*house
	world *wild
	jail  id.Jail
	env   map[string]string
}

// TestNothingGetsOut makes every attempt of test/escape in jails of network mode
// proxy. Each must fail at once with a clear answer, reach nothing that it may not,
// and be recorded: in the chain, with a reason that fits, or, where the jail's own
// kernel let it come to nothing, in the jail's log.
func TestNothingGetsOut(t *testing.T) {
	if !ownWorld(t) {
		return
	}
	program := buildEscape(t)
	all := listEscapes(t, program)
	w := newWild(t)
	secret := "gh-canary-of-the-inside-0123456789"
	t.Setenv("HOST_SECRET", "of the daemon's environment")
	h := open(t, tools(), "--listen", "0.0.0.0:0", "--insecure")
	_, api, _ := net.SplitHostPort(h.tcpAddr())

	rules := egressRules(t, api)
	runc := wire.CreateJail{Backend: "oci", Runtime: "runc", Network: "proxy", Egress: &rules}
	p := &prisoner{house: h, world: w, jail: h.running(runc).ID, env: map[string]string{
		"HOST_API": api, "HOST_SOCKET": filepath.Join(h.data, "glasshouse.sock"),
		"HOST_ABSTRACT": listenAbstract(t), "HOST_JAILS": strings.Join(otherJails(t, h, w, secret), " "),
	}}
	p.takeIn(program)
	if err := h.PutSecret(t.Context(), "inside", wire.PutSecret{Value: &secret}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.GrantSecret(t.Context(), "inside", wire.GrantSecret{Jail: p.jail, Delivery: "inject", Hosts: []string{"echo.secret.example.com"}}); err != nil {
		t.Fatal(err)
	}
	if got := p.attempt(t, "-list"); !strings.Contains(got, "HTTP/0.9") {
		t.Fatalf("the program does not run in the jail: %.300q", got)
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
		if n, _ := w.came("few.example.com"); n == 0 || n > 3 {
			t.Errorf("%d requests came, of which 3 are allowed", n)
		}
		if _, n := w.came("small.example.com"); n > 64<<10 {
			t.Errorf("%d bytes came, of which %d are allowed", n, 64<<10)
		}
	})
	t.Run("while the daemon is away", func(t *testing.T) {
		q := p.in(t)
		defer func() { h.cmd, h.log, h.Client = q.cmd, q.log, q.Client }()
		q.away()
	})
	t.Run("another runtime", func(t *testing.T) { p.in(t).otherRuntimes(program, all, rules) })

	if names := unasked(w.Asked()); len(names) > 0 {
		t.Errorf("the host's name server was asked for %q", names)
	}
	if got := w.astray(); len(got) > 0 {
		t.Errorf("at the end packets are seen to %q", got)
	}
	if len(all) < 150 {
		t.Errorf("%d attempts, which are not all", len(all))
	}
	if r, err := h.VerifyChain(t.Context(), true); err != nil || r.Bad != nil {
		t.Errorf("verifying the chain: %+v, %v", r, err)
	}
}

// buildEscape returns the program that attempts.
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
	if err := json.Unmarshal(out, &all); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, e := range all {
		if seen[e.Name] {
			t.Errorf("two attempts are called %q", e.Name)
		}
		seen[e.Name] = true
		if len(e.Reasons) == 0 && !e.Packet && e.Log == "" && e.Carried == "" {
			t.Errorf("%s: it is not said how it is recorded", e.Name)
		}
	}
	return all
}

// egressRules are those of the table, and those of the servers with limits.
func egressRules(t *testing.T, api string) wire.Egress {
	t.Helper()
	var port uint16
	if _, err := fmt.Sscan(api, &port); err != nil {
		t.Fatal(err)
	}
	e := wire.Egress{}
	for _, r := range egresstest.Allow {
		if r.Host == "*.rebind.example" { // a rule as careless as can be
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

// listenAbstract listens on the host at a socket without a path.
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

// otherJails makes a jail of each network mode and returns where in them who
// connects is told that he should not have come.
func otherJails(t *testing.T, h *house, w *wild, secret string) (at []string) {
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
			t.Fatalf("a jail that was given a secret reads %q", got)
		}
		ns := filepath.Join(h.data, "run/netns", string(j.ID))
		addrs := addressesIn(t, ns)
		if len(addrs) == 0 {
			t.Fatalf("a jail with the network %s has no address", mode)
		}
		for _, a := range addrs {
			at = append(at, listenIn(t, ns, a))
		}
	}
	for _, a := range neighbours(t) {
		at = append(at, a+":80")
		w.Move("jail.rebind.example", a)
	}
	w.Move("self.rebind.example", "10.0.0.2")
	w.Move("gate.rebind.example", "10.0.0.1")
	w.Move("both.rebind.example", egresstest.Metadata, serversAddr)
	w.Move("flip.rebind.example", egresstest.API)
	return at
}

// in is p, failing another test.
func (p *prisoner) in(t *testing.T) *prisoner {
	h, q := *p.house, *p
	h.T, q.house = t, &h
	return &q
}

func (p *prisoner) takeIn(program string) {
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

// attempt runs the program and returns what it wrote.
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
		t.Errorf("it complains: %s", stderr)
	}
	return string(stdout)
}

// An outcome is what became of an escape.
type outcome struct {
	Answer, Err string
	Timeout     bool
	Took        time.Duration
	after       int64 // the last entry of the chain before
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
		t.Fatalf("it says %.300q", text)
	}
	return o
}

// begin makes the slow attempts, all at once. The function it returns waits for
// what becomes of them.
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

// fails makes an attempt, unless it was made, and checks that it came to nothing.
func (p *prisoner) fails(e escape, o *outcome) {
	p.Helper()
	if o == nil {
		o = p.try(p.T, e)
	}
	p.Logf("after %v: %.300q %s", o.Took.Round(time.Millisecond), o.Answer, o.Err)
	if strings.Contains(o.Answer, egresstest.Reached) {
		p.Errorf("it got out: %q", o.Answer)
	}
	if e.Carried != "" && o.Err != "" {
		p.Errorf("it was not carried to where it may go: %s", o.Err)
	}
	if o.Took > prompt && !e.Slow {
		p.Errorf("it took %v until it failed", o.Took)
	}
	if !e.Silent && (o.Timeout || o.Answer == "" && o.Err == "") && !closedUnsaid(e) {
		p.Errorf("there was no clear answer: %q, %q after %v", o.Answer, o.Err, o.Took)
	}
	if got := p.world.astray(); len(got) > 0 {
		p.Errorf("packets are seen to %q", got)
	}
	p.isRecorded(e, o)
}

// closedUnsaid reports whether an attempt is one whose connection just ends: there
// is no way to say why to who speaks DNS over TCP badly.
func closedUnsaid(e escape) bool { return strings.HasPrefix(e.Name, "DNS") }

// isRecorded looks for the attempt in the chain, and in the jail's log.
func (p *prisoner) isRecorded(e escape, o *outcome) {
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
		p.Errorf("it is not recorded; the chain has %q", seen)
	}
}

// fits reports whether a record is that of the attempt.
func (e escape) fits(r egress.Record) bool {
	if e.Host != "" && r.Host != e.Host || e.Port != 0 && r.Port != e.Port {
		return false
	}
	switch {
	case e.Carried != "":
		return r.Allowed && r.Reason == "" && r.Addr == e.Carried
	case r.Kind == "packet":
		return e.Packet && !r.Allowed
	}
	return !r.Allowed && slices.Contains(e.Reasons, r.Reason)
}

// privateAfterPublic is tried with a daemon that has not asked for the name yet.
const privateAfterPublic = "rebinding: private after public"

// away kills the daemon while a program tries all ways again and again.
func (p *prisoner) away() {
	public := escape{Name: privateAfterPublic, Carried: egresstest.API + ":80"}
	p.isRecorded(public, p.try(p.T, public))

	if _, err := p.Exec(p.Context(), p.jail, wire.ExecRequest{Argv: []string{"/root/escape", "-away"}, Env: p.env, Detach: true}); err != nil {
		p.Fatal(err)
	}
	var file string // as the host sees it, who has nobody else to ask
	if !within(20*time.Second, func() bool { file = roundsOf("/root/escape\x00-away\x00"); return file != "" }) {
		p.Fatal("the program does not run")
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
			p.Fatalf("it got out:\n%s", b)
		}
		return n
	}
	if !within(20*time.Second, func() bool { return rounds(time.Time{}, "carried") > 2 }) {
		p.Fatal("what is allowed is not carried")
	}
	p.kill()
	killed := time.Now()
	if !within(30*time.Second, func() bool { return rounds(killed, "refused") > 2 }) {
		p.Error("without a daemon what is allowed is not refused at once")
	}
	if n := rounds(killed, "carried"); n > 0 {
		p.Errorf("%d times something was carried without a daemon", n)
	}
	p.start()
	again := time.Now()
	p.world.Move("flip.rebind.example", egresstest.Metadata)
	if !within(20*time.Second, func() bool { return rounds(again, "carried") > 2 }) {
		p.Error("what is allowed is not carried any more")
	}
	p.sh(p.jail, "touch /root/stop")
	if got := p.world.astray(); len(got) > 0 {
		p.Errorf("packets are seen to %q", got)
	}
	p.fails(escape{Name: privateAfterPublic, Reasons: []egress.Reason{egress.ReasonAddress}, Host: "flip.rebind.example"}, nil)
}

// roundsOf finds the file to which a program in a jail writes, by its command line.
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
			q.takeIn(program)
			for _, e := range all {
				if slices.Contains(everywhere, e.Name) && (b.Runtime != "runsc" || !slices.Contains(unreported, e.Name)) {
					t.Run(e.Name, func(t *testing.T) { q.in(t).fails(e, nil) })
				}
			}
		})
	}
}

// everywhere are attempts that depend on how a runtime made the jail.
var everywhere = []string{
	"a direct address by HTTP", "cloud metadata by HTTP", "UDP to the port of QUIC", "IPv6 TCP", "ICMP", "a raw socket", "frames",
	"another DNS server, udp", "another DNS server, tcp", "proxy: CONNECT to metadata", "TLS: a host that is not allowed",
	"a route past the gateway", "rules of a firewall", "another's network", "a network of its own", "settings of the network",
	"the daemon at the host's address", "the daemon's socket", "a socket of the host without a path", "other jails by TCP",
	"another jail by an allowed name", "secrets of other processes", "an allowed name at another address in hosts",
}

// unreported come to nothing in gVisor's kernel, which has no point of tracing
// for them.
var unreported = []string{"frames", "another's network", "a network of its own"}
