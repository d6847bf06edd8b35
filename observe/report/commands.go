package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"glasshouse/observe/event"
)

// Commands summarizes the programs that were run, grouped by program and arguments.
type Commands struct {
	Runs   int64     `json:"runs"`
	Failed int64     `json:"failed"` // exit code other than 0
	Killed int64     `json:"killed"`
	Kinds  Count     `json:"kinds"`
	List   []Command `json:"list"` // in the order of their first run
	More   int64     `json:"more"` // runs of commands that are not in List
}

// A Command is one program with its arguments, and the results of its runs.
type Command struct {
	Exe      Text       `json:"exe"`
	Argv     []Text     `json:"argv"`
	Cut      bool       `json:"cut,omitempty"` // Argv is truncated
	Cwd      Text       `json:"cwd,omitempty"` // Cwd, PID and UID are those of the first run
	PID      int32      `json:"pid"`
	UID      uint32     `json:"uid"`
	Runs     int64      `json:"runs"`
	AtLeast  bool       `json:"at_least,omitempty"` // earlier runs may have been dropped for lack of space
	Running  int64      `json:"running,omitempty"`
	Replaced int64      `json:"replaced,omitempty"` // runs that ended with an exec of another program
	Lost     int64      `json:"lost,omitempty"`     // runs whose end was not observed
	Ends     []EndCount `json:"ends"`               // the most frequent first; at most eight
	Total    int64      `json:"total_ns"`           // total of completed runs
	Longest  int64      `json:"longest_ns"`
	CPU      int64      `json:"cpu_ns"`
	Events   Link       `json:"events"`
	Began    time.Time  `json:"began"` // start of the first run
}

// An EndCount counts the runs with one result.
type EndCount struct {
	Code   *int32 `json:"exit_code,omitempty"`
	Signal Text   `json:"signal,omitempty"`
	Runs   int64  `json:"runs"`
}

type command struct {
	p                    *program
	pid                  int32
	uid                  uint32
	runs, replaced, lost int64
	total, longest, cpu  int64
	ends                 map[end]int64
	began                int64 // milliseconds
	failed, killed       int64
	link                 Link   // link of the execs
	endSeq               uint64 // number of the last exit event
}

type end struct {
	code   int32
	signal string
}

// commands groups runs by program and arguments.
type commands struct {
	table table[string, command]
	runs  int64
	failed,
	killed int64
}

func newCommands() *commands {
	c := &commands{}
	c.table.keep = 1024
	c.table.weight = func(c *command) int64 { return c.runs + 1000*(c.failed+c.killed) + c.total/1e9 }
	return c
}

func (c *commands) began(p *proc, e *event.Event) {
	g, fresh := c.table.get(p.runs.key())
	if fresh {
		*g = command{p: p.runs, pid: p.pid, uid: p.uid, ends: map[end]int64{}, began: p.runTS}
	}
	g.runs++
	c.runs++
	g.link.saw(e.Seq)
	// If the table drops the group, the process keeps it. Its result then counts only in the
	// sums.
	p.group = g
}

func (c *commands) stopped(p *proc, e *event.Event) {
	g := p.group
	g.endSeq = e.Seq
	ns := between(p.runNS, e.NS, p.runTS, e.TS)
	g.total = sum(g.total, ns)
	g.longest = max(g.longest, ns)
	how := end{p.code, p.signal}
	switch p.how {
	case alive:
		g.replaced++
		return
	case unknown:
		g.lost++
		return
	case exited:
		how.signal = ""
		if p.code != 0 {
			g.failed++
			c.failed++
		}
	case killed:
		how.code = 0
		g.killed++
		c.killed++
	}
	g.cpu = sum(sum(g.cpu, p.userNS), p.systemNS)
	if _, ok := g.ends[how]; ok || len(g.ends) < 8 {
		g.ends[how]++
	}
}

// key identifies a command: its executable and arguments.
func (r *program) key() string {
	return r.exe + "\x00" + strings.Join(r.argv, "\x00")
}

func (c *commands) report(t *Tree, rows int) Commands {
	out := Commands{Runs: c.runs, Failed: c.failed, Killed: c.killed, Kinds: c.table.distinct(), List: []Command{}, More: c.runs}
	running := map[*command]int64{}
	for _, p := range t.live {
		if p.group != nil {
			running[p.group]++
		}
	}
	list := c.table.rows()
	list = list[:min(len(list), rows)]
	slices.SortFunc(list, func(a, b *row[string, command]) int {
		return cmp.Compare(a.v.link.First, b.v.link.First)
	})
	for _, r := range list {
		g := &r.v
		d := Command{
			Exe: Text(g.p.exe), Argv: texts(g.p.argv), Cut: g.p.cut, Cwd: Text(g.p.cwd), PID: g.pid, UID: g.uid,
			Runs: g.runs, AtLeast: r.late, Running: running[g], Replaced: g.replaced, Lost: g.lost,
			Total: g.total, Longest: g.longest, CPU: g.cpu, Began: instant(g.began), Ends: []EndCount{},
		}
		for how, n := range g.ends {
			x := EndCount{Signal: Text(how.signal), Runs: n}
			if how.signal == "" {
				x.Code = new(how.code)
			}
			d.Ends = append(d.Ends, x)
		}
		slices.SortFunc(d.Ends, func(a, b EndCount) int {
			return cmp.Or(cmp.Compare(b.Runs, a.Runs), cmp.Compare(a.String(), b.String()))
		})
		d.Events = g.events()
		out.More -= g.runs
		out.List = append(out.List, d)
	}
	return out
}

// events links to the exec events, or to all events of the process if there was one run.
func (g *command) events() Link {
	if g.runs == 1 {
		return Link{query("pid", fmt.Sprint(g.pid)), g.link.First, g.endSeq}
	}
	return Link{query("type", "proc", "op", "exec", "exe", g.p.exe), g.link.First, g.link.Last}
}

// String returns the result: "exit 1", "SIGKILL".
func (e EndCount) String() string {
	if e.Code != nil {
		return fmt.Sprintf("exit %d", *e.Code)
	}
	return visible(string(e.Signal), 16)
}

// Ended describes the results of all runs: "exit 0", "3 × exit 0, 1 × exit 1, 1 running".
func (c Command) Ended() string {
	var parts []string
	say := func(n int64, what string) {
		switch {
		case n == 1 && c.Runs == 1:
			parts = append(parts, what)
		case n > 0:
			parts = append(parts, number(n)+" × "+what)
		}
	}
	counted := c.Running + c.Replaced + c.Lost
	for _, e := range c.Ends {
		say(e.Runs, e.String())
		counted += e.Runs
	}
	say(c.Running, "still running")
	say(c.Replaced, "became another program")
	say(c.Lost, "end not seen")
	say(c.Runs-counted, "ended otherwise")
	return strings.Join(parts, ", ")
}

// Bad reports whether any run failed or was killed.
func (c Command) Bad() bool {
	return slices.ContainsFunc(c.Ends, func(e EndCount) bool { return e.Code == nil || *e.Code != 0 })
}

// Line returns the command as a shell command line.
func (c Command) Line() string {
	s := commandLine(c.Argv, 300)
	if len(c.Argv) == 0 {
		s = visible(string(c.Exe), 300)
	}
	if c.Cut {
		s += " …"
	}
	return s
}
