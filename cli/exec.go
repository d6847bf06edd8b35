package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// execFlags are the flags that describe how a command runs.
type execFlags struct {
	env     []string
	cwd     string
	user    string
	timeout time.Duration
	stdin   bool
	tty     bool
}

func (f *execFlags) request(argv []string, getenv func(string) string) (wire.ExecRequest, error) {
	env, err := keyValues(f.env, getenv)
	return wire.ExecRequest{
		Argv: argv, Env: env, Cwd: f.cwd, User: f.user, TimeoutMS: f.timeout.Milliseconds(),
		StdinOpen: f.stdin, Lossless: true,
	}, err
}

// exec is the short form of the command jail exec.
func (c *command) exec() *cobra.Command { return c.jailExec() }

func (c *command) jailExec() *cobra.Command {
	var f execFlags
	var detach bool
	cmd := &cobra.Command{
		Use:   "exec [flags] JAIL [--] COMMAND [ARG...]",
		Short: "Run a command in a running jail",
		Long: `Run a command in a running jail. Standard output and standard error are forwarded
separately and immediately. The exit code is that of the command, 128 plus the number
of the signal that killed it, 127 if it was not found, 126 if it could not be
executed, or 125 if Glasshouse failed. An interrupt is forwarded to the command. A slow
reader of the output slows the command down; output that is lost after a reader took
none for 5 minutes is reported.`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			argv := args[1:]
			if argv[0] == "--" {
				argv = argv[1:]
			}
			if len(argv) == 0 {
				return usagef("no command is given; usage: %s", cmd.UseLine())
			}
			req, err := f.request(argv, c.env.Getenv)
			if err != nil {
				return c.notStarted(err)
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return c.notStarted(err)
			}
			jid, err := jailNamed(cmd.Context(), cl, args[0])
			if err != nil {
				return execError(c.env.Stderr, err)
			}
			if detach {
				req.Detach, req.Lossless = true, false
				x, err := cl.Exec(cmd.Context(), jid, req)
				if err != nil {
					return execError(c.env.Stderr, err)
				}
				return c.print(x, func(w io.Writer) { fmt.Fprintln(w, x.ID) })
			}
			if f.tty {
				return c.terminal(cmd.Context(), cl, jid, client.TerminalOptions{Argv: argv, User: f.user, Cwd: f.cwd})
			}
			return c.stream(cmd.Context(), cl, jid, req)
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().StringArrayVarP(&f.env, "env", "e", nil, "KEY=VALUE, or KEY to take the value from here; may be repeated")
	cmd.Flags().StringVarP(&f.cwd, "workdir", "w", "", "working directory")
	c.renameFlags(cmd, map[string]string{"cwd": "workdir"})
	cmd.Flags().StringVarP(&f.user, "user", "u", "", "user name or uid, optionally with :group")
	durationVar(cmd.Flags(), &f.timeout, "timeout", 0, "time limit of the command, such as 90s (default: none)")
	cmd.Flags().BoolVarP(&f.stdin, "stdin", "i", false, "forward standard input")
	cmd.Flags().BoolVarP(&f.tty, "tty", "t", false, "allocate a terminal")
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "start the command and print its id")
	// The request that opens a terminal does not have these fields.
	for _, flag := range []string{"env", "timeout", "detach"} {
		cmd.MarkFlagsMutuallyExclusive("tty", flag)
	}
	return cmd
}

// stream runs a command and forwards its output, its input and its exit code.
func (c *command) stream(ctx context.Context, cl *client.Client, jid id.Jail, req wire.ExecRequest) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s, err := cl.Stream(ctx, jid, req)
	if err != nil {
		return execError(c.env.Stderr, err)
	}
	defer s.Close()
	stop := c.forwardSignals(ctx, cl, jid, s.Exec().ID, cancel)
	defer stop()
	defer c.reportApprovals(ctx, cl, jid)()
	if req.StdinOpen {
		go cl.Stdin(ctx, jid, s.Exec().ID, c.env.Stdin, true) // ends with the process, or with ctx
	}
	err = c.forwardOutput(ctx, s)
	if err == io.EOF {
		return c.exitOf(s.Exec())
	}
	complain(c.env.Stderr, err)
	return exitCode(exitDaemon)
}

// forwardOutput copies the output of a command to standard output and standard error. It returns
// io.EOF when the command has ended.
func (c *command) forwardOutput(ctx context.Context, s *client.ExecStream) error {
	for {
		out, err := s.Next()
		if cause := context.Cause(ctx); err != nil && err != io.EOF && cause != nil {
			err = cause
		}
		if err != nil {
			return err
		}
		if out.Lost > 0 {
			fmt.Fprintf(c.env.Stderr, "glasshouse: %d bytes of output were lost\n", out.Lost)
		}
		w := c.env.Stdout
		if out.Stream == "stderr" {
			w = c.env.Stderr
		}
		if _, err := w.Write(out.Data); err != nil {
			return fmt.Errorf("forward output: %w", err)
		}
	}
}

// reportApprovals prints the jail's approval requests at a terminal until stop is called.
// Without a message, a command that waits for an approval looks like one that hangs.
func (c *command) reportApprovals(ctx context.Context, cl *client.Client, jid id.Jail) (stop func()) {
	if !isTerminal(c.env.Stderr) {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for e, err := range cl.ApprovalEvents(ctx) {
			if err != nil {
				return // `glasshouse approval ls` lists the requests as well
			}
			if e.Kind == "asked" && e.Approval.Jail == jid {
				fmt.Fprintf(c.env.Stderr, "glasshouse: approval required: %s\n  try: glasshouse approve %s\n", text.Visible(e.Approval.Title), e.Approval.ID)
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

// forwardSignals sends signals that would end this process to the command instead. The third
// signal ends this process. If a signal cannot be forwarded, forwardSignals calls giveUp with
// the reason.
func (c *command) forwardSignals(ctx context.Context, cl *client.Client, jid id.Jail, x id.Exec, giveUp func(error)) (stop func()) {
	ch := make(chan os.Signal, 4)
	signal.Notify(ch, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	done := make(chan struct{})
	go func() {
		for n := 1; ; n++ {
			select {
			case <-done:
				return
			case sig := <-ch:
				if n == 3 {
					signal.Stop(ch)
				}
				name := signalNames[sig.(syscall.Signal)]
				sending, cancel := context.WithTimeout(ctx, 5*time.Second)
				err := cl.Signal(sending, jid, x, name)
				cancel()
				// Conflict and NotFound mean that the command has ended; the stream will end
				// too.
				if err != nil && !errors.Is(err, fault.Conflict) && !errors.Is(err, fault.NotFound) {
					giveUp(&fault.Error{
						Op: "exec", On: string(x), Kind: fault.Unavailable,
						Err:    fmt.Errorf("SIG%s did not reach the command, which may still run: %w", name, err),
						Remedy: "glasshouse jail stop " + string(jid),
					})
				}
			}
		}
	}()
	return func() { signal.Stop(ch); close(done) }
}

var signalNames = map[syscall.Signal]string{
	syscall.SIGINT: "INT", syscall.SIGTERM: "TERM", syscall.SIGHUP: "HUP", syscall.SIGQUIT: "QUIT",
}

// exitOf converts the end of a command to this process's exit code.
func (c *command) exitOf(x wire.Exec) error {
	switch {
	case x.ExitCode == nil: // never success: a script would continue
		complain(c.env.Stderr, errors.New("the exit code of the command is unknown"))
		return exitCode(exitDaemon)
	case *x.ExitCode == 0:
		return nil
	}
	return exitCode(*x.ExitCode)
}

// execError prints why a command did not start. The exit code is that of a shell if the command
// is the cause.
func execError(w io.Writer, err error) error {
	code := exitDaemon
	switch {
	case fault.FieldOf(err) != "argv":
	case errors.Is(err, fault.NotFound):
		code = exitNoCmd
	case errors.Is(err, fault.Invalid):
		code = exitNoExec
	}
	complain(w, err)
	return exitCode(code)
}

// notStarted is the error of run and exec if no daemon or no jail is available to run a program
// in.
func (c *command) notStarted(err error) error {
	if _, ok := errors.AsType[usageError](err); ok {
		return err
	}
	return execError(c.env.Stderr, err)
}

func (c *command) jailExecs() *cobra.Command {
	return &cobra.Command{
		Use: "execs JAIL [EXEC]", Short: "List the commands of a jail, or show the output of one", Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withJail(cmd, args[0], func(cl *client.Client, jid id.Jail) error {
				if len(args) == 2 {
					return c.printExec(cmd.Context(), cl, jid, id.Exec(args[1]))
				}
				all, err := client.Collect(cl.Execs(cmd.Context(), jid))
				if err != nil {
					return err
				}
				return c.print(all, func(w io.Writer) {
					rows := [][]string{{"ID", "STATE", "STARTED", "COMMAND"}}
					for _, x := range all {
						state := "running"
						if x.ExitCode != nil {
							state = fmt.Sprintf("exit %d", *x.ExitCode)
						}
						if x.Signal != "" {
							state = "SIG" + x.Signal
						}
						rows = append(rows, []string{string(x.ID), state, ago(x.StartedAt, time.Now()), strings.Join(x.Argv, " ")})
					}
					table(w, rows)
				})
			})
		},
	}
}

func (c *command) logs() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use: "logs JAIL [EXEC]", Short: "Show the output of the newest command of a jail, or of a given one", Args: cobra.RangeArgs(1, 2),
		Long: `Show the output of a command in a jail: of the newest one, or of the one with the given
id. The jail keeps the end of the output of recent commands, which jail execs lists.`,
		Example: `  glasshouse logs j-4k2v9c7m1xqe
  glasshouse logs j-4k2v9c7m1xqe --follow`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withJail(cmd, args[0], func(cl *client.Client, jid id.Jail) error {
				var xid id.Exec
				if len(args) == 2 {
					xid = id.Exec(args[1])
				} else {
					all, err := client.Collect(cl.Execs(cmd.Context(), jid))
					if err != nil {
						return err
					}
					if len(all) == 0 {
						return fault.Newf(fault.NotFound, "cli.logs", string(jid), "no command has run in the jail")
					}
					xid = all[len(all)-1].ID
				}
				if !follow {
					return c.printExec(cmd.Context(), cl, jid, xid)
				}
				s, err := cl.Follow(cmd.Context(), jid, xid, -1)
				if err != nil {
					return err
				}
				defer s.Close()
				err = c.forwardOutput(cmd.Context(), s)
				if err == io.EOF {
					return nil
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "continue until the command ends")
	return cmd
}

// printExec prints the output that a jail has kept of a command.
func (c *command) printExec(ctx context.Context, cl *client.Client, jid id.Jail, xid id.Exec) error {
	x, err := cl.ExecResult(ctx, jid, xid)
	if err != nil {
		return err
	}
	return c.print(x, func(io.Writer) { c.showOutput(x) })
}

func (c *command) showOutput(x wire.Exec) {
	stdout, stderr, err := client.Output(x)
	if err != nil {
		complain(c.env.Stderr, err)
		return
	}
	if x.Truncated {
		fmt.Fprintln(c.env.Stderr, "glasshouse: only the end of the output was stored")
	}
	c.env.Stdout.Write(stdout)
	c.env.Stderr.Write(stderr)
}

func (c *command) jailTerminal() *cobra.Command {
	var o client.TerminalOptions
	var attach string
	cmd := &cobra.Command{
		Use:   "terminal [flags] JAIL [--] [COMMAND [ARG...]]",
		Short: "Open a terminal in a running jail",
		Long: `Open a terminal in a running jail, with a shell or the given command. The command
keeps running when the terminal window is closed; reconnect with --attach. The exit
code is as for exec.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Argv, o.Exec = args[1:], id.Exec(attach)
			if len(o.Argv) > 0 && o.Argv[0] == "--" {
				o.Argv = o.Argv[1:]
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return c.notStarted(err)
			}
			jid, err := jailNamed(cmd.Context(), cl, args[0])
			if err != nil {
				return c.notStarted(err)
			}
			return c.terminal(cmd.Context(), cl, jid, o)
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().StringVar(&attach, "attach", "", "attach to the terminal of this command")
	cmd.Flags().StringVarP(&o.User, "user", "u", "", "user name or uid, optionally with :group")
	cmd.Flags().StringVarP(&o.Cwd, "workdir", "w", "", "working directory")
	c.renameFlags(cmd, map[string]string{"cwd": "workdir"})
	return cmd
}

// terminal connects this process's terminal to one in the jail until the command there ends.
func (c *command) terminal(ctx context.Context, cl *client.Client, jid id.Jail, o client.TerminalOptions) error {
	tty, isTTY := c.env.Stdin.(*os.File)
	isTTY = isTTY && term.IsTerminal(int(tty.Fd()))
	if isTTY {
		if w, h, err := term.GetSize(int(tty.Fd())); err == nil {
			o.Size = wire.Size{Cols: uint16(w), Rows: uint16(h)}
		}
	}
	t, err := cl.Terminal(ctx, jid, o)
	if err != nil {
		return execError(c.env.Stderr, err)
	}
	defer t.Close()
	if isTTY {
		old, err := term.MakeRaw(int(tty.Fd()))
		if err != nil {
			return fmt.Errorf("set the terminal to raw mode: %w", err)
		}
		defer term.Restore(int(tty.Fd()), old)
		defer followSize(tty, t)()
	}
	go io.Copy(t, c.env.Stdin) // ends with the process
	if _, err := io.Copy(c.env.Stdout, t); err != nil {
		complain(c.env.Stderr, err)
		return exitCode(exitDaemon)
	}
	return c.exitOf(t.Exec())
}

// followSize resizes the terminal in the jail whenever the local terminal changes its size.
func followSize(tty *os.File, t *client.Terminal) (stop func()) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGWINCH)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-ch:
				if w, h, err := term.GetSize(int(tty.Fd())); err == nil {
					t.Resize(wire.Size{Cols: uint16(w), Rows: uint16(h)})
				}
			}
		}
	}()
	return func() { signal.Stop(ch); close(done) }
}
