package daemon

import (
	"slices"
	"sync"
	"time"

	"glasshouse/id"
)

// fences drop the packets of jails in which runs work while this daemon has no lease: another
// daemon may have continued the runs. A frozen jail sends nothing, but a daemon that hangs or was
// killed freezes none. Only jails with full network access have a link to fence; the connections
// of others lead through this daemon.
type fences struct {
	mu sync.Mutex
	// +checklocks:mu
	links map[id.Jail]string // of the running jails
	// +checklocks:mu
	fenced map[id.Jail]bool
	// +checklocks:mu
	table fenceTable // nil: runs need no lease, or not yet
	// +checklocks:mu
	valid func() time.Duration // remaining time of the lease
	// +checklocks:mu
	installed bool // the table exists
}

// A fenceTable is the part of netns.Fence that fences use.
type fenceTable interface {
	Links() ([]string, error)
	Renew(links []string, d time.Duration) error
}

func newFences() *fences { return &fences{links: map[id.Jail]string{}, fenced: map[id.Jail]bool{}} }

// open starts fencing. Jails that the previous daemon has fenced stay so. After an error, runs in
// jails with a link are not started until the rules can be changed.
func (f *fences) open(table fenceTable, valid func() time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.table, f.valid = table, valid
	previous, err := table.Links()
	if err != nil {
		return err
	}
	for j, link := range f.links {
		if slices.Contains(previous, link) {
			f.fenced[j] = true
		}
	}
	f.installed = len(previous) > 0
	return f.renewLocked()
}

// fence fences a jail until it stops.
func (f *fences) fence(j id.Jail) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fenced[j] {
		return nil
	}
	f.fenced[j] = true
	if f.links[j] == "" {
		return nil
	}
	if err := f.renewLocked(); err != nil {
		delete(f.fenced, j)
		return err
	}
	return nil
}

// started records the link of a jail; "" is none.
func (f *fences) started(j id.Jail, link string) error {
	if link == "" {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.links[j] = link
	if !f.fenced[j] {
		return nil
	}
	return f.renewLocked()
}

// ended forgets the link of a jail whose processes have ended. The next renewal removes it from the
// table.
func (f *fences) ended(j id.Jail) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.links, j)
}

// stopped forgets a jail that has stopped.
func (f *fences) stopped(j id.Jail) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.fenced, j)
}

// renew extends the time in which packets pass to the end of the lease.
func (f *fences) renew() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.renewLocked()
}

// renewLocked is renew for callers that hold mu.
//
// +checklocks:f.mu
func (f *fences) renewLocked() error {
	if f.table == nil {
		return nil
	}
	var links []string
	for j := range f.fenced {
		if link := f.links[j]; link != "" {
			links = append(links, link)
		}
	}
	slices.Sort(links)
	if len(links) == 0 && !f.installed {
		return nil
	}
	if err := f.table.Renew(links, f.valid()); err != nil {
		return err
	}
	f.installed = len(links) > 0
	return nil
}
