package claims_test

import (
	"crypto/rand"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/host/claims"
)

var transit = netip.MustParsePrefix("100.64.0.0/16")

// directory returns the configuration of a daemon on a new data directory. The tree of cgroups is
// removed after the test.
func directory(t *testing.T) claims.Config {
	t.Helper()
	name := "glasshouse-test" + strings.ToLower(rand.Text()[:8])
	tree, err := cgroup.New(name)
	if errors.Is(err, fault.Unsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := claims.Config{Tree: tree, Name: name, Data: t.TempDir(), Transit: transit}
	if err := os.WriteFile(filepath.Join(c.Data, "cgroup"), []byte(name+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Remove(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func open(t *testing.T, cfg claims.Config) *claims.Claims {
	t.Helper()
	c, err := claims.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func more(t *testing.T, c *claims.Claims) claims.Range {
	t.Helper()
	r, err := c.More(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestDaemonsGetDisjointBlocksOfIDs(t *testing.T) {
	a, b := open(t, directory(t)), open(t, directory(t))
	seen := map[claims.Range]bool{}
	for _, c := range []*claims.Claims{a, b, a, b} {
		r := more(t, c)
		if seen[r] || r.First%claims.Block != 0 || r.Count != claims.Block {
			t.Errorf("got block %+v, want an unclaimed one: %v", r, seen)
		}
		seen[r] = true
	}
}

func TestClaimsOutliveDaemonWithJails(t *testing.T) {
	cfg := directory(t)
	first := open(t, cfg)
	mine := more(t, first)
	more(t, first) // without a jail, and therefore released
	jail := claims.Range{First: mine.First + 3*65536, Count: 65536}
	if _, err := first.Keep(t.Context(), []claims.Range{jail}); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil { // as the kernel does when the daemon is killed
		t.Fatal(err)
	}
	other := open(t, directory(t))
	if got := more(t, other); got == mine {
		t.Errorf("another daemon got %+v, which jails of a killed daemon use", got)
	}
	again := open(t, cfg)
	kept, err := again.Keep(t.Context(), []claims.Range{jail})
	if err != nil || len(kept) != 1 || kept[0] != mine {
		t.Errorf("the next daemon on the directory keeps %v, %v; want %v", kept, err, mine)
	}
}

func TestIDsOfAnotherDaemonAreNotKept(t *testing.T) {
	block := more(t, open(t, directory(t)))
	b := open(t, directory(t))
	kept, err := b.Keep(t.Context(), []claims.Range{{First: block.First, Count: 65536}})
	if err != nil || len(kept) != 0 {
		t.Errorf("kept %v, %v; want nothing: another daemon has %v", kept, err, block)
	}
}

func TestClaimsOfDeletedDirectoryAreRemoved(t *testing.T) {
	cfg := directory(t)
	gone := open(t, cfg)
	more(t, gone)
	gone.Close()
	if err := os.Remove(filepath.Join(cfg.Data, "cgroup")); err != nil {
		t.Fatal(err)
	}
	more(t, open(t, directory(t)))
	if record, err := cfg.Tree.Record(); record != nil || err != nil {
		t.Errorf("the claims of the deleted directory are %s, %v; want none", record, err)
	}
}

func TestCopiedDirectoryInUseIsRejected(t *testing.T) {
	cfg := directory(t)
	open(t, cfg)
	copied := cfg
	copied.Data = t.TempDir()
	_, err := claims.Open(t.Context(), copied)
	if !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), cfg.Data) {
		t.Errorf("open = %v, want a conflict that names %s", err, cfg.Data)
	}
}

func TestConflictingSettingsNameOtherDaemon(t *testing.T) {
	first := directory(t)
	first.FirstID, first.Transit = 0x90000000, netip.MustParsePrefix("100.127.0.0/16") // no other daemon uses this range
	a := open(t, first)
	block := more(t, a)
	if block.First != first.FirstID {
		t.Errorf("first block %+v, want one from %d", block, first.FirstID)
	}
	for name, change := range map[string]func(*claims.Config){
		"first_id":        func(c *claims.Config) { c.FirstID = first.FirstID + 65536 },
		"part of transit": func(c *claims.Config) { c.Transit = netip.MustParsePrefix("100.127.8.0/24") },
	} {
		cfg := directory(t)
		change(&cfg)
		_, err := claims.Open(t.Context(), cfg)
		if !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), first.Data) || fault.RemedyOf(err) == "" {
			t.Errorf("%s: open = %v (remedy %q), want a conflict that names %s, and a remedy", name, err, fault.RemedyOf(err), first.Data)
		}
	}
	free := directory(t)
	free.FirstID = first.FirstID + claims.Block
	if got := more(t, open(t, free)); got.First != free.FirstID {
		t.Errorf("got %+v, want a block from %d", got, free.FirstID)
	}
}
