package gateway

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	"glasshouse/agents/agent"
	"glasshouse/agents/autonomy"
	"glasshouse/fault"
	"glasshouse/jail"
)

// Spawners, the mechanisms that isolate an agent.
const (
	InJail    = "jail"    // a jail: observed, can be snapshotted
	InBwrap   = "bwrap"   // bubblewrap only: not observed
	InProcess = "process" // no isolation: a process of the host
)

// An Agent specifies which agent pursues a goal, and how it is isolated.
type Agent struct {
	Preset   string            `json:"preset,omitempty"`
	Model    string            `json:"model,omitempty"`
	Protocol string            `json:"protocol,omitempty"` // how the agent is driven: run or acp
	Spawner  string            `json:"spawner,omitempty"`
	Argv     []string          `json:"argv,omitempty"`
	Env      map[string]string `json:"env,omitempty"`
	Skills   []string          `json:"skills,omitempty"`

	// PolicyAgent names the agent of the permission files whose rules apply to the run. If it is
	// empty, the agent that the policy of the jail names applies, otherwise the default agent of
	// the files.
	PolicyAgent string `json:"policy_agent,omitempty"`

	Level int        `json:"level,omitempty"`
	Jail  *jail.Spec `json:"jail,omitempty"` // spec of the jail that is created for it
	Keep  bool       `json:"keep,omitempty"` // keep the jail after the run has ended

	// Trusted reports that the caller who requested the jail may read every directory of the
	// host, so that its workspace needs no permission check.
	Trusted bool `json:"trusted,omitempty"`

	Timers   *autonomy.Timers  `json:"timers,omitempty"`
	Autosave *AutosaveSettings `json:"saves,omitempty"`
}

// withDefaults returns a with its empty fields set from b.
func (a Agent) withDefaults(b Agent) Agent {
	if a.Preset == "" {
		a.Preset = b.Preset
		if len(a.Argv) == 0 {
			a.Argv = b.Argv
		}
		a.Protocol = cmp.Or(a.Protocol, b.Protocol)
	}
	a.Protocol = cmp.Or(a.Protocol, string(agent.Run))
	a.Model, a.Spawner, a.Level = cmp.Or(a.Model, b.Model), cmp.Or(a.Spawner, b.Spawner), cmp.Or(a.Level, b.Level)
	if a.Skills == nil {
		a.Skills = b.Skills
	}
	if len(b.Env) > 0 {
		env := maps.Clone(b.Env)
		maps.Copy(env, a.Env)
		a.Env = env
	}
	if a.Jail == nil {
		a.Jail, a.Trusted = b.Jail, b.Trusted
	}
	if a.Timers == nil {
		a.Timers = b.Timers
	}
	if a.Autosave == nil {
		a.Autosave = b.Autosave
	}
	return a
}

// check returns an error if an agent does not exist or cannot run on this host.
func (co *core) check(a Agent) error {
	const op = "gateway.check"
	p, err := agent.Find(a.Preset)
	if err != nil {
		return err
	}
	if a.Protocol == string(agent.Interactive) || !slices.Contains(p.Protocols, agent.Protocol(a.Protocol)) {
		return fault.Fieldf(op, "agent.protocol", "agent %s does not support the protocol %.40q", p.Name, a.Protocol)
	}
	if a.Protocol == string(agent.ACP) && a.Preset == "shell" && len(a.Argv) == 0 {
		return fault.Fieldf(op, "agent.argv", "name the program that speaks the Agent Client Protocol")
	}
	switch a.Spawner {
	case InJail:
	case InBwrap, InProcess:
		s := co.cfg.Spawners[a.Spawner]
		if s == nil {
			return fault.Cannot(op, "the spawner "+a.Spawner+" is not configured on this host", "use the spawner jail")
		}
		if err := s.Probe(co.ctx); err != nil {
			return err
		}
	default:
		return fault.Fieldf(op, "agent.spawner", "%.40q is not one of jail, bwrap, process", a.Spawner)
	}
	if a.Preset == "shell" && len(a.Argv) == 0 {
		return nil // the goal is the command
	}
	for _, s := range a.Skills {
		if _, _, err := co.cfg.Caps.Skill(s); err != nil {
			return err
		}
	}
	return nil
}

// environment returns the agent's own variables as sorted NAME=VALUE strings.
func (a Agent) environment() []string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(a.Env)) {
		all = append(all, k+"="+a.Env[k])
	}
	return all
}

// agentOf decodes the agent of a run and applies the defaults.
func (co *core) agentOf(raw json.RawMessage) (Agent, error) {
	var a Agent
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &a); err != nil {
			return a, fault.New(fault.Invalid, "gateway.agentOf", "agent", err)
		}
	}
	return a.withDefaults(co.cfg.Default), nil
}
