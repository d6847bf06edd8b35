package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/id"

	"github.com/spf13/cobra"
)

func (c *command) diff() *cobra.Command {
	var o client.ChangesOptions
	var colour string
	cmd := &cobra.Command{
		Use: "diff JAIL [PATH...]", Short: "Show what a jail changed in its files", Args: cobra.MinimumNArgs(1),
		Long: `List what a jail changed in its root filesystem, or with --workspace in its
workspace; with paths, only there and below. A file whose content is the same is
metadata, with what of it differs; one that has only moved is renamed.

With --unified the differences of text files are printed as diff -u writes them,
so that patch and git apply can read them.`,
		Example: `  glasshouse diff j-4k2v9c7m1xqe
  glasshouse diff j-4k2v9c7m1xqe /etc --unified
  glasshouse diff j-4k2v9c7m1xqe --workspace -u | git apply --check`,
		RunE: func(cmd *cobra.Command, args []string) error {
			out, err := c.screen(colour)
			if err != nil {
				return err
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			paths := args[1:]
			if len(paths) == 0 {
				paths = []string{""}
			}
			return c.showDiff(cmd.Context(), cl, id.Jail(args[0]), o, paths, out)
		},
	}
	cmd.Flags().BoolVar(&o.Workspace, "workspace", false, "the workspace, not the root filesystem")
	cmd.Flags().BoolVarP(&o.Unified, "unified", "u", false, "the differences of text files, as diff -u writes them")
	colourFlag(cmd, &colour)
	return cmd
}

func (c *command) showDiff(ctx context.Context, cl *client.Client, jid id.Jail, o client.ChangesOptions, paths []string, out screen) error {
	all := []wire.Change{}
	for _, o.Path = range paths {
		for ch, err := range cl.Changes(ctx, jid, o) {
			switch {
			case err != nil:
				return err
			case c.json:
				all = append(all, ch)
			case o.Unified:
				showUnified(out, ch)
			default:
				showChange(out, ch)
			}
		}
	}
	if c.json {
		return c.print(all, nil)
	}
	return nil
}

func showChange(w io.Writer, ch wire.Change) {
	name := printable(ch.Path)
	if ch.From != "" {
		name = printable(ch.From) + " -> " + name
	}
	if what := strings.Join(ch.What, ", "); what != "" && ch.Kind != "modified" {
		name += "  (" + what + ")"
	}
	fmt.Fprintf(w, "%-9s %-8s %s\n", ch.Kind, ch.Type, name)
}

// showUnified writes what patch reads. What has no text difference is told in a
// line that patch passes over.
func showUnified(out screen, ch wire.Change) {
	if ch.Diff == "" {
		why := cmp.Or(ch.NoDiff, strings.Join(ch.What, ", "))
		if why != "" {
			why = "  (" + why + ")"
		}
		name := printable(ch.Path)
		if ch.From != "" {
			name = printable(ch.From) + " -> " + name
		}
		fmt.Fprintln(out, out.paint(faint, fmt.Sprintf("# %s %s %s%s", ch.Kind, ch.Type, name, why)))
		return
	}
	if !out.terminal && !out.colour {
		io.WriteString(out, ch.Diff) // as it is: a patch is bytes
		return
	}
	for line := range strings.Lines(ch.Diff) {
		parts := strings.Split(strings.TrimSuffix(line, "\n"), "\t") // harmless, and code is full of them
		for i := range parts {
			parts[i] = escape(parts[i])
		}
		text := strings.Join(parts, "\t")
		switch {
		case strings.HasPrefix(line, "---") || strings.HasPrefix(line, "+++"):
			text = out.paint(bold, text)
		case strings.HasPrefix(line, "@@"):
			text = out.paint(cyan, text)
		case strings.HasPrefix(line, "-"):
			text = out.paint(red, text)
		case strings.HasPrefix(line, "+"):
			text = out.paint(green, text)
		}
		fmt.Fprintln(out, text)
	}
}
