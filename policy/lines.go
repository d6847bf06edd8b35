package policy

import (
	"path"
	"slices"
	"sync"

	"glasshouse/policy/shell"
)

// A line is a command line that was understood, ready to be decided.
type line struct {
	commands []command
	opaque   string
}

type command struct {
	shell.Command
	subject  subject
	operands []string
	shown    string

	// beside says that a rule over all commands says nothing of it: it does
	// nothing but start others, which are decided, or go to a directory, which
	// is decided as one.
	beside bool
}

func understand(text string) *line {
	parsed := shell.Parse(text)
	l := &line{opaque: parsed.Opaque}
	for i, c := range parsed.Commands {
		k := command{Command: c, shown: c.String()}
		if len(c.Argv) > 0 {
			k.subject, k.operands = commandSubject(&c), operands(c.Argv)
			k.beside = moves(&c) || c.Wrapper && starts(&c, parsed.Commands[i+1:])
		}
		l.commands = append(l.commands, k)
	}
	return l
}

// moves reports whether c is the shell going to another directory, which
// OpenCode asks about as external_directory only.
func moves(c *shell.Command) bool {
	return c.Builtin && slices.Contains([]string{"cd", "pushd", "popd"}, c.Argv[0])
}

// starts reports whether c, a wrapper, starts one of the commands after it. A
// file somewhere that has a wrapper's name is none.
func starts(c *shell.Command, after []shell.Command) bool {
	dir, base := path.Split(c.Argv[0])
	if dir != "" && !slices.Contains(systemPath, path.Clean(dir)) {
		return false
	}
	return slices.ContainsFunc(after, func(d shell.Command) bool {
		n := len(c.Via)
		return len(d.Via) > n && d.Via[n] == base && slices.Equal(d.Via[:n], c.Via)
	})
}

// systemPath is where a system's programs are.
var systemPath = []string{"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"}

// lines are command lines that were understood before: agents run the same
// ones again and again, and to parse one takes longer than to decide it. The
// zero value is ready to use.
type lines struct {
	mu sync.Mutex
	// +checklocks:mu
	young map[string]*line
	// +checklocks:mu
	old map[string]*line
}

const (
	keptLines   = 1024 // in each of the two generations
	longestKept = 2048 // bytes of a line
)

func (k *lines) get(text string) *line {
	if len(text) > longestKept {
		return understand(text)
	}
	k.mu.Lock()
	l := k.young[text]
	if l == nil {
		l = k.old[text]
	}
	k.mu.Unlock()
	if l != nil {
		return l
	}
	l = understand(text)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.young == nil || len(k.young) >= keptLines {
		k.young, k.old = map[string]*line{}, k.young
	}
	k.young[text] = l
	return l
}
