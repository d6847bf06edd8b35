package access

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// A Token is a stored bearer token, without its secret.
type Token struct {
	ID      id.Token
	Name    string
	Role    Role
	Hash    string // hex SHA-256 of the secret
	Created time.Time
	Expires *time.Time // nil: never
	Quota   Quota
}

// A Quota limits what the jails that were created with a token may demand together. A limit of 0
// does not apply.
type Quota struct {
	Jails  int
	Memory int64 // bytes
	Disk   int64 // bytes
}

func (q Quota) check(op string) error {
	for field, n := range map[string]int64{"quota.jails": int64(q.Jails), "quota.memory_bytes": q.Memory, "quota.disk_bytes": q.Disk} {
		if n < 0 {
			return fault.Fieldf(op, field, "%d is negative", n)
		}
	}
	return nil
}

// A QuotaChange changes the limits of a quota that are not nil.
type QuotaChange struct {
	Jails        *int
	Memory, Disk *int64
}

// Apply returns a quota with the changed limits.
func (c QuotaChange) Apply(q Quota) Quota {
	if c.Jails != nil {
		q.Jails = *c.Jails
	}
	if c.Memory != nil {
		q.Memory = *c.Memory
	}
	if c.Disk != nil {
		q.Disk = *c.Disk
	}
	return q
}

// A Store stores tokens. Add returns fault.Conflict for a duplicate ID or Hash; ByHash, ByID,
// SetQuota and Delete return fault.NotFound for an unknown one. List is ordered by creation, then
// ID.
type Store interface {
	Add(ctx context.Context, t Token) error
	ByHash(ctx context.Context, hash string) (Token, error)
	ByID(ctx context.Context, t id.Token) (Token, error)
	List(ctx context.Context) ([]Token, error)
	SetQuota(ctx context.Context, t id.Token, c QuotaChange) (Token, error)
	Delete(ctx context.Context, t id.Token) error
}

// Tokens creates, checks and revokes bearer tokens. It is safe for concurrent use if its Store
// is.
type Tokens struct {
	Store Store

	// Remember is how long a token is accepted without asking the Store, which other daemons use,
	// too. 0: never.
	Remember time.Duration

	mu sync.Mutex
	// +checklocks:mu
	known map[string]knownToken // by hash
	// +checklocks:mu
	hashes map[id.Token]string // of known tokens
	// +checklocks:mu
	changes int // number of calls of Revoke and SetQuota
}

// A knownToken was in the store at a time.
type knownToken struct {
	Token
	at time.Time
}

const maxKnown = 10_000

const (
	prefix   = "gh_"
	keyMark  = "e2b_" // prefix of keys, which their clients expect
	maxName  = 64
	maxToken = 256 // no valid secret is longer; bounds the cost of hashing untrusted input
)

// Create creates a token and returns it with its secret, which is not stored.
func (ts *Tokens) Create(ctx context.Context, name string, role Role, expires *time.Time, q Quota) (Token, string, error) {
	return ts.create(ctx, name, role, expires, q, secretOf(prefix))
}

func (ts *Tokens) create(ctx context.Context, name string, role Role, expires *time.Time, q Quota, secret string) (Token, string, error) {
	const op = "access.Create"
	if name == "" || len(name) > maxName || strings.ContainsFunc(name, isControl) {
		return Token{}, "", fault.Fieldf(op, "name", "must be 1 to %d bytes without control characters", maxName)
	}
	if _, err := ParseRole(string(role)); err != nil {
		return Token{}, "", err
	}
	if expires != nil && !expires.After(time.Now()) {
		return Token{}, "", fault.Fieldf(op, "expires_at", "%s is in the past", expires.Format(time.RFC3339))
	}
	if err := q.check(op); err != nil {
		return Token{}, "", err
	}
	t := minted(name, role, expires, secret)
	t.Quota = q
	if err := ts.Store.Add(ctx, t); err != nil {
		return Token{}, "", fmt.Errorf("store token %s: %w", t.ID, err)
	}
	return t, secret, nil
}

// CreateKey creates an API key for clients of the E2B protocol and returns it with its secret,
// which has the format that those clients expect. The key has the operator role and is
// accepted by the E2B endpoints only. The secret is not stored.
func (ts *Tokens) CreateKey(ctx context.Context, name string, expires *time.Time, q Quota) (Token, string, error) {
	var b [20]byte
	rand.Read(b[:]) // never fails
	return ts.create(ctx, name, Operator, expires, q, keyMark+hex.EncodeToString(b[:]))
}

func isControl(r rune) bool { return r < 0x20 || r == 0x7f || r == '\uFFFD' }

func minted(name string, role Role, expires *time.Time, secret string) Token {
	return Token{
		ID:      id.NewToken(),
		Name:    name,
		Role:    role,
		Hash:    hash(secret),
		Created: time.Now().UTC(),
		Expires: expires,
	}
}

func hash(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// List returns every token, oldest first.
func (ts *Tokens) List(ctx context.Context) ([]Token, error) { return ts.Store.List(ctx) }

// Revoke revokes a token: the next request that uses it is refused. Other daemons with the same
// Store accept it for the time of Remember.
func (ts *Tokens) Revoke(ctx context.Context, t id.Token) error {
	err := ts.Store.Delete(ctx, t)
	ts.forget()
	return err
}

// SetQuota changes the quota of a token. It applies to later creations, on other
// daemons with the same Store after the time of Remember.
func (ts *Tokens) SetQuota(ctx context.Context, t id.Token, c QuotaChange) (Token, error) {
	if err := c.Apply(Quota{}).check("access.SetQuota"); err != nil {
		return Token{}, err
	}
	changed, err := ts.Store.SetQuota(ctx, t, c)
	ts.forget()
	return changed, err
}

// forget makes the next use of each token ask the Store.
func (ts *Tokens) forget() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.known, ts.hashes = nil, nil
	ts.changes++
}

// ByID returns a token from memory or from the store, or fault.NotFound. Without Remember, this
// process is the only one that changes tokens, so known tokens stay valid.
func (ts *Tokens) ByID(ctx context.Context, t id.Token) (Token, error) {
	ts.mu.Lock()
	k, changes := ts.known[ts.hashes[t]], ts.changes
	ts.mu.Unlock()
	if k.Hash != "" && (ts.Remember == 0 || time.Since(k.at) < ts.Remember) {
		return k.Token, nil
	}
	return ts.learn(changes, func() (Token, error) { return ts.Store.ByID(ctx, t) })
}

// byHash returns a token from memory or from the store.
func (ts *Tokens) byHash(ctx context.Context, hash string) (Token, error) {
	ts.mu.Lock()
	k, changes := ts.known[hash], ts.changes
	ts.mu.Unlock()
	if k.Hash != "" && time.Since(k.at) < ts.Remember {
		return k.Token, nil
	}
	return ts.learn(changes, func() (Token, error) { return ts.Store.ByHash(ctx, hash) })
}

// learn reads a token from the store and remembers it, unless tokens have been changed since
// changes was read.
func (ts *Tokens) learn(changes int, read func() (Token, error)) (Token, error) {
	now := time.Now()
	t, err := read()
	if err != nil {
		return t, err
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if changes != ts.changes { // the store may have been read before
		return t, nil
	}
	if ts.known == nil || len(ts.known) >= maxKnown {
		ts.known, ts.hashes = map[string]knownToken{}, map[id.Token]string{}
	}
	ts.known[t.Hash], ts.hashes[t.ID] = knownToken{t, now}, t.Hash
	return t, nil
}

// Check returns the caller authenticated by secret, or fault.Unauthenticated. E2B keys are not
// accepted.
func (ts *Tokens) Check(ctx context.Context, secret string) (Caller, error) {
	return ts.check(ctx, secret, prefix)
}

// CheckKey returns the caller authenticated by an E2B key, or fault.Unauthenticated. Other
// tokens are not accepted.
func (ts *Tokens) CheckKey(ctx context.Context, key string) (Caller, error) {
	return ts.check(ctx, key, keyMark)
}

func (ts *Tokens) check(ctx context.Context, secret, prefix string) (Caller, error) {
	const op = "access.Check"
	if !strings.HasPrefix(secret, prefix) || len(secret) > maxToken {
		return Caller{}, fault.Newf(fault.Unauthenticated, op, "", "the token does not belong to this daemon")
	}
	h := hash(secret)
	t, err := ts.byHash(ctx, h)
	switch {
	case errors.Is(err, fault.NotFound):
		return Caller{}, fault.Newf(fault.Unauthenticated, op, "", "the token is unknown or revoked")
	case err != nil:
		return Caller{}, fmt.Errorf("look up a token: %w", err)
	case subtle.ConstantTimeCompare([]byte(t.Hash), []byte(h)) != 1:
		return Caller{}, fault.Newf(fault.Unauthenticated, op, "", "the token is unknown or revoked")
	case t.Expires != nil && !time.Now().Before(*t.Expires):
		return Caller{}, fault.Newf(fault.Unauthenticated, op, string(t.ID), "the token expired at %s", t.Expires.UTC().Format(time.RFC3339))
	}
	return Caller{Role: t.Role, Name: t.Name, Token: t.ID}, nil
}

// First creates an admin token and writes its secret to file, mode 0600, if no token exists
// yet; it reports whether it did.
//
// The file is written before the token is stored. A crash between the two leaves a file with
// an invalid token, which the next First replaces, and never a token whose secret is lost.
func (ts *Tokens) First(ctx context.Context, file string) (bool, error) {
	all, err := ts.Store.List(ctx)
	if err != nil {
		return false, fmt.Errorf("look for tokens: %w", err)
	}
	if len(all) > 0 {
		return false, nil
	}
	secret := secretOf(prefix)
	t := minted("first", Admin, nil, secret)
	if err := writePrivate(file, secret+"\n"); err != nil {
		return false, fmt.Errorf("write the first token: %w", err)
	}
	if err := ts.Store.Add(ctx, t); err != nil {
		return false, fmt.Errorf("store the first token: %w", err)
	}
	return true, nil
}

// writePrivate replaces file atomically; at all times only its owner can read it.
func writePrivate(file, content string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(file), ".token-") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = f.WriteString(content)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}
