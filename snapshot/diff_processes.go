package snapshot

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"

	safetext "glasshouse/internal/text"
	"glasshouse/jail"
	"glasshouse/report"
)

// compareProcesses says which processes began, ended, and changed.
func (k *Keeper) compareProcesses(ctx context.Context, a, b *end) (*report.ProcessChanges, error) {
	c := &report.ProcessChanges{
		Started: []report.Runs{}, Ended: []report.Runs{}, Changed: []report.ProcessChange{},
		Opened: []report.Connection{}, Closed: []report.Connection{},
	}
	was, err := k.runningAt(ctx, a)
	var now map[birth]process
	if err == nil {
		now, err = k.runningAt(ctx, b)
	}
	if why, ok := untellable(err); ok {
		c.Unknown = why
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	var before, after []process
	for _, key := range ordered(was) {
		if _, both := now[key]; !both {
			c.Ended = append(c.Ended, runs(was[key]))
		}
		before = append(before, was[key])
	}
	for _, key := range ordered(now) {
		q := now[key]
		after = append(after, q)
		p, both := was[key]
		if !both {
			c.Started = append(c.Started, runs(q))
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

// A birth is which process it is.
type birth struct {
	pid  int
	born string
}

func (k *Keeper) runningAt(ctx context.Context, e *end) (map[birth]process, error) {
	var list []process
	var err error
	if e.snapshot != nil {
		list, err = k.processesOf(e.snapshot)
	} else {
		list, err = k.running(ctx, e.jail.ID)
	}
	if err != nil {
		return nil, err
	}
	all := map[birth]process{}
	for _, p := range list {
		all[birth{p.PID, p.Born}] = p
	}
	return all, nil
}

func ordered(all map[birth]process) []birth {
	return slices.SortedFunc(maps.Keys(all), func(a, b birth) int {
		if a.pid != b.pid {
			return a.pid - b.pid
		}
		return strings.Compare(a.born, b.born)
	})
}

// What is told of a process at most, in bytes.
const (
	maxArgv   = 8 << 10
	maxValue  = 1 << 10
	maxChange = 200 // variables
)

func runs(p process) report.Runs {
	r := report.Runs{
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
		if r.Argv = append(r.Argv, report.Text(arg)); room <= 0 {
			r.Cut = true
			break
		}
	}
	return r
}

// changed says what differs between a process and what it was.
func changed(was, now process) (c report.ProcessChange, differs bool) {
	c.Runs = runs(now)
	if was.Comm != now.Comm || was.Exe != now.Exe || was.Cwd != now.Cwd || !slices.Equal(was.Argv, now.Argv) {
		r := runs(was)
		c.Was = &r
	}
	if !slices.Equal(was.Env, now.Env) {
		var cut bool
		if c.Env, cut = environment(was.Env, now.Env); cut {
			c.Cut = true
		}
	}
	return c, c.Was != nil || len(c.Env) > 0
}

// environment says which variables differ.
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
		e := report.EnvChange{Name: report.Text(short(name)), Hidden: secret.MatchString(name) || login.MatchString(x) || login.MatchString(y)}
		if ok1 {
			e.From = told(x, e.Hidden)
		}
		if ok2 {
			e.To = told(y, e.Hidden)
		}
		all = append(all, e)
	}
	return all, cut
}

// secret matches names of variables that hold what not everybody who may look at
// a jail should see.
var secret = regexp.MustCompile(`(?i)(token|secret|passw|passphrase|credential|cookie|session|api_?key|private_?key|access_?key|auth|_key$|_pwd$|_dsn$|^key$)`)

// login matches values with a password in an address.
var login = regexp.MustCompile(`://[^/@\s]*:[^/@\s]+@`)

func told(value string, hidden bool) *report.Text {
	t := report.Text(short(value))
	if hidden {
		t = ""
	}
	return &t
}

func short(s string) string { return safetext.Prefix(s, maxValue) }

// variables are those of an environment. Of a name that is there twice the first
// counts, as for programs.
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

// connections returns the sockets that processes of one side hold and none of
// the other, and how many more there are.
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
			there[key(s)] = true // held by several: told once
			if len(all) == maxSockets {
				more++
				continue
			}
			all = append(all, report.Connection{PID: p.PID, Comm: report.Text(p.Comm), Proto: s.Proto, Local: s.Local, Remote: s.Remote, State: s.State})
		}
	}
	return all, more
}
