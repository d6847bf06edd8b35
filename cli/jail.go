package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func (c *command) jail() *cobra.Command {
	cmd := &cobra.Command{Use: "jail", Short: "Create, use and remove jails (sandboxes)"}
	cmd.AddCommand(
		c.jailCreate(), c.jailList(), c.jailShow(),
		c.jailStart(), c.jailStop(), c.jailPause(), c.jailResume(), c.jailLimits(), c.jailMove(), c.jailRemove(),
		c.jailExec(), c.jailTerminal(), c.jailExecs(),
	)
	return cmd
}

// jailFlags are the flags that describe a new jail.
type jailFlags struct {
	name, backend, runtime, rootfs, network, group, hostname, user, observe, keep string
	env, labels, mounts                                                           []string
	limits                                                                        limitFlags
	policy                                                                        policyFlags
	egress                                                                        egressFlags
	enforce                                                                       bool
}

// limitFlags are the flags that set a jail's resource limits.
type limitFlags struct {
	memory, disk, cpus string
	cpu, pids          int64
}

// add adds the flags. def describes the value of a limit that is not given; "" stands for the
// daemon's defaults.
func (f *limitFlags) add(cmd *cobra.Command, def string) {
	or := func(daemon string) string { return cmp.Or(def, daemon) }
	fs := cmd.Flags()
	fs.StringVar(&f.cpus, "cpus", "", "processor weight in processors, such as 1.5 (256 shares each)")
	fs.Int64Var(&f.cpu, "cpu-shares", 0, "processor weight (default "+or("256")+", at most 1024)")
	cmd.MarkFlagsMutuallyExclusive("cpus", "cpu-shares")
	fs.StringVar(&f.memory, "memory", "", "memory: 512m, 2GiB (default "+or("512m")+", at most 8g)")
	fs.StringVar(&f.disk, "disk", "", "disk: 512m, 2GiB (default "+or("1g")+", at most 16g)")
	fs.Int64Var(&f.pids, "pids", 0, "processes and threads (default "+or("128")+", at most 4096)")
}

func (f *limitFlags) request() (l wire.Limits, err error) {
	l = wire.Limits{CPUShares: f.cpu, MaxPIDs: f.pids}
	if f.cpus != "" {
		l.CPUShares, err = processorShares(f.cpus)
		if err != nil {
			return l, err
		}
	}
	l.MemoryMB, err = mebibytes("memory", f.memory)
	if err != nil {
		return l, err
	}
	l.DiskMB, err = mebibytes("disk", f.disk)
	return l, err
}

func (f *jailFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.name, "name", "", "name, which no other jail has")
	fs.StringArrayVarP(&f.labels, "label", "l", nil, "label KEY=VALUE; may be repeated")
	fs.StringVar(&f.backend, "backend", "", "isolation backend: oci, microvm or bwrap")
	fs.StringVar(&f.runtime, "runtime", "", "OCI runtime: runc, crun or runsc")
	fs.StringVar(&f.rootfs, "rootfs", "", "debian:SUITE, dir:PATH, oci:IMAGE, nix:PROFILE or host")
	fs.StringVar(&f.network, "network", "", "isolated (the default), proxy, bridged or full")
	fs.StringVar(&f.group, "network-group", "", "group of bridged jails that can connect (default: default)")
	fs.StringVar(&f.hostname, "hostname", "", "host name in the jail (default: its id)")
	fs.StringVarP(&f.user, "user", "u", "", "user of all commands: name or uid, optionally with :group")
	fs.StringArrayVarP(&f.env, "env", "e", nil, "KEY=VALUE, or KEY to take the value from here; may be repeated")
	fs.StringArrayVarP(&f.mounts, "mount", "m", nil, "mount SOURCE:TARGET[:rw]; may be repeated")
	fs.StringVar(&f.observe, "observe", "", observeHelp)
	fs.StringVar(&f.keep, "snapshots", "", policyHelp)
	f.limits.add(cmd, "")
	f.policy.add(cmd)
	fs.BoolVar(&f.enforce, "enforce", false, "enforce the policy in the kernel (exec, files, network)")
	f.egress.add(cmd)
}

func (f *jailFlags) request(getenv func(string) string) (req wire.CreateJail, err error) {
	req = wire.CreateJail{
		Name: f.name, Backend: f.backend, Runtime: f.runtime, Network: f.network, Group: f.group, Hostname: f.hostname, User: f.user,
	}
	req.Env, err = keyValues(f.env, getenv)
	if err != nil {
		return req, err
	}
	req.Labels, err = keyValues(f.labels, nil)
	if err != nil {
		return req, err
	}
	req.Limits, err = f.limits.request()
	if err != nil {
		return req, err
	}
	req.Rootfs, err = parseRootfs(f.rootfs)
	if err != nil {
		return req, err
	}
	req.Observe, err = parseObserve(f.observe)
	if err != nil {
		return req, err
	}
	req.Snapshots, err = parsePolicy(f.keep)
	if err != nil {
		return req, err
	}
	req.Policy, err = f.policy.request()
	if err != nil {
		return req, err
	}
	req.Enforce = f.enforce
	req.Egress, err = f.egress.request()
	if err != nil {
		return req, err
	}
	if req.Egress != nil && req.Network == "" {
		req.Network = "proxy"
	}
	for _, m := range f.mounts {
		mount, err := parseMount(m)
		if err != nil {
			return req, err
		}
		req.Mounts = append(req.Mounts, mount)
	}
	return req, nil
}

func parseRootfs(s string) (wire.Rootfs, error) {
	kind, rest, _ := strings.Cut(s, ":")
	switch {
	case s == "":
		return wire.Rootfs{}, nil
	case s == "host":
		return wire.Rootfs{Host: true}, nil
	case rest == "": // for the daemon, an empty name is the default root filesystem
		kind = ""
	}
	switch kind {
	case "debian":
		return wire.Rootfs{Debian: rest}, nil
	case "dir":
		return wire.Rootfs{Dir: rest}, nil
	case "oci":
		return wire.Rootfs{OCI: rest}, nil
	case "nix":
		return wire.Rootfs{Nix: rest}, nil
	}
	return wire.Rootfs{}, usagef("--rootfs %q is not debian:SUITE, dir:PATH, oci:IMAGE, nix:PROFILE or host", s)
}

func parseMount(s string) (wire.Mount, error) {
	parts := strings.Split(s, ":")
	switch {
	case len(parts) == 2:
		return wire.Mount{Source: parts[0], Target: parts[1]}, nil
	case len(parts) == 3 && (parts[2] == "rw" || parts[2] == "ro"):
		return wire.Mount{Source: parts[0], Target: parts[1], Write: parts[2] == "rw"}, nil
	}
	return wire.Mount{}, usagef("--mount %q is not SOURCE:TARGET or SOURCE:TARGET:rw", s)
}

func rootfsName(r wire.Rootfs) string {
	switch {
	case r.Debian != "":
		return "debian " + r.Debian
	case r.Dir != "":
		return "dir " + r.Dir
	case r.OCI != "":
		return r.OCI
	case r.Nix != "":
		return "nix " + r.Nix
	case r.Host:
		return "host"
	}
	return "default"
}

// create is jail create without the word jail.
func (c *command) create() *cobra.Command { return c.jailCreate() }

func (c *command) jailCreate() *cobra.Command {
	var f jailFlags
	var start bool
	var file string
	cmd := &cobra.Command{
		Use:   "create [flags] [-- COMMAND [ARG...]]",
		Short: "Create a jail",
		Long: `Create a jail and print its id. If a command is given, it runs at each start of the
jail. The jail keeps running when the command exits.

With --file, the description of the jail is read from a YAML or JSON file with the
fields of POST /jails. Unknown fields are errors. Other options are not accepted then.

` + observeLong + "\n\n" + policyLong,
		RunE: func(cmd *cobra.Command, args []string) error {
			var req wire.CreateJail
			var err error
			if file != "" {
				if err := onlyFile(cmd, args); err != nil {
					return err
				}
				req, err = c.readJailFile(file)
			} else {
				req, err = f.request(c.env.Getenv)
				req.Command, req.Start = args, start
			}
			if err != nil {
				return err
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			j, err := cl.CreateJail(cmd.Context(), req)
			if err != nil {
				return err
			}
			return c.print(j, func(w io.Writer) { fmt.Fprintln(w, j.ID) })
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&start, "start", false, "start the jail")
	cmd.Flags().StringVarP(&file, "file", "f", "", "YAML or JSON file that describes the jail; - for stdin")
	return cmd
}

// onlyFile returns an error if a command with --file has options or arguments that describe a jail.
func onlyFile(cmd *cobra.Command, args []string) (err error) {
	if len(args) > 0 {
		return usagef("--file and a command exclude each other: set command in the file")
	}
	cmd.LocalNonPersistentFlags().VisitAll(func(fl *pflag.Flag) {
		if fl.Changed && fl.Name != "file" && err == nil {
			err = usagef("--file and --%s exclude each other: set it in the file", fl.Name)
		}
	})
	return err
}

func (c *command) jailList() *cobra.Command {
	var o client.JailFilter
	var labels []string
	var quiet, everywhere bool
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List jails, oldest first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			o.Label, err = keyValues(labels, nil)
			if err != nil {
				return err
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			if everywhere {
				o.Nodes = "all"
			}
			all, err := client.Collect(cl.Jails(cmd.Context(), o))
			if err != nil {
				return err
			}
			return c.print(all, func(w io.Writer) {
				rows := [][]string{{"ID", "NAME", "STATE", "RUNTIME", "IMAGE", "CREATED"}}
				if everywhere {
					rows[0] = append(rows[0], "NODE")
				}
				for _, j := range all {
					if quiet {
						fmt.Fprintln(w, j.ID)
						continue
					}
					runtime := j.Runtime
					if runtime == "" {
						runtime = j.Backend
					}
					row := []string{string(j.ID), j.Name, stateText(j), runtime, rootfsName(j.Rootfs), ago(j.CreatedAt, time.Now())}
					if everywhere {
						row = append(row, j.Node)
					}
					rows = append(rows, row)
				}
				if !quiet {
					table(w, rows)
				}
			})
		},
	}
	cmd.Flags().StringVar(&o.State, "state", "", "only jails in this state")
	cmd.Flags().StringVar(&o.Name, "name", "", "only jails of this name")
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil, "only jails with KEY=VALUE; may be repeated")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only ids")
	cmd.Flags().BoolVar(&everywhere, "all-nodes", false, "jails of all nodes of the fleet, with their node")
	return cmd
}

// stateText returns a jail's state and the types of its conditions.
func stateText(j wire.Jail) string {
	words := []string{j.State}
	for _, c := range j.Conditions {
		words = append(words, c.Type)
	}
	return strings.Join(words, ",")
}

func (c *command) jailShow() *cobra.Command {
	return &cobra.Command{
		Use: "show JAIL", Short: "Show a jail and its resource usage", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withJail(cmd, args[0], func(cl *client.Client, jid id.Jail) error {
				j, err := cl.Jail(cmd.Context(), jid)
				if err != nil {
					return err
				}
				return c.print(j, func(w io.Writer) { showJail(w, j) })
			})
		},
	}
}

func showJail(w io.Writer, j wire.Jail) {
	rows := [][]string{{"id", string(j.ID)}}
	add := func(k, v string) {
		if v != "" {
			rows = append(rows, []string{k, v})
		}
	}
	add("name", j.Name)
	add("state", j.State)
	add("reason", j.Reason)
	for _, c := range j.Conditions {
		add(c.Type, c.Detail+"; "+c.Remedy)
	}
	add("backend", strings.TrimSuffix(j.Backend+" "+j.Runtime, " "))
	add("rootfs", rootfsName(j.Rootfs))
	add("digest", j.Digest)
	add("network", j.Network)
	add("recorded", observeText(j.Observe))
	add("snapshots", policyText(j.Snapshots))
	add("created", j.CreatedAt.Local().Format(time.DateTime))
	if o := j.Origin; o != nil {
		add("made from", fmt.Sprintf("%s of %s, number %d", o.Snapshot, o.Jail, o.Number))
	}
	add("nearest", string(j.Nearest))
	l := j.Limits
	if u := j.Usage; u != nil {
		add("cpu", fmt.Sprintf("%v used, weight %d", time.Duration(u.CPUMS)*time.Millisecond, l.CPUShares))
		add("memory", fmt.Sprintf("%s of %s, peak %s", size(u.MemoryBytes), size(l.MemoryMB<<20), size(u.MemoryPeak)))
		add("disk", fmt.Sprintf("%s of %s", size(u.DiskBytes), size(u.DiskLimit)))
		add("processes", fmt.Sprintf("%d of %d", u.PIDs, l.MaxPIDs))
		if u.OOMKills > 0 {
			add("out of memory", fmt.Sprintf("%d killed", u.OOMKills))
		}
		add("not measured", strings.Join(u.NotMeasured, ", "))
	} else {
		add("limits", limitText(l))
	}
	if o := j.Observation; o != nil {
		showObservation(add, *o)
	}
	table(w, rows)
}

// showObservation shows the state of a jail's recording, including lost events.
func showObservation(add func(k, v string), o wire.Observation) {
	add("events", fmt.Sprintf("%d stored, %s", o.Log.Events, size(o.Log.Bytes)))
	for _, t := range slices.Sorted(maps.Keys(o.Log.Lost)) {
		add("events lost", fmt.Sprintf("%d of type %s: the disk was too slow", o.Log.Lost[t], t))
	}
	add("not written", o.Log.Err)
	for _, name := range slices.Sorted(maps.Keys(o.Sources)) {
		s := o.Sources[name]
		text := fmt.Sprintf("%d seen, %d lost", s.Seen, s.Lost)
		if s.Throttled > 0 {
			text += fmt.Sprintf(", slowed the jail %d times", s.Throttled)
		}
		if s.Err != "" {
			text += ": " + s.Err
		}
		add("  "+name, text)
	}
}

// each runs f on every named jail. It continues after an error.
func (c *command) each(use, short, long string, f func(context.Context, *client.Client, id.Jail) (any, error)) *cobra.Command {
	return &cobra.Command{
		Use: use + " JAIL...", Short: short, Long: long, Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			failed := false
			for _, arg := range args {
				var v any
				j, err := jailNamed(cmd.Context(), cl, arg)
				if err == nil {
					v, err = f(cmd.Context(), cl, j)
				}
				if err == nil {
					err = c.print(v, func(w io.Writer) { fmt.Fprintln(w, arg) })
				}
				if err != nil && len(args) == 1 {
					return err
				}
				if err != nil {
					complain(c.env.Stderr, fmt.Errorf("%s: %w", arg, err))
					failed = true
				}
			}
			if failed {
				return exitCode(exitError)
			}
			return nil
		},
	}
}

func (c *command) jailStart() *cobra.Command {
	return c.each("start", "Start jails", "", func(ctx context.Context, cl *client.Client, j id.Jail) (any, error) {
		return cl.StartJail(ctx, j)
	})
}

func (c *command) jailStop() *cobra.Command {
	var grace time.Duration
	cmd := c.each("stop", "Stop jails", "Stop jails by ending all their processes: with SIGTERM, and those that continue after --grace\nwith SIGKILL. Their files stay, and they can be started again.",
		func(ctx context.Context, cl *client.Client, j id.Jail) (any, error) {
			return cl.StopJail(ctx, j, grace)
		})
	durationVar(cmd.Flags(), &grace, "grace", 10*time.Second, "time between SIGTERM and SIGKILL; 0: SIGKILL at once")
	return cmd
}

func (c *command) jailPause() *cobra.Command {
	return c.each("pause", "Pause jails by freezing all their processes", "", func(ctx context.Context, cl *client.Client, j id.Jail) (any, error) {
		return cl.PauseJail(ctx, j)
	})
}

func (c *command) jailResume() *cobra.Command {
	return c.each("resume", "Resume paused jails", "", func(ctx context.Context, cl *client.Client, j id.Jail) (any, error) {
		return cl.ResumeJail(ctx, j)
	})
}

func (c *command) jailMove() *cobra.Command {
	return &cobra.Command{
		Use: "move JAIL [NODE]", Short: "Move a jail to another node of the fleet", Args: cobra.RangeArgs(1, 2),
		Long: `Move a jail to another node of the fleet, by default to the one with the fewest jails. It
continues there with its processes, files, ID and event log. It stands still meanwhile,
and its network connections are closed. If the move fails, it continues on its node.

The other node needs the root filesystem of the jail, the same processor, and a kernel that
is not older. Jails of agents and of clients of E2B do not move, nor do those with
directories of their host or with the network bridged. Snapshots stay on their node, and
can still be used. The audit log of each node has what happened there.`,
		Example: "  glasshouse jail move j-4k2v9c7m1xqe box2\n  glasshouse jail move j-4k2v9c7m1xqe",
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			j, err := jailNamed(cmd.Context(), cl, args[0])
			if err != nil {
				return err
			}
			m, err := cl.MoveJail(cmd.Context(), j, strings.Join(args[1:], ""))
			if err != nil {
				return err
			}
			return c.print(m, func(w io.Writer) { fmt.Fprintf(w, "moved %s to %s\n", m.ID, text.Visible(m.Name)) })
		},
	}
}

func (c *command) jailRemove() *cobra.Command {
	var snapshots bool
	cmd := c.each("rm", "Remove jails and their files, in any state",
		`Remove jails and their files, in any state. Automatic snapshots of the jails are
removed. Other snapshots stay, unless --snapshots is given.`,
		func(ctx context.Context, cl *client.Client, j id.Jail) (any, error) {
			remove := cl.DeleteJail
			if snapshots {
				remove = cl.DeleteJailAndSnapshots
			}
			if err := remove(ctx, j); err != nil {
				return nil, err
			}
			os.Remove(c.appliedFile(j))
			return map[string]id.Jail{"removed": j}, nil
		})
	cmd.Aliases = []string{"delete"}
	cmd.Flags().BoolVar(&snapshots, "snapshots", false, "also remove their snapshots")
	return cmd
}
