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
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
	"glasshouse/policy/egress"
)

// buildTime limits a build. graceTime is the time between SIGTERM and SIGKILL at the end of a
// step.
const (
	buildTime = time.Hour
	graceTime = 2 * time.Second
)

// A builder is a build in progress.
type builder struct {
	t    *Templates
	b    Build
	plan Plan
	log  *buildLog

	root  jail.Rootfs // below the first layer
	set   Setting     // after the steps so far
	key   string      // cache key of the steps so far
	snap  id.Snapshot // files after the steps so far; "" means those of root
	fresh bool        // the cache is no longer used

	jail id.Jail // runs the steps; "" until the first one runs
	up   bool    // jail runs
}

// build runs a build and records its result.
func (t *Templates) build(ctx context.Context, b Build, p Plan, log *buildLog) {
	began := time.Now()
	ctx, stop := context.WithTimeoutCause(ctx, buildTime, fault.Newf(fault.Timeout, "template.build", b.ID, "the build exceeded its time limit of %v", buildTime))
	defer stop()
	r := &builder{t: t, b: b, plan: p, log: log}
	err := r.run(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		switch {
		case t.ctx.Err() != nil:
			err = fault.Newf(fault.Unavailable, "template.build", b.ID, "the daemon stopped during the build: build it again")
		case errors.Is(cause, context.Canceled): // the caller reports the cause
		default:
			err = cause
		}
	}
	if end := r.clean(context.WithoutCancel(ctx)); end != nil {
		t.cfg.Log.Warn("cannot remove the resources of a build; the next daemon removes them", "build", b.ID, "err", end)
	}
	if err := t.end(context.WithoutCancel(ctx), r, err, time.Since(began)); err != nil {
		t.cfg.Log.Error("cannot record the result of a build; the next daemon marks it as failed", "build", b.ID, "err", err)
	}
}

// end records the result of a build.
func (t *Templates) end(ctx context.Context, r *builder, failed error, took time.Duration) error {
	var why *Reason
	to := Ready
	if failed == nil {
		r.log.printf("info", "", "Build finished, took %v", took.Round(time.Millisecond))
	} else {
		to, why = Failed, &Reason{Message: e2b.ErrorOf(failed).Message}
		if at, ok := errors.AsType[*stepError](failed); ok {
			why.Step = at.step
		}
		if fault.KindOf(failed) == "" && !errors.Is(failed, errDeleted) {
			t.cfg.Log.Error("a build failed with an internal error", "build", r.b.ID, "err", failed)
		}
		r.log.printf("error", why.Step, "Build failed: %s", why.Message)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.release(ctx, r.snap) // a recorded build retains it
	delete(t.working, r.b.ID)
	err := r.log.close()
	if t.builds[r.b.ID] == nil { // deleted in the meantime
		t.drop(ctx, r.b.Layer)
		t.drop(ctx, r.b.Running)
		return errors.Join(err, os.Remove(t.logOf(r.b.ID)))
	}
	r.b.Tags = t.builds[r.b.ID].Tags
	if end := t.endBuild(ctx, &r.b, to, why); end != nil {
		t.drop(ctx, r.b.Layer)
		t.drop(ctx, r.b.Running)
		return errors.Join(err, end)
	}
	return errors.Join(err, t.sweep(ctx))
}

// retain keeps a snapshot from being deleted until release. The caller holds mu.
func (t *Templates) retain(sid id.Snapshot) {
	if sid != "" {
		t.retained[sid]++
	}
}

// release deletes the snapshot if no build retains it any longer. The caller holds mu.
func (t *Templates) release(ctx context.Context, sid id.Snapshot) {
	if sid == "" {
		return
	}
	t.retained[sid]--
	if t.retained[sid] <= 0 {
		delete(t.retained, sid)
		t.drop(ctx, sid)
	}
}

// setSnapshot replaces the snapshot that the build continues from.
func (r *builder) setSnapshot(ctx context.Context, sid id.Snapshot) {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	r.t.retain(sid)
	r.t.release(ctx, r.snap)
	r.snap = sid
}

func (r *builder) run(ctx context.Context) error {
	select {
	case r.t.slots <- struct{}{}:
		defer func() { <-r.t.slots }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := r.begin(ctx); err != nil {
		return err
	}
	r.log.printf("info", "", "Building the template %s, which may reach %s", r.b.Template, r.t.reachText())
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

// begin records that the build has started.
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

// ownBase lists the images that stand for the default template.
var ownBase = []string{"e2bdev/base", "e2bdev/base:latest", "docker.io/e2bdev/base", "docker.io/e2bdev/base:latest"}

// base prepares the files that the first step runs on.
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
		err = e2b.HideBaseError(r.t.cfg.Log, err)
	}
	if err != nil {
		return err
	}
	r.set = Setting{User: e2b.User, Base: layers.Env}
	r.key = digest("image", layers.Digest)
	r.fresh = r.plan.Force
	r.log.printf("info", "base", "[base] FROM %s [%s]", cmp.Or(image, e2b.Base), short(layers.Digest))
	return nil
}

// pin pulls an image and returns its name by digest. It always asks the registry, even for a
// local image: the image may be local because another team has credentials for it.
func (r *builder) pin(ctx context.Context, image string) (string, error) {
	ref, err := name.ParseReference(image)
	if err != nil || strings.HasPrefix(image, "/") || strings.HasPrefix(image, ".") {
		return "", invalid("%q is not the name of an image", short(image))
	}
	r.log.printf("info", "base", "Getting the image %s", ref.Name())
	login, err := r.plan.Registry.login(ctx, r.t.cfg.Transport)
	if err != nil {
		return "", fmt.Errorf("sign in to the registry of %s: %w", ref.Name(), err)
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
		r.t.retain(b.Layer)
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
	r.log.printf("info", "base", "[base] FROM template %s [%s]", of.Name, b.ID)
	return nil
}

// digest returns a digest of texts that depends on their order and boundaries.
func digest(texts ...string) string {
	h := sha256.New()
	for _, s := range texts {
		fmt.Fprintf(h, "%d:%s,", len(s), s)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// step runs a step, or takes its result from the cache.
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
		r.log.printf("info", at, "CACHED [builder %d/%d] %s", n, len(r.plan.Steps), s)
		return nil
	}
	r.fresh = true
	r.log.printf("info", at, "[builder %d/%d] %s", n, len(r.plan.Steps), s)
	if err := r.do(ctx, at, s, what); err != nil {
		return err
	}
	return r.cacheLayer(ctx)
}

// cached takes the result of the steps so far from the cache, if it has one.
func (r *builder) cached(ctx context.Context) bool {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	l := r.t.layers[r.key]
	if l == nil || l.Team != r.b.Team {
		return false
	}
	if l.Snapshot != "" {
		if _, err := r.t.cfg.Snapshots.Get(ctx, l.Snapshot); err != nil {
			return false // the snapshot was removed
		}
	}
	used := *l
	used.Used = time.Now().UTC()
	if err := r.t.cfg.Store.PutLayer(ctx, used); err != nil {
		return false
	}
	r.t.layers[r.key] = &used
	r.t.retain(l.Snapshot)
	r.t.release(ctx, r.snap)
	r.snap, r.set = l.Snapshot, l.Setting
	return true
}

// cacheLayer records the result of the steps so far in the cache, in place of an earlier one.
func (r *builder) cacheLayer(ctx context.Context) error {
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

// ensureJail starts a jail with the files of the steps so far, unless it runs.
func (r *builder) ensureJail(ctx context.Context) error {
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
			Name: r.jailName(), Labels: r.labels(LabelBuild), Limits: r.limits(), Network: jail.Proxied, Creator: &r.b.Team, Govern: r.govern,
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
		return jail.Jail{}, fmt.Errorf("apply the egress rules to the policy of the build: %w", err)
	}
	return r.t.cfg.Jails.Create(ctx, jail.Spec{
		Name: r.jailName(), Labels: r.labels(LabelBuild), Backend: r.t.cfg.Backend, Rootfs: r.root, Limits: *r.limits(),
		Network: jail.Proxied, Policy: govern, Start: true, Creator: r.b.Team,
	})
}

func (r *builder) jailName() string { return "build-" + r.b.ID[:8] }

func (r *builder) labels(label string) map[string]string { return map[string]string{label: r.b.ID} }

func (r *builder) limits() *jail.Limits {
	return &jail.Limits{CPUShares: shares * int64(r.b.CPU), MemoryMB: r.b.MemoryMB, DiskMB: r.b.DiskMB, MaxPIDs: maxPIDs}
}

// govern sets the egress rules of a build's jail to those of the configuration.
func (r *builder) govern(was json.RawMessage) (json.RawMessage, error) {
	var rules egress.Rules
	for _, host := range r.t.cfg.EgressHosts {
		rules.Allow = append(rules.Allow, egress.Rule{Name: "e2b.builds.reach " + host, Host: host})
	}
	if r.t.cfg.EgressHosts == nil {
		for _, all := range []string{"*", "0.0.0.0/0", "::/0"} {
			rules.Allow = append(rules.Allow, egress.Rule{Name: "the Internet", Host: all, Internet: true})
		}
	}
	return r.t.cfg.Govern(was, rules)
}

// reachText describes these egress rules.
func (t *Templates) reachText() string {
	switch {
	case t.cfg.EgressHosts == nil:
		return "every host on the Internet"
	case len(t.cfg.EgressHosts) == 0:
		return "no host"
	}
	return strings.Join(t.cfg.EgressHosts, ", ")
}

// freeze stops the jail and takes a snapshot of its files as a layer.
func (r *builder) freeze(ctx context.Context) error {
	if _, err := r.t.cfg.Jails.Stop(ctx, r.jail, jail.StopOptions{Grace: graceTime}); err != nil {
		return fmt.Errorf("stop the jail before the layer is taken: %w", err)
	}
	r.up = false
	s, err := r.t.cfg.Snapshots.Take(ctx, r.jail, snapshot.TakeOptions{Labels: r.labels(labelLayer)})
	if err != nil {
		return fmt.Errorf("take the layer: %w", err)
	}
	r.setSnapshot(ctx, s.ID)
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
	return r.t.cfg.Snapshots.JailDeleted(ctx, r.jail)
}

// finish creates the snapshots that sandboxes are created from: the last layer and, if there is
// a start command, one with its processes.
func (r *builder) finish(ctx context.Context) error {
	r.log.printf("info", "finalize", "[finalize] Finalizing template build")
	if n := runtime.NumCPU(); r.b.CPU > n {
		r.log.printf("warn", "finalize", "this host has %d processors: sandboxes see all of them, regardless of their limits", n)
	}
	if r.snap == "" { // the template must not depend on the root filesystem
		if err := r.ensureJail(ctx); err != nil {
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
	if err := r.ensureJail(ctx); err != nil {
		return err
	}
	if err := r.start(ctx); err != nil {
		return err
	}
	if r.b.Start == "" {
		return nil // no further snapshot is needed
	}
	s, err := r.t.cfg.Snapshots.Take(ctx, r.jail, snapshot.TakeOptions{Labels: r.labels(labelLayer), Stop: true})
	if err != nil {
		r.log.printf("warn", "finalize", "The running processes cannot be saved, so each sandbox runs the start command: %s", e2b.ErrorOf(err).Message)
		return nil
	}
	r.b.Running = s.ID
	return nil
}
