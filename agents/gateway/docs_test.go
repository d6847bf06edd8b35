package gateway

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"glasshouse/agents/run"
	"glasshouse/jail"
	"glasshouse/policy"
)

// docs/reference/defaults.md has the limits, the level and the retention of agent runs.
func TestDocumentedAgentDefaults(t *testing.T) {
	data, err := os.ReadFile("../../docs/reference/defaults.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	l := withAgentLimits(jail.Limits{})
	for _, row := range []string{
		fmt.Sprintf("\n| agent run in a jail | %d | %d | %d | %d |", l.MemoryMB, l.DiskMB, l.MaxPIDs, jail.DefaultLimits.CPUShares),
		fmt.Sprintf("\n| agent run on the host (spawners `bwrap` and `process`) | %d | – | %d | – |", agentMemoryMB, agentPIDs),
		fmt.Sprintf(", schedules, webhooks | %d, `gateway.level` |\n", levelOf(Agent{})),
		fmt.Sprintf("\n| automatic checkpoints of a run | the newest %d |", defaultSaves.Keep),
		fmt.Sprintf("\n| jails of ended agent runs | the newest %d, ", New(Config{}).cfg.Keep),
	} {
		if !strings.Contains(text, row) {
			t.Errorf("docs/reference/defaults.md has no row %q", row)
		}
	}
}

// Every agent's jail gets the limits of agents, except for those that its spec sets.
func TestJailOfRunHasAgentLimits(t *testing.T) {
	env := newTestEnv(t)
	env.jails.script("true", func(*process) int { return 0 })
	env.open()
	for _, c := range []struct {
		spec *jail.Spec
		want jail.Limits
	}{
		{nil, jail.Limits{MemoryMB: agentMemoryMB, DiskMB: agentDiskMB, MaxPIDs: agentPIDs}},
		{&jail.Spec{Limits: jail.Limits{MemoryMB: 300, CPUShares: 512}}, jail.Limits{CPUShares: 512, MemoryMB: 300, DiskMB: agentDiskMB, MaxPIDs: agentPIDs}},
	} {
		r := env.awaitState(env.order("s", "true", Agent{Preset: "shell", Jail: c.spec}).ID, run.Done)
		j, err := env.jails.Get(t.Context(), r.Jail)
		if err != nil || j.Spec.Limits != c.want {
			t.Errorf("jail of a run with %+v has the limits %+v, %v, want %+v", c.spec, j.Spec.Limits, err, c.want)
		}
	}
	if levelOf(Agent{}) != policy.Intelligent {
		t.Errorf("level of an agent without one = %d", levelOf(Agent{}))
	}
}
