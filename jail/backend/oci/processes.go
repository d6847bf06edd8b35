package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"glasshouse/fault"
	"glasshouse/host/process"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
)

var _ jail.ProcessLister = (*instance)(nil)

// Processes implements jail.ProcessLister.
func (i *instance) Processes(context.Context) ([]jail.Process, error) {
	if i.backend.kind.sentry {
		return nil, fault.Cannot("oci.Processes", "the host cannot see processes inside gVisor", "create the jail with the runtime runc or crun")
	}
	pids, err := i.cgroup.PIDs()
	if err != nil {
		return nil, err
	}
	var r record
	err = base.ReadRecord(i.layout.record(), &r)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the jail was stopped
	}
	if err != nil {
		return nil, fmt.Errorf("list the processes of jail %s: %w", i.plan.ID, err)
	}
	found, err := process.List(pids, i.PID(), i.cgroup.Path())
	if err != nil {
		return nil, fmt.Errorf("list the processes of jail %s: %w", i.plan.ID, err)
	}
	all := make([]jail.Process, 0, len(found))
	for _, p := range found {
		q := jail.Process{
			PID: p.PID, PPID: p.PPID, Started: p.Began, StartTicks: p.Start, Comm: p.Comm, Exe: p.Exe, Cwd: p.Cwd,
			Argv: p.Argv, Env: p.Env, Truncated: p.Cut, Inherited: p.Start <= r.Restored,
		}
		for _, s := range p.Sockets {
			q.Sockets = append(q.Sockets, jail.Socket(s))
		}
		all = append(all, q)
	}
	return all, nil
}
