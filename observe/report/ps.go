package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// A Process is one process at the instant of a Tree.
type Process struct {
	PID      int32      `json:"pid"`
	PPID     int32      `json:"ppid"`
	HostPID  int32      `json:"host_pid,omitempty"`
	Depth    int        `json:"depth"` // in the tree; a process follows its parent and precedes its parent's next child
	Children []int32    `json:"children,omitempty"`
	Threads  int        `json:"threads"`
	UID      uint32     `json:"uid"`
	GID      uint32     `json:"gid"`
	Comm     Text       `json:"comm"`
	Exe      Text       `json:"exe,omitempty"`
	Argv     []Text     `json:"argv,omitempty"`
	Cwd      Text       `json:"cwd,omitempty"`
	Cut      bool       `json:"cut,omitempty"` // Exe, Argv or Cwd is truncated
	State    string     `json:"state"`         // running; exited; killed; lost if its end was not observed
	Began    time.Time  `json:"began"`
	Begin    int64      `json:"begin_ns"` // identifies the process together with PID
	Existing bool       `json:"existing,omitempty"`
	Ended    *time.Time `json:"ended,omitempty"`
	Duration int64      `json:"duration_ns,omitempty"`
	Code     *int32     `json:"exit_code,omitempty"`
	Signal   Text       `json:"signal,omitempty"`
	UserNS   int64      `json:"user_ns,omitempty"` // total at its end
	SystemNS int64      `json:"system_ns,omitempty"`
	RSS      int64      `json:"rss,omitempty"`
	Execs    []Exec     `json:"execs,omitempty"` // the last few programs that it ran, the current one last
	ExecsAll int        `json:"execs_count"`
	Events   Link       `json:"events"`
}

// An Exec is one program that a process ran.
type Exec struct {
	Time time.Time `json:"time"`
	Seq  uint64    `json:"seq"`
	Exe  Text      `json:"exe"`
	Argv []Text    `json:"argv"`
}

// Known describes which processes a Tree contains.
type Known struct {
	Count     int64 `json:"count"`     // all processes ever
	Forgotten int64 `json:"forgotten"` // ended and pruned
	Omitted   int64 `json:"untold"`    // omitted: too many running processes
	Lost      Lost  `json:"lost"`      // lost process events; processes or their ends may be missing
}

// Known reports which processes are not in the tree.
func (t *Tree) Known() Known {
	return Known{Count: t.count, Forgotten: t.forgotten, Omitted: t.omitted, Lost: t.lost}
}

// Processes returns the running processes, and the ended ones if all is set, in tree order:
// each follows its parent, and siblings are sorted by start time.
func (t *Tree) Processes(all bool) []Process {
	nodes := t.nodes(all)
	list := make([]Process, 0, len(nodes))
	for _, n := range nodes {
		p := t.describe(n.p)
		p.Depth, p.PPID = n.depth, n.ppid
		for _, c := range n.children {
			p.Children = append(p.Children, c.p.pid)
		}
		list = append(list, p)
	}
	return list
}

type node struct {
	p        *proc
	ppid     int32
	depth    int
	children []*node
	walked   bool
}

// nodes links the processes and returns them in tree order. A tree may be as deep as there are
// processes, so the function is not recursive.
func (t *Tree) nodes(all bool) []*node {
	known := map[procKey]*node{}
	var order []*node
	add := func(p *proc) {
		n := &node{p: p, ppid: p.ppid}
		known[p.procKey] = n
		order = append(order, n)
	}
	for _, p := range t.live {
		add(p)
	}
	if all {
		for _, p := range t.ended {
			if known[p.procKey] == nil {
				add(p)
			}
		}
	}
	slices.SortFunc(order, func(a, b *node) int {
		return cmp.Or(cmp.Compare(a.p.begin, b.p.begin), cmp.Compare(a.p.first, b.p.first), cmp.Compare(a.p.pid, b.p.pid))
	})
	var roots []*node
	for _, n := range order {
		parent := n.p.parent
		if n.p.how == alive {
			n.ppid, parent = t.parentOf(n.p)
		}
		if at := known[procKey{n.ppid, parent}]; at != nil && at != n {
			at.children = append(at.children, n)
		} else {
			roots = append(roots, n)
		}
	}
	// A log may claim that two processes are parents of each other. They have no root, so all
	// nodes are walked after the roots.
	out := make([]*node, 0, len(order))
	for _, root := range slices.Concat(roots, order) {
		out = root.walk(out)
	}
	return out
}

// walk appends n and its descendants, except nodes that were walked before.
func (n *node) walk(out []*node) []*node {
	for stack := []*node{n}; len(stack) > 0; {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if n.walked {
			continue
		}
		n.walked = true
		n.children = slices.DeleteFunc(n.children, func(c *node) bool { return c.walked })
		for _, c := range slices.Backward(n.children) {
			c.depth = n.depth + 1
			stack = append(stack, c)
		}
		out = append(out, n)
	}
	return out
}

// describe converts p to its exported form.
func (t *Tree) describe(p *proc) Process {
	d := Process{
		PID: p.pid, PPID: p.ppid, HostPID: p.hostPID, Threads: p.threads, UID: p.uid, GID: p.gid,
		Comm: Text(p.comm), Began: instant(p.beganTS), Begin: p.begin, Existing: p.existing,
		UserNS: p.userNS, SystemNS: p.systemNS, RSS: p.rss, ExecsAll: p.execs,
		Events: Link{query("pid", fmt.Sprint(p.pid)), p.first, p.last},
	}
	if p.runs != nil {
		d.Exe, d.Argv, d.Cwd, d.Cut = Text(p.runs.exe), texts(p.runs.argv), Text(p.runs.cwd), p.runs.cut
	}
	for _, x := range p.history {
		d.Execs = append(d.Execs, Exec{instant(x.ts), x.seq, Text(x.p.exe), texts(x.p.argv)})
	}
	switch p.how {
	case alive:
		d.State = "running"
		d.Events.Last = 0 // no end: later events belong to it, too
		return d
	case exited:
		d.State, d.Code = "exited", new(p.code)
	case killed:
		d.State, d.Signal = "killed", Text(p.signal)
	case unknown:
		d.State = "lost"
	}
	d.Ended = new(instant(p.endTS))
	d.Duration = between(p.begin, p.end, p.beganTS, p.endTS)
	return d
}

// between returns the nanoseconds between two events. It uses the host's monotonic clock, or
// the wall clock if the host was rebooted in between.
func between(fromNS, toNS, fromTS, toTS int64) int64 {
	if toNS >= fromNS {
		return toNS - fromNS
	}
	// 2^43 ms is the largest power of two whose nanoseconds fit in an int64.
	return max(0, min(toTS-fromTS, 1<<43)) * int64(time.Millisecond)
}

func texts(list []string) []Text {
	out := make([]Text, 0, len(list))
	for _, s := range list {
		out = append(out, Text(s))
	}
	return out
}

// WritePS writes a process tree like ps(1), in the order of the list. The output has no
// terminal control sequences, whatever the processes are named.
func WritePS(w io.Writer, list []Process) error {
	rows := [][]string{{"PID", "USER", "STATE", "START", "COMMAND"}}
	for _, p := range list {
		rows = append(rows, []string{fmt.Sprint(p.PID), user(p.UID), p.state(), p.Began.Format("15:04:05"), p.treePrefix() + p.command(400)})
	}
	return writeTable(w, rows, "r")
}

// treePrefix returns the tree prefix of a process.
func (p *Process) treePrefix() string {
	const deepest = 30
	switch {
	case p.Depth == 0:
		return ""
	case p.Depth > deepest:
		return strings.Repeat("  ", deepest) + fmt.Sprintf("(%d deeper) ", p.Depth-deepest)
	}
	return strings.Repeat("  ", p.Depth-1) + `\_ `
}

// command returns the shell command line of a process. If it is not known, command returns the
// name in brackets, like ps(1).
func (p *Process) command(most int) string {
	if len(p.Argv) > 0 {
		s := commandLine(p.Argv, most)
		if p.Cut {
			s += " …"
		}
		return s
	}
	return "[" + visible(string(p.Comm), most) + "]"
}

// state returns the state of a process as one word.
func (p *Process) state() string {
	switch {
	case p.Code != nil:
		return fmt.Sprintf("exit %d", *p.Code)
	case p.Signal != "":
		return visible(string(p.Signal), 16)
	}
	return p.State
}

func user(uid uint32) string {
	if uid == 0 {
		return "root"
	}
	return fmt.Sprint(uid)
}

// writeTable writes rows in aligned columns. Each "r" in right aligns the column with the same
// index to the right. Cells must not contain control characters.
func writeTable(w io.Writer, rows [][]string, right string) error {
	var width []int
	for _, r := range rows {
		for i, c := range r {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], columns(c))
		}
	}
	for _, r := range rows {
		var b strings.Builder
		for i, c := range r {
			pad := strings.Repeat(" ", width[i]-columns(c))
			switch {
			case i < len(right) && right[i] == 'r':
				c = pad + c
			case i < len(r)-1:
				c += pad
			}
			if i > 0 {
				b.WriteString("  ")
			}
			b.WriteString(c)
		}
		if _, err := io.WriteString(w, strings.TrimRight(b.String(), " ")+"\n"); err != nil {
			return err
		}
	}
	return nil
}

func columns(s string) int { return len([]rune(s)) }
