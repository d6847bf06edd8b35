package oci_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/jail/backend/oci"
	"glasshouse/jail/init/control"
)

// interrupted is an operation that creates a jail, and its steps.
type interrupted struct {
	name  string
	steps []string
	plan  func(t *testing.T) jail.Plan
	make  func(context.Context, jail.Plan) (jail.Instance, error)
}

// creations returns Create and, if this host supports it, Restore.
func creations(t *testing.T, h *host, b *oci.Backend) []interrupted {
	create := interrupted{
		name:  "create",
		steps: []string{"volume", "network", "cgroup", "control", "identity", "idmap", "layers", "devices", "bundle", "runtime", "answer", "unmount"},
		plan:  func(t *testing.T) jail.Plan { return h.plan(t, b) },
		make:  b.Create,
	}
	if err := b.CanCheckpoint(t.Context()); err != nil {
		t.Logf("Restore is not tested: %v", err)
		return []interrupted{create}
	}
	images, layer, of := dumped(t, h, b)
	return []interrupted{create, {
		name:  "restore",
		steps: []string{"volume", "network", "cgroup", "control", "identity", "idmap", "layers", "devices", "images", "worker", "criu", "settle"},
		plan: func(t *testing.T) jail.Plan {
			return h.plan(t, b, func(p *jail.Plan) { p.Sealed, p.Limits = []string{layer}, of.Limits })
		},
		make: func(ctx context.Context, p jail.Plan) (jail.Instance, error) { return b.Restore(ctx, p, images) },
	}}
}

// dumped returns the images and the layer of a jail that has ended.
func dumped(t *testing.T, h *host, b *oci.Backend) (images, layer string, p jail.Plan) {
	t.Helper()
	p = h.plan(t, b)
	inst, err := b.Create(t.Context(), p)
	must(t, err)
	defer inst.Close()
	must(t, control.Dial(inst.Control()).Park(t.Context(), 20*time.Second))
	must(t, inst.Freeze(t.Context()))
	must(t, b.Stabilize(t.Context(), p, inst))
	must(t, b.Dumpable(t.Context(), p, inst))
	images, layer = filepath.Join(h.dir, "images"), filepath.Join(h.dir, "layer.img")
	h.owned(t, "images", 0, nil)
	must(t, b.Dump(t.Context(), p, inst, images))
	c, err := b.BeginCopy(t.Context(), p, layer)
	must(t, err)
	must(t, c.Copy(t.Context()))
	must(t, c.Close())
	must(t, inst.Kill(t.Context()))
	must(t, b.Clean(t.Context(), p))
	return images, layer, p
}

// forEachWorker runs a scenario on the runtimes whose jails CRIU restores. crun has the same
// steps as runc.
func forEachWorker(t *testing.T, scenario func(t *testing.T, h *host, b *oci.Backend)) {
	runtimes := []string{"runc"}
	if backendtest.Thorough {
		runtimes = append(runtimes, "crun")
	}
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) {
			h := newHost(t)
			scenario(t, h, ready(t, h, runtime))
		})
	}
}

// leavesNothing checks that a failed operation left nothing on the host.
func leavesNothing(t *testing.T, p jail.Plan) {
	t.Helper()
	// A process that copies the host's mounts may hold them a little longer.
	if leaks := backendtest.LeaksAfter(p, 30*time.Second); len(leaks) > 0 {
		t.Errorf("left on the host:\n%s", strings.Join(leaks, "\n"))
	}
}

// TestCancellationAtEachStepReturnsError cancels at the end of each step.
func TestCancellationAtEachStepReturnsError(t *testing.T) {
	forEachWorker(t, func(t *testing.T, h *host, b *oci.Backend) {
		for _, op := range creations(t, h, b) {
			for _, at := range op.steps {
				t.Run(op.name+"-"+at, func(t *testing.T) {
					p := op.plan(t)
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					var once sync.Once
					reached := false
					b.Trace(func(step string, _ time.Duration) {
						if step == at {
							once.Do(func() { reached = true; cancel() })
						}
					})
					inst, err := op.make(ctx, p)
					b.Trace(nil)
					if !reached {
						t.Errorf("the step %s was not reached: %v", at, err)
					}
					if err == nil { // all cancellable steps were complete
						defer inst.Close()
						if at != "settle" && at != "answer" && at != "unmount" && at != "criu" {
							t.Errorf("error after cancellation at %s = nil, want context.Canceled", at)
						}
						must(t, inst.Kill(t.Context()))
						return
					}
					if !errors.Is(err, context.Canceled) {
						t.Errorf("error = %v, want context.Canceled", err)
					}
					leavesNothing(t, p)
				})
			}
		}
	})
}

// TestRestoreWithLateWorkerObservesCancellation delays the CRIU worker until everything else
// is prepared, and then cancels.
func TestRestoreWithLateWorkerObservesCancellation(t *testing.T) {
	forEachWorker(t, func(t *testing.T, h *host, b *oci.Backend) {
		ops := creations(t, h, b)
		if len(ops) < 2 {
			t.Skip("this host cannot restore")
		}
		p := ops[1].plan(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var others sync.WaitGroup
		others.Add(2)
		b.Trace(func(step string, _ time.Duration) {
			switch step {
			case "devices", "images":
				others.Done()
			case "cgroup":
				others.Wait()
				cancel()
			}
		})
		defer b.Trace(nil)
		if inst, err := ops[1].make(ctx, p); !errors.Is(err, context.Canceled) {
			t.Errorf("Restore = %v, %v, want context.Canceled", inst, err)
		} else if p := (*fault.Panic)(nil); errors.As(err, &p) {
			t.Errorf("Restore panicked: %v\n%s", p, p.Stack)
		}
		leavesNothing(t, p)
	})
}

// TestPanicInStepIsReturnedAndUndone panics at the end of each step, on the goroutine of the
// step.
func TestPanicInStepIsReturnedAndUndone(t *testing.T) {
	forEachWorker(t, func(t *testing.T, h *host, b *oci.Backend) {
		for _, op := range creations(t, h, b) {
			for _, at := range op.steps {
				t.Run(op.name+"-"+at, func(t *testing.T) {
					p := op.plan(t)
					b.Trace(func(step string, _ time.Duration) {
						if step == at {
							panic("at " + at)
						}
					})
					inst, err := op.make(t.Context(), p)
					b.Trace(nil)
					if err == nil {
						inst.Close()
						t.Fatal("error after a panic = nil")
					}
					var panicked *fault.Panic
					if !errors.As(err, &panicked) || panicked.Value != "at "+at {
						t.Errorf("error = %v, want the panic at %s", err, at)
					}
					leavesNothing(t, p)
				})
			}
		}
	})
}
