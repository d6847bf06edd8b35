package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/netip"
	"path/filepath"
	"sync"

	"glasshouse/fault"
	"glasshouse/host/netns"
	"glasshouse/jail"
)

// netnsPath is where a jail's network namespace is bound, under its own name.
func (b *Backend) netnsPath(p jail.Plan) string {
	return filepath.Join(b.cfg.NetnsDir, string(p.ID))
}

// wireOf names the wire of a jail, and wireAt the path that what belongs to it is
// named by.
func wireOf(p jail.Plan) jail.Wire {
	if p.Wire != nil {
		return *p.Wire
	}
	return jail.Wire{Name: p.ID, IDs: p.IDs}
}

func (b *Backend) wireAt(p jail.Plan) string {
	return filepath.Join(b.cfg.NetnsDir, string(wireOf(p).Name))
}

// netOptions are what the jail's network is made with.
func (b *Backend) netOptions(p jail.Plan) netns.Options {
	return netns.Options{
		Path:  b.netnsPath(p),
		Reach: reaches[p.Network],
		Group: b.groupPath(p),
		Index: b.address(p),
		Pool:  b.cfg.Transit,
		Await: p.Unwired,
		At:    b.wireAt(p),
	}
}

// makeNetwork makes the jail's network namespace. Ranges of ids are disjoint, so
// the number of a jail's range is also the number of its address.
func (m *making) makeNetwork(ctx context.Context) error {
	b, p := m.backend, m.plan
	m.undo.Push("remove the network", func() error { return b.removeNetwork(p) })
	n, err := netns.Create(ctx, string(wireOf(p).Name), b.netOptions(p))
	if err != nil {
		return err
	}
	m.netns = n.Path
	return nil
}

// address is the number of the jail's address among those of the pool.
func (b *Backend) address(p jail.Plan) int {
	ids := wireOf(p).IDs
	return int(ids.First/ids.Count) % addresses(b.cfg.Transit)
}

// reaches are the networks that jails may have.
var reaches = map[jail.Network]netns.Reach{
	jail.Isolated: netns.Alone,
	jail.Proxied:  netns.Gated,
	jail.Bridged:  netns.Grouped,
	jail.Full:     netns.Full,
}

// groupPath is where the network of the jail's group is bound. Its name is a
// stranger's word.
func (b *Backend) groupPath(p jail.Plan) string {
	if p.Network != jail.Bridged {
		return ""
	}
	sum := sha256.Sum256([]byte(p.Group))
	return filepath.Join(b.cfg.NetnsDir, "group-"+hex.EncodeToString(sum[:8]))
}

// addresses is how many jails a pool has addresses for.
func addresses(pool netip.Prefix) int {
	if !pool.IsValid() {
		pool = netns.Pool
	}
	return max(1, 1<<(pool.Addr().BitLen()-pool.Bits())-2)
}

func (b *Backend) removeNetwork(p jail.Plan) error {
	if p.Unwired {
		return netns.CleanInner(b.netnsPath(p))
	}
	return errors.Join(netns.Clean(string(wireOf(p).Name), b.wireAt(p)), netns.CleanInner(b.netnsPath(p)))
}

// countTraffic fills in what went over the jail's wire.
func (b *Backend) countTraffic(p jail.Plan, s *jail.Stats) (err error) {
	if p.Network == jail.Isolated {
		return nil // there is no wire
	}
	s.RxBytes, s.TxBytes, err = netns.Counters(string(wireOf(p).Name), b.wireAt(p))
	return err
}

// A verdict is what a probe found, once it found something: that it works, or
// that this host cannot. What merely went wrong is tried again.
type verdict struct {
	mu sync.Mutex
	// +checklocks:mu
	known bool
	// +checklocks:mu
	err error
}

func (v *verdict) of(probe func() error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.known {
		return v.err
	}
	err := probe()
	if err == nil || errors.Is(err, fault.Unsupported) {
		v.known, v.err = true, err
	}
	return err
}
