package microvm

import (
	"context"

	"glasshouse/host/netns"
	"glasshouse/jail"
	"glasshouse/jail/guest/wire"
)

// deviceList is the number of the list of devices of machines. Increase it with each change: a
// template and a snapshot can be restored only in a machine with the same devices.
const deviceList = 2

// network returns what the guest must know about the network of its jail.
func (b *Backend) network(p jail.Plan) wire.Network {
	var s jail.HostInfo
	b.networks.Describe(p, &s)
	return wire.Network{Connected: p.Network != jail.Isolated, Address: s.Address}
}

// connect connects a machine that was restored from a snapshot, unless it is connected. Before, the
// guest closes the connections of the snapshot, which may be those of another jail by now, and adapts
// the network of its jail, which can have another mode than in the snapshot.
func (i *instance) connect(ctx context.Context) error {
	path := i.backend.networks.Path(i.plan)
	if raised, err := netns.TapRaised(path); err != nil || raised {
		return err
	}
	var none struct{}
	if err := i.guest.call(ctx, wire.NetworkPath, i.backend.network(i.plan), &none); err != nil || i.plan.Network == jail.Isolated {
		return err
	}
	return netns.RaiseTap(path)
}
