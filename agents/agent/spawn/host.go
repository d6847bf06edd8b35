package spawn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/id"
)

// A host holds the state that both spawners share.
type host struct {
	cfg     Config
	tree    *cgroup.Tree // nil: no usable cgroups
	treeErr error        // reason why tree is nil
}

// newHost returns a host after it has removed the agents and files of an earlier daemon.
func newHost(ctx context.Context, cfg Config) (*host, error) {
	h := &host{cfg: cfg}
	if cfg.Log == nil {
		h.cfg.Log = slog.New(slog.DiscardHandler)
	}
	open := cgroup.New
	if os.Geteuid() != 0 {
		open = cgroup.Delegated
	}
	h.tree, h.treeErr = open(cfg.CgroupPrefix)
	if h.treeErr != nil && !errors.Is(h.treeErr, fault.Unsupported) {
		return nil, h.treeErr
	}
	if h.treeErr != nil {
		h.tree = nil
		return h, h.clearDir()
	}
	left, err := h.tree.List()
	for _, name := range left {
		h.cfg.Log.Info("killing an agent of an earlier daemon", "cgroup", name)
		err = errors.Join(err, h.tree.Destroy(ctx, name))
	}
	return h, errors.Join(err, h.clearDir())
}

// clearDir creates Config.Dir or removes its contents.
func (h *host) clearDir() error {
	if err := os.MkdirAll(h.cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("create the directory of agents: %w", err)
	}
	entries, err := os.ReadDir(h.cfg.Dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(h.cfg.Dir, e.Name())))
	}
	if err != nil {
		return fmt.Errorf("remove the files of earlier agents: %w", err)
	}
	return nil
}

// lacks returns the limits that cgroups cannot enforce on this host, with the reasons.
func (h *host) lacks() map[string]string {
	lacks := map[string]string{}
	for _, what := range []string{"memory", "pids", "cpu"} {
		if h.tree == nil {
			lacks[what] = h.treeErr.Error()
		} else if why, ok := h.tree.Lacks()[what]; ok {
			lacks[what] = why
		}
	}
	return lacks
}

// makeGroup creates the cgroup of an agent. It returns nil if the host has no usable cgroups.
// others is the number of processes and threads in it that are not the agent's.
func (h *host) makeGroup(l Limits, others int64) (*cgroup.Cgroup, error) {
	if h.tree == nil {
		return nil, nil
	}
	limits := cgroup.Limits{MemoryBytes: l.Memory, CPUShares: l.CPU}
	if l.PIDs > 0 {
		limits.PIDs = l.PIDs + others
	}
	group, err := h.tree.Create(string(id.NewExec()), limits)
	if err != nil {
		return nil, fmt.Errorf("create a cgroup for the agent: %w", err)
	}
	return group, nil
}

// checkAgent returns fault.Unsupported unless glasshouse-agent is an executable file.
func (h *host) checkAgent(op string) error {
	st, err := os.Stat(h.cfg.Agent)
	if err == nil && (!st.Mode().IsRegular() || st.Mode().Perm()&0o111 == 0) {
		err = fmt.Errorf("%s is not an executable file", h.cfg.Agent)
	}
	if err != nil {
		return &fault.Error{Op: op, Kind: fault.Unsupported, Err: fmt.Errorf("glasshouse-agent is missing: %w", err), Remedy: "build glasshouse with make build, which embeds glasshouse-agent"}
	}
	return nil
}

// Close removes the cgroups of the spawner. All agents must have ended.
func (h *host) Close() error {
	if h.tree == nil {
		return nil
	}
	return h.tree.Remove()
}
