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
		Use: "ps JAIL", Short: "Show the tree of a jail's processes, now or at any time before", Args: cobra.ExactArgs(1),
		Long: `Show the tree of a jail's processes. With --at it is the tree as it was then: at
a time, so long ago, or when the record with a sequence number was made. With --all
it has those too that had ended, and how.`,
		Example: `  glasshouse ps j-4k2v9c7m1xqe --all
  glasshouse ps j-4k2v9c7m1xqe --at 5m
  glasshouse ps j-4k2v9c7m1xqe --watch`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if watch && at != "" {
				return usagef("--watch shows what is, --at what was")
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
	cmd.Flags().StringVar(&at, "at", "", "as it was: a time such as 2026-01-02T15:04:05Z, how long ago, or a sequence number")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also those that have ended")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "every second anew, until interrupted")
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

// watch shows what show writes, every second anew: over itself on a terminal, one
// after the other elsewhere.
func (c *command) watch(ctx context.Context, show func(context.Context, io.Writer) error) error {
	out, err := c.screen("never")
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		var b strings.Builder
		if err := show(ctx, &b); ctx.Err() != nil {
			return nil // as asked
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
	cmd := &cobra.Command{
		Use: "net JAIL", Short: "Show whom a jail talked to", Args: cobra.ExactArgs(1),
		Long: `List the connections of a jail: with whom, by name where it asked for one, which
process, how much each way and what became of it. With --packets its packets are
listed one by one, with --follow as they come. With --hosts they are summed up by
host, with what the way out of the jail said to requests there.

With --pcap the bytes kept of them are written to a file that Wireshark opens; how
many are kept of each packet is said when the jail is made (--observe packet_bytes=128).`,
		Example: `  glasshouse net j-4k2v9c7m1xqe
  glasshouse net j-4k2v9c7m1xqe --follow
  glasshouse net j-4k2v9c7m1xqe --pcap out.pcapng`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if pcap != "" && (follow || packets || hosts) {
				return usagef("--pcap is what is kept now; it does not go with --follow, --packets and --hosts")
			}
			if hosts && (follow || packets) {
				return usagef("--hosts are sums; they do not go with --follow and --packets")
			}
			out, err := c.screen(colour)
			if err != nil {
				return err
			}
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
				return c.showEvents(ctx, cl, jid, client.EventQuery{Filter: "proto:*", Follow: follow}, out)
			case c.json:
				flows, err := client.Collect(cl.Flows(ctx, jid))
				if err != nil {
					return err
				}
				return c.print(flows, nil)
			}
			text, err := cl.NetworkText(ctx, jid)
			if err != nil {
				return err
			}
			_, err = io.WriteString(out, text)
			return err
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "packets as they come, until interrupted")
	cmd.Flags().BoolVar(&packets, "packets", false, "each packet, not each connection")
	cmd.Flags().BoolVar(&hosts, "hosts", false, "by host, with what was decided")
	cmd.Flags().StringVar(&pcap, "pcap", "", "write the bytes kept of packets to this file, - is standard output")
	colourFlag(cmd, &colour)
	return cmd
}

func (c *command) report() *cobra.Command {
	var html, markdown bool
	var output string
	cmd := &cobra.Command{
		Use: "report JAIL", Short: "Report on all that a jail did, on one page", Args: cobra.ExactArgs(1),
		Long: `Report on a jail: what ran, what it touched, whom it talked to, what failed, what
is notable, what it used, and whether anything is missing from the record. As
Markdown, or a page for a browser that needs nothing else.`,
		Example: `  glasshouse report j-4k2v9c7m1xqe
  glasshouse report j-4k2v9c7m1xqe --html -o report.html
  glasshouse report j-4k2v9c7m1xqe --json | jq .completeness`,
		RunE: func(cmd *cobra.Command, args []string) error {
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
				return c.save(output, func() (io.ReadCloser, error) { return cl.Report(cmd.Context(), jid, format) })
			})
		},
	}
	cmd.Flags().BoolVar(&html, "html", false, "a page for a browser")
	cmd.Flags().BoolVar(&markdown, "md", false, "Markdown, the default")
	cmd.Flags().StringVarP(&output, "output", "o", "-", "write to this file, - is standard output")
	return cmd
}

// save writes what open gives to a file, whole or not at all, or to standard
// output.
func (c *command) save(name string, open func() (io.ReadCloser, error)) (err error) {
	r, err := open()
	if err != nil {
		return err
	}
	defer r.Close()
	if name == "-" {
		_, err := io.Copy(c.env.Stdout, r)
		return err
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
	if _, err = io.Copy(w, r); err != nil {
		w.Close()
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err = w.Close(); err != nil {
		return err
	}
	return os.Rename(tmp, name)
}
