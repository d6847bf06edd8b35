package template

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"glasshouse/e2b"
	"glasshouse/e2b/envd"
	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/id"
	"glasshouse/policy/access"
)

// routes lists the operations of the control API on templates, for authenticated callers.
var routes = []struct {
	pattern string
	do      func(request) (int, any, error)
}{
	{"POST /v3/templates", requestBuild},
	{"POST /v2/templates/{template}/builds/{build}", beginBuild},
	{"GET /templates/{template}/builds/{build}/status", buildStatus},
	{"GET /templates/{template}/builds/{build}/logs", buildLogs},
	{"GET /templates/{template}/files/{hash}", uploadLink},
	{"GET /templates", listAll},
	{"GET /v2/templates", listPages},
	{"GET /templates/{template}", getTemplate},
	{"PATCH /templates/{template}", updateTemplate},
	{"PATCH /v2/templates/{template}", updateTemplate},
	{"DELETE /templates/{template}", deleteTemplate},
	{"GET /templates/{template}/{what}", getTags}, // also serves /templates/aliases/{alias}
	{"POST /templates/tags", assignTags},
	{"DELETE /templates/tags", removeTags},
}

// Handler returns the handler of requests for templates.
func (t *Templates) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, r := range routes {
		mux.Handle(r.pattern, t.route(r.do))
	}
	mux.Handle("/", t.route(func(request) (int, any, error) {
		return 0, nil, missing("no matching operation was found")
	}))
	return mux
}

// A request is an authenticated request of a team.
type request struct {
	*http.Request
	w    http.ResponseWriter
	team id.Token
	t    *Templates
}

// maxBody is the maximum size of a JSON request body.
const maxBody = 4 << 20

func (r request) read(v any) error { return e2b.ReadBody(r.w, r.Request, v, maxBody) }

// route calls do and writes the response. A status without a body has an empty response.
func (t *Templates) route(do func(request) (int, any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer e2b.Recover(t.cfg.Log, w, r)
		status, body, err := do(request{r, w, access.CallerOf(r.Context()).Token, t})
		if err != nil {
			e2b.WriteError(t.cfg.Log, w, r, err)
			return
		}
		if r.Method != http.MethodGet && t.cfg.Changed != nil {
			t.cfg.Changed(r.Context())
		}
		e2b.WriteJSON(w, status, body)
	})
}

type wireRequested struct {
	TemplateID string   `json:"templateID"`
	BuildID    string   `json:"buildID"`
	Names      []string `json:"names"`
	Aliases    []string `json:"aliases"`
	Tags       []string `json:"tags"`
	Public     bool     `json:"public"`
}

func requestBuild(r request) (int, any, error) {
	var q Request
	if err := r.read(&q); err != nil {
		return 0, nil, err
	}
	of, b, err := r.t.RequestBuild(r.Context(), r.team, q)
	return http.StatusAccepted, wireRequested{of.ID, b.ID, []string{of.Name}, []string{of.Name}, b.Tags, false}, err
}

// build returns the build id in the path.
func (r request) build() (string, error) {
	build := strings.ToLower(r.PathValue("build"))
	if !uuidPattern.MatchString(build) {
		return "", invalid("Invalid build ID %q: want a UUID", short(build))
	}
	return build, nil
}

func beginBuild(r request) (int, any, error) {
	build, err := r.build()
	if err != nil {
		return 0, nil, err
	}
	var p Plan
	if err := r.read(&p); err != nil {
		return 0, nil, err
	}
	return http.StatusAccepted, nil, r.t.StartBuild(r.Context(), r.team, r.PathValue("template"), build, p)
}

type wireReason struct {
	Message string  `json:"message"`
	Step    string  `json:"step,omitempty"`
	Entries []Entry `json:"logEntries"`
}

type wireStatus struct {
	TemplateID string      `json:"templateID"`
	BuildID    string      `json:"buildID"`
	Status     State       `json:"status"`
	Entries    []Entry     `json:"logEntries"`
	Logs       []string    `json:"logs"`
	Reason     *wireReason `json:"reason,omitempty"`
}

// pageOfLogs is the maximum number of lines in one response.
const pageOfLogs = 100

func buildStatus(r request) (int, any, error) {
	build, err := r.build()
	if err != nil {
		return 0, nil, err
	}
	q := r.URL.Query()
	offset, err := number(q.Get("logsOffset"), 0, maxEntries)
	if err != nil {
		return 0, nil, err
	}
	limit, err := number(q.Get("limit"), pageOfLogs, pageOfLogs)
	if err != nil {
		return 0, nil, err
	}
	least, err := level(q.Get("level"))
	if err != nil {
		return 0, nil, err
	}
	b, entries, err := r.t.buildWithLog(r.team, r.PathValue("template"), build)
	if err != nil {
		return 0, nil, err
	}
	w := wireStatus{TemplateID: b.Template, BuildID: b.ID, Status: b.State, Entries: []Entry{}, Logs: []string{}}
	shown := atLeast(entries, least)
	if offset < len(shown) {
		w.Entries = shown[offset:min(offset+limit, len(shown))]
	}
	if b.Reason != nil {
		w.Reason = &wireReason{b.Reason.Message, b.Reason.Step, []Entry{}}
		for _, e := range entries {
			if e.Step == b.Reason.Step && e.Level == "error" {
				w.Reason.Entries = append(w.Reason.Entries, e)
			}
		}
	}
	return http.StatusOK, w, nil
}

// buildWithLog returns a build and its log.
func (t *Templates) buildWithLog(team id.Token, template, build string) (Build, []Entry, error) {
	t.mu.Lock()
	found, err := t.buildOf(team, template, build)
	if err != nil {
		t.mu.Unlock()
		return Build{}, nil, err
	}
	b, at := *found, t.working[build]
	t.mu.Unlock()
	if at != nil {
		return b, at.log.all(), nil
	}
	entries, err := readLog(t.logOf(b.ID))
	return b, entries, err
}

func atLeast(entries []Entry, least int) []Entry {
	if least == 0 {
		return entries
	}
	return slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool { return slices.Index(levels, e.Level) < least })
}

func level(s string) (int, error) {
	i := slices.Index(levels, cmp.Or(s, levels[0]))
	if i < 0 {
		return 0, invalid("invalid level %q", short(s))
	}
	return i, nil
}

// number parses a number that is not negative, and cuts it to most.
func number(s string, otherwise, most int) (int, error) {
	if s == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, invalid("invalid number %q", short(s))
	}
	return min(int(n), most), nil
}

func buildLogs(r request) (int, any, error) {
	build, err := r.build()
	if err != nil {
		return 0, nil, err
	}
	q := r.URL.Query()
	limit, err := number(q.Get("limit"), pageOfLogs, pageOfLogs)
	if err != nil {
		return 0, nil, err
	}
	least, err := level(q.Get("level"))
	if err != nil {
		return 0, nil, err
	}
	direction := cmp.Or(q.Get("direction"), "forward")
	if direction != "forward" && direction != "backward" {
		return 0, nil, invalid("invalid direction %q", short(direction))
	}
	var cursor time.Time
	if s := q.Get("cursor"); s != "" {
		ms, err := strconv.ParseUint(s, 10, 48)
		if err != nil {
			return 0, nil, invalid("invalid cursor %q", short(s))
		}
		cursor = time.UnixMilli(int64(ms))
	}
	_, entries, err := r.t.buildWithLog(r.team, r.PathValue("template"), build)
	if err != nil {
		return 0, nil, err
	}
	entries = slices.Clone(atLeast(entries, least))
	if direction == "backward" {
		slices.Reverse(entries)
	}
	if !cursor.IsZero() {
		entries = slices.DeleteFunc(entries, func(e Entry) bool {
			return direction == "forward" && e.Timestamp.Before(cursor) || direction == "backward" && e.Timestamp.After(cursor)
		})
	}
	return http.StatusOK, map[string]any{"logs": append([]Entry{}, entries[:min(limit, len(entries))]...)}, nil
}

type wireUpload struct {
	Present bool   `json:"present"`
	URL     string `json:"url,omitempty"`
}

// uploadLink returns the URL for an upload, at the address that the client has used.
func uploadLink(r request) (int, any, error) {
	hash := r.PathValue("hash")
	if !filesHash.MatchString(hash) {
		return 0, nil, invalid("invalid hash of files %q", short(hash))
	}
	r.t.mu.Lock()
	_, err := r.t.of(r.team, r.PathValue("template"))
	r.t.mu.Unlock()
	if err != nil {
		return 0, nil, err
	}
	_, _, err = r.t.files.find(r.team, hash)
	if err != nil && !errors.Is(err, fault.NotFound) {
		return 0, nil, err
	}
	scheme := "http"
	if r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		scheme = "https"
	}
	link := scheme + "://" + r.Host + e2b.UploadLink(r.t.cfg.Fleet, r.t.files.sign(r.team, hash, time.Now().Add(linkTime)))
	return http.StatusCreated, wireUpload{err == nil, link}, nil
}

// Receive accepts the upload of a client with an upload link, which identifies the team.
func (t *Templates) Receive(w http.ResponseWriter, r *http.Request) {
	defer e2b.Recover(t.cfg.Log, w, r)
	if err := t.receive(w, r); err != nil {
		e2b.WriteError(t.cfg.Log, w, r, err)
		return
	}
	e2b.WriteJSON(w, http.StatusOK, nil)
}

// uploadTime limits the upload of the files of one COPY.
const uploadTime = 30 * time.Minute

func (t *Templates) receive(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodPut {
		return invalid("uploads require PUT")
	}
	team, hash, err := t.files.signed(strings.TrimPrefix(r.URL.Path, e2b.UploadPath))
	if err != nil {
		return err
	}
	limit := t.cfg.UploadMB << 20
	tooLarge := fault.Newf(fault.TooLarge, "template.receive", "", "the files have more than %d MiB", t.cfg.UploadMB)
	if r.ContentLength > limit {
		return tooLarge
	}
	select {
	case t.uploads <- struct{}{}:
		defer func() { <-t.uploads }()
	case <-r.Context().Done():
		return r.Context().Err()
	}
	if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(uploadTime)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("extend the deadline of the upload: %w", err)
	}
	err = t.files.put(r.Context(), team, hash, http.MaxBytesReader(w, r.Body, limit))
	if _, over := errors.AsType[*http.MaxBytesError](err); over {
		return tooLarge
	}
	return err
}

type wireTemplate struct {
	TemplateID  string     `json:"templateID"`
	BuildID     string     `json:"buildID"`
	BuildStatus State      `json:"buildStatus"`
	CPU         int        `json:"cpuCount"`
	MemoryMB    int64      `json:"memoryMB"`
	DiskMB      int64      `json:"diskSizeMB"`
	EnvdVersion string     `json:"envdVersion"`
	BuildCount  int        `json:"buildCount"`
	SpawnCount  int64      `json:"spawnCount"`
	LastSpawned *time.Time `json:"lastSpawnedAt"`
	Created     time.Time  `json:"createdAt"`
	Updated     time.Time  `json:"updatedAt"`
	CreatedBy   *string    `json:"createdBy"`
	Public      bool       `json:"public"`
	Names       []string   `json:"names"`
	Aliases     []string   `json:"aliases"`
}

// listed returns the templates of a team, newest first.
func (t *Templates) listed(ctx context.Context, team id.Token) ([]wireTemplate, error) {
	all, err := e2b.Others[wireTemplate](ctx, t.cfg.Fleet, fleet.Template, team)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, of := range t.templates {
		if of.Team == team {
			all = append(all, t.wireOf(of))
		}
	}
	slices.SortFunc(all, func(a, b wireTemplate) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.TemplateID, b.TemplateID))
	})
	return append([]wireTemplate{}, all...), nil
}

// wireOf describes a template in lists. The caller holds mu.
func (t *Templates) wireOf(of *Template) wireTemplate {
	w := wireTemplate{
		TemplateID: of.ID, EnvdVersion: envd.Version, BuildCount: of.Builds, SpawnCount: of.Spawned, LastSpawned: of.Last,
		Created: of.Created, Updated: of.Updated, Names: []string{of.Name}, Aliases: []string{of.Name}, BuildStatus: Waiting,
	}
	b := t.builds[of.Tags[DefaultTag].Build]
	if builds := t.buildsOf(of.ID); b == nil && len(builds) > 0 {
		b = builds[0]
	}
	if b != nil {
		w.BuildID, w.BuildStatus, w.CPU, w.MemoryMB, w.DiskMB = b.ID, b.State, b.CPU, b.MemoryMB, b.DiskMB
	}
	return w
}

// Objects returns the templates of this node for the index of the fleet.
func (t *Templates) Objects() (all []fleet.Object, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, of := range t.templates {
		objects, err := e2b.TemplateObjects(of.Team, of.ID, of.Name, of.Created, t.wireOf(of))
		if err != nil {
			return nil, err
		}
		all = append(all, objects...)
	}
	return all, nil
}

func listAll(r request) (int, any, error) {
	all, err := r.t.listed(r.Context(), r.team)
	return http.StatusOK, all, err
}

func listPages(r request) (int, any, error) {
	all, err := r.t.listed(r.Context(), r.team)
	if err != nil {
		return 0, nil, err
	}
	all, err = page(r, all, func(w wireTemplate) string { return w.TemplateID })
	return http.StatusOK, all, err
}

// page returns the items after the one that the token names, and sets a header to the next
// token.
func page[T any](r request, all []T, name func(T) string) ([]T, error) {
	limit, err := number(r.URL.Query().Get("limit"), 100, 100)
	if err != nil {
		return nil, err
	}
	if limit == 0 {
		return nil, invalid("limit must be at least 1")
	}
	if after := r.URL.Query().Get("nextToken"); after != "" {
		i := slices.IndexFunc(all, func(v T) bool { return name(v) == after })
		if i < 0 {
			return nil, invalid("Invalid next token")
		}
		all = all[i+1:]
	}
	if len(all) > limit {
		all = all[:limit]
		r.w.Header().Set("X-Next-Token", name(all[limit-1]))
	}
	return all, nil
}

func getTemplate(r request) (int, any, error) {
	r.t.mu.Lock()
	of, err := r.t.of(r.team, r.PathValue("template"))
	if err != nil {
		r.t.mu.Unlock()
		return 0, nil, err
	}
	w := e2b.TemplateDetail{
		TemplateID: of.ID, Names: []string{of.Name}, Aliases: []string{of.Name}, Created: of.Created, Updated: of.Updated,
		LastSpawned: of.Last, SpawnCount: of.Spawned, Builds: []e2b.TemplateBuild{},
	}
	for _, b := range r.t.buildsOf(of.ID) {
		w.Builds = append(w.Builds, e2b.TemplateBuild{
			BuildID: b.ID, Status: string(b.State), Created: b.Created, Updated: b.Updated, Finished: b.Finished,
			CPU: b.CPU, MemoryMB: b.MemoryMB, DiskMB: b.DiskMB, EnvdVersion: envd.Version,
		})
	}
	r.t.mu.Unlock()
	w.Builds, err = page(r, w.Builds, func(b e2b.TemplateBuild) string { return b.BuildID })
	return http.StatusOK, w, err
}

// updateTemplate accepts only private templates: a template belongs to its key.
func updateTemplate(r request) (int, any, error) {
	var q struct {
		Public bool `json:"public"`
	}
	if err := r.read(&q); err != nil {
		return 0, nil, err
	}
	r.t.mu.Lock()
	of, err := r.t.of(r.team, r.PathValue("template"))
	r.t.mu.Unlock()
	switch {
	case err != nil:
		return 0, nil, err
	case q.Public:
		return 0, nil, fault.Newf(fault.Unsupported, "template.updateTemplate", of.ID, "public templates are not supported: a template belongs to the key that created it")
	}
	return http.StatusOK, map[string]any{"names": []string{of.Name}}, nil
}

func deleteTemplate(r request) (int, any, error) {
	return http.StatusNoContent, nil, r.t.Delete(r.Context(), r.team, r.PathValue("template"))
}

func getAlias(r request, alias string) (int, any, error) {
	if alias == e2b.Base {
		return http.StatusOK, map[string]any{"templateID": e2b.Base, "public": true}, nil
	}
	if _, _, err := parseName(alias); err != nil {
		return 0, nil, err
	}
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	of, err := r.t.of(r.team, alias)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, map[string]any{"templateID": of.ID, "public": false}, nil
}

func getTags(r request) (int, any, error) {
	switch what := r.PathValue("what"); {
	case r.PathValue("template") == "aliases":
		return getAlias(r, what)
	case what != "tags":
		return 0, nil, missing("no matching operation was found")
	}
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	of, err := r.t.of(r.team, r.PathValue("template"))
	if err != nil {
		return 0, nil, err
	}
	all := []e2b.TemplateTag{}
	for name, tag := range of.Tags {
		all = append(all, e2b.TemplateTag{Tag: name, BuildID: tag.Build, Created: tag.At})
	}
	slices.SortFunc(all, func(a, b e2b.TemplateTag) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.Tag, b.Tag))
	})
	return http.StatusOK, all, nil
}

func assignTags(r request) (int, any, error) {
	var q struct {
		Target string   `json:"target"`
		Tags   []string `json:"tags"`
	}
	if err := r.read(&q); err != nil {
		return 0, nil, err
	}
	build, tags, err := r.t.AssignTags(r.Context(), r.team, q.Target, q.Tags)
	return http.StatusCreated, map[string]any{"buildID": build, "tags": tags}, err
}

func removeTags(r request) (int, any, error) {
	var q struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
	}
	if err := r.read(&q); err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, r.t.RemoveTags(r.Context(), r.team, q.Name, q.Tags)
}
