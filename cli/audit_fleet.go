package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/internal/text"
	"glasshouse/policy/chain"
)

// A nodeAudit is the result for the log of one node.
type nodeAudit struct {
	Node      string            `json:"node"`
	Name      string            `json:"name,omitempty"`
	Removed   bool              `json:"removed,omitempty"` // from the fleet, with its log
	Report    *wire.ChainReport `json:"report,omitempty"`  // absent if the node does not answer
	Witnesses []string          `json:"witnesses"`         // names of the nodes that have seen the log
	Seen      int64             `json:"seen"`              // entries that they have seen
	Stored    int64             `json:"stored,omitempty"`  // entries in the object store
	Missing   int64             `json:"missing,omitempty"`
	Problems  []string          `json:"problems,omitempty"`

	client *client.Client
}

func (a *nodeAudit) problem(format string, args ...any) {
	p := fmt.Sprintf(format, args...)
	if !slices.Contains(a.Problems, p) {
		a.Problems = append(a.Problems, p)
	}
}

// verifyFleet verifies the logs of all nodes.
func (c *command) verifyFleet(ctx context.Context) error {
	cl, err := c.client(ctx)
	if err != nil {
		return err
	}
	all, err := auditFleet(ctx, cl)
	if err != nil {
		return err
	}
	err = c.print(all, func(w io.Writer) {
		for _, a := range all {
			showAudit(w, a)
		}
	})
	if err == nil && slices.ContainsFunc(all, func(a *nodeAudit) bool { return len(a.Problems) > 0 }) {
		err = exitCode(exitError)
	}
	return err
}

func showAudit(w io.Writer, a *nodeAudit) {
	name := text.Visible(cmp.Or(a.Name, a.Node))
	state, lost := "intact", ""
	switch {
	case len(a.Problems) > 0:
		state = "BAD"
	case a.Removed:
		state = "removed from the fleet with its log"
	}
	if a.Missing > 0 {
		lost = fmt.Sprintf("; at least %d entries are missing", a.Missing)
	}
	entries := max(a.Seen, a.Stored)
	if a.Report != nil {
		entries = a.Report.Entries
	}
	witnesses := "no other node has seen it"
	if len(a.Witnesses) > 0 {
		witnesses = fmt.Sprintf("%d were seen by %s", a.Seen, text.Visible(strings.Join(a.Witnesses, ", ")))
	}
	stored := ""
	if a.Stored > 0 {
		stored = fmt.Sprintf("; %d are in the object store", a.Stored)
	}
	fmt.Fprintf(w, "%s: %s, %d entries; %s%s%s\n", name, state, entries, witnesses, stored, lost)
	for _, p := range a.Problems {
		fmt.Fprintf(w, "  %s\n", text.Visible(p))
	}
	if a.Stored > 0 && (a.Report == nil || a.Missing > 0) {
		fmt.Fprintf(w, "  the copy: glasshouse audit export --stored %s\n", text.Visible(cmp.Or(a.Name, a.Node)))
	}
}

// auditFleet verifies the log of each node, and compares it with what the others have seen. Nodes
// that were removed from the fleet are included as long as a node has seen their logs.
func auditFleet(ctx context.Context, cl *client.Client) ([]*nodeAudit, error) {
	nodes, err := client.Collect(cl.Nodes(ctx))
	if err != nil {
		return nil, err
	}
	if len(nodes) == 0 {
		return nil, fault.Cannot("audit.verify", "this daemon is not in a fleet", "omit --fleet")
	}
	all := map[string]*nodeAudit{}
	audit := func(node string) *nodeAudit {
		if all[node] == nil {
			all[node] = &nodeAudit{Node: node, Witnesses: []string{}}
		}
		return all[node]
	}
	seen := map[string][]wire.WitnessedLog{} // by node
	for _, n := range nodes {
		a := audit(n.ID)
		a.Name, a.client = n.Name, cl.At(n.ID)
		logs, err := a.client.WitnessedLogs(ctx)
		if errors.Is(err, fault.Denied) || errors.Is(err, fault.Unauthenticated) { // also at the other nodes
			return nil, err
		}
		if err != nil {
			a.problem("its records of the logs of other nodes cannot be read: %v", err)
			continue
		}
		for _, l := range logs {
			o := audit(l.Node)
			o.Witnesses = append(o.Witnesses, n.Name)
			seen[l.Node] = append(seen[l.Node], l)
		}
	}
	stored, err := cl.StoredLogs(ctx)
	if i := slices.IndexFunc(nodes, func(n wire.Node) bool { return n.Self }); err != nil && i >= 0 {
		audit(nodes[i].ID).problem("its copies of the logs in the object store cannot be listed: %v", err)
	}
	for _, l := range stored {
		audit(l.Node).Stored = l.Entries
	}
	for _, a := range all {
		if err := a.verify(ctx, seen[a.Node]); err != nil {
			return nil, err
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b *nodeAudit) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Node, b.Node)) }), nil
}

// verify verifies the log of a node, and compares it with what others have seen.
func (a *nodeAudit) verify(ctx context.Context, seen []wire.WitnessedLog) error {
	for _, l := range seen {
		a.Seen = max(a.Seen, l.Entries)
		if l.Conflict != nil {
			a.Missing = max(a.Missing, l.Conflict.Missing)
			a.problem("since %s: %s", l.Conflict.At.Local().Format("2006-01-02 15:04:05"), l.Conflict.Reason)
		}
	}
	if a.client == nil {
		a.Removed = true
		return nil
	}
	r, err := a.client.VerifyChain(ctx, true)
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		a.problem("the log cannot be verified: %v", err)
		return nil
	}
	a.Report = &r
	if r.Bad != nil {
		a.problem("%s", problemText(*r.Bad))
	}
	key, err := chain.ParsePublic(r.Key)
	if err != nil {
		return err
	}
	if a.Stored > r.Entries {
		a.Missing = max(a.Missing, a.Stored-r.Entries)
		a.problem("the log has %d entries, and %d are in the object store", r.Entries, a.Stored)
	}
	for _, l := range seen {
		if err := a.compare(ctx, key, l); err != nil {
			a.problem("the log cannot be compared with the %d entries that were seen: %v", l.Entries, err)
		}
	}
	return nil
}

// compare compares the log with what another node has seen.
func (a *nodeAudit) compare(ctx context.Context, key chain.PublicKey, l wire.WitnessedLog) error {
	if l.Key != key.String() {
		a.problem("the log is signed with another key than the %d entries that were seen", l.Entries)
		return nil
	}
	if a.Report.Entries < l.Entries {
		a.Missing = max(a.Missing, l.Entries-a.Report.Entries)
		a.problem("the log has %d entries, and had %d", a.Report.Entries, l.Entries)
		return nil
	}
	reason, err := contradiction(ctx, a.client, key, l.Checkpoint)
	if reason != "" {
		a.problem("the log does not contain the %d entries that were seen: %s", l.Entries, reason)
	}
	return err
}
