package eventlog

import (
	"bytes"
	"strconv"

	"glasshouse/event"
)

// A Batch is some records that a Stream hands out at once. It is shared by all
// streams with the same filter, and nobody may change it.
type Batch struct {
	Lines [][]byte // JSON, without newlines

	sse    []byte // Lines are in it
	heads  []head
	upto   uint64 // everything wanted up to here is in this batch or in earlier ones
	before counts // records that were wanted and are in earlier batches, or were left out
	counts counts // records in this one, or that it tells of as left out
}

// SSE returns the records as server-sent events, rendered once. A gap that is in
// no file has no id, so that a reader who comes back gets what it tells of.
func (b *Batch) SSE() []byte { return b.sse }

// Last is the sequence number of the last record, or 0 if none has one.
func (b *Batch) Last() uint64 {
	for i := len(b.heads) - 1; i >= 0; i-- {
		if b.heads[i].seq > 0 {
			return b.heads[i].seq
		}
	}
	return 0
}

// size is about what b takes in memory.
func (b *Batch) size() int { return cap(b.sse) + 64*len(b.heads) }

// A builder makes batches.
type builder struct {
	sse   []byte
	ends  []int // of each record's text, begin and end in sse
	heads []head
}

func (w *builder) add(h head, line []byte) {
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

// batch returns what was added, and begins anew.
func (w *builder) batch() *Batch {
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

// only returns a batch of those records of b that keep says yes to: b itself if
// it does to all, and nil if to none. It asks once for each, in order.
func (b *Batch) only(keep func(h *head) bool) *Batch {
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

// gaps returns a batch that tells that n records between from and through were
// not handed out, one gap for each type.
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
