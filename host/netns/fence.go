package netns

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A Fence drops the packets from links of jails when it has not been renewed in time, even if the
// process that should renew it hangs or was killed. It is a table of nftables on the host, whose
// timeout the kernel measures.
type Fence struct{ table *nftables.Table }

// NewFence returns the fence of the given name. It has no side effects.
func NewFence(name string) Fence {
	return Fence{&nftables.Table{Family: nftables.TableFamilyINet, Name: tableName + "-" + name}}
}

// The sets of a fence.
const (
	fencedSet = "links"
	leaseSet  = "lease" // contains IPv4 until the timeout
)

// Renew replaces the fence: packets from the links pass for the duration and are then dropped.
// Other links are not affected. Without links, Renew removes the fence.
func (f Fence) Renew(links []string, d time.Duration) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("change nftables rules: %w", err)
	}
	if len(links) == 0 {
		if exists, err := f.exists(c); err != nil || !exists {
			return err
		}
	}
	c.AddTable(f.table) // so that the deletion does not fail
	c.DelTable(f.table)
	if len(links) > 0 {
		if err := f.addTo(c, links, d); err != nil {
			return err
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("set the rules of the fence: %w", err)
	}
	return nil
}

// addTo adds the commands that create the fence.
func (f Fence) addTo(c *nftables.Conn, links []string, d time.Duration) error {
	c.AddTable(f.table)
	fenced := &nftables.Set{Table: f.table, Name: fencedSet, KeyType: nftables.TypeIFName}
	elements := make([]nftables.SetElement, len(links))
	for i, name := range links {
		elements[i].Key = linkKey(name)
	}
	if err := c.AddSet(fenced, elements); err != nil {
		return fmt.Errorf("add the links of the fence: %w", err)
	}
	lease := &nftables.Set{Table: f.table, Name: leaseSet, KeyType: nftables.TypeNFProto, HasTimeout: true}
	var valid []nftables.SetElement
	// The kernel reads a timeout of 0 as none.
	if d >= time.Millisecond {
		valid = []nftables.SetElement{{Key: []byte{unix.NFPROTO_IPV4}, Timeout: d}}
	}
	if err := c.AddSet(lease, valid); err != nil {
		return fmt.Errorf("add the lease of the fence: %w", err)
	}
	// Before connection tracking, so that replies are dropped too.
	ch := c.AddChain(&nftables.Chain{Name: "prerouting", Table: f.table, Hooknum: nftables.ChainHookPrerouting,
		Type: nftables.ChainTypeFilter, Priority: nftables.ChainPriorityRaw})
	c.AddRule(&nftables.Rule{Table: f.table, Chain: ch, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Lookup{SourceRegister: 1, SetName: fenced.Name, SetID: fenced.ID},
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Lookup{SourceRegister: 1, SetName: lease.Name, SetID: lease.ID, Invert: true},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}})
	return nil
}

// Links returns the fenced links.
func (f Fence) Links() ([]string, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("read nftables rules: %w", err)
	}
	if exists, err := f.exists(c); err != nil || !exists {
		return nil, err
	}
	elements, err := c.GetSetElements(&nftables.Set{Table: f.table, Name: fencedSet, KeyType: nftables.TypeIFName})
	if err != nil {
		return nil, fmt.Errorf("read the links of the fence: %w", err)
	}
	var links []string
	for _, e := range elements {
		links = append(links, strings.TrimRight(string(e.Key), "\x00"))
	}
	return links, nil
}

func (f Fence) exists(c *nftables.Conn) (bool, error) {
	tables, err := c.ListTablesOfFamily(f.table.Family)
	if err != nil {
		return false, fmt.Errorf("list nftables tables: %w", err)
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == f.table.Name }), nil
}

// linkKey returns the name of a link as the kernel compares it.
func linkKey(name string) []byte {
	return append([]byte(name), bytes.Repeat([]byte{0}, unix.IFNAMSIZ-len(name))...)
}
