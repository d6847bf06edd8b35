package cli

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"glasshouse/api/client"
	"glasshouse/api/wire"
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

// completers complete the placeholders in the usage of commands.
var completers = map[string]func(ctx context.Context, cl *client.Client) (named, error){
	"JAIL": func(ctx context.Context, cl *client.Client) (named, error) {
		return collect(cl.Jails(ctx, client.JailFilter{}), func(all *named, j wire.Jail) { all.add(string(j.ID), j.Name, j.State) })
	},
	"SNAPSHOT": func(ctx context.Context, cl *client.Client) (named, error) {
		return collect(cl.Snapshots(ctx, client.SnapshotFilter{}), func(all *named, s wire.Snapshot) { all.add(string(s.ID), s.Name, "of "+string(s.Jail)) })
	},
	"RUN": func(ctx context.Context, cl *client.Client) (named, error) {
		return collect(cl.Runs(ctx, "", ""), func(all *named, r wire.Run) { all.add(string(r.ID), "", r.State+": "+text.Clip(r.Goal, 60)) })
	},
	"SESSION": func(ctx context.Context, cl *client.Client) (named, error) {
		return collect(cl.Sessions(ctx), func(all *named, s wire.Session) { all.add(s.ID, "", s.State) })
	},
	"SCHEDULE": func(ctx context.Context, cl *client.Client) (named, error) {
		return collect(cl.Schedules(ctx), func(all *named, s wire.Schedule) { all.add(string(s.ID), "", text.Clip(s.Goal, 60)) })
	},
	"TOKEN": func(ctx context.Context, cl *client.Client) (named, error) {
		return collect(cl.Tokens(ctx), func(all *named, t wire.Token) { all.add(string(t.ID), "", t.Name+", "+t.Role) })
	},
	"APPROVAL": func(ctx context.Context, cl *client.Client) (all named, err error) {
		pending, err := cl.Approvals(ctx, "", "")
		for _, a := range pending {
			all.add(string(a.ID), "", text.Clip(a.Title, 60))
		}
		return all, err
	},
}

// groupOfID tells which objects the placeholder ID stands for, by the command or its group.
var groupOfID = map[string]string{"approval": "APPROVAL", "approve": "APPROVAL", "deny": "APPROVAL", "token": "TOKEN"}

// A place is an argument in the usage of a command.
type place struct {
	kinds []string // keys of completers; none if the argument cannot be completed
	path  bool     // a path in the object follows, after a colon
	more  bool     // further arguments are of the same kind
}

// addCompletion makes the shell complete the arguments of all commands below cmd.
func (c *command) addCompletion(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		places := placesOf(sub)
		if sub.ValidArgsFunction == nil && slices.ContainsFunc(places, func(p place) bool { return len(p.kinds) > 0 }) {
			sub.ValidArgsFunction = func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
				return c.complete(cmd.Context(), places, args, prefix)
			}
		}
		c.addCompletion(sub)
	}
}

// placesOf reads the arguments of a command from its usage.
func placesOf(cmd *cobra.Command) (places []place) {
	for _, word := range strings.Fields(cmd.Use)[1:] {
		if word == "[flags]" || strings.HasPrefix(word, "[--") {
			continue
		}
		var p place
		word, p.more = strings.CutSuffix(strings.Trim(word, "[]"), "...")
		word, _, p.path = strings.Cut(word, ":")
		for kind := range strings.SplitSeq(word, "|") {
			if kind == "ID" {
				kind = cmp.Or(groupOfID[cmd.Name()], groupOfID[cmd.Parent().Name()])
			}
			if completers[kind] != nil {
				p.kinds = append(p.kinds, kind)
			}
		}
		places = append(places, p)
	}
	return places
}

// complete returns the completions of the argument after args. It does not start a daemon, and
// completes nothing if none answers.
func (c *command) complete(ctx context.Context, places []place, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	var p place
	if n := len(args); n < len(places) {
		p = places[n]
	} else if last := places[len(places)-1]; last.more {
		p = last
	}
	if len(p.kinds) == 0 || p.path && strings.Contains(prefix, ":") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	cl, err := c.dial()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, stop := context.WithTimeout(ctx, completionTime)
	defer stop()
	var all []string
	for _, kind := range p.kinds {
		found, err := completers[kind](ctx, cl)
		if err != nil {
			cobra.CompDebugln(err.Error(), false)
		}
		for _, s := range found {
			name, what, _ := strings.Cut(s, "\t")
			if p.path {
				name += ":"
			}
			if strings.HasPrefix(name, prefix) && !slices.Contains(args, name) {
				all = append(all, cobra.CompletionWithDesc(name, what))
			}
		}
	}
	directive := cobra.ShellCompDirectiveNoFileComp
	if p.path {
		directive |= cobra.ShellCompDirectiveNoSpace
	}
	return all, directive
}
