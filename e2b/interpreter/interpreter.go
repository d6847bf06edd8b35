// Package interpreter runs code in sandboxes for clients of E2B's code interpreter. Code runs in
// contexts that keep their state between calls, and values are returned in all their
// representations.
//
// The interpreter is one program for the jail's own python3. It starts on the first connection
// to its port and keeps running. All of its work happens in the jail.
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
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// Port is the interpreter's port in a sandbox.
const Port = 49999

// Template is the name of the template that clients request.
const Template = "code-interpreter-v1"

// Note is the note that init keeps for the interpreter's process. It distinguishes the
// interpreter from the clients' commands. It has the format that envd uses for commands with a
// tag.
const Note = `{"tag":"code-interpreter"}`

//go:embed kernel.py
var kernel string

//go:embed charts.py
var charts string

// boot makes python3 run the program that it reads from standard input. The program passes
// itself on to its contexts.
const boot = `import sys; s = sys.stdin.buffer.read(); exec(compile(s, "<interpreter>", "exec"), {"__name__": "__interpreter__", "SOURCE": s, "ROLE": sys.argv[1:]})`

// program returns the source code of the interpreter.
func program() string { return "BOOT = " + strconv.Quote(boot) + "\n" + charts + "\n" + kernel }

// ErrNoPython means that a sandbox has no python3.
var ErrNoPython = errors.New("the sandbox has no python3, which the code interpreter needs: create it from a template that has one")

// Jails is the part of the jail manager that the package uses. *jail.Manager implements it.
type Jails interface {
	Dial(ctx context.Context, j id.Jail, port int) (net.Conn, error)
	Exec(context.Context, id.Jail, jail.ExecRequest, *control.AttachOptions) (*control.Stream, protocol.ExecStatus, error)
	Stdin(context.Context, id.Jail, id.Exec) (io.WriteCloser, error)
	Signal(ctx context.Context, j id.Jail, x id.Exec, sig string) error
}

// Interpreters manages the interpreters of all jails. It is safe for concurrent use.
type Interpreters struct {
	jails Jails

	mu sync.Mutex
	// +checklocks:mu
	starting map[id.Jail]*start
}

// A start is a start of an interpreter in progress.
type start struct {
	done chan struct{} // closed when err is set
	err  error
}

// New returns Interpreters.
func New(j Jails) *Interpreters { return &Interpreters{jails: j, starting: map[id.Jail]*start{}} }

// Dial returns a connection to the server at Port of a jail. If none listens there, Dial starts
// the interpreter with the user, the directory and the environment of r. It returns ErrNoPython
// if the jail has no python3, and fault.Unavailable if the start fails.
func (i *Interpreters) Dial(ctx context.Context, j id.Jail, r jail.ExecRequest) (net.Conn, error) {
	conn, err := i.jails.Dial(ctx, j, Port)
	if !errors.Is(err, fault.Unavailable) {
		return conn, err
	}
	failed := i.start(ctx, j, r)
	conn, err = i.jails.Dial(ctx, j, Port) // any server that listens now
	if err != nil && failed != nil {
		err = failed
	}
	return conn, err
}

// start starts the interpreter of a jail, or waits for a start in progress.
func (i *Interpreters) start(ctx context.Context, j id.Jail, r jail.ExecRequest) error {
	i.mu.Lock()
	s := i.starting[j]
	if s == nil {
		s = &start{done: make(chan struct{})}
		i.starting[j] = s
		go func() { // all callers wait for it, so it does not depend on one caller's context
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

// startTimeout limits the start of python3.
const startTimeout = time.Minute

// maxOutput is the number of bytes of its output that are kept.
const maxOutput = 4 << 10

// begin starts the interpreter and returns when it accepts connections.
func (i *Interpreters) begin(ctx context.Context, j id.Jail, r jail.ExecRequest) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fault.Newf(fault.Unavailable, "interpreter.Start", string(j), "python3 did not start within %s", startTimeout))
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
	// The program is larger than the capacity of a pipe (64 KiB, pipe(7)). A python3 that does
	// not read it may have ended or printed an error meanwhile.
	go func() {
		if err := i.give(ctx, j, st.ID); err != nil {
			fail(err)
		}
	}()
	err = ready(ctx, j, stream)
	if err == nil {
		conn, dialErr := i.jails.Dial(ctx, j, Port)
		err = dialErr
		if err == nil {
			return conn.Close()
		}
	}
	i.jails.Signal(context.WithoutCancel(ctx), j, st.ID, "KILL") // its start has failed; stop it if it is still running
	return err
}

// give writes the program to the standard input of python3.
func (i *Interpreters) give(ctx context.Context, j id.Jail, x id.Exec) error {
	in, err := i.jails.Stdin(ctx, j, x)
	if err != nil {
		return fmt.Errorf("open the input of the interpreter: %w", err)
	}
	_, err = io.WriteString(in, program())
	in.Close()
	if errors.Is(err, fault.Conflict) { // it has ended and printed the reason
		err = nil
	}
	return err
}

// ready waits until the interpreter reports that it is ready, or has ended.
func ready(ctx context.Context, j id.Jail, stream *control.Stream) error {
	defer context.AfterFunc(ctx, func() { stream.Close() })()
	var out, stderr []byte
	for len(out)+len(stderr) < maxOutput {
		c, err := stream.Next()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("read the output of the interpreter: %w", err)
		}
		if c.Stream == protocol.Stderr {
			stderr = append(stderr, c.Data...)
			continue
		}
		out = append(out, c.Data...)
		if strings.HasPrefix(string(out), "ready ") && strings.Contains(string(out), "\n") {
			return nil
		}
	}
	lines := strings.Split(strings.TrimSpace(fmt.Sprintf("%.4096s", stderr)), "\n")
	return fault.Newf(fault.Unavailable, "interpreter.Start", string(j), "python3 did not start: %q", lines[len(lines)-1])
}
