package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
)

// agent groups the commands of agent runs. The commands goal and runs are aliases of parts of it.
func (c *command) agent() *cobra.Command {
	cmd := &cobra.Command{
		Use: "agent", Short: "Start, list and control agent runs",
		Example: `  glasshouse agent run "fix the failing test" --agent opencode -C .
  glasshouse agent ls
  glasshouse agent logs r-4t9wq2kx7mzb`,
	}
	run := c.goal()
	run.Use = "run GOAL [-- ARG…]"
	run.Example = strings.ReplaceAll(run.Example, "glasshouse goal", "glasshouse agent run")
	cmd.AddCommand(run, c.runList("ls"))
	cmd.AddCommand(c.runCommands("logs")...)
	return cmd
}

func (c *command) runs() *cobra.Command {
	cmd := c.runList("runs")
	cmd.AddCommand(c.runCommands("follow")...)
	return cmd
}

// runCommands returns the commands for one run. follow is the name of the one that shows it live.
func (c *command) runCommands(follow string) []*cobra.Command {
	return []*cobra.Command{
		c.runShow(), c.runFollow(follow), c.runSteps(), c.runCheckpoint(), c.runCheckpoints(), c.runResume(),
		c.runDo("pause", "Pause a run", (*client.Client).PauseRun),
		c.runDo("cancel", "Cancel a run and its child runs", (*client.Client).CancelRun),
		c.runDone(),
	}
}

func (c *command) runList(name string) *cobra.Command {
	var session, state string
	cmd := &cobra.Command{
		Use: name, Short: "List agent runs", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			all, err := client.Collect(cl.Runs(cmd.Context(), session, state))
			if err != nil {
				return err
			}
			return c.print(all, func(w io.Writer) {
				rows := [][]string{{"RUN", "SESSION", "STATE", "AGENT", "STEPS", "SINCE", "GOAL"}}
				for _, r := range all {
					rows = append(rows, []string{string(r.ID), text.Visible(r.Session), r.State, text.Visible(r.Agent.Preset), fmt.Sprint(r.Steps), ago(r.Created, time.Now()), text.Visible(r.Goal)})
				}
				table(w, rows)
			})
		},
	}
	cmd.Flags().StringVar(&session, "session", "", "only runs of this session")
	cmd.Flags().StringVar(&state, "state", "", "only runs in this state")
	return cmd
}

func (c *command) runShow() *cobra.Command {
	return c.runDo("show", "Show a run", (*client.Client).Run)
}

// runDo returns a command that performs an action on a run and shows the run.
func (c *command) runDo(use, short string, do func(*client.Client, context.Context, id.Run) (wire.Run, error)) *cobra.Command {
	return &cobra.Command{
		Use: use + " RUN", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			r, err := do(cl, cmd.Context(), id.Run(args[0]))
			if err != nil {
				return err
			}
			return c.print(r, func(w io.Writer) { showRun(w, r) })
		},
	}
}

func (c *command) runSteps() *cobra.Command {
	return &cobra.Command{
		Use: "steps RUN", Short: "Show the step log of a run", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			all, err := client.Collect(cl.RunActions(cmd.Context(), id.Run(args[0])))
			if err != nil {
				return err
			}
			return c.print(all, func(w io.Writer) {
				rows := [][]string{{"N", "KIND", "NAME", "STATE", "TOOK", "INPUT"}}
				for _, s := range all {
					took := ""
					if s.Ended != nil {
						took = s.Ended.Sub(s.Began).Round(time.Millisecond).String()
					}
					rows = append(rows, []string{fmt.Sprint(s.N), s.Kind, text.Visible(s.Name), s.State, took, text.Visible(text.Columns(string(s.Input), 80))})
				}
				table(w, rows)
			})
		},
	}
}

func (c *command) runFollow(name string) *cobra.Command {
	return &cobra.Command{
		Use: name + " RUN", Short: "Follow a run until it ends", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			r, err := cl.Run(cmd.Context(), id.Run(args[0]))
			if err != nil {
				return err
			}
			if isEnded(r.State) {
				return c.runEnded(r)
			}
			return c.followRun(cmd, cl, r)
		},
	}
}

func (c *command) runCheckpoint() *cobra.Command {
	var t wire.TakeCheckpoint
	cmd := &cobra.Command{
		Use: "checkpoint RUN", Short: "Take a checkpoint of a run and its jail", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			p, err := cl.CheckpointRun(cmd.Context(), id.Run(args[0]), t)
			if err != nil {
				return err
			}
			return c.print(p, func(w io.Writer) { fmt.Fprintln(w, p.ID) })
		},
	}
	cmd.Flags().StringVar(&t.Reason, "reason", "", "reason of the checkpoint")
	cmd.Flags().BoolVar(&t.Pause, "pause", false, "pause the run after the checkpoint")
	return cmd
}

func (c *command) runCheckpoints() *cobra.Command {
	return &cobra.Command{
		Use: "checkpoints RUN", Short: "List the checkpoints of a run", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			all, err := cl.Checkpoints(cmd.Context(), id.Run(args[0]))
			if err != nil {
				return err
			}
			return c.print(all, func(w io.Writer) {
				rows := [][]string{{"CHECKPOINT", "N", "STEPS", "SNAPSHOT", "SINCE", "WHY"}}
				for _, p := range all {
					rows = append(rows, []string{string(p.ID), fmt.Sprint(p.N), fmt.Sprint(p.Steps), string(p.Snapshot), ago(p.At, time.Now()), text.Visible(p.Reason)})
				}
				table(w, rows)
			})
		},
	}
}

func (c *command) runResume() *cobra.Command {
	var r wire.ResumeRun
	var checkpoint string
	var budget []string
	cmd := &cobra.Command{
		Use: "resume RUN", Short: "Resume a run, in place or from a checkpoint", Args: cobra.ExactArgs(1),
		Example: `  glasshouse agent resume r-…
  glasshouse agent resume r-… --checkpoint p-…
  glasshouse agent resume r-… --branch 3
  glasshouse agent resume r-… --budget llm-tokens=200000`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			r.Budget, err = parseBudget(budget)
			if err != nil {
				return err
			}
			r.Checkpoint = id.Checkpoint(checkpoint)
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			all, err := cl.ResumeRun(cmd.Context(), id.Run(args[0]), r)
			if err != nil {
				return err
			}
			return c.print(all, func(w io.Writer) {
				for _, r := range all {
					fmt.Fprintf(w, "%s is %s\n", r.ID, r.State)
				}
			})
		},
	}
	cmd.Flags().StringVar(&checkpoint, "checkpoint", "", "restore this checkpoint")
	cmd.Flags().IntVar(&r.Branch, "branch", 0, "branch (fork) the run this many times instead")
	cmd.Flags().StringSliceVar(&budget, "budget", nil, "DIMENSION=N: a new limit")
	return cmd
}

func (c *command) runDone() *cobra.Command {
	var m wire.MoveRun
	cmd := &cobra.Command{
		Use: "move RUN STATE", Short: "Set the state of a run: active, paused, done, failed or cancelled", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			m.State = args[1]
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			r, err := cl.MoveRun(cmd.Context(), id.Run(args[0]), m)
			if err != nil {
				return err
			}
			return c.print(r, func(w io.Writer) { showRun(w, r) })
		},
	}
	cmd.Flags().StringVar(&m.Reason, "reason", "", "reason")
	cmd.Flags().StringVar(&m.Result, "result", "", "result of a run that is done")
	return cmd
}
