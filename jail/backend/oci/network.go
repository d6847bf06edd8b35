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

// netnsPath returns the path at which the jail's network namespace is bound.
func (b *Backend) netnsPath(p jail.Plan) string {
	return filepath.Join(b.cfg.NetnsDir, string(p.ID))
}

// wireOf returns the network link of a jail. wireAt returns the path after which resources of
// the link are named.
func wireOf(p jail.Plan) jail.Link {
	if p.Link != nil {
		return *p.Link
	}
	return jail.Link{Name: p.ID, IDs: p.IDs}
}

func (b *Backend) wireAt(p jail.Plan) string {
	return filepath.Join(b.cfg.NetnsDir, string(wireOf(p).Name))
}

// netOptions returns the options of the jail's network.
func (b *Backend) netOptions(p jail.Plan) netns.Options {
	return netns.Options{
		Path:  b.netnsPath(p),
		Reach: networkReach[p.Network],
		Group: b.groupPath(p),
		Index: b.address(p),
		Pool:  b.cfg.Transit,
		Await: p.LinkDetached,
		At:    b.wireAt(p),
	}
}

// makeNetwork creates the jail's network namespace. The id ranges of jails are disjoint, so
// the index of the range also selects the address.
func (m *builder) makeNetwork(ctx context.Context) error {
	b, p := m.backend, m.plan
	m.undo.Push("remove the network", func() error { return b.removeNetwork(p) })
	n, err := netns.Create(ctx, string(wireOf(p).Name), b.netOptions(p))
	if err != nil {
		return err
	}
	m.netns = n.Path
	return nil
}

// address returns the index of the jail's address in the pool.
func (b *Backend) address(p jail.Plan) int {
	ids := wireOf(p).IDs
	return int(ids.First/ids.Count) % addresses(b.cfg.Transit)
}

// networkReach maps the network modes of jails.
var networkReach = map[jail.Network]netns.Reach{
	jail.Isolated: netns.Alone,
	jail.Proxied:  netns.Gated,
	jail.Bridged:  netns.Grouped,
	jail.Full:     netns.Full,
}

// groupPath returns the path at which the network namespace of the jail's group is bound. The
// group name is untrusted, so the path contains its hash.
func (b *Backend) groupPath(p jail.Plan) string {
	if p.Network != jail.Bridged {
		return ""
	}
	sum := sha256.Sum256([]byte(p.Group))
	return filepath.Join(b.cfg.NetnsDir, "group-"+hex.EncodeToString(sum[:8]))
}

// addresses returns the number of jails that a pool has addresses for.
func addresses(pool netip.Prefix) int {
	if !pool.IsValid() {
		pool = netns.Pool
	}
	return max(1, 1<<(pool.Addr().BitLen()-pool.Bits())-2)
}

func (b *Backend) removeNetwork(p jail.Plan) error {
	if p.LinkDetached {
		return netns.CleanInner(b.netnsPath(p))
	}
	return errors.Join(netns.Clean(string(wireOf(p).Name), b.wireAt(p)), netns.CleanInner(b.netnsPath(p)))
}

// countTraffic sets the traffic counters of the jail's network link.
func (b *Backend) countTraffic(p jail.Plan, s *jail.Stats) (err error) {
	if p.Network == jail.Isolated {
		return nil // no network link
	}
	s.RxBytes, s.TxBytes, err = netns.Counters(string(wireOf(p).Name), b.wireAt(p))
	return err
}

// A probeResult caches the result of a probe: success or fault.Unsupported. Other errors are
// not cached, so the probe runs again.
type probeResult struct {
	mu sync.Mutex
	// +checklocks:mu
	known bool
	// +checklocks:mu
	err error
}

func (v *probeResult) of(probe func() error) error {
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
