package govern

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/atomicfile"
	"glasshouse/internal/notify"
	"glasshouse/internal/redact"
	"glasshouse/policy"
	"glasshouse/policy/chain"
	"glasshouse/policy/egress"
)

// Secrets provides secrets for egress requests and capabilities.
type Secrets interface {
	// Inject returns the value of a secret for a jail's requests to a host. The caller owns
	// the bytes.
	Inject(ctx context.Context, jid id.Jail, name, host string) ([]byte, error)

	// InjectOwned returns the value of a secret that belongs to one owner, for a header that
	// the owner has set in a jail's requests to a host.
	InjectOwned(ctx context.Context, jid id.Jail, owner, name, host string) ([]byte, error)

	// Missing returns the secrets in names that do not exist or are not granted to the
	// capability.
	Missing(capability string, names []string) []string

	// Mask returns a mask for the values of the secrets that a subject has or had by grants,
	// and of the named secrets. It returns nil if there are none.
	Mask(ctx context.Context, who policy.Subject, names []string) *redact.Mask
}

// An Endpoint is the proxy endpoint of one jail: listeners that only this jail can reach.
type Endpoint struct {
	All, HTTP, NamesTCP net.Listener
	Names               net.PacketConn

	Refused func() (Refused, error) // blocks until the next packet that no listener accepts
	Unwatch func() error            // makes Refused return
}

// Refused is a packet from a jail that the packet filter of the Linux kernel dropped.
type Refused struct {
	Proto uint8
	Dst   netip.AddrPort
}

// Close closes all listeners.
func (d *Endpoint) Close() error {
	var errs []error
	for _, c := range []interface{ Close() error }{d.All, d.HTTP, d.NamesTCP, d.Names} {
		if c != nil {
			errs = append(errs, ignoreClosed(c.Close()))
		}
	}
	if d.Unwatch != nil {
		errs = append(errs, ignoreClosed(d.Unwatch()))
	}
	return errors.Join(errs...)
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// A Guard is a jail's Spec and what the Engine needs to enforce it.
type Guard struct {
	Spec      json.RawMessage // in the form that Check returns
	Workspace string          // in the jail

	Endpoint string                           // name of the endpoint that Open opens; "": none
	Open     func() (*Endpoint, error)        // nil if Endpoint is ""
	Init     int                              // host pid of the jail's init
	Cgroup   uint64                           // cgroup id; 0: unknown
	Adopted  bool                             // the jail was started by an earlier daemon process
	Rewound  bool                             // the jail was rewound; its pending approval requests are obsolete
	Listener func() (*notify.Listener, error) // seccomp listener of the jail's commands; nil: not enforced

	InstallCA         func(ctx context.Context, ca *egress.CA) error // installs a certificate authority in the jail
	Trusted           bool                                           // the jail was restored with its trust store, which cannot change now
	TrustedUntilAwoke bool                                           // Trusted holds until AfterRestore is called
}

// A jailPolicy is the policy context of a governed jail, or of a run outside of jails.
type jailPolicy struct {
	k   *Engine
	jid id.Jail

	mu            sync.Mutex // held while fields change
	spec          Spec
	workspace     string
	endpoint      *Endpoint
	endpointName  string // "" without an endpoint
	proxy         *egress.Proxy
	ca            *egress.CA    // authority of the proxy; nil: none
	caInstalled   bool          // the jail has the certificate
	syscalls      *syscallJudge // nil: not enforced
	refusedCgroup uint64        // cgroup with kernel-level denials; 0: none
	remembered    []policy.Rule // rules set by Recall
	guard         Guard         // argument of the last call of Guard
	wg            sync.WaitGroup

	// rules and unlisted are read for requests in the proxy. They are not guarded by mu:
	// the holder of mu may be waiting for the proxy to close.
	rules    activeRules
	unlisted atomic.Int32 // how the egress rules treat hosts that they do not list; type unlisted

	served servedCalls // used for the jail of a capability
}

// activeRules holds the rules in force, if any.
type activeRules struct {
	mu sync.RWMutex
	// +checklocks:mu
	holder *policy.Holder
	// +checklocks:mu
	agent string // agent whose rules apply by default
	// +checklocks:mu
	tiers []Tier
}

func (h *activeRules) get() (*policy.Holder, string) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.holder, h.agent
}

func (h *activeRules) approvalTiers() []Tier {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.tiers
}

func (h *activeRules) put(rules *policy.Holder, agent string, tiers []Tier) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holder, h.agent, h.tiers = rules, agent, tiers
}

// Check validates a Spec and returns it in the form to store. proxied reports that the jail uses
// network mode proxy, and enforced that the policy decides the system calls of its commands.
func (k *Engine) Check(raw json.RawMessage, proxied, enforced bool) (json.RawMessage, error) {
	s, err := parse(raw)
	if err != nil {
		return nil, err
	}
	set, err := s.Policy.compile("")
	if err != nil {
		return nil, err
	}
	if set != nil && s.Policy.Agent != "" {
		if err := checkAgent(set, s.Policy.Agent); err != nil {
			return nil, err
		}
	}
	if enforced && s.Policy == nil {
		return nil, &fault.Error{Op: "govern.Check", Kind: fault.Invalid, Field: "enforce",
			Err: errors.New("enforcement requires a policy"), Remedy: "give the jail a policy"}
	}
	if s.Egress != nil && !proxied {
		return nil, &fault.Error{Op: "govern.Check", Kind: fault.Invalid, Field: "egress",
			Err: errors.New("egress rules require network mode proxy"), Remedy: "create the jail with --network proxy"}
	}
	if s.Egress != nil {
		if err := checkEgress(s.Egress); err != nil {
			return nil, err
		}
	}
	if proxied && s.CA == "" {
		s.CA = id.NewCA() // rules that intercept TLS may be added later
	}
	if s.Policy == nil && s.Egress == nil && s.CA == "" {
		return nil, nil
	}
	return json.Marshal(s)
}

// checkCA is a certificate authority for validating rules.
var checkCA = sync.OnceValues(func() (*egress.CA, error) { return egress.NewCA("none") })

// checkEgress validates egress rules with a temporary proxy.
func checkEgress(e *Egress) error {
	ca, err := checkCA()
	if err != nil {
		return err
	}
	p, err := egress.New(egress.Config{
		Rules: e.rules(), CA: ca,
		Secret: func(context.Context, string, string) ([]byte, error) {
			return nil, errors.New("secrets are not available during validation")
		},
		OwnerSecret: func(context.Context, string, string, string) ([]byte, error) {
			return nil, errors.New("secrets are not available during validation")
		},
	})
	if err != nil {
		return err
	}
	return p.Close(context.Background())
}

// Guard applies a Spec to a jail before its first instruction, for jail.Enforcer.Apply. It is
// called again when the jail gets another endpoint or instance.
func (k *Engine) Guard(ctx context.Context, jid id.Jail, g Guard) error {
	s, err := parse(g.Spec)
	if err != nil {
		return err
	}
	k.mu.Lock()
	jp := k.jails[jid]
	if jp == nil {
		jp = &jailPolicy{k: k, jid: jid}
		k.jails[jid] = jp
	}
	k.mu.Unlock()

	jp.mu.Lock()
	defer jp.mu.Unlock()
	jp.guard = g
	err = jp.apply(ctx, s, g)
	jp.guard.Trusted = g.Trusted && g.TrustedUntilAwoke
	return err
}

// apply applies the rules of s and serves the jail's endpoint. The caller holds jp.mu.
//
// +checklocks:jp.mu
func (jp *jailPolicy) apply(ctx context.Context, s Spec, g Guard) error {
	if err := jp.setSpec(ctx, s, g.Workspace); err != nil {
		return err
	}
	if err := jp.watchSyscalls(g); err != nil {
		return err
	}
	return jp.openEndpoint(ctx)
}

// SetSpec replaces the Spec of a jail. The change applies to the next decision. Rules set by
// Recall stay.
func (k *Engine) SetSpec(ctx context.Context, jid id.Jail, raw json.RawMessage, workspace string) error {
	s, err := parse(raw)
	if err != nil {
		return err
	}
	jp := k.find(jid)
	if jp == nil {
		return nil // Guard applies it when the jail starts
	}
	jp.mu.Lock()
	defer jp.mu.Unlock()
	return jp.setSpec(ctx, s, workspace)
}

// AfterRestore completes a jail that was restored from a snapshot: it installs the certificate
// authority if the restored files lack it. same reports whether the snapshot has the same Spec.
// jail.Enforcer.Resumed calls it.
func (k *Engine) AfterRestore(ctx context.Context, jid id.Jail, same bool) error {
	jp := k.find(jid)
	if jp == nil {
		return nil // the jail has ended
	}
	jp.mu.Lock()
	defer jp.mu.Unlock()
	jp.guard.Trusted = false
	jp.caInstalled = same && jp.spec.Egress.interceptsTLS() // the snapshot's files have the certificate
	return jp.installCA(ctx, jp.ca)
}

// Release ends the policy context of a jail and withdraws its pending approval requests.
// jail.Enforcer.Release calls it.
func (k *Engine) Release(jid id.Jail) {
	k.endJail(jid)
	k.withdraw(jid, "the jail has ended")
}

// withdraw withdraws the pending approval requests of a jail.
func (k *Engine) withdraw(jid id.Jail, why string) {
	k.withdrawOf(string(jid), why, func(s policy.Subject) bool { return s.Jail == jid })
}

func (k *Engine) withdrawOf(whose, why string, of func(policy.Subject) bool) {
	if q := k.queue.Load(); q != nil {
		if err := q.WithdrawMatching(context.Background(), of, why); err != nil {
			k.cfg.Log.Warn("could not withdraw obsolete approval requests", "of", whose, "err", err)
		}
	}
}

// endJail removes the policy context of a jail and closes its resources.
func (k *Engine) endJail(jid id.Jail) {
	k.mu.Lock()
	jp := k.jails[jid]
	delete(k.jails, jid)
	k.mu.Unlock()
	if jp == nil {
		return
	}
	jp.mu.Lock()
	defer jp.mu.Unlock()
	if jp.syscalls != nil {
		jp.syscalls.stop()
	}
	jp.removeRefusals()
	jp.closeProxy() // without draining: the jail has ended
	if err := jp.closeEndpoint(); err != nil {
		k.cfg.Log.Warn("could not close the proxy endpoint", "jail", jid, "err", err)
	}
	jp.wg.Wait()
}

// setSpec puts s into force. The caller holds jp.mu.
func (jp *jailPolicy) setSpec(ctx context.Context, s Spec, workspace string) error {
	set, err := s.Policy.compile(workspace)
	if err != nil {
		return err
	}
	if set == nil {
		jp.rules.put(nil, "", nil)
		jp.installRefusals(nil, "")
	} else if h, err := policy.NewHolder(set, s.Policy.MaxLevel()); err != nil {
		return err
	} else {
		for _, r := range jp.remembered {
			h.Remember(r)
		}
		jp.rules.put(h, s.Policy.Agent, s.Policy.Tiers)
		jp.installRefusals(h.Set(), s.Policy.Agent)
	}
	old := jp.spec
	jp.spec, jp.workspace = s, workspace
	jp.unlisted.Store(int32(s.Egress.unlisted()))
	if jp.proxy == nil {
		return nil
	}
	if old.CA == s.CA && old.Egress.recordsQuery() == s.Egress.recordsQuery() {
		if err := jp.installCA(ctx, jp.ca); err != nil {
			return err
		}
		return jp.proxy.SetRules(s.Egress.rules())
	}
	// The authority and query recording of a proxy cannot change: replace the proxy.
	jp.closeProxy()
	if err := jp.closeEndpoint(); err != nil {
		jp.k.cfg.Log.Warn("could not close the proxy endpoint", "jail", jp.jid, "err", err)
	}
	return jp.openEndpoint(ctx)
}

// openEndpoint opens the current endpoint of the jail and closes the previous one.
func (jp *jailPolicy) openEndpoint(ctx context.Context) error {
	g := jp.guard
	if g.Endpoint == jp.endpointName {
		return nil
	}
	old := jp.endpoint
	jp.endpoint, jp.endpointName = nil, ""
	if old != nil {
		if err := old.Close(); err != nil {
			jp.k.cfg.Log.Warn("could not close the proxy endpoint", "jail", jp.jid, "err", err)
		}
	}
	if g.Endpoint == "" {
		return nil
	}
	if jp.proxy == nil {
		if err := jp.newProxy(ctx); err != nil {
			return err
		}
	}
	d, err := g.Open()
	if err != nil {
		return fmt.Errorf("open the proxy endpoint: %w", err)
	}
	jp.endpoint, jp.endpointName = d, g.Endpoint
	p := jp.proxy
	jp.serve("connections", func() error { return p.Serve(d.All) })
	jp.serve("requests", func() error { return p.ServeHTTP(d.HTTP) })
	jp.serve("names", func() error { return p.ServeDNS(d.Names, d.NamesTCP) })
	jp.serve("refused packets", func() error { return jp.recordRefused(d) })
	return nil
}

func (jp *jailPolicy) closeEndpoint() error {
	d := jp.endpoint
	jp.endpoint, jp.endpointName = nil, ""
	if d == nil {
		return nil
	}
	return d.Close()
}

// serve runs f until the endpoint is closed.
func (jp *jailPolicy) serve(what string, f func() error) {
	jp.wg.Go(func() {
		if err := ignoreClosed(f()); err != nil {
			jp.k.cfg.Log.Error("serving the proxy endpoint of a jail failed", "jail", jp.jid, "what", what, "err", err)
		}
	})
}

// newProxy creates the proxy for jp.spec. The caller holds jp.mu.
func (jp *jailPolicy) newProxy(ctx context.Context) error {
	ca, err := jp.k.authority(jp.spec.CA, jp.jid)
	if err != nil {
		return err
	}
	if err := jp.installCA(ctx, ca); err != nil {
		return err
	}
	p, err := egress.New(egress.Config{
		Jail: string(jp.jid), Rules: jp.spec.Egress.rules(),
		Authority: authority{jp.k, jp}, Recorder: recorder{k: jp.k, jid: jp.jid, served: &jp.served},
		Secret: jp.injectSecret, OwnerSecret: jp.injectOwned, CA: ca, KeepQuery: jp.spec.Egress.recordsQuery(),
	})
	if err != nil {
		return err
	}
	jp.proxy, jp.ca = p, ca
	return nil
}

// installCA installs the certificate authority in the jail if TLS is intercepted.
func (jp *jailPolicy) installCA(ctx context.Context, ca *egress.CA) error {
	if ca == nil || jp.caInstalled || jp.guard.InstallCA == nil || jp.guard.Trusted || !jp.spec.Egress.interceptsTLS() {
		return nil
	}
	if err := jp.guard.InstallCA(ctx, ca); err != nil {
		return fmt.Errorf("install the certificate authority in the jail: %w", err)
	}
	jp.caInstalled = true
	return nil
}

// closeProxy closes the proxy and its open connections.
func (jp *jailPolicy) closeProxy() {
	if jp.proxy == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := jp.proxy.Close(ctx); err != nil {
		jp.k.cfg.Log.Warn("could not close the proxy", "jail", jp.jid, "err", err)
	}
	st := jp.proxy.Stats()
	jp.k.traffic.add(jp.jid, st.Sent+st.Received)
	jp.proxy, jp.ca = nil, nil
}

func (jp *jailPolicy) injectSecret(ctx context.Context, name, host string) ([]byte, error) {
	if jp.k.cfg.Secrets == nil {
		return nil, fault.Newf(fault.Denied, "govern.injectSecret", name, "no secret store is configured")
	}
	return jp.k.cfg.Secrets.Inject(ctx, jp.jid, name, host)
}

func (jp *jailPolicy) injectOwned(ctx context.Context, owner, name, host string) ([]byte, error) {
	if jp.k.cfg.Secrets == nil {
		return nil, fault.Newf(fault.Denied, "govern.injectOwned", "", "no secret store is configured")
	}
	return jp.k.cfg.Secrets.InjectOwned(ctx, jp.jid, owner, name, host)
}

// authority returns the named certificate authority and creates it if it does not exist. A
// jail and its branches share one, because the branches inherit the trust store. An empty name
// returns nil.
func (k *Engine) authority(name id.CA, jid id.Jail) (*egress.CA, error) {
	if name == "" {
		return nil, nil
	}
	if !id.Valid('c', string(name)) {
		return nil, fault.Newf(fault.Invalid, "govern.authority", "", "invalid name of a certificate authority")
	}
	file := filepath.Join(k.cfg.Dir, string(name)+".pem")
	b, err := os.ReadFile(file)
	if err == nil {
		return egress.ParseCA(b)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read the certificate authority: %w", err)
	}
	ca, err := egress.NewCA(string(jid))
	if err != nil {
		return nil, fmt.Errorf("create a certificate authority: %w", err)
	}
	secret, err := ca.Secret()
	if err != nil {
		return nil, fmt.Errorf("encode the certificate authority: %w", err)
	}
	if err := os.MkdirAll(k.cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	return ca, atomicfile.Write(file, secret, 0o600)
}

// authority decides the requests of one jail's proxy.
type authority struct {
	k  *Engine
	jp *jailPolicy
}

// Evaluate implements egress.Authority. It is called if no egress rule allows a request. If the
// jail has a policy or requests approval for unlisted hosts, the policy engine decides.
func (a authority) Evaluate(ctx context.Context, r egress.Request) (egress.Verdict, error) {
	others := unlisted(a.jp.unlisted.Load())
	rules, _ := a.jp.rules.get()
	if rules == nil && others != unlistedAsk {
		return egress.Verdict{}, nil // the proxy reports the egress rules as the reason
	}
	q := policy.Question{
		Subject: policy.Subject{Jail: a.jp.jid}, Action: policy.ActionConnect, Resource: hostPort(r),
		Attributes: map[string]string{"observed": "true", "kind": string(r.Kind)},
	}
	if r.Method != "" {
		q.Attributes["method"], q.Attributes["path"] = r.Method, r.Path
	}
	if r.Kind == egress.KindName { // only denials apply: the connection to the address is decided later
		q.Resource = r.Host + ":443"
		return egress.Verdict{Allow: a.k.evaluate(q, others).Effect != policy.Deny}, nil
	}
	v, err := a.k.judge(ctx, Ask{Question: q}, others)
	if err != nil {
		return egress.Verdict{}, err
	}
	return egress.Verdict{Allow: v.Allow, Rule: v.Decision.Rule.String(), Reason: v.Decision.Reason, Remedy: v.Decision.Remedy}, nil
}

func hostPort(r egress.Request) string { return net.JoinHostPort(r.Host, fmt.Sprint(r.Port)) }

// refusedInterval limits the records of dropped packets: one per protocol and destination in
// this time, with the number of repeats.
const refusedInterval = time.Second

// recordRefused records the packets that the Linux kernel drops at the endpoint.
func (jp *jailPolicy) recordRefused(d *Endpoint) error {
	if d.Refused == nil {
		return nil
	}
	type destination struct {
		proto uint8
		dst   netip.AddrPort
	}
	last, skipped := map[destination]time.Time{}, map[destination]int{}
	for {
		p, err := d.Refused()
		if err != nil {
			return err
		}
		to, now := destination{p.Proto, p.Dst}, time.Now()
		if now.Sub(last[to]) < refusedInterval {
			skipped[to]++
			continue
		}
		if len(last) > 1024 { // bounds the memory for a port scan
			clear(last)
			clear(skipped)
		}
		r := egress.Record{
			At: now, Request: egress.Request{Kind: kindPacket, Host: p.Dst.Addr().String(), Port: p.Dst.Port()},
			Reason: egress.ReasonProtocol, Repeats: skipped[to],
			Detail: protocolName(p.Proto) + " is not supported by the proxy",
		}
		last[to] = now
		delete(skipped, to)
		who := policy.Subject{Jail: jp.jid}
		jp.k.Note(chain.Egress, who, 0, maskRecord(jp.k.mask(context.Background(), who), r))
	}
}

// kindPacket marks packets dropped by the Linux kernel, which the proxy did not see.
const kindPacket egress.Kind = "packet"

func protocolName(n uint8) string {
	names := map[uint8]string{1: "ICMP", 2: "IGMP", 17: "UDP", 47: "GRE", 58: "ICMPv6", 132: "SCTP"}
	if s, ok := names[n]; ok {
		return s
	}
	return fmt.Sprint("protocol ", n)
}
