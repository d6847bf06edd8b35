package base

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/netip"
	"path/filepath"

	"glasshouse/host/netns"
	"glasshouse/jail"
)

// Networks are the networks of the jails of a backend, which package netns makes.
type Networks struct {
	Dir  string       // directory of the namespaces; it is the same for all backends of a daemon
	Pool netip.Prefix // addresses of jails with full network; zero means netns.Pool
	Tap  bool         // the jails are virtual machines
}

// Path returns the path at which the jail's network namespace is bound.
func (n Networks) Path(p jail.Plan) string { return filepath.Join(n.Dir, string(p.ID)) }

// LinkOf returns the network link of a jail.
func LinkOf(p jail.Plan) jail.Link {
	if p.Link != nil {
		return *p.Link
	}
	return jail.Link{Name: p.ID, IDs: p.IDs}
}

// linkPath returns the path after which resources of the link are named.
func (n Networks) linkPath(p jail.Plan) string {
	return filepath.Join(n.Dir, string(LinkOf(p).Name))
}

// Options returns the options of the jail's network.
func (n Networks) Options(p jail.Plan) netns.Options {
	return netns.Options{
		Path:  n.Path(p),
		Reach: networkReach[p.Network],
		Group: n.groupPath(p),
		Tap:   n.Tap,
		Index: n.index(p),
		Pool:  n.Pool,
		Await: p.LinkDetached,
		At:    n.linkPath(p),
	}
}

// Create creates the jail's network namespace. The id ranges of jails are disjoint, so the index of
// the range also selects the address.
func (n Networks) Create(ctx context.Context, p jail.Plan) (*netns.Net, error) {
	return netns.Create(ctx, string(LinkOf(p).Name), n.Options(p))
}

// Remove removes the jail's network, even if it is incomplete.
func (n Networks) Remove(p jail.Plan) error {
	if p.LinkDetached {
		return netns.CleanInner(n.Path(p))
	}
	return errors.Join(netns.Clean(string(LinkOf(p).Name), n.linkPath(p)), netns.CleanInner(n.Path(p)))
}

// Describe sets the network's identifiers of a jail.
func (n Networks) Describe(p jail.Plan, s *jail.HostInfo) {
	switch p.Network {
	case jail.Full:
		s.Link = netns.Link(string(LinkOf(p).Name))
	case jail.Bridged:
		s.Address, _ = netns.Transit(n.Pool, n.index(p)) // the same value was valid at the creation
		s.EndpointNetns = netns.EndpointNetns(n.linkPath(p))
	case jail.Proxied:
		s.EndpointNetns = netns.EndpointNetns(n.linkPath(p))
	}
}

// CountTraffic sets the traffic counters of the jail's network link.
func (n Networks) CountTraffic(p jail.Plan, s *jail.Stats) (err error) {
	if p.Network == jail.Isolated {
		return nil // no network link
	}
	s.RxBytes, s.TxBytes, err = netns.Counters(string(LinkOf(p).Name), n.linkPath(p))
	return err
}

// Resolv returns the content of the jail's /etc/resolv.conf, or "".
func Resolv(p jail.Plan) string {
	switch p.Network {
	case jail.Full:
		return hostResolv()
	case jail.Proxied, jail.Bridged: // the daemon is the DNS server
		return "nameserver " + netns.Gateway.String() + "\n"
	}
	return ""
}

// index returns the index of the jail's address in the pool.
func (n Networks) index(p jail.Plan) int {
	ids := LinkOf(p).IDs
	return int(ids.First/ids.Count) % addresses(n.Pool)
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
func (n Networks) groupPath(p jail.Plan) string {
	if p.Network != jail.Bridged {
		return ""
	}
	sum := sha256.Sum256([]byte(p.Group))
	return filepath.Join(n.Dir, "group-"+hex.EncodeToString(sum[:8]))
}

// addresses returns the number of jails that a pool has addresses for.
func addresses(pool netip.Prefix) int {
	if !pool.IsValid() {
		pool = netns.Pool
	}
	return max(1, 1<<(pool.Addr().BitLen()-pool.Bits())-2)
}
