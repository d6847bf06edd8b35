package template

import (
	"bytes"
	"fmt"
	"io"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"glasshouse/e2b"
	"glasshouse/e2b/e2btest"
	"glasshouse/fault"
	"glasshouse/id"
)

const nobody = "00000000-0000-4000-8000-000000000000"

func TestBuild(t *testing.T) {
	b := newBuilds(t)
	of := b.request(`{"name":"app","cpuCount":1,"memoryMB":256}`)
	if !uuidPattern.MatchString(of.BuildID) || !slices.Equal(of.Tags, []string{"default"}) || !slices.Equal(of.Names, []string{"app"}) {
		t.Errorf("got %+v, want a UUID, the default tag and the name", of)
	}
	got := b.run(of, `{"fromImage":"e2bdev/base","steps":[{"type":"ENV","args":["A","1","B","$A-${FROM_IMAGE}"]},{"type":"WORKDIR","args":["/app"]},{"type":"USER","args":["agent"]}]}`)
	if got.Status != Ready {
		t.Fatalf("got %+v, want ready", got)
	}
	for _, want := range []string{"[base] FROM e2bdev/base [sha256:", "[builder 1/3] ENV A 1 B", "[builder 2/3] WORKDIR /app", "[builder 3/3] USER agent", "[finalize] ", "Build finished"} {
		if !strings.Contains(logOf(got), want) {
			t.Errorf("the log: got %s, want %q", logOf(got), want)
		}
	}
	made, err := b.Find(t.Context(), "mine", "app")
	if err != nil || made.ID != of.TemplateID || made.User != "agent" || made.Dir != "/app" || made.Env["B"] != "1-yes" || made.CPU != 1 || made.MemoryMB != 256 || made.Snapshot == "" {
		t.Errorf("got %+v, %v, want the settings of the steps", made, err)
	}
	if text := b.jails.files["/etc/passwd"]; !strings.Contains(text, "agent:x:1001:1001::/home/agent:/bin/sh\n") {
		t.Errorf("/etc/passwd: got %s, want the user agent", text)
	}
	if len(b.jails.jails) != 0 {
		t.Errorf("got %d jails after the build, want none", len(b.jails.jails))
	}

	// The same steps come from the cache, unless the build is forced.
	again := b.run(b.request(`{"name":"app"}`), `{"fromImage":"e2bdev/base","steps":[{"type":"ENV","args":["A","1","B","$A-${FROM_IMAGE}"]},{"type":"WORKDIR","args":["/app"]}]}`)
	if text := logOf(again); again.Status != Ready || !strings.Contains(text, "CACHED [builder 1/2] ENV A 1 B") || !strings.Contains(text, "CACHED [builder 2/2] WORKDIR /app") {
		t.Errorf("built again: got %s, want both steps cached", text)
	}
	forced := b.run(b.request(`{"name":"app"}`), `{"fromImage":"e2bdev/base","steps":[{"type":"ENV","args":["A","1","B","$A-${FROM_IMAGE}"]},{"type":"WORKDIR","args":["/app"],"force":true}]}`)
	if text := logOf(forced); !strings.Contains(text, "CACHED [builder 1/2]") || strings.Contains(text, "CACHED [builder 2/2]") {
		t.Errorf("with the second step forced: got %s, want the first cached and the second not", text)
	}
	if !slices.Contains(b.jails.creators, "mine") || slices.ContainsFunc(b.jails.creators, func(c id.Token) bool { return c != "mine" }) {
		t.Errorf("creators of the jails of builds = %q, want mine", b.jails.creators)
	}
	b.team = "other" // does not share layers
	others := b.run(b.request(`{"name":"app"}`), `{"fromImage":"e2bdev/base","steps":[{"type":"ENV","args":["A","1","B","$A-${FROM_IMAGE}"]}]}`)
	if text := logOf(others); others.Status != Ready || strings.Contains(text, "CACHED") {
		t.Errorf("built by another team: got %s, want no layer of the first", text)
	}
}

func TestFailedBuilds(t *testing.T) {
	b := newBuilds(t)
	for _, c := range []struct{ plan, step, message string }{
		{`{"fromImage":"registry.example/missing"}`, "base", "the registry has no such image"},
		{`{"fromImage":"/etc/passwd"}`, "base", "is not the name of an image"},
		{`{"fromTemplate":"none"}`, "base", "template 'none' not found"},
		{`{"fromImage":"base","steps":[{"type":"FLY","args":["x"]}]}`, "1", `unknown instruction "FLY"`},
		{`{"fromImage":"e2bdev/base","steps":[{"type":"ENV","args":["A","1"]},{"type":"ENV","args":["1A","1"]}]}`, "2", "1A"},
		{`{"fromImage":"e2bdev/base","steps":[{"type":"RUN","args":["true","nobody123"]}]}`, "1", "invalid username: 'nobody123'"},
		{`{"fromImage":"e2bdev/base","steps":[{"type":"RUN","args":["true"]}]}`, "1", "nothing runs here"},
		{`{"fromImage":"e2bdev/base","steps":[{"type":"USER","args":["Not A Name"]}]}`, "1", "is not the name of a user"},
		{`{"fromImage":"e2bdev/base","steps":[{"type":"COPY","args":["a","b"],"filesHash":"` + strings.Repeat("0", 64) + `"}]}`, "1", ""},
	} {
		got := b.run(b.request(`{"name":"bad"}`), c.plan)
		if got.Status != Failed || got.Reason == nil || got.Reason.Step != c.step || !strings.Contains(got.Reason.Message, c.message) {
			t.Errorf("%s: got %+v %+v, want an error of the step %s with %q", c.plan, got.Status, got.Reason, c.step, c.message)
		}
		if got.Reason != nil && (len(got.Reason.Entries) == 0 || got.Reason.Entries[0].Level != "error") {
			t.Errorf("%s: got the entries %+v, want the error", c.plan, got.Reason.Entries)
		}
	}
	if _, err := b.Find(t.Context(), "mine", "bad"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("a template without a build that is ready: got %v, want that it is not found", err)
	}
	b.jails.fail = fault.Newf(fault.Exhausted, "jail.Create", "", "there are too many jails")
	got := b.run(b.request(`{"name":"bad"}`), `{"fromImage":"e2bdev/base"}`)
	if got.Status != Failed || !strings.Contains(got.Reason.Message, "too many jails") || got.Reason.Step != "finalize" {
		t.Errorf("without disk space for jails: got %+v, want the reason", got.Reason)
	}
}

func TestRejectedBuildRequests(t *testing.T) {
	b := newBuilds(t)
	of := b.request(`{"name":"app"}`)
	at := "/templates/" + of.TemplateID + "/builds/"
	for _, c := range []struct {
		want               int
		method, path, body string
		text               string
	}{
		{400, "POST", "/v3/templates", `{"name":"Not A Name"}`, "invalid template name"},
		{400, "POST", "/v3/templates", `{"name":"a","tags":["` + nobody + `"]}`, "cannot be a UUID"},
		{400, "POST", "/v3/templates", `{"name":"a","cpuCount":99}`, "CPU count"},
		{400, "POST", "/v3/templates", `{"name":"a","memoryMB":1}`, "memory"},
		{400, "POST", "/v3/templates", `{"name":"a","minFreeDiskMb":-1}`, "free disk"},
		{409, "POST", "/v3/templates", `{"name":"base"}`, "is reserved"},
		{400, "POST", "/v3/templates", `{"name":`, "Error when parsing"},
		{400, "GET", at + "not-a-uuid/status", "", "Invalid build ID"},
		{400, "GET", at + "not-a-uuid/logs", "", "Invalid build ID"},
		{400, "POST", "/v2" + at + "not-a-uuid", `{"fromImage":"base"}`, "Invalid build ID"},
		{404, "GET", at + nobody + "/status", "", "not found"},
		{404, "POST", "/v2" + at + nobody, `{"fromImage":"base"}`, "not found"},
		{400, "POST", "/v2" + at + of.BuildID, `{}`, "exactly one of fromImage"},
		{400, "POST", "/v2" + at + of.BuildID, `{"fromImage":"a","fromTemplate":"b"}`, "exactly one of fromImage"},
		{400, "GET", at + of.BuildID + "/status?level=loud", "", "invalid level"},
		{400, "GET", at + of.BuildID + "/status?logsOffset=-1", "", "invalid number"},
		{400, "GET", at + of.BuildID + "/logs?direction=up", "", "invalid direction"},
		{400, "GET", at + of.BuildID + "/logs?cursor=x", "", "invalid cursor"},
		{400, "GET", "/templates/" + of.TemplateID + "/files/abc", "", "invalid hash"},
		{404, "GET", "/templates/none", "", "not found"},
		{404, "GET", "/templates/none/tags", "", "not found"},
		{404, "GET", "/templates/" + of.TemplateID + "/none", "", "no matching operation"},
		{404, "GET", "/templates/aliases/none", "", "not found"},
		{501, "PATCH", "/templates/app", `{"public":true}`, "public templates are not supported"},
		{400, "POST", "/templates/tags", `{"target":"app"}`, "no tags"},
		{400, "POST", "/templates/tags", `{"target":"app","tags":[""]}`, "invalid tag"},
		{404, "POST", "/templates/tags", `{"target":"app","tags":["v1"]}`, "no build with the tag 'default'"},
		{400, "DELETE", "/templates/tags", `{"name":"app","tags":["default"]}`, "cannot be deleted"},
		{400, "GET", "/v2/templates?nextToken=none", "", "Invalid next token"},
		{400, "GET", "/v2/templates?limit=0", "", "limit"},
		{404, "PUT", "/nothing", "", "no matching operation"},
	} {
		w := b.api(c.want, c.method, c.path, c.body)
		if got := e2btest.Read[e2b.Error](b, w); got.Code != c.want || !strings.Contains(got.Message, c.text) {
			t.Errorf("%s %s %s: got %+v, want %d with %q", c.method, c.path, c.body, got, c.want, c.text)
		}
	}
	b.run(of, `{"fromImage":"base"}`)
	b.api(400, "POST", "/v2"+at+of.BuildID, `{"fromImage":"base"}`) // the build has already been started
	b.team = "other"
	for _, path := range []string{"/templates/app", "/templates/" + of.TemplateID, "/templates/app/tags", "/templates/aliases/app", at + of.BuildID + "/status", at + of.BuildID + "/logs"} {
		b.api(404, "GET", path, "")
	}
	b.api(404, "DELETE", "/templates/app", "")
}

func TestTags(t *testing.T) {
	b := newBuilds(t)
	first := b.request(`{"name":"app:v1"}`)
	if !slices.Equal(first.Tags, []string{"v1"}) {
		t.Errorf("a name with a tag: got %v, want v1", first.Tags)
	}
	b.run(first, `{"fromImage":"e2bdev/base","steps":[{"type":"ENV","args":["V","1"]}]}`)
	second := b.request(`{"name":"app","tags":["default","stable"]}`)
	b.run(second, `{"fromImage":"e2bdev/base","steps":[{"type":"ENV","args":["V","2"]}]}`)

	type assigned struct {
		BuildID string   `json:"buildID"`
		Tags    []string `json:"tags"`
	}
	for target, want := range map[string]string{
		"app": second.BuildID, "app:stable": second.BuildID, "app:v1": first.BuildID, first.TemplateID + ":v1": first.BuildID,
		"app:" + first.BuildID: first.BuildID, first.TemplateID + ":" + strings.ToUpper(first.BuildID): first.BuildID,
	} {
		w := b.api(201, "POST", "/templates/tags", `{"target":"`+target+`","tags":["prod"]}`)
		if got := e2btest.Read[assigned](b, w); got.BuildID != want || !slices.Equal(got.Tags, []string{"prod"}) {
			t.Errorf("the target %s: got %+v, want the build %s", target, got, want)
		}
		if made, err := b.Find(t.Context(), "mine", "app:prod"); err != nil || made.Env["V"] != map[string]string{first.BuildID: "1", second.BuildID: "2"}[want] {
			t.Errorf("the tag after %s: got %v, %v, want the build %s", target, made.Env, err, want)
		}
	}
	for _, target := range []string{"app:none", "app:" + nobody, "none:" + first.BuildID} {
		b.api(404, "POST", "/templates/tags", `{"target":"`+target+`","tags":["prod"]}`)
	}
	if made, err := b.Find(t.Context(), "mine", "app:"+first.BuildID); err != nil || made.Env["V"] != "1" {
		t.Errorf("a build by its id: got %v, %v, want the first", made.Env, err)
	}
	tags := func() (names []string) {
		for _, tag := range e2btest.Read[[]e2b.TemplateTag](b, b.api(200, "GET", "/templates/app/tags", "")) {
			names = append(names, tag.Tag)
		}
		slices.Sort(names)
		return names
	}
	if got := tags(); !slices.Equal(got, []string{"default", "prod", "stable", "v1"}) {
		t.Errorf("got the tags %v", got)
	}
	b.api(204, "DELETE", "/templates/tags", `{"name":"app","tags":["prod","v1"]}`)
	if got := tags(); !slices.Equal(got, []string{"default", "stable"}) {
		t.Errorf("after two were removed: got the tags %v, want default and stable", got)
	}
}

func TestListAndDeleteTemplates(t *testing.T) {
	b := newBuilds(t)
	for i := range 3 {
		b.run(b.request(fmt.Sprintf(`{"name":"t%d"}`, i)), `{"fromImage":"e2bdev/base"}`)
	}
	list := e2btest.Read[[]wireTemplate](b, b.api(200, "GET", "/templates", ""))
	if len(list) != 3 || list[0].Aliases[0] != "t2" || list[0].BuildStatus != Ready || list[0].BuildCount != 1 {
		t.Errorf("got %+v, want three, the newest first", list)
	}
	w := b.api(200, "GET", "/v2/templates?limit=2", "")
	next := w.Header().Get("X-Next-Token")
	if got := e2btest.Read[[]wireTemplate](b, w); len(got) != 2 || next == "" {
		t.Errorf("a page: got %d templates and the token %q, want two and a token", len(got), next)
	}
	w = b.api(200, "GET", "/v2/templates?limit=2&nextToken="+next, "")
	if got := e2btest.Read[[]wireTemplate](b, w); len(got) != 1 || got[0].Aliases[0] != "t0" || w.Header().Get("X-Next-Token") != "" {
		t.Errorf("the last page: got %+v, want t0", got)
	}
	if got := e2btest.Read[e2b.TemplateDetail](b, b.api(200, "GET", "/templates/t1", "")); len(got.Builds) != 1 || got.Builds[0].Status != "ready" || got.Names[0] != "t1" {
		t.Errorf("got %+v, want one build that is ready", got)
	}
	if got := e2btest.Read[map[string]any](b, b.api(200, "GET", "/templates/aliases/t1", "")); got["templateID"] != list[1].TemplateID || got["public"] != false {
		t.Errorf("the alias t1: got %v, want %s", got, list[1].TemplateID)
	}
	if got := e2btest.Read[map[string]any](b, b.api(200, "GET", "/templates/aliases/base", "")); got["public"] != true {
		t.Errorf("the alias base: got %v, want a public one", got)
	}
	b.api(200, "PATCH", "/v2/templates/t1", `{"public":false}`)
	b.api(204, "DELETE", "/templates/t1", "")
	b.api(404, "DELETE", "/templates/t1", "")
	if got := e2btest.Read[[]wireTemplate](b, b.api(200, "GET", "/templates", "")); len(got) != 2 {
		t.Errorf("after one was deleted: got %d, want two", len(got))
	}
	for _, name := range []string{"t0", "t2"} {
		b.api(204, "DELETE", "/templates/"+name, "")
	}
	if len(b.store.templates)+len(b.store.builds) != 0 {
		t.Errorf("got the records %v %v, want none", b.store.templates, b.store.builds)
	}
}

func TestDeletionCancelsBuild(t *testing.T) {
	b := newBuilds(t)
	b.jails.gate = make(chan struct{})
	of := b.request(`{"name":"slow"}`)
	at := "/templates/" + of.TemplateID + "/builds/" + of.BuildID
	b.api(202, "POST", "/v2"+at, `{"fromImage":"e2bdev/base"}`)
	b.api(204, "DELETE", "/templates/slow", "")
	b.wg.Wait()
	if len(b.store.builds)+len(b.store.templates)+len(b.jails.jails)+len(b.jails.snaps) != 0 {
		t.Errorf("got %d builds, %d templates, %d jails and %d snapshots, want none", len(b.store.builds), len(b.store.templates), len(b.jails.jails), len(b.jails.snaps))
	}
}

func TestStartFailsInterruptedBuilds(t *testing.T) {
	store, jails, dir := newFakeStore(), newFakeJails(), t.TempDir()
	b := startBuilds(t, store, jails, dir)
	b.run(b.request(`{"name":"done"}`), `{"fromImage":"e2bdev/base"}`)
	jails.gate = make(chan struct{})
	of := b.request(`{"name":"slow"}`)
	waits := b.request(`{"name":"waits"}`)
	at := "/templates/" + of.TemplateID + "/builds/" + of.BuildID
	b.api(202, "POST", "/v2"+at, `{"fromImage":"e2bdev/base"}`)
	b.Close()
	jails.gate = nil

	b = startBuilds(t, store, jails, dir)
	got := e2btest.Read[wireStatus](b, b.api(200, "GET", at+"/status", ""))
	if got.Status != Failed || !strings.Contains(got.Reason.Message, "the daemon stopped during the build") {
		t.Errorf("the build of a daemon that ended: got %+v %+v, want an error that says so", got.Status, got.Reason)
	}
	if _, err := b.Find(t.Context(), "mine", "done"); err != nil {
		t.Errorf("a ready build after the restart: %v", err)
	}
	if got := b.run(waits, `{"fromTemplate":"done"}`); got.Status != Ready {
		t.Errorf("a build that waited for its steps: got %+v, want ready", got)
	}
}

func TestBuildLogs(t *testing.T) {
	b := newBuilds(t)
	of := b.request(`{"name":"app"}`)
	all := b.run(of, `{"fromImage":"e2bdev/base","steps":[{"type":"ENV","args":["A","1"]}]}`).Entries
	at := "/templates/" + of.TemplateID + "/builds/" + of.BuildID
	if got := e2btest.Read[wireStatus](b, b.api(200, "GET", at+"/status?logsOffset=1&limit=2", "")).Entries; len(got) != 2 || got[0] != all[1] {
		t.Errorf("from the second line: got %+v, want two", got)
	}
	if got := e2btest.Read[wireStatus](b, b.api(200, "GET", at+"/status?level=error", "")).Entries; len(got) != 0 {
		t.Errorf("errors: got %+v, want none", got)
	}
	logs := func(query string) []Entry {
		return e2btest.Read[map[string][]Entry](b, b.api(200, "GET", at+"/logs?"+query, ""))["logs"]
	}
	forward, backward := logs("limit=100"), logs("direction=backward")
	slices.Reverse(backward)
	if len(forward) != len(all) || !slices.Equal(forward, backward) {
		t.Errorf("got %d lines forward and %d backward, want %d in each", len(forward), len(backward), len(all))
	}
	last := all[len(all)-1].Timestamp.UnixMilli()
	if got := logs(fmt.Sprintf("cursor=%d", last+1)); len(got) != 0 {
		t.Errorf("after the last line: got %+v, want none", got)
	}
	if got := logs(fmt.Sprintf("cursor=%d&direction=backward&limit=1", last+1)); len(got) != 1 || got[0] != all[len(all)-1] {
		t.Errorf("before the end: got %+v, want the last line", got)
	}
}

func TestUploadByLink(t *testing.T) {
	b := newBuilds(t)
	of := b.request(`{"name":"app"}`)
	hash := strings.Repeat("ab", 32)
	link := e2btest.Read[wireUpload](b, b.api(201, "GET", "/templates/"+of.TemplateID+"/files/"+hash, ""))
	path, ok := strings.CutPrefix(link.URL, "http://example.com")
	if link.Present || !ok {
		t.Fatalf("got %+v, want a link to this host and no file yet", link)
	}
	send := func(method, path, body string) int {
		w := httptest.NewRecorder()
		b.Receive(w, httptest.NewRequest(method, path, strings.NewReader(body)))
		return w.Code
	}
	if got := send("POST", path, ""); got != 400 {
		t.Errorf("with another method: got %d, want 400", got)
	}
	if got := send("PUT", path[:len(path)-1]+"_", ""); got < 400 || got > 403 {
		t.Errorf("with a modified link: got %d, want an error", got)
	}
	if got := send("PUT", path, "no archive"); got != 400 {
		t.Errorf("a body that is not an archive: got %d, want 400", got)
	}
	if link := e2btest.Read[wireUpload](b, b.api(201, "GET", "/templates/"+of.TemplateID+"/files/"+hash, "")); link.Present {
		t.Error("a rejected upload was stored")
	}

	// The length of a chunked body is not known before.
	b.cfg.UploadMB = 1
	w := httptest.NewRecorder()
	b.Receive(w, httptest.NewRequest("PUT", path, io.MultiReader(bytes.NewReader(archive(t, file("large", strings.Repeat("x", 2<<20)))))))
	if w.Code != 413 {
		t.Errorf("a body above the limit: got %d %s, want 413", w.Code, w.Body)
	}
}
