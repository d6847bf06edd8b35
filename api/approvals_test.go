package api_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"glasshouse/api"
	"glasshouse/api/apitest"
	"glasshouse/api/wire"
	"glasshouse/observe/event"
	"glasshouse/policy"
	"glasshouse/policy/access"
	"glasshouse/policy/approval"
)

func TestApprovalContainsDiffAndContext(t *testing.T) {
	jails := apitest.New()
	w, c := apitest.Watch(t, jails), record(t)
	d := open(t, jails, func(o *api.Options) { c.use(o); o.Observed = w })
	j := d.running()
	w.Append(j, proc(event.OpExec, 3, 1, "make"), call(3, "read", "", 1), file(event.OpRead, "/etc/hosts", time.Minute), file(event.OpWrite, "/work/a", time.Minute))
	ask := func(what, context string) string {
		t.Helper()
		r, err := c.queue.Open(t.Context(), approval.Request{
			Question: policy.Question{Action: policy.ActionEdit, Resource: what, Subject: policy.Subject{Jail: j}}, Reason: "it is protected",
			Rule: policy.Rule{Action: "edit", Pattern: "*", Effect: policy.Ask}, Context: json.RawMessage(context),
		})
		if err != nil {
			t.Fatal(err)
		}
		return "/approvals/" + string(r.ID)
	}
	path := ask("main.go", `{"diff":"--- a/main.go\n+++ b/main.go\n@@ -1 +1 @@\n-a\n+\tb\u202e\n","step":"7"}`)
	time.Sleep(2 * time.Millisecond) // events have millisecond resolution
	w.Append(j, file(event.OpDelete, "/later", -time.Second))
	var got wire.Approval
	d.strictly(path+"?last=10", &got)
	if got.Diff != "--- a/main.go\n+++ b/main.go\n@@ -1 +1 @@\n-a\n+\tb⟨U+202E⟩\n" || got.NoDiff != "" || !strings.Contains(got.Context, "step") || strings.Contains(got.Context, "main.go") {
		t.Errorf("got diff %q (%s), context %q", got.Diff, got.NoDiff, got.Context)
	}
	if got.Why != "it is protected" || !strings.Contains(got.Rule, "edit") {
		t.Errorf("got reason %q, rule %q", got.Why, got.Rule)
	}
	var told []string
	for _, raw := range got.Before {
		var e event.Event
		if err := event.Parse(raw, &e); err != nil {
			t.Fatal(err)
		}
		told = append(told, e.Op)
	}
	if strings.Join(told, " ") != "exec write" {
		t.Errorf("got previous events %v, want exec and write", told)
	}
	var plain wire.Approval
	d.strictly(ask("other.go", ""), &plain)
	if plain.Diff != "" || plain.NoDiff == "" || plain.Before != nil {
		t.Errorf("without context: got %q, %q, %v", plain.Diff, plain.NoDiff, plain.Before)
	}
	d.refused(400, req{as: access.Viewer, method: "GET", path: path + "?last=101"})
}
