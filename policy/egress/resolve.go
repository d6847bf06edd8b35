package egress

import (
	"container/list"
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// A Resolver resolves host names. *net.Resolver implements it.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

const (
	ttl      = 30 * time.Second // lifetime of DNS answers, in the cache and in the jail
	maxNames = 4096             // size of a cache; the least recently used entries are evicted first
)

// names caches the addresses of hosts, and the hosts for which the jail received each address.
// The zero value is ready for use.
type names struct {
	mu sync.Mutex
	// +checklocks:mu
	found cache[string, answer]
	// +checklocks:mu
	given cache[netip.Addr, []string]
	// +checklocks:mu
	placeholders cache[string, netip.Addr] // placeholder addresses
	// +checklocks:mu
	next uint32 // number of the next placeholder
}

type answer struct {
	addrs []netip.Addr
	until time.Time
}

// resolve returns the addresses of a host, IPv4 addresses first. If host is an address,
// resolve returns it.
func (p *Proxy) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	_, addr, err := parseHost(host)
	if err != nil {
		return nil, err
	}
	if addr.IsValid() {
		return []netip.Addr{addr}, nil
	}
	if a, ok := p.known.lookup(host); ok {
		return a, nil
	}
	done := p.lookups.DoChan(host, func() (any, error) {
		// Concurrent callers share the lookup, so it must not end with the context of one of them.
		ctx, stop := context.WithTimeout(p.ctx, p.times.dial)
		defer stop()
		addrs, err := p.conf.Resolver.LookupNetIP(ctx, "ip", host+".") // fully qualified: the resolver does not try search domains
		if err != nil {
			return nil, err
		}
		for i := range addrs {
			addrs[i] = addrs[i].Unmap()
		}
		slices.SortStableFunc(addrs, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
		p.known.learn(host, addrs)
		return addrs, nil
	})
	select {
	case r := <-done:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.([]netip.Addr), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// prefer moves a to the front of addrs, if addrs contains it.
func prefer(addrs []netip.Addr, a netip.Addr) []netip.Addr {
	i := slices.Index(addrs, a)
	if i <= 0 {
		return addrs
	}
	return slices.Concat([]netip.Addr{a}, addrs[:i], addrs[i+1:])
}

func (n *names) lookup(host string) ([]netip.Addr, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	a, ok := n.found.get(host)
	return a.addrs, ok && time.Now().Before(a.until)
}

func (n *names) learn(host string, addrs []netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.found.put(host, answer{addrs, time.Now().Add(ttl)})
}

// give remembers that a DNS response to the jail contained the address of the host.
func (n *names) give(a netip.Addr, host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	hosts, _ := n.given.get(a)
	if !slices.Contains(hosts, host) {
		hosts = append(slices.Clip(hosts), host)
		hosts = hosts[max(0, len(hosts)-16):]
	}
	n.given.put(a, hosts)
}

// of returns the hosts for which DNS responses to the jail contained the address.
func (n *names) of(a netip.Addr) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	hosts, _ := n.given.get(a)
	return hosts
}

// placeholders is the range of the addresses that DNS responses contain for hosts that are not
// resolved yet because the Authority has to allow them first. The destination address of a
// connection then identifies the host. The addresses are not routed.
var placeholders = netip.MustParsePrefix("198.18.0.0/15")

// placeholder returns the placeholder address of a host.
func (n *names) placeholder(host string) netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a, ok := n.placeholders.get(host); ok {
		return a
	}
	b := placeholders.Addr().As4()
	// A /15 has 2^17 addresses. The first and the last one are not used.
	n.next = n.next%(1<<17-2) + 1
	b[1] += byte(n.next >> 16)
	b[2], b[3] = byte(n.next>>8), byte(n.next)
	a := netip.AddrFrom4(b)
	n.placeholders.put(host, a)
	n.given.put(a, []string{host})
	return a
}

// A cache holds the maxNames most recently used values. The zero value is ready for use.
type cache[K comparable, V any] struct {
	at    map[K]*list.Element
	order list.List // elements are *kept[K, V], most recently used first
}

type kept[K comparable, V any] struct {
	key   K
	value V
}

func (c *cache[K, V]) get(k K) (v V, ok bool) {
	e := c.at[k]
	if e == nil {
		return v, false
	}
	c.order.MoveToFront(e)
	return e.Value.(*kept[K, V]).value, true
}

func (c *cache[K, V]) put(k K, v V) {
	if e := c.at[k]; e != nil {
		e.Value.(*kept[K, V]).value = v
		c.order.MoveToFront(e)
		return
	}
	if c.at == nil {
		c.at = map[K]*list.Element{}
	}
	c.at[k] = c.order.PushFront(&kept[K, V]{k, v})
	if len(c.at) > maxNames {
		e := c.order.Back()
		delete(c.at, e.Value.(*kept[K, V]).key)
		c.order.Remove(e)
	}
}
