package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

const tableName = "glasshouse"

// edition is the version of the rules. It is in the comment of the last rule, after
// editionPrefix. Increase it with each change of the rules. Daemons of several versions share
// the table, so the rules of an edition must also work for networks of earlier editions.
const (
	edition       = 1
	editionPrefix = "glasshouse "
)

// ensureRules installs the host's rules unless they exist in this edition or a later one. It
// replaces them atomically.
func ensureRules() error {
	if rulesAreCurrent() {
		return nil
	}
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("change nftables rules: %w", err)
	}
	t := hostTable()
	c.AddTable(t) // so that the deletion does not fail
	c.DelTable(t)
	c.AddTable(t)

	accept := nftables.ChainPolicyAccept
	chain := func(name string, hook *nftables.ChainHook, kind nftables.ChainType, prio *nftables.ChainPriority) *nftables.Chain {
		return c.AddChain(&nftables.Chain{Name: name, Table: t, Hooknum: hook, Type: kind, Priority: prio, Policy: &accept})
	}
	rule := func(ch *nftables.Chain, parts ...[]expr.Any) {
		c.AddRule(&nftables.Rule{Table: t, Chain: ch, Exprs: join(parts...)})
	}

	// Jails may not connect to the host itself.
	input := chain("input", nftables.ChainHookInput, nftables.ChainTypeFilter, nftables.ChainPriorityFilter)
	rule(input, from(expr.CmpOpEq), refuse())

	// Jails may not connect to other jails or to link-local addresses, and nothing may connect
	// to a jail.
	fwd := chain("forward", nftables.ChainHookForward, nftables.ChainTypeFilter, nftables.ChainPriorityFilter)
	rule(fwd, from(expr.CmpOpEq), to(expr.CmpOpEq), refuse())
	rule(fwd, from(expr.CmpOpEq), linkLocal(), refuse())
	rule(fwd, from(expr.CmpOpEq), verdict(expr.VerdictAccept))
	rule(fwd, to(expr.CmpOpEq), established(), verdict(expr.VerdictAccept))
	rule(fwd, to(expr.CmpOpEq), verdict(expr.VerdictDrop))

	// Packets that leave the host get the host's address as source.
	post := chain("postrouting", nftables.ChainHookPostrouting, nftables.ChainTypeNAT, nftables.ChainPriorityNATSource)
	c.AddRule(&nftables.Rule{Table: t, Chain: post,
		Exprs:    join(from(expr.CmpOpEq), to(expr.CmpOpNeq), []expr.Any{&expr.Masq{}}),
		UserData: userdata.AppendString(nil, userdata.TypeComment, editionPrefix+strconv.Itoa(edition))})

	if err := c.Flush(); err != nil {
		return fmt.Errorf("set the host's rules: %w", err)
	}
	return nil
}

func hostTable() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: tableName}
}

// rulesAreCurrent reports whether the host's rules exist in this edition or a later one. If an
// older daemon replaced newer rules, both daemons would replace each other's rules repeatedly,
// and new connections could miss their translation.
func rulesAreCurrent() bool {
	c, err := nftables.New()
	if err != nil {
		return false
	}
	t := hostTable()
	rules, err := c.GetRules(t, &nftables.Chain{Name: "postrouting", Table: t})
	if err != nil || len(rules) != 1 {
		return false
	}
	comment, _ := userdata.GetString(rules[0].UserData, userdata.TypeComment)
	number, ok := strings.CutPrefix(comment, editionPrefix)
	if !ok {
		return false
	}
	n, err := strconv.Atoi(number)
	return err == nil && n >= edition
}

// EnsureRules reinstalls the host's rules if networks need them and they were removed, for
// example by a reload of the host's firewall. Until then only that firewall separates jails and
// host, so the daemon calls EnsureRules periodically.
func EnsureRules() error {
	names, err := List()
	if err != nil || len(names) == 0 {
		return err
	}
	unlock, err := lockRules()
	if err != nil {
		return err
	}
	unlock()
	return nil
}

// Obstacles returns the chains of other firewalls on this host that drop forwarded packets by
// default, as "family table chain". Whether they accept packets of jails is unknown. If they
// do not, the remedy is to accept packets from and to links of group 26472.
func Obstacles() ([]string, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("change nftables rules: %w", err)
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	var found []string
	for _, ch := range chains {
		if ch.Hooknum == nil || *ch.Hooknum != *nftables.ChainHookForward || ch.Policy == nil || *ch.Policy != nftables.ChainPolicyDrop {
			continue
		}
		families := map[nftables.TableFamily]string{nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip"}
		if f, ok := families[ch.Table.Family]; ok {
			found = append(found, f+" "+ch.Table.Name+" "+ch.Name)
		}
	}
	return found, nil
}

// Release removes the host's rules if no network with a link remains. IP forwarding stays
// enabled, because other programs may rely on it.
func Release() error {
	unlock, err := lock(unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer unlock()
	names, err := List()
	if err != nil || len(names) > 0 {
		return err
	}
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("change nftables rules: %w", err)
	}
	c.DelTable(hostTable())
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove the host's rules: %w", err)
	}
	return nil
}

// translate sets the source address of packets that leave the namespace of this thread to
// transit.
func translate(transit netip.Addr) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("change nftables rules: %w", err)
	}
	t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: tableName})
	post := c.AddChain(&nftables.Chain{Name: "postrouting", Table: t, Hooknum: nftables.ChainHookPostrouting,
		Type: nftables.ChainTypeNAT, Priority: nftables.ChainPriorityNATSource})
	c.AddRule(&nftables.Rule{Table: t, Chain: post, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: linkKey(inside)},
		&expr.Immediate{Register: 1, Data: transit.AsSlice()},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1},
	}})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("set the jail's rules: %w", err)
	}
	return nil
}

// accept redirects packets to transit to the jail's own address, so that a server can listen
// on either.
func accept(transit netip.Addr) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("change nftables rules: %w", err)
	}
	t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: tableName})
	pre := c.AddChain(&nftables.Chain{Name: "prerouting", Table: t, Hooknum: nftables.ChainHookPrerouting,
		Type: nftables.ChainTypeNAT, Priority: nftables.ChainPriorityNATDest})
	c.AddRule(&nftables.Rule{Table: t, Chain: pre, Exprs: []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: transit.AsSlice()},
		&expr.Immediate{Register: 1, Data: jailAddr.AsSlice()},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1},
	}})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("set the jail's rules: %w", err)
	}
	return nil
}

// The parts of a rule, in reading order.

// from matches packets that come, or with CmpOpNeq do not come, from a jail.
func from(op expr.CmpOp) []expr.Any { return wire(expr.MetaKeyIIFGROUP, op) }

// to matches packets that go, or do not go, to a jail.
func to(op expr.CmpOp) []expr.Any { return wire(expr.MetaKeyOIFGROUP, op) }

func wire(key expr.MetaKey, op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: op, Register: 1, Data: binaryutil.NativeEndian.PutUint32(group)},
	}
}

// linkLocal matches packets to 169.254.0.0/16.
func linkLocal() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.NFPROTO_IPV4}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{169, 254}},
	}
}

// established matches packets of a connection that a jail opened.
func established() []expr.Any { return states(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED) }

// states matches packets in one of several states of connection tracking.
func states(bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(bits),
			Xor:  binaryutil.NativeEndian.PutUint32(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)},
	}
}

// refuse rejects packets with an ICMP error, so that a jail need not wait for a timeout.
func refuse() []expr.Any {
	return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}}
}

func verdict(k expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: k}} }

func join(parts ...[]expr.Any) (all []expr.Any) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}
