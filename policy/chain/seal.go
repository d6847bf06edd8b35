package chain

import (
	"context"
	"encoding/json"
	"fmt"

	"glasshouse/fault"
	"glasshouse/id"
)

// A Segment is a closed segment of a jail's event log. Its text never changes again.
type Segment struct {
	Stream string `json:"stream"` // "syscalls", "filesystem", "network", "processes"
	File   string `json:"file"`
	First  uint64 `json:"first"` // sequence numbers of its records
	Last   uint64 `json:"last"`
	SHA256 string `json:"sha256"` // SHA-256 hash of the text
}

// Seal records the digest of a segment, so that changes of the events are detectable.
func (c *Chain) Seal(ctx context.Context, jail id.Jail, s Segment) (Entry, error) {
	var sum Hash
	if !parseHash(&sum, []byte(s.SHA256)) {
		return Entry{}, fault.Fieldf("chain.Seal", "sha256", "%.80q is not 64 hexadecimal digits", s.SHA256)
	}
	body, err := json.Marshal(s)
	if err != nil {
		return Entry{}, fmt.Errorf("encode the segment: %w", err)
	}
	return c.Append(ctx, Entry{Kind: EventsSealed, Jail: jail, Body: body})
}

// Sealed returns the sealed segments of a jail in the order of sealing. After a restart, the
// daemon seals the finished segments that are not among them.
func (c *Chain) Sealed(ctx context.Context, jail id.Jail) ([]Segment, error) {
	var list []Segment
	for q := (Query{Jail: jail, Kinds: []Kind{EventsSealed}}); ; {
		page, err := c.Entries(ctx, q)
		if err != nil {
			return nil, fmt.Errorf("read the sealed segments of jail %s: %w", jail, err)
		}
		for _, e := range page {
			var s Segment
			if err := json.Unmarshal(e.Body, &s); err != nil {
				return nil, damaged(fmt.Errorf("entry %d: %w", e.Seq, err))
			}
			list = append(list, s)
			q.After = e.Seq
		}
		if len(page) < maxPage {
			return list, nil
		}
	}
}
