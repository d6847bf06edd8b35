package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"

	"glasshouse/chain"
	"glasshouse/govern"
	"glasshouse/host/netns"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/policy"
)

// warden is the kernel and the groups' names as the jails want them.
type warden struct {
	kernel *govern.Kernel
	groups *groups
}

func (w warden) Check(ctx context.Context, s jail.Spec) (json.RawMessage, error) {
	return w.kernel.Check(s.Govern, s.Network == jail.Proxied, s.Enforce)
}

func (w warden) Guard(ctx context.Context, j jail.Jail, s jail.Sight) error {
	if j.Spec.Network == jail.Bridged {
		if err := w.groups.join(s.Door, j.ID, j.Spec.Name, s.Address); err != nil {
			return err
		}
	}
	g := govern.Guard{Spec: j.Spec.Govern, Workspace: workspaceOf(j), Init: s.PID, Again: s.Again}
	if j.Spec.Enforce {
		g.Listener = s.Listener
	}
	if j.Spec.Network == jail.Proxied {
		g.Door = s.Door
		g.Open = func() (*govern.Door, error) { return openDoor(s.Door) }
	}
	return w.kernel.Guard(ctx, j.ID, g)
}

func (w warden) Adapt(ctx context.Context, j jail.Jail) error {
	if j.Spec.Network == jail.Bridged {
		w.groups.rename(j.ID, j.Spec.Name)
	}
	return w.kernel.Adapt(ctx, j.ID, j.Spec.Govern, workspaceOf(j))
}

func (w warden) Release(jid id.Jail) {
	w.groups.leave(jid)
	w.kernel.Release(jid)
}

// workspaceOf is the directory that relative paths in a jail are in.
func workspaceOf(j jail.Jail) string {
	if j.Spec.Workspace != nil {
		return j.Spec.Workspace.At()
	}
	return j.Spec.Cwd
}

// moves are the entries of the chain that changes of a jail's state are.
var moves = map[jail.State]chain.Kind{
	jail.Created: chain.JailCreated, jail.Running: chain.JailStarted, jail.Paused: chain.JailPaused,
	jail.Stopped: chain.JailStopped, jail.Failed: chain.JailFailed, jail.Deleting: chain.JailDeleted,
}

// Moved implements jail.Warden. Spares are nobody's, and nothing has happened to
// anybody when one is made or thrown away.
func (w warden) Moved(j jail.Jail, from jail.State) {
	kind, ok := moves[j.State]
	if !ok || from == jail.Spare && j.State == jail.Deleting || from == jail.Creating && j.State == jail.Deleting {
		return
	}
	who := policy.Subject{Jail: j.ID}
	if j.State == jail.Running && from == jail.Spare {
		w.kernel.Note(chain.JailCreated, who, 0, created(j))
	}
	switch {
	case kind == chain.JailCreated:
		w.kernel.Note(kind, who, 0, created(j))
	case kind == chain.JailStarted && from == jail.Paused:
		w.kernel.Note(chain.JailResumed, who, 0, struct{}{})
	case j.Reason != "":
		w.kernel.Note(kind, who, 0, map[string]string{"reason": j.Reason})
	default:
		w.kernel.Note(kind, who, 0, struct{}{})
	}
}

// created is what the chain says of a new jail.
func created(j jail.Jail) any {
	return struct {
		Name    string       `json:"name,omitempty"`
		Backend string       `json:"backend"`
		Runtime string       `json:"runtime,omitempty"`
		Digest  string       `json:"digest,omitempty"`
		Network jail.Network `json:"network"`
		Group   string       `json:"network_group,omitempty"`
		Origin  *jail.Origin `json:"origin,omitempty"`
		Govern  string       `json:"govern,omitempty"` // digest
	}{j.Spec.Name, j.Spec.Backend, j.Spec.Runtime, j.Digest, j.Spec.Network, j.Spec.Group, j.Origin, govern.Digest(j.Spec.Govern)}
}

// openDoor listens for a jail in the gate at the other end of its wire.
func openDoor(door string) (_ *govern.Door, err error) {
	g := &govern.Door{}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Close())
		}
	}()
	at := func(port int) string { return fmt.Sprint(netns.Gateway, ":", port) }
	err = netns.Do(door, func() error {
		for _, l := range []struct {
			to   *net.Listener
			port int
		}{{&g.All, netns.AllPort}, {&g.HTTP, netns.ProxyPort}, {&g.NamesTCP, netns.NamePort}} {
			opened, err := net.Listen("tcp4", at(l.port))
			if err != nil {
				return err
			}
			*l.to = opened
		}
		g.Names, err = net.ListenPacket("udp4", at(netns.NamePort))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen for the jail: %w", err)
	}
	watch, err := netns.WatchRefused(door)
	if err != nil {
		return nil, err
	}
	g.Refused = func() (govern.Refused, error) {
		p, err := watch.Next()
		return govern.Refused{Proto: p.Proto, Dst: p.Dst}, err
	}
	g.Unwatch = watch.Close
	return g, nil
}
