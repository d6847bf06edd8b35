package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
)

func (c *command) goal() *cobra.Command {
	var r wire.StartRun
	var agent wire.RunAgent
	var budget, env []string
	var until, at, parent, workspace, rootfs string
	var rules policyFlags
	var limits limitFlags
	var detach bool
	cmd := &cobra.Command{
		Use: "goal TEXT [-- ARG…]", Short: "Start an agent run for a goal, now or by a schedule", Args: cobra.MinimumNArgs(1),
		Long: `Start an agent run for a goal. The agent works in its own jail, with the capabilities
of its skills and within its policy, until the goal is reached or a budget limit is
reached. The command shows the run live. With --detach, with a schedule, or after an
interrupt, the run continues in the background.

With --workspace, the agent works on a copy-on-write view of a host directory. Use
glasshouse diff to show its changes and glasshouse apply to apply them.

The dimensions of --budget are steps, llm-tokens, cost-micros, wall-clock-ms,
sandbox-cpu-ms, network-bytes and storage-bytes. --policy takes permission files
(opencode.json) and decision frameworks (AGENTS.md). --until takes the id of a
capability that must succeed, or a JSON condition; by default the agent decides when
the run is done.`,
		Example: `  glasshouse goal "fix the failing test" --agent opencode -C .
  glasshouse goal "python3 -m unittest" --agent shell -C .
  glasshouse goal "npm test" --agent shell -C . --rootfs oci:node:24-bookworm
  glasshouse goal "review src/" --policy opencode.json --policy-agent reviewer -C .
  glasshouse goal "check the feed" --schedule "0 0 * * * *"
  glasshouse goal "say hello" --agent shell -- echo hello
  glasshouse goal "say hello" --agent shell --protocol acp -- my-agent --acp`,
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Goal, agent.Argv = args[0], args[1:]
			var err error
			r.Budget, err = parseBudget(budget)
			if err != nil {
				return err
			}
			agent.Env, err = keyValues(env, c.env.Getenv)
			if err != nil {
				return err
			}
			r.Until, err = predicate(until)
			if err != nil {
				return err
			}
			if at != "" {
				t, err := parseStart("at", at, time.Now())
				if err != nil {
					return err
				}
				r.NextRunAt = new(t.UTC())
			}
			agent.Jail, err = goalJail(workspace, rootfs, rules, limits, agent.Level)
			if err != nil {
				return err
			}
			r.Parent, r.Agent = id.Run(parent), &agent
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			run, err := cl.StartRun(cmd.Context(), r)
			if err != nil {
				return err
			}
			if detach || run.State == "scheduled" || c.json {
				return c.print(run, func(w io.Writer) { showRun(w, run) })
			}
			return c.followRun(cmd, cl, run)
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&agent.Preset, "agent", "a", "", "builtin, claude, codex, opencode, gemini or shell")
	fs.StringVar(&agent.Model, "model", "", "model of the agent (default: the daemon's)")
	fs.StringVar(&agent.Protocol, "protocol", "", "run (command line) or acp (default run)")
	fs.StringVar(&agent.Spawner, "spawner", "", "spawner: jail, bwrap or process (default: the daemon's)")
	fs.StringSliceVar(&agent.Skills, "skill", nil, "skill of the agent, with its capabilities as tools")
	fs.IntVar(&agent.Level, "level", 0, "autonomy level: 1 guided, 2 intelligent, 3 full")
	fs.StringArrayVarP(&env, "env", "e", nil, "KEY=VALUE, or KEY to take the value from here")
	fs.StringVarP(&workspace, "workspace", "C", "", "host directory to work on, copy-on-write")
	fs.StringArrayVar(&rules.files, "policy", nil, "permission file or decision framework; may be repeated")
	fs.StringVar(&agent.PolicyAgent, "policy-agent", "", "agent in the permission files whose rules apply")
	fs.StringVar(&rootfs, "rootfs", "", "debian:SUITE, dir:PATH, oci:IMAGE, nix:PROFILE or host")
	limits.add(cmd, "as for agents")
	fs.BoolVar(&agent.Keep, "keep", false, "keep the jail after the run")
	fs.StringVar(&r.Session, "session", "", "session of the run (default: a new one)")
	fs.StringVar(&r.Schedule, "schedule", "", "cron expression, @hourly or @every 10m")
	fs.StringVar(&r.TimeZone, "tz", "", "time zone of the schedule (default UTC)")
	fs.StringVar(&r.Missed, "missed", "", "policy for missed due times: skip, once or all (default once)")
	fs.StringVar(&r.Overlap, "overlap", "", "overlapping runs: skip, queue or allow (default skip)")
	fs.StringVar(&at, "at", "", "start: a time or a delay (10m); with a schedule, the earliest")
	fs.StringSliceVar(&budget, "budget", nil, "limit DIMENSION=N, such as steps=50; may be repeated")
	fs.StringVar(&r.OnExceed, "on-exceed", "", "action at a limit: pause or stop (default pause)")
	fs.StringVar(&until, "until", "", "completion test: JSON or capability id (default: the agent)")
	fs.StringVar(&parent, "parent", "", "parent run")
	fs.BoolVarP(&detach, "detach", "d", false, "do not wait for the run")
	return cmd
}

// goalJail describes the jail to create for an agent. It returns nil if no flag describes one.
func goalJail(workspace, rootfs string, rules policyFlags, limits limitFlags, level int) (*wire.CreateJail, error) {
	if workspace == "" && rootfs == "" && len(rules.files) == 0 && limits == (limitFlags{}) {
		return nil, nil
	}
	var j wire.CreateJail
	var err error
	j.Rootfs, err = parseRootfs(rootfs)
	if err != nil {
		return nil, err
	}
	j.Limits, err = limits.request()
	if err != nil {
		return nil, err
	}
	if workspace != "" {
		dir, err := filepath.Abs(workspace)
		if err != nil {
			return nil, err
		}
		j.Workspace = &wire.Workspace{Source: dir}
	}
	if len(rules.files) == 0 {
		return &j, nil
	}
	rules.level = cmp.Or(level, 2) // the daemon's default level
	j.Policy, err = rules.request()
	return &j, err
}

// predicate converts the value of --until.
func predicate(s string) (json.RawMessage, error) {
	switch {
	case s == "":
		return nil, nil
	case s == "manual":
		return json.RawMessage(`"manual"`), nil
	case strings.HasPrefix(s, "{"), strings.HasPrefix(s, `"`):
		if !json.Valid([]byte(s)) {
			return nil, usagef("--until %q is not JSON", s)
		}
		return json.RawMessage(s), nil
	}
	return json.Marshal(map[string]string{"capability": s})
}

// stopTimeout limits the wait for a jail to stop before the user can access its files.
const stopTimeout = 30 * time.Second

// followRun prints the progress of a run until the run ends. Unless the jail is kept, it also
// waits until the jail has stopped, so that its changes can be applied.
func (c *command) followRun(cmd *cobra.Command, cl *client.Client, run wire.Run) error {
	fmt.Fprintf(c.env.Stderr, "%s in session %s\n", run.ID, text.Visible(run.Session))
	p := c.runProgress(run)
	defer func() { p.end() }()
	shown := int64(0) // the newest decision
	for e, err := range cl.RunEvents(cmd.Context(), run.Session, 0) {
		if err != nil {
			return lostRun(cmd.Context(), run.ID, err)
		}
		if e.Run != run.ID {
			continue
		}
		if mayUpdateRun(e, run) {
			var now wire.Run
			now, err = cl.Run(cmd.Context(), run.ID)
			if err == nil {
				run = now
			}
		}
		var calls []string
		if err == nil && mayFollowToolCalls(e) {
			calls, shown, err = toolCalls(cmd.Context(), cl, run, shown)
		}
		p.end()
		for _, line := range calls {
			fmt.Fprintln(c.env.Stderr, line)
		}
		if line := runEventLine(e); line != "" {
			fmt.Fprintln(c.env.Stderr, line)
		}
		if err != nil {
			return lostRun(cmd.Context(), run.ID, err)
		}
		if isEnded(run.State) {
			if run.Jail != "" && !run.Agent.Keep {
				p = c.progress(func(context.Context) string { return "stopping the jail" })
				awaitStopped(cmd.Context(), cl, run.Jail)
				p.end()
			}
			return c.runEnded(run)
		}
		p = c.runProgress(run)
	}
	return cmd.Context().Err()
}

// mayUpdateRun reports whether an event may belong to a change of the state or the jail of its run.
// Steps and messages, which are most of the events, change neither. Only the creation of a run's
// jail has no event.
func mayUpdateRun(e wire.RunEvent, r wire.Run) bool {
	steady := strings.HasPrefix(e.Kind, "step.") || strings.HasPrefix(e.Kind, "message.")
	return !steady || r.Jail == "" && r.Agent.Spawner == "jail"
}

// mayFollowToolCalls reports whether the audit log may have new tool calls before an event. An agent
// calls tools between the end of a model call and the beginning of the next one. The decision about
// a tool of the agent endpoint is made within its step.
func mayFollowToolCalls(e wire.RunEvent) bool {
	var b struct{ Kind string }
	if json.Unmarshal(e.Body, &b) != nil {
		return true
	}
	return e.Kind != "step.began" && e.Kind != "step.ended" || (b.Kind == "model") == (e.Kind == "step.began")
}

// toolCalls returns one line for each tool call that the agent of a run has reported after the
// decision with the number after, and the number of the newest one.
func toolCalls(ctx context.Context, cl *client.Client, r wire.Run, after int64) (lines []string, newest int64, err error) {
	if r.Jail == "" {
		return nil, after, nil
	}
	q := url.Values{"observed": {"false"}, "after": {fmt.Sprint(after)}, "from": {r.Created.Format(time.RFC3339Nano)}}
	for t, err := range cl.Trail(ctx, r.Jail, q) {
		if err != nil {
			return lines, after, err
		}
		after = t.Seq
		lines = append(lines, fmt.Sprintf("%s   %s", t.At.Local().Format("15:04:05"), text.Visible(t.Line)))
	}
	return lines, after, nil
}

// runProgress shows that the command waits for an event of a run, and what the run's jail lacks.
func (c *command) runProgress(r wire.Run) *progress {
	return c.progress(func(ctx context.Context) string {
		if r.State != "active" {
			return "waiting for the next event of " + string(r.ID)
		}
		if r.Jail != "" || r.Agent.Spawner != "jail" {
			return "the agent is working"
		}
		line := "starting the agent"
		var root wire.Rootfs
		if r.Agent.Jail != nil {
			root = r.Agent.Jail.Rootfs
		}
		return line + c.missingRootfs(ctx, root)
	})
}

// lostRun is the error of a run that can no longer be followed. The run itself continues.
func lostRun(ctx context.Context, r id.Run, err error) error {
	if ctx.Err() != nil || !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, fault.Unavailable) {
		return err
	}
	return &fault.Error{Op: "follow run", On: string(r), Kind: fault.Unavailable,
		Err:    fmt.Errorf("the daemon closed the connection; the run continues when the daemon is back (%w)", err),
		Remedy: "glasshouse agent logs " + string(r)}
}

// runJailLabel marks a jail that was created for a run and stops with it. The jail of a session
// keeps running.
const runJailLabel = "glasshouse.goal"

// awaitStopped returns when the jail has stopped, or when stopTimeout has passed.
func awaitStopped(ctx context.Context, cl *client.Client, j id.Jail) {
	for end := time.Now().Add(stopTimeout); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		now, err := cl.Jail(ctx, j)
		if err != nil || now.Labels[runJailLabel] == "" || now.State == "stopped" || now.State == "failed" {
			return
		}
	}
}

func isEnded(state string) bool { return state == "done" || state == "failed" || state == "cancelled" }

// runEnded prints the result of a run. It returns exit code 1 unless the run is done.
func (c *command) runEnded(r wire.Run) error {
	if r.State == "done" {
		if r.Result != "" {
			for line := range strings.Lines(r.Result) {
				fmt.Fprintln(c.env.Stdout, text.Visible(strings.TrimSuffix(line, "\n")))
			}
		}
		return nil
	}
	fmt.Fprintf(c.env.Stderr, "%s is %s: %s\n", r.ID, r.State, text.Visible(cmp.Or(r.Error, r.Reason)))
	return exitCode(exitError)
}

// runEventLine formats an event as one line, or as "" if the event is not shown.
func runEventLine(e wire.RunEvent) string {
	var b struct {
		State, To, Why, Reason, Kind, Name, Text, Dimension string
		Percent                                             int
		Checkpoint                                          string
		Tag                                                 string
	}
	if json.Unmarshal(e.Body, &b) != nil {
		return ""
	}
	at := e.At.Local().Format("15:04:05")
	switch {
	case strings.HasPrefix(e.Kind, "run."):
		return strings.TrimRight(fmt.Sprintf("%s %s %s %s", at, text.Visible(cmp.Or(b.To, b.State, b.Text)), text.Visible(b.Why), text.Visible(b.Reason)), " ")
	case e.Kind == "step.ended":
		step := b.Kind + " " + b.Name
		if b.Kind == "model" {
			step = "model call"
		}
		return fmt.Sprintf("%s   %s: %s", at, text.Visible(step), text.Visible(b.State))
	case strings.HasPrefix(e.Kind, "message"):
		first, rest, _ := strings.Cut(strings.TrimSpace(b.Text), "\n")
		if rest != "" {
			first += " …"
		}
		return fmt.Sprintf("%s   %s", at, text.Visible(first))
	case strings.HasPrefix(e.Kind, "budget"):
		return fmt.Sprintf("%s   %d %% of %s is spent", at, b.Percent, text.Visible(b.Dimension))
	case strings.HasPrefix(e.Kind, "checkpoint"):
		return fmt.Sprintf("%s   checkpoint %s", at, text.Visible(b.Checkpoint))
	}
	return ""
}

// showRun shows all fields of a run.
func showRun(w io.Writer, r wire.Run) {
	rows := [][]string{
		{"id", string(r.ID)}, {"session", text.Visible(r.Session)}, {"goal", text.Visible(r.Goal)},
		{"state", strings.TrimSpace(r.State + " " + r.Why)}, {"agent", text.Visible(r.Agent.Preset)},
	}
	add := func(name, value string) {
		if value != "" {
			rows = append(rows, []string{name, text.Visible(value)})
		}
	}
	add("reason", r.Reason)
	add("jail", string(r.Jail))
	add("schedule", string(r.Schedule))
	if r.NextRunAt != nil && r.State == "scheduled" {
		add("begins", r.NextRunAt.Format(time.RFC3339))
	}
	add("part of", string(r.Parent))
	add("branch of", string(r.Of))
	add("checkpoint", string(r.Checkpoint))
	for _, d := range slices.Sorted(maps.Keys(r.Budget.Limits)) {
		add("budget", fmt.Sprintf("%s: %d of %d", d, r.Budget.Consumed[d], r.Budget.Limits[d]))
	}
	for _, d := range slices.Sorted(maps.Keys(r.Budget.Consumed)) {
		if _, limited := r.Budget.Limits[d]; !limited {
			add("spent", fmt.Sprintf("%s: %d", d, r.Budget.Consumed[d]))
		}
	}
	add("steps", fmt.Sprint(r.Steps))
	add("result", r.Result)
	add("error", r.Error)
	table(w, rows)
}
