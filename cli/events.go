package cli

import (
	"context"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"

	"glasshouse/api/client"
	"glasshouse/id"
	"glasshouse/observe/event"

	"github.com/spf13/cobra"
)

func (c *command) events() *cobra.Command {
	var q client.EventQuery
	var colour string
	var span timeFlags
	cmd := &cobra.Command{
		Use: "events JAIL [TERM...]", Short: "Show or follow the events of a jail", Args: cobra.MinimumNArgs(1),
		Long: `Print the events of a jail: system calls, file operations, packets and processes. All
terms of a filter must match: type:net, name:openat, path:/etc, comm:curl,
host:*.example.com, ret:<0, pid:42. A minus negates a term; comma-separated values are
alternatives. docs/reference/events.md lists all terms.

The events include those of init, the first process of a jail. The term -pid:1
excludes them, as the UI does by default.

With --follow, the command prints new events until it is interrupted or the jail is
deleted. It reconnects after the connection to the daemon is lost. With --json, each
event is one line of JSON, as in the event log.`,
		Example: `  glasshouse events j-4k2v9c7m1xqe --follow
  glasshouse events j-4k2v9c7m1xqe -- -pid:1
  glasshouse events j-4k2v9c7m1xqe type:file op:write,delete path:/etc
  glasshouse events j-4k2v9c7m1xqe 'ret:<0 -name:futex' --since 5m
  glasshouse events j-4k2v9c7m1xqe type:net --tail 20 --json | jq .host`,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			q.Since, q.Until, err = span.times()
			if err != nil {
				return err
			}
			q.Filter = strings.Join(args[1:], " ")
			out := c.screen(colour)
			return c.withJail(cmd, args[0], func(cl *client.Client, jid id.Jail) error {
				return c.showEvents(cmd.Context(), cl, jid, q, out)
			})
		},
	}
	fs := cmd.Flags()
	fs.BoolVarP(&q.Follow, "follow", "f", false, "follow new events")
	span.add(fs)
	fs.IntVarP(&q.Tail, "tail", "n", 0, "only the last N recorded events")
	fs.IntVar(&q.Limit, "limit", 0, "maximum number of events")
	c.colourFlag(cmd, &colour)
	return cmd
}

// showEvents prints events until the stream ends or the user interrupts it.
func (c *command) showEvents(ctx context.Context, cl *client.Client, jid id.Jail, q client.EventQuery, out screen) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var e event.Event
	for r, err := range cl.Events(ctx, jid, q) {
		if err != nil && ctx.Err() != nil {
			return nil // interrupted by the user
		}
		if err != nil {
			return err
		}
		if c.json {
			err = c.writeEvent(out, r.JSON)
		} else if err = event.Parse(r.JSON, &e); err == nil {
			_, err = fmt.Fprintln(out, eventLine(out, &e))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// writeEvent writes an event as a line of JSON, or in the format of --output.
func (c *command) writeEvent(out io.Writer, line []byte) error {
	if c.converts() {
		return c.writeJSON(line)
	}
	_, err := out.Write(append(line, '\n'))
	return err
}
