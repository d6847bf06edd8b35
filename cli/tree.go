package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// addCommands adds all commands to the root command, in groups. The commands runs, snapshots and
// approvals are not listed in its help: they have other names now.
func (c *command) addCommands(root *cobra.Command) {
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Start", []*cobra.Command{c.run(), c.apply(), c.diff(), c.goal(), c.ui(), c.doctor(), c.version()}},
		{"Jails", []*cobra.Command{c.jail(), c.exec(), c.logs(), c.copy(), c.files(), c.rootfs()}},
		{"Snapshots", []*cobra.Command{c.snapshot(), c.branch(), c.restore(), c.rewind(), c.lineage()}},
		{"Observe", []*cobra.Command{c.events(), c.processes(), c.syscalls(), c.network(), c.at(), c.report(), c.export()}},
		{"Policy and approvals", []*cobra.Command{
			c.approval(), c.approve(), c.deny(), c.policy(), c.decide(), c.egress(), c.secret(), c.trail(), c.audit(),
		}},
		{"Agents", []*cobra.Command{c.agent(), c.session(), c.schedules(), c.connectors(), c.openCode(), c.mockLLM()}},
		{"Extensions", []*cobra.Command{
			c.capability(), c.call(), c.replay(), c.skill(), c.bundle(), c.market(), c.mcp(), c.rtfs(), c.wasm(),
		}},
		{"Administration", []*cobra.Command{c.serve(), c.health(), c.backends(), c.token(), c.e2b(), c.docs()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title + ":"})
		for _, cmd := range g.commands {
			cmd.GroupID = g.title
			root.AddCommand(cmd)
		}
	}
	root.SetHelpCommandGroupID("Administration")
	root.SetCompletionCommandGroupID("Administration")

	runs := c.runs() // an alias without a warning
	runs.Hidden = true
	snapshots := c.renamed(c.snapshotList(), "snapshots", "snapshot ls")
	approvals := c.renamed(c.approvalList(), "approvals", "approval ls")
	approvals.AddCommand(
		c.renamed(c.approvalShow(), "show", "approval show"),
		c.renamed(c.approvalCancel(), "withdraw", "approval cancel"),
		c.renamed(c.approvalNotices(), "notices", "approval notices"),
	)
	root.AddCommand(runs, snapshots, approvals)
}

// renamed returns cmd under an old name, hidden and with a warning. Old names are removed one
// release after the new ones were introduced.
func (c *command) renamed(cmd *cobra.Command, old, now string) *cobra.Command {
	_, args, _ := strings.Cut(cmd.Use, " ")
	cmd.Use, cmd.Hidden = strings.TrimSpace(old+" "+args), true
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c.warnRenamed(cmd.CommandPath(), now)
		return run(cmd, args)
	}
	return cmd
}

// isGroup is the annotation of a group of commands that can be run only with its old arguments.
const isGroup = "group"

// acceptOld makes a group of commands accept the arguments of the former single command. It runs
// old and prints a deprecation warning.
func (c *command) acceptOld(group, old *cobra.Command, now string) {
	group.Annotations = map[string]string{isGroup: ""}
	old.Flags().VisitAll(func(f *pflag.Flag) { f.Hidden = true })
	group.Flags().AddFlagSet(old.Flags())
	group.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		if err := old.Args(cmd, args); err != nil {
			return usageError{err}
		}
		c.warnRenamed(cmd.CommandPath()+" "+args[0], now)
		return old.RunE(cmd, args)
	}
}

func (c *command) warnRenamed(old, now string) {
	fmt.Fprintf(c.env.Stderr, "glasshouse: %q is now \"glasshouse %s\"; the old form will be removed in the next release\n", old, now)
}
