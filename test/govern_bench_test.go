//go:build bench

package test_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/api/wire"
	"glasshouse/govern"
	"glasshouse/host/netns"
	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/policy/chain"
	"glasshouse/store"
)

// A figure is a measured value. A figure without a target serves for comparison.
type figure struct {
	name   string
	value  float64
	unit   string
	target float64 // 0: no target
	least  bool    // the target is a minimum
	note   string
}

// figures prints a table with the ratio of each value to its target: it should be at most 1, or
// at least 1 if the target is a minimum.
func figures(title string, list ...figure) {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s\n  %-58s %14s %14s %7s\n", title, "", "measured", "target", "ratio")
	for _, f := range list {
		target, ratio := "", ""
		if f.target > 0 {
			sign := "≤"
			if f.least {
				sign = "≥"
			}
			target, ratio = sign+" "+amount(f.target), fmt.Sprintf("%.2f×", f.value/f.target)
		}
		fmt.Fprintf(&b, "  %-58s %14s %14s %7s  %s\n", f.name, amount(f.value)+" "+f.unit, target, ratio, f.note)
	}
	fmt.Fprint(report(), b.String())
}

// amount formats a number with three significant digits.
func amount(v float64) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%.0f", v)
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// reportFile names the output file of a benchmark that runs in its own namespaces.
const reportFile = "GLASSHOUSE_BENCH_REPORT"

// report is the writer for tables.
var report = sync.OnceValue(func() io.Writer {
	if name := os.Getenv(reportFile); name != "" {
		if f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600); err == nil {
			return f
		}
	}
	return os.Stdout
})

func load() string {
	b, _ := os.ReadFile("/proc/loadavg")
	return strings.Join(strings.Fields(string(b))[:3], " ")
}

// quantile returns the quantile q of took, which it sorts.
func quantile(took []time.Duration, q float64) time.Duration {
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[min(len(took)-1, int(q*float64(len(took))))]
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// each measures f in batches: the median of the batches, and the quickest, which was not
// disturbed by other processes.
func each(batches, n int, f func()) (median, quickest time.Duration) {
	var took []time.Duration
	for batch := range batches + 3 {
		began := time.Now()
		for range n {
			f()
		}
		if batch >= 3 { // the first ones warm up
			took = append(took, time.Since(began)/time.Duration(n))
		}
	}
	return quantile(took, 0.5), took[0]
}

func TestBenchGovern(t *testing.T) {
	t.Run("policy", benchPolicy)
	t.Run("chain", benchChain)
	t.Run("enforce", benchEnforce)
}

// thousandRules returns rules about commands, files, URLs and hosts.
func thousandRules() string {
	effects := []string{"allow", "ask", "deny"}
	var b strings.Builder
	b.WriteString(`{"permission": {"bash": {"*": "ask", "git status *": "allow"`)
	some := func(n int, format string) {
		for i := range n {
			fmt.Fprintf(&b, ", "+format+": %q", i, effects[i%3])
		}
	}
	some(400, `"npm run task-%d *"`)
	b.WriteString(`}, "edit": {"*": "ask"`)
	some(300, `"src/part%d/*.ts"`)
	b.WriteString(`}, "webfetch": {"*": "ask"`)
	some(200, `"https://host%d.example.com/*"`)
	b.WriteString(`}, "connect": {"*": "ask"`)
	some(100, `"host%d.example.com:443"`)
	b.WriteString(`}}}`)
	return b.String()
}

func compiled(t *testing.T, text string) *policy.Set {
	t.Helper()
	p, err := policy.ReadPermissions("opencode.json", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	s, err := policy.Compile(policy.Config{Permissions: []*policy.Permissions{p}, Level: policy.Full, Home: "/root", Workspace: "/work"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func benchPolicy(t *testing.T) {
	s := compiled(t, thousandRules())
	var list []figure
	add := func(s *policy.Set, name string, target float64, q func(n int) policy.Question) {
		n := 0
		median, quickest := each(100, 500, func() { s.Decide(q(n)); n++ })
		list = append(list, figure{name: name, value: micros(median), unit: "µs", target: target, note: fmt.Sprintf("%.2f µs in the quickest batch", micros(quickest))})
	}
	same := func(action, resource string) func(int) policy.Question {
		return func(int) policy.Question { return policy.Question{Action: action, Resource: resource} }
	}
	add(s, "a command line that was seen before", 5, same(policy.ActionRun, "npm run task-398 --silent"))
	add(s, "a pipeline of three that was seen before", 5, same(policy.ActionRun, "npm run task-398 && git status | cat"))
	add(s, "a path", 5, same(policy.ActionEdit, "src/part233/login.ts"))
	add(s, "a path outside of the workspace", 5, same(policy.ActionEdit, "/etc/passwd"))
	add(s, "a URL", 5, same(policy.ActionFetch, "https://host133.example.com/login"))
	add(s, "a host and port", 5, same(policy.ActionConnect, "host66.example.com:443"))
	lines := make([]string, 60000)
	for i := range lines {
		lines[i] = fmt.Sprintf("npm run task-%d --silent", i)
	}
	add(s, "a command line that was never seen, which is parsed", 5, func(n int) policy.Question {
		return policy.Question{Action: policy.ActionRun, Resource: lines[n]}
	})
	var b strings.Builder
	b.WriteString(`{"permission": {"bash": {"*": "allow"`)
	for i := range 1000 {
		fmt.Fprintf(&b, `, "rm -rf x%d": "deny"`, i)
	}
	add(compiled(t, b.String()+"}}}"), "a command line, with 1 000 rules about options of its program", 5, same(policy.ActionRun, "rm -r -f x999"))
	figures("Decisions by 1 000 rules (load "+load()+")", list...)
}

// onDisk returns a directory on the file system where daemons keep their data, so that durable
// writes have the same cost.
func onDisk(t *testing.T) string {
	t.Helper()
	data := os.Getenv("GLASSHOUSE_DATA")
	if data == "" {
		data = "/var/lib/glasshouse"
	}
	dir, err := os.MkdirTemp(data, "bench-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func openChain(t *testing.T, dir string) *chain.Chain {
	t.Helper()
	s, err := store.Open(t.Context(), filepath.Join(dir, "glasshouse.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	key, err := chain.LoadKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := chain.Open(t.Context(), chain.Config{Store: s.Chain(), Key: key})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// hurried runs f in n goroutines for a while and returns the duration of each call.
func hurried(n int, long time.Duration, f func() error) (took []time.Duration, rate float64, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	began := time.Now()
	for range n {
		wg.Go(func() {
			var mine []time.Duration
			for time.Since(began) < long {
				at := time.Now()
				if e := f(); e != nil {
					mu.Lock()
					err = e
					mu.Unlock()
					return
				}
				mine = append(mine, time.Since(at))
			}
			mu.Lock()
			took = append(took, mine...)
			mu.Unlock()
		})
	}
	wg.Wait()
	return took, float64(len(took)) / time.Since(began).Seconds(), err
}

// syncs measures the duration of writing and syncing one page, and the number of such writes per
// second.
func syncs(t *testing.T, dir string) (took []time.Duration, rate float64) {
	f, err := os.Create(filepath.Join(dir, "page"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	page := make([]byte, 4096)
	took, rate, err = hurried(1, time.Second, func() error {
		if _, err := f.Write(page); err != nil {
			return err
		}
		return f.Sync()
	})
	if err != nil {
		t.Fatal(err)
	}
	return took, rate
}

func benchChain(t *testing.T) {
	dir := onDisk(t)
	c := openChain(t, dir)
	took, rate := syncs(t, dir)
	list := []figure{{name: "(one page written and synced, one after the other)", value: rate, unit: "/s", note: fmt.Sprintf("p50 %.0f µs", micros(quantile(took, 0.5)))}}
	body := json.RawMessage(`{"action":"bash","allowed":true,"effect":"allow","reason":"\"npm *\" of bash is allowed (opencode.json:12)",` +
		`"resource":"npm run build --silent","rule":{"action":"bash","effect":"allow","file":"opencode.json","line":12,"pattern":"npm *"},"tag":"AUTONOMOUS"}`)
	entry := chain.Entry{Kind: chain.Decided, Jail: "j-0123456789", Session: "session-1", Run: "run-1", Agent: "worker", Body: body}
	for _, writers := range []int{1, 16, 64, 256} {
		took, rate, err := hurried(writers, 3*time.Second, func() error {
			_, err := c.Append(t.Context(), entry)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		f := figure{name: fmt.Sprintf("durable appends, %d at a time", writers), value: rate, unit: "/s", least: true,
			note: fmt.Sprintf("p50 %.2f ms, p99 %.2f", ms(quantile(took, 0.5)), ms(quantile(took, 0.99)))}
		if writers > 1 {
			f.target = 10000
		}
		list = append(list, f)
	}
	figures("The chain, in SQLite on "+dir+" (load "+load()+")", list...)
	benchVerify(t, dir, c)
	benchJudge(t, c)
}

func benchVerify(t *testing.T, dir string, c *chain.Chain) {
	name := filepath.Join(dir, "export.jsonl")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := c.Export(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	verify := func(name string, target float64, f func() (chain.Report, error)) figure {
		var rates []float64
		for range 4 {
			began := time.Now()
			r, err := f()
			if err != nil || r.Bad != nil {
				t.Fatal(err, r.Bad)
			}
			rates = append(rates, float64(r.Entries)/time.Since(began).Seconds())
		}
		slices.Sort(rates)
		return figure{name: name, value: rates[len(rates)-1], unit: "/s", target: target, least: true, note: fmt.Sprintf("%.0f in the slowest of %d", rates[0], len(rates))}
	}
	figures(fmt.Sprintf("Verifying %d entries, quickest (load %s)", c.Last(), load()),
		verify("an export", 500000, func() (chain.Report, error) {
			return chain.VerifyExport(t.Context(), f, chain.TrustedInput{Key: c.Key()})
		}),
		verify("the database, while the daemon has it", 500000, func() (chain.Report, error) { return c.VerifyAll(t.Context()) }),
	)
}

// benchJudge measures a decision from the question to its audit log entry.
func benchJudge(t *testing.T, c *chain.Chain) {
	k := govern.New(govern.Config{Chain: c, Dir: t.TempDir()})
	defer k.Close()
	spec, err := json.Marshal(govern.Spec{Policy: &govern.Policy{Files: []govern.File{{Name: "opencode.json", Text: thousandRules()}}}})
	if err != nil {
		t.Fatal(err)
	}
	jid := id.NewJail()
	if err := k.Guard(t.Context(), jid, govern.Guard{Spec: spec, Workspace: "/work"}); err != nil {
		t.Fatal(err)
	}
	var list []figure
	for _, askers := range []int{1, 32} {
		took, rate, err := hurried(askers, 3*time.Second, func() error {
			v, err := k.Evaluate(t.Context(), govern.Ask{Question: policy.Question{
				Subject: policy.Subject{Jail: jid}, Action: policy.ActionRun, Resource: "npm run task-399 --silent",
			}})
			if err == nil && (!v.Allow || v.Entry == 0) {
				err = fmt.Errorf("decision: %+v", v)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, figure{name: fmt.Sprintf("judged and recorded, %d at a time, p50", askers), value: ms(quantile(took, 0.5)), unit: "ms",
			note: fmt.Sprintf("p99 %.2f ms, %.0f/s", ms(quantile(took, 0.99)), rate)})
	}
	figures("A question, from asking to the durable entry (load "+load()+")", list...)
}

// benchEnforce runs loads in jails with and without kernel-level enforcement.
func benchEnforce(t *testing.T) {
	h := open(t, tools()+"pool: {size: 0}\n")
	all := &wire.Policy{Files: []wire.PolicyFile{{Name: "opencode.json", Text: `{"permission": {"bash": {"*": "allow"}, "edit": {"*": "allow"}, "connect": {"*": "allow"}, "external_directory": "allow"}}`}}, Level: 3}
	free := h.running(wire.CreateJail{Policy: all, Limits: wire.Limits{CPUShares: 1024}})
	held := h.running(wire.CreateJail{Policy: all, Enforce: true, Limits: wire.Limits{CPUShares: 1024}})
	port := ""
	for _, j := range []wire.Jail{free, held} {
		port = swallow(t, filepath.Join(h.data, "run/netns", string(j.ID)))
	}
	var list []figure
	for _, load := range []struct {
		name, line string
		n          int
	}{
		{"a program started", "for i in $(seq 50); do /bin/true; done", 50},
		{"a file opened to be written", "for i in $(seq 100); do : >/tmp/f; done", 100},
		{"a connection", "for i in $(seq 100); do exec 3<>/dev/tcp/127.0.0.1/" + port + "; exec 3>&-; done", 100},
		{"a file opened to be read", "for i in $(seq 500); do read x </etc/passwd; done", 500},
	} {
		took := map[id.Jail][]time.Duration{}
		for range 5 {
			for _, j := range []wire.Jail{free, held} {
				// The shell itself prints the duration, which excludes its start.
				out := h.sh(j.ID, `bash -c 'a=$EPOCHREALTIME; `+load.line+`; b=$EPOCHREALTIME; echo $(( ${b/./} - ${a/./} ))'`)
				var us int64
				if _, err := fmt.Sscan(out, &us); err != nil {
					t.Fatalf("%s: %q", load.name, out)
				}
				took[j.ID] = append(took[j.ID], time.Duration(us)*time.Microsecond/time.Duration(load.n))
			}
		}
		without, with := quantile(took[free.ID], 0), quantile(took[held.ID], 0)
		list = append(list, figure{name: load.name, value: micros(with - without), unit: "µs more",
			note: fmt.Sprintf("%.0f µs, %.0f without: %.2f×; median %.0f µs", micros(with), micros(without), float64(with)/float64(without), micros(quantile(took[held.ID], 0.5)))})
	}
	figures("A jail whose calls are decided and recorded, beside one whose are not; shortest of 5 (load "+load()+")", list...)
}

// swallow accepts connections in a namespace and sends nothing.
func swallow(t *testing.T, ns string) (port string) {
	t.Helper()
	var l net.Listener
	if err := netns.Do(ns, func() (err error) {
		l, err = net.Listen("tcp4", "127.0.0.1:7777")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				c.Close()
			}
		}
	}()
	return "7777"
}
