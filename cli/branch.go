package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
)

// overrideFlags describe the settings that differ in jails created from a snapshot.
type overrideFlags struct {
	name, network, hostname string
	labels                  []string
	limits                  limitFlags
}

func (f *overrideFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.name, "name", "", "display name; a number is appended for several")
	fs.StringArrayVarP(&f.labels, "label", "l", nil, "label KEY=VALUE; may be repeated")
	fs.StringVar(&f.network, "network", "", "isolated, proxy, bridged or full (default: from snapshot)")
	fs.StringVar(&f.hostname, "hostname", "", "host name in the jail (default: its id)")
	f.limits.add(cmd, "as it was")
}

func (f *overrideFlags) request() (o wire.Overrides, err error) {
	o = wire.Overrides{Name: f.name, Network: f.network, Hostname: f.hostname}
	o.Labels, err = keyValues(f.labels, nil)
	if err != nil {
		return o, err
	}
	o.Limits, err = f.limits.request()
	return o, err
}

func (c *command) branch() *cobra.Command {
	var f overrideFlags
	var e eachOptions
	var spread bool
	count := 1
	cmd := &cobra.Command{
		Use: "branch SNAPSHOT|JAIL", Short: "Branch (fork) jails from a snapshot or a running jail", Args: cobra.ExactArgs(1),
		Long: `Branch (fork) jails from a snapshot and print their ids. Each branch starts with the
processes, memory and files of the snapshot and shares unchanged data with it. For a
jail, the command takes a snapshot first.

With --each, the line runs in all branches concurrently, with {n} replaced by the
number of the branch, from 1. A table then compares the branches: exit code, time,
changed files, started processes, CPU time, peak memory and the last line of output.
Afterwards the branches are removed, and so is a snapshot that was taken for them,
unless --keep is given. The exit code is 0 if every line could be started, whatever
its own exit code.

In a fleet, the branches are on the node with the snapshot, as far as it has memory, and
then on those with the most free memory. --node selects one node, and --spread divides
the branches among all. These nodes copy the snapshot first, once.`,
		Example: `  glasshouse branch s-9d2kq7w4hxma -n 5
  glasshouse branch s-9d2kq7w4hxma -n 40 --spread
  glasshouse branch j-4k2v9c7m1xqe -n 3 --each 'git checkout -q try-{n} && python3 -m unittest'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := f.request()
			if err != nil {
				return err
			}
			if e.line == "" && (e.keep || e.timeout != 0) {
				return usagef("--keep and --timeout require --each")
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			req := wire.Branch{Count: count, Spread: spread, Overrides: o}
			if e.line != "" {
				return c.eachBranch(cmd.Context(), cl, args[0], req, e)
			}
			made, err := branches(cmd.Context(), cl, args[0], req)
			if err != nil {
				return err
			}
			err = c.print(made, func(w io.Writer) {
				for _, j := range made.Jails {
					fmt.Fprintln(w, j.ID)
				}
			})
			if err == nil && len(made.Errors) > 0 {
				c.printBranchErrors(made.Errors)
				err = exitCode(exitError)
			}
			return err
		},
	}
	f.add(cmd)
	cmd.Flags().IntVarP(&count, "count", "n", 1, "number of branches")
	cmd.Flags().BoolVar(&spread, "spread", false, "divide the branches evenly among the nodes of the fleet")
	cmd.Flags().StringVar(&e.line, "each", "", "run this sh line in every branch and compare")
	cmd.Flags().BoolVar(&e.keep, "keep", false, "with --each: keep the branches running")
	durationVar(cmd.Flags(), &e.timeout, "timeout", 0, "with --each: time limit, such as 90s")
	return cmd
}

// branches creates jails from the snapshot or jail with this id or name.
func branches(ctx context.Context, cl *client.Client, arg string, req wire.Branch) (wire.Branches, error) {
	at := arg
	if !id.Valid('s', arg) && !id.Valid('j', arg) {
		snapshots, err := snapshotsNamed(ctx, cl, arg)
		if err != nil {
			return wire.Branches{}, err
		}
		jails, err := jailsNamed(ctx, cl, arg)
		if err != nil {
			return wire.Branches{}, err
		}
		at, err = only(append(snapshots, jails...), arg, "snapshot or jail")
		if err != nil {
			return wire.Branches{}, err
		}
	}
	if id.Valid('s', at) {
		return cl.BranchSnapshot(ctx, id.Snapshot(at), req)
	}
	return cl.BranchJail(ctx, id.Jail(at), req)
}

func (c *command) printBranchErrors(errs []wire.BranchError) {
	for _, e := range errs {
		complain(c.env.Stderr, fmt.Errorf("branch %d: %w", e.Number, client.Error(e.Problem)))
	}
}

func (c *command) restore() *cobra.Command {
	var f overrideFlags
	cmd := &cobra.Command{
		Use: "restore SNAPSHOT", Short: "Restore a jail from a snapshot", Args: cobra.ExactArgs(1),
		Long: `Restore a snapshot as a new jail and print its id. The new jail starts with the
processes, memory and files of the snapshot. The original jail does not change.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := f.request()
			if err != nil {
				return err
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			sid, err := snapshotNamed(cmd.Context(), cl, args[0])
			if err != nil {
				return err
			}
			j, err := cl.RestoreSnapshot(cmd.Context(), sid, o)
			if err != nil {
				return err
			}
			return c.print(j, func(w io.Writer) { fmt.Fprintln(w, j.ID) })
		},
	}
	f.add(cmd)
	return cmd
}

func (c *command) rewind() *cobra.Command {
	var last, keep bool
	cmd := &cobra.Command{
		Use: "rewind JAIL SNAPSHOT|--last", Short: "Rewind a jail to a snapshot", Args: cobra.RangeArgs(1, 2),
		Long: `Rewind a jail to a snapshot of it or of one of its ancestors. The changes of memory
and files since the snapshot are discarded. The event log keeps the discarded events
and marks them as undone. External connections are closed. With --keep-connections,
connections that no program has used since the snapshot stay open.

With --last, the nearest snapshot is used: the last one that was taken of the jail,
that the jail was created from, or that the jail was rewound to.`,
		Example: `  glasshouse rewind j-4k2v9c7m1xqe s-9d2kq7w4hxma
  glasshouse rewind j-4k2v9c7m1xqe --last`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if last == (len(args) == 2) {
				return usagef("give a snapshot or --last")
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
			var sid id.Snapshot
			if last {
				sid, err = nearest(ctx, cl, jid)
			} else {
				sid, err = snapshotNamed(ctx, cl, args[1])
			}
			if err != nil {
				return err
			}
			to := wire.Rewind{Snapshot: sid}
			if cmd.Flags().Changed("keep-connections") {
				to.KeepConnections = &keep
			}
			j, err := cl.RewindJailTo(ctx, jid, to)
			if err != nil {
				return err
			}
			return c.print(j, func(w io.Writer) { fmt.Fprintln(w, j.ID) })
		},
	}
	cmd.Flags().BoolVar(&last, "last", false, "use the jail's nearest snapshot")
	cmd.Flags().BoolVar(&keep, "keep-connections", false, "keep unused external connections (default: from snapshot)")
	return cmd
}

func (c *command) undo() *cobra.Command {
	var steps int
	var discard bool
	cmd := &cobra.Command{
		Use: "undo JAIL", Short: "Undo the latest changes in a jail", Args: cobra.ExactArgs(1),
		Long: `Rewind a jail to its previous snapshot: programs, memory and files. If the jail may
have changed since its newest snapshot, that is the newest one, otherwise the one
before. The present state is saved in a snapshot first, unless nothing has changed or
--discard is given, and the output tells how to return to it.

A jail with --snapshots after=exec has a snapshot after each command that changed
something, so that undo undoes a command. What a command did outside of the jail, such
as a request, is not undone.`,
		Example: `  glasshouse undo j-4k2v9c7m1xqe
  glasshouse undo j-4k2v9c7m1xqe --steps 3`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			cl, err := c.client(ctx)
			if err != nil {
				return err
			}
			jid, err := jailNamed(ctx, cl, args[0])
			if err != nil {
				return err
			}
			was, err := cl.Jail(ctx, jid)
			if err != nil {
				return err
			}
			before, err := client.Collect(cl.Snapshots(ctx, client.SnapshotFilter{Jail: jid}))
			if err != nil {
				return err
			}
			j, err := cl.RewindJailTo(ctx, jid, wire.Rewind{Back: steps, Discard: discard})
			if err != nil {
				return err
			}
			to, err := cl.Snapshot(ctx, j.Nearest)
			if err != nil {
				return err
			}
			after, err := client.Collect(cl.Snapshots(ctx, client.SnapshotFilter{Jail: jid}))
			if err != nil {
				return err
			}
			back, at := was.Nearest, time.Time{} // if nothing had changed
			for _, s := range after {
				if s.CreatedAt.After(at) && !slices.ContainsFunc(before, func(b wire.Snapshot) bool { return b.ID == s.ID }) {
					back, at = s.ID, s.CreatedAt
				}
			}
			return c.print(j, func(w io.Writer) {
				fmt.Fprintf(w, "%s has the state of %s\n", j.ID, text.Visible(words(string(to.ID), to.Name, ago(to.CreatedAt, time.Now()), to.Reason, to.Trigger)))
				if back != "" && back != to.ID && !discard {
					fmt.Fprintf(w, "to return: glasshouse rewind %s %s\n", j.ID, back)
				}
			})
		},
	}
	cmd.Flags().IntVar(&steps, "steps", 1, "number of snapshots to go back")
	cmd.Flags().BoolVar(&discard, "discard", false, "do not save the present state first")
	return cmd
}

func nearest(ctx context.Context, cl *client.Client, jid id.Jail) (id.Snapshot, error) {
	j, err := cl.Jail(ctx, jid)
	if err == nil && j.Nearest == "" {
		err = fault.Newf(fault.NotFound, "", string(jid), "the jail has no snapshot to rewind to")
	}
	return j.Nearest, err
}

// removeBranches removes the created jails and the snapshot that was taken for them.
func removeBranches(ctx context.Context, cl *client.Client, made wire.Branches) error {
	errs := make([]error, len(made.Jails)+1)
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i, j := range made.Jails {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := cl.DeleteJail(ctx, j.ID); err != nil {
				errs[i] = fmt.Errorf("remove %s: %w", j.ID, err)
			}
		})
	}
	wg.Wait()
	if made.Snapshot != nil {
		if err := cl.DeleteSnapshot(ctx, made.Snapshot.ID); err != nil {
			errs[len(made.Jails)] = fmt.Errorf("remove %s: %w", made.Snapshot.ID, err)
		}
	}
	return errors.Join(errs...)
}

// eachOptions describe the command that runs in every branch.
type eachOptions struct {
	line    string
	keep    bool
	timeout time.Duration
}
