package netns_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"

	"glasshouse/host/netns"
)

func TestInterruptedListingIsRepeated(t *testing.T) {
	attempts := 0
	all, err := netns.Dump(func() (string, error) {
		attempts++
		if attempts < 4 {
			return "a part", netlink.ErrDumpInterrupted
		}
		return "all", nil
	})
	if all != "all" || err != nil || attempts != 4 {
		t.Errorf("Dump = %q, %v after %d attempts, want all after 4", all, err, attempts)
	}

	attempts = 0
	refused := errors.New("refused")
	if _, err := netns.Dump(func() (string, error) { attempts++; return "", refused }); err != refused || attempts != 1 {
		t.Errorf("Dump of a refused listing = %v after %d attempts, want the error after 1", err, attempts)
	}
	if _, err := netns.Dump(func() (string, error) { return "", netlink.ErrDumpInterrupted }); !errors.Is(err, netlink.ErrDumpInterrupted) {
		t.Errorf("Dump of a listing that is always interrupted = %v, want its error", err)
	}
}

// Links that appear during a listing must not make it fail: on a host with many jails there is
// always one that starts.
func TestListWhileLinksAppear(t *testing.T) {
	w := newWorld(t)
	var names []string
	add := func(name string) {
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}); err != nil {
			t.Errorf("add link %s: %v", name, err)
			return
		}
		names = append(names, name)
	}
	t.Cleanup(func() {
		for _, n := range names {
			w.must(netlink.LinkDel(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: n}}))
		}
	})
	for i := range 50 { // so many that the kernel answers in parts
		add(fmt.Sprintf("many%d", i))
	}

	interrupted := 0
	for round := range 10 {
		added := make(chan struct{})
		go func() {
			defer close(added)
			for i := range 5 {
				add(fmt.Sprintf("new%d.%d", round, i))
			}
		}()
		for done := false; !done; {
			select {
			case <-added:
				done = true
			default:
			}
			if _, err := netlink.LinkList(); errors.Is(err, netlink.ErrDumpInterrupted) {
				interrupted++
			}
			if got, err := netns.List(); err != nil || len(got) > 0 {
				t.Errorf("List = %v, %v, want no jail", got, err)
			}
			if _, err := netns.Addresses(); err != nil {
				t.Errorf("Addresses: %v", err)
			}
		}
	}
	t.Logf("the kernel interrupted %d listings that were not repeated", interrupted)
}
