// Package registry stores the installed capabilities: their manifests, their files and whether
// a person has approved their effects.
//
// The registry keeps a copy of each manifest and file, so that neither can change after its
// approval. A changed capability is a new version; effects that the previous version did not
// have need a new approval.
package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/mod/semver"

	"glasshouse/capability/bundle"
	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/problem"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/policy/approval"
)

// A State is the approval state of a version.
type State string

const (
	Pending  State = "pending"  // an approval request is pending
	Approved State = "approved" // it can be called
	Refused  State = "refused"  // denied, or the approval expired
	Revoked  State = "revoked"  // was callable and no longer is
)

// A Record is the stored record of a version of a capability.
type Record struct {
	ID      string `json:"id"`
	Version string `json:"version"`
	Digest  string `json:"digest"` // digest of manifest and files
	Files   string `json:"files"`  // digest of the files alone, which names their copy; "" in old records: the same as Digest
	Source  string `json:"source"` // the original manifest
	State   State  `json:"state"`

	Approval id.Approval `json:"approval,omitempty"` // pending or last approval
	Widens   []string    `json:"widens,omitempty"`   // effects that need approval
	Why      string      `json:"why,omitempty"`      // reason of a refusal
	Trust    bool        `json:"trust,omitempty"`    // an operator trusts this digest to run directly on the host
	Bundle   string      `json:"bundle,omitempty"`   // name@version of the bundle it came with
	By       string      `json:"by,omitempty"`       // the caller that registered it
	Node     string      `json:"node,omitempty"`     // the daemon of a fleet where it was registered, and is approved

	Created time.Time  `json:"created"`
	Settled *time.Time `json:"settled,omitempty"`
}

func (r Record) files() string { return cmp.Or(r.Files, r.Digest) }

func (r Record) ref() string { return r.ID + "@" + r.Version }

// A Store persists records. A write is durable, even after a power failure, when its method
// returns.
type Store interface {
	// Version returns a number that each change increments.
	Version(ctx context.Context) (int64, error)

	Capabilities(ctx context.Context) ([]Record, error)
	Skills(ctx context.Context) ([]Skill, error)
	Bundles(ctx context.Context) ([]Bundle, error)

	// Change adds and removes records atomically. It returns ErrChanged if the store no longer
	// has the version.
	Change(ctx context.Context, version int64, c Change) error
}

// A Change is a set of records that are added and removed together.
type Change struct {
	Put       []Record
	Gone      []Record
	Skill     *Skill  // nil: none is added
	GoneSkill string  // empty: none is removed
	Bundle    *Bundle // nil: none is changed
	Forget    bool    // delete the record of the bundle

	installed map[string]*engine.Installed // capabilities of Put, by id@version
	asked     []Record                     // records whose pending approvals are withdrawn
}

// Approvals is the approval queue as the registry uses it. *approval.Queue implements it.
type Approvals interface {
	Open(ctx context.Context, r approval.Request) (approval.Request, error)
	Wait(ctx context.Context, aid id.Approval) (approval.Request, error)
	Take(ctx context.Context, aid id.Approval, question policy.Question) (approval.Request, error)
	Withdraw(ctx context.Context, aid id.Approval, reason string) (approval.Request, error)
}

// Config configures a Registry.
type Config struct {
	Store     Store
	Approvals Approvals
	Dir       string // files of capabilities, by digest
	Bundles   string // bundles, by digest
	Trust     *bundle.Trust
	Shared    *Shared // nil: no other daemon uses the store

	// Prepare prepares a version for its first call; it fails if the version cannot run on
	// this host. Dropped releases the resources of a version.
	Prepare func(ctx context.Context, c *engine.Installed) error
	Dropped func(ctx context.Context, c *engine.Installed, purge bool) error

	// Changed is called for every change of a version's state, before the change takes effect.
	// An error prevents the change.
	Changed func(ctx context.Context, r Record, c *manifest.Capability) error

	// Installed is called for every installed bundle, before the installation takes effect,
	// with the caller that requested it. An error prevents the installation.
	Installed func(ctx context.Context, b Bundle, by string) error

	Log *slog.Logger
}

// A Registry manages the installed capabilities, bundles and skills. It is safe for concurrent
// use.
type Registry struct {
	cfg  Config
	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup

	// changeMu serialises changes. It is acquired before mu by change, or by the caller of a method
	// that is called during a change.
	changeMu sync.Mutex
	version  atomic.Int64 // of the store, when it was read; changed with changeMu held

	fetching atomic.Bool // files are being copied from other daemons

	installer *bundle.Installer
	sums      fileSums // digests of the files of capabilities

	mu sync.RWMutex
	// +checklocks:mu
	known map[string][]*version // by id, newest version first
	// +checklocks:mu
	skills map[string]Skill
	// +checklocks:mu
	bundles map[string]Bundle
	// +checklocks:mu
	warrants map[string]bundle.Warrant // warrants of installed bundles, by name
	// +checklocks:mu
	answers map[string]approval.Request // outcomes about bundles, by digest, until they are applied
	// +checklocks:mu
	changed chan struct{} // closed when a bundle changes
	// +checklocks:mu
	receiving string // name of a temporary directory in cfg.Dir
	// +checklocks:mu
	fetchAgain time.Time // after a failure
}

// A version is a record and its parsed capability. It is immutable; changes replace it.
type version struct {
	Record
	installed *engine.Installed
	missing   bool // its files are on other daemons only
}

// Open loads the stored records and resumes pending approvals and installations.
func Open(ctx context.Context, cfg Config) (*Registry, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	r := &Registry{cfg: cfg, known: map[string][]*version{}, skills: map[string]Skill{}, bundles: map[string]Bundle{}, warrants: map[string]bundle.Warrant{}, answers: map[string]approval.Request{}, changed: make(chan struct{})}
	r.installer = &bundle.Installer{Dir: cfg.Bundles, Trust: cfg.Trust, Approve: approver{r}, Register: installed{r}}
	r.ctx, r.stop = context.WithCancel(context.Background())
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	r.resume()
	return r, nil
}

// open loads the stored records, and deletes the files of others.
func (r *Registry) open(ctx context.Context) error {
	r.changeMu.Lock()
	defer r.changeMu.Unlock()
	if err := r.load(ctx); err != nil {
		return err
	}
	if r.cfg.Shared != nil && r.cfg.Shared.Own != nil {
		left, err := r.move(ctx, r.cfg.Shared.Own)
		if err != nil {
			return fmt.Errorf("share the capabilities with the other daemons: %w", err)
		}
		if len(left) > 0 {
			r.cfg.Log.Warn("capabilities of this daemon are not used, because the fleet has others with their names: register them again as new versions", "capabilities", strings.Join(left, ", "))
		}
	}
	var keep []string
	for _, b := range r.Bundles() {
		if why := r.NotCallableReason(b.Name); why != nil {
			r.cfg.Log.Warn("the capabilities of a bundle cannot be called: it is no longer trusted", "bundle", b.Name, "err", why)
		}
		if b.Now != nil {
			keep = append(keep, b.Now.Digest)
		}
		if b.Next != nil {
			keep = append(keep, b.Next.Digest)
		}
	}
	if err := r.installer.Sweep(keep); err != nil {
		r.cfg.Log.Warn("cannot delete the files of removed bundles", "err", err)
	}
	if err := r.tidy(); err != nil {
		r.cfg.Log.Warn("cannot delete the files of removed capabilities", "err", err)
	}
	return nil
}

// load replaces the records by those of the store.
func (r *Registry) load(ctx context.Context) error {
	all, err := readAll(ctx, r.cfg.Store)
	if err != nil {
		return err
	}
	var versions []*version
	for _, rec := range all.records {
		c, err := r.read(rec)
		if err != nil {
			r.cfg.Log.Error("cannot parse the stored manifest of a capability", "capability", rec.ID, "version", rec.Version, "err", err)
			continue
		}
		versions = append(versions, &version{Record: rec, installed: c, missing: r.lacks(c.Dir)})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.known)
	clear(r.skills)
	clear(r.bundles)
	clear(r.warrants)
	for _, v := range versions {
		r.insert(v)
	}
	for _, s := range all.skills {
		r.skills[s.Name] = s
	}
	for _, b := range all.bundles {
		r.setBundle(b)
	}
	r.notifyBundles()
	r.version.Store(all.version)
	return nil
}

// contents are all records of a store.
type contents struct {
	version int64
	records []Record
	skills  []Skill
	bundles []Bundle
}

// readAll reads the version first, so that a change in between is noticed later.
func readAll(ctx context.Context, s Store) (c contents, err error) {
	c.version, err = s.Version(ctx)
	if err != nil {
		return c, err
	}
	c.records, err = s.Capabilities(ctx)
	if err != nil {
		return c, err
	}
	c.skills, err = s.Skills(ctx)
	if err != nil {
		return c, err
	}
	c.bundles, err = s.Bundles(ctx)
	return c, err
}

// lacks reports whether a directory of files must be copied from another daemon.
func (r *Registry) lacks(dir string) bool {
	if r.cfg.Shared == nil {
		return false
	}
	_, err := os.Stat(dir)
	return err != nil
}

// change calls f, which changes the registry, with the newest records. It repeats f if another
// daemon changes the store in the meantime.
func (r *Registry) change(ctx context.Context, f func() error) error {
	r.changeMu.Lock()
	defer r.changeMu.Unlock()
	return r.repeat(ctx, f)
}

// repeat is like change, but for callers that hold r.changeMu.
func (r *Registry) repeat(ctx context.Context, f func() error) error {
	for {
		if err := r.reread(ctx); err != nil {
			return err
		}
		err := f()
		if !errors.Is(err, ErrChanged) {
			return err
		}
		if r.cfg.Shared == nil { // an earlier change was stored, although it failed
			if err := r.load(ctx); err != nil {
				return err
			}
		}
	}
}

// write stores a change.
func (r *Registry) write(ctx context.Context, c Change) error {
	if err := r.cfg.Store.Change(ctx, r.version.Load(), c); err != nil {
		return err
	}
	r.version.Add(1)
	return nil
}

// resume requests the outstanding approvals again and continues installations. An outcome may
// change r.known immediately, so the goroutines start after all of it was read.
func (r *Registry) resume() {
	var pending []*version
	r.mu.RLock()
	for _, versions := range r.known {
		for _, v := range versions {
			if v.State == Pending && v.Node == r.node() {
				pending = append(pending, v)
			}
		}
	}
	r.mu.RUnlock()
	for _, v := range pending {
		r.await(v.Record, v.installed.Capability)
	}
	for _, b := range r.Bundles() {
		if b.Next != nil && b.Next.State == Pending && b.Next.Node == r.node() {
			r.install(b)
		}
	}
}

// Close stops waiting for approvals. The next Open applies their outcomes.
func (r *Registry) Close() error {
	r.stop()
	r.wg.Wait()
	return nil
}

// read parses the manifest of a record.
func (r *Registry) read(rec Record) (*engine.Installed, error) {
	all, err := manifest.Read(rec.ID, []byte(rec.Source))
	if err != nil {
		return nil, err
	}
	if len(all) != 1 {
		return nil, fmt.Errorf("the stored manifest has %d capabilities, want 1", len(all))
	}
	return &engine.Installed{Capability: all[0], Dir: r.dirOf(rec.files()), Digest: rec.Digest, Trust: rec.Trust}, nil
}

// insert makes a record the current one of its version.
//
// +checklocks:r.mu
func (r *Registry) insert(added *version) {
	versions := slices.Clone(r.known[added.ID])
	versions = slices.DeleteFunc(versions, func(v *version) bool { return v.Version == added.Version })
	versions = append(versions, added)
	slices.SortFunc(versions, func(a, b *version) int { return -compare(a.Version, b.Version) })
	r.known[added.ID] = versions
}

func compare(a, b string) int {
	return cmp.Or(semver.Compare("v"+a, "v"+b), strings.Compare(a, b))
}

// List returns all versions, sorted by id, newest first.
func (r *Registry) List() []Record {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var all []Record
	for _, versions := range r.known {
		for _, v := range versions {
			all = append(all, r.effective(v))
		}
	}
	slices.SortStableFunc(all, func(a, b Record) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// effective returns the record of a version with its effective state: versions of a bundle
// that is not trusted at the moment are reported as revoked.
//
// +checklocksread:r.mu
func (r *Registry) effective(v *version) Record {
	rec := v.Record
	if rec.State != Approved || rec.Bundle == "" {
		return rec
	}
	if why := r.barred(bundleName(rec.Bundle)); why != nil {
		rec.State, rec.Why = Revoked, "with the bundle "+rec.Bundle+": "+why.Error()
	}
	return rec
}

// Find returns a version by "id" or "id@version". Without a version it returns the newest
// callable version or, if none is callable, the newest.
func (r *Registry) Find(ref string) (Record, *engine.Installed, error) {
	v, err := r.findAnywhere(ref)
	return v.Record, v.installed, err
}

// findAnywhere is like findNow, but also finds what another daemon has just registered.
func (r *Registry) findAnywhere(ref string) (version, error) {
	v, err := r.findNow(ref)
	if !errors.Is(err, fault.NotFound) || r.cfg.Shared == nil {
		return v, err
	}
	ctx, cancel := context.WithTimeout(r.ctx, missTimeout)
	defer cancel()
	if err := r.Refresh(ctx); err != nil && r.ctx.Err() == nil {
		r.cfg.Log.Warn("could not read the changes of capabilities by other daemons", "err", err)
	}
	return r.findNow(ref)
}

// findNow finds a version among the records that were read from the store. The version has its
// effective state.
func (r *Registry) findNow(ref string) (version, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	v, err := r.find(ref, true)
	if err != nil {
		return version{}, err
	}
	found := *v
	found.Record = r.effective(v)
	return found, nil
}

// findStored is like Find, but ignores whether the bundles are currently trusted.
func (r *Registry) findStored(ref string) (Record, *engine.Installed, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	v, err := r.find(ref, false)
	if err != nil {
		return Record{}, nil, err
	}
	return v.Record, v.installed, nil
}

// find returns a version, or the newest approved one if none is named. With trusted set,
// versions of bundles that are not trusted at the moment do not count as approved.
//
// +checklocksread:r.mu
func (r *Registry) find(ref string, trusted bool) (*version, error) {
	name, want, _ := strings.Cut(ref, "@")
	versions := r.known[name]
	if len(versions) == 0 {
		return nil, r.unknown(name)
	}
	if want != "" {
		i := slices.IndexFunc(versions, func(v *version) bool { return v.Version == want })
		if i < 0 {
			return nil, &fault.Error{Op: "registry.Find", On: ref, Kind: fault.NotFound,
				Err: fmt.Errorf("%s has no version %s", name, want), Remedy: "the newest is " + versions[0].Version}
		}
		return versions[i], nil
	}
	for _, v := range versions {
		if v.State == Approved && (!trusted || r.effective(v).State == Approved) {
			return v, nil
		}
	}
	return versions[0], nil
}

// Resolve returns the version that a call is for: an approved one. If the reference has
// no version and a newer one is revoked, the result has a Warning.
func (r *Registry) Resolve(ref string) (*engine.Installed, error) {
	v, err := r.findAnywhere(ref)
	if err != nil {
		return nil, err
	}
	rec, c := v.Record, v.installed
	if rec.State == Approved && v.missing {
		return nil, &fault.Error{Op: "registry.Resolve", On: rec.ref(), Kind: fault.Unavailable,
			Err: errors.New("its files are not yet copied from another node"), Remedy: "repeat the call; glasshouse node ls shows whether node " + rec.Node + ", where it was registered, is up"}
	}
	if rec.State == Approved {
		if warning := r.fallback(ref, rec); warning != "" {
			warned := *c
			warned.Warning, c = warning, &warned
		}
		return c, nil
	}
	why, remedy := "its approval is pending", "answer the approval "+string(rec.Approval)
	switch {
	case rec.State == Refused:
		why, remedy = "it was refused: "+rec.Why, "register it again to request a new approval"
	case rec.State == Revoked && rec.Bundle != "":
		why, remedy = "it was revoked: "+rec.Why, "see glasshouse bundle ls"
	case rec.State == Revoked:
		why, remedy = "it was revoked: "+rec.Why, "register it again to request a new approval"
	}
	return nil, &fault.Error{Op: "registry.Resolve", On: rec.ID + "@" + rec.Version, Kind: fault.Denied, Err: errors.New(why), Remedy: remedy}
}

// fallback returns the warning for a call without a version that an older version serves
// because a newer one is revoked, or "". A newer version that was never approved causes no
// warning: callers have not seen it.
func (r *Registry) fallback(ref string, used Record) string {
	if strings.Contains(ref, "@") {
		return ""
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, v := range r.known[used.ID] { // newest first
		if v.Version == used.Version {
			break
		}
		newer := r.effective(v)
		if newer.State != Revoked {
			continue
		}
		from := "was registered by itself"
		if used.Bundle != "" {
			from = "came with the bundle " + used.Bundle
		}
		return fmt.Sprintf("version %s is revoked (%s), so version %s was called, which %s; to prevent that: glasshouse capability revoke %s",
			newer.Version, cmp.Or(newer.Why, "no reason given"), used.Version, from, used.ref())
	}
	return ""
}

// unknown returns a not-found error that suggests a similar name.
//
// +checklocksread:r.mu
func (r *Registry) unknown(name string) error {
	return &fault.Error{Op: "registry.Find", On: name, Kind: fault.NotFound,
		Err:    fmt.Errorf("no such capability%s", problem.Meant(name, slices.Collect(maps.Keys(r.known))...)),
		Remedy: "see glasshouse capability ls"}
}
