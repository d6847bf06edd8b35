package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/daemon"
	"glasshouse/fault"
	"glasshouse/internal/text"
)

func (c *command) doctor() *cobra.Command {
	var fleet, machines, emulate bool
	cmd := &cobra.Command{
		Use: "doctor", Short: "Check this host's features and print remedies for missing ones", Args: cobra.NoArgs,
		Long: `Probe all host features that Glasshouse can use. A running daemon does the probing.
Without a daemon, this process probes, with the configuration with which a daemon was
last started on the data directory.

The first line says whether jails can run on this host, and with which program. Features
follow by need, missing ones first:

  Required      the jails of this host do not run without it
  Recommended   jails run without it, but a function is missing or weaker
  Optional      for special uses, or an alternative to another feature

The exit status is 1 if and only if no jail can run on this host.

With --fleet, all nodes of the fleet probe their hosts. The result has a line for each node, with
findings about required and recommended features, and shows between which nodes jails with
processes can move. The exit status is 1 if a node does not answer, or cannot run jails.

With --microvm, this process boots virtual machines with the kernel and the configuration of the
backend microvm, takes a snapshot, branches and rewinds it, and compares what the machines see.
It needs root and no running daemon, and downloads nothing. Each step is printed with its time.
The exit status is 1 if a step fails.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if fleet {
				return c.doctorFleet(cmd.Context())
			}
			if machines {
				return c.doctorMachines(cmd.Context(), emulate)
			}
			cl, err := c.dial()
			if err != nil {
				return err
			}
			probes, err := client.Collect(cl.Doctor(cmd.Context()))
			if errors.Is(err, fault.Unavailable) {
				var cfg daemon.Config
				cfg, err = c.probedConfig()
				if err != nil {
					return err
				}
				fmt.Fprintln(c.env.Stderr, "no daemon is running; probing as this user")
				probes = daemon.Doctor(cmd.Context(), cfg)
			}
			if err != nil {
				return err
			}
			grouped := classified(probes)
			if err := c.print(probes, func(w io.Writer) { showProbes(w, grouped) }); err != nil {
				return err
			}
			if runner, _ := daemon.Runner(grouped); runner == "" {
				fmt.Fprintln(c.env.Stderr, "glasshouse: no jail can run on this host: see the remedies above")
				return exitCode(1)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&fleet, "fleet", false, "probe the hosts of all nodes of the fleet")
	cmd.Flags().BoolVar(&machines, "microvm", false, "boot, snapshot, branch and rewind virtual machines")
	cmd.Flags().BoolVar(&emulate, "emulate", false, "with --microvm: emulate the processor if KVM does not work")
	cmd.MarkFlagsMutuallyExclusive("fleet", "microvm")
	return cmd
}

// doctorMachines tries virtual machines.
func (c *command) doctorMachines(ctx context.Context, emulate bool) error {
	if c.env.UID != 0 {
		return fault.Cannot("cli.doctor", "virtual machines need root", "run sudo glasshouse doctor --microvm")
	}
	cfg, err := c.probedConfig()
	if err != nil {
		return err
	}
	cfg.MicroVM.Emulate = cfg.MicroVM.Emulate || emulate
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM) // the machines are removed first
	defer stop()
	probes, err := c.daemon(cfg).TryMachines(ctx)
	if err != nil {
		return err
	}
	works := true
	err = c.print(probes, func(w io.Writer) {
		for _, p := range probes {
			showProbe(w, p)
		}
	})
	for _, p := range probes {
		works = works && p.Status == "ok"
	}
	if err == nil && !works {
		fmt.Fprintln(c.env.Stderr, "glasshouse: virtual machines do not work on this host")
		err = exitCode(1)
	}
	return err
}

// probedConfig returns the configuration with which the daemon of this data directory would probe
// the host.
func (c *command) probedConfig() (daemon.Config, error) {
	cfg := daemon.NewConfig(c.env.UID, c.env.Getenv("HOME"))
	owner, err := readService(c.dataDir())
	if err != nil {
		return cfg, err
	}
	if owner != nil && owner.Config != "" {
		if err := cfg.ReadFile(owner.Config); err != nil {
			return cfg, err
		}
	}
	cfg.Data = c.dataDir()
	return cfg, nil
}

// classified returns the probes with their need, which daemons of older versions do not report.
func classified(probes []wire.Probe) []wire.Probe {
	if slices.ContainsFunc(probes, func(p wire.Probe) bool { return p.Need != "" }) {
		return probes
	}
	probes = slices.Clone(probes) // the JSON output must keep the probes as the daemon reported them
	root := slices.ContainsFunc(probes, func(p wire.Probe) bool { return p.Name == "root" && p.Status == "ok" })
	daemon.Classify(probes, root, "", "")
	return probes
}

// showProbes prints the verdict and then the probes by need. In each group, those that are not ok
// come first.
func showProbes(w io.Writer, probes []wire.Probe) {
	bad := func(p wire.Probe) bool { return p.Status != "ok" }
	if runner, repair := daemon.Runner(probes); runner != "" {
		fmt.Fprintln(w, "ready: jails run with", runner)
	} else {
		fmt.Fprintln(w, "not ready: no jail can run on this host")
		if repair.Remedy != "" {
			fmt.Fprintf(w, "try: %s\n", text.Visible(repair.Remedy))
		}
	}
	missing := 0
	groups := map[string][]wire.Probe{}
	for _, p := range probes {
		groups[p.Need] = append(groups[p.Need], p)
		if p.Need == daemon.Recommended && bad(p) && p.Status != "warning" {
			missing++
		}
	}
	fmt.Fprintf(w, "recommended features missing: %d\n", missing)
	for _, g := range []struct{ need, heading string }{
		{daemon.Required, "Required"}, {daemon.Recommended, "Recommended"}, {daemon.Optional, "Optional"},
	} {
		if len(groups[g.need]) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s\n", g.heading)
		slices.SortStableFunc(groups[g.need], func(a, b wire.Probe) int {
			switch {
			case bad(a) == bad(b):
				return 0
			case bad(a):
				return -1
			}
			return 1
		})
		for _, p := range groups[g.need] {
			showProbe(w, p)
		}
	}
}

func showProbe(w io.Writer, p wire.Probe) {
	mark := map[string]string{"ok": "ok  ", "unsupported": "no  ", "unknown": "?   ", "warning": "!   "}
	below := func(s string) { fmt.Fprintf(w, "    %-22s %s\n", "", text.Visible(s)) }
	fmt.Fprintf(w, "%s%-22s %s\n", mark[p.Status], p.Name, text.Visible(p.Detail))
	if p.Status != "ok" && p.Purpose != "" {
		below("used for: " + p.Purpose)
	}
	if p.Reason != "" {
		below(p.Reason)
	}
	if p.Remedy != "" {
		below("→ " + p.Remedy)
	}
}
