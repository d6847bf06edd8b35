package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"glasshouse/api/client"
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

// completers complete the placeholders in the usage of commands.
var completers = map[string]func(ctx context.Context, cl *client.Client) (named, error){
	"JAIL": func(ctx context.Context, cl *client.Client) (all named, err error) {
		for j, err := range cl.Jails(ctx, client.JailFilter{}) {
			if err != nil {
				return nil, err
			}
			all.add(string(j.ID), j.Name, j.State)
		}
		return all, nil
	},
	"SNAPSHOT": func(ctx context.Context, cl *client.Client) (all named, err error) {
		for s, err := range cl.Snapshots(ctx, client.SnapshotFilter{}) {
			if err != nil {
				return nil, err
			}
			all.add(string(s.ID), s.Name, "of "+string(s.Jail))
		}
		return all, nil
	},
	"RUN": func(ctx context.Context, cl *client.Client) (all named, err error) {
		for r, err := range cl.Runs(ctx, "", "") {
			if err != nil {
				return nil, err
			}
			all.add(string(r.ID), "", r.State+": "+text.Clip(r.Goal, 60))
		}
		return all, nil
	},
	"SESSION": func(ctx context.Context, cl *client.Client) (all named, err error) {
		for s, err := range cl.Sessions(ctx) {
			if err != nil {
				return nil, err
			}
			all.add(s.ID, "", s.State)
		}
		return all, nil
	},
	"SCHEDULE": func(ctx context.Context, cl *client.Client) (all named, err error) {
		for s, err := range cl.Schedules(ctx) {
			if err != nil {
				return nil, err
			}
			all.add(string(s.ID), "", text.Clip(s.Goal, 60))
		}
		return all, nil
	},
	"APPROVAL": func(ctx context.Context, cl *client.Client) (all named, err error) {
		pending, err := cl.Approvals(ctx, "", "")
		for _, a := range pending {
			all.add(string(a.ID), "", text.Clip(a.Title, 60))
		}
		return all, err
	},
	"TOKEN": func(ctx context.Context, cl *client.Client) (all named, err error) {
		for t, err := range cl.Tokens(ctx) {
			if err != nil {
				return nil, err
			}
			all.add(string(t.ID), "", t.Name+", "+t.Role)
		}
		return all, nil
	},
}

// groupOfID tells which objects the placeholder ID stands for, by the command or its group.
var groupOfID = map[string]string{"approval": "APPROVAL", "approve": "APPROVAL", "deny": "APPROVAL", "token": "TOKEN"}

// addCompletion makes the shell complete the arguments of all commands below cmd.
func (c *command) addCompletion(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		if places := placeholders(sub); len(places) > 0 && sub.ValidArgsFunction == nil {
			sub.ValidArgsFunction = func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
				return c.complete(cmd.Context(), places, args, prefix)
			}
		}
		c.addCompletion(sub)
	}
}

// placeholders returns the names of a command's arguments that can be completed, by position; ""
// cannot. The last one stands for all further arguments if it ends with three dots.
func placeholders(cmd *cobra.Command) (places []string) {
	found := false
	for _, word := range strings.Fields(cmd.Use)[1:] {
		if word == "[flags]" || strings.HasPrefix(word, "[--") {
			continue
		}
		word = strings.Trim(word, "[]")
		name, rest, _ := strings.Cut(strings.TrimSuffix(word, "..."), "|")
		path, _, isPath := strings.Cut(name, ":")
		if isPath {
			name = path
		}
		if name == "ID" {
			name = groupOfID[cmd.Name()]
			if name == "" && cmd.HasParent() {
				name = groupOfID[cmd.Parent().Name()]
			}
		}
		_, known := completers[name]
		found = found || known
		switch {
		case !known:
			name = ""
		case isPath:
			name += ":"
		case completers[rest] != nil:
			name += "|" + rest
		}
		if strings.HasSuffix(word, "...") && name != "" {
			name += "..."
		}
		places = append(places, name)
	}
	if !found {
		return nil
	}
	return places
}

// complete returns the completions of the argument after args. It does not start a daemon, and
// completes nothing if none answers.
func (c *command) complete(ctx context.Context, places, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	place := ""
	switch last := places[len(places)-1]; {
	case len(args) < len(places):
		place = places[len(args)]
	case strings.HasSuffix(last, "..."):
		place = last
	}
	place = strings.TrimSuffix(place, "...")
	kinds, isPath := strings.CutSuffix(place, ":")
	if place == "" || isPath && strings.Contains(prefix, ":") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	cl, err := c.dial()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, stop := context.WithTimeout(ctx, completionTime)
	defer stop()
	var all []string
	for kind := range strings.SplitSeq(kinds, "|") {
		found, err := completers[kind](ctx, cl)
		if err != nil {
			cobra.CompDebugln(err.Error(), false)
		}
		for _, s := range found {
			if isPath {
				name, what, _ := strings.Cut(s, "\t")
				s = cobra.CompletionWithDesc(name+":", what)
			}
			if name, _, _ := strings.Cut(s, "\t"); strings.HasPrefix(s, prefix) && !slices.Contains(args, name) {
				all = append(all, s)
			}
		}
	}
	directive := cobra.ShellCompDirectiveNoFileComp
	if isPath {
		directive |= cobra.ShellCompDirectiveNoSpace
	}
	return all, directive
}
