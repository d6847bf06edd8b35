// Package registry knows which capabilities are installed: their manifests, the
// files that belong to them, and whether a person has allowed what they may do.
//
// What is registered is a copy. Neither its manifest nor a file can change after
// somebody has allowed it: what changes is another version, and what that may do
// beyond the one before is allowed anew.
package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/semver"

	"glasshouse/approval"
	"glasshouse/bundle"
	"glasshouse/engine"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/problem"
	"glasshouse/manifest"
	"glasshouse/policy"
)

// A State is how far a version has come.
type State string

const (
	Pending  State = "pending"  // a person is asked
	Approved State = "approved" // it can be called
	Refused  State = "refused"  // a person said no, or nobody answered
	Revoked  State = "revoked"  // it could be called, and can no longer
)

// A Record is a version of a capability, as the store has it.
type Record struct {
	ID      string `json:"id"`
	Version string `json:"version"`
	Digest  string `json:"digest"` // of manifest and files
	Files   string `json:"files"`  // digest of the files alone, under which their copy lies; "": Digest, in records of before
	Source  string `json:"source"` // the manifest as it was given
	State   State  `json:"state"`

	Approval id.Approval `json:"approval,omitempty"` // that it waits for, or had
	Widens   []string    `json:"widens,omitempty"`   // what a person has to allow
	Why      string      `json:"why,omitempty"`      // of a refusal
	Trust    bool        `json:"trust,omitempty"`    // an operator trusts this digest to run on the host itself
	Bundle   string      `json:"bundle,omitempty"`   // it came with: name@version
	By       string      `json:"by,omitempty"`       // who registered it

	Created time.Time  `json:"created"`
	Settled *time.Time `json:"settled,omitempty"`
}

func (r Record) files() string { return cmp.Or(r.Files, r.Digest) }

func (r Record) ref() string { return r.ID + "@" + r.Version }

// A Store keeps records. What it returned from outlives a power cut.
type Store interface {
	Capabilities(ctx context.Context) ([]Record, error)
	PutCapability(ctx context.Context, r Record) error
	DeleteCapability(ctx context.Context, cid, version string) error

	Skills(ctx context.Context) ([]Skill, error)
	PutSkill(ctx context.Context, s Skill) error
	DeleteSkill(ctx context.Context, name string) error

	Bundles(ctx context.Context) ([]Bundle, error)
	ChangeBundle(ctx context.Context, c Change) error // all of it, or nothing
}

// Approvals is where people are asked. *approval.Queue is one.
type Approvals interface {
	Open(ctx context.Context, r approval.Request) (approval.Request, error)
	Wait(ctx context.Context, aid id.Approval) (approval.Request, error)
	Take(ctx context.Context, aid id.Approval, question policy.Question) (approval.Request, error)
	Withdraw(ctx context.Context, aid id.Approval, reason string) (approval.Request, error)
}

// Config is what a Registry works with.
type Config struct {
	Store     Store
	Approvals Approvals
	Dir       string // where files of capabilities are kept, by digest
	Bundles   string // where bundles are kept, by digest
	Trust     *bundle.Trust

	// Prepare does what a version needs before its first call, and fails if it
	// could never be called here. Dropped ends what was kept for it.
	Prepare func(ctx context.Context, c *engine.Installed) error
	Dropped func(ctx context.Context, c *engine.Installed, purge bool) error

	// Changed is told of every version that has come to another state, before it
	// counts. If it fails, it does not.
	Changed func(ctx context.Context, r Record, c *manifest.Capability) error

	// Installed is told of every bundle that is installed, before it counts, with who
	// asked for it. Its error keeps it from counting.
	Installed func(ctx context.Context, b Bundle, by string) error

	Log *slog.Logger
}

// A Registry holds what is installed. It is safe for concurrent use.
type Registry struct {
	cfg  Config
	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup

	turn sync.Mutex // one change after the other

	installer *bundle.Installer
	sums      fileSums // of files that capabilities brought

	mu sync.RWMutex
	// +checklocks:mu
	known map[string][]*version // by id, the newest version first
	// +checklocks:mu
	skills map[string]Skill
	// +checklocks:mu
	bundles map[string]Bundle
	// +checklocks:mu
	warrants map[string]bundle.Warrant // of installed bundles, by name
	// +checklocks:mu
	answers map[string]approval.Request // about bundles, by digest, until they count
	// +checklocks:mu
	changed chan struct{} // closed when a bundle has changed
}

// A version is a record, and what it says. It is replaced, never changed.
type version struct {
	Record
	installed *engine.Installed
}

// Open reads what is kept, and goes on asking about what nobody has answered.
func Open(ctx context.Context, cfg Config) (*Registry, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	all, err := cfg.Store.Capabilities(ctx)
	if err != nil {
		return nil, err
	}
	r := &Registry{cfg: cfg, known: map[string][]*version{}, skills: map[string]Skill{}, bundles: map[string]Bundle{}, warrants: map[string]bundle.Warrant{}, answers: map[string]approval.Request{}, changed: make(chan struct{})}
	r.installer = &bundle.Installer{Dir: cfg.Bundles, Trust: cfg.Trust, Approve: approver{r}, Register: installed{r}}
	r.ctx, r.stop = context.WithCancel(context.Background())
	for _, rec := range all {
		c, err := r.read(rec)
		if err != nil {
			cfg.Log.Error("a capability that was registered cannot be read any more", "capability", rec.ID, "version", rec.Version, "err", err)
			continue
		}
		r.put(rec, c)
	}
	if err := r.openBundles(ctx); err != nil {
		return nil, err
	}
	if err := r.tidy(); err != nil {
		cfg.Log.Warn("files of capabilities that are gone may still be there", "err", err)
	}
	r.resume()
	return r, nil
}

// resume asks again about what is pending, and continues installations. An answer may
// change r.known at once, so the goroutines start when all of it has been read.
func (r *Registry) resume() {
	var pending []*version
	r.mu.RLock()
	for _, versions := range r.known {
		for _, v := range versions {
			if v.State == Pending {
				pending = append(pending, v)
			}
		}
	}
	r.mu.RUnlock()
	for _, v := range pending {
		r.await(v.Record, v.installed.Capability)
	}
	for _, b := range r.Bundles() {
		if b.Next != nil && b.Next.State == Pending {
			r.install(b)
		}
	}
}

// openBundles reads which skills and bundles there are.
func (r *Registry) openBundles(ctx context.Context) error {
	skills, err := r.cfg.Store.Skills(ctx)
	if err != nil {
		return err
	}
	bundles, err := r.cfg.Store.Bundles(ctx)
	if err != nil {
		return err
	}
	var keep []string
	r.mu.Lock()
	for _, s := range skills {
		r.skills[s.Name] = s
	}
	for _, b := range bundles {
		r.holdBundle(b)
		if why := r.barred(b.Name); why != nil {
			r.cfg.Log.Warn("nothing of a bundle is called: it is not trusted any more", "bundle", b.Name, "err", why)
		}
		if b.Now != nil {
			keep = append(keep, b.Now.Digest)
		}
		if b.Next != nil {
			keep = append(keep, b.Next.Digest)
		}
	}
	r.mu.Unlock()
	if err := r.installer.Sweep(keep); err != nil {
		r.cfg.Log.Warn("files of bundles that are gone may still be there", "err", err)
	}
	return nil
}

// Close ends what waits for people. Their answers count at the next Open.
func (r *Registry) Close() error {
	r.stop()
	r.wg.Wait()
	return nil
}

// read makes of a record what can be called.
func (r *Registry) read(rec Record) (*engine.Installed, error) {
	all, err := manifest.Read(rec.ID, []byte(rec.Source))
	if err != nil {
		return nil, err
	}
	if len(all) != 1 {
		return nil, fmt.Errorf("%d manifests where there was one", len(all))
	}
	return &engine.Installed{Capability: all[0], Dir: r.dirOf(rec.files()), Digest: rec.Digest, Trust: rec.Trust}, nil
}

// put has a record count from now on.
func (r *Registry) put(rec Record, c *engine.Installed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.place(rec, c)
}

// place is put for who has r.mu. The caller holds r.mu.
//
// +checklocks:r.mu
func (r *Registry) place(rec Record, c *engine.Installed) {
	versions := slices.Clone(r.known[rec.ID])
	versions = slices.DeleteFunc(versions, func(v *version) bool { return v.Version == rec.Version })
	versions = append(versions, &version{rec, c})
	slices.SortFunc(versions, func(a, b *version) int { return -compare(a.Version, b.Version) })
	r.known[rec.ID] = versions
}

func compare(a, b string) int {
	return cmp.Or(semver.Compare("v"+a, "v"+b), strings.Compare(a, b))
}

// List returns all versions, by id, the newest first.
func (r *Registry) List() []Record {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var all []Record
	for _, versions := range r.known {
		for _, v := range versions {
			all = append(all, r.seen(v))
		}
	}
	slices.SortStableFunc(all, func(a, b Record) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// seen is a version as it counts at this moment: what came with a bundle that is not
// trusted any more is revoked as long as that is so.
//
// +checklocksread:r.mu
func (r *Registry) seen(v *version) Record {
	rec := v.Record
	if rec.State != Approved || rec.Bundle == "" {
		return rec
	}
	if why := r.barred(bundleName(rec.Bundle)); why != nil {
		rec.State, rec.Why = Revoked, "with the bundle "+rec.Bundle+": "+why.Error()
	}
	return rec
}

// Find returns a version by "id" or "id@version". Without a version it is the
// newest that can be called or, if none can, the newest.
func (r *Registry) Find(ref string) (Record, *engine.Installed, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	v, err := r.find(ref, true)
	if err != nil {
		return Record{}, nil, err
	}
	return r.seen(v), v.installed, nil
}

// kept is Find by what is recorded, whatever is trusted at this moment.
func (r *Registry) kept(ref string) (Record, *engine.Installed, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	v, err := r.find(ref, false)
	if err != nil {
		return Record{}, nil, err
	}
	return v.Record, v.installed, nil
}

// find finds a version, the newest approved one if none is named. With trusted, versions
// of bundles that are not trusted at the moment do not count as approved.
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
		if v.State == Approved && (!trusted || r.seen(v).State == Approved) {
			return v, nil
		}
	}
	return versions[0], nil
}

// Resolve returns the version that a call is for: an approved one. If the reference has
// no version and a newer one is revoked, the result has a Warning.
func (r *Registry) Resolve(ref string) (*engine.Installed, error) {
	rec, c, err := r.Find(ref)
	if err != nil {
		return nil, err
	}
	if rec.State == Approved {
		if warning := r.fallback(ref, rec); warning != "" {
			warned := *c
			warned.Warning, c = warning, &warned
		}
		return c, nil
	}
	why, remedy := "nobody has allowed it yet", "answer the approval "+string(rec.Approval)
	switch {
	case rec.State == Refused:
		why, remedy = "it was refused: "+rec.Why, "register it again, to ask again"
	case rec.State == Revoked && rec.Bundle != "":
		why, remedy = "it was revoked: "+rec.Why, "see glasshouse bundle ls"
	case rec.State == Revoked:
		why, remedy = "it was revoked: "+rec.Why, "register it again, to ask again"
	}
	return nil, &fault.Error{Op: "registry.Resolve", On: rec.ID + "@" + rec.Version, Kind: fault.Denied, Err: errors.New(why), Remedy: remedy}
}

// fallback returns the warning for a call that does not name a version and that an older
// version serves because a newer one is revoked; "" if that is not the case. A newer
// version that was never approved is no reason: callers have not seen it.
func (r *Registry) fallback(ref string, used Record) string {
	if strings.Contains(ref, "@") {
		return ""
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, v := range r.known[used.ID] { // the newest first
		if v.Version == used.Version {
			break
		}
		newer := r.seen(v)
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

// unknown says that there is no such capability, and which one may be meant.
//
// +checklocksread:r.mu
func (r *Registry) unknown(name string) error {
	return &fault.Error{Op: "registry.Find", On: name, Kind: fault.NotFound,
		Err:    fmt.Errorf("no such capability%s", problem.Meant(name, slices.Collect(maps.Keys(r.known))...)),
		Remedy: "see glasshouse capability ls"}
}
