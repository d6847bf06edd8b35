package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"glasshouse/agents/agent"
	"glasshouse/agents/agent/spawn"
	"glasshouse/agents/run"
	"glasshouse/id"
	"glasshouse/jail/init/protocol"
)

// runOutside runs an agent outside of jails. The agent ends with this process, and restarts
// from its last checkpoint.
func (sv *supervisor) runOutside(ctx context.Context, sup *supervision, r run.Run, ag Agent, started func()) (err error) {
	spawner := sv.cfg.Spawners[ag.Spawner]
	token := ""
	if ag.Spawner == InBwrap { // the shim in the sandbox presents it; any process of the host could read it
		token = rand.Text()
	}
	rules, err := sv.policySpec(ag)
	if err != nil {
		return err
	}
	if err := sv.cfg.Policy.GovernRun(ctx, r.ID, rules, workspace); err != nil {
		return fmt.Errorf("apply the policy to run %s: %w", r.ID, err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	socket, stop, err := sv.listenUnix(ctx, r.ID, token, func() { cancel(errEndpointClosed) })
	if err != nil {
		return err
	}
	defer stop()
	defer func() {
		if errors.Is(context.Cause(ctx), errEndpointClosed) {
			err = errEndpointClosed // instead of the errors that it caused
		}
	}()
	endpoint := ""
	if ag.Spawner == InProcess {
		endpoint = "unix://" + socket
	}
	p, l, err := sv.launchConfig(r, ag, endpoint, workspace)
	if err != nil {
		return err
	}
	files := map[string][]byte{}
	for _, f := range l.Files {
		rel, err := filepath.Rel(home, f.Path)
		if err == nil && filepath.IsLocal(rel) {
			files[rel] = f.Data
		}
	}
	if p.Name == "builtin" {
		l.Argv[0] = spawner.Agent()
	}
	var output agentOutput
	var outputMu sync.Mutex
	start := spawn.Start{
		Argv: l.Argv, Env: sv.hostEnv(l.Env, r), Files: files, Socket: socket, Token: []byte(token),
		Stdout: outputWriter{&output, &outputMu, protocol.Stdout}, Stderr: outputWriter{&output, &outputMu, protocol.Stderr}, Limits: spawn.Limits{Memory: agentMemoryMB << 20, PIDs: agentPIDs},
	}
	for what := range spawner.UnenforcedLimits() {
		switch what { // glasshouse doctor reports limits that this host cannot enforce
		case "memory":
			start.Limits.Memory = 0
		case "pids":
			start.Limits.PIDs = 0
		}
	}
	if l.Stdin != nil {
		start.Stdin = bytes.NewReader(l.Stdin)
	}
	if l.Protocol == agent.ACP {
		started()
		return sv.converseOutside(ctx, sup, r, ag, l, spawner, start)
	}
	proc, err := spawner.Start(ctx, start)
	if err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	defer func() {
		proc.Kill()
		proc.Wait()
	}()
	sup.activity.recordHeartbeat()
	sv.releaseOnHeartbeat(ctx, sup, ag, started)
	return sv.waitOutside(ctx, sup, r, ag, proc, &output)
}

// An outputWriter collects one stream of an agent.
type outputWriter struct {
	p  *agentOutput
	mu *sync.Mutex // guards p, which both streams share
	s  protocol.Stream
}

func (p outputWriter) Write(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.p.add(p.s, data)
	return len(data), nil
}

// hostEnv returns an agent's environment without the paths of a jail. The spawner sets its
// own.
func (sv *supervisor) hostEnv(env []string, r run.Run) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return name == "HOME" || name == "PATH" || name == "GLASSHOUSE_DOOR" || strings.HasPrefix(name, "XDG_")
	})
	return append(env, "SANDBOX_ID="+string(r.Jail))
}

// waitOutside waits until an agent outside of jails ends or its run stops being active.
func (sv *supervisor) waitOutside(ctx context.Context, sup *supervision, r run.Run, ag Agent, proc *spawn.Process, output *agentOutput) error {
	tick := time.NewTicker(recheckInterval)
	defer tick.Stop()
	for {
		select {
		case <-proc.Done():
			exit, err := proc.Wait()
			if err != nil {
				return fmt.Errorf("wait for the agent: %w", err)
			}
			if exit.Limit != "" {
				return errEnded{"the agent reached its limit of " + exit.Limit}
			}
			return sv.handleExit(ctx, r, ag, exit.Code, "", output) // both streams are closed
		case <-sup.moved:
			if on, err := sv.shouldContinue(ctx, r.ID); err != nil || !on {
				sv.terminateProcess(ctx, proc)
				return err
			}
		case <-tick.C:
			if on, err := sv.shouldContinue(ctx, r.ID); err != nil || !on {
				sv.terminateProcess(ctx, proc)
				return err
			}
		case why := <-sup.restart:
			return errEnded{why}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// terminateProcess sends SIGTERM to an agent and waits up to terminateTimeout until it exits.
func (sv *supervisor) terminateProcess(ctx context.Context, proc *spawn.Process) {
	if proc.Signal(syscall.SIGTERM) != nil {
		return
	}
	select {
	case <-proc.Done():
	case <-time.After(terminateTimeout):
	case <-ctx.Done():
	}
}

// An announcedListener calls shut before it is closed. An agent that does not find the socket is then
// known to have failed because of that, and is started by the next daemon.
type announcedListener struct {
	net.Listener
	shut func()
}

func (l *announcedListener) Close() error {
	l.shut()
	return l.Listener.Close()
}

// listenUnix serves the endpoint of one agent on a Unix socket outside of jails until stop is
// called. It calls shut when the endpoint is closed.
func (sv *supervisor) listenUnix(ctx context.Context, r id.Run, token string, shut func()) (path string, stop func(), err error) {
	if err := os.MkdirAll(sv.cfg.Dir, 0o711); err != nil {
		return "", nil, fmt.Errorf("create the directory of the agents' sockets: %w", err)
	}
	path = filepath.Join(sv.cfg.Dir, string(r)+".sock")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", nil, fmt.Errorf("remove the previous socket of run %s: %w", r, err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return "", nil, fmt.Errorf("listen for the agent of run %s: %w", r, err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		return "", nil, errors.Join(err, l.Close())
	}
	l = &announcedListener{l, shut}
	served := make(chan struct{})
	go func() {
		defer close(served)
		defer shut()
		identify := func(ctx context.Context) (Caller, error) {
			c, err := sv.callerOf(ctx, r)
			c.Token = token
			return c, err
		}
		if err := sv.cfg.Serve(l, identify); err != nil && ctx.Err() == nil {
			sv.cfg.Log.Debug("the endpoint of an agent was closed", "run", r, "err", err)
		}
	}()
	return path, func() {
		l.Close()
		<-served
		os.Remove(path)
	}, nil
}
