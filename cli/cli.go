// Package cli implements the glasshouse command. Each file holds one subcommand, which is a thin
// client of the daemon's API. The help texts are the manual; docs/reference/cli.md is generated from them.
package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"

	"glasshouse/api/client"
	"glasshouse/daemon"
	"glasshouse/fault"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "unknown"

// Env is the environment of a command, as values, so that tests can set it.
type Env struct {
	Stdin    io.Reader
	Stdout   io.Writer
	Stderr   io.Writer
	Getenv   func(string) string
	UID      int
	Programs fs.FS // programs of the daemon: see daemon.Daemon
}

// Exit codes other than those that `run` and `exec` take from the command.
const (
	exitError  = 1
	exitUsage  = 2
	exitDaemon = 125 // run and exec: glasshouse failed, not the command
	exitNoExec = 126 // run and exec: the command is not executable
	exitNoCmd  = 127 // run and exec: the command was not found
)

// exitCode is the error of a command that exits with this code and has already printed its
// messages.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit status %d", int(c)) }

// Run runs the command and returns the exit code of the process.
func Run(ctx context.Context, args []string, env Env) int {
	c := &command{env: env}
	root := c.root()
	root.SetArgs(args)
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	err := c.unknownCommand(root, args)
	if err == nil {
		err = root.ExecuteContext(ctx)
	}
	if err == nil {
		return 0
	}
	if code, ok := errors.AsType[exitCode](err); ok {
		return int(code)
	}
	complain(env.Stderr, err)
	if _, ok := errors.AsType[usageError](err); ok {
		return exitUsage
	}
	return exitError
}

// complain prints an error and its remedy, if the error does not contain it. Both may
// quote names that a jail or a server chose.
func complain(w io.Writer, err error) {
	fmt.Fprintf(w, "glasshouse: %s\n", text.ForTerminal(err.Error()))
	remedy := fault.RemedyOf(err)
	if remedy != "" && !strings.Contains(err.Error(), remedy) {
		fmt.Fprintf(w, "  try: %s\n", text.ForTerminal(remedy))
	}
}

// unknownCommand returns a usage error if the arguments name a command that does not exist, or a
// group of commands, such as policy, and none of its commands. Cobra itself prints the help of
// the group and succeeds.
func (c *command) unknownCommand(root *cobra.Command, args []string) error {
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		return nil // shell completion; cobra adds the command during execution
	}
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	cmd, rest, err := root.Find(args)
	if err != nil {
		return usageError{err}
	}
	if cmd.Runnable() || !cmd.HasSubCommands() || cmd == root && len(rest) == 0 {
		return nil
	}
	cmd.InitDefaultHelpFlag()
	if err := cmd.ParseFlags(rest); err != nil {
		return nil // the command reports the error, or shows its help
	}
	named := cmd.Flags().Args()
	if len(named) == 0 {
		if help, _ := cmd.Flags().GetBool("help"); help {
			return nil
		}
		return c.missingCommand(cmd)
	}
	msg := fmt.Sprintf("unknown command %q for %q", named[0], cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2 // cobra's own default
	if near := cmd.SuggestionsFor(named[0]); len(near) > 0 {
		msg += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return usageError{errors.New(msg)}
}

// missingCommand is the usage error of a group without a command. It prints the help of the group.
func (c *command) missingCommand(group *cobra.Command) error {
	group.SetOut(c.env.Stderr)
	if err := group.Help(); err != nil {
		return err
	}
	fmt.Fprintln(c.env.Stderr)
	return usagef("%q needs a command", group.CommandPath())
}

// checkArgs makes all commands report wrong numbers of arguments, missing flags, mutually exclusive
// flags and values that are not of a fixed set as usage errors. Cobra checks flags after
// arguments, and its errors about flags have no type.
func checkArgs(cmd *cobra.Command) {
	if cmd.Runnable() {
		check := cmd.Args
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if check != nil {
				if err := check(cmd, args); err != nil {
					return usageError{fmt.Errorf("%w; usage: %s", err, cmd.UseLine())}
				}
			}
			if err := cmp.Or(cmd.ValidateRequiredFlags(), cmd.ValidateFlagGroups()); err != nil {
				return usageError{err}
			}
			return checkValues(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		checkArgs(sub)
	}
}

// usageError is an invalid command line.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// command holds the state that the subcommands share.
type command struct {
	env  Env
	data string // --data
	addr string // --addr
	node string // --node
	json bool   // --json, or a format that is made from it

	format    string // --output
	documents int    // number of written YAML documents

	warned []string // old forms for which a warning was printed

	usersLock *os.File // holds a shared lock while this process uses a daemon

	showing    atomic.Bool     // a progress is shown
	noProgress bool            // do not show progress, because the output goes to the same terminal
	caught     <-chan struct{} // closed when the command has handled an interrupt; nil: it handles none
}

func (c *command) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "glasshouse",
		Short: "Run agents in jails (sandboxes): observe, govern and rewind them",
		Example: `  glasshouse run -- make test                     # in a jail, on a copy of this directory
  glasshouse diff JAIL --unified; glasshouse apply JAIL
  glasshouse goal "fix the failing test" --agent opencode -C .
  glasshouse events JAIL --follow 'type:net'
  glasshouse snapshot create JAIL --name before; glasshouse rewind JAIL --last`,
		Long: `Glasshouse runs autonomous agents in jails (sandboxes) on Linux.

All commands except serve use a daemon: the one at --addr or GLASSHOUSE_ADDR if set,
else the one whose socket is in the data directory. If no daemon is running, the
command starts one, which stops when no command uses it.

Jails and snapshots are given by id or by name. Names are unique: a jail or snapshot with
the name of another one is not created.

Commands that delete data ask for confirmation if standard input and standard error
are terminals. --force, or -f, skips the question.

If standard error is a terminal, commands that wait longer than a second, for example
for a root filesystem, show what they wait for in one line, and remove it at the end.
Without a terminal, with TERM=dumb and with --json, -o yaml or -o name they do not.

Exit codes:

| code | meaning |
| --- | --- |
| 0 | success |
| 1 | the command failed, no daemon was reachable, or the daemon refused the request |
| 1 | the answer is no: decide, policy lint, audit verify, bundle verify, replay, doctor |
| 1 | the run did not reach its goal: goal, agent run, agent logs |
| 2 | unknown command or flag, wrong number of arguments, or an invalid value |
| 2 | a group of commands without a command, such as glasshouse policy |
| 125 | run, exec, jail terminal: Glasshouse failed, for example the jail cannot be created |
| 126 | run, exec, jail terminal: the program cannot be executed |
| 127 | run, exec, jail terminal: the program was not found |
| 128+N | run, exec, jail terminal: signal N ended the program |

run, exec and jail terminal otherwise exit with the code of the program, and wasm run
with that of the module.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	def := daemon.NewConfig(c.env.UID, c.env.Getenv("HOME")).Data
	root.PersistentFlags().StringVar(&c.data, "data", "", "data directory (default "+def+", or GLASSHOUSE_DATA)")
	root.PersistentFlags().StringVar(&c.addr, "addr", "", "the daemon's address, unix:///path or http://host:port (GLASSHOUSE_ADDR)")
	root.PersistentFlags().StringVar(&c.node, "node", "", "node of the fleet, by name or ID (GLASSHOUSE_NODE)")
	c.addFormat(root)
	c.addCommands(root)
	addExamples(root)
	c.addConfirmations(root)
	c.addCompletion(root)
	checkArgs(root)
	return root
}

// dataDir returns the data directory of this user's daemon. The path is absolute if the working
// directory is known.
func (c *command) dataDir() string {
	dir := cmp.Or(c.data, c.env.Getenv("GLASSHOUSE_DATA"))
	if dir == "" {
		return daemon.NewConfig(c.env.UID, c.env.Getenv("HOME")).Data
	}
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}

// address returns the address of the daemon, as a URL.
func (c *command) address() string {
	addr := c.addr
	if addr == "" {
		addr = c.env.Getenv("GLASSHOUSE_ADDR")
	}
	if addr == "" {
		addr = "unix://" + filepath.Join(c.dataDir(), "glasshouse.sock")
	}
	if !strings.Contains(addr, "://") {
		addr = "http://" + addr
	}
	return addr
}

// dial returns a client of the daemon. It does no I/O: if the daemon is not running, the first
// call fails.
func (c *command) dial() (*client.Client, error) {
	addr := c.address()
	if c.addr == "" && c.env.Getenv("GLASSHOUSE_ADDR") == "" && !filepath.IsAbs(c.dataDir()) {
		return nil, usagef("HOME is not set, and neither are --data, GLASSHOUSE_DATA and --addr")
	}
	token, node := c.env.Getenv("GLASSHOUSE_TOKEN"), cmp.Or(c.node, c.env.Getenv("GLASSHOUSE_NODE"))
	if token == "" && (node != "" || !strings.HasPrefix(addr, "unix://")) { // other nodes do not know the users of this host
		if data, err := os.ReadFile(filepath.Join(c.dataDir(), "token")); err == nil {
			token = strings.TrimSpace(string(data))
		}
	}
	return client.New(client.Options{Addr: addr, Token: token, Node: node, Wrap: func(next http.RoundTripper) http.RoundTripper {
		return progressTransport{c: c, next: next}
	}})
}

// print writes v as JSON or in the format of --output, and calls show if neither is requested. A
// list without items is written as [], even if it is nil, because scripts iterate over it.
func (c *command) print(v any, show func(w io.Writer)) error {
	if !c.json {
		show(c.env.Stdout)
		return nil
	}
	if list := reflect.ValueOf(v); list.Kind() == reflect.Slice && list.IsNil() {
		v = []any{}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	return c.writeJSON(b.Bytes())
}
