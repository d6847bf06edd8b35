package guest

import (
	"context"
	"errors"

	"glasshouse/host/netns"
	"glasshouse/jail/guest/wire"
)

// networkPath is the path at which the jail's network namespace is bound. As on a host, the namespace
// does not belong to the jail, so root in the jail has no capabilities over it.
const networkPath = "/run/network"

// makeNetwork creates the jail's network namespace, and connects it if the jail has a network.
func makeNetwork(ctx context.Context, n wire.Network) error {
	if _, err := netns.Create(ctx, "jail", netns.Options{Path: networkPath}); err != nil {
		return err
	}
	if err := netns.MountSysfs(networkPath, rootDir+"/sys"); err != nil {
		return err
	}
	return connectNetwork(n)
}

func connectNetwork(n wire.Network) error {
	if !n.Connected {
		return netns.DisconnectGuest(networkPath)
	}
	return netns.ConnectGuest(networkPath, n.Address)
}

// reconnect prepares the jail of a restored machine for its new network.
func (a *agent) reconnect(_ context.Context, n wire.Network) (none, error) {
	if _, err := a.running(); err != nil {
		return none{}, err
	}
	return none{}, errors.Join(netns.CloseExternalConns(networkPath), connectNetwork(n))
}
