package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
)

func (c *command) snapshot() *cobra.Command {
	cmd := &cobra.Command{
		Use: "snapshot", Short: "Create, list, export and remove snapshots of jails",
		Long: `A snapshot has the processes, memory and files of a jail. Use rewind to return the jail
to the snapshot, and branch or restore to create new jails from it.`,
		Example: `  glasshouse snapshot create j-4k2v9c7m1xqe --name before-upgrade
  glasshouse snapshot ls j-4k2v9c7m1xqe`,
	}
	cmd.AddCommand(c.snapshotCreate(), c.snapshotList(), c.snapshotShow(), c.snapshotRemove(), c.snapshotWarm(), c.snapshotExport(), c.snapshotImport())
	c.acceptOld(cmd, c.snapshotCreate(), "snapshot create")
	return cmd
}

func (c *command) snapshotCreate() *cobra.Command {
	var req wire.TakeSnapshot
	var labels []string
	cmd := &cobra.Command{
		Use: "create JAIL", Short: "Take a snapshot of a jail", Args: cobra.ExactArgs(1),
		Long: `Take a snapshot of the processes, memory and files of a jail, and print its id. The
jail pauses for milliseconds. Use rewind to return the jail to the snapshot, and branch
or restore to create new jails from it.

--layering selects how the files are captured; the default depends on the jail.
copied: the jail keeps its writable layer, and the snapshot gets a copy. stacked: the
layer becomes part of the snapshot, whatever its size, and the jail continues on a new
one; its external connections are closed. A jail without processes is captured in the
second way.`,
		Example: `  glasshouse snapshot create j-4k2v9c7m1xqe --name before-upgrade
  glasshouse branch $(glasshouse snapshot create j-4k2v9c7m1xqe) -n 5`,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			req.Labels, err = keyValues(labels, nil)
			if err != nil {
				return err
			}
			return c.withJail(cmd, args[0], func(cl *client.Client, jid id.Jail) error {
				s, err := cl.TakeSnapshot(cmd.Context(), jid, req)
				if err != nil {
					return err
				}
				return c.print(s, func(w io.Writer) { fmt.Fprintln(w, s.ID) })
			})
		},
	}
	cmd.Flags().StringVar(&req.Name, "name", "", "display name")
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil, "KEY=VALUE; may be repeated")
	cmd.Flags().BoolVar(&req.Stop, "stop", false, "leave the jail stopped")
	cmd.Flags().StringVar(&req.Layering, "layering", "", "file layering: copied or stacked")
	return cmd
}

func (c *command) snapshotList() *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use: "ls [JAIL]", Short: "List snapshots, of one jail or all, oldest first", Args: cobra.MaximumNArgs(1),
		Long: `List snapshots, oldest first. MEMORY is the memory of the processes (-: no processes),
PAUSE the time for which the jail was frozen. OWN is the disk space that removing the
snapshot would free, SHARED the space shared with jails and other snapshots.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			f := client.SnapshotFilter{Usage: !quiet}
			if len(args) == 1 {
				f.Jail, err = jailNamed(cmd.Context(), cl, args[0])
				if err != nil {
					return err
				}
			}
			all, err := client.Collect(cl.Snapshots(cmd.Context(), f))
			if err != nil {
				return err
			}
			return c.print(all, func(w io.Writer) {
				if quiet {
					for _, s := range all {
						fmt.Fprintln(w, s.ID)
					}
					return
				}
				table(w, snapshotRows(all))
			})
		},
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only ids")
	return cmd
}

func snapshotRows(all []wire.Snapshot) [][]string {
	rows := [][]string{{"ID", "JAIL", "NAME", "AGE", "REASON", "MEMORY", "PAUSE", "OWN", "SHARED"}}
	for _, s := range all {
		own, shared := "", ""
		if s.Usage != nil {
			own, shared = size(s.Usage.OwnBytes), size(s.Usage.SharedBytes)
		}
		rows = append(rows, []string{
			string(s.ID), string(s.Jail), s.Name, ago(s.CreatedAt, time.Now()), snapshotReason(s), snapshotMemory(s), snapshotPause(s), own, shared,
		})
	}
	return rows
}

func snapshotReason(s wire.Snapshot) string {
	return text.Visible(strings.TrimSuffix(s.Reason+" "+s.Trigger, " "))
}

func snapshotMemory(s wire.Snapshot) string {
	if !s.Memory {
		return "-"
	}
	return size(s.MemoryBytes)
}

func snapshotPause(s wire.Snapshot) string {
	if !s.Memory {
		return "-"
	}
	return short(time.Duration(s.PausedUS) * time.Microsecond)
}

func (c *command) snapshotShow() *cobra.Command {
	return &cobra.Command{
		Use: "show SNAPSHOT", Short: "Show a snapshot and its disk usage", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			sid, err := snapshotNamed(cmd.Context(), cl, args[0])
			if err != nil {
				return err
			}
			s, err := cl.Snapshot(cmd.Context(), sid)
			if err != nil {
				return err
			}
			return c.print(s, func(w io.Writer) { showSnapshot(w, s) })
		},
	}
}

func showSnapshot(w io.Writer, s wire.Snapshot) {
	rows := [][]string{{"id", string(s.ID)}}
	add := func(k, v string) {
		if v != "" {
			rows = append(rows, []string{k, v})
		}
	}
	add("name", s.Name)
	add("of jail", strings.TrimSuffix(string(s.Jail)+" "+s.JailName, " "))
	add("after", string(s.Parent))
	add("taken", s.CreatedAt.Local().Format(time.DateTime)+", "+snapshotReason(s))
	if s.Memory {
		add("processes", fmt.Sprintf("%d with threads, %s of memory", s.PIDs, size(s.MemoryBytes)))
		add("paused", snapshotPause(s)+", files "+s.Layering)
		add("events", fmt.Sprintf("up to %d", s.Seq))
	} else {
		add("processes", "none: files only")
	}
	if s.Copies > 0 {
		add("copies", fmt.Sprintf("%d warm", s.Copies))
	}
	if s.Usage != nil {
		add("disk", fmt.Sprintf("%s own, %s shared", size(s.Usage.OwnBytes), size(s.Usage.SharedBytes)))
	}
	add("backend", strings.TrimSuffix(s.Backend+" "+s.Runtime, " "))
	add("host", fmt.Sprintf("%s, kernel %s, %s", s.Host.Arch, s.Host.Kernel, s.Host.CPU))
	table(w, rows)
}

func (c *command) snapshotRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm SNAPSHOT...", Aliases: []string{"delete"}, Short: "Remove snapshots", Args: cobra.MinimumNArgs(1),
		Long: `Remove snapshots. Jails that were created from them keep running; data that they use
stays until they are removed.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			var errs []error
			for _, arg := range args {
				sid, err := snapshotNamed(cmd.Context(), cl, arg)
				if err == nil {
					err = cl.DeleteSnapshot(cmd.Context(), sid)
				}
				if err == nil {
					err = c.print(map[string]id.Snapshot{"removed": sid}, func(w io.Writer) { fmt.Fprintln(w, sid) })
				}
				if err != nil && len(args) > 1 {
					err = fmt.Errorf("%s: %w", arg, err)
				}
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		},
	}
}

func (c *command) snapshotWarm() *cobra.Command {
	var count int
	cmd := &cobra.Command{
		Use: "warm SNAPSHOT", Short: "Keep frozen copies of a snapshot ready (warm pool)", Args: cobra.ExactArgs(1),
		Long: `Create frozen copies of a snapshot (a warm pool), so that branch, restore and rewind
only need to thaw one. The copies use memory, in total at most snapshots.copies_mb of
the configuration, and end with the daemon.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			sid, err := snapshotNamed(cmd.Context(), cl, args[0])
			if err != nil {
				return err
			}
			n, err := cl.WarmSnapshot(cmd.Context(), sid, count)
			if err != nil {
				return err
			}
			if n < count {
				fmt.Fprintf(c.env.Stderr, "glasshouse: memory suffices for %d of %d copies (snapshots.copies_mb)\n", n, count)
			}
			return c.print(wire.Warmed{Copies: n}, func(w io.Writer) { fmt.Fprintln(w, n) })
		},
	}
	cmd.Flags().IntVarP(&count, "count", "n", 1, "number of copies")
	return cmd
}

// withJail calls f with a client and the jail that arg names.
func (c *command) withJail(cmd *cobra.Command, arg string, f func(*client.Client, id.Jail) error) error {
	cl, err := c.client(cmd.Context())
	if err != nil {
		return err
	}
	j, err := jailNamed(cmd.Context(), cl, arg)
	if err != nil {
		return err
	}
	return f(cl, j)
}

// jailNamed returns the jail that has this id or name.
func jailNamed(ctx context.Context, cl *client.Client, arg string) (id.Jail, error) {
	if id.Valid('j', arg) {
		return id.Jail(arg), nil
	}
	found, err := jailsNamed(ctx, cl, arg)
	if err != nil {
		return "", err
	}
	one, err := only(found, arg, "jail")
	return id.Jail(one), err
}

// snapshotNamed returns the snapshot that has this id or name.
func snapshotNamed(ctx context.Context, cl *client.Client, arg string) (id.Snapshot, error) {
	if id.Valid('s', arg) {
		return id.Snapshot(arg), nil
	}
	found, err := snapshotsNamed(ctx, cl, arg)
	if err != nil {
		return "", err
	}
	one, err := only(found, arg, "snapshot")
	return id.Snapshot(one), err
}

func jailsNamed(ctx context.Context, cl *client.Client, name string) (ids []string, err error) {
	for j, err := range cl.Jails(ctx, client.JailFilter{Name: name}) {
		if err != nil {
			return nil, err
		}
		ids = append(ids, string(j.ID))
	}
	return ids, nil
}

func snapshotsNamed(ctx context.Context, cl *client.Client, name string) (ids []string, err error) {
	for s, err := range cl.Snapshots(ctx, client.SnapshotFilter{}) {
		if err != nil {
			return nil, err
		}
		if s.Name == name {
			ids = append(ids, string(s.ID))
		}
	}
	return ids, nil
}

// only returns the single id in ids. Several jails or snapshots of versions before 0.2 may have the
// same name.
func only(ids []string, name, what string) (string, error) {
	switch len(ids) {
	case 0:
		return "", fault.Newf(fault.NotFound, "", "", "no %s has the id or the name %q", what, name)
	case 1:
		return ids[0], nil
	}
	return "", &fault.Error{
		Kind: fault.Conflict, Err: fmt.Errorf("%d objects have the name %q: %s", len(ids), name, strings.Join(ids, " ")), Remedy: "use an id",
	}
}
