package spawn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"glasshouse/internal/undo"
)

// Unconfined starts agents as processes of the host, without isolation. An agent has the files,
// the network, the processes and the privileges of the user that runs the daemon, which may
// be root. It can read the tokens of other agents and the daemon's data, stop
// glasshouse-agent, and evade every limit below. Use it only for agents that are as trusted
// as the daemon's user.
//
// An agent that does not evade them has a private environment, a private home that is
// removed afterwards, and limits if the host has cgroups. Its descendants are killed when
// it exits, when it is killed and when the daemon dies.
type Unconfined struct{ *host }

var _ Spawner = (*Unconfined)(nil)

// NewUnjailed returns a spawner. It first removes the remains of an earlier one.
func NewUnjailed(ctx context.Context, cfg Config) (*Unconfined, error) {
	h, err := newHost(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &Unconfined{h}, nil
}

// Name implements Spawner.
func (u *Unconfined) Name() string { return "process" }

// Probe implements Spawner.
func (u *Unconfined) Probe(context.Context) error { return u.checkAgent("spawn.Probe") }

// Agent implements Spawner.
func (u *Unconfined) Agent() string { return u.cfg.Agent }

// UnenforcedLimits implements Spawner.
func (u *Unconfined) UnenforcedLimits() map[string]string {
	lacks := u.lacks()
	if why, ok := lacks["memory"]; ok {
		lacks["memory"] = "the limit applies to each process of the agent, not to their sum: " + why
	}
	return lacks
}

// keeperTasks is the number of processes and threads reserved for glasshouse-agent.
const keeperTasks = 32

// Start implements Spawner. The agent sees the file system of the host. Workspace is only the
// default working directory, and ReadOnly is ignored.
func (u *Unconfined) Start(ctx context.Context, s Start) (_ *Process, err error) {
	const op = "spawn.Start"
	if err := s.check(op); err != nil {
		return nil, err
	}
	if err := u.checkAgent(op); err != nil {
		return nil, err
	}
	var undone undo.Stack
	defer func() { err = errors.Join(err, undone.Run()) }()
	home, err := u.makeHome(s.Files)
	if err != nil {
		return nil, err
	}
	clean := func() error { return os.RemoveAll(home) }
	undone.Push("remove the home", clean)

	in := &inheritedFiles{}
	undone.Push("close files", func() error { in.close(); return nil })
	ready, readyFD, err := in.addStatusPipe()
	if err != nil {
		return nil, err
	}
	undone.Push("close", ready.Close)
	args := []string{"glasshouse-agent", "keep"}
	env := environment(home, "unix://"+s.Socket, s.Env)
	if len(s.Token) > 0 {
		fd, err := in.addSecret(s.Token)
		if err != nil {
			return nil, err
		}
		args = append(args, "-token-fd", strconv.Itoa(fd))
		env = append(env, "GLASSHOUSE_TOKEN_FD="+strconv.Itoa(fd))
	}
	life, lifeFD, err := in.addLifeline()
	if err != nil {
		return nil, err
	}
	undone.Push("close", life.Close)
	args = append(args, "-ready-fd", strconv.Itoa(readyFD), "-lifeline-fd", strconv.Itoa(lifeFD))
	group, err := u.makeGroup(s.Limits, keeperTasks)
	if err != nil {
		return nil, err
	}
	if _, lacking := u.lacks()["memory"]; lacking && s.Limits.Memory > 0 {
		args = append(args, "-data", strconv.FormatInt(s.Limits.Memory, 10))
	}
	cmd := &exec.Cmd{
		Path: u.cfg.Agent, Args: append(append(args, "--"), s.Argv...), Env: env, Dir: s.Cwd,
		ExtraFiles: in.files, SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if cmd.Dir == "" {
		cmd.Dir = s.Workspace
	}
	if cmd.Dir == "" {
		cmd.Dir = home
	}
	undone.Keep() // l.run releases the resources
	l := &launch{start: s, cwd: cmd.Dir, cmd: cmd, group: group, ready: ready, lifeline: life, childFiles: in.files, clean: clean}
	return l.run(ctx)
}

// makeHome creates a home with the given files.
func (u *Unconfined) makeHome(files map[string][]byte) (string, error) {
	home, err := os.MkdirTemp(u.cfg.Dir, "home-")
	if err != nil {
		return "", fmt.Errorf("create a home for the agent: %w", err)
	}
	for name, data := range files {
		at := filepath.Join(home, name)
		err := os.MkdirAll(filepath.Dir(at), 0o700)
		if err == nil {
			err = os.WriteFile(at, data, 0o600)
		}
		if err != nil {
			return "", errors.Join(fmt.Errorf("write files to the agent's home: %w", err), os.RemoveAll(home))
		}
	}
	return home, nil
}
