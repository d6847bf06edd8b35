package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"

	"glasshouse/agents/gateway"
	"glasshouse/capability/mcp"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
	"glasshouse/observe/eventlog"
)

// agentSource is the data that an agent reads over the Model Context Protocol. It does not
// restrict access to the agent's own jail; mcp.Of does.
type agentSource struct {
	d *Daemon
	c gateway.Caller
}

func shownJail(j jail.Jail) mcp.Jail {
	return mcp.Jail{ID: string(j.ID), Name: j.Spec.Name, State: string(j.State), Image: j.Spec.Rootfs.OCI}
}

func (a agentSource) Jails(ctx context.Context) ([]mcp.Jail, error) {
	if a.c.Jail == "" {
		return nil, nil
	}
	j, err := a.d.jails.Get(ctx, a.c.Jail)
	if err != nil {
		return nil, err
	}
	return []mcp.Jail{shownJail(j)}, nil
}

func (a agentSource) Jail(ctx context.Context, jid string) (json.RawMessage, error) {
	j, err := a.d.jails.Get(ctx, id.Jail(jid))
	if err != nil {
		return nil, err
	}
	// The environment and the mounts are omitted: they may contain secrets and host paths.
	return json.Marshal(struct {
		mcp.Jail
		MemoryMB int64  `json:"memory_mb,omitempty"`
		DiskMB   int64  `json:"disk_mb,omitempty"`
		Network  string `json:"network"`
		Level    int    `json:"autonomy_level"`
	}{shownJail(j), j.Spec.Limits.MemoryMB, j.Spec.Limits.DiskMB, string(j.Spec.Network), int(a.c.Level)})
}

func (a agentSource) Events(ctx context.Context, jid string, n int) ([]json.RawMessage, error) {
	log, err := a.d.observers.Log(ctx, id.Jail(jid))
	if err != nil {
		return nil, err
	}
	cursor, err := log.Read(ctx, eventlog.Query{Tail: n})
	if err != nil {
		return nil, err
	}
	var all []json.RawMessage
	for {
		line, err := cursor.Next(nil)
		switch {
		case errors.Is(err, io.EOF):
			return all, cursor.Close()
		case err != nil:
			return nil, errors.Join(err, cursor.Close())
		}
		all = append(all, bytes.Clone(line))
	}
}

func shownSnapshot(s snapshot.Snapshot) mcp.Snapshot {
	return mcp.Snapshot{ID: string(s.ID), Jail: string(s.Jail.ID), Name: s.Name, Memory: s.Memory}
}

func (a agentSource) Snapshots(ctx context.Context, jid string) ([]mcp.Snapshot, error) {
	all, err := a.d.snapshots.List(ctx, snapshot.ListOptions{Jail: id.Jail(jid)})
	var shown []mcp.Snapshot
	for _, s := range all {
		shown = append(shown, shownSnapshot(s))
	}
	return shown, err
}

func (a agentSource) Snapshot(ctx context.Context, sid string) (json.RawMessage, error) {
	s, err := a.d.snapshots.Get(ctx, id.Snapshot(sid))
	if err != nil {
		return nil, err
	}
	return json.Marshal(shownSnapshot(s))
}

// Skills returns the skills that were given to the agent, or all skills if none were named.
func (a agentSource) Skills(ctx context.Context) ([]mcp.Skill, error) {
	given, err := a.d.gateway.Skills(ctx, a.c)
	if err != nil {
		return nil, err
	}
	var all []mcp.Skill
	for _, rec := range a.d.registry.Skills() {
		_, s, _, err := a.d.registry.Skill(rec.Name)
		if err != nil || len(given) > 0 && !slices.Contains(given, rec.Name) {
			continue // a skill that is currently rejected is not offered
		}
		all = append(all, mcp.Skill{Name: rec.Name, Description: s.Description})
	}
	return all, nil
}

func (a agentSource) Skill(_ context.Context, name string) (string, error) {
	rendered, _, err := taught{a.d.registry}.Skill(name)
	if err != nil {
		return "", err
	}
	return rendered.Text, nil
}
