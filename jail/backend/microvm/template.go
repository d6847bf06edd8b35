package microvm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"glasshouse/jail"
)

// A template is a machine that was saved after its boot, before it was given a jail. Later machines
// with the same devices are restored from it, which takes a fraction of the time of a boot. It has
// the random state of one boot: each machine gets a seed of its own before its jail starts, but the
// addresses of the kernel are the same.
type template struct {
	memory, devices string // files

	make bool   // it does not exist
	done func() // ends its use, or lets others make it. May be called twice.
}

// templateAge limits the age of a template, so that the addresses of the kernel change.
const templateAge = 24 * time.Hour

// templates are the templates that are being made.
type templates struct {
	mu sync.Mutex
	// +checklocks:mu
	making map[string]chan struct{} // by the file of the devices
}

// begin reserves the making of a template, or returns a channel that is closed when another caller has
// made it or failed.
func (ts *templates) begin(name string) (end func(), other <-chan struct{}) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if c := ts.making[name]; c != nil {
		return nil, c
	}
	if ts.making == nil {
		ts.making = map[string]chan struct{}{}
	}
	c := make(chan struct{})
	ts.making[name] = c
	return sync.OnceFunc(func() {
		ts.mu.Lock()
		defer ts.mu.Unlock()
		delete(ts.making, name)
		close(c)
	}), nil
}

// template returns the template for the machine of a jail and the source to restore it from, or a
// template that the caller makes. Others that need the same one wait for that.
func (b *Backend) template(ctx context.Context, p jail.Plan, r *reading) (template, *source, error) {
	t, err := b.findTemplate(ctx, p, r)
	if err != nil {
		return t, nil, fmt.Errorf("find the template of the machine: %w", err)
	}
	for {
		from, done, err := b.openTemplate(t, p)
		switch {
		case err == nil:
			t.done = done
			return t, from, nil
		case !errors.Is(err, fs.ErrNotExist):
			b.cfg.Log.Warn("the template of a virtual machine cannot be read, and a new one is made", "err", err)
		}
		end, other := b.templates.begin(t.devices)
		if end != nil {
			t.make, t.done = true, end
			return t, nil, nil
		}
		select {
		case <-other:
		case <-ctx.Done():
			return t, nil, context.Cause(ctx)
		}
	}
}

// findTemplate returns the names of the files of a template.
func (b *Backend) findTemplate(ctx context.Context, p jail.Plan, r *reading) (t template, err error) {
	image, initrd, err := b.boot(p.Init)
	if err != nil {
		return t, err
	}
	defer image.Close()
	defer initrd.Close()
	program, _ := b.vmm.program()
	program, err = exec.LookPath(program)
	if err != nil {
		return t, err
	}
	sum := sha256.New()
	fmt.Fprintln(sum, "template", deviceList, initrd.Name(), ramSize(p), b.emulates())
	for _, name := range []string{image.Name(), program} {
		st, err := os.Stat(name)
		if err != nil {
			return t, err
		}
		fmt.Fprintln(sum, name, st.Size(), st.ModTime().UnixNano())
	}
	for _, dir := range p.Lower {
		f, err := b.layerDisk(ctx, dir)
		if err != nil {
			return t, err
		}
		fmt.Fprintln(sum, f.Name())
		f.Close()
	}
	if p.Workspace != nil {
		st, err := os.Stat(layout{p.Dir}.workspace())
		if err != nil {
			return t, err
		}
		fmt.Fprintln(sum, "workspace", st.Size())
	}
	for _, v := range r.volumes(p) {
		size, err := b.volumeSize(v)
		if err != nil {
			return t, fmt.Errorf("check the disk: %w", err)
		}
		fmt.Fprintln(sum, size)
	}
	for n := range p.Mounts {
		st, err := os.Stat(layout{p.Dir}.mount(n))
		if err != nil {
			return t, err
		}
		fmt.Fprintln(sum, "mount", st.Size())
	}
	name := filepath.Join(b.cfg.Cache, "template-"+hex.EncodeToString(sum.Sum(nil)[:16]))
	return template{memory: name + "-memory", devices: name + "-devices"}, nil
}

func (b *Backend) volumeSize(p jail.Plan) (int64, error) {
	f, err := os.Open(b.volume(p))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return b.vmm.volumeSize(f)
}

// openTemplate returns the source for a machine. The error fs.ErrNotExist means that the template
// must be made.
func (b *Backend) openTemplate(t template, p jail.Plan) (_ *source, done func(), err error) {
	st, err := os.Stat(t.devices)
	if err == nil && time.Since(st.ModTime()) > templateAge {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, nil, err
	}
	state, err := readState(t.devices)
	if err != nil {
		return nil, nil, err
	}
	ram, done, err := b.vmm.openMemory(t.memory, ramSize(p))
	if err != nil {
		return nil, nil, err
	}
	return &source{ram: ram, devices: state, boots: true}, done, nil
}

// remove removes the files of a template.
func (t template) remove() error {
	var errs []error
	for _, name := range []string{t.devices, t.memory, t.devices + partial, t.memory + partial} {
		if err := os.Remove(name); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

const partial = ".part" // suffix of a file that is being written

// save saves a machine that has booted, and lets it run on.
func (t template) save(ctx context.Context, i *instance) (err error) {
	if err := i.guest.wait(ctx); err != nil {
		return err
	}
	if err := t.remove(); err != nil { // of a killed daemon, or too old
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("save the template of the machine: %w", err), t.remove())
		}
	}()
	defer i.guest.suspend()()
	return i.withMonitor(ctx, func(m monitor) error {
		err := m.save(ctx, i.PID(), ramSize(i.plan), t.devices+partial, t.memory+partial)
		if err == nil { // a power failure must not leave a template with other content
			err = errors.Join(syncFile(t.memory+partial), syncFile(t.devices+partial))
		}
		if err == nil {
			err = errors.Join(os.Rename(t.memory+partial, t.memory), os.Rename(t.devices+partial, t.devices))
		}
		return errors.Join(err, m.cont())
	})
}

func syncFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
