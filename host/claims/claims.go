// Package claims divides resources that must be unique on a host among its daemons: host user ids
// and transit addresses of jails.
//
// A daemon's claims are the record of its tree of cgroups (host/cgroup). All daemons that share
// the host's cgroups can read it, including daemons in containers. A record outlives a killed
// daemon, because its jails outlive it too, and ends when the host restarts. An address of the
// default transit range is the number of a jail's range of ids, so claims on ids also keep
// addresses apart.
package claims

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
)

const (
	op = "claims.Open"

	// Block is how many ids are claimed at a time: enough for 256 jails.
	Block = 256 * 65536

	firstBlock = 0x20000000 // ids below are for users, containers and systemd
	endBlock   = 1 << 31    // programs that store ids in an int cannot use those above
)

// A Range is Count host ids from First.
type Range struct {
	First uint32 `json:"first"`
	Count uint32 `json:"count"`
}

func (r Range) end() uint64 { return uint64(r.First) + uint64(r.Count) }

func (r Range) overlaps(o Range) bool {
	return uint64(r.First) < o.end() && uint64(o.First) < r.end()
}

// Config describes the daemon that claims.
type Config struct {
	Tree    *cgroup.Tree
	Name    string       // name of Tree; stored in the file "cgroup" of Data
	Data    string       // its data directory
	FirstID uint32       // first id to claim; 0 claims any free blocks
	Transit netip.Prefix // range of the transit addresses of its jails
}

// A claim is a record.
type claim struct {
	Data    string       `json:"data"`
	PID     int          `json:"pid"`
	Mounts  string       `json:"mounts"`  // its mount namespace, in which Data is
	Network string       `json:"network"` // its network namespace, in which Transit is
	Transit netip.Prefix `json:"transit"`
	IDs     []Range      `json:"ids"`
}

func (c claim) String() string { return fmt.Sprintf("the daemon on %s (pid %d)", c.Data, c.PID) }

// Claims are the claims of one daemon. They are safe for concurrent use.
type Claims struct {
	cfg  Config
	held *cgroup.Lock

	mu sync.Mutex
	// +checklocks:mu
	own claim // as recorded
}

// Open recovers the claims of an earlier daemon on the same data directory. It returns a
// fault.Conflict that names the other daemon if another daemon uses the same tree of cgroups or
// transit addresses in the same range.
func Open(ctx context.Context, cfg Config) (*Claims, error) {
	held, err := cfg.Tree.Lock(ctx)
	if errors.Is(err, fault.Conflict) {
		return nil, copied(cfg, err)
	}
	if err != nil {
		return nil, fmt.Errorf("lock the cgroups of the daemon: %w", err)
	}
	c := &Claims{cfg: cfg, held: held}
	if err := c.open(ctx); err != nil {
		return nil, errors.Join(err, c.held.Close())
	}
	return c, nil
}

// copied returns an error that names the daemon that holds the tree.
func copied(cfg Config, err error) error {
	var other claim
	if record, e := cfg.Tree.Record(); e == nil && json.Unmarshal(record, &other) == nil {
		return fault.New(fault.Conflict, op, cfg.Data, fmt.Errorf("%v holds the cgroup %s", other, cfg.Name))
	}
	return err
}

func (c *Claims) open(ctx context.Context) error {
	mounts, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return fmt.Errorf("identify the mount namespace: %w", err)
	}
	// Not /proc/self: it shows the main thread, which may be in a jail's network
	// namespace for a moment.
	network, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("identify the network namespace: %w", err)
	}
	return c.update(ctx, func(own *claim, others []neighbour) error {
		own.Data, own.PID, own.Mounts, own.Network, own.Transit = c.cfg.Data, os.Getpid(), mounts, network, c.cfg.Transit
		for _, o := range others {
			if o.Network != network || !collide(o.Transit, c.cfg.Transit) {
				continue
			}
			used, err := o.InUse()
			if err != nil {
				return fmt.Errorf("find out whether %v is alive: %w", o.claim, err)
			}
			if used {
				return &fault.Error{Op: op, On: c.cfg.Data, Kind: fault.Conflict,
					Err:    fmt.Errorf("network.transit %s overlaps %s of %v", c.cfg.Transit, o.Transit, o.claim),
					Remedy: "set network.transit to a range that no other daemon on this host uses, or remove it from both configurations"}
			}
		}
		if c.cfg.FirstID != 0 {
			_, err := c.next(&claim{}, others)
			return err
		}
		return nil
	})
}

// collide reports whether jails of two daemons could get the same transit address from the ranges
// a and b. Equal ranges do not collide if they have an address for each range of ids.
func collide(a, b netip.Prefix) bool {
	const enough = 16 // bits of the number of a range of ids
	return a.IsValid() && b.IsValid() && a.Overlaps(b) && (a.Masked() != b.Masked() || a.Bits() > 32-enough)
}

type neighbour struct {
	claim
	cgroup.Neighbour
}

// update replaces the record by the one that f changes. It first removes claims of daemons whose
// data directory no longer exists.
func (c *Claims) update(ctx context.Context, f func(own *claim, others []neighbour) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var next claim
	err := c.held.Update(ctx, func(record []byte, all []cgroup.Neighbour, drop func(string) error) ([]byte, error) {
		if record != nil {
			if err := json.Unmarshal(record, &next); err != nil {
				return nil, fmt.Errorf("read the claims of %s: %w", c.cfg.Name, err)
			}
		}
		mounts := next.Mounts
		var others []neighbour
		for _, n := range all {
			o := neighbour{Neighbour: n}
			if n.Record == nil || json.Unmarshal(n.Record, &o.claim) != nil {
				continue // a tree without claims, of an older daemon or a test
			}
			if !n.Held && o.Mounts == mounts && abandoned(o) {
				used, err := n.InUse()
				if err != nil {
					return nil, fmt.Errorf("find out whether %v is alive: %w", o.claim, err)
				}
				if !used {
					if err := drop(n.Name); err == nil || !errors.Is(err, fault.Conflict) {
						continue
					}
				}
			}
			others = append(others, o)
		}
		if err := f(&next, others); err != nil {
			return nil, err
		}
		encoded, err := json.Marshal(next)
		if err != nil {
			return nil, fmt.Errorf("encode the claims of %s: %w", c.cfg.Name, err)
		}
		return encoded, nil
	})
	if err == nil {
		c.own = next
	}
	return err
}

// abandoned reports whether the data directory of a claim no longer exists.
func abandoned(o neighbour) bool {
	name, err := os.ReadFile(filepath.Join(o.Data, "cgroup"))
	return errors.Is(err, os.ErrNotExist) || err == nil && strings.TrimSpace(string(name)) != o.Name
}

// Keep claims the blocks that contain the ranges of jails, and releases all others. It returns
// the claimed blocks, without those that another daemon has claimed meanwhile.
func (c *Claims) Keep(ctx context.Context, used []Range) (kept []Range, err error) {
	err = c.update(ctx, func(own *claim, others []neighbour) error {
		own.IDs = nil
		for _, u := range used {
			if block := c.blockOf(u); !slices.Contains(own.IDs, block) && owner(others, block) == nil {
				own.IDs = append(own.IDs, block)
			}
		}
		kept = slices.Clone(own.IDs)
		return nil
	})
	return kept, err
}

// blockOf returns the block that contains a range of ids.
func (c *Claims) blockOf(u Range) Range {
	base := uint32(firstBlock)
	if c.cfg.FirstID != 0 {
		base = c.cfg.FirstID
	}
	if u.First < base || u.end() > endBlock && c.cfg.FirstID == 0 {
		return u // claimed under another configuration
	}
	return cut(base + (u.First-base)/Block*Block)
}

// cut returns the block that starts at first. The last block is shorter.
func cut(first uint32) Range {
	return Range{first, uint32(min(Block, math.MaxUint32-uint64(first)))}
}

func owner(others []neighbour, r Range) *claim {
	for i, o := range others {
		if slices.ContainsFunc(o.IDs, r.overlaps) {
			return &others[i].claim
		}
	}
	return nil
}

// More claims another range of ids.
func (c *Claims) More(ctx context.Context) (r Range, err error) {
	err = c.update(ctx, func(own *claim, others []neighbour) error {
		if c.cfg.FirstID != 0 {
			r, err = c.next(own, others)
		} else {
			r, err = free(own, others)
		}
		own.IDs = append(own.IDs, r)
		return err
	})
	return r, err
}

// next returns the lowest block from the configured first id that the daemon has not claimed.
func (c *Claims) next(own *claim, others []neighbour) (Range, error) {
	for at := uint64(c.cfg.FirstID); at+Block <= math.MaxUint32; at += Block {
		r := cut(uint32(at))
		if slices.ContainsFunc(own.IDs, r.overlaps) {
			continue
		}
		if o := owner(others, r); o != nil {
			return r, &fault.Error{Op: "claims.More", On: c.cfg.Data, Kind: fault.Conflict,
				Err:    fmt.Errorf("host ids %d to %d (first_id is %d) are claimed by %v", r.First, r.end()-1, c.cfg.FirstID, *o),
				Remedy: "remove first_id from the configuration, so that the daemon takes free ids, or set it to another value"}
		}
		return r, nil
	}
	return Range{}, fault.Newf(fault.Exhausted, "claims.More", c.cfg.Data, "all host ids above first_id %d are claimed", c.cfg.FirstID)
}

// free returns the lowest block that no daemon has claimed.
func free(own *claim, others []neighbour) (Range, error) {
	for at := uint64(firstBlock); at < endBlock; at += Block {
		r := Range{uint32(at), Block}
		if !slices.ContainsFunc(own.IDs, r.overlaps) && owner(others, r) == nil {
			return r, nil
		}
	}
	return Range{}, fault.Newf(fault.Exhausted, "claims.More", own.Data, "daemons of this host have claimed all host ids from %d to %d", firstBlock, endBlock-1)
}

// Close releases the tree of cgroups. The claims stay if jails still use them.
func (c *Claims) Close() error {
	c.mu.Lock()
	used := len(c.own.IDs) > 0
	c.mu.Unlock()
	var err error
	if !used {
		err = c.cfg.Tree.Remove()
		if errors.Is(err, fault.Conflict) {
			err = nil // jails without a record remain; the next daemon removes them
		}
	}
	return errors.Join(err, c.held.Close())
}
