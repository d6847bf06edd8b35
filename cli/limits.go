package cli

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/id"

	"github.com/spf13/cobra"
)

func (c *command) jailLimits() *cobra.Command {
	var limits limitFlags
	cmd := &cobra.Command{
		Use: "limits JAIL", Short: "Show or change the resource limits of a running jail", Args: cobra.ExactArgs(1),
		Long: `Change the resource limits of a jail, effective immediately. The memory limit cannot
fall below the memory in use, and a disk cannot shrink. Temporary resource grants to
agents end.

Without flags, show the limits and the state of requests for more.`,
		Example: `  glasshouse jail limits j-… --memory 2g --pids 512
  glasshouse jail limits j-…`,
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := limits.request()
			if err != nil {
				return err
			}
			return c.withJail(cmd, args[0], func(cl *client.Client, j id.Jail) error {
				if l != (wire.Limits{}) {
					if _, err := cl.LimitJail(cmd.Context(), j, l); err != nil {
						return err
					}
				}
				shown, err := cl.JailLimits(cmd.Context(), j, 0)
				for err == nil && shown.Next != 0 {
					var more wire.JailLimits
					more, err = cl.JailLimits(cmd.Context(), j, shown.Next)
					shown.History, shown.Next = append(shown.History, more.History...), more.Next
				}
				if err != nil {
					return err
				}
				return c.print(shown, func(w io.Writer) { writeLimits(w, shown) })
			})
		},
	}
	limits.add(cmd, "as it is")
	return cmd
}

func writeLimits(w io.Writer, l wire.JailLimits) {
	fmt.Fprintln(w, limitText(l.Limits))
	if l.Own != nil {
		fmt.Fprintf(w, "own limits: %s\n", limitText(*l.Own))
	}
	if l.Until != nil {
		fmt.Fprintf(w, "temporary until %s\n", l.Until.Local().Format(time.DateTime))
	}
	if len(l.History) == 0 {
		return
	}
	fmt.Fprintln(w)
	rows := [][]string{{"AT", "ASKED", "STATE", "FROM", "TO", "WHY", "BY"}}
	for _, h := range l.History {
		asked := ""
		if h.Want != nil {
			asked = boundsText(*h.Want)
		}
		rows = append(rows, []string{h.At.Local().Format(time.DateTime), cmp.Or(asked, "-"), h.State, boundsText(h.From), boundsText(h.To), h.Why, h.By})
	}
	table(w, rows)
}

func limitText(l wire.Limits) string {
	return fmt.Sprintf("weight %d, memory %s, disk %s, %d processes", l.CPUShares, size(l.MemoryMB<<20), size(l.DiskMB<<20), l.MaxPIDs)
}

// boundsText formats limits as agents request them: "cpu=2 memory=4096".
func boundsText(b wire.Bounds) string {
	var words []string
	if b.CPU != 0 {
		words = append(words, fmt.Sprintf("cpu=%g", b.CPU))
	}
	for _, n := range []struct {
		name string
		n    int64
	}{{"memory", b.MemoryMB}, {"disk", b.DiskMB}, {"pids", b.PIDs}} {
		if n.n != 0 {
			words = append(words, fmt.Sprintf("%s=%d", n.name, n.n))
		}
	}
	return strings.Join(words, " ")
}
