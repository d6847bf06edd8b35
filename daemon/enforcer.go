package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path"
	"time"

	"glasshouse/agents/gateway"
	"glasshouse/govern"
	"glasshouse/host/netns"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/init/protocol"
	"glasshouse/policy"
	"glasshouse/policy/chain"
	"glasshouse/policy/egress"

	"golang.org/x/sys/unix"
)

// jailEnforcer adapts the policy engine and the group names to the jail manager.
type jailEnforcer struct {
	kernel *govern.Engine
	groups *groups
	fences *fences
}

func (w jailEnforcer) Check(ctx context.Context, s jail.Spec) (json.RawMessage, error) {
	return w.kernel.Check(s.Policy, s.Network == jail.Proxied, s.Enforce)
}

func (w jailEnforcer) Env(j jail.Jail) map[string]string {
	env := gateway.Env(j)
	if j.Spec.Network == jail.Proxied {
		maps.Copy(env, govern.Env(j.Spec.Policy))
	}
	return env
}

func (w jailEnforcer) Apply(ctx context.Context, j jail.Jail, s jail.HostInfo) error {
	if j.Spec.Network == jail.Bridged {
		if err := w.groups.join(s.EndpointNetns, j.ID, j.Spec.Name, s.Address); err != nil {
			return err
		}
	}
	if err := w.fences.started(j.ID, s.Link); err != nil {
		return err
	}
	g := govern.Guard{Spec: j.Spec.Policy, Workspace: j.Spec.Project(), Init: s.PID, Cgroup: s.Cgroup, Adopted: s.Reattached, Rewound: s.Rewound}
	if j.Spec.Enforce {
		g.Listener = s.Listener
	}
	if j.Spec.Network == jail.Proxied {
		g.Endpoint = s.EndpointNetns
		g.Open = func() (*govern.Endpoint, error) { return openEndpoint(s.EndpointNetns) }
		g.InstallCA = func(ctx context.Context, ca *egress.CA) error { return trust(ctx, s, ca) }
		g.Trusted, g.TrustedUntilAwoke = s.Restored, s.Restored && j.State == jail.Spare // a restored jail's files already contain the authority
	}
	return w.kernel.Guard(ctx, j.ID, g)
}

func (w jailEnforcer) SpecChanged(ctx context.Context, j jail.Jail) error {
	if j.Spec.Network == jail.Bridged {
		w.groups.rename(j.ID, j.Spec.Name)
	}
	return w.kernel.SetSpec(ctx, j.ID, j.Spec.Policy, j.Spec.Project())
}

func (w jailEnforcer) Resumed(ctx context.Context, j jail.Jail, same bool) error {
	return w.kernel.AfterRestore(ctx, j.ID, same)
}

func (w jailEnforcer) Release(jid id.Jail) {
	w.groups.leave(jid)
	w.fences.ended(jid)
	w.kernel.Release(jid)
}

// trust adds a certificate authority to all trust stores that programs in the jail may use.
func trust(ctx context.Context, s jail.HostInfo, ca *egress.CA) error {
	root, err := os.OpenRoot(fmt.Sprintf("/proc/%d/root", s.PID))
	if err != nil {
		return fmt.Errorf("open the root of the jail: %w", err)
	}
	defer root.Close()
	host, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read the certificates of the host: %w", err)
	}
	files, err := ca.TrustFiles(root.FS(), host)
	if err != nil {
		return fmt.Errorf("list the trust stores of the jail: %w", err)
	}
	for _, f := range files {
		if err := s.Control.Mkdir(ctx, path.Dir(f.Path), 0o755, true); err != nil {
			return fmt.Errorf("create the directory of trust store %s: %w", f.Path, err)
		}
		if _, err := s.Control.Write(ctx, f.Path, bytes.NewReader(f.Data), protocol.WriteOptions{Mode: 0o644}); err != nil {
			return fmt.Errorf("write trust store %s: %w", f.Path, err)
		}
	}
	return nil
}

// moves maps jail states to audit log entries.
var moves = map[jail.State]chain.Kind{
	jail.Created: chain.JailCreated, jail.Running: chain.JailStarted, jail.Paused: chain.JailPaused,
	jail.Stopped: chain.JailStopped, jail.Failed: chain.JailFailed, jail.Deleting: chain.JailDeleted,
}

// StateChanged implements jail.Enforcer. Spares have no owner, so their creation and removal are not
// recorded.
func (w jailEnforcer) StateChanged(j jail.Jail, from jail.State) {
	switch j.State {
	case jail.Stopped, jail.Failed:
		w.fences.stopped(j.ID)
	case jail.Deleting:
		w.fences.stopped(j.ID)
		w.kernel.ForgetTraffic(j.ID)
	}
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

// created returns the body of the audit log entry of a new jail.
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
	}{j.Spec.Name, j.Spec.Backend, j.Spec.Runtime, j.Digest, j.Spec.Network, j.Spec.Group, j.Origin, govern.Digest(j.Spec.Policy)}
}

// forkTime is how long a child process may hold duplicates of this process's sockets between
// fork and execve.
const forkTime = 5 * time.Second

// again retries f while the address is in use. Only this daemon listens in the jail's network
// namespace, so the conflicting socket is a closed one that a starting child process still
// holds.
func again(f func() error) (err error) {
	for end := time.Now().Add(forkTime); ; time.Sleep(2 * time.Millisecond) {
		if err = f(); !errors.Is(err, unix.EADDRINUSE) || time.Now().After(end) {
			return err
		}
	}
}

// openEndpoint opens the listeners of a jail at the host end of its veth pair.
func openEndpoint(endpointNS string) (_ *govern.Endpoint, err error) {
	g := &govern.Endpoint{}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Close())
		}
	}()
	at := func(port int) string { return fmt.Sprint(netns.Gateway, ":", port) }
	err = netns.Do(endpointNS, func() error {
		for _, l := range []struct {
			to   *net.Listener
			port int
		}{{&g.All, netns.AllPort}, {&g.HTTP, netns.ProxyPort}, {&g.NamesTCP, netns.NamePort}} {
			if err := again(func() (err error) {
				*l.to, err = net.Listen("tcp4", at(l.port))
				return err
			}); err != nil {
				return err
			}
		}
		return again(func() (err error) {
			g.Names, err = net.ListenPacket("udp4", at(netns.NamePort))
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("listen for the jail: %w", err)
	}
	watch, err := netns.WatchRefused(endpointNS)
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
