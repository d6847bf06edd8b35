package daemon

import (
	"errors"
	"slices"
	"testing"
	"time"

	"glasshouse/id"
)

// A fakeTable notes the last renewal.
type fakeTable struct {
	links []string
	valid time.Duration
	err   error
}

func (t *fakeTable) Links() ([]string, error) { return t.links, t.err }

func (t *fakeTable) Renew(links []string, d time.Duration) error {
	if t.err == nil {
		t.links, t.valid = links, d
	}
	return t.err
}

func TestFencesFollowJails(t *testing.T) {
	f, table := newFences(), &fakeTable{}
	remaining := 20 * time.Second
	want := func(when string, links ...string) {
		t.Helper()
		if err := f.renew(); err != nil {
			t.Errorf("%s: renew = %v", when, err)
		}
		if !slices.Equal(table.links, links) || len(links) > 0 && table.valid != remaining {
			t.Errorf("%s: links %q for %v, want %q for %v", when, table.links, table.valid, links, remaining)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(f.started("j-run", "gh1"))
	must(f.started("j-other", "gh2"))
	must(f.started("j-proxy", ""))
	must(f.open(table, func() time.Duration { return remaining }))
	want("no run")
	must(f.fence("j-proxy"))
	must(f.fence("j-run"))
	if !slices.Equal(table.links, []string{"gh1"}) {
		t.Errorf("links = %q, want those of the run's jail before the next renewal", table.links)
	}
	remaining = 0
	want("no lease", "gh1")
	f.ended("j-run") // of the instance, which a rewind replaces
	want("no instance")
	must(f.started("j-run", "gh3"))
	if !slices.Equal(table.links, []string{"gh3"}) {
		t.Errorf("links = %q, want those of the new instance before it runs", table.links)
	}
	f.ended("j-run")
	f.stopped("j-run")
	must(f.started("j-run", "gh4"))
	want("used again without a run")
	table.err = errors.New("no nftables")
	if err := f.renew(); err != nil {
		t.Errorf("renewal without jails = %v", err)
	}
}

func TestFencesContinueThoseOfPreviousDaemon(t *testing.T) {
	f, table := newFences(), &fakeTable{links: []string{"gh1", "gh9"}}
	for j, link := range map[string]string{"j-run": "gh1", "j-other": "gh2"} {
		if err := f.started(id.Jail(j), link); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.open(table, func() time.Duration { return time.Second }); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(table.links, []string{"gh1"}) || table.valid != time.Second {
		t.Errorf("links %q for %v, want gh1, whose jail runs, for 1s", table.links, table.valid)
	}
}

// On a host without nftables, no jail has a link, and the daemon starts.
func TestFencesWithoutFirewall(t *testing.T) {
	f, table := newFences(), &fakeTable{err: errors.New("no nftables")}
	if err := f.open(table, func() time.Duration { return time.Second }); !errors.Is(err, table.err) {
		t.Errorf("open = %v, want %v", err, table.err)
	}
	if err := f.fence("j-run"); err != nil {
		t.Errorf("fence of a jail without link = %v", err)
	}
	if err := f.started("j-run", "gh1"); !errors.Is(err, table.err) {
		t.Errorf("started with a link = %v, want %v", err, table.err)
	}
}

// An agent is not started in a jail that could not be fenced. The next attempt is not skipped.
func TestFailedFenceIsRepeated(t *testing.T) {
	f, table := newFences(), &fakeTable{}
	if err := errors.Join(f.started("j-run", "gh1"), f.open(table, func() time.Duration { return time.Second })); err != nil {
		t.Fatal(err)
	}
	table.err = errors.New("no permission")
	for range 2 {
		if err := f.fence("j-run"); !errors.Is(err, table.err) {
			t.Errorf("fence = %v, want %v", err, table.err)
		}
	}
	table.err = nil
	if err := f.fence("j-run"); err != nil || !slices.Equal(table.links, []string{"gh1"}) {
		t.Errorf("fence = %v with links %q, want gh1", err, table.links)
	}
}
