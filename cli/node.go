package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/daemon"
	"glasshouse/id"
	"glasshouse/internal/atomicfile"
	"glasshouse/internal/text"
)

func (c *command) fleet() *cobra.Command {
	cmd := &cobra.Command{Use: "fleet", Short: "Create a fleet of daemons on several hosts"}
	cmd.AddCommand(c.fleetInit())
	return cmd
}

func (c *command) fleetInit() *cobra.Command {
	var keys, secret string
	cmd := &cobra.Command{
		Use: "init", Short: "Create a fleet with this host as its first node", Args: cobra.NoArgs,
		Long: `Create the certificate authority of a fleet and the certificate of this node, in the
directory fleet of the data directory. The daemon uses them when it starts with
fleet.listen. Other nodes join with glasshouse node token and glasshouse node join.

The key of the authority stays on this node. With it, nodes can be added: protect it, and
keep a backup.

With --keys, create only the keys of a fleet, as files of a new directory. Each daemon that
has the directory as fleet.keys joins the fleet when it starts, without a token. With
--kubernetes-secret, store the same files as a Secret of the Kubernetes cluster in which
this command runs, unless the Secret exists.`,
		Example: `  glasshouse fleet init
  glasshouse fleet init --keys fleet-keys`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case keys != "":
				return c.createFleetKeys(keys)
			case secret != "":
				return c.createFleetSecret(cmd.Context(), secret)
			}
			authority, err := daemon.InitFleet(c.dataDir())
			if err != nil {
				return err
			}
			fmt.Fprintf(c.env.Stdout, "created a fleet with the authority %s\n", authority)
			c.printFleetSettings()
			return nil
		},
	}
	cmd.Flags().StringVar(&keys, "keys", "", "write the keys of the fleet to this new directory, for fleet.keys of its daemons")
	cmd.Flags().StringVar(&secret, "kubernetes-secret", "", "store the keys of the fleet as this Secret of Kubernetes")
	cmd.MarkFlagsMutuallyExclusive("keys", "kubernetes-secret")
	return cmd
}

// createFleetKeys writes the keys of a new fleet to a directory.
func (c *command) createFleetKeys(dir string) error {
	files, authority, err := daemon.NewFleetKeys()
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("create the directory of the keys: %w", err)
	}
	for name, data := range files {
		if err := atomicfile.Durable(filepath.Join(dir, name), data, 0o600); err != nil {
			return fmt.Errorf("write the keys of the fleet: %w", err)
		}
	}
	fmt.Fprintf(c.env.Stdout, "created the keys of a fleet with the authority %s in %s\n", authority, dir)
	return nil
}

// createFleetSecret stores the keys of a new fleet as a Secret of Kubernetes.
func (c *command) createFleetSecret(ctx context.Context, name string) error {
	files, authority, err := daemon.NewFleetKeys()
	if err != nil {
		return err
	}
	k, err := ownCluster(c.env.Getenv, serviceAccount)
	if err != nil {
		return err
	}
	created, err := k.createSecret(ctx, name, files)
	if err != nil {
		return err
	}
	if !created {
		fmt.Fprintf(c.env.Stdout, "the Secret %s exists already and is unchanged\n", name)
		return nil
	}
	fmt.Fprintf(c.env.Stdout, "created the keys of a fleet with the authority %s as the Secret %s\n", authority, name)
	return nil
}

// printFleetSettings prints what the configuration of a node needs.
func (c *command) printFleetSettings() {
	fmt.Fprint(c.env.Stdout, `set these in the configuration of the daemon, and restart it; its jails keep running:

gateway:
  db: postgres://...         # the same on all nodes
  key_file: /path/to/key     # the same on all nodes
fleet:
  listen: ADDRESS:8443       # an address of this host that the other nodes reach
`)
}

func (c *command) nodes() *cobra.Command {
	cmd := &cobra.Command{Use: "node", Short: "Daemons that form a fleet, or share the database of runs"}
	cmd.AddCommand(c.nodeList(), c.nodeToken(), c.nodeJoin(), c.nodeDrain(), c.nodeRemove())
	return cmd
}

func (c *command) nodeList() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the daemons that share the database of runs", Args: cobra.NoArgs,
		Long: `List the daemons that share the database of runs (gateway.db).

A daemon executes the runs of its sessions while it has a lease, which it renews every
five seconds. A daemon that is lost did not renew it in time: the other daemons have
its sessions. The daemon that answers is marked with *.`,
		Example: `  glasshouse node ls
  glasshouse node ls -o json | jq -r '.[] | select(.state == "lost").name'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			all, err := client.Collect(cl.Nodes(cmd.Context()))
			if err != nil {
				return err
			}
			if len(all) == 0 {
				fmt.Fprintln(c.env.Stderr, "glasshouse: this daemon shares its database of runs with no other; gateway.db in the configuration sets a database that several daemons use")
			}
			return c.print(all, func(w io.Writer) { showNodes(w, all) })
		},
	}
}

// freeOf shows how much of something is free; "": that is unknown.
func freeOf(free, total int64) string {
	if total == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f of %.1f GiB free", float64(free)/(1<<30), float64(total)/(1<<30))
}

func showNodes(w io.Writer, all []wire.Node) {
	rows := [][]string{{"", "ID", "NAME", "STATE", "VERSION", "ADDRESS", "LEASE", "JAILS", "SESSIONS", "RUNS", "CPUS", "MEMORY", "DISK", "UNSHIPPED", "HOST"}}
	for _, n := range all {
		self, lease, state := "", "expired", n.State
		if n.Self {
			self = "*"
		}
		if n.LeaseMS > 0 {
			lease = (time.Duration(n.LeaseMS) * time.Millisecond).Round(time.Second).String()
		}
		cpus := ""
		if n.CPUs > 0 {
			cpus = strconv.Itoa(n.CPUs)
		}
		unshipped := ""
		if n.UnshippedBytes > 0 {
			unshipped = size(n.UnshippedBytes)
		}
		if n.Draining {
			state += ",draining"
		}
		if n.Front {
			state += ",front"
		}
		rows = append(rows, []string{self, n.ID, n.Name, state, n.Version, n.Address, lease, strconv.Itoa(n.Jails), strconv.Itoa(n.Sessions), strconv.Itoa(n.Runs),
			cpus, freeOf(n.FreeMemory, n.Memory), freeOf(n.FreeDisk, n.Disk), unshipped, strings.TrimSpace(n.Arch + " " + n.Kernel)})
	}
	table(w, rows)
}

func (c *command) nodeToken() *cobra.Command {
	return &cobra.Command{
		Use: "token", Short: "Create a token with which one node joins the fleet", Args: cobra.NoArgs,
		Long: `Create a token with which one node can join the fleet, once and within ten minutes, and
print the command for that node. The daemon must be that of the node on which the fleet
was created.`,
		Example: "  glasshouse node token",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			t, err := cl.CreateNodeToken(cmd.Context())
			if err != nil {
				return err
			}
			return c.print(t, func(w io.Writer) {
				fmt.Fprintf(w, "glasshouse node join %s --token %s --ca %s\n", t.Address, t.Token, t.Authority)
			})
		},
	}
}

func (c *command) nodeJoin() *cobra.Command {
	var token, authority string
	cmd := &cobra.Command{
		Use: "join ADDRESS", Short: "Let this host join a fleet", Args: cobra.ExactArgs(1),
		Long: `Get a certificate for this node from the node at ADDRESS, and store it in the directory
fleet of the data directory. The daemon uses it when it starts with fleet.listen, and
renews it every eight hours. A node that was off for 30 days must join again.

glasshouse node token on the other node prints the command with its flags. The token
is sent only to a node of the fleet whose authority has the fingerprint in --ca.`,
		Example: "  glasshouse node join 10.0.0.5:8443 --token ghj_7K2QXW --ca sha256:9f86d081884c",
		RunE: func(cmd *cobra.Command, args []string) error {
			if token == "" || !strings.HasPrefix(authority, "sha256:") {
				return usagef("--token and --ca are required; glasshouse node token prints them")
			}
			if err := daemon.JoinFleet(cmd.Context(), c.dataDir(), args[0], token, authority); err != nil {
				return err
			}
			fmt.Fprintf(c.env.Stdout, "joined the fleet at %s\n", args[0])
			c.printFleetSettings()
			return nil
		},
	}
	cmd.Flags().StringVar(&token, "token", "", "token that glasshouse node token printed")
	cmd.Flags().StringVar(&authority, "ca", "", "fingerprint of the authority of the fleet, as sha256:HEX")
	return cmd
}

func (c *command) nodeDrain() *cobra.Command {
	var undo, move bool
	cmd := &cobra.Command{
		Use: "drain NODE", Short: "Give a node no new jails and sessions", Args: cobra.ExactArgs(1),
		Long: `Give a node no new jails and no sessions of lost nodes. Jails and runs that it has stay,
and clients can still create jails on it with --node.

With --move, its jails move to other nodes, each to the one with the fewest jails. Those
that cannot move, such as sandboxes of clients of E2B, are listed, and the exit code is 1.`,
		Example: "  glasshouse node drain box3\n  glasshouse node drain box3 --move\n  glasshouse node drain box3 --undo",
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			draining := !undo
			n, err := cl.UpdateNode(cmd.Context(), args[0], wire.UpdateNode{Draining: &draining})
			if err != nil {
				return err
			}
			if move {
				return c.moveAll(cmd.Context(), cl, n)
			}
			return c.print(n, func(w io.Writer) { showNodes(w, []wire.Node{n}) })
		},
	}
	cmd.Flags().BoolVar(&move, "move", false, "move its jails to other nodes")
	cmd.Flags().BoolVar(&undo, "undo", false, "give it new jails and sessions again")
	cmd.MarkFlagsMutuallyExclusive("move", "undo")
	return cmd
}

// A movedJail is the result for one jail of a node that is drained.
type movedJail struct {
	ID   id.Jail `json:"id"`
	Name string  `json:"name,omitempty"` // of the jail
	Node string  `json:"node,omitempty"` // name of its node now; "" is the one that is drained
	Why  string  `json:"why,omitempty"`  // it was not moved
}

// moveAll moves the jails of a node to others, a few at the same time.
func (c *command) moveAll(ctx context.Context, cl *client.Client, from wire.Node) error {
	jails, err := client.Collect(cl.At(from.ID).Jails(ctx, client.JailFilter{Nodes: "self"}))
	if err != nil {
		return err
	}
	all := make([]movedJail, len(jails))
	var group errgroup.Group
	group.SetLimit(4)
	for i, j := range jails {
		all[i] = movedJail{ID: j.ID, Name: j.Name}
		group.Go(func() error {
			moved, err := cl.MoveJail(ctx, j.ID, "")
			if err != nil {
				all[i].Why = err.Error()
			} else {
				all[i].Node = moved.Name
			}
			return nil
		})
	}
	_ = group.Wait()
	err = c.print(all, func(w io.Writer) {
		for _, m := range all {
			which := strings.TrimSpace(string(m.ID) + " " + text.Visible(m.Name))
			if m.Why != "" {
				fmt.Fprintf(w, "%s: not moved: %s\n", which, text.Visible(m.Why))
			} else {
				fmt.Fprintf(w, "%s: moved to %s\n", which, text.Visible(m.Node))
			}
		}
	})
	if err == nil && slices.ContainsFunc(all, func(m movedJail) bool { return m.Why != "" }) {
		err = exitCode(exitError)
	}
	return err
}

func (c *command) nodeRemove() *cobra.Command {
	var lost bool
	cmd := &cobra.Command{
		Use: "rm NODE", Short: "Remove a node from the fleet", Args: cobra.ExactArgs(1),
		Long: `Remove a node from the fleet. Its certificate is then refused, and its daemon gets no
lease before it joins again. A node with jails or sessions is removed only with --lost.`,
		Example: "  glasshouse node rm box3\n  glasshouse node rm box3 --lost",
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			return cl.RemoveNode(cmd.Context(), args[0], lost)
		},
	}
	cmd.Flags().BoolVar(&lost, "lost", false, "the node does not come back; other nodes continue its runs")
	return cmd
}
