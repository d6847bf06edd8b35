package report

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"glasshouse/id"
)

// A Comparison lists the differences between two jails, a jail and a snapshot, or two
// snapshots. Its JSON is stable: fields are added, never renamed.
type Comparison struct {
	From End `json:"from"`
	To   End `json:"to"`

	// Each is nil if it was not requested.
	Files     *FileChanges    `json:"files,omitempty"`
	Workspace *FileChanges    `json:"workspace,omitempty"`
	Processes *ProcessChanges `json:"processes,omitempty"`
	Events    *EventChanges   `json:"events,omitempty"`
	Usage     *UsageChanges   `json:"usage,omitempty"`
}

// An End is one side of a comparison: the current state of a jail or, if Snapshot is set, a
// snapshot.
type End struct {
	Jail     id.Jail     `json:"jail"`
	Snapshot id.Snapshot `json:"snapshot,omitempty"`
	Name     Text        `json:"name,omitempty"`
	State    string      `json:"state"`
	Time     time.Time   `json:"time"`
	Seq      uint64      `json:"seq"` // sequence number of the last event in the jail's log at that time
}

// Title names the end.
func (e End) Title() string {
	if e.Snapshot == "" {
		return "jail " + string(e.Jail)
	}
	return "snapshot " + string(e.Snapshot) + " of " + string(e.Jail)
}

// FileChanges lists the differences in a file tree.
type FileChanges struct {
	Unknown string           `json:"unknown,omitempty"` // why the differences are unknown
	Counts  map[string]int64 `json:"counts"`            // by kind
	List    []FileChange     `json:"list"`              // by path
	More    int64            `json:"more"`              // differences that are not in List
}

// A FileChange is one path that differs.
type FileChange struct {
	Path   Text     `json:"path"`
	Kind   string   `json:"kind"` // added, modified, deleted, metadata, renamed
	Type   string   `json:"type"`
	Size   int64    `json:"size"`
	Mode   string   `json:"mode"` // octal
	From   Text     `json:"from,omitempty"`
	What   []string `json:"what,omitempty"`
	Diff   Text     `json:"diff,omitempty"`
	NoDiff string   `json:"no_diff,omitempty"`
}

// ProcessChanges lists the differences in running processes.
type ProcessChanges struct {
	Unknown string           `json:"unknown,omitempty"`
	Started []RunningProcess `json:"started"`
	Ended   []RunningProcess `json:"ended"`
	Changed []ProcessChange  `json:"changed"` // on both sides, with differences
	Same    int64            `json:"same"`    // on both sides, without differences
	Opened  []Connection     `json:"opened"`
	Closed  []Connection     `json:"closed"`
	More    int64            `json:"more"` // connections that are not listed
}

// RunningProcess is a running process.
type RunningProcess struct {
	PID   int       `json:"pid"`
	PPID  int       `json:"ppid"`
	Began time.Time `json:"began"`
	Comm  Text      `json:"comm"`
	Exe   Text      `json:"exe,omitempty"`
	Argv  []Text    `json:"argv"`
	Cwd   Text      `json:"cwd,omitempty"`
	Cut   bool      `json:"cut,omitempty"` // the strings are truncated
}

// A ProcessChange is a process that exists on both sides and differs.
type ProcessChange struct {
	RunningProcess
	Was *RunningProcess `json:"was,omitempty"` // set if the program or the working directory differs
	Env []EnvChange     `json:"env,omitempty"`
}

// An EnvChange is an environment variable that differs. From or To is nil if the variable is
// not set on that side. The values of variables whose names suggest a secret are hidden.
type EnvChange struct {
	Name   Text  `json:"name"`
	From   *Text `json:"from,omitempty"`
	To     *Text `json:"to,omitempty"`
	Hidden bool  `json:"hidden,omitempty"`
}

// A Connection is a socket that a process holds on one side only.
type Connection struct {
	PID    int    `json:"pid"`
	Comm   Text   `json:"comm"`
	Proto  string `json:"proto"`
	Local  string `json:"local"`
	Remote string `json:"remote,omitempty"`
	State  string `json:"state"`
}

// EventChanges counts the events on each side since the common ancestor.
type EventChanges struct {
	Since *End       `json:"since,omitempty"` // the common ancestor; nil if the ends are not related
	From  EventCount `json:"from"`            // events from the common ancestor to one end
	To    EventCount `json:"to"`              // events from the common ancestor to the other end
}

// EventCount counts events.
type EventCount struct {
	Unknown string           `json:"unknown,omitempty"`
	Total   int64            `json:"total"`
	ByType  map[string]int64 `json:"by_type"`
	AtLeast bool             `json:"at_least,omitempty"` // ByType is incomplete: there are too many events to read all
}

// UsageChanges compares resource usage. A side is nil if it is not running.
type UsageChanges struct {
	From *Used `json:"from,omitempty"`
	To   *Used `json:"to,omitempty"`
}

// Used is the resource usage of a jail.
type Used struct {
	CPU         int64    `json:"cpu_ns"`
	Memory      int64    `json:"memory_bytes"`
	Processes   int64    `json:"processes"`
	Disk        int64    `json:"disk_bytes"`
	Rx          int64    `json:"rx_bytes"`
	Tx          int64    `json:"tx_bytes"`
	NotMeasured []string `json:"not_measured,omitempty"`
}

// changeKinds defines the display order.
var changeKinds = []string{"added", "modified", "deleted", "renamed", "metadata"}

// Summary describes the counts of changes.
func (f *FileChanges) Summary() string {
	var parts []string
	for _, k := range changeKinds {
		if n := f.Counts[k]; n > 0 {
			parts = append(parts, number(n)+" "+k)
		}
	}
	if len(parts) == 0 {
		return "no differences"
	}
	return strings.Join(parts, ", ")
}

// Summary describes the counts of changes.
func (p *ProcessChanges) Summary() string {
	return fmt.Sprintf("%s started, %s ended, %s changed, %s the same",
		number(int64(len(p.Started))), number(int64(len(p.Ended))), number(int64(len(p.Changed))), number(p.Same))
}

// Command returns the process's shell command line.
func (r RunningProcess) Command() string {
	if len(r.Argv) == 0 {
		return "[" + visible(string(r.Comm), 64) + "]"
	}
	return commandLine(r.Argv, 300)
}

// Summary describes the difference of a variable.
func (e EnvChange) Summary() string {
	value := func(t *Text) string {
		switch {
		case t == nil:
			return "unset"
		case e.Hidden:
			return "(hidden)"
		}
		return commandLine([]Text{*t}, 120)
	}
	return visible(string(e.Name), 120) + ": " + value(e.From) + " → " + value(e.To)
}

// Summary describes the connection.
func (c Connection) Summary() string {
	s := c.Proto + " " + c.Local
	if c.Remote != "" {
		s += " to " + c.Remote
	}
	return s + ", " + c.State + ", by " + fmt.Sprintf("%d %s", c.PID, visible(string(c.Comm), 64))
}

// Summary describes the counts of events.
func (e EventCount) Summary() string {
	if e.Unknown != "" {
		return "unknown: " + e.Unknown
	}
	s := count(e.Total, "record", "records")
	var parts []string
	for _, t := range e.Types() {
		parts = append(parts, number(e.ByType[t])+" "+t)
	}
	if len(parts) > 0 {
		s += ": " + strings.Join(parts, ", ")
		if e.AtLeast {
			s += ", and more"
		}
	}
	return s
}

// Types returns the event types, the most frequent first.
func (e EventCount) Types() []string {
	var types []string
	for t := range e.ByType {
		types = append(types, t)
	}
	slices.SortFunc(types, func(a, b string) int {
		if e.ByType[a] != e.ByType[b] {
			return int(min(max(e.ByType[b]-e.ByType[a], -1), 1))
		}
		return strings.Compare(a, b)
	})
	return types
}

// A UsageRow is one compared resource.
type UsageRow struct{ Name, From, To, Change string }

// Rows returns the usage formatted for display.
func (u *UsageChanges) Rows() []UsageRow {
	var rows []UsageRow
	for _, what := range []struct {
		name, field string
		say         func(int64) string
		of          func(*Used) int64
	}{
		{"Processor", "cpu", took, func(u *Used) int64 { return u.CPU }},
		{"Memory", "memory_bytes", size, func(u *Used) int64 { return u.Memory }},
		{"Processes and threads", "pids", number, func(u *Used) int64 { return u.Processes }},
		{"Disk", "disk_bytes", size, func(u *Used) int64 { return u.Disk }},
		{"Received", "rx_bytes", size, func(u *Used) int64 { return u.Rx }},
		{"Sent", "tx_bytes", size, func(u *Used) int64 { return u.Tx }},
	} {
		side := func(u *Used) (string, bool) {
			if u == nil || slices.Contains(u.NotMeasured, what.field) {
				return "–", false
			}
			return what.say(what.of(u)), true
		}
		r := UsageRow{Name: what.name}
		var ok1, ok2 bool
		r.From, ok1 = side(u.From)
		r.To, ok2 = side(u.To)
		if ok1 && ok2 {
			switch n := what.of(u.To) - what.of(u.From); {
			case n > 0:
				r.Change = "+" + what.say(n)
			case n < 0:
				r.Change = "-" + what.say(-n)
			}
		}
		rows = append(rows, r)
	}
	return rows
}

// WriteText writes the comparison for a terminal. The output has no terminal control
// sequences.
func (c *Comparison) WriteText(w io.Writer) error {
	b := bufio.NewWriter(w)
	line := func(format string, args ...any) { fmt.Fprintf(b, format+"\n", args...) }
	line("From %s, %s, %s", c.From.Title(), c.From.State, c.From.Time.UTC().Format(stamp))
	line("To   %s, %s, %s", c.To.Title(), c.To.State, c.To.Time.UTC().Format(stamp))
	files := func(title string, f *FileChanges) {
		if f == nil {
			return
		}
		if f.Unknown != "" {
			line("\n%s: unknown: %s", title, visible(f.Unknown, 400))
			return
		}
		line("\n%s: %s", title, f.Summary())
		for _, ch := range f.List {
			line("  %-9s %-8s %s", ch.Kind, ch.Type, ch.Line())
			for l := range strings.Lines(string(ch.Diff)) {
				line("    %s", diffLine(l))
			}
		}
		if f.More > 0 {
			line("  … and %s more", number(f.More))
		}
	}
	files("Files", c.Files)
	files("Workspace", c.Workspace)
	c.Processes.writeText(line)
	if e := c.Events; e != nil {
		line("\nEvents since %s", e.SinceText())
		line("  from  %s", visible(e.From.Summary(), 400))
		line("  to    %s", visible(e.To.Summary(), 400))
	}
	if c.Usage != nil {
		line("\nUsage")
		for _, r := range c.Usage.Rows() {
			line("  %-22s %12s  %12s  %s", r.Name, r.From, r.To, r.Change)
		}
	}
	return b.Flush()
}

func (p *ProcessChanges) writeText(line func(string, ...any)) {
	if p == nil {
		return
	}
	if p.Unknown != "" {
		line("\nProcesses: unknown: %s", visible(p.Unknown, 400))
		return
	}
	line("\nProcesses: %s", p.Summary())
	for _, r := range p.Started {
		line("  started   %7d %s", r.PID, r.Command())
	}
	for _, r := range p.Ended {
		line("  ended     %7d %s", r.PID, r.Command())
	}
	for _, ch := range p.Changed {
		line("  changed   %7d %s", ch.PID, ch.Command())
		for _, s := range ch.Lines() {
			line("            %s", s)
		}
	}
	for _, c := range p.Opened {
		line("  opened    %s", c.Summary())
	}
	for _, c := range p.Closed {
		line("  closed    %s", c.Summary())
	}
	if p.More > 0 {
		line("  … and %s more", count(p.More, "connection", "connections"))
	}
}

// Lines describes the differences of a process.
func (c ProcessChange) Lines() []string {
	var all []string
	if c.Was != nil {
		if was := c.Was.Command(); was != c.Command() || c.Was.Exe != c.Exe {
			all = append(all, "ran "+was)
		}
		if c.Was.Cwd != c.Cwd {
			all = append(all, "was in "+visible(string(c.Was.Cwd), 200)+", is in "+visible(string(c.Cwd), 200))
		}
	}
	for _, e := range c.Env {
		all = append(all, e.Summary())
	}
	return all
}

// SinceText describes the common ancestor.
func (e *EventChanges) SinceText() string {
	if e.Since == nil {
		return "the beginning: they are not related"
	}
	return fmt.Sprintf("record %d of jail %s", e.Since.Seq, e.Since.Jail)
}

// Line describes the change on one line, without its kind.
func (c FileChange) Line() string {
	s := visible(string(c.Path), 400)
	if c.From != "" {
		s = visible(string(c.From), 400) + " → " + s
	}
	if c.Kind != "modified" && len(c.What) > 0 {
		s += "  (" + strings.Join(c.What, ", ") + ")"
	}
	if c.NoDiff != "" {
		s += "  (" + c.NoDiff + ")"
	}
	return s
}

// diffLine returns a line of a diff with special characters made visible. Tabs are kept.
func diffLine(s string) string {
	parts := strings.Split(strings.TrimSuffix(s, "\n"), "\t")
	for i := range parts {
		parts[i] = visible(parts[i], 2000)
	}
	return strings.Join(parts, "\t")
}
