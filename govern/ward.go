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

	"glasshouse/chain"
	"glasshouse/egress"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/atomicfile"
	"glasshouse/internal/notify"
	"glasshouse/internal/redact"
	"glasshouse/policy"
)

// Secrets are values for requests on their way out.
type Secrets interface {
	// Inject returns the value of a secret that a jail's requests to a host may
	// carry. The bytes are the caller's.
	Inject(ctx context.Context, jid id.Jail, name, host string) ([]byte, error)

	// InjectOwned returns the value of a secret that is its owner's alone, for a header
	// that the owner has set in a jail's requests to a host.
	InjectOwned(ctx context.Context, jid id.Jail, owner, name, host string) ([]byte, error)

	// Missing returns those of the secrets that are not there, or that a capability
	// may not use.
	Missing(capability string, names []string) []string

	// Mask returns a mask for the values of the secrets that a subject has or had by
	// its grants, and of those that have names; nil if there are none.
	Mask(ctx context.Context, who policy.Subject, names []string) *redact.Mask
}

// A Door is where the kernel listens for one jail. Who comes through it is that
// jail.
type Door struct {
	All, HTTP, NamesTCP net.Listener
	Names               net.PacketConn

	Refused func() (Refused, error) // waits for the next packet that was let through to none of them
	Unwatch func() error            // ends Refused
}

// Refused is a packet that the machine's kernel refused a jail.
type Refused struct {
	Proto uint8
	Dst   netip.AddrPort
}

// Close closes all of the door that is open.
func (d *Door) Close() error {
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

// A Guard is how a jail is to be governed from now on.
type Guard struct {
	Spec      json.RawMessage // as Check returned it
	Workspace string          // in the jail

	Door     string                           // names what Open opens; "" is no door
	Open     func() (*Door, error)            // nil without a door
	Init     int                              // the host's number of the jail's init
	Cgroup   uint64                           // by which the machine's kernel knows the jail; 0: it does not
	Again    bool                             // the jail ran before this daemon did
	Rewound  bool                             // what the jail asked until now nobody waits for any more
	Listener func() (*notify.Listener, error) // what the jail's commands ask on; nil: they ask nobody

	Trust   func(ctx context.Context, ca *egress.CA) error // has the jail's programs trust an authority
	Trusted bool                                           // they do already, if they ever did: they cannot be told now
	Waits   bool                                           // nor before Awoke
}

// A ward is a jail that is governed.
type ward struct {
	k   *Kernel
	jid id.Jail

	mu        sync.Mutex // held while it changes
	spec      Spec
	workspace string
	door      *Door
	at        string // what the door is named; "" without one
	proxy     *egress.Proxy
	ca        *egress.CA    // that the proxy has; nil is none
	trusted   bool          // the jail has been given the certificate
	calls     *calls        // nil: they are not decided
	refused   uint64        // the cgroup that is refused what is denied; 0 is none
	recalled  []policy.Rule // answers that count as long as the jail lives
	guard     Guard         // as it was called last
	wg        sync.WaitGroup

	// What who is being carried by the proxy is judged by: nobody needs mu for it,
	// as who has that may be waiting for the proxy to end.
	rules holder
	asks  atomic.Bool // what no rule of Egress allows is asked about

	serving serving // of a capability's jail
}

// holder is the rules that count now, if there are any.
type holder struct {
	mu sync.RWMutex
	// +checklocks:mu
	h *policy.Holder
	// +checklocks:mu
	a string // the agent whose rules count
	// +checklocks:mu
	t []Tier
}

func (h *holder) get() (*policy.Holder, string) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.h, h.a
}

func (h *holder) tiers() []Tier {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.t
}

func (h *holder) put(rules *policy.Holder, agent string, tiers []Tier) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.h, h.a, h.t = rules, agent, tiers
}

// Check reads what a jail is to be governed by, and returns it as it is to be
// kept. proxied says that the jail is behind the proxy, enforced that the calls of
// its commands are decided.
func (k *Kernel) Check(raw json.RawMessage, proxied, enforced bool) (json.RawMessage, error) {
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
			Err: errors.New("there is nothing to enforce"), Remedy: "give the jail a policy"}
	}
	if s.Egress != nil && !proxied {
		return nil, &fault.Error{Op: "govern.Check", Kind: fault.Invalid, Field: "egress",
			Err: errors.New("what leaves a jail is ruled only in network mode proxy"), Remedy: "make the jail with the network proxy"}
	}
	if s.Egress != nil {
		if err := checkEgress(s.Egress); err != nil {
			return nil, err
		}
	}
	if proxied && s.CA == "" {
		s.CA = id.NewCA() // rules that look inside may come later
	}
	if s.Policy == nil && s.Egress == nil && s.CA == "" {
		return nil, nil
	}
	return json.Marshal(s)
}

// someCA is for looking at rules.
var someCA = sync.OnceValues(func() (*egress.CA, error) { return egress.NewCA("none") })

// checkEgress has the rules looked at as the proxy will.
func checkEgress(e *Egress) error {
	ca, err := someCA()
	if err != nil {
		return err
	}
	p, err := egress.New(egress.Config{
		Rules: e.rules(), CA: ca,
		Secret: func(context.Context, string, string) ([]byte, error) { return nil, errors.New("nobody asks") },
		Owned:  func(context.Context, string, string, string) ([]byte, error) { return nil, errors.New("nobody asks") },
	})
	if err != nil {
		return err
	}
	return p.Close(context.Background())
}

// Guard governs a jail from now on, as jail.Warden wants it. It is called again
// when the jail has another door.
func (k *Kernel) Guard(ctx context.Context, jid id.Jail, g Guard) error {
	s, err := parse(g.Spec)
	if err != nil {
		return err
	}
	k.mu.Lock()
	w := k.wards[jid]
	if w == nil {
		w = &ward{k: k, jid: jid}
		k.wards[jid] = w
	}
	k.mu.Unlock()

	w.mu.Lock()
	defer w.mu.Unlock()
	w.guard = g
	err = w.begin(ctx, s, g)
	w.guard.Trusted = g.Trusted && g.Waits
	return err
}

// begin applies the rules of s and serves the jail's endpoint. The caller holds w.mu.
//
// +checklocks:w.mu
func (w *ward) begin(ctx context.Context, s Spec, g Guard) error {
	if err := w.govern(ctx, s, g.Workspace); err != nil {
		return err
	}
	if err := w.watchCalls(g); err != nil {
		return err
	}
	return w.openDoor(ctx)
}

// Adapt has a jail governed by another Spec, at once. What rules were tightened
// by stays.
func (k *Kernel) Adapt(ctx context.Context, jid id.Jail, raw json.RawMessage, workspace string) error {
	s, err := parse(raw)
	if err != nil {
		return err
	}
	w := k.find(jid)
	if w == nil {
		return nil // it will be governed when it comes to life
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.govern(ctx, s, workspace)
}

// Awoke has the programs of a jail that was made from a snapshot trust what they are
// to, as jail.Warden wants it.
func (k *Kernel) Awoke(ctx context.Context, jid id.Jail, same bool) error {
	w := k.find(jid)
	if w == nil {
		return nil // it has ended again
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.guard.Trusted = false
	w.trusted = same && w.spec.Egress.looksInside() // it came with its files
	return w.giveTrust(ctx, w.ca)
}

// Release ends it, as jail.Warden wants it. What the jail asked nobody needs to
// know any more.
func (k *Kernel) Release(jid id.Jail) {
	k.letGo(jid)
	k.withdraw(jid, "the jail has ended")
}

// withdraw has nobody answer any more what a jail asked.
func (k *Kernel) withdraw(jid id.Jail, why string) {
	k.withdrawOf(string(jid), why, func(s policy.Subject) bool { return s.Jail == jid })
}

func (k *Kernel) withdrawOf(whose, why string, of func(policy.Subject) bool) {
	if q := k.queue.Load(); q != nil {
		if err := q.WithdrawOf(context.Background(), of, why); err != nil {
			k.cfg.Log.Warn("requests that nobody waits for still wait for an answer", "of", whose, "err", err)
		}
	}
}

// letGo ends what is done for a jail.
func (k *Kernel) letGo(jid id.Jail) {
	k.mu.Lock()
	w := k.wards[jid]
	delete(k.wards, jid)
	k.mu.Unlock()
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.calls != nil {
		w.calls.stop()
	}
	w.refuseNothing()
	w.closeProxy() // nobody is left on the other side: there is nothing to wait for
	if err := w.closeDoor(); err != nil {
		k.cfg.Log.Warn("close the door", "jail", jid, "err", err)
	}
	w.wg.Wait()
}

// govern has s count. w.mu is held.
func (w *ward) govern(ctx context.Context, s Spec, workspace string) error {
	set, err := s.Policy.compile(workspace)
	if err != nil {
		return err
	}
	if set == nil {
		w.rules.put(nil, "", nil)
		w.refuse(nil, "")
	} else if h, err := policy.Hold(set, s.Policy.Top()); err != nil {
		return err
	} else {
		for _, r := range w.recalled {
			h.Remember(r)
		}
		w.rules.put(h, s.Policy.Agent, s.Policy.Tiers)
		w.refuse(h.Set(), s.Policy.Agent)
	}
	was := w.spec
	w.spec, w.workspace = s, workspace
	w.asks.Store(s.Egress != nil && s.Egress.Ask)
	if w.proxy == nil {
		return nil
	}
	if was.CA == s.CA && was.Egress.query() == s.Egress.query() {
		if err := w.giveTrust(ctx, w.ca); err != nil {
			return err
		}
		return w.proxy.SetRules(s.Egress.rules())
	}
	// What a proxy was made with it keeps: this takes another one.
	w.closeProxy()
	if err := w.closeDoor(); err != nil {
		w.k.cfg.Log.Warn("close the door", "jail", w.jid, "err", err)
	}
	return w.openDoor(ctx)
}

// openDoor opens the door that a jail has now, and closes the one it had.
func (w *ward) openDoor(ctx context.Context) error {
	g := w.guard
	if g.Door == w.at {
		return nil
	}
	was := w.door
	w.door, w.at = nil, ""
	if was != nil {
		if err := was.Close(); err != nil {
			w.k.cfg.Log.Warn("close the door", "jail", w.jid, "err", err)
		}
	}
	if g.Door == "" {
		return nil
	}
	if w.proxy == nil {
		if err := w.newProxy(ctx); err != nil {
			return err
		}
	}
	d, err := g.Open()
	if err != nil {
		return err
	}
	w.door, w.at = d, g.Door
	p := w.proxy
	w.serve("connections", func() error { return p.Serve(d.All) })
	w.serve("requests", func() error { return p.ServeHTTP(d.HTTP) })
	w.serve("names", func() error { return p.ServeDNS(d.Names, d.NamesTCP) })
	w.serve("refused packets", func() error { return w.tell(d) })
	return nil
}

func (w *ward) closeDoor() error {
	d := w.door
	w.door, w.at = nil, ""
	if d == nil {
		return nil
	}
	return d.Close()
}

// serve has f done until the door is closed.
func (w *ward) serve(what string, f func() error) {
	w.wg.Go(func() {
		if err := ignoreClosed(f()); err != nil {
			w.k.cfg.Log.Error("a jail is not served any more", "jail", w.jid, "what", what, "err", err)
		}
	})
}

// newProxy makes the proxy that w.spec wants. w.mu is held.
func (w *ward) newProxy(ctx context.Context) error {
	ca, err := w.k.authority(w.spec.CA, w.jid)
	if err != nil {
		return err
	}
	if err := w.giveTrust(ctx, ca); err != nil {
		return err
	}
	p, err := egress.New(egress.Config{
		Jail: string(w.jid), Rules: w.spec.Egress.rules(),
		Authority: authority{w.k, w}, Recorder: recorder{k: w.k, jid: w.jid, serving: &w.serving},
		Secret: w.secret, Owned: w.owned, CA: ca, KeepQuery: w.spec.Egress.query(),
	})
	if err != nil {
		return err
	}
	w.proxy, w.ca = p, ca
	return nil
}

// giveTrust has the jail's programs trust the authority, if it will be used.
func (w *ward) giveTrust(ctx context.Context, ca *egress.CA) error {
	if ca == nil || w.trusted || w.guard.Trust == nil || w.guard.Trusted || !w.spec.Egress.looksInside() {
		return nil
	}
	if err := w.guard.Trust(ctx, ca); err != nil {
		return fmt.Errorf("have the jail trust its authority: %w", err)
	}
	w.trusted = true
	return nil
}

// closeProxy cuts what is being carried.
func (w *ward) closeProxy() {
	if w.proxy == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := w.proxy.Close(ctx); err != nil {
		w.k.cfg.Log.Warn("close the proxy", "jail", w.jid, "err", err)
	}
	st := w.proxy.Stats()
	w.k.carried.add(w.jid, st.Sent+st.Received)
	w.proxy, w.ca = nil, nil
}

func (w *ward) secret(ctx context.Context, name, host string) ([]byte, error) {
	if w.k.cfg.Secrets == nil {
		return nil, fault.Newf(fault.Denied, "govern.Secret", name, "there are no secrets")
	}
	return w.k.cfg.Secrets.Inject(ctx, w.jid, name, host)
}

func (w *ward) owned(ctx context.Context, owner, name, host string) ([]byte, error) {
	if w.k.cfg.Secrets == nil {
		return nil, fault.Newf(fault.Denied, "govern.Owned", "", "there are no secrets")
	}
	return w.k.cfg.Secrets.InjectOwned(ctx, w.jid, owner, name, host)
}

// authority returns the certificate authority of that name, made if there is
// none yet. A jail and its branches have one between them: what they trust came
// with their files. No name is none.
func (k *Kernel) authority(name id.CA, jid id.Jail) (*egress.CA, error) {
	if name == "" {
		return nil, nil
	}
	if !id.Valid('c', string(name)) {
		return nil, fault.Newf(fault.Invalid, "govern.CA", "", "not the name of an authority")
	}
	file := filepath.Join(k.cfg.Dir, string(name)+".pem")
	b, err := os.ReadFile(file)
	if err == nil {
		return egress.ParseCA(b)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	ca, err := egress.NewCA(string(jid))
	if err != nil {
		return nil, err
	}
	secret, err := ca.Secret()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(k.cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	return ca, atomicfile.Write(file, secret, 0o600)
}

// authority answers the proxy of one jail.
type authority struct {
	k *Kernel
	w *ward
}

// Judge implements egress.Authority: what no egress rule allows is a question of
// policy, if the jail has one or wants to be asked.
func (a authority) Judge(ctx context.Context, r egress.Request) (egress.Verdict, error) {
	asks := a.w.asks.Load()
	rules, _ := a.w.rules.get()
	if rules == nil && !asks {
		return egress.Verdict{}, nil // the rules say why not
	}
	q := policy.Question{
		Subject: policy.Subject{Jail: a.w.jid}, Action: policy.ActionConnect, Resource: where(r),
		Attributes: map[string]string{"observed": "true", "kind": string(r.Kind)},
	}
	if r.Method != "" {
		q.Attributes["method"], q.Attributes["path"] = r.Method, r.Path
	}
	if r.Kind == egress.KindName { // whoever has the address will be asked when he connects
		q.Resource = r.Host + ":443"
		return egress.Verdict{Allow: a.k.decide(q, asks).Effect != policy.Deny}, nil
	}
	v, err := a.k.judge(ctx, Ask{Question: q}, asks)
	if err != nil {
		return egress.Verdict{}, err
	}
	return egress.Verdict{Allow: v.Allow, Rule: v.Decision.Rule.String(), Reason: v.Decision.Reason, Remedy: v.Decision.Remedy}, nil
}

func where(r egress.Request) string { return net.JoinHostPort(r.Host, fmt.Sprint(r.Port)) }

// refusedEvery bounds how many refused packets of a jail are recorded: the first
// of a second to one place, and how many were like it.
const refusedEvery = time.Second

// tell records what the machine's kernel refused at the door.
func (w *ward) tell(d *Door) error {
	if d.Refused == nil {
		return nil
	}
	type place struct {
		proto uint8
		dst   netip.AddrPort
	}
	last, skipped := map[place]time.Time{}, map[place]int{}
	for {
		p, err := d.Refused()
		if err != nil {
			return err
		}
		at, now := place{p.Proto, p.Dst}, time.Now()
		if now.Sub(last[at]) < refusedEvery {
			skipped[at]++
			continue
		}
		if len(last) > 1024 { // somebody tries everything
			clear(last)
			clear(skipped)
		}
		r := egress.Record{
			At: now, Request: egress.Request{Kind: kindPacket, Host: p.Dst.Addr().String(), Port: p.Dst.Port()},
			Reason: egress.ReasonProtocol, Repeats: skipped[at],
			Detail: protocolName(p.Proto) + " is not carried",
		}
		last[at] = now
		delete(skipped, at)
		who := policy.Subject{Jail: w.jid}
		w.k.Note(chain.Egress, who, 0, maskRecord(w.k.mask(context.Background(), who), r))
	}
}

// kindPacket is what the machine's kernel refused: nothing that the proxy saw.
const kindPacket egress.Kind = "packet"

func protocolName(n uint8) string {
	names := map[uint8]string{1: "ICMP", 2: "IGMP", 17: "UDP", 47: "GRE", 58: "ICMPv6", 132: "SCTP"}
	if s, ok := names[n]; ok {
		return s
	}
	return fmt.Sprint("protocol ", n)
}
