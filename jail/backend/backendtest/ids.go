package backendtest

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/host/claims"
	"glasshouse/jail"
)

const idsPerJail = 65536

var nextID atomic.Uint32

// FirstID returns the first host id of a block for 256 jails that no daemon and no other test
// process on this host uses. The block belongs to this process until it ends.
func FirstID(t testing.TB) uint32 {
	t.Helper()
	block, err := claimed()
	if errors.Is(err, fault.Unsupported) {
		return 0x60000000 // without cgroups, no other jails exist on the host
	}
	if err != nil {
		t.Fatal(err)
	}
	return block.First
}

// NextIDs returns a range of host ids of this process for a jail. After 256 ranges it starts
// again with the first.
func NextIDs(t testing.TB) jail.IDRange {
	t.Helper()
	n := nextID.Add(1) % (claims.Block / idsPerJail)
	return jail.IDRange{First: FirstID(t) + n*idsPerJail, Count: idsPerJail}
}

// claimed claims a block as a daemon does. The cgroup with the claim and the placeholder of the
// data directory are removed when this process ends.
var claimed = sync.OnceValues(func() (claims.Range, error) {
	name := "glasshouse-test" + strings.ToLower(rand.Text()[:12])
	tree, err := cgroup.New(name)
	if err != nil {
		return claims.Range{}, err
	}
	dir, err := makeDir(func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "cgroup"), []byte(name+"\n"), 0o600)
	})
	if err != nil {
		return claims.Range{}, err
	}
	if err := atEnd(`rmdir /sys/fs/cgroup/"$1" /sys/fs/cgroup/*/"$1" 2>/dev/null`, name); err != nil {
		return claims.Range{}, err
	}
	ctx := context.Background()
	c, err := claims.Open(ctx, claims.Config{Tree: tree, Name: name, Data: dir})
	if err != nil {
		return claims.Range{}, err
	}
	return c.More(ctx)
})
