package policy

import (
	"path"
	"slices"
	"sync"

	"glasshouse/policy/shell"
)

// A line is a parsed command line, prepared for decisions.
type line struct {
	commands []command
	opaque   string
}

type command struct {
	shell.Command
	subject  subject
	operands []string
	shown    string

	// startsOthers is set if rules over all commands do not apply, because the command only starts
	// other commands or changes the directory, which are decided separately.
	startsOthers bool
}

func understand(text string) *line {
	parsed := shell.Parse(text)
	l := &line{opaque: parsed.Opaque}
	for i, c := range parsed.Commands {
		k := command{Command: c, shown: c.String()}
		if len(c.Argv) > 0 {
			k.subject, k.operands = commandSubject(&c), operands(c.Argv)
			k.startsOthers = moves(&c) || c.Wrapper && starts(&c, parsed.Commands[i+1:])
		}
		l.commands = append(l.commands, k)
	}
	return l
}

// moves reports whether c changes the shell's directory, which OpenCode checks as
// external_directory only.
func moves(c *shell.Command) bool {
	return c.Builtin && slices.Contains([]string{"cd", "pushd", "popd"}, c.Argv[0])
}

// starts reports whether c is a wrapper that starts one of the commands after it. A file with
// the name of a wrapper in another directory is not a wrapper.
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

// systemPath has the directories of a system's programs.
var systemPath = []string{"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"}

// lines caches parsed command lines: agents repeat them, and parsing is more expensive than
// deciding. The zero value is ready to use.
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
