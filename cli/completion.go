package cli

import (
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/internal/text"
)

// completionTime bounds the requests of shell completion.
const completionTime = 2 * time.Second

// named are ids and names with descriptions, as cobra.CompletionWithDesc returns them.
type named []string

// add adds an id and, if it has one, a name. Names can be chosen by jails, so those that a shell
// or terminal could take for more than text are left out.
func (n *named) add(id, name, what string) {
	what = text.Visible(what)
	for _, s := range []string{name, id} {
		if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || text.Hidden(r) }) {
			*n = append(*n, cobra.CompletionWithDesc(s, what))
		}
	}
}

// collect adds the items of a list.
func collect[T any](items iter.Seq2[T, error], add func(all *named, item T)) (all named, err error) {
	for item, err := range items {
		if err != nil {
			return nil, err
		}
		add(&all, item)
	}
	return all, nil
}

// completers list the objects of a kind. Those of some kinds belong to an object that the first
// argument of the command names.
var completers = map[string]func(ctx context.Context, cl *client.Client, args []string) (named, error){
	"JAIL": func(ctx context.Context, cl *client.Client, _ []string) (named, error) {
		return collect(cl.Jails(ctx, client.JailFilter{}), func(all *named, j wire.Jail) { all.add(string(j.ID), j.Name, j.State) })
	},
	"NODE": func(ctx context.Context, cl *client.Client, _ []string) (named, error) {
		return collect(cl.Nodes(ctx), func(all *named, n wire.Node) { all.add(n.ID, n.Name, n.State) })
	},
	"SNAPSHOT": func(ctx context.Context, cl *client.Client, _ []string) (named, error) {
		return collect(cl.Snapshots(ctx, client.SnapshotFilter{}), func(all *named, s wire.Snapshot) { all.add(string(s.ID), s.Name, "of "+string(s.Jail)) })
	},
	"RUN": func(ctx context.Context, cl *client.Client, _ []string) (named, error) {
		return collect(cl.Runs(ctx, "", ""), func(all *named, r wire.Run) { all.add(string(r.ID), "", r.State+": "+text.Clip(r.Goal, 60)) })
	},
	"SESSION": func(ctx context.Context, cl *client.Client, _ []string) (named, error) {
		return collect(cl.Sessions(ctx), func(all *named, s wire.Session) { all.add(s.ID, "", s.State) })
	},
	"SCHEDULE": func(ctx context.Context, cl *client.Client, _ []string) (named, error) {
		return collect(cl.Schedules(ctx), func(all *named, s wire.Schedule) { all.add(string(s.ID), "", text.Clip(s.Goal, 60)) })
	},
	"TOKEN": func(ctx context.Context, cl *client.Client, _ []string) (named, error) {
		return collect(cl.Tokens(ctx), func(all *named, t wire.Token) { all.add(string(t.ID), "", t.Name+", "+t.Role) })
	},
	"APPROVAL": func(ctx context.Context, cl *client.Client, _ []string) (all named, err error) {
		pending, err := cl.Approvals(ctx, "", "")
		for _, a := range pending {
			all.add(string(a.ID), "", text.Clip(a.Title, 60))
		}
		return all, err
	},
	"EXEC": func(ctx context.Context, cl *client.Client, args []string) (named, error) {
		if len(args) == 0 {
			return nil, nil
		}
		j, err := jailNamed(ctx, cl, args[0])
		if err != nil {
			return nil, err
		}
		return collect(cl.Execs(ctx, j), func(all *named, x wire.Exec) { all.add(string(x.ID), "", text.Clip(strings.Join(x.Argv, " "), 60)) })
	},
	"CHECKPOINT": func(ctx context.Context, cl *client.Client, args []string) (all named, err error) {
		if len(args) == 0 {
			return nil, nil
		}
		list, err := cl.Checkpoints(ctx, id.Run(args[0]))
		for _, p := range list {
			all.add(string(p.ID), "", text.Clip(p.Reason, 60))
		}
		return all, err
	},
	"CAPABILITY": func(ctx context.Context, cl *client.Client, _ []string) (all named, err error) {
		list, err := cl.Capabilities(ctx)
		for _, v := range list {
			all.add(v.ID, "", text.Clip(v.Description, 60))
		}
		slices.Sort(all) // versions of a capability have one id
		return slices.Compact(all), err
	},
	"SKILL": func(ctx context.Context, cl *client.Client, _ []string) (all named, err error) {
		list, err := cl.Skills(ctx)
		for _, s := range list {
			all.add(s.Name, "", text.Clip(s.Description, 60))
		}
		return all, err
	},
	"BUNDLE": func(ctx context.Context, cl *client.Client, _ []string) (all named, err error) {
		list, err := cl.Bundles(ctx)
		for _, b := range list {
			all.add(b.Name, "", b.Version)
		}
		return all, err
	},
	"PUBLISHER": func(ctx context.Context, cl *client.Client, _ []string) (all named, err error) {
		list, err := cl.Publishers(ctx)
		for _, p := range list {
			all.add(p.Name, "", p.Tier)
		}
		return all, err
	},
	"SECRET": func(ctx context.Context, cl *client.Client, _ []string) (all named, err error) {
		list, err := cl.Secrets(ctx)
		for _, s := range list {
			all.add(s.Name, "", s.Provider)
		}
		return all, err
	},
	"GRANT": func(ctx context.Context, cl *client.Client, _ []string) (all named, err error) {
		list, err := cl.Secrets(ctx)
		for _, s := range list {
			for _, g := range s.Grants {
				all.add(string(g.ID), "", s.Name+" to "+granteeText(g))
			}
		}
		return all, err
	},
	"CONNECTOR": func(ctx context.Context, cl *client.Client, _ []string) (all named, err error) {
		list, err := cl.Connectors(ctx)
		for _, k := range list {
			all.add(k.Name, "", k.Kind)
		}
		return all, err
	},
	"LOGIN": func(ctx context.Context, cl *client.Client, _ []string) (named, error) {
		return collect(cl.Logins(ctx), func(all *named, l wire.Login) { all.add(string(l.ID), "", l.Name+", "+l.Role) })
	},
	"NOTICE": func(ctx context.Context, cl *client.Client, _ []string) (all named, err error) {
		list, err := cl.DeadNotices(ctx)
		for _, n := range list {
			all.add(n.ID, "", n.Channel)
		}
		return all, err
	},
}

// addCompletion makes the shell complete the flags and the arguments of all commands at and below
// cmd.
func (c *command) addCompletion(cmd *cobra.Command) {
	complete := func(f *pflag.Flag) {
		if f.Value.Type() == "bool" {
			return
		}
		v, _ := valuesOf(cmd, f.Name)
		cmd.RegisterFlagCompletionFunc(f.Name, func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			list, ok := f.Value.(pflag.SliceValue)
			if !ok {
				return c.complete(cmd.Context(), v, args, nil, prefix)
			}
			return c.complete(cmd.Context(), v, args, list.GetSlice(), prefix)
		})
	}
	cmd.Flags().VisitAll(complete)
	cmd.PersistentFlags().VisitAll(complete)
	if cmd.Runnable() && cmd.ValidArgsFunction == nil {
		all := argumentsOf(cmd)
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return c.complete(cmd.Context(), argumentAt(all, len(args)).valueSet, args, args, prefix)
		}
	}
	for _, sub := range cmd.Commands() {
		c.addCompletion(sub)
	}
}

// complete returns the values of a set that begin with prefix and are not among those given. It
// does not start a daemon, and lists no objects if none answers.
func (c *command) complete(ctx context.Context, v valueSet, args, given []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if v.path && strings.Contains(prefix, ":") {
		return nil, cobra.ShellCompDirectiveNoFileComp // a path in a jail
	}
	var all []string
	add := func(name, what string) {
		if strings.HasPrefix(name, prefix) && !slices.Contains(given, name) {
			all = append(all, cobra.CompletionWithDesc(name, what))
		}
	}
	for _, word := range v.words {
		add(word, "")
	}
	for _, s := range c.objects(ctx, v.kinds, args) {
		name, what, _ := strings.Cut(s, "\t")
		if v.path {
			name += ":"
		}
		add(name, what)
	}
	directive := cobra.ShellCompDirectiveNoFileComp
	switch {
	case v.files:
		directive = cobra.ShellCompDirectiveDefault
	case v.dirs:
		directive = cobra.ShellCompDirectiveFilterDirs
	}
	if v.path || v.part {
		directive |= cobra.ShellCompDirectiveNoSpace
	}
	return all, directive
}

// objects returns the daemon's objects of these kinds.
func (c *command) objects(ctx context.Context, kinds, args []string) (all named) {
	if len(kinds) == 0 {
		return nil
	}
	cl, err := c.dial()
	if err != nil {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, completionTime)
	defer stop()
	for _, kind := range kinds {
		found, err := completers[kind](ctx, cl, args)
		if err != nil {
			cobra.CompDebugln(err.Error(), false)
		}
		all = append(all, found...)
	}
	return all
}
