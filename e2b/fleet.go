package e2b

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/id"
)

// A Fleet reaches the servers of the other nodes. *route.Router implements it.
type Fleet interface {
	Self() string
	Nodes(ctx context.Context) ([]fleet.Node, error)
	Owner(ctx context.Context, k fleet.Key) (node string, err error) // "": unknown
	Place(ctx context.Context) (fleet.Node, error)                   // for a new sandbox
	Forward(w http.ResponseWriter, r *http.Request, node string, k fleet.Key) error
	Objects(ctx context.Context, kind fleet.Kind, tenant, after string, limit int) ([]fleet.Object, error)
}

// forwardedKey is the context key of the domain that the client of a forwarded request uses.
type forwardedKey struct{}

// ServeNode serves a request that another node passes on. The caller has authenticated that node.
func (s *Server) ServeNode(w http.ResponseWriter, r *http.Request) {
	about, err := url.ParseQuery(r.Header.Get(fleet.E2BHeader))
	if err != nil {
		WriteError(s.cfg.Log, w, r, invalid("malformed header %s", fleet.E2BHeader))
		return
	}
	if operation := about.Get("link"); operation != "" {
		status := http.StatusNotFound
		if _, ok := s.cfg.Sandboxes.signed(r.URL.Query(), operation); ok {
			status = http.StatusNoContent
		}
		w.WriteHeader(status)
		return
	}
	r = r.WithContext(context.WithValue(r.Context(), forwardedKey{}, about.Get("domain")))
	r.RemoteAddr = about.Get("client")
	if !about.Has("tls") {
		r.TLS = nil
	}
	s.ServeHTTP(w, r)
}

// domain returns the domain that the client of a request uses.
func (s *Server) domain(ctx context.Context) string {
	if domain, ok := ctx.Value(forwardedKey{}).(string); ok {
		return domain
	}
	return s.cfg.Domain
}

// forward passes a request to another node.
func (s *Server) forward(w http.ResponseWriter, r *http.Request, node string, k fleet.Key) {
	about := url.Values{"domain": {s.cfg.Domain}, "client": {r.RemoteAddr}}
	if r.TLS != nil {
		about.Set("tls", "")
	}
	r.Header.Set(fleet.E2BHeader, about.Encode())
	// A server may respond before it has read the whole request body.
	http.NewResponseController(w).EnableFullDuplex() // for HTTP/1; HTTP/2 is always full duplex
	if err := s.cfg.Fleet.Forward(w, r, node, k); err != nil {
		WriteError(s.cfg.Log, w, r, err)
	}
}

// maxAsked is the number of nodes that are asked for the sandbox of a link, because each client can
// make them work. Links that name their sandbox are found at any number of nodes.
const maxAsked = 32

// signer returns the node with the sandbox whose token signed a link to a file, or "".
func (s *Server) signer(r *http.Request, operation string) (string, error) {
	nodes, err := s.others(r.Context())
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
	defer cancel()
	found := make(chan string, maxAsked)
	var wg sync.WaitGroup
	for _, n := range nodes[:min(len(nodes), maxAsked)] {
		wg.Go(func() {
			q := r.Clone(ctx)
			q.Method, q.Body, q.ContentLength = http.MethodGet, http.NoBody, 0
			q.Header = http.Header{fleet.E2BHeader: {url.Values{"link": {operation}}.Encode()}}
			answer := newBuffer()
			if s.cfg.Fleet.Forward(answer, q, n.ID, fleet.Key{}) == nil && answer.status == http.StatusNoContent {
				found <- n.ID
				cancel()
			}
		})
	}
	wg.Wait()
	close(found)
	return <-found, nil
}

const askTimeout = 5 * time.Second

// others returns the other nodes that accept requests and can have sandboxes.
func (s *Server) others(ctx context.Context) ([]fleet.Node, error) {
	nodes, err := s.cfg.Fleet.Nodes(ctx)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "e2b.others", "", err)
	}
	return slices.DeleteFunc(slices.Clone(nodes), func(n fleet.Node) bool {
		return n.ID == s.cfg.Fleet.Self() || n.State != fleet.Up || n.Front || n.Addr == ""
	}), nil
}

// elsewhere passes a request to the node that must serve it, and reports whether it did. team is
// "" for requests without a key.
func (s *Server) elsewhere(w http.ResponseWriter, r *http.Request, team id.Token) bool {
	if s.local(r.Context()) {
		return false
	}
	node, k, err := s.node(w, r, team)
	return s.passOn(w, r, node, k, err)
}

// passOn passes a request to a node unless it is this one, or writes the error of the search for
// the node. It reports whether it has responded.
func (s *Server) passOn(w http.ResponseWriter, r *http.Request, node string, k fleet.Key, err error) bool {
	switch {
	case err != nil:
		WriteError(s.cfg.Log, w, r, err)
		return true
	case node == "" || node == s.cfg.Fleet.Self():
		return false
	}
	s.forward(w, r, node, k)
	return true
}

// local reports whether a request is served by this node, whatever it is about.
func (s *Server) local(ctx context.Context) bool {
	_, forwarded := ctx.Value(forwardedKey{}).(string)
	return s.cfg.Fleet == nil || forwarded
}

// portElsewhere passes a request for a port of a sandbox to the node with the sandbox, and reports
// whether it did. addressed is whether the request addresses one, which for the link to a file is
// true only on that node.
func (s *Server) portElsewhere(w http.ResponseWriter, r *http.Request, to address, addressed bool) bool {
	if s.local(r.Context()) {
		return false
	}
	var node string
	var err error
	k := fleet.Key{Kind: fleet.Sandbox, ID: to.sandbox}
	if addressed {
		node, _, err = s.owner(r.Context(), k)
	} else if operation := signedOperation(r); operation != "" {
		node, err = s.signer(r, operation)
	}
	return s.passOn(w, r, node, k, err)
}

// node returns the node that must serve a request, and the object that the request is about. "" is
// this node.
func (s *Server) node(w http.ResponseWriter, r *http.Request, team id.Token) (string, fleet.Key, error) {
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if path[0] == "v2" || path[0] == "v3" {
		path = path[1:]
	}
	path = append(path, "", "", "")
	ref, rest := path[1], path[2]
	creates := ref == "" && r.Method == http.MethodPost
	switch path[0] {
	case "sandboxes":
		if creates {
			return s.forSandbox(w, r, team)
		}
		if ref != "" && ref != "metrics" {
			return s.owner(r.Context(), fleet.Key{Kind: fleet.Sandbox, ID: canonicalID(ref)})
		}
	case "volumes":
		if creates {
			var b newVolume
			peek(w, r, &b)
			return s.named(r.Context(), volumeAlias(team, b.Name))
		}
		return s.owner(r.Context(), fleet.Key{Kind: fleet.Volume, ID: ref})
	case "volumecontent":
		return s.owner(r.Context(), fleet.Key{Kind: fleet.Volume, ID: ref})
	case "templates":
		return s.forTemplate(w, r, team, ref, rest, creates)
	case strings.Trim(UploadPath, "/"):
		return r.URL.Query().Get(nodeParam), fleet.Key{}, nil
	}
	return "", fleet.Key{}, nil
}

// nodeParam is the query parameter of upload links with the node that has signed them.
const nodeParam = "node"

// UploadLink returns the path and query of an upload link. signed comes from this node.
func UploadLink(f Fleet, signed string) string {
	if f == nil {
		return UploadPath + signed
	}
	return UploadPath + signed + "?" + nodeParam + "=" + url.QueryEscape(f.Self())
}

// peek decodes the body of a request, which can be read again.
func peek(w http.ResponseWriter, r *http.Request, v any) {
	var read bytes.Buffer
	body := r.Body
	r.Body = io.NopCloser(io.TeeReader(body, &read))
	_ = ReadBody(w, r, v, maxPeek) // the node that serves the request reports the error
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(&read, body), body}
}

const maxPeek = 4 << 20

// owner returns the node of an object; "" is this one, also for an object that no node has.
func (s *Server) owner(ctx context.Context, k fleet.Key) (string, fleet.Key, error) {
	if k.ID == "" || s.has(k) {
		return "", k, nil
	}
	node, err := s.cfg.Fleet.Owner(ctx, k)
	if err != nil {
		return "", k, fault.New(fault.Unavailable, "e2b.owner", k.ID, err)
	}
	return node, k, nil
}

// has reports whether this node has an object.
func (s *Server) has(k fleet.Key) bool {
	if k.Kind == fleet.Volume {
		return s.cfg.Volumes.has(k.ID)
	}
	return k.Kind == fleet.Sandbox && s.cfg.Sandboxes.has(k.ID)
}

// named returns the node of a name, or the one for a new object with it.
func (s *Server) named(ctx context.Context, k fleet.Key) (string, fleet.Key, error) {
	node, _, err := s.owner(ctx, k)
	if err != nil || node != "" {
		return node, k, err
	}
	return s.place(ctx)
}

// place returns the node for a new object.
func (s *Server) place(ctx context.Context) (string, fleet.Key, error) {
	if !s.cfg.Front {
		return "", fleet.Key{}, nil
	}
	n, err := s.cfg.Fleet.Place(ctx)
	return n.ID, fleet.Key{}, err
}

// forSandbox returns the node for a new sandbox: that of its volumes or of its template, because
// neither is copied to other nodes.
func (s *Server) forSandbox(w http.ResponseWriter, r *http.Request, team id.Token) (string, fleet.Key, error) {
	var b newSandbox
	peek(w, r, &b)
	chosen, of := "", ""
	choose := func(node, what string) error {
		if chosen != "" && node != "" && node != chosen {
			return &fault.Error{Op: "e2b.forSandbox", Kind: fault.Conflict, Err: fmt.Errorf("%s and %s are on different nodes", of, what),
				Remedy: "create the volume after the template, or build the template on the other node"}
		}
		if node != "" {
			chosen, of = node, what
		}
		return nil
	}
	for _, m := range b.VolumeMounts {
		node, _, err := s.owner(r.Context(), volumeAlias(team, m.Name))
		if err := errors.Join(err, choose(node, "the volume "+short(m.Name))); err != nil {
			return "", fleet.Key{}, err
		}
	}
	if !isBase(templateName(b.TemplateID)) {
		node, _, err := s.templateNode(r.Context(), team, b.TemplateID)
		if err := errors.Join(err, choose(node, "the template "+short(b.TemplateID))); err != nil {
			return "", fleet.Key{}, err
		}
	}
	if chosen != "" {
		return chosen, fleet.Key{}, nil
	}
	return s.place(r.Context())
}

// forTemplate returns the node for a request below /templates/{ref}/{rest}.
func (s *Server) forTemplate(w http.ResponseWriter, r *http.Request, team id.Token, ref, rest string, creates bool) (string, fleet.Key, error) {
	switch {
	case creates || ref == "tags":
		var b struct{ Name, Alias, Target string }
		peek(w, r, &b)
		ref = cmp.Or(b.Name, b.Alias, b.Target)
	case ref == "aliases":
		ref = rest
	case r.Method == http.MethodDelete:
		if err := s.deleteElsewhere(r, team, ref); err != nil {
			return "", fleet.Key{}, err
		}
	}
	node, k, err := s.templateNode(r.Context(), team, ref)
	switch {
	case err != nil:
		return "", k, err
	case node == "" && creates:
		return s.placeBuild(r.Context(), team)
	}
	return node, k, nil
}

// placeBuild returns the node for a new template: that of the newest template of the team, whose
// layers are there.
func (s *Server) placeBuild(ctx context.Context, team id.Token) (string, fleet.Key, error) {
	if !s.cfg.Front {
		return "", fleet.Key{}, nil
	}
	nodes, err := s.others(ctx)
	if err != nil {
		return "", fleet.Key{}, err
	}
	list, err := allObjects(ctx, s.cfg.Fleet, fleet.Template, team)
	if err != nil {
		return "", fleet.Key{}, err
	}
	for _, o := range slices.Backward(list) {
		if slices.ContainsFunc(nodes, func(n fleet.Node) bool { return n.ID == o.Node && !n.Draining }) {
			return o.Node, fleet.Key{}, nil
		}
	}
	return s.place(ctx)
}

// deleteElsewhere deletes the snapshots with a name on other nodes, except on the node with the
// newest one, which serves the request.
func (s *Server) deleteElsewhere(r *http.Request, team id.Token, ref string) error {
	newest, _, err := s.templateNode(r.Context(), team, ref)
	if err != nil {
		return err
	}
	list, err := allObjects(r.Context(), s.cfg.Fleet, fleet.SandboxSnapshot, team)
	if err != nil {
		return err
	}
	asked := map[string]bool{newest: true, s.cfg.Fleet.Self(): true}
	for _, o := range list {
		var n NamedSnapshot
		if err := json.Unmarshal([]byte(o.Summary), &n); err != nil {
			return fmt.Errorf("read the entry of snapshot %s: %w", o.ID, err)
		}
		if asked[o.Node] || !n.is(ref) {
			continue
		}
		asked[o.Node] = true
		if answer := s.ask(r, o.Node, nil); answer.status != http.StatusNoContent && answer.status != http.StatusNotFound {
			return fault.Newf(fault.Unavailable, "e2b.deleteElsewhere", o.ID, "the node of an older snapshot of this name has not deleted it (status %d)", answer.status)
		}
	}
	return nil
}

// templateNode returns the node of a template or a snapshot with a name or an ID; "" if unknown.
func (s *Server) templateNode(ctx context.Context, team id.Token, ref string) (string, fleet.Key, error) {
	name := templateName(ref)
	for _, k := range []fleet.Key{templateAlias(team, name), {Kind: fleet.Template, ID: name}, {Kind: fleet.Snapshot, ID: name}} {
		if name == "" {
			break
		}
		if node, k, err := s.owner(ctx, k); err != nil || node != "" {
			return node, k, err
		}
	}
	return "", fleet.Key{}, nil
}

// templateName returns the name or ID in a reference to a template.
func templateName(ref string) string {
	name, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(ref)), ":")
	return name
}

func templateAlias(team id.Token, name string) fleet.Key {
	return fleet.Key{Kind: fleet.Alias, ID: "template/" + string(team) + "/" + name}
}

func volumeAlias(team id.Token, name string) fleet.Key {
	return fleet.Key{Kind: fleet.Alias, ID: "volume/" + string(team) + "/" + name}
}

// TemplateObjects returns the index entries of a template with a name.
func TemplateObjects(team id.Token, ref, name string, created time.Time, listed any) ([]fleet.Object, error) {
	object, err := objectOf(fleet.Template, ref, team, created, listed)
	return []fleet.Object{object, alias(templateAlias(team, name), team, created)}, err
}

func alias(k fleet.Key, team id.Token, created time.Time) fleet.Object {
	return fleet.Object{Kind: k.Kind, ID: k.ID, Tenant: string(team), Created: created.UTC(), Summary: "{}"}
}

func objectOf(kind fleet.Kind, ref string, team id.Token, created time.Time, summary any) (fleet.Object, error) {
	data, err := json.Marshal(summary)
	return fleet.Object{Kind: kind, ID: ref, Tenant: string(team), Created: created.UTC(), Summary: string(data)}, err
}

// Objects returns the sandboxes, snapshots and volumes of this node for the index of the fleet.
// They contain no tokens and no environment variables.
func (s *Server) Objects(ctx context.Context) ([]fleet.Object, error) {
	var all []fleet.Object
	add := func(kind fleet.Kind, ref string, team id.Token, created time.Time, summary any) error {
		object, err := objectOf(kind, ref, team, created, summary)
		all = append(all, object)
		return err
	}
	for _, c := range s.cfg.Sandboxes.currentHandles() {
		b := *c.box.Load()
		if !b.visible() {
			continue
		}
		b.Token, b.Traffic, b.Env, b.Network = "", "", nil, Network{}
		if err := add(fleet.Sandbox, b.ID, b.Team, b.Started, b); err != nil {
			return nil, err
		}
	}
	taken, err := s.cfg.Sandboxes.allSnapshots(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range taken {
		team := id.Token(n.Labels[labelTeam])
		shown := NamedSnapshot{}
		shown.ID, shown.Created = n.ID, n.Created
		shown.Labels = map[string]string{labelName: n.Labels[labelName], LabelSandbox: n.Labels[LabelSandbox]}
		if err := add(fleet.SandboxSnapshot, string(n.ID), team, n.Created, shown); err != nil {
			return nil, err
		}
		if n.Labels[labelName] != "" {
			all = append(all, alias(templateAlias(team, n.name()), team, n.Created))
		}
	}
	for _, v := range s.cfg.Volumes.list(nil) {
		if err := add(fleet.Volume, v.ID, v.Team, v.Created, wireVolume{VolumeID: v.ID, Name: v.Name}); err != nil {
			return nil, err
		}
		all = append(all, alias(volumeAlias(v.Team, v.Name), v.Team, v.Created))
	}
	return unique(all), nil
}

// unique keeps the newest of the entries with the same key: snapshots can have the same name.
func unique(all []fleet.Object) []fleet.Object {
	slices.SortStableFunc(all, func(a, b fleet.Object) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID), b.Created.Compare(a.Created))
	})
	return slices.CompactFunc(all, func(a, b fleet.Object) bool { return a.Key() == b.Key() })
}

// Others returns what other nodes have published of one kind and team, the oldest first.
func Others[T any](ctx context.Context, f Fleet, kind fleet.Kind, team id.Token) ([]T, error) {
	if f == nil {
		return nil, nil
	}
	list, err := allObjects(ctx, f, kind, team)
	if err != nil {
		return nil, err
	}
	var all []T
	for _, o := range list {
		if o.Node == f.Self() {
			continue
		}
		var v T
		if err := json.Unmarshal([]byte(o.Summary), &v); err != nil {
			return nil, fmt.Errorf("read the entry of %s %s: %w", kind, o.ID, err)
		}
		all = append(all, v)
	}
	return all, nil
}

// allObjects returns what all nodes have published of one kind and team, the oldest first.
func allObjects(ctx context.Context, f Fleet, kind fleet.Kind, team id.Token) ([]fleet.Object, error) {
	all, err := fleet.All(ctx, f, kind, string(team))
	if err != nil {
		return nil, fault.New(fault.Unavailable, "e2b.allObjects", "", err)
	}
	return all, nil
}

// A buffer keeps the response of another node.
type buffer struct {
	header http.Header
	status int
	bytes.Buffer
}

func newBuffer() *buffer { return &buffer{header: http.Header{}, status: http.StatusOK} }

func (b *buffer) Header() http.Header { return b.header }
func (b *buffer) WriteHeader(n int)   { b.status = n }

// ask sends a copy of a request without a body to another node, and returns its response.
func (s *Server) ask(r *http.Request, node string, query url.Values) *buffer {
	r = r.Clone(r.Context())
	r.URL.RawQuery = query.Encode()
	b := newBuffer()
	s.forward(b, r, node, fleet.Key{})
	return b
}

// metricsElsewhere adds the last samples of sandboxes of other nodes. What cannot be read is
// omitted, as a sandbox that no longer exists.
func (s *Server) metricsElsewhere(r *http.Request, sandboxes []string, to map[string]wireSample) {
	byNode := map[string][]string{}
	for _, sandbox := range sandboxes {
		if node, _, err := s.owner(r.Context(), fleet.Key{Kind: fleet.Sandbox, ID: canonicalID(sandbox)}); err == nil && node != "" {
			byNode[node] = append(byNode[node], sandbox)
		}
	}
	for node, wanted := range byNode {
		var got struct {
			Sandboxes map[string]wireSample `json:"sandboxes"`
		}
		answer := s.ask(r, node, url.Values{"sandbox_ids": {strings.Join(wanted, ",")}})
		if answer.status != http.StatusOK || json.Unmarshal(answer.Bytes(), &got) != nil {
			s.cfg.Log.Warn("another node has not sent the metrics of sandboxes", "node", node, "status", answer.status)
			continue
		}
		for _, sandbox := range wanted {
			if sample, ok := got.Sandboxes[sandbox]; ok {
				to[sandbox] = sample
			}
		}
	}
}
