// Package spawn starts agents outside of jails: as unconfined processes of the host, or in
// bubblewrap with programs, a home in memory, a workspace, and no network except the
// gateway.
//
// Both spawners start an agent through glasshouse-agent, a small supervisor between the
// daemon and the agent. It kills the agent when required, and in bubblewrap it serves the
// gateway at http://localhost:4097. A Process behaves the same for both.
package spawn

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"glasshouse/fault"
)

// A Spawner starts agents. It is safe for concurrent use.
type Spawner interface {
	// Name returns the name in the configuration: "process" or "bwrap".
	Name() string

	// Probe returns nil if the spawner works on this host, and otherwise an error with a
	// remedy.
	Probe(ctx context.Context) error

	// UnenforcedLimits returns the limits ("memory", "pids", "cpu") that the spawner cannot enforce
	// on this host, with the reasons.
	UnenforcedLimits() map[string]string

	// Agent returns the path of glasshouse-agent as a started process sees it. Without
	// arguments that program is the builtin agent.
	Agent() string

	// Start starts an agent and returns when it runs. The context applies only to the
	// start. If a part of s cannot be applied the agent is not started.
	Start(ctx context.Context, s Start) (*Process, error)
}

// Start describes the agent to start. Argv and Socket are required.
type Start struct {
	Argv  []string
	Env   []string          // added to HOME, PATH, USER, LANG and GLASSHOUSE_DOOR, which it may override
	Cwd   string            // as the agent sees it; default: the workspace, or the home if no workspace is set
	Files map[string][]byte // written to the agent's home, by relative path

	Socket string // path of the gateway's socket for this agent
	Token  []byte // authenticates the agent at the gateway; printable, at most 4096 bytes

	Workspace string   // writable directory; may be empty
	ReadOnly  []string // other visible paths, for example of the agent's programs

	Limits Limits

	// Stdin is read until the agent exits, and then closed if it is an io.Closer. Each
	// output is written by one goroutine. A nil output is discarded.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Limits bound the total usage of an agent and its descendants. Zero is no limit.
type Limits struct {
	Memory int64         // bytes
	PIDs   int64         // processes and threads
	CPU    int64         // relative weight; the default of other groups is 1024
	Wall   time.Duration // time until the agent is killed
}

// An Exit describes how an agent ended.
type Exit struct {
	Code  int           // exit code, or 128 plus the signal that ended the agent
	Limit string        // the exceeded limit: "wall", "memory" or ""
	CPU   time.Duration // CPU time, as far as it is known
}

// Config configures a spawner.
type Config struct {
	// Agent is the path of glasshouse-agent.
	Agent string

	// Dir is a directory that only this spawner uses. Its contents are removed.
	Dir string

	// CgroupPrefix is the name of the cgroup tree of the agents: one path element that only
	// this spawner uses.
	CgroupPrefix string

	Bwrap string       // path of bubblewrap; default: looked up in PATH
	Log   *slog.Logger // default: discard
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// check returns fault.Invalid if a field is invalid.
func (s *Start) check(op string) error {
	switch {
	case len(s.Argv) == 0 || s.Argv[0] == "":
		return fault.Fieldf(op, "argv", "the command is empty")
	case !filepath.IsAbs(s.Socket):
		return fault.Fieldf(op, "socket", "%q is not an absolute path", s.Socket)
	case len(s.Token) > 4096:
		return fault.Fieldf(op, "token", "the token is longer than 4096 bytes")
	case s.Limits.Memory < 0 || s.Limits.PIDs < 0 || s.Limits.CPU < 0 || s.Limits.Wall < 0:
		return fault.Fieldf(op, "limits", "a limit is negative")
	}
	for _, c := range s.Token {
		if c <= ' ' || c > '~' {
			return fault.Fieldf(op, "token", "the token contains the byte %#02x", c)
		}
	}
	for _, arg := range s.Argv {
		if strings.ContainsRune(arg, 0) {
			return fault.Fieldf(op, "argv", "an argument contains a NUL")
		}
	}
	for _, kv := range s.Env {
		if k, _, ok := strings.Cut(kv, "="); !ok || k == "" || strings.ContainsRune(kv, 0) {
			return fault.Fieldf(op, "env", "a variable is not NAME=value")
		}
	}
	for name := range s.Files {
		if !filepath.IsLocal(name) || strings.ContainsRune(name, 0) {
			return fault.Fieldf(op, "files", "%q is not a relative path inside the home", name)
		}
	}
	return s.checkPaths(op)
}

func (s *Start) checkPaths(op string) error {
	visible := append([]string{}, s.ReadOnly...)
	if s.Workspace != "" {
		visible = append(visible, s.Workspace)
	}
	for _, p := range append(visible, s.Cwd) {
		if p != "" && (!filepath.IsAbs(p) || filepath.Clean(p) != p || p == "/" || strings.ContainsRune(p, 0)) {
			return fault.Newf(fault.Invalid, op, p, "not a clean absolute path")
		}
	}
	for _, p := range append(visible, s.Socket) {
		if _, err := os.Stat(p); err != nil {
			return fault.New(fault.Invalid, op, p, err)
		}
	}
	return nil
}

// environment returns the defaults, overridden and extended by more.
func environment(home, endpoint string, more []string) []string {
	env := []string{"PATH=" + defaultPath, "HOME=" + home, "USER=agent", "LANG=C.UTF-8", "GLASSHOUSE_DOOR=" + endpoint}
	for _, kv := range more {
		name, _, _ := strings.Cut(kv, "=")
		env = slices.DeleteFunc(env, func(old string) bool { return strings.HasPrefix(old, name+"=") })
		env = append(env, kv)
	}
	return env
}
