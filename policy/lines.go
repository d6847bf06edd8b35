package policy

import (
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
	moves    bool
}

func understand(text string) *line {
	parsed := shell.Parse(text)
	l := &line{opaque: parsed.Opaque}
	for _, c := range parsed.Commands {
		k := command{Command: c, shown: c.String()}
		if len(c.Argv) > 0 {
			k.subject, k.operands, k.moves = commandSubject(&c), operands(c.Argv), moves(&c)
		}
		l.commands = append(l.commands, k)
	}
	return l
}

// lines are command lines that were understood before: agents run the same
// ones again and again, and to parse one takes longer than to decide it. The
// zero value is ready to use.
type lines struct {
	mu         sync.Mutex
	young, old map[string]*line // guarded by mu
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
