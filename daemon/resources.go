package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"glasshouse/agents/autonomy"
	"glasshouse/agents/gateway"
	"glasshouse/fault"
)

// ceiling returns the limits up to which agents get resources without approval.
func (g *Gateway) ceiling() (autonomy.Limits, error) {
	if len(g.Ceiling) == 0 {
		return autonomy.Limits{}, nil
	}
	body, err := json.Marshal(g.Ceiling)
	if err != nil {
		return autonomy.Limits{}, fmt.Errorf("encode the setting gateway.ceiling: %w", err)
	}
	l, err := autonomy.ParseResources(body)
	if err != nil {
		return l, fault.Fieldf("config", "gateway.ceiling", "%w", err)
	}
	return l, nil
}

// openResources opens the resource grants of running jails and re-applies existing grants.
func (d *Daemon) openResources(ctx context.Context, host string) (*autonomy.Resources, error) {
	top, err := d.Config.Gateway.ceiling()
	if err != nil {
		return nil, err
	}
	has, err := d.capacity()
	if err != nil {
		return nil, fmt.Errorf("determine the host's resources: %w", err)
	}
	bounds := &gateway.ResourceLimiter{Jails: d.jails}
	r, err := autonomy.NewResources(ctx, d.work.Autonomy(), autonomy.ResourceConfig{
		Applier: bounds, Sampler: bounds, Host: host, Ceilings: autonomy.Ceilings{Capacity: has, WithoutApproval: top},
		Approve: d.gateway.ApproveResources,
		Record:  d.notes().recordLimits, Log: d.log.With("part", "resources"),
	})
	if err != nil {
		return nil, err
	}
	d.onClose(r.Close)
	return r, nil
}

// capacity returns the resources of the host.
func (d *Daemon) capacity() (autonomy.Limits, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return autonomy.Limits{}, fmt.Errorf("read the memory size of the host: %w", err)
	}
	disk, _, err := diskSize(filepath.Join(d.Config.Data, "jails"))
	if err != nil {
		return autonomy.Limits{}, fmt.Errorf("read the disk size of the host: %w", err)
	}
	return autonomy.Limits{
		CPU:    int64(runtime.NumCPU()) * 1000,
		Memory: int64(info.Totalram) * int64(info.Unit) >> 20,
		Disk:   max(1, disk>>20),
	}, nil
}
