package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/daemon"
	"glasshouse/fault"
	"glasshouse/internal/text"
)

// A nodeHealth is what the doctor of a node has found.
type nodeHealth struct {
	Node    string       `json:"node"`
	Name    string       `json:"name,omitempty"`
	Front   bool         `json:"front,omitempty"`
	Class   string       `json:"class,omitempty"`   // processes of jails can move between nodes of a class
	Runner  string       `json:"runner,omitempty"`  // the program with which jails run; absent if none can
	Problem string       `json:"problem,omitempty"` // why the node has not answered
	Probes  []wire.Probe `json:"probes"`
}

func (n *nodeHealth) name() string { return text.Visible(cmp.Or(n.Name, n.Node)) }

// bad reports whether the node cannot do its part.
func (n *nodeHealth) bad() bool { return n.Problem != "" || n.Runner == "" && !n.Front }

// doctorFleet asks the doctors of all nodes.
func (c *command) doctorFleet(ctx context.Context) error {
	cl, err := c.client(ctx)
	if err != nil {
		return err
	}
	nodes, err := client.Collect(cl.Nodes(ctx))
	if err != nil {
		return err
	}
	if len(nodes) == 0 {
		return fault.Cannot("cli.doctor", "this daemon is not in a fleet", "omit --fleet")
	}
	all := make([]*nodeHealth, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		all[i] = &nodeHealth{Node: n.ID, Name: n.Name, Front: n.Front, Class: classOf(n), Probes: []wire.Probe{}}
		wg.Go(func() { all[i].ask(ctx, cl.At(n.ID)) })
	}
	wg.Wait()
	err = c.print(all, func(w io.Writer) { showHealth(w, all) })
	if err == nil && slices.ContainsFunc(all, (*nodeHealth).bad) {
		err = exitCode(exitError)
	}
	return err
}

// ask gets the findings of a node.
func (n *nodeHealth) ask(ctx context.Context, cl *client.Client) {
	probes, err := client.Collect(cl.Doctor(ctx))
	if err != nil {
		n.Problem = err.Error()
		return
	}
	n.Probes = classified(probes)
	n.Runner, _ = daemon.Runner(n.Probes)
}

// classOf describes what the hosts of two nodes must have in common for processes to move.
func classOf(n wire.Node) string {
	if n.Arch == "" {
		return ""
	}
	return strings.Join(slices.DeleteFunc([]string{n.Arch, n.CPU, "kernel " + n.Kernel}, func(s string) bool { return s == "" }), ", ")
}

// showHealth prints a line for each node, with its findings except those about optional features, and
// the classes of nodes.
func showHealth(w io.Writer, all []*nodeHealth) {
	classes := map[string][]string{}
	for _, n := range all {
		switch {
		case n.Problem != "":
			fmt.Fprintf(w, "%s: no answer: %s\n", n.name(), text.Visible(n.Problem))
		case n.Front:
			fmt.Fprintf(w, "%s: ready, a front end\n", n.name())
		case n.Runner == "":
			fmt.Fprintf(w, "%s: not ready: no jail can run on this host\n", n.name())
		default:
			fmt.Fprintf(w, "%s: ready: jails run with %s\n", n.name(), n.Runner)
		}
		for _, p := range n.Probes {
			if p.Status != "ok" && p.Need != daemon.Optional {
				showProbe(w, p)
			}
		}
		if n.Class != "" && !n.Front {
			classes[n.Class] = append(classes[n.Class], n.name())
		}
	}
	if len(classes) == 0 {
		return
	}
	fmt.Fprintln(w, "\nJails with processes move between nodes with the same processor, to kernels that are not older:")
	for _, class := range slices.Sorted(maps.Keys(classes)) {
		fmt.Fprintf(w, "  %s: %s\n", text.Visible(class), strings.Join(classes[class], ", "))
	}
}
