package snapshot

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"

	safetext "glasshouse/internal/text"
	"glasshouse/jail"
	"glasshouse/observe/report"
)

// compareProcesses returns the processes that started, ended, or changed.
func (co *comparer) compareProcesses(ctx context.Context, a, b *end) (*report.ProcessChanges, error) {
	c := &report.ProcessChanges{
		Started: []report.RunningProcess{}, Ended: []report.RunningProcess{}, Changed: []report.ProcessChange{},
		Opened: []report.Connection{}, Closed: []report.Connection{},
	}
	was, err := co.runningAt(ctx, a)
	var now map[processKey]process
	if err == nil {
		now, err = co.runningAt(ctx, b)
	}
	if why, ok := unknownReason(err); ok {
		c.Unknown = why
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	var before, after []process
	for _, key := range ordered(was) {
		if _, both := now[key]; !both {
			c.Ended = append(c.Ended, processReport(was[key]))
		}
		before = append(before, was[key])
	}
	for _, key := range ordered(now) {
		q := now[key]
		after = append(after, q)
		p, both := was[key]
		if !both {
			c.Started = append(c.Started, processReport(q))
		} else if ch, differs := changed(p, q); differs {
			c.Changed = append(c.Changed, ch)
		} else {
			c.Same++
		}
	}
	c.Opened, c.More = connections(after, before, 0)
	c.Closed, c.More = connections(before, after, c.More)
	return c, nil
}

// A processKey identifies a process across snapshots.
type processKey struct {
	pid  int
	born string
}

func (co *comparer) runningAt(ctx context.Context, e *end) (map[processKey]process, error) {
	var list []process
	var err error
	if e.snapshot != nil {
		list, err = co.processesOf(e.snapshot)
	} else {
		list, err = co.running(ctx, e.jail.ID)
	}
	if err != nil {
		return nil, err
	}
	all := map[processKey]process{}
	for _, p := range list {
		all[processKey{p.PID, p.Born}] = p
	}
	return all, nil
}

func ordered(all map[processKey]process) []processKey {
	return slices.SortedFunc(maps.Keys(all), func(a, b processKey) int {
		if a.pid != b.pid {
			return a.pid - b.pid
		}
		return strings.Compare(a.born, b.born)
	})
}

// Limits of the reported data of one process, in bytes.
const (
	maxArgv   = 8 << 10
	maxValue  = 1 << 10
	maxChange = 200 // variables
)

func processReport(p process) report.RunningProcess {
	r := report.RunningProcess{
		PID: p.PID, PPID: p.PPID, Began: p.Began.UTC(), Comm: report.Text(p.Comm), Exe: report.Text(p.Exe),
		Argv: []report.Text{}, Cwd: report.Text(p.Cwd), Cut: p.Cut,
	}
	room := maxArgv
	for _, arg := range p.Argv {
		if len(arg) > room {
			r.Argv, r.Cut = append(r.Argv, report.Text(arg[:room])), true
			break
		}
		room -= len(arg) + 1
		r.Argv = append(r.Argv, report.Text(arg))
		if room <= 0 {
			r.Cut = true
			break
		}
	}
	return r
}

// changed returns the differences between two states of a process.
func changed(was, now process) (c report.ProcessChange, differs bool) {
	c.RunningProcess = processReport(now)
	if was.Comm != now.Comm || was.Exe != now.Exe || was.Cwd != now.Cwd || !slices.Equal(was.Argv, now.Argv) {
		r := processReport(was)
		c.Was = &r
	}
	if !slices.Equal(was.Env, now.Env) {
		var cut bool
		c.Env, cut = environment(was.Env, now.Env)
		if cut {
			c.Cut = true
		}
	}
	return c, c.Was != nil || len(c.Env) > 0
}

// environment returns the variables that differ.
func environment(was, now []text) (all []report.EnvChange, cut bool) {
	a, b := variables(was), variables(now)
	names := slices.Sorted(maps.Keys(a))
	for name := range b {
		if _, both := a[name]; !both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		x, ok1 := a[name]
		y, ok2 := b[name]
		if ok1 && ok2 && x == y {
			continue
		}
		if len(all) == maxChange {
			return all, true
		}
		e := report.EnvChange{Name: report.Text(clipValue(name)), Hidden: secret.MatchString(name) || login.MatchString(x) || login.MatchString(y)}
		if ok1 {
			e.From = envValue(x, e.Hidden)
		}
		if ok2 {
			e.To = envValue(y, e.Hidden)
		}
		all = append(all, e)
	}
	return all, cut
}

// secret matches names of variables whose values are hidden, because not all users who may
// view a jail should see them.
var secret = regexp.MustCompile(`(?i)(token|secret|passw|passphrase|credential|cookie|session|api_?key|private_?key|access_?key|auth|_key$|_pwd$|_dsn$|^key$)`)

// login matches values that contain a URL with a password.
var login = regexp.MustCompile(`://[^/@\s]*:[^/@\s]+@`)

func envValue(value string, hidden bool) *report.Text {
	t := report.Text(clipValue(value))
	if hidden {
		t = ""
	}
	return &t
}

func clipValue(s string) string { return safetext.Prefix(s, maxValue) }

// variables returns the variables of an environment. If a name occurs twice, the first one
// counts, as in getenv(3) of common C libraries.
func variables(env []text) map[string]string {
	all := map[string]string{}
	for _, e := range env {
		name, value, _ := strings.Cut(string(e), "=")
		if _, again := all[name]; !again {
			all[name] = value
		}
	}
	return all
}

// maxSockets bounds each list of connections.
const maxSockets = 1000

// connections returns the sockets that only processes of the first side have, and increases
// more by the number of those that exceed maxSockets.
func connections(of, other []process, more int64) ([]report.Connection, int64) {
	type end struct {
		proto, local, remote string
		listens              bool
	}
	key := func(s jail.Socket) end { return end{s.Proto, s.Local, s.Remote, s.State == "listening"} }
	there := map[end]bool{}
	for _, p := range other {
		for _, s := range p.Sockets {
			there[key(s)] = true
		}
	}
	all := []report.Connection{}
	for _, p := range of {
		for _, s := range p.Sockets {
			if there[key(s)] {
				continue
			}
			there[key(s)] = true // report a socket of several processes once
			if len(all) == maxSockets {
				more++
				continue
			}
			all = append(all, report.Connection{PID: p.PID, Comm: report.Text(p.Comm), Proto: s.Proto, Local: s.Local, Remote: s.Remote, State: s.State})
		}
	}
	return all, more
}
