package e2b

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"glasshouse/e2b/envd"
	"glasshouse/fault"
)

// routes lists the supported operations of the control API.
var routes = []struct {
	pattern string
	do      func(request) (int, any, error)
}{
	{"POST /sandboxes", createFirst},
	{"POST /v2/sandboxes", createSecond},
	{"GET /sandboxes", listRunning},
	{"GET /v2/sandboxes", list},
	{"GET /sandboxes/metrics", metricsOfMany},
	{"GET /sandboxes/{sandbox}", get},
	{"DELETE /sandboxes/{sandbox}", kill},
	{"POST /sandboxes/{sandbox}/connect", connect},
	{"POST /v2/sandboxes/{sandbox}/connect", connect},
	{"POST /sandboxes/{sandbox}/timeout", setTimeout},
	{"POST /sandboxes/{sandbox}/refreshes", refresh},
	{"POST /sandboxes/{sandbox}/resume", resume},
	{"POST /sandboxes/{sandbox}/pause", pause},
	{"POST /sandboxes/{sandbox}/snapshots", takeSnapshot},
	{"GET /snapshots", listSnapshots},
	{"GET /templates/{template}", getTemplate},
	{"GET /templates/{template}/tags", getTags},
	{"DELETE /templates/{template}", deleteTemplate},
	{"POST /sandboxes/{sandbox}/fork", fork},
	{"PUT /sandboxes/{sandbox}/network", setNetwork},
	{"GET /sandboxes/{sandbox}/metrics", metrics},
	{"GET /sandboxes/{sandbox}/logs", logsFirst},
	{"GET /v2/sandboxes/{sandbox}/logs", logsSecond},
	{"POST /volumes", createVolume},
	{"GET /volumes", listVolumes},
	{"GET /volumes/{volume}", getVolume},
	{"DELETE /volumes/{volume}", destroyVolume},
	{"POST /secrets", createSecret},
	{"GET /secrets", listSecrets},
	{"GET /secrets/{secret}", getSecret},
	{"POST /secrets/{secret}", updateSecret},
	{"DELETE /secrets/{secret}", destroySecret},
}

// defaultTimeout is the timeout of a sandbox if the request has none; firstTimeout is that of
// version 1 of the protocol.
const (
	defaultTimeout = 300 * time.Second
	firstTimeout   = 15 * time.Second
)

func createFirst(r request) (int, any, error)  { return create(r, firstTimeout, false) }
func createSecond(r request) (int, any, error) { return create(r, defaultTimeout, true) }

func create(r request, timeout time.Duration, secure bool) (int, any, error) {
	var b newSandbox
	if err := r.read(&b); err != nil {
		return 0, nil, err
	}
	if b.TemplateID == "" {
		return 0, nil, invalid("request body has an error: templateID is missing")
	}
	w := CreateOptions{
		Template: b.TemplateID, Timeout: seconds(b.Timeout, timeout), Metadata: b.Metadata, Env: b.EnvVars,
		Secure: secure || b.Secure != nil && *b.Secure, AutoPause: b.AutoPause, FilesOnly: b.AutoPauseMemory != nil && !*b.AutoPauseMemory,
		AutoResume: b.AutoResume.Enabled, Internet: b.Internet, Volumes: b.VolumeMounts,
	}
	if b.Network != nil {
		w.Network = *b.Network
	}
	made, err := r.s.cfg.Sandboxes.Create(r.Context(), r.team, w)
	return http.StatusCreated, r.s.sandboxOf(r.Context(), made), err
}

// seconds converts a number of seconds, or returns otherwise for nil. A longer time than any
// sandbox may have is cut to maxTimeout plus a second.
func seconds(n *int64, otherwise time.Duration) time.Duration {
	if n == nil {
		return otherwise
	}
	return time.Duration(min(max(*n, -1), int64(maxTimeout/time.Second)+1)) * time.Second
}

func get(r request) (int, any, error) {
	c, err := r.s.cfg.Sandboxes.find(r.team, r.sandbox())
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, r.s.detailOf(r.Context(), *c.box.Load()), nil
}

func kill(r request) (int, any, error) {
	return http.StatusNoContent, nil, r.s.cfg.Sandboxes.Kill(r.Context(), r.team, r.sandbox())
}

// resumeRequest is the body of connect and resume.
type resumeRequest struct {
	Timeout *int64 `json:"timeout"`
	Memory  *bool  `json:"memory"`
}

func (g resumeRequest) memory() bool { return g.Memory == nil || *g.Memory }

func connect(r request) (int, any, error) {
	var b resumeRequest
	if err := r.read(&b); err != nil {
		return 0, nil, err
	}
	box, woke, err := r.s.cfg.Sandboxes.Connect(r.Context(), r.team, r.sandbox(), seconds(b.Timeout, defaultTimeout), b.memory())
	if err != nil {
		return 0, nil, err
	}
	if woke {
		return http.StatusCreated, r.s.sandboxOf(r.Context(), box), nil
	}
	return http.StatusOK, r.s.sandboxOf(r.Context(), box), nil
}

func resume(r request) (int, any, error) {
	var b resumeRequest
	if err := r.read(&b); err != nil {
		return 0, nil, err
	}
	box, err := r.s.cfg.Sandboxes.Resume(r.Context(), r.team, r.sandbox(), seconds(b.Timeout, firstTimeout), b.memory())
	if err != nil {
		return 0, nil, err
	}
	return http.StatusCreated, r.s.sandboxOf(r.Context(), box), nil
}

func setTimeout(r request) (int, any, error) {
	var b struct {
		Timeout *int64 `json:"timeout"`
	}
	if err := r.read(&b); err != nil {
		return 0, nil, err
	}
	if b.Timeout == nil {
		return 0, nil, invalid("request body has an error: timeout is missing")
	}
	return http.StatusNoContent, nil, r.s.cfg.Sandboxes.SetTimeout(r.Context(), r.team, r.sandbox(), seconds(b.Timeout, 0), false)
}

func refresh(r request) (int, any, error) {
	var b struct {
		Duration *int64 `json:"duration"`
	}
	if err := r.read(&b); err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, r.s.cfg.Sandboxes.SetTimeout(r.Context(), r.team, r.sandbox(), seconds(b.Duration, firstTimeout), true)
}

func pause(r request) (int, any, error) {
	var b struct {
		Memory *bool `json:"memory"`
	}
	if err := r.read(&b); err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, r.s.cfg.Sandboxes.Pause(r.Context(), r.team, r.sandbox(), b.Memory == nil || *b.Memory)
}

func takeSnapshot(r request) (int, any, error) {
	var b struct {
		Name string `json:"name"`
	}
	if err := r.read(&b); err != nil {
		return 0, nil, err
	}
	s, err := r.s.cfg.Sandboxes.Snapshot(r.Context(), r.team, r.sandbox(), b.Name)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusCreated, snapshotOf(s), nil
}

// snapshotTemplate returns the snapshots that clients see as one template: all snapshots of a name,
// newest first, or the single snapshot of an id. Another handler serves all other templates, and
// the operations below /templates that do not concern a single template.
func snapshotTemplate(r request) ([]NamedSnapshot, error) {
	ref := r.PathValue("template")
	if ref == "tags" || ref == "aliases" {
		return nil, r.passOn()
	}
	one, ok := r.s.cfg.Sandboxes.snapshotNamed(r.Context(), r.team, ref)
	if !ok {
		return nil, r.passOn()
	}
	all, err := r.s.cfg.Sandboxes.snapshots(r.Context(), r.team)
	return slices.DeleteFunc(all, func(s NamedSnapshot) bool { return s.name() != one.name() }), err
}

// passOn returns the error that passes a request for a template to another handler.
func (r request) passOn() error {
	if r.s.cfg.Fallback != nil {
		return errPassOn
	}
	return fault.Newf(fault.NotFound, "e2b.passOn", "", "template '%s' not found", short(r.PathValue("template")))
}

func getTemplate(r request) (int, any, error) {
	builds, err := snapshotTemplate(r)
	if err != nil {
		return 0, nil, err
	}
	newest, oldest := builds[0], builds[len(builds)-1]
	w := TemplateDetail{
		TemplateID: string(newest.ID), Names: []string{}, Aliases: []string{}, Created: oldest.Created, Updated: newest.Created,
	}
	if newest.Labels[labelName] != "" {
		w.Names, w.Aliases = []string{newest.name()}, []string{newest.name()}
	}
	for _, s := range builds {
		t := s.template().withDefaults()
		w.Builds = append(w.Builds, TemplateBuild{
			BuildID: s.build(), Status: "ready", Created: s.Created, Updated: s.Created, Finished: &s.Created,
			CPU: t.CPU, MemoryMB: t.MemoryMB, DiskMB: t.DiskMB, EnvdVersion: envd.Version,
		})
	}
	return http.StatusOK, w, nil
}

func getTags(r request) (int, any, error) {
	builds, err := snapshotTemplate(r)
	if err != nil {
		return 0, nil, err
	}
	var all []TemplateTag
	for _, s := range builds {
		if !slices.ContainsFunc(all, func(t TemplateTag) bool { return t.Tag == s.tag() }) { // a newer snapshot has taken the tag of older ones
			all = append(all, TemplateTag{s.tag(), s.build(), s.Created})
		}
	}
	return http.StatusOK, all, nil
}

func deleteTemplate(r request) (int, any, error) {
	if _, err := snapshotTemplate(r); err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, r.s.cfg.Sandboxes.DeleteSnapshot(r.Context(), r.team, r.PathValue("template"))
}

func fork(r request) (int, any, error) {
	b := struct {
		Timeout *int64 `json:"timeout"`
		Count   *int   `json:"count"`
	}{}
	if err := r.read(&b); err != nil {
		return 0, nil, err
	}
	count := 1
	if b.Count != nil {
		count = *b.Count
	}
	forks, err := r.s.cfg.Sandboxes.Fork(r.Context(), r.team, r.sandbox(), count, seconds(b.Timeout, firstTimeout))
	if err != nil {
		return 0, nil, err
	}
	all := make([]wireFork, len(forks))
	for i, f := range forks {
		if f.Err != nil {
			e := ErrorOf(f.Err)
			all[i].Error = &e
			continue
		}
		w := r.s.sandboxOf(r.Context(), f.Sandbox)
		all[i].Sandbox = &w
	}
	return http.StatusCreated, all, nil
}

func setNetwork(r request) (int, any, error) {
	var b struct {
		Network
		Internet *bool `json:"allow_internet_access"`
	}
	if err := r.read(&b); err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, r.s.cfg.Sandboxes.SetNetwork(r.Context(), r.team, r.sandbox(), b.Network, b.Internet)
}

func metrics(r request) (int, any, error) {
	start, err := unix(r.URL.Query(), "start", time.Second)
	if err != nil {
		return 0, nil, err
	}
	end, err := unix(r.URL.Query(), "end", time.Second)
	if err != nil {
		return 0, nil, err
	}
	if !end.IsZero() {
		if end.Before(start) {
			return 0, nil, invalid("start is after end")
		}
		end = end.Add(time.Second - 1) // includes the whole last second
	}
	list, cpus, err := r.s.cfg.Sandboxes.Metrics(r.Context(), r.team, r.sandbox(), start, end)
	return http.StatusOK, samplesOf(list, cpus), err
}

// unix parses a time in a query, as a number of units since 1970.
func unix(q url.Values, name string, unit time.Duration) (time.Time, error) {
	s := q.Get(name)
	if s == "" {
		return time.Time{}, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > maxUnix*int64(time.Second/unit) {
		return time.Time{}, invalid("invalid %s: %q", name, short(s))
	}
	return time.Unix(n/int64(time.Second/unit), n%int64(time.Second/unit)*int64(unit)).UTC(), nil
}

// maxUnix limits times to a range without overflow, in seconds since 1970.
const maxUnix = 1 << 36
