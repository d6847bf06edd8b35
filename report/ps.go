package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// A Process is one process at the instant a Tree stands at.
type Process struct {
	PID      int32      `json:"pid"`
	PPID     int32      `json:"ppid"`
	HostPID  int32      `json:"host_pid,omitempty"`
	Depth    int        `json:"depth"` // in the tree; a process comes after its parent and before its parent's next child
	Children []int32    `json:"children,omitempty"`
	Threads  int        `json:"threads"`
	UID      uint32     `json:"uid"`
	GID      uint32     `json:"gid"`
	Comm     Text       `json:"comm"`
	Exe      Text       `json:"exe,omitempty"`
	Argv     []Text     `json:"argv,omitempty"`
	Cwd      Text       `json:"cwd,omitempty"`
	Cut      bool       `json:"cut,omitempty"` // Exe, Argv and Cwd are longer than shown
	State    string     `json:"state"`         // running; exited; killed; lost: it ended, nobody saw how
	Began    time.Time  `json:"began"`
	Begin    int64      `json:"begin_ns"` // with PID, which process it is
	Existing bool       `json:"existing,omitempty"`
	Ended    *time.Time `json:"ended,omitempty"`
	Duration int64      `json:"duration_ns,omitempty"`
	Code     *int32     `json:"exit_code,omitempty"`
	Signal   Text       `json:"signal,omitempty"`
	UserNS   int64      `json:"user_ns,omitempty"` // as of its end
	SystemNS int64      `json:"system_ns,omitempty"`
	RSS      int64      `json:"rss,omitempty"`
	Execs    []Exec     `json:"execs,omitempty"` // the last few programs it ran, the present one last
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

// Known says what of all processes a Tree tells of.
type Known struct {
	Count     int64 `json:"count"`     // all there ever were
	Forgotten int64 `json:"forgotten"` // ended and pruned
	Untold    int64 `json:"untold"`    // for want of room: too many at once
	Lost      Lost  `json:"lost"`      // records of processes that are missing, and with them maybe processes, or their ends
}

// Known tells what is not in the tree.
func (t *Tree) Known() Known {
	return Known{Count: t.count, Forgotten: t.forgotten, Untold: t.untold, Lost: t.lost}
}

// Processes returns the living, and the ended as well if all is set, in the
// order of the tree: each after its parent, siblings as they began.
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

// nodes links what is known to a tree and returns it in order. A tree may be as
// deep as there are processes, so nothing here recurses.
func (t *Tree) nodes(all bool) []*node {
	known := map[birth]*node{}
	var order []*node
	add := func(p *proc) {
		n := &node{p: p, ppid: p.ppid}
		known[p.birth] = n
		order = append(order, n)
	}
	for _, p := range t.live {
		add(p)
	}
	if all {
		for _, p := range t.ended {
			if known[p.birth] == nil {
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
		if n.p.how == lives {
			n.ppid, parent = t.parentOf(n.p)
		}
		if at := known[birth{n.ppid, parent}]; at != nil && at != n {
			at.children = append(at.children, n)
		} else {
			roots = append(roots, n)
		}
	}
	// A log may claim that two processes are each the other's parent. No root leads
	// to them, so all are tried, after the roots.
	out := make([]*node, 0, len(order))
	for _, root := range slices.Concat(roots, order) {
		out = root.walk(out)
	}
	return out
}

// walk appends n and what is below it, as far as it was not walked before.
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

// describe is p for a reader.
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
	case lives:
		d.State = "running"
		d.Events.Last = 0
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

// between is how long it was from one record to another, in nanoseconds: by the
// host's steady clock, or by the one on the wall if the host was started anew.
func between(fromNS, toNS, fromTS, toTS int64) int64 {
	if toNS >= fromNS {
		return toNS - fromNS
	}
	return max(0, min(toTS-fromTS, 1<<43)) * int64(time.Millisecond)
}

func texts(list []string) []Text {
	out := make([]Text, 0, len(list))
	for _, s := range list {
		out = append(out, Text(s))
	}
	return out
}

// WritePS writes a tree for people, as ps does, in the order Processes gave.
// Nothing in it drives a terminal, whatever the processes call themselves.
func WritePS(w io.Writer, list []Process) error {
	rows := [][]string{{"PID", "USER", "STATE", "START", "COMMAND"}}
	for _, p := range list {
		rows = append(rows, []string{fmt.Sprint(p.PID), user(p.UID), p.state(), p.Began.Format("15:04:05"), p.limb() + p.command(400)})
	}
	return writeTable(w, rows, "r")
}

// limb is the line that leads to a process from its parent.
func (p *Process) limb() string {
	const deepest = 30
	switch {
	case p.Depth == 0:
		return ""
	case p.Depth > deepest:
		return strings.Repeat("  ", deepest) + fmt.Sprintf("(%d deeper) ", p.Depth-deepest)
	}
	return strings.Repeat("  ", p.Depth-1) + `\_ `
}

// command is what a process runs, as one would type it; in brackets its name, if
// more is not known, as ps has it.
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

// state is how a process is, in a word.
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

// writeTable writes rows in columns. The letters of right are for columns, from
// the first: "r" is set to the right. Cells hold no control characters.
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
