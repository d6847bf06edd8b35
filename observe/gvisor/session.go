package gvisor

import (
	"bufio"
	"encoding/json"
	"io"
	"slices"
	"strings"

	"glasshouse/event"
	"glasshouse/observe/syscalls"
)

// points is what a build of runsc can tell of: the names of its points, each with
// the fields that have to be asked for.
type points map[string][]string

// parsePoints reads the output of "runsc trace metadata".
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

// essential are the points without which there is nothing to record.
var essential = []string{
	"sentry/clone", "sentry/execve", "sentry/exit_notify_parent", "sentry/task_exit",
	"syscall/sysno/0/enter", "syscall/sysno/0/exit", "syscall/openat/exit", "syscall/execve/exit",
}

// detailed are the calls whose own points are asked for: they say what the bare
// numbers of the raw ones do not. The path of what is closed is known only
// before, all else is read when the call returns.
var detailed = map[string]string{
	"open": "exit", "openat": "exit", "creat": "exit", "close": "enter",
	"read": "exit", "readv": "exit", "pread64": "exit", "preadv": "exit", "preadv2": "exit",
	"write": "exit", "writev": "exit", "pwrite64": "exit", "pwritev": "exit", "pwritev2": "exit",
	"execve": "exit", "execveat": "exit", "chdir": "exit", "chroot": "exit", "inotify_add_watch": "exit",
	"connect": "exit", "bind": "exit", "accept": "exit", "accept4": "exit",
}

// calls is how many numbers of calls gVisor may know. It has points for fewer.
const calls = 1024

// A choice is what a selection means for each call, by number.
type choice struct {
	record [calls]bool // as a system call
	exempt [calls]bool // from sampling
	files  bool
	sample int
	hold   bool // the jail rather than lose points

	// As bytes of JSON, what runsc is told.
	session []byte
	detail  [calls]string // "enter" or "exit": a second point follows the raw one
}

// newChoice returns what a selection means where gVisor has the points ps.
func newChoice(s event.Selection, ps points, endpoint string) (*choice, error) {
	c := &choice{files: s.Files != "off", sample: s.Sample, hold: s.OnOverload != "count"}
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
		// A program that begins is recorded in any case, and in all detail: the
		// point of its own is lost if its environment is not UTF-8. And records
		// have the names that threads give themselves.
		always := name == "execve" || name == "execveat" || name == "prctl"
		if !always && !c.record[nr] && !(c.files && syscalls.Shapes[name].Op != "") {
			continue
		}
		// Both: the context of a return is that which its entry was asked for.
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
	if c.hold {
		// As good as for ever. What has no reader at all is dropped at once.
		sink["retries"], sink["backoff"], sink["backoff_max"] = 1<<30, "25us", "2ms"
	}
	var err error
	c.session, err = json.Marshal(sessionConfig{Name: sessionName, Points: asked, Sinks: []sinkConfig{{Name: "remote", Config: sink}}})
	return c, err
}

// The context that points come with. A message with a string that is not UTF-8
// cannot be sent, and is not even counted. So no string that a process chooses
// is in the raw points, for a process could hide by it: a name that is not UTF-8
// would do. The detail of a call can be lost that way, the call cannot. The one
// exception is prctl, which gives threads names; that an end of it is missing is
// seen, and said.
var (
	timed      = []string{"time", "thread_id", "group_id"}
	named      = []string{"time", "thread_id", "group_id", "process_name"}
	placed     = []string{"time", "thread_id", "group_id", "cwd"}
	identified = []string{"time", "thread_id", "group_id", "credentials"}
)

// sessionName is the only name that gVisor lets a session have.
const sessionName = "Default"

// The configuration that runsc takes.
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
