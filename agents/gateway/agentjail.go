package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"glasshouse/agents/agent"
	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/init/protocol"
	"glasshouse/policy"
)

// Paths inside the jail of an agent, unless the jail's spec overrides them.
const (
	workspace = "/workspace"
	home      = "/home/agent"
	agentPath = "/usr/local/bin/glasshouse-agent"
)

// defaultPolicy applies to agents for which the user gave no policy. It allows actions inside the
// jail and asks for all actions that reach beyond it, except for calls of the capabilities of the
// agent's skills. The last matching rule wins.
const defaultPolicy = `{
  "permission": {
    "read": "allow", "edit": %[1]q, "bash": {"*": %[1]q, "sudo *": "deny"},
    "glob": "allow", "grep": "allow", "list": "allow", "task": "allow", "todowrite": "allow", "todoread": "allow",
    "external_directory": %[1]q, "doom_loop": "ask",
    "call": {"*": "ask", "memory.*": "allow"%[2]s}, "create_task": "allow", "coordinate_sibling": "allow",
    "request_resources": "ask", "secret": "ask", "webfetch": "ask", "connect": "ask"
  }
}`

// ensureJail returns the running jail of a run: the assigned one, the one that was created for
// it, or a new one.
func (sv *supervisor) ensureJail(ctx context.Context, r run.Run, a Agent) (jail.Jail, error) {
	if r.Recovery != nil {
		return sv.replaceLostJail(ctx, r, a)
	}
	if r.Jail != "" {
		j, err := sv.cfg.Jails.Get(ctx, r.Jail)
		if err == nil {
			return sv.ensureRunning(ctx, j)
		}
		if !errors.Is(err, fault.NotFound) {
			return jail.Jail{}, fmt.Errorf("get the jail of run %s: %w", r.ID, err)
		}
		if s, serr := sv.cfg.Runs.Session(ctx, r.Session); serr == nil && s.Jail == r.Jail {
			return jail.Jail{}, fmt.Errorf("get the jail of the session: %w", err)
		}
		return sv.replaceLostJail(ctx, r, a)
	}
	// An earlier daemon may have created the jail, and may have been killed before it stored the
	// jail with the run.
	created, err := sv.cfg.Jails.List(ctx, jail.ListOptions{Label: map[string]string{LabelRun: string(r.ID)}})
	if err != nil {
		return jail.Jail{}, fmt.Errorf("list the jails of run %s: %w", r.ID, err)
	}
	var j jail.Jail
	if len(created) > 0 {
		j, err = sv.ensureRunning(ctx, created[len(created)-1])
		if err != nil {
			return jail.Jail{}, fmt.Errorf("start the jail of run %s: %w", r.ID, err)
		}
	} else {
		spec, err := sv.jailSpec(ctx, r, a)
		if err != nil {
			return jail.Jail{}, err
		}
		j, err = sv.createJail(ctx, spec, r.ID)
		if err != nil {
			return jail.Jail{}, fmt.Errorf("create a jail for the agent: %w", err)
		}
	}
	if _, err := sv.cfg.Runs.Update(ctx, r.ID, func(d *run.Details) { d.Jail = j.ID }); err != nil {
		return j, fmt.Errorf("store jail %s with run %s: %w", j.ID, r.ID, err)
	}
	return j, nil
}

// createJail creates the jail of a run. Its name is that of the preset or of the configuration,
// which jails of other runs may have; then a number follows, or the run's ID.
func (sv *supervisor) createJail(ctx context.Context, spec jail.Spec, rid id.Run) (jail.Jail, error) {
	name := spec.Name
	for n := 2; ; n++ {
		j, err := sv.cfg.Jails.Create(ctx, spec)
		if n > 10 || !errors.Is(err, fault.Conflict) || fault.FieldOf(err) != "name" {
			return j, err
		}
		suffix := fmt.Sprintf("-%d", n)
		if n == 10 {
			suffix = "-" + string(rid[2:])
		}
		spec.Name = strings.ToValidUTF8(name[:min(len(name), jail.MaxName-len(suffix))], "") + suffix
	}
}

// ensureRunning resumes or starts a jail unless it runs. Other runs that share the jail may do the
// same at the same time. A jail that a person has paused stays paused.
func (sv *supervisor) ensureRunning(ctx context.Context, j jail.Jail) (jail.Jail, error) {
	running, err := j, error(nil)
	switch j.State {
	case jail.Running:
		return j, nil
	case jail.Paused:
		if j.PausedBy != "" {
			return j, errNotYet{&fault.Error{Op: "gateway.ensureRunning", On: string(j.ID), Kind: fault.Conflict,
				Err: errors.New("the jail was paused by " + j.PausedBy), Remedy: "resume it with glasshouse jail resume " + string(j.ID)}}
		}
		running, err = sv.cfg.Jails.Resume(ctx, j.ID)
	default:
		running, err = sv.cfg.Jails.Start(ctx, j.ID)
	}
	if errors.Is(err, fault.Conflict) {
		if now, gerr := sv.cfg.Jails.Get(ctx, j.ID); gerr == nil && now.State == jail.Running {
			return now, nil
		}
	}
	return running, err
}

// resumeJail resumes the jail that the tools of an agent outside of jails use, if it is paused:
// freeze may have paused it. "" is none.
func (sv *supervisor) resumeJail(ctx context.Context, jid id.Jail) error {
	if jid == "" {
		return nil
	}
	j, err := sv.cfg.Jails.Get(ctx, jid)
	if errors.Is(err, fault.NotFound) {
		return nil // its tools report this
	}
	if err != nil {
		return fmt.Errorf("get jail %s: %w", jid, err)
	}
	if j.State == jail.Paused {
		if _, err := sv.ensureRunning(ctx, j); err != nil {
			return fmt.Errorf("resume jail %s: %w", jid, err)
		}
	}
	return nil
}

// jailSpec returns the spec of the jail that is created for a run.
func (sv *supervisor) jailSpec(ctx context.Context, r run.Run, a Agent) (jail.Spec, error) {
	var s jail.Spec
	if a.Jail != nil {
		s = *a.Jail
		s.Trusted = a.Trusted
	}
	if s.Name == "" {
		s.Name = a.Preset
	}
	labels := map[string]string{LabelSession: r.Session, LabelRun: string(r.ID)}
	for k, v := range s.Labels {
		if labels[k] == "" {
			labels[k] = v
		}
	}
	s.Labels, s.Start, s.Creator = labels, true, r.Creator
	s.Limits = withAgentLimits(s.Limits)
	if s.Project() == "" {
		s.Cwd = workspace
	}
	var err error
	s.Policy, err = sv.policySpec(a)
	if err != nil {
		return s, err
	}
	s.Mounts = append(s.Mounts, jail.Mount{Source: sv.cfg.Program, Target: agentPath})
	s.GrantedMounts = append(s.GrantedMounts, filepath.Dir(sv.cfg.Program))
	return s, sv.addLayer(ctx, &s, r, a)
}

// policySpec returns the policy of an agent: the user's, or the default.
func (sv *supervisor) policySpec(a Agent) (json.RawMessage, error) {
	if a.Jail != nil && len(a.Jail.Policy) > 0 {
		if a.PolicyAgent == "" {
			return a.Jail.Policy, nil
		}
		return govern.Change(a.Jail.Policy, func(s *govern.Spec) error {
			if s.Policy != nil {
				s.Policy.Agent = a.PolicyAgent // applies also to questions that name no agent
			}
			return nil
		})
	}
	rules, err := sv.defaultRules(a)
	if err != nil {
		return nil, fmt.Errorf("build the default policy: %w", err)
	}
	return json.Marshal(govern.Spec{Policy: &govern.Policy{
		Files: []govern.File{{Name: "opencode.json", Text: rules}}, Match: policy.Last, Level: levelOf(a), Home: home,
	}})
}

// defaultRules returns the default permission file of an agent.
func (sv *supervisor) defaultRules(a Agent) (string, error) {
	var calls strings.Builder
	for _, name := range a.Skills {
		_, ids, err := sv.cfg.Caps.Skill(name)
		if err != nil {
			return "", err
		}
		for _, cid := range ids { // capability ids need no JSON escaping
			fmt.Fprintf(&calls, `, %q: "allow"`, cid)
		}
	}
	inside := policy.Allow
	if a.Spawner == InProcess { // nothing confines it
		inside = policy.Ask
	}
	return fmt.Sprintf(defaultPolicy, inside, calls.String()), nil
}

func levelOf(a Agent) policy.Level {
	if a.Level == 0 {
		return policy.Intelligent
	}
	return policy.Level(a.Level)
}

// Limits of the jail of an agent, unless its spec sets them, and of an agent process on the
// host. They suffice for the largest supported agent together with npm install and the build of a
// Node project: npm holds a package tree in memory and unpacks it while its archives are still
// in its cache, and each thread counts as a task of the pids cgroup controller.
const (
	agentMemoryMB = 2048
	agentDiskMB   = 4096
	agentPIDs     = 1024
)

func withAgentLimits(l jail.Limits) jail.Limits {
	l.MemoryMB, l.DiskMB, l.MaxPIDs = cmp.Or(l.MemoryMB, agentMemoryMB), cmp.Or(l.DiskMB, agentDiskMB), cmp.Or(l.MaxPIDs, agentPIDs)
	return l
}

// addLayer mounts the layer with an agent's programs, unless the root filesystem has them.
func (sv *supervisor) addLayer(ctx context.Context, s *jail.Spec, r run.Run, a Agent) error {
	p, l, err := sv.launchConfig(r, a, "", s.Project())
	if err != nil || p.Layer.Name == "" {
		return err
	}
	root, err := sv.cfg.Root(ctx, s.Rootfs)
	if err != nil {
		return fmt.Errorf("look for %s in the root filesystem: %w", l.Argv[0], err)
	}
	if agent.Detect(root, l.Argv[0]) != "" {
		return nil
	}
	if !p.Layer.Installed(sv.cfg.Layers) {
		if err := sv.cfg.Runs.Installing(ctx, r.ID, p.Layer.String()); err != nil {
			return fmt.Errorf("report the installation of %s: %w", a.Preset, err)
		}
	}
	dir, err := p.Layer.Build(ctx, sv.cfg.Layers)
	if err != nil {
		return fmt.Errorf("install the programs of %s: %w", a.Preset, err)
	}
	dir, err = filepath.EvalSymlinks(dir)
	if err != nil { // the granted path must be the mounted path
		return fmt.Errorf("install the programs of %s: %w", a.Preset, err)
	}
	s.Mounts = append(s.Mounts, jail.Mount{Source: dir, Target: p.Layer.Mount()})
	s.GrantedMounts = append(s.GrantedMounts, filepath.Dir(dir))
	return nil
}

// locate finds the programs of an agent in its jail.
func (sv *supervisor) locate(ctx context.Context, j id.Jail, l agent.Launch) (agent.Launch, error) {
	f, err := sv.cfg.Jails.Files(ctx, j)
	if err != nil {
		return l, fmt.Errorf("open the jail's files: %w", err)
	}
	defer f.Close()
	var statErr error
	found, err := l.Locate(func(name string) bool {
		ok, err := isProgram(ctx, f, name)
		statErr = errors.Join(statErr, err)
		return ok
	})
	if statErr != nil {
		return l, statErr
	}
	return found, err
}

// isProgram reports whether a path names an executable file. It follows symbolic links.
func isProgram(ctx context.Context, f jail.Files, name string) (bool, error) {
	const maxLinks = 40 // the limit of Linux: path_resolution(7)
	for range maxLinks {
		info, err := f.Stat(ctx, name)
		switch {
		case errors.Is(err, fault.Unavailable) || ctx.Err() != nil:
			return false, err
		case err != nil:
			return false, nil
		case info.Type != "symlink":
			return info.Type == "file" && info.Mode&0o111 != 0, nil
		case path.IsAbs(info.Target):
			name = info.Target
		default:
			name = path.Join(path.Dir(name), info.Target)
		}
	}
	return false, nil
}

// prepareJail writes the files that an agent needs into its jail and runs its preparation
// command.
func (sv *supervisor) prepareJail(ctx context.Context, j id.Jail, l agent.Launch) error {
	f, err := sv.cfg.Jails.Files(ctx, j)
	if err != nil {
		return fmt.Errorf("open the jail's files: %w", err)
	}
	defer f.Close()
	for _, dir := range []string{l.Cwd, home} {
		if err := f.Mkdir(ctx, dir, 0o755, true); err != nil {
			return fmt.Errorf("create the directory %s: %w", dir, err)
		}
	}
	for _, file := range l.Files {
		if _, err := f.Write(ctx, file.Path, bytes.NewReader(file.Data), protocol.WriteOptions{Mode: file.Mode, Parents: true}); err != nil {
			return fmt.Errorf("write %s: %w", file.Path, err)
		}
	}
	if len(l.Prepare) == 0 {
		return nil
	}
	_, st, err := sv.cfg.Jails.Exec(ctx, j, jail.ExecRequest{Argv: l.Prepare, Env: envMap(l.Env), Cwd: l.Cwd, Timeout: defaultCommandTimeout}, nil)
	if err != nil {
		return fmt.Errorf("run the preparation command %s: %w", l.Prepare[0], err)
	}
	out, err := sv.outputOf(ctx, j, st.ID)
	if err != nil {
		return fmt.Errorf("wait for the preparation command %s: %w", l.Prepare[0], err)
	}
	if out.ExitCode != 0 {
		return fault.Newf(fault.Unavailable, "gateway.prepareJail", string(j), "%s ended with exit code %d: %s", l.Prepare[0], out.ExitCode, out.Stderr)
	}
	return nil
}

// envMap converts NAME=VALUE strings to a map.
func envMap(env []string) map[string]string {
	m := make(map[string]string, len(env))
	for _, kv := range env {
		k, v, _ := strings.Cut(kv, "=")
		m[k] = v
	}
	return m
}
