package e2b

import (
	"cmp"
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"glasshouse/fleet"
)

// A filter selects sandboxes.
type filter struct {
	states   []State // empty: all
	metadata map[string]string
	since    time.Time // only sandboxes that started then or later
	template string
}

func (f filter) takes(b *Sandbox) bool {
	if len(f.states) > 0 && !slices.Contains(f.states, b.clientState()) {
		return false
	}
	if f.template != "" && b.Template != f.template && b.Alias != f.template {
		return false
	}
	for k, v := range f.metadata {
		if have, ok := b.Metadata[k]; !ok || have != v {
			return false
		}
	}
	// Clients and E2B's database use microsecond precision for times.
	return f.since.IsZero() || !b.Started.Truncate(time.Microsecond).Before(f.since.Truncate(time.Microsecond))
}

// choose returns a team's sandboxes in the order of their start.
func (s *Sandboxes) choose(r request, f filter) ([]Sandbox, error) {
	list, err := Others[Sandbox](r.Context(), r.s.cfg.Fleet, fleet.Sandbox, r.team)
	for _, c := range s.all(r.team) {
		list = append(list, *c.box.Load())
	}
	list = slices.DeleteFunc(list, func(b Sandbox) bool { return !f.takes(&b) })
	slices.SortFunc(list, func(a, b Sandbox) int { return position{a.Started, a.ID}.compare(position{b.Started, b.ID}) })
	return list, err
}

// readMetadata parses metadata from a query parameter. Keys and values are query-escaped twice;
// older clients escape them once.
func readMetadata(q url.Values) (map[string]string, error) {
	text := q.Get("metadata")
	if text == "" {
		return nil, nil
	}
	pairs, err := url.ParseQuery(text)
	if err != nil {
		return nil, invalid("cannot parse the metadata query: %q", short(text))
	}
	metadata := map[string]string{}
	for k, vs := range pairs {
		key, err1 := url.PathUnescape(k)
		value, err2 := url.PathUnescape(vs[len(vs)-1])
		if err1 != nil || err2 != nil {
			return nil, invalid("cannot parse the metadata query: %q", short(text))
		}
		metadata[key] = value
	}
	return metadata, nil
}

func listRunning(r request) (int, any, error) {
	metadata, err := readMetadata(r.URL.Query())
	if err != nil {
		return 0, nil, err
	}
	found, err := r.s.cfg.Sandboxes.choose(r, filter{states: []State{Running}, metadata: metadata})
	slices.Reverse(found)
	return http.StatusOK, listed(found), err
}

func listed(list []Sandbox) []wireListed {
	all := make([]wireListed, 0, len(list))
	for _, b := range list {
		all = append(all, listedOf(b))
	}
	return all
}

func list(r request) (int, any, error) {
	q := r.URL.Query()
	f := filter{template: q.Get("template")}
	var err error
	f.metadata, err = readMetadata(q)
	if err != nil {
		return 0, nil, err
	}
	for _, many := range q["state"] {
		for state := range strings.SplitSeq(many, ",") {
			if state != string(Running) && state != string(Paused) {
				return 0, nil, invalid("invalid state %q: want running or paused", short(state))
			}
			f.states = append(f.states, State(state))
		}
	}
	if at := q.Get("startedAfter"); at != "" {
		f.since, err = time.Parse(time.RFC3339Nano, at)
		if err != nil {
			return 0, nil, invalid("invalid startedAfter %q", short(at))
		}
	}
	order := q.Get("order")
	if order != "" && order != "asc" && order != "desc" {
		return 0, nil, invalid("invalid order %q: want asc or desc", short(order))
	}
	found, err := r.s.cfg.Sandboxes.choose(r, f)
	if err != nil {
		return 0, nil, err
	}
	if len(f.states) == 0 || slices.Contains(f.states, Running) {
		n := 0
		for _, b := range found {
			if b.clientState() == Running {
				n++
			}
		}
		r.w.Header().Set("X-Total-Running", strconv.Itoa(n))
	}
	found, err = page(r, found, order != "asc", func(b Sandbox) position { return position{b.Started, b.ID} })
	return http.StatusOK, listed(found), err
}

func listSnapshots(r request) (int, any, error) {
	q := r.URL.Query()
	all, err := r.s.cfg.Sandboxes.snapshots(r.Context(), r.team)
	if err != nil {
		return 0, nil, err
	}
	others, err := Others[NamedSnapshot](r.Context(), r.s.cfg.Fleet, fleet.SandboxSnapshot, r.team)
	if err != nil {
		return 0, nil, err
	}
	if len(others) > 0 {
		all = append(all, others...)
		slices.SortFunc(all, func(a, b NamedSnapshot) int { return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(b.ID, a.ID)) })
	}
	all = chooseSnapshots(all, q.Get("name"), canonicalID(q.Get("sandboxID")))
	slices.Reverse(all)
	all, err = page(r, all, true, func(s NamedSnapshot) position { return position{s.Created, string(s.ID)} })
	if err != nil {
		return 0, nil, err
	}
	shown := make([]wireSnapshot, 0, len(all))
	for _, s := range all {
		shown = append(shown, snapshotOf(s))
	}
	return http.StatusOK, shown, nil
}

// chooseSnapshots returns the snapshots of a list, newest first, that were taken of a sandbox
// and match a name or id. An empty name matches all. Only the newest snapshot of each name and
// tag is returned, because a new one replaces the older ones, as a build replaces a tag's build.
func chooseSnapshots(all []NamedSnapshot, name, sandbox string) []NamedSnapshot {
	bare, _, tagged := strings.Cut(name, ":")
	seen := map[string]bool{}
	var chosen []NamedSnapshot
	for _, s := range all {
		given, _, _ := strings.Cut(cmp.Or(s.Labels[labelName], string(s.ID)), ":")
		ref := s.Ref()
		if name != "" && !tagged {
			ref = given // the newest of all tags
		}
		if seen[ref] {
			continue
		}
		seen[ref] = true
		if sandbox != "" && s.Labels[LabelSandbox] != sandbox || name != "" && !s.is(name) && (tagged || given != bare) {
			continue
		}
		chosen = append(chosen, s)
	}
	return chosen
}

// A position is the position of an item in a sorted list.
type position struct {
	at time.Time
	id string
}

func (p position) compare(o position) int { return cmp.Or(p.at.Compare(o.at), cmp.Compare(p.id, o.id)) }

func (p position) token() string {
	return base64.URLEncoding.EncodeToString([]byte(p.at.Format(time.RFC3339Nano) + "__" + p.id))
}

func readToken(s string) (p position, err error) {
	b, err := base64.URLEncoding.DecodeString(s)
	at, id, ok := strings.Cut(string(b), "__")
	if err == nil && ok {
		p.id = id
		p.at, err = time.Parse(time.RFC3339Nano, at)
	}
	if err != nil || !ok {
		return position{}, invalid("invalid next token %q", short(s))
	}
	return p, nil
}

// maxPage is the maximum number of items in one response.
const maxPage = 100

// page returns one page of a list that is sorted oldest first, and sets a header to the start of
// the next page. A page starts after a position, so items that are added or removed meanwhile do
// not shift it.
func page[T any](r request, list []T, newest bool, at func(T) position) ([]T, error) {
	q := r.URL.Query()
	n := maxPage
	if s := q.Get("limit"); s != "" {
		var err error
		n, err = strconv.Atoi(s)
		if err != nil || n < 1 || n > maxPage {
			return nil, invalid("invalid limit %q: want 1 to %d", short(s), maxPage)
		}
	}
	sign := 1
	if newest {
		slices.Reverse(list)
		sign = -1
	}
	if s := q.Get("nextToken"); s != "" {
		last, err := readToken(s)
		if err != nil {
			return nil, err
		}
		list = slices.DeleteFunc(list, func(x T) bool { return sign*at(x).compare(last) <= 0 })
	}
	if len(list) > n {
		list = list[:n]
		r.w.Header().Set("X-Next-Token", at(list[n-1]).token())
	}
	return list, nil
}

func metricsOfMany(r request) (int, any, error) {
	many := map[string]wireSample{}
	var missing []string
	for _, ids := range r.URL.Query()["sandbox_ids"] {
		for sandbox := range strings.SplitSeq(ids, ",") {
			list, cpus, err := r.s.cfg.Sandboxes.Metrics(r.Context(), r.team, canonicalID(sandbox), time.Time{}, time.Time{})
			if err != nil { // sandboxes that no longer exist are omitted
				missing = append(missing, sandbox)
			} else if all := samplesOf(list, cpus); len(all) > 0 {
				many[sandbox] = all[len(all)-1]
			}
		}
	}
	if len(missing) > 0 && !r.s.local(r.Context()) {
		r.s.metricsElsewhere(r.Request, missing, many)
	}
	return http.StatusOK, map[string]any{"sandboxes": many}, nil
}
