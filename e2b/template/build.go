package template

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"glasshouse/e2b"
	"glasshouse/egress"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/snapshot"
)

// buildTime is how long a build may take, and graceTime how long programs have to end by
// themselves when a step is over.
const (
	buildTime = time.Hour
	graceTime = 2 * time.Second
)

// A builder is a build that goes on.
type builder struct {
	t    *Templates
	b    Build
	plan Plan
	log  *journal

	root  jail.Rootfs // what the first layer is on
	set   Setting     // as far as it has come
	key   string      // of that
	snap  id.Snapshot // its files; "" is those of root
	fresh bool        // nothing more is taken from the cache

	jail id.Jail // in which steps are run; "" until one is
	up   bool    // it runs
}

// build does what a build was told to, and records what came of it.
func (t *Templates) build(ctx context.Context, b Build, p Plan, log *journal) {
	began := time.Now()
	ctx, stop := context.WithTimeoutCause(ctx, buildTime, fault.Newf(fault.Timeout, "e2b", b.ID, "a build may take %v", buildTime))
	defer stop()
	r := &builder{t: t, b: b, plan: p, log: log}
	err := r.run(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		switch {
		case t.ctx.Err() != nil:
			err = fault.Newf(fault.Unavailable, "e2b", b.ID, "the daemon ended while this was built: build it again")
		case errors.Is(cause, context.Canceled): // it says nothing
		default:
			err = cause
		}
	}
	if end := r.clean(context.WithoutCancel(ctx)); end != nil {
		t.cfg.Log.Warn("what a build needed is not removed; the next daemon does it", "build", b.ID, "err", end)
	}
	if err := t.end(context.WithoutCancel(ctx), r, err, time.Since(began)); err != nil {
		t.cfg.Log.Error("what came of a build is not recorded; to the next daemon it is an error", "build", b.ID, "err", err)
	}
}

// end records what came of a build.
func (t *Templates) end(ctx context.Context, r *builder, failed error, took time.Duration) error {
	var why *Reason
	to := Ready
	if failed == nil {
		r.log.say("info", "", "Build finished, took %v", took.Round(time.Millisecond))
	} else {
		to, why = Failed, &Reason{Message: e2b.ErrorOf(failed).Message}
		if at, ok := errors.AsType[*stepError](failed); ok {
			why.Step = at.step
		}
		if fault.KindOf(failed) == "" && !errors.Is(failed, errDeleted) {
			t.cfg.Log.Error("a build failed within", "build", r.b.ID, "err", failed)
		}
		r.log.say("error", why.Step, "Build failed: %s", why.Message)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.release(ctx, r.snap) // what is recorded by then keeps it
	delete(t.working, r.b.ID)
	err := r.log.close()
	if t.builds[r.b.ID] == nil { // deleted meanwhile
		t.drop(ctx, r.b.Layer)
		t.drop(ctx, r.b.Running)
		return errors.Join(err, os.Remove(t.logOf(r.b.ID)))
	}
	r.b.Tags = t.builds[r.b.ID].Tags
	if end := t.endNow(ctx, &r.b, to, why); end != nil {
		t.drop(ctx, r.b.Layer)
		t.drop(ctx, r.b.Running)
		return errors.Join(err, end)
	}
	return errors.Join(err, t.sweep(ctx))
}

// hold keeps a snapshot from being deleted until release. The caller holds mu.
func (t *Templates) hold(sid id.Snapshot) {
	if sid != "" {
		t.held[sid]++
	}
}

// release drops the snapshot if it was the last to hold it. The caller holds mu.
func (t *Templates) release(ctx context.Context, sid id.Snapshot) {
	if sid == "" {
		return
	}
	if t.held[sid]--; t.held[sid] <= 0 {
		delete(t.held, sid)
		t.drop(ctx, sid)
	}
}

// on has the build stand on other files.
func (r *builder) on(ctx context.Context, sid id.Snapshot) {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	r.t.hold(sid)
	r.t.release(ctx, r.snap)
	r.snap = sid
}

func (r *builder) run(ctx context.Context) error {
	select {
	case r.t.turns <- struct{}{}:
		defer func() { <-r.t.turns }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := r.begin(ctx); err != nil {
		return err
	}
	r.log.say("info", "", "Building the template %s, which may reach %s", r.b.Template, r.t.reach())
	if err := r.base(ctx); err != nil {
		return &stepError{"base", err}
	}
	for i, s := range r.plan.Steps {
		if err := r.step(ctx, i+1, s); err != nil {
			return &stepError{strconv.Itoa(i + 1), err}
		}
	}
	if err := r.finish(ctx); err != nil {
		return &stepError{"finalize", err}
	}
	return nil
}

// begin records that the build goes on.
func (r *builder) begin(ctx context.Context) error {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	if r.t.builds[r.b.ID] == nil {
		return errDeleted
	}
	next := r.b
	if err := next.move(Building); err != nil {
		return err
	}
	if err := r.t.saveBuild(ctx, next); err != nil {
		return err
	}
	r.b = next
	return nil
}

// ownBase are the images that stand for the template that others begin with.
var ownBase = []string{"e2bdev/base", "e2bdev/base:latest", "docker.io/e2bdev/base", "docker.io/e2bdev/base:latest"}

// base finds what the first step is run on.
func (r *builder) base(ctx context.Context) error {
	if of := r.plan.Template; of != "" && of != e2b.Base {
		return r.baseTemplate(ctx, of)
	}
	image := r.plan.Image
	r.root = jail.Rootfs{User: e2b.User}
	if image != "" && !slices.Contains(ownBase, image) {
		pinned, err := r.pin(ctx, image)
		r.plan.Registry = nil
		if err != nil {
			return err
		}
		r.root.OCI = pinned
	}
	layers, err := r.t.cfg.Resolve(ctx, r.root)
	if r.root.OCI == "" {
		err = e2b.BaseUnusable(r.t.cfg.Log, err)
	}
	if err != nil {
		return err
	}
	r.set = Setting{User: e2b.User, Base: layers.Env}
	r.key = digest("image", layers.Digest)
	r.fresh = r.plan.Force
	r.log.say("info", "base", "[base] FROM %s [%s]", cmp.Or(image, e2b.Base), short(layers.Digest))
	return nil
}

// pin has an image made ready, and returns it by its digest. The registry is asked even
// for what is here: it may be here because somebody else has the credentials for it.
func (r *builder) pin(ctx context.Context, image string) (string, error) {
	ref, err := name.ParseReference(image)
	if err != nil || strings.HasPrefix(image, "/") || strings.HasPrefix(image, ".") {
		return "", invalid("%q is not the name of an image", short(image))
	}
	r.log.say("info", "base", "Getting the image %s", ref.Name())
	login, err := r.plan.Registry.login(ctx, r.t.cfg.Transport)
	if err != nil {
		return "", err
	}
	digest, err := r.t.cfg.Pull(ctx, image, login)
	if err != nil {
		return "", err
	}
	return ref.Context().Name() + "@" + digest, nil
}

func (r *builder) baseTemplate(ctx context.Context, ref string) error {
	r.t.mu.Lock()
	of, b, err := r.t.find(r.b.Team, ref)
	if err == nil {
		r.t.hold(b.Layer)
	}
	r.t.mu.Unlock()
	if err != nil {
		return err
	}
	r.snap, r.set = b.Layer, b.Setting
	r.key = digest("template", string(b.Layer))
	r.fresh = r.plan.Force
	if r.plan.Start == "" && r.plan.Ready == "" {
		r.b.Start, r.b.Ready = b.Start, b.Ready
	}
	r.log.say("info", "base", "[base] FROM template %s [%s]", of.Name, b.ID)
	return nil
}

// digest is one of texts, in their order and with their bounds.
func digest(texts ...string) string {
	h := sha256.New()
	for _, s := range texts {
		fmt.Fprintf(h, "%d:%s,", len(s), s)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// step does one, or takes what it led to before.
func (r *builder) step(ctx context.Context, n int, s Step) error {
	at := strconv.Itoa(n)
	what, err := s.parse()
	if err != nil {
		return err
	}
	key := append([]string{string(r.b.Team), r.key, strings.ToUpper(s.Type)}, s.Args...)
	if _, ok := what.(copying); ok {
		_, sum, err := r.t.files.find(r.b.Team, s.Files)
		if err != nil {
			return err
		}
		key = append(key, sum)
	}
	r.key = digest(key...)
	r.fresh = r.fresh || s.Force
	if !r.fresh && r.cached(ctx) {
		r.log.say("info", at, "CACHED [builder %d/%d] %s", n, len(r.plan.Steps), s)
		return nil
	}
	r.fresh = true
	r.log.say("info", at, "[builder %d/%d] %s", n, len(r.plan.Steps), s)
	if err := r.do(ctx, at, s, what); err != nil {
		return err
	}
	return r.keep(ctx)
}

// cached takes what was led to before, if it is there.
func (r *builder) cached(ctx context.Context) bool {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	l := r.t.layers[r.key]
	if l == nil || l.Team != r.b.Team {
		return false
	}
	if l.Snapshot != "" {
		if _, err := r.t.cfg.Snapshots.Get(ctx, l.Snapshot); err != nil {
			return false // somebody has removed it
		}
	}
	used := *l
	used.Used = time.Now().UTC()
	if err := r.t.cfg.Store.PutLayer(ctx, used); err != nil {
		return false
	}
	r.t.layers[r.key] = &used
	r.t.hold(l.Snapshot)
	r.t.release(ctx, r.snap)
	r.snap, r.set = l.Snapshot, l.Setting
	return true
}

// keep records what the steps so far led to, in place of what they led to before.
func (r *builder) keep(ctx context.Context) error {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	l := Layer{Key: r.key, Team: r.b.Team, Snapshot: r.snap, Setting: r.set, Used: time.Now().UTC()}
	if err := r.t.cfg.Store.PutLayer(ctx, l); err != nil {
		return err
	}
	was := r.t.layers[r.key]
	r.t.layers[r.key] = &l
	if was != nil {
		r.t.drop(ctx, was.Snapshot)
	}
	return nil
}

// inside has a jail run in which the files are as the steps so far led to.
func (r *builder) inside(ctx context.Context) error {
	if r.up {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	var j jail.Jail
	var err error
	switch {
	case r.jail != "":
		j, err = r.t.cfg.Jails.Start(ctx, r.jail)
	case r.snap == "":
		j, err = r.create(ctx)
	default:
		j, err = r.t.cfg.Snapshots.Restore(ctx, r.snap, snapshot.Overrides{
			Name: r.jailName(), Labels: r.labels(labelBuild), Limits: r.limits(), Network: jail.Proxied, Govern: r.govern,
		})
		r.jail = j.ID
		if err == nil && j.State == jail.Created {
			_, err = r.t.cfg.Jails.Start(ctx, j.ID)
		}
	}
	if err != nil {
		return err
	}
	r.jail, r.up = j.ID, true
	return nil
}

func (r *builder) create(ctx context.Context) (jail.Jail, error) {
	govern, err := r.govern(nil)
	if err != nil {
		return jail.Jail{}, err
	}
	return r.t.cfg.Jails.Create(ctx, jail.Spec{
		Name: r.jailName(), Labels: r.labels(labelBuild), Backend: "oci", Rootfs: r.root, Limits: *r.limits(),
		Network: jail.Proxied, Govern: govern, Start: true,
	})
}

func (r *builder) jailName() string { return "build-" + r.b.ID[:8] }

func (r *builder) labels(label string) map[string]string { return map[string]string{label: r.b.ID} }

func (r *builder) limits() *jail.Limits {
	return &jail.Limits{CPUShares: shares * int64(r.b.CPU), MemoryMB: r.b.MemoryMB, DiskMB: r.b.DiskMB, MaxPIDs: 1024}
}

// govern has a build reach what the configuration lets builds reach.
func (r *builder) govern(was json.RawMessage) (json.RawMessage, error) {
	var rules egress.Rules
	for _, host := range r.t.cfg.Reach {
		rules.Allow = append(rules.Allow, egress.Rule{Name: "e2b.builds.reach " + host, Host: host})
	}
	if r.t.cfg.Reach == nil {
		for _, all := range []string{"*", "0.0.0.0/0", "::/0"} {
			rules.Allow = append(rules.Allow, egress.Rule{Name: "the Internet", Host: all, Internet: true})
		}
	}
	return r.t.cfg.Govern(was, rules)
}

// reach says what that is.
func (t *Templates) reach() string {
	switch {
	case t.cfg.Reach == nil:
		return "every host on the Internet"
	case len(t.cfg.Reach) == 0:
		return "no host"
	}
	return strings.Join(t.cfg.Reach, ", ")
}

// freeze ends what runs and makes a layer of what it left.
func (r *builder) freeze(ctx context.Context) error {
	if _, err := r.t.cfg.Jails.Stop(ctx, r.jail, jail.StopOptions{Grace: graceTime}); err != nil {
		return err
	}
	r.up = false
	s, err := r.t.cfg.Snapshots.Take(ctx, r.jail, snapshot.TakeOptions{Labels: r.labels(labelLayer)})
	if err != nil {
		return err
	}
	r.on(ctx, s.ID)
	return nil
}

// clean removes the jail.
func (r *builder) clean(ctx context.Context) error {
	if r.jail == "" {
		return nil
	}
	if err := r.t.cfg.Jails.Delete(ctx, r.jail); err != nil && !errors.Is(err, fault.NotFound) {
		return err
	}
	return r.t.cfg.Snapshots.Abandoned(ctx, r.jail)
}

// finish makes of the layers what sandboxes are made of: the last one, and what the start
// command leads to where there is one.
func (r *builder) finish(ctx context.Context) error {
	r.log.say("info", "finalize", "[finalize] Finalizing template build")
	if n := runtime.NumCPU(); r.b.CPU > n {
		r.log.say("warn", "finalize", "this host has %d processors: that is what sandboxes see, whatever they are given of them", n)
	}
	if r.snap == "" { // there is something to be kept, whatever becomes of the root filesystem
		if err := r.inside(ctx); err != nil {
			return err
		}
		if err := r.freeze(ctx); err != nil {
			return err
		}
	}
	r.b.Setting, r.b.Key, r.b.Layer = r.set, r.key, r.snap
	if r.b.Start == "" && r.b.Ready == "" {
		return nil
	}
	if err := r.inside(ctx); err != nil {
		return err
	}
	if err := r.start(ctx); err != nil {
		return err
	}
	if r.b.Start == "" {
		return nil // it was ready as it is
	}
	s, err := r.t.cfg.Snapshots.Take(ctx, r.jail, snapshot.TakeOptions{Labels: r.labels(labelLayer), Stop: true})
	if err != nil {
		r.log.say("warn", "finalize", "What runs cannot be kept, so that each sandbox begins with the start command: %s", e2b.ErrorOf(err).Message)
		return nil
	}
	r.b.Running = s.ID
	return nil
}
