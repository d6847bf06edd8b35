package govern

import (
	"sync"

	"glasshouse/id"
)

// carried are the bytes that proxies have carried, both ways, which are closed.
type carried struct {
	mu sync.Mutex
	// +checklocks:mu
	past map[id.Jail]int64
}

func (c *carried) add(j id.Jail, n int64) {
	if n == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.past == nil {
		c.past = map[id.Jail]int64{}
	}
	c.past[j] += n
}

// Carried returns the bytes that proxies have carried for a jail, both ways, since this
// kernel was made, of which it returns a name.
func (k *Kernel) Carried(j id.Jail) (n int64, kernel string) {
	k.carried.mu.Lock()
	n = k.carried.past[j]
	k.carried.mu.Unlock()
	if s, ok := k.Egress(j); ok {
		n += s.Sent + s.Received
	}
	return n, k.name
}

// Forget forgets what was carried for a jail that is no more.
func (k *Kernel) Forget(j id.Jail) {
	k.carried.mu.Lock()
	defer k.carried.mu.Unlock()
	delete(k.carried.past, j)
}
