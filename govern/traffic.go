package govern

import (
	"sync"

	"glasshouse/id"
)

// traffic counts the bytes of closed proxies, in both directions.
type traffic struct {
	mu sync.Mutex
	// +checklocks:mu
	closed map[id.Jail]int64
}

func (c *traffic) add(j id.Jail, n int64) {
	if n == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed == nil {
		c.closed = map[id.Jail]int64{}
	}
	c.closed[j] += n
}

// ProxyBytes returns the bytes that proxies transferred for a jail in both directions, and the id
// of this Engine. The count starts at zero with each Engine.
func (k *Engine) ProxyBytes(j id.Jail) (n int64, instance string) {
	k.traffic.mu.Lock()
	n = k.traffic.closed[j]
	k.traffic.mu.Unlock()
	if s, ok := k.Egress(j); ok {
		n += s.Sent + s.Received
	}
	return n, k.instance
}

// ForgetTraffic drops the byte count of a deleted jail.
func (k *Engine) ForgetTraffic(j id.Jail) {
	k.traffic.mu.Lock()
	defer k.traffic.mu.Unlock()
	delete(k.traffic.closed, j)
}
