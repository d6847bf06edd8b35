package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"glasshouse/api/client"
	"glasshouse/id"

	"github.com/spf13/cobra"
)

func (c *command) processes() *cobra.Command {
	var at string
	var all, watch bool
	cmd := &cobra.Command{
		Use: "ps JAIL", Short: "Show the process tree of a jail, now or at an earlier time", Args: cobra.ExactArgs(1),
		Long: `Show the process tree of a jail. --at shows the tree at an earlier time, given as a
time, an age, or the sequence number of an event. --all includes exited processes and
their exit status.`,
		Example: `  glasshouse ps j-4k2v9c7m1xqe --all
  glasshouse ps j-4k2v9c7m1xqe --at 5m
  glasshouse ps j-4k2v9c7m1xqe --watch`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if watch && at != "" {
				return usagef("--watch and --at exclude each other")
			}
			at, err := instant("--at", at)
			if err != nil {
				return err
			}
			return c.withJail(cmd, args[0], func(cl *client.Client, jid id.Jail) error {
				if watch {
					return c.watch(cmd.Context(), func(ctx context.Context, w io.Writer) error {
						return c.showProcesses(ctx, w, cl, jid, "", all)
					})
				}
				return c.showProcesses(cmd.Context(), c.env.Stdout, cl, jid, at, all)
			})
		},
	}
	cmd.Flags().StringVar(&at, "at", "", "time, age such as 5m, or sequence number")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also show exited processes")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "refresh every second until interrupted")
	return cmd
}

func (c *command) showProcesses(ctx context.Context, w io.Writer, cl *client.Client, jid id.Jail, at string, all bool) error {
	if c.json {
		p, err := cl.Processes(ctx, jid, at, all)
		if err != nil {
			return err
		}
		return c.print(p, nil)
	}
	text, err := cl.ProcessText(ctx, jid, at, all)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, text)
	return err
}

// watch calls show every second. On a terminal, each output replaces the previous one.
func (c *command) watch(ctx context.Context, show func(context.Context, io.Writer) error) error {
	out := c.screen("never")
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		var b strings.Builder
		if err := show(ctx, &b); ctx.Err() != nil {
			return nil // interrupted by the user
		} else if err != nil {
			return err
		}
		if _, err := io.WriteString(out, out.page(b.String())); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (c *command) network() *cobra.Command {
	var follow, packets, hosts bool
	var pcap, colour string
	var span timeFlags
	cmd := &cobra.Command{
		Use: "net JAIL", Short: "Show the network connections of a jail", Args: cobra.ExactArgs(1),
		Long: `List the network connections of a jail: the peer (by host name if the jail resolved
it), the process, the bytes in each direction and the state. --packets lists packets,
--follow also new ones. --hosts sums the traffic by host and shows the decisions of
the egress proxy.

--pcap writes the recorded bytes of packets to a file for Wireshark. The number of
bytes recorded per packet is set at the creation of the jail (--observe
packet_bytes=128).`,
		Example: `  glasshouse net j-4k2v9c7m1xqe
  glasshouse net j-4k2v9c7m1xqe --follow
  glasshouse net j-4k2v9c7m1xqe --pcap out.pcapng`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if pcap != "" && (follow || packets || hosts) {
				return usagef("--pcap downloads the stored packets and cannot be combined with --follow, --packets and --hosts")
			}
			if hosts && (follow || packets) {
				return usagef("--hosts cannot be combined with --follow and --packets")
			}
			since, until, err := span.times()
			if err != nil {
				return err
			}
			if (pcap != "" || hosts) && (span != timeFlags{}) {
				return usagef("--since and --until cannot be combined with --pcap and --hosts")
			}
			period := client.Period{Since: since, Until: until}
			out := c.screen(colour)
			cl, err := c.client(ctx)
			if err != nil {
				return err
			}
			jid, err := jailNamed(ctx, cl, args[0])
			if err != nil {
				return err
			}
			switch {
			case pcap != "":
				return c.save(pcap, func() (io.ReadCloser, error) { return cl.Packets(ctx, jid) })
			case hosts:
				return c.showHosts(ctx, cl, jid)
			case follow, packets:
				return c.showEvents(ctx, cl, jid, client.EventQuery{Filter: "proto:*", Follow: follow, Since: since, Until: until}, out)
			case c.json:
				flows, err := client.Collect(cl.Flows(ctx, jid, period))
				if err != nil {
					return err
				}
				return c.print(flows, nil)
			}
			text, err := cl.NetworkText(ctx, jid, period)
			if err != nil {
				return err
			}
			_, err = io.WriteString(out, text)
			return err
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "follow packets until interrupted")
	cmd.Flags().BoolVar(&packets, "packets", false, "list packets instead of connections")
	cmd.Flags().BoolVar(&hosts, "hosts", false, "group by host, with policy decisions")
	cmd.Flags().StringVar(&pcap, "pcap", "", "write recorded packets to this file (-: standard output)")
	span.add(cmd.Flags())
	c.colourFlag(cmd, &colour)
	return cmd
}

func (c *command) report() *cobra.Command {
	var html, markdown bool
	var output string
	var span timeFlags
	cmd := &cobra.Command{
		Use: "report JAIL", Short: "Report the activity of a jail on one page", Args: cobra.ExactArgs(1),
		Long: `Report the activity of a jail: programs, files, network peers, failures, notable
events, resource usage, and gaps in the event log. The format is Markdown or a
self-contained HTML page.`,
		Example: `  glasshouse report j-4k2v9c7m1xqe
  glasshouse report j-4k2v9c7m1xqe --html -o report.html
  glasshouse report j-4k2v9c7m1xqe --json | jq .completeness`,
		RunE: func(cmd *cobra.Command, args []string) error {
			since, until, err := span.times()
			if err != nil {
				return err
			}
			format := "md"
			switch {
			case html && (markdown || c.json), markdown && c.json:
				return usagef("--html, --md and --json exclude each other")
			case html:
				format = "html"
			case c.json:
				format = "json"
			}
			return c.withJail(cmd, args[0], func(cl *client.Client, jid id.Jail) error {
				return c.save(output, func() (io.ReadCloser, error) {
					return cl.Report(cmd.Context(), jid, format, client.Period{Since: since, Until: until})
				})
			})
		},
	}
	cmd.Flags().BoolVar(&html, "html", false, "write HTML")
	cmd.Flags().BoolVar(&markdown, "md", false, "write Markdown (default)")
	span.add(cmd.Flags())
	cmd.Flags().StringVarP(&output, "output", "o", "-", "output file (-: standard output)")
	return cmd
}

// save writes a stream to a file, complete or not at all, or to standard output.
func (c *command) save(name string, open func() (io.ReadCloser, error)) (err error) {
	r, err := open()
	if err != nil {
		return err
	}
	defer r.Close()
	if name == "-" {
		_, err := io.Copy(c.env.Stdout, r)
		if err != nil {
			return fmt.Errorf("copy to the standard output: %w", err)
		}
		return nil
	}
	tmp := name + ".part"
	w, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(tmp)
		}
	}()
	_, err = io.Copy(w, r)
	if err != nil {
		w.Close()
		return fmt.Errorf("write %s: %w", name, err)
	}
	err = w.Close()
	if err != nil {
		return fmt.Errorf("complete %s: %w", tmp, err)
	}
	return os.Rename(tmp, name)
}
