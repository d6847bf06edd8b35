// Package cli is the glasshouse command: one file per subcommand, each a thin
// face on the daemon's API. Help texts are the manual; docs/cli.md is made from
// them.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"glasshouse/api/client"
	"glasshouse/daemon"
	"glasshouse/fault"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "unknown"

// Env is the world a command runs in, as values, so that a test can be main.
type Env struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Getenv func(string) string
	UID    int
	Init   []byte // the glasshouse-init binary to put into jails
	Agent  []byte // the glasshouse-agent binary, likewise
}

// Exit codes beyond those that `run` and `exec` pass on from the command.
const (
	exitError  = 1
	exitUsage  = 2
	exitDaemon = 125 // run and exec: glasshouse failed, not the command
	exitNoExec = 126 // run and exec: the command is not executable
	exitNoCmd  = 127 // run and exec: the command was not found
)

// exitCode is the error of a command that ended with a code of its own and has
// said all there is to say.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit status %d", int(c)) }

// Run is the whole command. It returns the process's exit code.
func Run(ctx context.Context, args []string, env Env) int {
	c := &command{env: env}
	root := c.root()
	root.SetArgs(args)
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if code, ok := errors.AsType[exitCode](err); ok {
		return int(code)
	}
	fmt.Fprintf(env.Stderr, "glasshouse: %v\n", err)
	if remedy := fault.RemedyOf(err); remedy != "" && !strings.Contains(err.Error(), remedy) {
		fmt.Fprintf(env.Stderr, "  try: %s\n", remedy)
	}
	if _, ok := errors.AsType[usageError](err); ok {
		return exitUsage
	}
	return exitError
}

// usageError is a command line that cannot be understood.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// command holds what the subcommands share.
type command struct {
	env  Env
	data string // --data
	addr string // --addr
	json bool   // --json

	used *os.File // locked while this process uses a daemon
}

func (c *command) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "glasshouse",
		Short: "Run autonomous agents in jails: watched, governed, rewound",
		Long: `Glasshouse runs autonomous agents in jails on Linux.

Every command but serve talks to a daemon: the one at --addr or GLASSHOUSE_ADDR
if that is set, else the one whose socket is in the data directory. If there is
none, the command starts one, which ends when nobody uses it any more.

A jail or a snapshot is named by its id, or by its name where only one has it.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	def := daemon.NewConfig(c.env.UID, c.env.Getenv("HOME")).Data
	root.PersistentFlags().StringVar(&c.data, "data", "", "data directory (default "+def+", or GLASSHOUSE_DATA)")
	root.PersistentFlags().StringVar(&c.addr, "addr", "", "the daemon's address, unix:///path or http://host:port (GLASSHOUSE_ADDR)")
	root.PersistentFlags().BoolVar(&c.json, "json", false, "print what the API answered")
	root.AddCommand(
		c.serve(), c.ui(), c.run(), c.apply(), c.jail(), c.copy(), c.files(), c.diff(),
		c.events(), c.at(), c.processes(), c.syscalls(), c.network(), c.report(),
		c.snapshot(), c.snapshots(), c.branch(), c.restore(), c.rewind(), c.lineage(),
		c.approvals(), c.approve(), c.deny(), c.secret(), c.policy(), c.decide(), c.trail(), c.egress(), c.audit(), c.export(),
		c.capability(), c.call(), c.replay(), c.skill(), c.bundle(), c.market(), c.mcp(),
		c.goal(), c.runs(), c.session(), c.schedules(), c.connectors(),
		c.openCode(), c.rtfs(), c.wasm(), c.mockLLM(), c.rootfs(), c.token(), c.e2b(), c.backends(), c.doctor(), c.health(), c.docs(),
	)
	return root
}

// dataDir is where the daemon of this user keeps its things.
func (c *command) dataDir() string {
	if c.data != "" {
		return c.data
	}
	if d := c.env.Getenv("GLASSHOUSE_DATA"); d != "" {
		return d
	}
	return daemon.NewConfig(c.env.UID, c.env.Getenv("HOME")).Data
}

// address is the daemon's, as a URL.
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

// dial returns a client of the daemon. It does no I/O: a daemon that is not there
// shows at the first call.
func (c *command) dial() (*client.Client, error) {
	addr := c.address()
	token := c.env.Getenv("GLASSHOUSE_TOKEN")
	if token == "" && !strings.HasPrefix(addr, "unix://") {
		if data, err := os.ReadFile(filepath.Join(c.dataDir(), "token")); err == nil {
			token = strings.TrimSpace(string(data))
		}
	}
	return client.New(client.Options{Addr: addr, Token: token})
}

// print writes v as JSON if --json was given, else calls text.
func (c *command) print(v any, text func(w io.Writer)) error {
	if !c.json {
		text(c.env.Stdout)
		return nil
	}
	enc := json.NewEncoder(c.env.Stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
