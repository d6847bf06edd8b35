// Package memory provides persistent memory for agents: key-value entries in a scope that
// belongs to one session or one run.
//
// It is offered as capabilities, so that reads and writes are authorised, logged and labelled
// like other calls. A scope can be captured and restored as a unit, so that it is part of
// checkpoints and branches of a run do not share it.
package memory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"glasshouse/capability/manifest"
	"glasshouse/capability/schema"
	"glasshouse/fault"
)

// A Scope names the owner of entries: a session or a run.
type Scope string

// SessionScope returns the scope that all runs of a session share.
func SessionScope(session string) Scope { return Scope("session/" + session) }

// RunScope returns the private scope of a run.
func RunScope(run string) Scope { return Scope("run/" + run) }

// An Entry is one key with its value.
type Entry struct {
	Key     string          `json:"key"`
	Value   json.RawMessage `json:"value"`
	Label   manifest.Label  `json:"label"` // label of the entry, including its key
	Tags    []string        `json:"tags,omitempty"`
	From    From            `json:"from"`
	Version int64           `json:"version"` // version of its scope at the write; never reused
	Created time.Time       `json:"created"`
	Updated time.Time       `json:"updated"`
}

// From identifies the writer of an entry.
type From struct {
	Run   string `json:"run,omitempty"`
	Call  string `json:"call,omitempty"`
	Step  string `json:"step,omitempty"` // the idempotency key of the call
	Agent string `json:"agent,omitempty"`
	Jail  string `json:"jail,omitempty"`
}

// Bytes returns the size that counts towards the limits.
func (e Entry) Bytes() int64 {
	n := len(e.Key) + len(e.Value)
	for _, t := range e.Tags {
		n += len(t)
	}
	return int64(n)
}

// Usage is the number and size of the entries of a scope.
type Usage struct {
	Version int64 // last version used
	Entries int64
	Bytes   int64
}

// A Store keeps entries.
type Store interface {
	Get(ctx context.Context, s Scope, key string) (Entry, error) // fault.NotFound
	All(ctx context.Context, s Scope) ([]Entry, Usage, error)    // in any order

	// Change replaces an entry atomically with the result of f. old is nil if there is no
	// entry; rest is the usage of the scope without it. If f returns nil, the entry is
	// deleted; if it returns old, nothing is written.
	Change(ctx context.Context, s Scope, key string, f func(old *Entry, rest Usage) (*Entry, error)) error

	// Replace replaces all entries of a scope. It never decreases the version of the scope.
	Replace(ctx context.Context, s Scope, entries []Entry, version int64) error

	Delete(ctx context.Context, s Scope) error
}

// Limits are the size limits of memory. A zero field selects the default.
type Limits struct {
	Value   int64 // bytes of one value; 64 KiB
	Entries int64 // entries in a scope; 1024
	Bytes   int64 // bytes of a scope; 4 MiB
}

func (l Limits) orDefault() Limits {
	if l.Value <= 0 {
		l.Value = 64 << 10
	}
	if l.Entries <= 0 {
		l.Entries = 1024
	}
	if l.Bytes <= 0 {
		l.Bytes = 4 << 20
	}
	return l
}

const (
	maxKey  = 256 // bytes
	maxTag  = 64
	maxTags = 16
)

// check returns an error if an entry is invalid.
func (l Limits) check(e Entry) error {
	const op = "memory.put"
	switch {
	case e.Key == "" || len(e.Key) > maxKey || !printable(e.Key):
		return fault.Fieldf(op, "key", "invalid key %.40q: must be text of 1 to %d bytes", e.Key, maxKey)
	case !json.Valid(e.Value):
		return fault.Fieldf(op, "value", "not valid JSON")
	case int64(len(e.Value)) > l.Value:
		return &fault.Error{Op: op, Kind: fault.TooLarge, Field: "value", Remedy: "store the value in a file and its path in memory",
			Err: fmt.Errorf("the value has %d bytes as JSON; at most %d are allowed", len(e.Value), l.Value)}
	case len(e.Tags) > maxTags:
		return fault.Fieldf(op, "tags", "%d tags exceed the maximum of %d", len(e.Tags), maxTags)
	}
	for _, t := range e.Tags {
		if t == "" || len(t) > maxTag || !printable(t) {
			return fault.Fieldf(op, "tags", "invalid tag %.40q: must be text of 1 to %d bytes", t, maxTag)
		}
	}
	if _, err := manifest.ParseLabel(string(e.Label)); err != nil {
		return fault.Fieldf(op, "label", "%v", err)
	}
	if !highest.Covers(e.Label) {
		return &fault.Error{Op: op, Kind: fault.Denied, Field: "label", Remedy: "store secrets with glasshouse secret",
			Err: fmt.Errorf("data of class %s cannot be stored in memory", e.Label)}
	}
	return nil
}

// highest is the highest label that can be stored.
const highest = manifest.PII

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// room returns an error if an entry exceeds the limits of a scope with the usage rest.
func (l Limits) room(e Entry, rest Usage) error {
	var what error
	switch {
	case rest.Entries >= l.Entries:
		what = fmt.Errorf("memory is full: %d entries, which is the limit", rest.Entries)
	case rest.Bytes+e.Bytes() > l.Bytes:
		what = fmt.Errorf("memory is full: %d bytes used, %d more needed, %d available", rest.Bytes, e.Bytes(), max(0, l.Bytes-rest.Bytes))
	default:
		return nil
	}
	return &fault.Error{Op: "memory.put", Kind: fault.Exhausted, Err: what, Remedy: "delete entries that are no longer needed"}
}

// put stores an entry. If version is not nil, the existing entry must have this version; 0
// means no entry.
func (m *Engine) put(ctx context.Context, s Scope, e Entry, version *int64) (Entry, error) {
	if err := m.limits.check(e); err != nil {
		return Entry{}, err
	}
	kept := e
	err := m.store.Change(ctx, s, e.Key, func(old *Entry, rest Usage) (*Entry, error) {
		kept = e
		if old != nil && e.From.Step != "" && old.From.Step == e.From.Step && old.From.Run == e.From.Run {
			kept = *old
			return old, nil // retry of the same call
		}
		var have int64
		if old != nil {
			have, kept.Created = old.Version, old.Created
		}
		if version != nil && *version != have {
			return nil, &fault.Error{Op: "memory.put", On: e.Key, Kind: fault.Conflict,
				Err: fmt.Errorf("the entry has version %d, not %d", have, *version), Remedy: "read the entry again and retry"}
		}
		if err := m.limits.room(kept, rest); err != nil {
			return nil, err
		}
		kept.Version = rest.Version + 1
		return &kept, nil
	})
	return kept, err
}

// Forget deletes an entry. A missing entry is not an error.
func (m *Engine) Forget(ctx context.Context, s Scope, key string) error {
	return m.store.Change(ctx, s, key, func(*Entry, Usage) (*Entry, error) { return nil, nil })
}

// Delete deletes all entries of a scope.
func (m *Engine) Delete(ctx context.Context, s Scope) error { return m.store.Delete(ctx, s) }

// captured is the serialised state of a scope.
type captured struct {
	Version int64   `json:"version"`
	Entries []Entry `json:"entries"`
}

// Capture returns the serialised entries of a scope, for Restore.
func (m *Engine) Capture(ctx context.Context, s Scope) (json.RawMessage, error) {
	all, u, err := m.all(ctx, s)
	if err == nil {
		var text json.RawMessage
		if text, err = json.Marshal(captured{u.Version, all}); err == nil {
			return text, nil
		}
	}
	return nil, fmt.Errorf("capture memory: %w", err)
}

// Restore replaces the entries of a scope by captured ones. They may come from the same scope,
// for a rewind, or from another one, for a branch. Current limits are not applied to them.
func (m *Engine) Restore(ctx context.Context, s Scope, text json.RawMessage) error {
	const op = "memory.Restore"
	var c captured
	if err := json.Unmarshal(text, &c); err != nil {
		return fault.New(fault.Invalid, op, string(s), fmt.Errorf("invalid captured memory: %w", err))
	}
	seen := map[string]bool{}
	for i, e := range c.Entries {
		err := Limits{Value: math.MaxInt64}.check(e)
		switch {
		case err != nil:
		case seen[e.Key]:
			err = errors.New("duplicate key")
		case e.Version <= 0 || e.Version > c.Version:
			err = fmt.Errorf("version %d exceeds the scope's version %d", e.Version, c.Version)
		default: // the caller may have stored the text in another encoding
			c.Entries[i].Value, err = canonical(e.Value)
		}
		if err != nil {
			return fault.Newf(fault.Invalid, op, string(s), "entry %.40q: %w", e.Key, err)
		}
		seen[e.Key] = true
	}
	if err := m.store.Replace(ctx, s, c.Entries, c.Version); err != nil {
		return fmt.Errorf("restore memory: %w", err)
	}
	return nil
}

// canonical returns the value in canonical JSON.
func canonical(value json.RawMessage) (json.RawMessage, error) {
	var anything *schema.Type
	v, err := anything.FromJSON(value)
	if err != nil {
		return nil, err
	}
	return schema.ToJSON(v)
}
