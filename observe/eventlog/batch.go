package eventlog

import (
	"bytes"
	"strconv"

	"glasshouse/observe/event"
)

// A Batch is a group of records that a Stream returns together. All streams with the same
// filter share it, so callers must not modify it.
type Batch struct {
	Lines [][]byte // JSON, without newlines

	sse    []byte // backing array of Lines
	heads  []head
	upto   uint64 // all matching records up to here are in this batch or in earlier ones
	before counts // matching records in earlier batches, including those reported as skipped
	counts counts // records in this batch, or reported by it as skipped
}

// SSE returns the records as server-sent events, which are rendered once. A gap that is in no
// file has no id, so a reader that reconnects also receives the records that the gap reports.
func (b *Batch) SSE() []byte { return b.sse }

// Last returns the sequence number of the last record that has one, or 0.
func (b *Batch) Last() uint64 {
	for i := len(b.heads) - 1; i >= 0; i-- {
		if b.heads[i].seq > 0 {
			return b.heads[i].seq
		}
	}
	return 0
}

// size returns the approximate memory use of b.
func (b *Batch) size() int { return cap(b.sse) + 64*len(b.heads) }

// A builder assembles batches.
type builder struct {
	sse   []byte
	ends  []int // start and end offset in sse of each record's text
	heads []head
}

func (w *builder) add(h head, line []byte) {
	// Nothing is escaped: CR and LF end a line of an event stream (HTML Standard, Server-sent
	// events), and event.AppendJSON escapes both.
	if h.seq > 0 {
		w.sse = append(w.sse, "id: "...)
		w.sse = strconv.AppendUint(w.sse, h.seq, 10)
		w.sse = append(w.sse, '\n')
	}
	w.sse = append(w.sse, "event: "...)
	w.sse = append(w.sse, h.typ.String()...)
	w.sse = append(w.sse, "\ndata: "...)
	w.ends = append(w.ends, len(w.sse))
	w.sse = append(w.sse, line...)
	w.ends = append(w.ends, len(w.sse))
	w.sse = append(w.sse, "\n\n"...)
	w.heads = append(w.heads, h)
}

// batch returns the added records as a batch and resets the builder.
func (w *builder) batch() *Batch {
	// The builder reuses its buffers, and streams share the batch.
	b := &Batch{sse: bytes.Clone(w.sse), heads: append([]head(nil), w.heads...), Lines: make([][]byte, len(w.heads))}
	for i := range b.Lines {
		from, to := w.ends[2*i], w.ends[2*i+1]
		b.Lines[i] = b.sse[from:to:to]
		if b.heads[i].seq > 0 {
			b.counts[b.heads[i].typ]++
		}
	}
	w.sse, w.ends, w.heads = w.sse[:0], w.ends[:0], w.heads[:0]
	return b
}

// filter returns a batch of the records of b for which keep returns true: b itself if these
// are all, and nil if there are none. It calls keep once for each record, in order.
func (b *Batch) filter(keep func(h *head) bool) *Batch {
	kept := make([]int, 0, len(b.heads))
	for i := range b.heads {
		if keep(&b.heads[i]) {
			kept = append(kept, i)
		}
	}
	switch len(kept) {
	case len(b.heads):
		return b
	case 0:
		return nil
	}
	var w builder
	for _, i := range kept {
		w.add(b.heads[i], b.Lines[i])
	}
	part := w.batch()
	part.upto, part.before = b.upto, b.before
	return part
}

// gaps returns a batch with one gap for each type of n. The gaps report that n records between
// from and through were not delivered.
func (l *Log) gaps(n counts, from, through uint64, reason string) *Batch {
	var w builder
	for t := range n {
		if n[t] == 0 {
			continue
		}
		e := event.Event{Type: event.Gap, Jail: l.cfg.Jail, Source: event.Type(t), Lost: n[t], Reason: reason, From: from, Through: through}
		stamp(&e)
		w.add(head{typ: event.Gap, ts: e.TS}, e.AppendJSON(nil))
	}
	b := w.batch()
	b.counts, b.upto = n, through
	return b
}
