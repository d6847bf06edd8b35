// Package archive copies the audit logs of the nodes of a fleet to an object store, so that the
// entries of a node whose disk is lost can still be read and verified.
//
// A copy consists of parts. Each part is an export of some thousand consecutive entries up to a
// signed checkpoint, compressed, and encrypted with a key that only the daemons have. The newest
// part is replaced by a longer one until it is full.
package archive

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"

	"glasshouse/fault"
	"glasshouse/object"
	"glasshouse/policy/chain"
)

// An Archive is the copies of all nodes.
type Archive struct {
	Objects object.Store
	Key     *age.X25519Identity
}

// A Log describes the copy of the log of a node.
type Log struct {
	Node    string
	Entries int64
	Bytes   int64     // stored
	At      time.Time // of the newest part

	parts []part // by first entry; of those with the same, the longest is last
}

// A part is an object with consecutive entries.
type part struct {
	key         string
	first, last int64 // entries
}

const prefix = "audit/"

// partLen is the number of entries of a full part, about 8 MB.
const partLen = 16 << 10

func (p part) String() string { return fmt.Sprintf("%016d-%016d", p.first, p.last) }

// partOf parses the key of a part.
func partOf(key string) (node string, p part, ok bool) {
	name, found := strings.CutPrefix(key, prefix)
	node, at, cut := strings.Cut(name, "/")
	p.key = key
	n, err := fmt.Sscanf(at, "%d-%d", &p.first, &p.last)
	ok = found && cut && node != "" && err == nil && n == 2 && 0 < p.first && p.first <= p.last && at == p.String()
	return node, p, ok
}

// Logs lists the copies, by node.
func (a *Archive) Logs(ctx context.Context) ([]Log, error) { return a.logs(ctx, prefix) }

func (a *Archive) logs(ctx context.Context, under string) ([]Log, error) {
	byNode := map[string]*Log{}
	for info, err := range a.Objects.List(ctx, under) {
		if err != nil {
			return nil, fmt.Errorf("list the copies of audit logs: %w", err)
		}
		node, p, ok := partOf(info.Key)
		if !ok {
			continue
		}
		l := byNode[node]
		if l == nil {
			l = &Log{Node: node}
			byNode[node] = l
		}
		l.Bytes += info.Size
		l.parts = append(l.parts, p)
		if p.last > l.Entries {
			l.Entries, l.At = p.last, info.Modified
		}
	}
	var list []Log
	for _, l := range byNode {
		slices.SortFunc(l.parts, func(a, b part) int { return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.last, b.last)) })
		list = append(list, *l)
	}
	slices.SortFunc(list, func(a, b Log) int { return strings.Compare(a.Node, b.Node) })
	return list, nil
}

// log returns the copy of a node's log, which may have no entries.
func (a *Archive) log(ctx context.Context, node string) (Log, error) {
	list, err := a.logs(ctx, prefix+node+"/")
	if err != nil || len(list) == 0 {
		return Log{Node: node}, err
	}
	return list[0], nil
}

// Export writes the copy of a node's log in the format of chain.Export. The caller verifies it: the
// copy may have been damaged, or parts may be missing.
func (a *Archive) Export(ctx context.Context, node string, w io.Writer) error {
	if node == "" || strings.Contains(node, "/") {
		return fault.Fieldf("archive.Export", "stored", "%.40q is not the ID of a node", node)
	}
	l, err := a.log(ctx, node)
	if err != nil {
		return err
	}
	if l.Entries == 0 {
		return fault.Newf(fault.NotFound, "archive.Export", node, "the object store has no copy of the audit log of this node")
	}
	out := bufio.NewWriterSize(w, 1<<20)
	var checkpoints [][]byte // the last of each part
	var key []byte
	written := int64(0)
	for i, p := range l.parts {
		if p.last <= written || i+1 < len(l.parts) && l.parts[i+1].first == p.first {
			continue // a longer part has its entries
		}
		var checkpoint []byte
		known := max(written-p.first+1, 0) // entries that an earlier part has as well
		err := a.read(ctx, p, func(line []byte) error {
			switch {
			case bytes.HasPrefix(line, []byte(chain.CheckpointStart)):
				checkpoint = bytes.Clone(line)
			case bytes.HasPrefix(line, []byte(chain.KeyStart)):
				key = bytes.Clone(line)
			case known > 0:
				known--
			default:
				_, err := out.Write(line)
				return err
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("read entries %d to %d of the audit log of node %s: %w", p.first, p.last, node, err)
		}
		checkpoints, written = append(checkpoints, checkpoint), p.last
	}
	for _, line := range append(checkpoints, key) {
		out.Write(line) // Flush returns the error
	}
	return out.Flush()
}

// read calls use with each line of a part.
func (a *Archive) read(ctx context.Context, p part, use func(line []byte) error) error {
	return object.ReadSealed(ctx, a.Objects, p.key, a.Key, func(r io.Reader) error {
		damaged := func(err error) error {
			return fault.New(fault.Invalid, "archive.read", p.key, fmt.Errorf("the object is damaged: %w", err))
		}
		unpacked, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return damaged(err)
		}
		defer unpacked.Close()
		lines := bufio.NewReaderSize(unpacked, chain.MaxLine+1)
		for {
			line, err := lines.ReadSlice('\n')
			if err == io.EOF && len(line) == 0 {
				return nil
			}
			if err != nil {
				return damaged(err)
			}
			if err := use(line); err != nil {
				return err
			}
		}
	})
}

// A Chain is the audit log of this node. *chain.Chain implements it.
type Chain interface {
	Checkpoint(ctx context.Context) (chain.Checkpoint, error)
	CheckpointAfter(ctx context.Context, after, n int64) (chain.Checkpoint, error)
	ExportRange(ctx context.Context, after, last int64, w io.Writer) error
	ProveConsistency(ctx context.Context, earlier string) (chain.Consistency, error)
}

// A Copier copies the audit log of this node. Only one may run for a node.
type Copier struct {
	Archive *Archive
	Node    string
	Chain   Chain
	Log     *slog.Logger

	full   int64 // entries of a full part; 0: partLen
	stored *part // the newest part; nil: read it
}

// Interval is the time between two rounds. Entries that are younger are lost with the disk.
const Interval = time.Minute

// lastTime limits the round when the daemon stops.
const lastTime = 5 * time.Second

// Run copies new entries at each interval until ctx ends, and then once more.
func (c *Copier) Run(ctx context.Context) {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	var before string
	round := func(ctx context.Context) {
		err := c.Copy(ctx)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != before && ctx.Err() == nil {
			if err != nil {
				c.Log.Error("the audit log could not be copied to the object store; it is repeated", "err", err, "remedy", fault.RemedyOf(err))
			} else {
				c.Log.Info("the audit log is copied to the object store again")
			}
			before = text
		}
	}
	for ctx.Err() == nil {
		round(ctx)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTime)
	defer cancel()
	if _, err := c.Chain.Checkpoint(last); err != nil {
		c.Log.Warn("the newest entries of the audit log are copied after the next start", "err", err)
	}
	round(last)
}

// Copy copies the entries that a checkpoint covers and that were not copied yet.
func (c *Copier) Copy(ctx context.Context) error {
	if c.stored == nil {
		p, err := c.newest(ctx)
		if err != nil {
			return err
		}
		c.stored = &p
	}
	full := cmp.Or(c.full, partLen)
	for {
		begin := c.stored.last + 1
		cp, err := c.Chain.CheckpointAfter(ctx, begin-1, full)
		if err != nil || cp.Size == 0 {
			return err
		}
		if c.stored.first > 0 && c.stored.last-c.stored.first+1 < full { // the newest part is not full
			longer, err := c.Chain.CheckpointAfter(ctx, c.stored.first-1, full)
			if err != nil {
				return err
			}
			if longer.Size > c.stored.last {
				begin, cp = c.stored.first, longer
			}
		}
		next := part{first: begin, last: cp.Size}
		next.key = prefix + c.Node + "/" + next.String()
		if err := object.PutSealed(ctx, c.Archive.Objects, next.key, c.Archive.Key, func(w io.Writer) error { return c.write(ctx, next, w) }); err != nil {
			c.stored = nil // it may have been stored nevertheless
			return err
		}
		if c.stored.first == next.first {
			if err := c.Archive.Objects.Delete(ctx, c.stored.key); err != nil {
				c.Log.Debug("a replaced part of the audit log is not deleted yet", "key", c.stored.key, "err", err)
			}
		}
		c.stored = &next
	}
}

// newest returns the newest part of this node, after it has deleted those that it replaced. It
// returns an error if the log does not contain the copied entries.
func (c *Copier) newest(ctx context.Context) (part, error) {
	l, err := c.Archive.log(ctx, c.Node)
	if err != nil || l.Entries == 0 {
		return part{}, err
	}
	var newest part
	for _, p := range l.parts {
		if p.last > newest.last {
			newest = p
		}
	}
	var line []byte
	if err := c.Archive.read(ctx, newest, func(l []byte) error {
		if bytes.HasPrefix(l, []byte(chain.CheckpointStart)) {
			line = bytes.Clone(l)
		}
		return nil
	}); err != nil {
		return part{}, err
	}
	var seen struct {
		Checkpoint string `json:"checkpoint"`
	}
	if err := json.Unmarshal(line, &seen); err != nil {
		return part{}, fmt.Errorf("read the checkpoint of %s: %w", newest.key, err)
	}
	if _, err := c.Chain.ProveConsistency(ctx, seen.Checkpoint); err != nil {
		return part{}, &fault.Error{Op: "archive.Copy", On: c.Node, Kind: fault.Conflict,
			Err:    fmt.Errorf("the object store has %d entries that this log does not contain: it was rolled back or changed: %w", newest.last, err),
			Remedy: "keep the copy as evidence (glasshouse audit export --stored), restore the data directory, or join as a new node"}
	}
	for _, p := range l.parts {
		if p.first == newest.first && p.last < newest.last {
			if err := c.Archive.Objects.Delete(ctx, p.key); err != nil {
				return part{}, err
			}
		}
	}
	return newest, nil
}

func (c *Copier) write(ctx context.Context, p part, to io.Writer) error {
	packed, err := zstd.NewWriter(to, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return fmt.Errorf("compress a part of the audit log: %w", err)
	}
	return errors.Join(c.Chain.ExportRange(ctx, p.first-1, p.last, packed), packed.Close())
}
