// Package witness keeps the newest signed head of the audit logs of other nodes, so that entries
// that are removed or changed at their node are noticed elsewhere.
//
// Each node asks some of the others for their newest checkpoint, with a proof that it contains the
// one that was seen before. A witness replaces its stored checkpoint only by one with such a
// proof. Otherwise it keeps both, and says why they contradict each other.
package witness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"glasshouse/fault"
	"glasshouse/policy/chain"
)

// A Seen is what a witness knows of the audit log of a node.
type Seen struct {
	Node       string
	Key        string // public, as at the first time
	Checkpoint string // the newest that contains all earlier ones
	Entries    int64  // that it covers
	At         time.Time

	Conflict *Conflict // nil: none
}

// A Conflict says that a log does not contain what a witness has seen.
type Conflict struct {
	Reason     string
	Checkpoint string // the newest one of the node when it was noticed
	Missing    int64  // how many entries fewer the log had, at most
	At         time.Time

	// Forked is whether the node has signed both: a log that was only rolled back can be
	// restored, and the conflict ends.
	Forked bool
}

// A Store stores what a witness has seen.
type Store interface {
	Seen(ctx context.Context) ([]Seen, error) // by node
	PutSeen(ctx context.Context, s Seen) error
}

// A Question asks a node for its newest checkpoint.
type Question struct {
	Checkpoint string `json:"checkpoint,omitempty"` // that the log must contain; "": none
}

// An Answer is the response.
type Answer struct {
	Key        string      `json:"key"`
	Checkpoint string      `json:"checkpoint,omitempty"` // "": the log has none yet
	Path       []tlog.Hash `json:"path,omitempty"`       // see chain.Consistency; none if there is no proof
}

// A Log is the audit log of this node. *chain.Chain implements it.
type Log interface {
	Key() chain.PublicKey
	Latest() chain.Checkpoint
	ProveConsistency(ctx context.Context, earlier string) (chain.Consistency, error)
}

// Reply answers the question of another node about the log of this one.
func Reply(ctx context.Context, log Log, q Question) (Answer, error) {
	a := Answer{Key: log.Key().String(), Checkpoint: log.Latest().Note}
	if q.Checkpoint == "" {
		return a, nil
	}
	p, err := log.ProveConsistency(ctx, q.Checkpoint)
	switch kind := fault.KindOf(err); {
	case kind == fault.Conflict || kind == fault.Invalid: // the witness will see that there is no proof
		return a, nil
	case err != nil:
		return Answer{}, err
	}
	a.Checkpoint, a.Path = p.To, p.Path
	return a, nil
}

// Predecessors returns the nodes whose logs a node watches: the eight that precede it in the order
// of their IDs, as in a ring. So each log has up to eight witnesses, however many nodes there are.
func Predecessors(self string, nodes []string) []string {
	const watched = 8
	others := slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return n == self })
	slices.Sort(others)
	at, _ := slices.BinarySearch(others, self)
	n := min(watched, len(others))
	ring := append(slices.Clone(others), others...)
	return ring[at+len(others)-n : at+len(others)]
}

// Interval is the time between two rounds.
const Interval = 10 * time.Second

// A Witness watches the logs of other nodes.
type Witness struct {
	Store Store
	Nodes func(ctx context.Context) ([]string, error)                        // to watch
	Ask   func(ctx context.Context, node string, q Question) (Answer, error) // a node
	Log   *slog.Logger
}

// Run asks the nodes at each interval until ctx ends.
func (w *Witness) Run(ctx context.Context) {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	for {
		if err := w.Round(ctx); err != nil && ctx.Err() == nil {
			w.Log.Warn("could not watch the audit logs of other nodes; it is repeated", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Round asks each node once. A node that does not answer is skipped.
func (w *Witness) Round(ctx context.Context) error {
	nodes, err := w.Nodes(ctx)
	if err != nil {
		return err
	}
	list, err := w.Store.Seen(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, node := range nodes {
		seen := Seen{Node: node}
		if i := slices.IndexFunc(list, func(s Seen) bool { return s.Node == node }); i >= 0 {
			seen = list[i]
		}
		answer, err := w.Ask(ctx, node, Question{seen.Checkpoint})
		if err != nil {
			w.Log.Debug("a node does not show its audit log", "node", node, "err", err)
			continue
		}
		next, err := compare(seen, answer, time.Now())
		if err != nil {
			errs = append(errs, fmt.Errorf("audit log of node %s: %w", node, err))
			continue
		}
		if same(seen, next) {
			continue
		}
		if err := w.Store.PutSeen(ctx, next); err != nil {
			return err
		}
		switch {
		case seen.Conflict == nil && next.Conflict != nil:
			w.Log.Error("the audit log of another node was changed or has lost entries", "node", node, "reason", next.Conflict.Reason,
				"seen", next.Checkpoint, "now", next.Conflict.Checkpoint)
		case seen.Conflict != nil && next.Conflict == nil:
			w.Log.Info("the audit log of another node was restored", "node", node)
		}
	}
	return errors.Join(errs...)
}

// same reports whether two states differ only in their times.
func same(a, b Seen) bool {
	if a.Checkpoint != b.Checkpoint || (a.Conflict == nil) != (b.Conflict == nil) {
		return false
	}
	return a.Conflict == nil || a.Conflict.Checkpoint == b.Conflict.Checkpoint && a.Conflict.Reason == b.Conflict.Reason
}

// compare returns what is known after an answer. An error means that the answer says nothing about
// the log.
func compare(seen Seen, a Answer, now time.Time) (Seen, error) {
	key, err := chain.ParsePublic(a.Key)
	if err != nil {
		return seen, err
	}
	var head chain.Head
	if a.Checkpoint != "" {
		head, err = key.Open(a.Checkpoint)
		if err != nil {
			return seen, err
		}
	}
	conflict := func(forked bool, reason string) (Seen, error) {
		next := seen
		if seen.Conflict != nil && seen.Conflict.Forked {
			return seen, nil // the proof is kept
		}
		next.Conflict = &Conflict{Reason: reason, Checkpoint: a.Checkpoint, Missing: max(seen.Entries-head.Size, 0), At: now, Forked: forked}
		if seen.Conflict != nil {
			next.Conflict.At, next.Conflict.Missing = seen.Conflict.At, max(next.Conflict.Missing, seen.Conflict.Missing)
		}
		return next, nil
	}
	switch {
	case seen.Checkpoint == "":
		return Seen{Node: seen.Node, Key: a.Key, Checkpoint: a.Checkpoint, Entries: head.Size, At: now}, nil
	case a.Key != seen.Key:
		return conflict(true, "the log is signed with another key")
	case head.Size < seen.Entries:
		return conflict(false, fmt.Sprintf("the log has %d entries, and had %d", head.Size, seen.Entries))
	}
	proof := chain.Consistency{From: seen.Checkpoint, To: a.Checkpoint, Path: a.Path}
	if err := proof.Check(key); err != nil {
		return conflict(true, fmt.Sprintf("the log does not contain the %d entries that it had", seen.Entries))
	}
	next := seen
	next.Checkpoint, next.Entries, next.At = a.Checkpoint, head.Size, now
	if next.Conflict != nil && !next.Conflict.Forked {
		next.Conflict = nil
	}
	return next, nil
}
