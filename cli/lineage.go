package cli

import (
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

func (c *command) lineage() *cobra.Command {
	return &cobra.Command{
		Use: "lineage [JAIL]", Short: "Show the lineage of jails and snapshots", Args: cobra.MaximumNArgs(1),
		Long: `Show the lineage of jails and snapshots as trees, or only the tree of one jail. Below
a jail are its snapshots, below a snapshot the jails that were created from it. A
snapshot that was taken after a rewind shows the snapshot that the jail was rewound
to. The nearest snapshot of a jail is marked with *.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			var of id.Jail
			if len(args) == 1 {
				of, err = jailNamed(cmd.Context(), cl, args[0])
				if err != nil {
					return err
				}
			}
			trees, err := client.Collect(cl.Lineage(cmd.Context(), of))
			if err != nil {
				return err
			}
			return c.print(trees, func(w io.Writer) {
				for _, t := range trees {
					drawTree(w, lineageOf(t, time.Now()), "", "")
				}
			})
		},
	}
}

// A tree is a line of text and its children.
type tree struct {
	text  string
	below []tree
}

// drawTree writes a tree: its own line after the prefix first, its children after the prefix
// rest.
func drawTree(w io.Writer, t tree, first, rest string) {
	fmt.Fprintln(w, first+t.text)
	for i, sub := range t.below {
		if i < len(t.below)-1 {
			drawTree(w, sub, rest+"├─ ", rest+"│  ")
		} else {
			drawTree(w, sub, rest+"└─ ", rest+"   ")
		}
	}
}

func lineageOf(j wire.LineageJail, now time.Time) tree {
	t := tree{text: words(string(j.ID), j.Name, j.State)}
	if j.Origin != nil && j.Origin.Number > 0 {
		t.text = words(fmt.Sprintf("%d:", j.Origin.Number), t.text)
	}
	var expected id.Snapshot // parent of the next snapshot in an unbroken sequence
	if j.Origin != nil {
		expected = j.Origin.Snapshot
	}
	for _, s := range j.Snapshots {
		below := tree{text: words(string(s.ID), s.Name, ago(s.CreatedAt, now), strings.TrimSuffix(s.Reason+" "+s.Trigger, " "))}
		if !s.Memory {
			below.text += ", files only"
		}
		if s.Parent != expected && s.Parent != "" {
			below.text += ", from " + string(s.Parent)
		}
		if s.ID == j.Nearest {
			below.text += " *"
		}
		for _, made := range s.Jails {
			below.below = append(below.below, lineageOf(made, now))
		}
		t.below = append(t.below, below)
		expected = s.ID
	}
	for _, made := range j.Jails {
		t.below = append(t.below, lineageOf(made, now))
	}
	return t
}

// words joins the texts that are not empty, escaped for the terminal.
func words(list ...string) string {
	var b strings.Builder
	for _, s := range list {
		if s == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteString("  ")
		}
		b.WriteString(text.Visible(s))
	}
	return b.String()
}
