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

func (c *command) at() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "at JAIL [INSTANT]", Short: "Show the state of a jail at an instant", Args: cobra.RangeArgs(1, 2),
		Long: `Show the state of a jail at an instant: its processes, the files it had changed, and
the nearest earlier snapshot, from which it can be branched. The instant is a time, an
age, or the sequence number of an event (default: now). The list of files is derived
from file events; + marks files that were changed after the snapshot.`,
		Example: `  glasshouse at j-4k2v9c7m1xqe 5m
  glasshouse at j-4k2v9c7m1xqe 2026-01-02T15:04:05Z`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ts, err := instant("the instant", strings.Join(args[1:], ""))
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			cl, err := c.client(ctx)
			if err != nil {
				return err
			}
			jid, err := jailNamed(ctx, cl, args[0])
			if err != nil {
				return err
			}
			p, err := cl.Past(ctx, jid, ts, all)
			if err != nil {
				return err
			}
			processes := ""
			if !c.json {
				processes, err = cl.ProcessText(ctx, jid, ts, all)
				if err != nil {
					return err
				}
			}
			return c.print(p, func(w io.Writer) { showPast(w, p, processes, time.Now()) })
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also show exited processes")
	return cmd
}

func showPast(w io.Writer, p wire.Past, processes string, now time.Time) {
	switch s := p.Snapshot; {
	case s != nil:
		fmt.Fprintf(w, "snapshot  %s, %s\n\n", words(string(s.ID), text.Visible(s.Name)), ago(s.CreatedAt, now))
	default:
		fmt.Fprint(w, "snapshot  none before\n\n")
	}
	io.WriteString(w, processes)
	fmt.Fprintln(w)
	switch {
	case !p.Files.Recorded:
		fmt.Fprintln(w, "File operations of this jail are not recorded.")
		return
	case len(p.Files.Items) == 0:
		fmt.Fprintln(w, "No files had changed.")
	}
	var rows [][]string
	for _, f := range p.Files.Items {
		name := text.Visible(f.Path)
		if f.From != "" {
			name = text.Visible(f.From) + " -> " + name
		}
		mark := ""
		if f.Since {
			mark = "+"
		}
		rows = append(rows, []string{mark, f.Kind, f.Type, f.Time.Format(time.DateTime), name})
	}
	table(w, rows)
	switch more := p.Files.Count - len(p.Files.Items); {
	case more > 0 && p.Files.AtLeast:
		fmt.Fprintf(w, "and at least %d more, changed earlier\n", more)
	case more > 0:
		fmt.Fprintf(w, "and %d more, changed earlier\n", more)
	case p.Files.AtLeast:
		fmt.Fprintln(w, "and more, changed earlier")
	}
	if p.Files.Lost != (wire.Lost{}) {
		fmt.Fprintln(w, "File events are missing: there may have been other changes.")
	}
}

func (c *command) syscalls() *cobra.Command {
	var span timeFlags
	var processes int
	cmd := &cobra.Command{
		Use: "syscalls JAIL [FILTER...]", Short: "Show counts, durations and errors of the system calls of a jail", Args: cobra.MinimumNArgs(1),
		Long: `Count the system calls of a jail by name, with the median and 99th percentile of their
durations, and the errors that they returned. A filter, as in glasshouse events, and
--since and --until select the calls. --json includes the histograms.`,
		Example: `  glasshouse syscalls j-4k2v9c7m1xqe
  glasshouse syscalls j-4k2v9c7m1xqe comm:python3 --since 5m --processes 5`,
		RunE: func(cmd *cobra.Command, args []string) error {
			from, to, err := span.times()
			if err != nil {
				return err
			}
			return c.withJail(cmd, args[0], func(cl *client.Client, jid id.Jail) error {
				p, err := cl.Profile(cmd.Context(), jid, client.ProfileQuery{
					Filter: strings.Join(args[1:], " "), From: timeParameter(from), To: timeParameter(to), Processes: processes,
				})
				if err != nil {
					return err
				}
				return c.print(p, func(w io.Writer) { showProfile(w, p) })
			})
		},
	}
	span.add(cmd.Flags())
	cmd.Flags().IntVar(&processes, "processes", 0, "also show this many processes with the most calls")
	return cmd
}

func showProfile(w io.Writer, p wire.Profile) {
	rows := [][]string{{"CALL", "TIMES", "FAILED", "DENIED", "P50", "P99", "TOTAL"}}
	row := func(name string, n, failed, denied int64, l wire.Latency) {
		rows = append(rows, []string{name, fmt.Sprint(n), fmt.Sprint(failed), fmt.Sprint(denied), took(l.P50), took(l.P99), took(l.Total)})
	}
	for _, c := range p.Calls {
		row(text.Visible(c.Name), c.Count, c.Failed, c.Denied, c.Latency)
	}
	row("all", p.Count, p.Failed, p.Denied, p.Latency)
	for _, o := range p.Processes {
		row(fmt.Sprintf("of %s (%d)", text.Visible(o.Comm), o.PID), o.Count, o.Failed, o.Denied, o.Latency)
	}
	table(w, rows)
	var errs []string
	for _, e := range p.Errors {
		errs = append(errs, fmt.Sprintf("%s %d", e.Errno, e.Count))
	}
	if len(errs) > 0 {
		fmt.Fprintln(w, "errors: "+strings.Join(errs, ", "))
	}
	if p.Lost != (wire.Lost{}) {
		fmt.Fprintln(w, "System call events are missing: the counts are too low.")
	}
}

// took formats a duration with a unit that suits its size.
func took(ns int64) string {
	d := time.Duration(ns)
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(10 * time.Nanosecond).String()
}

// showHosts shows the hosts that a jail connected to, and the policy decisions about them.
func (c *command) showHosts(ctx context.Context, cl *client.Client, jid id.Jail) error {
	cs, err := cl.Connections(ctx, jid)
	if err != nil {
		return err
	}
	return c.print(cs, func(w io.Writer) {
		rows := [][]string{{"HOST", "CONNECTIONS", "OUT", "IN", "PROCESSES", "DECIDED"}}
		for _, h := range cs.Items {
			var who, decided []string
			for _, p := range h.Processes {
				who = append(who, fmt.Sprintf("%s (%d)", text.Visible(p.Comm), p.PID))
			}
			for _, v := range h.Verdicts {
				decided = append(decided, fmt.Sprintf("%s %d ×", decidedWord(v), v.Count))
			}
			rows = append(rows, []string{text.Visible(h.Host), fmt.Sprint(h.Connections), size(h.BytesOut), size(h.BytesIn), strings.Join(who, ", "), strings.Join(decided, ", ")})
		}
		table(w, rows)
	})
}

func decidedWord(v wire.Verdicts) string {
	word := "refused"
	if v.Allowed {
		word = "allowed"
	}
	if v.Reason != "" {
		word += " (" + v.Reason + ")"
	}
	return word
}
