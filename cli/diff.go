package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
)

func (c *command) diff() *cobra.Command {
	var o diffOptions
	var colour string
	cmd := &cobra.Command{
		Use: "diff JAIL|SNAPSHOT [JAIL|SNAPSHOT | PATH...]", Short: "Show the changes of a jail, or compare jails and snapshots", Args: cobra.MinimumNArgs(1),
		Long: `List the changes of a jail in its root filesystem or, with --workspace, in its
workspace. With paths, only changes at and below them are listed. A file with the same
content and other metadata is listed as metadata, a moved file as renamed.

With two jails or snapshots, show the changes from the first to the second: files,
workspace, processes and their connections, events, and resource usage. A single
snapshot is compared with its jail. --files, --workspace, --processes, --events and
--usage limit the output.

With --unified, differences of text files are printed in the format of diff -u, which
patch and git apply read.`,
		Example: `  glasshouse diff j-4k2v9c7m1xqe
  glasshouse diff j-4k2v9c7m1xqe /etc --unified
  glasshouse diff j-4k2v9c7m1xqe --workspace -u | git apply --check
  glasshouse diff s-7m3wq2xk9dpa
  glasshouse diff s-7m3wq2xk9dpa j-4k2v9c7m1xqe --processes
  glasshouse diff j-4k2v9c7m1xqe j-b8r5n3t6yhuc --html > diff.html`,
		RunE: func(cmd *cobra.Command, args []string) error {
			out := c.screen(colour)
			if o.HTML && c.json {
				return usagef("--html and --json exclude each other")
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			from, to, paths, err := parseDiffArgs(cmd.Context(), cl, args)
			if err != nil {
				return err
			}
			two := to != "" || id.Valid('s', from)
			if err := o.check(two, paths); err != nil {
				return err
			}
			if two {
				return c.compare(cmd.Context(), cl, from, to, o, out)
			}
			if len(paths) == 0 {
				paths = []string{""}
			}
			return c.showDiff(cmd.Context(), cl, id.Jail(from), client.ChangesOptions{Workspace: o.Workspace, Unified: o.Unified}, paths, out)
		},
	}
	cmd.Flags().BoolVar(&o.Workspace, "workspace", false, "compare the workspace instead of the root filesystem")
	cmd.Flags().BoolVarP(&o.Unified, "unified", "u", false, "show unified diffs of text files")
	cmd.Flags().BoolVar(&o.Files, "files", false, "when comparing two: files of the root filesystem")
	cmd.Flags().BoolVar(&o.Processes, "processes", false, "when comparing two: processes")
	cmd.Flags().BoolVar(&o.Events, "events", false, "when comparing two: events since the fork")
	cmd.Flags().BoolVar(&o.Usage, "usage", false, "when comparing two: resource usage")
	cmd.Flags().BoolVar(&o.HTML, "html", false, "when comparing two: write a self-contained HTML page")
	c.colourFlag(cmd, &colour)
	return cmd
}

// diffOptions are the flags of diff.
type diffOptions struct {
	Files, Workspace, Processes, Events, Usage bool
	Unified, HTML                              bool
}

// parseDiffArgs returns the two jails or snapshots that the arguments name or, for the changes
// of one jail, the paths to show. Paths begin with a slash; names and ids do not.
func parseDiffArgs(ctx context.Context, cl *client.Client, args []string) (from, to string, paths []string, err error) {
	from, err = eitherNamed(ctx, cl, args[0])
	if err != nil {
		return "", "", nil, err
	}
	if len(args) == 2 && !strings.HasPrefix(args[1], "/") {
		to, err = eitherNamed(ctx, cl, args[1])
		return from, to, nil, err
	}
	return from, "", args[1:], nil
}

// eitherNamed returns the jail or snapshot that has this id, or is the only one with this name.
func eitherNamed(ctx context.Context, cl *client.Client, arg string) (string, error) {
	if id.Valid('j', arg) || id.Valid('s', arg) {
		return arg, nil
	}
	found, err := jailsNamed(ctx, cl, arg)
	if err != nil {
		return "", err
	}
	snapshots, err := snapshotsNamed(ctx, cl, arg)
	if err != nil && !errors.Is(err, fault.Unsupported) { // the daemon may have no snapshot support
		return "", err
	}
	return only(append(found, snapshots...), arg, "jail or snapshot")
}

func (o diffOptions) check(two bool, paths []string) error {
	switch {
	case !two && (o.Files || o.Processes || o.Events || o.Usage || o.HTML):
		return usagef("--files, --processes, --events, --usage and --html need a second snapshot or jail to compare with")
	case two && len(paths) > 0:
		return usagef("paths select changes of one jail; for a snapshot, name a snapshot or jail to compare it with")
	}
	return nil
}

// only returns the requested parts of a comparison. An empty list means all parts.
func (o diffOptions) only() (parts []string) {
	for _, part := range []struct {
		name   string
		wanted bool
	}{{"files", o.Files}, {"workspace", o.Workspace}, {"processes", o.Processes}, {"events", o.Events}, {"usage", o.Usage}} {
		if part.wanted {
			parts = append(parts, part.name)
		}
	}
	return parts
}

// compare shows the differences between two jails or snapshots.
func (c *command) compare(ctx context.Context, cl *client.Client, from, to string, o diffOptions, out screen) error {
	q := client.CompareOptions{Only: o.only(), Unified: o.Unified}
	if o.Unified && !o.HTML && !c.json {
		return c.showPatch(ctx, cl, from, to, o, out)
	}
	kind := "text/plain"
	switch {
	case c.json:
		kind = "application/json"
	case o.HTML:
		kind = "text/html"
	}
	page, err := cl.ComparisonPage(ctx, kind, from, to, q)
	if err != nil {
		return err
	}
	defer page.Close()
	if c.converts() {
		doc, err := io.ReadAll(page)
		if err != nil {
			return fmt.Errorf("read the comparison: %w", err)
		}
		return c.writeJSON(doc)
	}
	_, err = io.Copy(out, page) // the daemon has escaped the page
	if err != nil {
		return fmt.Errorf("copy the comparison: %w", err)
	}
	return nil
}

// showPatch writes the file changes in the input format of patch(1), and nothing else.
func (c *command) showPatch(ctx context.Context, cl *client.Client, from, to string, o diffOptions, out screen) error {
	if to == "" {
		s, err := cl.Snapshot(ctx, id.Snapshot(from))
		if err != nil {
			return err
		}
		to = string(s.Jail)
	}
	trees := []string{"files", "workspace"}
	if o.Files || o.Workspace {
		trees = slices.DeleteFunc(trees, func(t string) bool { return t == "files" && !o.Files || t == "workspace" && !o.Workspace })
	}
	if id.Valid('s', to) {
		return showPatchOfSnapshot(ctx, cl, from, to, trees, out)
	}
	j, err := cl.Jail(ctx, id.Jail(to))
	if err != nil {
		return err
	}
	for _, tree := range trees {
		q := client.ChangesOptions{Against: from, Workspace: tree == "workspace", Unified: true}
		if q.Workspace && j.Workspace == nil && !o.Workspace {
			continue
		}
		if err := c.showDiff(ctx, cl, j.ID, q, []string{""}, out); err != nil {
			return err
		}
	}
	return nil
}

// showPatchOfSnapshot is like showPatch, but for the changes that lead to a snapshot. The daemon
// returns them in one response.
func showPatchOfSnapshot(ctx context.Context, cl *client.Client, from, to string, trees []string, out screen) error {
	c, err := cl.Compare(ctx, from, to, client.CompareOptions{Only: trees, Unified: true})
	if err != nil {
		return err
	}
	for _, tree := range []*wire.FileChanges{c.Files, c.Workspace} {
		if tree == nil {
			continue
		}
		if tree.Unknown != "" {
			fmt.Fprintln(out, out.paint(faint, "# "+text.Visible(tree.Unknown)))
		}
		for _, ch := range tree.List {
			showUnified(out, ch)
		}
		if tree.More > 0 {
			fmt.Fprintln(out, out.paint(faint, fmt.Sprintf("# and %d more", tree.More)))
		}
	}
	return nil
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
	name := text.Visible(ch.Path)
	if ch.From != "" {
		name = text.Visible(ch.From) + " -> " + name
	}
	if what := strings.Join(ch.What, ", "); what != "" && ch.Kind != "modified" {
		name += "  (" + what + ")"
	}
	fmt.Fprintf(w, "%-9s %-8s %s\n", ch.Kind, ch.Type, name)
}

// showUnified writes a change in the input format of patch(1). A change without a text
// difference becomes a comment line, which patch ignores.
func showUnified(out screen, ch wire.Change) {
	if ch.Diff == "" {
		why := cmp.Or(ch.NoDiff, strings.Join(ch.What, ", "))
		if why != "" {
			why = "  (" + why + ")"
		}
		name := text.Visible(ch.Path)
		if ch.From != "" {
			name = text.Visible(ch.From) + " -> " + name
		}
		fmt.Fprintln(out, out.paint(faint, fmt.Sprintf("# %s %s %s%s", ch.Kind, ch.Type, name, why)))
		return
	}
	if !out.terminal && !out.colour {
		io.WriteString(out, ch.Diff) // unescaped: patch(1) needs the exact bytes
		return
	}
	for line := range strings.Lines(ch.Diff) {
		parts := strings.Split(strings.TrimSuffix(line, "\n"), "\t") // tabs are harmless, and code contains many
		for i := range parts {
			parts[i] = text.Visible(parts[i])
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
