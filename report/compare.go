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

// A Comparison is what differs between two jails, or a jail and a snapshot, or
// two snapshots. Its JSON is stable: fields are added, never renamed.
type Comparison struct {
	From End `json:"from"`
	To   End `json:"to"`

	// Nil is what was not asked for.
	Files     *FileChanges    `json:"files,omitempty"`
	Workspace *FileChanges    `json:"workspace,omitempty"`
	Processes *ProcessChanges `json:"processes,omitempty"`
	Events    *EventChanges   `json:"events,omitempty"`
	Usage     *UsageChanges   `json:"usage,omitempty"`
}

// An End is one side of a comparison: a jail as it is or, if Snapshot is set, as
// it was.
type End struct {
	Jail     id.Jail     `json:"jail"`
	Snapshot id.Snapshot `json:"snapshot,omitempty"`
	Name     Text        `json:"name,omitempty"`
	State    string      `json:"state"`
	Time     time.Time   `json:"time"`
	Seq      uint64      `json:"seq"` // of the last record in the jail's log then
}

// Title names an end.
func (e End) Title() string {
	if e.Snapshot == "" {
		return "jail " + string(e.Jail)
	}
	return "snapshot " + string(e.Snapshot) + " of " + string(e.Jail)
}

// FileChanges is what differs in a tree of files.
type FileChanges struct {
	Unknown string           `json:"unknown,omitempty"` // why nothing can be told
	Counts  map[string]int64 `json:"counts"`            // by kind
	List    []FileChange     `json:"list"`              // by path
	More    int64            `json:"more"`              // that are not in List
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

// ProcessChanges is what differs in what runs.
type ProcessChanges struct {
	Unknown string          `json:"unknown,omitempty"`
	Started []Runs          `json:"started"`
	Ended   []Runs          `json:"ended"`
	Changed []ProcessChange `json:"changed"` // on both sides, and not alike
	Same    int64           `json:"same"`    // on both sides and alike
	Opened  []Connection    `json:"opened"`
	Closed  []Connection    `json:"closed"`
	More    int64           `json:"more"` // connections that are in no list
}

// Runs is a process.
type Runs struct {
	PID   int       `json:"pid"`
	PPID  int       `json:"ppid"`
	Began time.Time `json:"began"`
	Comm  Text      `json:"comm"`
	Exe   Text      `json:"exe,omitempty"`
	Argv  []Text    `json:"argv"`
	Cwd   Text      `json:"cwd,omitempty"`
	Cut   bool      `json:"cut,omitempty"` // there is more than is told
}

// A ProcessChange is a process of both sides of which something differs.
type ProcessChange struct {
	Runs
	Was *Runs       `json:"was,omitempty"` // if what it runs, or where, differs
	Env []EnvChange `json:"env,omitempty"`
}

// An EnvChange is a variable that differs. Nil is a side that does not have it.
// Of a name that seems to be a secret's, the values are not told.
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

// EventChanges is what the logs hold of the time in which the two sides came to
// differ.
type EventChanges struct {
	Since *End       `json:"since,omitempty"` // where both come from; nil if they are not related
	From  EventCount `json:"from"`            // from there to one end
	To    EventCount `json:"to"`              // from there to the other
}

// EventCount counts records.
type EventCount struct {
	Unknown string           `json:"unknown,omitempty"`
	Total   int64            `json:"total"`
	ByType  map[string]int64 `json:"by_type"`
	AtLeast bool             `json:"at_least,omitempty"` // of ByType: there are too many to look at each
}

// UsageChanges is what was used on each side. Nil is one of which nothing runs.
type UsageChanges struct {
	From *Used `json:"from,omitempty"`
	To   *Used `json:"to,omitempty"`
}

// Used is what a jail used.
type Used struct {
	CPU         int64    `json:"cpu_ns"`
	Memory      int64    `json:"memory_bytes"`
	Processes   int64    `json:"processes"`
	Disk        int64    `json:"disk_bytes"`
	Rx          int64    `json:"rx_bytes"`
	Tx          int64    `json:"tx_bytes"`
	NotMeasured []string `json:"not_measured,omitempty"`
}

// changeKinds are in the order in which they are told.
var changeKinds = []string{"added", "modified", "deleted", "renamed", "metadata"}

// Summary counts the changes in words.
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

// Summary counts the changes in words.
func (p *ProcessChanges) Summary() string {
	return fmt.Sprintf("%s started, %s ended, %s changed, %s the same",
		number(int64(len(p.Started))), number(int64(len(p.Ended))), number(int64(len(p.Changed))), number(p.Same))
}

// Command is what a process runs, as one would type it.
func (r Runs) Command() string {
	if len(r.Argv) == 0 {
		return "[" + visible(string(r.Comm), 64) + "]"
	}
	return commandLine(r.Argv, 300)
}

// Summary says how a variable differs.
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

// Summary says which connection it is.
func (c Connection) Summary() string {
	s := c.Proto + " " + c.Local
	if c.Remote != "" {
		s += " to " + c.Remote
	}
	return s + ", " + c.State + ", by " + fmt.Sprintf("%d %s", c.PID, visible(string(c.Comm), 64))
}

// Summary counts records in words.
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

// Types are the types of the records, those of the most records first.
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

// A UsageRow is one thing that was used.
type UsageRow struct{ Name, From, To, Change string }

// Rows are what was used, in words.
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

// WriteText writes the comparison for a terminal. Nothing in it moves a cursor.
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

// Lines say what differs of a process.
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

// SinceText says where both sides come from.
func (e *EventChanges) SinceText() string {
	if e.Since == nil {
		return "the beginning: they are not related"
	}
	return fmt.Sprintf("record %d of jail %s", e.Since.Seq, e.Since.Jail)
}

// Line is a change in one line, without its kind.
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

// diffLine is a line of a diff as a person can be shown it. A tab is one.
func diffLine(s string) string {
	parts := strings.Split(strings.TrimSuffix(s, "\n"), "\t")
	for i := range parts {
		parts[i] = visible(parts[i], 2000)
	}
	return strings.Join(parts, "\t")
}
