package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// addCommands adds all commands to the root command, in groups. Old names of commands are not
// listed in its help.
func (c *command) addCommands(root *cobra.Command) {
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Start", []*cobra.Command{c.run(), c.apply(), c.diff(), c.goal(), c.ui(), c.doctor(), c.version()}},
		{"Jails", []*cobra.Command{c.jail(), c.create(), c.exec(), c.logs(), c.copy(), c.files(), c.rootfs()}},
		{"Snapshots", []*cobra.Command{c.snapshot(), c.branch(), c.restore(), c.rewind(), c.undo(), c.lineage()}},
		{"Observe", []*cobra.Command{c.events(), c.processes(), c.syscalls(), c.network(), c.at(), c.report(), c.export()}},
		{"Policy and approvals", []*cobra.Command{
			c.approval(), c.approve(), c.deny(), c.policy(), c.decide(), c.egress(), c.secret(), c.trail(), c.audit(),
		}},
		{"Agents", []*cobra.Command{c.agent(), c.session(), c.schedules(), c.connectors(), c.openCode(), c.mockLLM()}},
		{"Extensions", []*cobra.Command{
			c.capability(), c.call(), c.replay(), c.skill(), c.bundle(), c.market(), c.mcp(), c.rtfs(), c.wasm(),
		}},
		{"Administration", []*cobra.Command{c.serve(), c.health(), c.backends(), c.fleet(), c.nodes(), c.token(), c.e2b(), c.docs()}},
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
	root.AddCommand(runs, snapshots, approvals, c.renamedGroup(c.schedules(), "schedules"), c.renamedGroup(c.connectors(), "connectors"))
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

// renamedGroup returns a group of commands under an old name, hidden and with a warning.
func (c *command) renamedGroup(group *cobra.Command, old string) *cobra.Command {
	now := group.Name()
	group.Use, group.Hidden = old, true
	for _, sub := range group.Commands() {
		c.renamed(sub, sub.Name(), now+" "+sub.Name()).Hidden = false
	}
	return group
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
			return c.missingCommand(cmd)
		}
		if err := old.Args(cmd, args); err != nil {
			return usageError{err}
		}
		c.warnRenamed(cmd.CommandPath()+" "+args[0], now)
		return old.RunE(cmd, args)
	}
}

// renameFlags makes a command accept old names of its flags, with a warning.
func (c *command) renameFlags(cmd *cobra.Command, old map[string]string) {
	cmd.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		now, ok := old[name]
		if !ok {
			return pflag.NormalizedName(name)
		}
		c.warnOld("--"+name, "--"+now) // only the command line has old names
		return pflag.NormalizedName(now)
	})
}

func (c *command) warnRenamed(old, now string) { c.warnOld(old, "glasshouse "+now) }

// warnOld warns once that a command line uses an old form.
func (c *command) warnOld(old, now string) {
	if slices.Contains(c.warned, old) {
		return
	}
	c.warned = append(c.warned, old)
	fmt.Fprintf(c.env.Stderr, "glasshouse: %q is now \"%s\"; the old form will be removed in the next release\n", old, now)
}
