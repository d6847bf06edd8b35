package cli

import (
	"fmt"
	"io"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
)

func (c *command) schedules() *cobra.Command {
	cmd := &cobra.Command{
		Use: "schedule", Short: "Manage schedules of runs", Args: cobra.NoArgs,
		Long: `A schedule starts runs at given times. Create one with glasshouse goal --schedule.`,
	}
	cmd.AddCommand(c.scheduleList(), c.scheduleShow(), c.scheduleTimes(), c.scheduleEdit(), c.schedulePause("pause", "Pause a schedule", true), c.schedulePause("resume", "Resume a schedule", false), c.scheduleRemove())
	return cmd
}

func (c *command) scheduleList() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List schedules", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			all, err := client.Collect(cl.Schedules(cmd.Context()))
			if err != nil {
				return err
			}
			return c.print(all, func(w io.Writer) {
				rows := [][]string{{"SCHEDULE", "SESSION", "WHEN", "NEXT", "FIRED", "GOAL"}}
				for _, s := range all {
					rows = append(rows, []string{string(s.ID), text.Visible(s.Session), text.Visible(s.Cron), nextTime(s), fmt.Sprint(s.Fired), text.Visible(s.Goal)})
				}
				table(w, rows)
			})
		},
	}
}

func nextTime(s wire.Schedule) string {
	switch {
	case s.Paused:
		return "paused"
	case s.NextRunAt == nil:
		return "-"
	}
	return in(*s.NextRunAt, time.Now())
}

func (c *command) scheduleShow() *cobra.Command {
	return &cobra.Command{
		Use: "show SCHEDULE", Short: "Show a schedule and its next ten due times", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			s, err := cl.Schedule(cmd.Context(), id.Schedule(args[0]))
			if err != nil {
				return err
			}
			return c.print(s, func(w io.Writer) {
				rows := [][]string{
					{"id", string(s.ID)}, {"session", text.Visible(s.Session)}, {"goal", text.Visible(s.Goal)}, {"when", text.Visible(s.Cron)},
					{"time zone", text.Visible(s.TimeZone)}, {"missed", s.Missed}, {"overlap", s.Overlap}, {"next", nextTime(s)}, {"fired", fmt.Sprint(s.Fired)},
				}
				rows = append(rows, []string{"skipped as missed", fmt.Sprint(s.Left)}, []string{"skipped as overlapping", fmt.Sprint(s.Skipped)}, []string{"failed", fmt.Sprint(s.Failed)})
				if s.Error != "" {
					rows = append(rows, []string{"error", text.Visible(s.Error)})
				}
				for _, t := range s.Next {
					rows = append(rows, []string{"", t.Format(time.RFC3339)})
				}
				table(w, rows)
			})
		},
	}
}

func (c *command) scheduleTimes() *cobra.Command {
	var zone string
	cmd := &cobra.Command{
		Use: "times WHEN", Short: "Preview the due times of a schedule", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			times, err := cl.ScheduleTimes(cmd.Context(), args[0], zone)
			if err != nil {
				return err
			}
			return c.print(times, func(w io.Writer) {
				for _, t := range times {
					fmt.Fprintln(w, t.Format(time.RFC3339))
				}
			})
		},
	}
	cmd.Flags().StringVar(&zone, "tz", "", "time zone, such as Europe/Berlin (default UTC)")
	return cmd
}

func (c *command) scheduleEdit() *cobra.Command {
	var when, zone, missed, overlap string
	var jitter time.Duration
	cmd := &cobra.Command{
		Use: "edit SCHEDULE", Short: "Change the given fields of a schedule", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var e wire.EditSchedule
			for name, f := range map[string]struct {
				to   **string
				from *string
			}{"when": {&e.Cron, &when}, "tz": {&e.TimeZone, &zone}, "missed": {&e.Missed, &missed}, "overlap": {&e.Overlap, &overlap}} {
				if cmd.Flags().Changed(name) {
					*f.to = f.from
				}
			}
			if cmd.Flags().Changed("jitter") {
				e.JitterMS = new(jitter.Milliseconds())
			}
			if e == (wire.EditSchedule{}) {
				return usagef("no changes specified; see --help")
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			s, err := cl.EditSchedule(cmd.Context(), id.Schedule(args[0]), e)
			if err != nil {
				return err
			}
			return c.print(s, func(w io.Writer) { fmt.Fprintf(w, "%s: %s\n", s.ID, nextTime(s)) })
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&when, "when", "", "cron expression, @hourly or @every 10m")
	fs.StringVar(&zone, "tz", "", "time zone, such as Europe/Berlin")
	fs.StringVar(&missed, "missed", "", "policy for missed due times: skip, once or all")
	fs.StringVar(&overlap, "overlap", "", "policy for overlapping runs: skip, queue or allow")
	durationVar(fs, &jitter, "jitter", 0, "maximum random delay of a due time")
	return cmd
}

func (c *command) schedulePause(use, short string, pause bool) *cobra.Command {
	return &cobra.Command{
		Use: use + " SCHEDULE", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			s, err := cl.PauseSchedule(cmd.Context(), id.Schedule(args[0]), pause)
			if err != nil {
				return err
			}
			return c.print(s, func(w io.Writer) { fmt.Fprintf(w, "%s: %s\n", s.ID, nextTime(s)) })
		},
	}
}

func (c *command) scheduleRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm SCHEDULE", Short: "Remove a schedule; its runs stay", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			return cl.DeleteSchedule(cmd.Context(), id.Schedule(args[0]))
		},
	}
}
