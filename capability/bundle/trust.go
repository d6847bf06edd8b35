package bundle

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/internal/atomicfile"
)

// TrustFile is the name of the trust store in the data directory.
const TrustFile = "trust.json"

// skew is the tolerated clock difference to the publisher.
const skew = 10 * time.Minute

// A Publisher is trusted up to a tier.
type Publisher struct {
	Name string       `json:"name"`
	Tier Tier         `json:"tier"` // maximum tier of their bundles
	Keys []TrustedKey `json:"keys"`
}

// A TrustedKey is a publisher's key and its status.
type TrustedKey struct {
	Key     PublicKey  `json:"key"`
	Added   time.Time  `json:"added"`
	Retired *time.Time `json:"retired,omitempty"` // later signatures are rejected
	Revoked *time.Time `json:"revoked,omitempty"` // all signatures are rejected
	Reason  string     `json:"reason,omitempty"`  // reason of the revocation
}

// A RevokedDigest is a content that is rejected, regardless of its signer.
type RevokedDigest struct {
	Digest string    `json:"digest"`
	At     time.Time `json:"at"`
	Reason string    `json:"reason,omitempty"`
}

// trusted is the content of the trust store's file.
type trusted struct {
	Publishers []Publisher     `json:"publishers"`
	Bundles    []RevokedDigest `json:"revoked_bundles"`
}

// Trust is the trust store. Changes are durable when its methods return. It is safe for
// concurrent use; only one process may use its file, while several may share a TrustStore.
type Trust struct {
	file   string
	shared TrustStore // nil: the publishers are in file

	changeMu sync.Mutex // serialises changes; acquired before mu
	// +checklocks:changeMu
	text []byte // the last text of shared

	mu sync.RWMutex
	// +checklocks:mu
	kept trusted
}

// A TrustStore stores the trusted publishers that several daemons share.
type TrustStore interface {
	// Trust returns the text that was stored last, or nil.
	Trust(ctx context.Context) ([]byte, error)

	// PutTrust replaces the text, unless it is no longer was. It reports whether it has
	// replaced it.
	PutTrust(ctx context.Context, was, next []byte) (done bool, err error)
}

// ShareTrust reads the trust store that several daemons share.
func ShareTrust(ctx context.Context, s TrustStore) (*Trust, error) {
	t := &Trust{shared: s}
	return t, t.Refresh(ctx)
}

// Refresh reads the changes of other daemons.
func (t *Trust) Refresh(ctx context.Context) error {
	if t.shared == nil {
		return nil
	}
	t.changeMu.Lock()
	defer t.changeMu.Unlock()
	return t.reread(ctx)
}

// +checklocks:t.changeMu
func (t *Trust) reread(ctx context.Context) error {
	text, err := t.shared.Trust(ctx)
	if err != nil || bytes.Equal(text, t.text) {
		return err
	}
	next, err := parseTrust(text, "the database of the fleet")
	if err != nil {
		return err
	}
	t.replace(next, text)
	return nil
}

// +checklocks:t.changeMu
func (t *Trust) replace(next trusted, text []byte) {
	t.text = text
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = next
}

// OpenTrust reads the trust store in file. If the file does not exist, no publisher is
// trusted.
func OpenTrust(file string) (*Trust, error) {
	const op = "bundle.OpenTrust"
	t := &Trust{file: file}
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the trust store: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read the trust store: %w", err)
	}
	if st.Mode().Perm()&0o022 != 0 {
		return nil, &fault.Error{
			Op: op, On: file, Kind: fault.Denied, Err: fmt.Errorf("the trust store is writable by other users (mode %04o)", st.Mode().Perm()),
			Remedy: "review its content, then run chmod 644 " + file,
		}
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("read the trust store: %w", err)
	}
	t.kept, err = parseTrust(text, file)
	return t, err
}

func parseTrust(text []byte, from string) (k trusted, err error) {
	const op = "bundle.OpenTrust"
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&k); err != nil {
		return trusted{}, fault.Newf(fault.Invalid, op, from, "not a trust store: %w", err)
	}
	for _, p := range k.Publishers {
		if err := p.check(); err != nil {
			return trusted{}, fault.New(fault.Invalid, op, from, err)
		}
	}
	return k, nil
}

func (p *Publisher) check() error {
	if err := checkWord("publisher", p.Name); err != nil {
		return err
	}
	return checkTier(p.Tier)
}

// Publishers returns the trusted publishers, sorted by name.
func (t *Trust) Publishers() []Publisher {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.kept.clone().Publishers
}

// RevokedBundles returns the revoked contents.
func (t *Trust) RevokedBundles() []RevokedDigest {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Clone(t.kept.Bundles)
}

func (k trusted) clone() trusted {
	k.Publishers, k.Bundles = slices.Clone(k.Publishers), slices.Clone(k.Bundles)
	for i := range k.Publishers {
		k.Publishers[i].Keys = slices.Clone(k.Publishers[i].Keys)
	}
	return k
}

// change applies f to a copy of the store and stores it. It applies f again if another daemon has
// changed a shared store in the meantime.
func (t *Trust) change(ctx context.Context, f func(k *trusted) error) error {
	t.changeMu.Lock()
	defer t.changeMu.Unlock()
	for {
		if t.shared != nil {
			if err := t.reread(ctx); err != nil {
				return err
			}
		}
		t.mu.RLock()
		next := t.kept.clone()
		t.mu.RUnlock()
		if err := f(&next); err != nil {
			return err
		}
		text, err := json.MarshalIndent(next, "", "  ")
		if err != nil {
			return fmt.Errorf("encode the trusted publishers: %w", err)
		}
		done := true
		if t.shared != nil {
			done, err = t.shared.PutTrust(ctx, t.text, text)
		} else {
			err = atomicfile.Durable(t.file, append(text, '\n'), 0o644)
		}
		if err != nil {
			return fmt.Errorf("write the trust store: %w", err)
		}
		if done {
			t.replace(next, text)
			return nil
		}
	}
}

// Take moves the publishers of another trust store that this one does not have, and the
// revocations, to this one. Publishers that this one has keep their tier and their keys. The other
// store is empty afterwards, so that a later Take does not add what was removed here since.
func (t *Trust) Take(ctx context.Context, from *Trust) error {
	from.mu.RLock()
	other := from.kept.clone()
	from.mu.RUnlock()
	if len(other.Publishers)+len(other.Bundles) == 0 {
		return nil
	}
	err := t.change(ctx, func(k *trusted) error {
		for _, p := range other.Publishers {
			k.merge(p)
		}
		for _, r := range other.Bundles {
			k.revokeBundle(r)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return from.change(ctx, func(k *trusted) error {
		*k = trusted{}
		return nil
	})
}

// merge adds a publisher, or revokes those of their keys that are revoked.
func (k *trusted) merge(p Publisher) {
	known := k.publisher(p.Name) != nil
	p.Keys = slices.DeleteFunc(slices.Clone(p.Keys), func(key TrustedKey) bool {
		_, have := k.key(key.Key)
		if have != nil && have.Revoked == nil {
			have.Revoked, have.Reason = key.Revoked, key.Reason
		}
		return have != nil
	})
	if !known && len(p.Keys) > 0 {
		k.addPublisher(p)
	}
}

func (k *trusted) addPublisher(p Publisher) {
	k.Publishers = append(k.Publishers, p)
	slices.SortFunc(k.Publishers, func(a, b Publisher) int { return strings.Compare(a.Name, b.Name) })
}

func (k *trusted) revokeBundle(r RevokedDigest) {
	if !slices.ContainsFunc(k.Bundles, func(have RevokedDigest) bool { return have.Digest == r.Digest }) {
		k.Bundles = append(k.Bundles, r)
	}
}

func (k *trusted) publisher(name string) *Publisher {
	for i := range k.Publishers {
		if k.Publishers[i].Name == name {
			return &k.Publishers[i]
		}
	}
	return nil
}

// key returns a key and its publisher, or nil.
func (k *trusted) key(key PublicKey) (*Publisher, *TrustedKey) {
	for i := range k.Publishers {
		p := &k.Publishers[i]
		for j := range p.Keys {
			if p.Keys[j].Key.key == key.key {
				return p, &p.Keys[j]
			}
		}
	}
	return nil, nil
}

// Add trusts a publisher up to a tier with a key. For a known publisher it sets the tier and
// adds the key.
func (t *Trust) Add(ctx context.Context, name string, tier Tier, key PublicKey) error {
	const op = "bundle.Trust.Add"
	p := Publisher{Name: name, Tier: tier}
	if err := p.check(); err != nil {
		return fault.New(fault.Invalid, op, name, err)
	}
	return t.change(ctx, func(k *trusted) error {
		whose, have := k.key(key)
		switch {
		case have != nil && whose.Name != name:
			return fault.Newf(fault.Conflict, op, name, "the key %s belongs to %s", key.ID(), whose.Name)
		case have != nil && have.Revoked != nil:
			return fault.Newf(fault.Conflict, op, name, "the key %s is revoked permanently", key.ID())
		}
		here := k.publisher(name)
		if here == nil {
			k.addPublisher(p)
			here = k.publisher(name)
		}
		here.Tier = tier
		if have == nil {
			here.Keys = append(here.Keys, TrustedKey{Key: key, Added: time.Now().UTC()})
		}
		return nil
	})
}

// Rotate replaces a publisher's key. Earlier signatures by the old key remain valid; if the
// old key is compromised, use RevokeKey instead.
func (t *Trust) Rotate(ctx context.Context, old, key PublicKey) error {
	const op = "bundle.Trust.Rotate"
	return t.change(ctx, func(k *trusted) error {
		p, was := k.key(old)
		if was == nil || was.Revoked != nil {
			return fault.Newf(fault.NotFound, op, old.ID(), "no publisher has that key")
		}
		if _, have := k.key(key); have != nil {
			return fault.Newf(fault.Conflict, op, key.ID(), "the key already exists")
		}
		now := time.Now().UTC()
		if was.Retired == nil {
			was.Retired = &now
		}
		p.Keys = append(p.Keys, TrustedKey{Key: key, Added: now})
		return nil
	})
}

// RevokeKey revokes a key. All its signatures are rejected, whatever their time.
func (t *Trust) RevokeKey(ctx context.Context, key PublicKey, reason string) error {
	return t.change(ctx, func(k *trusted) error {
		_, have := k.key(key)
		if have == nil {
			return fault.Newf(fault.NotFound, "bundle.Trust.RevokeKey", key.ID(), "no publisher has that key")
		}
		if have.Revoked == nil {
			now := time.Now().UTC()
			have.Revoked, have.Reason = &now, reason
		}
		return nil
	})
}

// RevokeBundle rejects a content, regardless of its signer.
func (t *Trust) RevokeBundle(ctx context.Context, digest, reason string) error {
	if !IsDigest(digest) {
		return fault.Fieldf("bundle.Trust.RevokeBundle", "digest", "%q is not a digest of 64 hexadecimal digits", digest)
	}
	return t.change(ctx, func(k *trusted) error {
		k.revokeBundle(RevokedDigest{Digest: digest, At: time.Now().UTC(), Reason: reason})
		return nil
	})
}

// Remove removes a publisher. Revoked keys are kept and remain rejected.
func (t *Trust) Remove(ctx context.Context, name string) error {
	return t.change(ctx, func(k *trusted) error {
		p := k.publisher(name)
		if p == nil {
			return fault.Newf(fault.NotFound, "bundle.Trust.Remove", name, "no publisher of that name is trusted")
		}
		p.Keys = slices.DeleteFunc(p.Keys, func(k TrustedKey) bool { return k.Revoked == nil })
		if len(p.Keys) == 0 {
			k.Publishers = slices.DeleteFunc(k.Publishers, func(p Publisher) bool { return p.Name == name })
		}
		return nil
	})
}

// A Warrant contains the facts on which a bundle is trusted: the signer, the content, and the
// time.
type Warrant struct {
	Publisher string
	Key       PublicKey
	Signed    string    // RFC 3339, UTC
	Until     time.Time // zero: no expiry
	Digest    string
	Tier      Tier
}

func (b *Bundle) warrant() Warrant {
	s := b.Signature
	return Warrant{s.Publisher, s.Key, s.Signed, b.Expires(), b.Digest(), b.Metadata.Tier}
}

// Check rejects a bundle that is not signed by a publisher trusted for its tier.
func (t *Trust) Check(b *Bundle) error {
	if err := t.Holds(b.warrant()); err != nil {
		return on(b.path, err)
	}
	return b.inTime()
}

// Holds rejects a warrant that is no longer valid: the key or the content was revoked, the
// publisher is not trusted for the tier, or the bundle has expired. The error has a Reason.
func (t *Trust) Holds(w Warrant) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if err := t.kept.checkKey(w.Publisher, w.Key, w.Signed); err != nil {
		return err
	}
	for _, r := range t.kept.Bundles {
		if r.Digest == w.Digest {
			return refuse(RevokedBundle, "", "since %s: %s", r.At.Format(time.DateOnly), orNone(r.Reason))
		}
	}
	if !w.Until.IsZero() && !time.Now().Before(w.Until) {
		return refuse(Expired, "", "since %s", w.Until.UTC().Format(time.RFC3339))
	}
	if p := t.kept.publisher(w.Publisher); !p.Tier.Covers(w.Tier) {
		return refuse(TierExceeded, "", "it has tier %s, but %s is trusted only up to %s", w.Tier, p.Name, p.Tier)
	}
	return nil
}

// CheckKey rejects a bundle that is not signed by one of keys. It needs no trust store.
func (b *Bundle) CheckKey(keys ...PublicKey) error {
	if !slices.ContainsFunc(keys, func(k PublicKey) bool { return k.key == b.Signature.Key.key }) {
		return refuse(UnknownKey, b.name(), "it is signed by %s", b.Signature.Key)
	}
	return b.inTime()
}

// inTime rejects a bundle that is signed in the future or has expired.
func (b *Bundle) inTime() error {
	signed, err := utc(b.Signature.Signed)
	if err != nil {
		return refuse(BadSignature, b.name(), "signed: %w", err)
	}
	now := time.Now()
	if signed.After(now.Add(skew)) {
		return refuse(NotYet, b.name(), "at %s", b.Signature.Signed)
	}
	if at := b.Expires(); !at.IsZero() && !now.Before(at) {
		return refuse(Expired, b.name(), "since %s", at.Format(time.RFC3339))
	}
	return nil
}

// checkKey rejects a key that is not a valid key of the stated publisher.
func (k *trusted) checkKey(publisher string, key PublicKey, signed string) error {
	at, err := utc(signed)
	if err != nil {
		return refuse(BadSignature, "", "signed: %w", err)
	}
	whose, have := k.key(key)
	switch {
	case have != nil && have.Revoked != nil:
		return refuse(RevokedKey, "", "%s, since %s: %s", key.ID(), have.Revoked.Format(time.DateOnly), orNone(have.Reason))
	case k.publisher(publisher) == nil:
		return refuse(UnknownPublisher, "", "%s, with the key %s", publisher, key)
	case have == nil || whose.Name != publisher:
		return refuse(UnknownKey, "", "%s is not a key of %s: %s", key.ID(), publisher, key)
	case have.Retired != nil && at.After(*have.Retired):
		return refuse(RetiredKey, "", "%s was replaced on %s, but this was signed at %s", key.ID(), have.Retired.Format(time.RFC3339), signed)
	}
	return nil
}

func orNone(reason string) string {
	if reason == "" {
		return "no reason was given"
	}
	return reason
}
