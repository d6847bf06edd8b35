package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/daemon"
	"glasshouse/fault"
	"glasshouse/host/probe"
	"glasshouse/internal/text"
)

func (c *command) doctor() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Check this host's features and print remedies for missing ones", Args: cobra.NoArgs,
		Long: `Probe all host features that Glasshouse can use. A running daemon does the probing.
Without a daemon, this process probes, with the tools directory of the configuration
with which a daemon was last started on the data directory.

Most features are optional. The exit status is 1 if no jail can run, because neither
the oci nor the bwrap backend has its requirements.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.dial()
			if err != nil {
				return err
			}
			probes, err := client.Collect(cl.Doctor(cmd.Context()))
			if errors.Is(err, fault.Unavailable) {
				var h probe.Host
				h, err = c.probedHost()
				if err != nil {
					return err
				}
				fmt.Fprintln(c.env.Stderr, "no daemon is running; probing as this user")
				probes = daemon.Doctor(cmd.Context(), h)
			}
			if err != nil {
				return err
			}
			if err := c.print(probes, func(w io.Writer) { showProbes(w, probes) }); err != nil {
				return err
			}
			if !isolates(probes) {
				fmt.Fprintln(c.env.Stderr, "glasshouse: no jail can run on this host: see the remedies above")
				return exitCode(1)
			}
			return nil
		},
	}
}

// probedHost describes the host as the daemon of this data directory would probe it.
func (c *command) probedHost() (probe.Host, error) {
	cfg := daemon.NewConfig(c.env.UID, c.env.Getenv("HOME"))
	owner, err := readService(c.dataDir())
	if err != nil {
		return probe.Host{}, err
	}
	if owner != nil && owner.Config != "" {
		if err := cfg.ReadFile(owner.Config); err != nil {
			return probe.Host{}, err
		}
	}
	return probe.Host{Data: c.dataDir(), Tools: cfg.Tools}, nil
}

// backendNeeds lists the probes that each backend needs. One successful probe of each inner list
// is enough.
var backendNeeds = [][][]string{
	{ // oci
		{"root"}, {"network namespaces"}, {"overlay with idmapped layers"}, {"sized disks"},
		{"cgroup freeze, kill and identity"}, {"seccomp"}, {"runc", "crun", "runsc"},
	},
	{{"bubblewrap"}, {"seccomp"}}, // bwrap
}

// isolates reports whether any backend can run jails on a host with these probe results.
func isolates(probes []wire.Probe) bool {
	ok := func(name string) bool {
		return slices.ContainsFunc(probes, func(p wire.Probe) bool { return p.Name == name && p.Status == "ok" })
	}
	return slices.ContainsFunc(backendNeeds, func(all [][]string) bool {
		return !slices.ContainsFunc(all, func(any []string) bool { return !slices.ContainsFunc(any, ok) })
	})
}

func showProbes(w io.Writer, probes []wire.Probe) {
	mark := map[string]string{"ok": "ok  ", "unsupported": "no  ", "unknown": "?   ", "warning": "!   "}
	for _, p := range probes {
		fmt.Fprintf(w, "%s%-22s %s\n", mark[p.Status], p.Name, text.Visible(p.Detail))
		if p.Reason != "" {
			fmt.Fprintf(w, "    %-22s %s\n", "", text.Visible(p.Reason))
		}
		if p.Remedy != "" {
			fmt.Fprintf(w, "    %-22s → %s\n", "", text.Visible(p.Remedy))
		}
	}
}
