package probe

import (
	"context"
	"errors"
	"fmt"
	"strings"

	nft "github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"glasshouse/host/netns"
	"glasshouse/internal/thread"
)

// nftables creates the type of rule that gives jails network access, in a network namespace that
// ends with the thread.
func nftables(context.Context, Host) (string, error) {
	const remedy = "load the kernel modules nf_tables, nft_chain_nat and nft_masq; without them only isolated jails work"
	err := thread.Alone(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		c, err := nft.New()
		if err != nil {
			return fmt.Errorf("connect to nftables: %w", err)
		}
		table := c.AddTable(&nft.Table{Family: nft.TableFamilyIPv4, Name: "glasshouse_probe"})
		chain := c.AddChain(&nft.Chain{
			Name: "out", Table: table, Type: nft.ChainTypeNAT,
			Hooknum: nft.ChainHookPostrouting, Priority: nft.ChainPriorityNATSource,
		})
		c.AddRule(&nft.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Masq{}}})
		return c.Flush()
	})
	if errors.Is(err, unix.ENOENT) { // the kernel's error for a missing module
		return "", cannot("this kernel has no nftables with address translation", remedy)
	}
	if err != nil {
		return "", refused("nftables", err, remedy)
	}
	detail := "with address translation"
	// Ordinary users cannot list the rules. This does not mean that nothing works.
	if found, err := netns.Obstacles(); err == nil && len(found) > 0 {
		detail += "; for jails with full network, change the firewall's " + strings.Join(found, ", ") + " to accept links of group 26472"
	}
	return detail, nil
}
