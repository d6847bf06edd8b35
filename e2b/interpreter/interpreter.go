// Package interpreter has code run in sandboxes as clients of E2B's code interpreter
// ask for it: in contexts that keep what earlier code left, with all that values look
// like.
//
// The interpreter itself is one program for the jail's own python3, which is given to
// it when somebody first comes to its port, and stays. All that it does is done in the
// jail.
package interpreter

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jailinit/control"
	"glasshouse/jailinit/protocol"
)

// Port is where clients look for the interpreter in a sandbox.
const Port = 49999

// Template is the template that they ask for.
const Template = "code-interpreter-v1"

// Note is what init keeps of the interpreter's process, by which it is told from what
// clients run. It is what envd notes of a command with a tag.
const Note = `{"tag":"code-interpreter"}`

//go:embed kernel.py
var kernel string

//go:embed charts.py
var charts string

// boot has python3 run what it reads. The program hands it on to its contexts.
const boot = `import sys; s = sys.stdin.buffer.read(); exec(compile(s, "<interpreter>", "exec"), {"__name__": "__interpreter__", "SOURCE": s, "ROLE": sys.argv[1:]})`

// program is the interpreter as python3 is given it.
func program() string { return "BOOT = " + strconv.Quote(boot) + "\n" + charts + "\n" + kernel }

// ErrNoPython says that a sandbox has no python3.
var ErrNoPython = errors.New("the sandbox has no python3, which the code interpreter needs: make it of a template that has one")

// Jails is what is asked of jails. *jail.Manager is one.
type Jails interface {
	Dial(ctx context.Context, j id.Jail, port int) (net.Conn, error)
	Exec(context.Context, id.Jail, jail.ExecRequest, *control.AttachOptions) (*control.Stream, protocol.ExecStatus, error)
	Stdin(context.Context, id.Jail, id.Exec) (io.WriteCloser, error)
	Signal(ctx context.Context, j id.Jail, x id.Exec, sig string) error
}

// Interpreters are those in the jails. It is safe for concurrent use.
type Interpreters struct {
	jails Jails

	mu sync.Mutex
	// +checklocks:mu
	starting map[id.Jail]*start
}

// A start is one that is under way.
type start struct {
	done chan struct{} // closed when err is set
	err  error
}

// New returns Interpreters.
func New(j Jails) *Interpreters { return &Interpreters{jails: j, starting: map[id.Jail]*start{}} }

// Dial returns a connection to the server at Port of a jail. If there is none it starts
// the interpreter, as whom, where and with which variables r says. It is ErrNoPython if
// the jail has no python3, and fault.Unavailable if nothing came of it.
func (i *Interpreters) Dial(ctx context.Context, j id.Jail, r jail.ExecRequest) (net.Conn, error) {
	conn, err := i.jails.Dial(ctx, j, Port)
	if !errors.Is(err, fault.Unavailable) {
		return conn, err
	}
	failed := i.start(ctx, j, r)
	conn, err = i.jails.Dial(ctx, j, Port) // whoever is there now
	if err != nil && failed != nil {
		err = failed
	}
	return conn, err
}

// start starts the interpreter of a jail, or waits for who does.
func (i *Interpreters) start(ctx context.Context, j id.Jail, r jail.ExecRequest) error {
	i.mu.Lock()
	s := i.starting[j]
	if s == nil {
		s = &start{done: make(chan struct{})}
		i.starting[j] = s
		go func() { // for all who wait, whoever of them leaves
			s.err = i.begin(context.WithoutCancel(ctx), j, r)
			i.mu.Lock()
			delete(i.starting, j)
			i.mu.Unlock()
			close(s.done)
		}()
	}
	i.mu.Unlock()
	select {
	case <-s.done:
		return s.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// patience bounds how long python3 may take to begin.
const patience = time.Minute

// maxSaid bounds what is kept of what it says.
const maxSaid = 4 << 10

// begin starts the interpreter and returns when it can be reached.
func (i *Interpreters) begin(ctx context.Context, j id.Jail, r jail.ExecRequest) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fault.Newf(fault.Unavailable, "interpreter.Start", string(j), "python3 has not begun in %s", patience))
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	r.Argv = []string{"python3", "-c", boot, "serve", strconv.Itoa(Port)}
	r.Note, r.Stdin = Note, true
	stream, st, err := i.jails.Exec(ctx, j, r, &control.AttachOptions{})
	switch {
	case err == nil:
	case fault.KindOf(err) == fault.NotFound && slices.Contains([]string{"argv", "cmd"}, fault.FieldOf(err)):
		return ErrNoPython
	default:
		return err
	}
	defer stream.Close()
	// The program is larger than a pipe holds (64 KiB, pipe(7)), and a python3 that does not
	// read it can have ended or said why meanwhile.
	go func() {
		if err := i.give(ctx, j, st.ID); err != nil {
			fail(err)
		}
	}()
	err = ready(ctx, j, stream)
	if err == nil {
		conn, dialErr := i.jails.Dial(ctx, j, Port)
		if err = dialErr; err == nil {
			return conn.Close()
		}
	}
	i.jails.Signal(context.WithoutCancel(ctx), j, st.ID, "KILL") // if it has not ended, it is of no use
	return err
}

// give gives python3 the program.
func (i *Interpreters) give(ctx context.Context, j id.Jail, x id.Exec) error {
	in, err := i.jails.Stdin(ctx, j, x)
	if err != nil {
		return err
	}
	_, err = io.WriteString(in, program())
	in.Close()
	if errors.Is(err, fault.Conflict) { // it has ended, and said why
		err = nil
	}
	return err
}

// ready waits until the interpreter says that it is, or has ended.
func ready(ctx context.Context, j id.Jail, stream *control.Stream) error {
	defer context.AfterFunc(ctx, func() { stream.Close() })()
	var out, said []byte
	for len(out)+len(said) < maxSaid {
		c, err := stream.Next()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if c.Stream == protocol.Stderr {
			said = append(said, c.Data...)
			continue
		}
		if out = append(out, c.Data...); strings.HasPrefix(string(out), "ready ") && strings.Contains(string(out), "\n") {
			return nil
		}
	}
	lines := strings.Split(strings.TrimSpace(fmt.Sprintf("%.4096s", said)), "\n")
	return fault.Newf(fault.Unavailable, "interpreter.Start", string(j), "python3 did not begin: %q", lines[len(lines)-1])
}
