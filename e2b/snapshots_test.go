package e2b

import (
	"net/url"
	"regexp"
	"slices"
	"testing"
	"time"

	"glasshouse/e2b/e2btest"
)

// snap takes a snapshot of a sandbox.
func (d *fakeDaemon) snap(box, name string) wireSnapshot {
	d.Helper()
	return e2btest.Read[wireSnapshot](d, d.api(201, "POST", "/sandboxes/"+box+"/snapshots", `{"name":"`+name+`"}`))
}

// snapshotsOf returns the ids of the snapshots that a query lists.
func (d *fakeDaemon) snapshotsOf(query string) (ids []string) {
	d.Helper()
	for _, s := range e2btest.Read[[]wireSnapshot](d, d.api(200, "GET", "/snapshots?"+query, "")) {
		ids = append(ids, s.SnapshotID)
	}
	return ids
}

func TestSnapshotNames(t *testing.T) {
	d := newFakeDaemon(t)
	box := d.create(`{"templateID":"base"}`).SandboxID
	unnamed := d.snap(box, "")
	if len(unnamed.Names) != 0 || unnamed.SnapshotID != string(d.snaps[0].ID)+":default" {
		t.Errorf("without a name: got %+v, want no names and its id with the default tag", unnamed)
	}
	for name, want := range map[string]wireSnapshot{
		"one":         {"one:default", []string{"one"}},
		"two:default": {"two:default", []string{"two"}},
		"three:v1":    {"three:v1", []string{"three:v1"}},
	} {
		if got := d.snap(box, name); got.SnapshotID != want.SnapshotID || !slices.Equal(got.Names, want.Names) {
			t.Errorf("the name %s: got %+v, want %+v", name, got, want)
		}
	}
}

func TestListSnapshotsByName(t *testing.T) {
	d := newFakeDaemon(t)
	box, other := d.create(`{"templateID":"base"}`), d.create(`{"templateID":"base"}`)
	unnamed := d.snap(box.SandboxID, "")
	d.snap(box.SandboxID, "app")
	d.snap(other.SandboxID, "app") // replaces the first
	d.snap(box.SandboxID, "app:v2")
	id := string(d.snaps[0].ID)
	for query, want := range map[string][]string{
		"":                                       {"app:v2", "app:default", unnamed.SnapshotID},
		"limit=1":                                {"app:v2"},
		"name=app":                               {"app:v2"},
		"name=app:default":                       {"app:default"},
		"name=app:v2":                            {"app:v2"},
		"name=app:v3":                            nil,
		"name=none":                              nil,
		"name=" + id:                             {unnamed.SnapshotID},
		"name=" + url.QueryEscape(id+":default"): {unnamed.SnapshotID},
		"sandboxID=" + box.SandboxID:             {"app:v2", unnamed.SnapshotID},
		"sandboxID=" + other.SandboxID + "-glasshouse": {"app:default"},
		"sandboxID=none": nil,
	} {
		if got := d.snapshotsOf(query); !slices.Equal(got, want) {
			t.Errorf("%q: got %v, want %v", query, got, want)
		}
	}
	if w := d.do("GET", "/snapshots", "", "X-API-Key", "key-other"); w.Body.String() != "[]\n" {
		t.Errorf("snapshots of another team: got %s, want none", w.Body)
	}
}

func TestSnapshotsAreTemplates(t *testing.T) {
	d := newFakeDaemon(t)
	box := d.create(`{"templateID":"base","envVars":{"A":"b"}}`).SandboxID
	d.snap(box, "")
	d.snap(box, "app")
	d.snap(box, "app")
	d.snap(box, "app:v2")
	id := string(d.snaps[0].ID)
	uuid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

	for _, ref := range []string{id, id + ":default"} {
		got := e2btest.Read[TemplateDetail](d, d.api(200, "GET", "/templates/"+ref, ""))
		if got.TemplateID != id || len(got.Names) != 0 || len(got.Builds) != 1 || got.Builds[0].Status != "ready" || !uuid.MatchString(got.Builds[0].BuildID) {
			t.Errorf("%s: got %+v, want the id, no name and one build that is ready", ref, got)
		}
	}
	for _, ref := range []string{"app", "app:v2"} {
		got := e2btest.Read[TemplateDetail](d, d.api(200, "GET", "/templates/"+ref, ""))
		if !slices.Equal(got.Names, []string{"app"}) || len(got.Builds) != 3 || !got.Builds[0].Created.After(got.Builds[2].Created) {
			t.Errorf("%s: got %+v, want the name and three builds, newest first", ref, got)
		}
	}
	tags := e2btest.Read[[]TemplateTag](d, d.api(200, "GET", "/templates/app/tags", ""))
	if len(tags) != 2 || tags[0].Tag != "v2" || tags[1].Tag != "default" || tags[0].BuildID == tags[1].BuildID || !uuid.MatchString(tags[1].BuildID) {
		t.Fatalf("got the tags %+v, want v2 and default", tags)
	}
	if again := e2btest.Read[[]TemplateTag](d, d.api(200, "GET", "/templates/"+string(d.snaps[1].ID)+"/tags", "")); len(again) != 2 {
		t.Errorf("the tags by the id of an older build: got %+v, want two", again)
	}
	// Every name of the snapshot can be used to create a sandbox.
	for ref, want := range map[string]string{
		id: id, id + ":default": id, "app": string(d.snaps[2].ID), "app:v2": string(d.snaps[3].ID), "app:" + tags[1].BuildID: string(d.snaps[2].ID),
	} {
		got := d.create(`{"templateID":"` + ref + `"}`)
		if got.TemplateID != want {
			t.Errorf("a sandbox of %s: got the template %s, want %s", ref, got.TemplateID, want)
		}
		if b := d.handle(got.SandboxID).box.Load(); b.Env["A"] != "b" {
			t.Errorf("a sandbox of %s: got the variables %v, want those of the sandbox", ref, b.Env)
		}
	}
	for _, ref := range []string{"app:v3", id + ":v2", "app:00000000-0000-4000-8000-000000000000"} {
		d.api(404, "POST", "/v2/sandboxes", `{"templateID":"`+ref+`"}`)
		d.api(404, "GET", "/templates/"+ref, "")
	}
	if w := d.do("GET", "/templates/app", "", "X-API-Key", "key-other"); w.Code != 404 {
		t.Errorf("another team's: got %d, want 404", w.Code)
	}

	d.api(204, "DELETE", "/templates/app", "") // both snapshots with the default tag
	d.api(404, "DELETE", "/templates/app", "")
	if got := d.snapshotsOf("name=app"); !slices.Equal(got, []string{"app:v2"}) {
		t.Errorf("after the default tag was deleted: got %v, want app:v2", got)
	}
	d.api(204, "DELETE", "/templates/"+id, "")
	if len(d.snaps) != 1 {
		t.Errorf("got %d snapshots, want one", len(d.snaps))
	}
}

func TestListSandboxesByStartTime(t *testing.T) {
	d := newFakeDaemon(t)
	var boxes []string
	for range 3 {
		boxes = append(boxes, d.create(`{"templateID":"base"}`).SandboxID)
	}
	start := time.Date(2026, 1, 2, 3, 4, 5, 123456000, time.UTC)
	for i, id := range boxes { // a microsecond apart
		c := d.handle(id)
		b := *c.box.Load()
		b.Started = start.Add(time.Duration(i)*time.Microsecond + 789)
		c.box.Store(&b)
	}
	for since, want := range map[string]int{
		"2026-01-02T03:04:05.123456Z":        3, // inclusive
		"2026-01-02T03:04:05.1234569Z":       3, // truncated to microseconds
		"2026-01-02T03:04:05.123457Z":        2,
		"2026-01-02T03:04:05.123458Z":        1,
		"2026-01-02T03:04:05.123459Z":        0,
		"2026-01-02T04:04:05.123457%2B01:00": 2,
	} {
		got := e2btest.Read[[]wireListed](d, d.api(200, "GET", "/v2/sandboxes?order=asc&startedAfter="+since, ""))
		var ids []string
		for _, b := range got {
			ids = append(ids, b.SandboxID)
		}
		if !slices.Equal(ids, boxes[3-want:]) {
			t.Errorf("since %s: got %v, want %v", since, ids, boxes[3-want:])
		}
	}
	w := d.api(200, "GET", "/v2/sandboxes?state=paused,running&limit=2", "")
	if got := e2btest.Read[[]wireListed](d, w); len(got) != 2 || got[0].SandboxID != boxes[2] || w.Header().Get("X-Total-Running") != "3" || w.Header().Get("X-Next-Token") == "" {
		t.Errorf("a page: got %+v %v, want the newest two, three that run and a token", got, w.Header())
	}
	w = d.api(200, "GET", "/v2/sandboxes?limit=2&nextToken="+url.QueryEscape(w.Header().Get("X-Next-Token")), "")
	if got := e2btest.Read[[]wireListed](d, w); len(got) != 1 || got[0].SandboxID != boxes[0] || w.Header().Get("X-Next-Token") != "" {
		t.Errorf("the last page: got %+v %v, want the oldest and no token", got, w.Header())
	}
	d.api(204, "POST", "/sandboxes/"+boxes[1]+"/pause", "")
	for path, want := range map[string]int{"/sandboxes": 2, "/v2/sandboxes": 3, "/v2/sandboxes?state=paused": 1, "/v2/sandboxes?template=base": 3, "/v2/sandboxes?template=x": 0} {
		if got := e2btest.Read[[]wireListed](d, d.api(200, "GET", path, "")); len(got) != want {
			t.Errorf("%s: got %d, want %d", path, len(got), want)
		}
	}
}
