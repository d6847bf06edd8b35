package gvisor

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"glasshouse/observe/event"
	"glasshouse/observe/syscalls"
)

// points are the names of the points that a build of runsc has, with the optional fields of
// each.
type points map[string][]string

// parsePoints parses the output of "runsc trace metadata".
func parsePoints(r io.Reader) (points, error) {
	ps := points{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), "Name: ")
		if !ok {
			continue
		}
		name, rest, _ := strings.Cut(rest, ", optional fields: [")
		optional, _, _ := strings.Cut(rest, "]")
		ps[name] = strings.FieldsFunc(optional, func(r rune) bool { return r == '|' })
	}
	return ps, lines.Err()
}

// essential are the points without which no events can be recorded.
var essential = []string{
	"sentry/clone", "sentry/execve", "sentry/exit_notify_parent", "sentry/task_exit",
	"syscall/sysno/0/enter", "syscall/sysno/0/exit", "syscall/openat/exit", "syscall/execve/exit",
}

// detailed are the calls whose own points are enabled, because raw points contain only
// numbers. The path of a closed file is known only at entry; other details are read at exit.
var detailed = map[string]string{
	"open": "exit", "openat": "exit", "creat": "exit", "close": "enter",
	"read": "exit", "readv": "exit", "pread64": "exit", "preadv": "exit", "preadv2": "exit",
	"write": "exit", "writev": "exit", "pwrite64": "exit", "pwritev": "exit", "pwritev2": "exit",
	"execve": "exit", "execveat": "exit", "chdir": "exit", "chroot": "exit", "inotify_add_watch": "exit",
	"connect": "exit", "bind": "exit", "accept": "exit", "accept4": "exit",
}

// calls is an exclusive upper bound of system call numbers. gVisor has points only for numbers
// below it.
const calls = 1024

// A choice is a selection evaluated for each call, by number.
type choice struct {
	record   [calls]bool // recorded as a system call event
	exempt   [calls]bool // exempt from sampling
	files    bool
	sample   int
	throttle bool // throttle the jail instead of losing points

	// JSON configuration passed to runsc.
	session []byte
	detail  [calls]string // "enter" or "exit": a detail point follows the raw one
}

// newChoice evaluates a selection for a gVisor with the points ps.
func newChoice(s event.Selection, ps points, endpoint string) (*choice, error) {
	c := &choice{files: s.Files != "off", sample: s.Sample, throttle: s.OnOverload != "count"}
	var asked []pointConfig
	ask := func(name string, context []string, optional ...string) bool {
		has, ok := ps[name]
		if ok {
			optional = slices.DeleteFunc(optional, func(f string) bool { return !slices.Contains(has, f) })
			asked = append(asked, pointConfig{name, optional, context})
		}
		return ok
	}
	for _, name := range essential[:4] {
		ask(name, identified)
	}
	for nr := range int32(min(calls, syscalls.Count(syscalls.Native))) {
		name := syscalls.Name(syscalls.Native, nr)
		c.exempt[nr] = slices.Contains(s.Allow, name)
		c.record[nr] = !slices.Contains(s.Ignore, name) && (c.exempt[nr] || s.Syscalls == "all" || s.Syscalls == "security" && slices.Contains(event.Security, name))
		// Program starts are always recorded in detail, because the separate exec point is
		// lost if the environment is not UTF-8. Thread names are recorded in events, so prctl
		// is needed.
		always := name == "execve" || name == "execveat" || name == "prctl"
		if !always && !c.record[nr] && !(c.files && syscalls.Shapes[name].Op != "") {
			continue
		}
		// Both: the context of an exit point is that requested for its entry point.
		raw := "syscall/sysno/" + itoa(nr)
		context := timed
		if name == "prctl" {
			context = named
		}
		ask(raw+"/enter", context)
		ask(raw+"/exit", context)
		if when := detailed[name]; when != "" && ask("syscall/"+name+"/"+when, placed, "fd_path") {
			c.detail[nr] = when
		}
	}
	sink := map[string]any{"endpoint": endpoint}
	if c.throttle {
		// Effectively unlimited. Points without a reader are dropped immediately.
		sink["retries"], sink["backoff"], sink["backoff_max"] = 1<<30, "25us", "2ms"
	}
	var err error
	c.session, err = json.Marshal(sessionConfig{Name: sessionName, Points: asked, Sinks: []sinkConfig{{Name: "remote", Config: sink}}})
	if err != nil {
		return c, fmt.Errorf("encode the session: %w", err)
	}
	return c, nil
}

// The context of points. gVisor can neither send nor count a message with a string that is not
// UTF-8. Raw points therefore contain no strings that a process chooses; otherwise a process
// could hide calls, for example with a name that is not UTF-8. The detail of a call can be
// lost that way, but not the call. The exception is prctl, which sets thread names; a missing
// exit point of it is detected and reported.
var (
	timed      = []string{"time", "thread_id", "group_id"}
	named      = []string{"time", "thread_id", "group_id", "process_name"}
	placed     = []string{"time", "thread_id", "group_id", "cwd"}
	identified = []string{"time", "thread_id", "group_id", "credentials"}
)

// sessionName is the only session name that gVisor supports.
const sessionName = "Default"

// The session configuration of runsc.
type (
	sessionConfig struct {
		Name   string        `json:"name"`
		Points []pointConfig `json:"points"`
		Sinks  []sinkConfig  `json:"sinks"`
	}
	pointConfig struct {
		Name     string   `json:"name"`
		Optional []string `json:"optional_fields,omitempty"`
		Context  []string `json:"context_fields"`
	}
	sinkConfig struct {
		Name   string         `json:"name"`
		Config map[string]any `json:"config"`
	}
)
