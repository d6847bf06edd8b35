package template

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"

	"glasshouse/e2b"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
	"glasshouse/policy/egress"
)

// Config configures Templates.
type Config struct {
	Store     Store
	Dir       string // {DATA}/e2b: uploaded files and build logs
	Jails     e2b.Jails
	Snapshots e2b.Snapshots
	Backend   string // of builds, and so of the sandboxes that start from their snapshots

	// Resolve finds or creates a root filesystem.
	Resolve func(ctx context.Context, r jail.Rootfs) (jail.Layers, error)

	// Pull pulls an image and returns its digest. It always asks the registry with the given
	// credentials; nil means those of the daemon's user.
	Pull func(ctx context.Context, image string, login authn.Authenticator) (digest string, err error)

	Transport http.RoundTripper // for requests for registry credentials; nil: http.DefaultTransport

	// Govern returns the jail policy was with its egress rules replaced by r.
	Govern func(was json.RawMessage, r egress.Rules) (json.RawMessage, error)

	EgressHosts []string // hosts that builds can reach; nil: those on the Internet
	UploadMB    int64    // limit for the unpacked files of one COPY; 0: 1024
	MaxBuilds   int      // concurrent builds; 0: 2

	Fleet   e2b.Fleet                 // nil: this daemon is not in a fleet
	Changed func(ctx context.Context) // called after a template has changed, before the response; may be nil

	Log *slog.Logger
}

// Labels that identify the jails and snapshots of builds.
const (
	LabelBuild = "e2b.build" // on a jail: the build that runs in it
	labelLayer = "e2b.layer" // on a snapshot: the build in which it was taken
)

// Templates manages all templates. It is safe for concurrent use.
type Templates struct {
	cfg     Config
	files   *files
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	slots   chan struct{} // a semaphore of running builds
	uploads chan struct{} // a semaphore of uploads

	mu        sync.Mutex // held also while records are written to the store
	templates map[string]*Template
	builds    map[string]*Build
	layers    map[string]*Layer
	working   map[string]*work    // running and queued builds, by id
	retained  map[id.Snapshot]int // number of builds that use a snapshot
}

// work is a build in progress.
type work struct {
	log    *buildLog
	cancel context.CancelCauseFunc
}

// New returns Templates. It does no I/O.
func New(cfg Config) *Templates {
	cfg.UploadMB = cmp.Or(cfg.UploadMB, 1024)
	cfg.MaxBuilds = cmp.Or(cfg.MaxBuilds, 2)
	if cfg.Transport == nil {
		cfg.Transport = http.DefaultTransport
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Templates{
		cfg: cfg, slots: make(chan struct{}, cfg.MaxBuilds), uploads: make(chan struct{}, 4),
		templates: map[string]*Template{}, builds: map[string]*Build{}, layers: map[string]*Layer{},
		working: map[string]*work{}, retained: map[id.Snapshot]int{},
	}
}

// stepsTimeout limits the wait of a build for its steps. maxIdle is the time after which unused
// layers and files are removed. maxLayers is the number of layers of a team, and maxBuilds the
// number of untagged builds of a template, that are kept.
const (
	stepsTimeout = 24 * time.Hour
	maxIdle      = 7 * 24 * time.Hour
	maxLayers    = 500
	maxBuilds    = 10
)

// Start loads the templates of an earlier daemon. Its unfinished builds become failed.
func (t *Templates) Start(ctx context.Context) (err error) {
	t.ctx, t.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := os.MkdirAll(t.logs(), 0o700); err != nil {
		return fmt.Errorf("create the directory of build logs: %w", err)
	}
	t.files, err = openFiles(filepath.Join(t.cfg.Dir, "files"), t.cfg.UploadMB<<20)
	if err != nil {
		return fmt.Errorf("open the uploads: %w", err)
	}
	if err := t.load(ctx); err != nil {
		return fmt.Errorf("read the records of templates: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range t.builds {
		switch {
		case b.Started && b.Finished == nil:
			err = t.endBuild(ctx, b, Failed, &Reason{Message: "the daemon stopped during the build: build it again"})
		case b.State == Waiting && time.Since(b.Created) > stepsTimeout:
			err = t.endBuild(ctx, b, Failed, &Reason{Message: "the client did not send the steps"})
		}
		if err != nil {
			return err
		}
	}
	return t.removeOrphans(ctx)
}

func (t *Templates) load(ctx context.Context) error {
	templates, err := t.cfg.Store.Templates(ctx)
	if err != nil {
		return err
	}
	for i := range templates {
		t.templates[templates[i].ID] = &templates[i]
	}
	builds, err := t.cfg.Store.Builds(ctx)
	if err != nil {
		return err
	}
	for i := range builds {
		t.builds[builds[i].ID] = &builds[i]
	}
	layers, err := t.cfg.Store.Layers(ctx)
	for i := range layers {
		t.layers[layers[i].Key] = &layers[i]
	}
	return err
}

// removeOrphans removes the jails, snapshots and logs that belong to no build. The caller holds
// mu, and no build is in progress.
func (t *Templates) removeOrphans(ctx context.Context) error {
	jails, err := t.cfg.Jails.List(ctx, jail.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the jails of builds: %w", err)
	}
	for _, j := range jails {
		if j.Spec.Labels[LabelBuild] == "" {
			continue
		}
		if err := t.cfg.Jails.Delete(ctx, j.ID); err != nil {
			t.cfg.Log.Warn("cannot remove the jail of a finished build", "jail", j.ID, "err", err)
		}
	}
	snaps, err := t.cfg.Snapshots.List(ctx, snapshot.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the layers: %w", err)
	}
	for _, s := range snaps {
		if s.Labels[labelLayer] != "" {
			t.drop(ctx, s.ID)
		}
	}
	logs, err := os.ReadDir(t.logs())
	if err != nil {
		return fmt.Errorf("list the build logs: %w", err)
	}
	for _, e := range logs {
		if build, _, _ := cutExt(e.Name()); t.builds[build] == nil {
			if err := os.Remove(filepath.Join(t.logs(), e.Name())); err != nil {
				return fmt.Errorf("remove the log of a missing build: %w", err)
			}
		}
	}
	return t.sweep(ctx)
}

// Close stops the builds in progress, which fail, and releases all resources.
func (t *Templates) Close() error {
	if t.cancel == nil {
		return nil
	}
	t.cancel()
	t.wg.Wait()
	return nil
}

func (t *Templates) logs() string { return filepath.Join(t.cfg.Dir, "builds") }

func (t *Templates) logOf(build string) string { return filepath.Join(t.logs(), build+logExt) }

const logExt = ".jsonl"

func cutExt(name string) (base, ext string, ok bool) {
	ext = filepath.Ext(name)
	return name[:len(name)-len(ext)], ext, ext == logExt
}

// Find implements e2b.Templates: ref is a name or an id, with or without a tag.
func (t *Templates) Find(ctx context.Context, team id.Token, ref string) (e2b.Template, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of, b, err := t.find(team, ref)
	if err != nil {
		return e2b.Template{}, err
	}
	now := time.Now().UTC()
	next := *of
	next.Spawned, next.Last = of.Spawned+1, &now
	if err := t.saveTemplate(ctx, next); err != nil {
		return e2b.Template{}, err
	}
	made := e2b.Template{
		ID: of.ID, Alias: of.Name, Snapshot: cmp.Or(b.Running, b.Layer), Env: maps.Clone(b.Setting.Env),
		User: b.Setting.User, Dir: b.Setting.Dir, CPU: b.CPU, MemoryMB: b.MemoryMB, DiskMB: b.DiskMB,
		Files: b.Layer, Begin: b.Start,
	}
	if b.Running == "" {
		made.Start = b.Start
	}
	return made, nil
}

// find returns a team's template and the build that ref names: TEMPLATE, TEMPLATE:TAG or
// TEMPLATE:BUILDID. The caller holds mu.
func (t *Templates) find(team id.Token, ref string) (*Template, *Build, error) {
	bare, build, _ := strings.Cut(strings.ToLower(strings.TrimSpace(ref)), ":")
	if !uuidPattern.MatchString(build) {
		bare, build = ref, ""
	}
	name, tag, err := parseName(bare)
	if err != nil {
		return nil, nil, missing("template '%s' not found", short(ref))
	}
	of := t.named(team, name)
	if of == nil {
		return nil, nil, missing("template '%s' not found", short(ref))
	}
	if build != "" {
		b := t.builds[build]
		if b == nil || b.Template != of.ID || b.State != Ready {
			return of, nil, missing("template '%s' has no build '%s' that is ready", short(name), build)
		}
		return of, b, nil
	}
	tag = cmp.Or(tag, DefaultTag)
	b := t.builds[of.Tags[tag].Build]
	if b == nil || b.State != Ready {
		return of, nil, missing("template '%s' has no build with the tag '%s' that is ready", short(name), tag)
	}
	return of, b, nil
}

// named returns a team's template by its name or id, or nil. The caller holds mu.
func (t *Templates) named(team id.Token, name string) *Template {
	if of := t.templates[name]; of != nil && of.Team == team {
		return of
	}
	for _, of := range t.templates {
		if of.Team == team && of.Name == name {
			return of
		}
	}
	return nil
}

// of returns a team's template. For a template of another team it returns the same error as for
// a missing one. The caller holds mu.
func (t *Templates) of(team id.Token, ref string) (*Template, error) {
	name, _, err := parseName(ref)
	if err == nil {
		if of := t.named(team, name); of != nil {
			return of, nil
		}
	}
	return nil, missing("template '%s' not found", short(ref))
}

func (t *Templates) buildOf(team id.Token, template, build string) (*Build, error) {
	of, err := t.of(team, template)
	if err != nil {
		return nil, err
	}
	if b := t.builds[build]; b != nil && b.Template == of.ID {
		return b, nil
	}
	return nil, missing("build '%s' of the template '%s' not found", short(build), short(template))
}

// A Request is the request for a build.
type Request struct {
	Name     string   `json:"name"`
	Alias    string   `json:"alias"` // former name of the field Name
	Tags     []string `json:"tags"`
	CPU      *int     `json:"cpuCount"`
	MemoryMB *int64   `json:"memoryMB"`
	FreeMB   *int64   `json:"minFreeDiskMb"`
}

// Resource limits of a template's jail, and their defaults.
const (
	minMemoryMB, defaultMemoryMB = 128, 1024
	minDiskMB                    = 4096
	defaultCPU                   = 2
	maxPIDs                      = 1024
	shares                       = 256 // per processor
)

func (q Request) check() error {
	most := jail.MaxLimits
	switch {
	case q.CPU != nil && (*q.CPU < 1 || int64(*q.CPU) > most.CPUShares/shares):
		return invalid("CPU count must be between 1 and %d", most.CPUShares/shares)
	case q.MemoryMB != nil && (*q.MemoryMB < minMemoryMB || *q.MemoryMB > most.MemoryMB):
		return invalid("memory must be between %d and %d MiB", minMemoryMB, most.MemoryMB)
	case q.FreeMB != nil && (*q.FreeMB < 0 || *q.FreeMB > most.DiskMB):
		return invalid("free disk must be between 0 and %d MiB", most.DiskMB)
	}
	return nil
}

// maxOfTeam limits the templates of a team. maxWaiting limits the waiting builds of a template.
const (
	maxOfTeam  = 1000
	maxWaiting = 20
)

// RequestBuild creates a build that waits for its steps, for a new or an existing template.
func (t *Templates) RequestBuild(ctx context.Context, team id.Token, q Request) (Template, Build, error) {
	name, tag, err := parseName(cmp.Or(q.Name, q.Alias))
	if err != nil {
		return Template{}, Build{}, err
	}
	if name == e2b.Base {
		return Template{}, Build{}, fault.Newf(fault.Conflict, "template.RequestBuild", name, "the name '%s' is reserved for the default template", name)
	}
	if tag != "" {
		q.Tags = append([]string{tag}, q.Tags...)
	}
	tags, err := parseTags(q.Tags)
	if err == nil {
		err = q.check()
	}
	if err != nil {
		return Template{}, Build{}, err
	}
	if len(tags) == 0 {
		tags = []string{DefaultTag}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now().UTC()
	next := Template{ID: newTemplateID(), Team: team, Name: name, Created: now}
	if of := t.named(team, name); of != nil {
		next = *of
	} else if t.count(team) >= maxOfTeam {
		return Template{}, Build{}, fault.Newf(fault.Exhausted, "template.RequestBuild", "", "the limit of %d templates is reached: delete some", maxOfTeam)
	}
	if t.waiting(next.ID) >= maxWaiting {
		return Template{}, Build{}, fault.Newf(fault.Exhausted, "template.RequestBuild", name, "%d builds of the template are already waiting", maxWaiting)
	}
	next.Builds, next.Updated = next.Builds+1, now
	b := Build{
		ID: newBuildID(), Template: next.ID, Team: team, State: Waiting, Tags: tags, Created: now, Updated: now,
		CPU: defaultCPU, MemoryMB: defaultMemoryMB, DiskMB: minDiskMB,
	}
	if q.CPU != nil {
		b.CPU = *q.CPU
	}
	if q.MemoryMB != nil {
		b.MemoryMB = *q.MemoryMB
	}
	if q.FreeMB != nil {
		b.DiskMB = max(b.DiskMB, *q.FreeMB)
	}
	if err := t.saveTemplate(ctx, next); err != nil {
		return Template{}, Build{}, err
	}
	return next, b, t.saveBuild(ctx, b)
}

func (t *Templates) count(team id.Token) (n int) {
	for _, of := range t.templates {
		if of.Team == team {
			n++
		}
	}
	return n
}

func (t *Templates) waiting(template string) (n int) {
	for _, b := range t.builds {
		if b.Template == template && b.Finished == nil {
			n++
		}
	}
	return n
}

// StartBuild passes a waiting build its steps. The build starts when a slot is free.
func (t *Templates) StartBuild(ctx context.Context, team id.Token, template, build string, p Plan) error {
	if err := p.check(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	b, err := t.buildOf(team, template, build)
	if err != nil {
		return err
	}
	if b.State != Waiting || b.Started {
		return invalid("build is not in waiting state")
	}
	if t.ctx.Err() != nil {
		return fault.Newf(fault.Unavailable, "template.StartBuild", "", "the daemon is stopping")
	}
	next := *b
	next.Started, next.Start, next.Ready = true, p.Start, p.Ready
	if err := t.saveBuild(ctx, next); err != nil {
		return err
	}
	log, err := openLog(t.logOf(build))
	if err != nil {
		return err
	}
	run, cancel := context.WithCancelCause(t.ctx)
	t.working[build] = &work{log, cancel}
	t.wg.Go(func() {
		defer cancel(nil)
		t.build(run, next, p, log)
	})
	return nil
}

// saveTemplate and saveBuild store a record and make it visible. The caller holds mu.
func (t *Templates) saveTemplate(ctx context.Context, of Template) error {
	if err := t.cfg.Store.PutTemplate(context.WithoutCancel(ctx), of); err != nil {
		return err
	}
	t.templates[of.ID] = &of
	return nil
}

func (t *Templates) saveBuild(ctx context.Context, b Build) error {
	if err := t.cfg.Store.PutBuild(context.WithoutCancel(ctx), b); err != nil {
		return err
	}
	t.builds[b.ID] = &b
	return nil
}

// endBuild records the end of a build. A ready build gets its tags, unless a later request has
// assigned them. The caller holds mu.
func (t *Templates) endBuild(ctx context.Context, b *Build, to State, why *Reason) error {
	next := *b
	next.Reason = why
	if err := next.move(to); err != nil {
		return err
	}
	if err := t.saveBuild(ctx, next); err != nil || to != Ready {
		return err
	}
	of := t.templates[next.Template]
	if of == nil {
		return nil // deleted in the meantime
	}
	tagged := *of
	tagged.Tags, tagged.Updated = maps.Clone(of.Tags), next.Updated
	if tagged.Tags == nil {
		tagged.Tags = map[string]Tag{}
	}
	for _, tag := range next.Tags {
		if was, there := tagged.Tags[tag]; !there || was.At.Before(next.Created) {
			tagged.Tags[tag] = Tag{next.ID, next.Created}
		}
	}
	return t.saveTemplate(ctx, tagged)
}

// AssignTags assigns tags to the build that target names, in the syntax of find.
func (t *Templates) AssignTags(ctx context.Context, team id.Token, target string, list []string) (string, []string, error) {
	tags, err := parseTags(list)
	if err != nil {
		return "", nil, err
	}
	if len(tags) == 0 {
		return "", nil, invalid("no tags are given")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	of, b, err := t.find(team, target)
	if err != nil {
		return "", nil, err
	}
	next := *of
	next.Tags, next.Updated = maps.Clone(of.Tags), time.Now().UTC()
	for _, tag := range tags {
		next.Tags[tag] = Tag{b.ID, next.Updated}
	}
	if len(next.Tags) > maxTags {
		return "", nil, invalid("a template has at most %d tags", maxTags)
	}
	return b.ID, tags, t.saveTemplate(ctx, next)
}

// RemoveTags removes tags from a template. The default tag cannot be removed.
func (t *Templates) RemoveTags(ctx context.Context, team id.Token, name string, list []string) error {
	tags, err := parseTags(list)
	if err != nil {
		return err
	}
	if slices.Contains(tags, DefaultTag) {
		return invalid("the tag '%s' cannot be deleted", DefaultTag)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	of, err := t.of(team, name)
	if err != nil {
		return err
	}
	next := *of
	next.Tags, next.Updated = maps.Clone(of.Tags), time.Now().UTC()
	for _, tag := range tags {
		delete(next.Tags, tag)
	}
	if err := t.saveTemplate(ctx, next); err != nil {
		return err
	}
	return t.sweep(ctx)
}

// Delete removes a template and all its builds. Builds in progress are cancelled.
func (t *Templates) Delete(ctx context.Context, team id.Token, ref string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	of, err := t.of(team, ref)
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	for _, b := range t.buildsOf(of.ID) {
		if w := t.working[b.ID]; w != nil {
			w.cancel(errDeleted)
		}
		if err := t.dropBuild(ctx, b); err != nil {
			return err
		}
	}
	if err := t.cfg.Store.DeleteTemplate(ctx, of.ID); err != nil { // last, so that a retry finds the template
		return err
	}
	delete(t.templates, of.ID)
	return nil
}

var errDeleted = errors.New("the template was deleted")

// buildsOf returns the builds of a template, newest first. The caller holds mu.
func (t *Templates) buildsOf(template string) []*Build {
	var all []*Build
	for _, b := range t.builds {
		if b.Template == template {
			all = append(all, b)
		}
	}
	slices.SortFunc(all, func(a, b *Build) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// dropBuild removes a build and the snapshots that only it uses. The caller holds mu.
func (t *Templates) dropBuild(ctx context.Context, b *Build) error {
	if err := t.cfg.Store.DeleteBuild(ctx, b.ID); err != nil {
		return err
	}
	delete(t.builds, b.ID)
	for _, sid := range []id.Snapshot{b.Layer, b.Running} {
		t.drop(ctx, sid)
	}
	if t.working[b.ID] != nil {
		return nil // its log is open; the end of the build removes it
	}
	if err := os.Remove(t.logOf(b.ID)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// drop deletes a snapshot unless it is still used. If the deletion fails, the next daemon
// deletes the snapshot. The caller holds mu.
func (t *Templates) drop(ctx context.Context, sid id.Snapshot) {
	if sid == "" || t.retained[sid] > 0 {
		return
	}
	for _, b := range t.builds {
		if b.Layer == sid || b.Running == sid {
			return
		}
	}
	for _, l := range t.layers {
		if l.Snapshot == sid {
			return
		}
	}
	if err := t.cfg.Snapshots.Delete(ctx, sid); err != nil && !errors.Is(err, fault.NotFound) {
		t.cfg.Log.Warn("cannot remove a layer of a template", "snapshot", sid, "err", err)
	}
}

// sweep removes layers and files that were not used for long, and untagged builds except the
// last one. The caller holds mu.
func (t *Templates) sweep(ctx context.Context) error {
	since := time.Now().Add(-maxIdle)
	mine := map[id.Token][]*Layer{}
	for _, l := range t.layers {
		mine[l.Team] = append(mine[l.Team], l)
	}
	for _, list := range mine {
		slices.SortFunc(list, func(a, b *Layer) int { return b.Used.Compare(a.Used) })
		for i, l := range list {
			if i < maxLayers && l.Used.After(since) {
				continue
			}
			if err := t.forgetLayer(ctx, l); err != nil {
				return err
			}
		}
	}
	for _, of := range t.templates {
		tagged := map[string]bool{}
		for _, tag := range of.Tags {
			tagged[tag.Build] = true
		}
		n := 0
		for _, b := range t.buildsOf(of.ID) {
			if tagged[b.ID] || b.Finished == nil {
				continue
			}
			if n++; n > maxBuilds {
				if err := t.dropBuild(ctx, b); err != nil {
					return err
				}
			}
		}
	}
	return t.files.removeUnused(since)
}

func (t *Templates) forgetLayer(ctx context.Context, l *Layer) error {
	if err := t.cfg.Store.DeleteLayer(ctx, l.Key); err != nil {
		return err
	}
	delete(t.layers, l.Key)
	t.drop(ctx, l.Snapshot)
	return nil
}
