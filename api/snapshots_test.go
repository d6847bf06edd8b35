package api_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"glasshouse/api"
	"glasshouse/api/apitest"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/snapshot"
	"glasshouse/policy/access"
)

func (d *harness) taken(j id.Jail, body any) wire.Snapshot {
	d.t.Helper()
	var s wire.Snapshot
	d.want(201, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/snapshot", body: body}, &s)
	return s
}

func (d *harness) branched(path string, body any) wire.Branches {
	d.t.Helper()
	var made wire.Branches
	d.want(201, req{as: access.Operator, method: "POST", path: path + "/branch", body: body}, &made)
	return made
}

func (d *harness) shows(j id.Jail) (shown wire.Jail) {
	d.t.Helper()
	d.want(200, req{as: access.Viewer, method: "GET", path: "/jails/" + string(j)}, &shown)
	return shown
}

// A request whose fields are all optional needs no body.
func TestCreateWithoutBody(t *testing.T) {
	d := open(t, apitest.New())
	j := d.running()
	s := d.taken(j, nil)
	for _, path := range []string{"/snapshots/" + string(s.ID), "/jails/" + string(j)} {
		for _, body := range []any{nil, `{}`, `{"name":"one"}`} {
			if made := d.branched(path, body); len(made.Jails) != 1 {
				t.Errorf("POST %s/branch with body %v created %d jails, want 1", path, body, len(made.Jails))
			}
		}
	}
	var made wire.Jail
	d.want(201, req{as: access.Operator, method: "POST", path: "/jails"}, &made)
	if made.State != "created" {
		t.Errorf("POST /jails without a body: got state %s, want created", made.State)
	}
}

func TestSnapshotLifecycle(t *testing.T) {
	d := open(t, apitest.New())
	j := d.running()
	var s wire.Snapshot
	made := d.want(201, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/snapshot",
		body: `{"name":"one","labels":{"a":"b"},"layering":"stacked"}`}, &s)
	if s.Name != "one" || s.Labels["a"] != "b" || s.Jail != j || s.Reason != "asked" || s.Layering != "stacked" || !s.Memory || s.PausedUS != 12345 {
		t.Errorf("taken %+v", s)
	}
	self := "/snapshots/" + string(s.ID)
	if got := made.header.Get("Location"); got != self || s.Links["self"] != self {
		t.Errorf("Location %q, self %q; want %q", got, s.Links["self"], self)
	}
	if got := d.shows(j).Nearest; got != s.ID {
		t.Errorf("the jail is nearest to %q, want %q", got, s.ID)
	}
	second := d.taken(j, nil) // all options are optional
	if second.Parent != s.ID {
		t.Errorf("the second snapshot comes after %q, want %q", second.Parent, s.ID)
	}
	d.want(200, req{as: access.Viewer, method: "GET", path: self}, &s)
	if s.Usage == nil || s.Usage.OwnBytes != 3<<20 || s.Usage.SharedBytes != 5<<20 {
		t.Errorf("usage %+v", s.Usage)
	}
	var back wire.Jail
	d.want(200, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/rewind", body: wire.Rewind{Snapshot: s.ID}}, &back)
	if back.ID != j || back.Nearest != s.ID {
		t.Errorf("rewound %+v, want it nearest to %s", back, s.ID)
	}
	d.want(204, req{as: access.Operator, method: "DELETE", path: self}, nil)
	d.refused(404, req{as: access.Viewer, method: "GET", path: self})
	d.refused(404, req{as: access.Operator, method: "DELETE", path: self})
	d.refused(404, req{as: access.Operator, method: "POST", path: self + "/branch", body: `{"count":1}`})
	d.refused(404, req{as: access.Operator, method: "POST", path: self + "/restore"})
	d.refused(404, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/rewind", body: wire.Rewind{Snapshot: s.ID}})
}

func TestBranchOverrides(t *testing.T) {
	d := open(t, apitest.New())
	var j wire.Jail
	d.want(201, req{as: access.Operator, method: "POST", path: "/jails",
		body: `{"name":"first","limits":{"memory_mb":64,"max_pids":40},"env":{"KEY":"secret"},"start":true}`}, &j)
	s := d.taken(j.ID, nil)
	self := "/snapshots/" + string(s.ID)

	made := d.branched(self, `{"count":3,"name":"try","labels":{"k":"v"},"limits":{"memory_mb":128},"network":"full"}`)
	if len(made.Jails) != 3 || len(made.Errors) != 0 || made.Snapshot != nil {
		t.Fatalf("got %+v, want three jails of the existing snapshot", made)
	}
	for i, b := range made.Jails {
		want := wire.Origin{Snapshot: s.ID, Jail: j.ID, Number: i + 1}
		if b.Origin == nil || *b.Origin != want || b.Nearest != s.ID || b.Name != fmt.Sprint("try-", i+1) || b.Labels["k"] != "v" || b.Network != "full" {
			t.Errorf("branch %d is %+v", i+1, b)
		}
		if b.Limits.MemoryMB != 128 || b.Limits.MaxPIDs != 40 {
			t.Errorf("branch %d has limits %+v; want the requested memory and the other limits of the jail", i+1, b.Limits)
		}
	}
	var r wire.Jail
	got := d.want(201, req{as: access.Operator, method: "POST", path: self + "/restore"}, &r)
	if r.Limits.MemoryMB != 64 || r.Network != "isolated" || r.Name != "" || got.header.Get("Location") != "/jails/"+string(r.ID) {
		t.Errorf("restored %+v at %s; want the settings of the snapshot without the name", r, got.header.Get("Location"))
	}

	both := d.branched("/jails/"+string(j.ID), wire.Branch{Count: 2})
	if both.Snapshot == nil || both.Snapshot.Reason != "branched" || both.Snapshot.Jail != j.ID || len(both.Jails) != 2 || both.Jails[0].Origin.Snapshot != both.Snapshot.ID {
		t.Errorf("a branched jail gives %+v", both)
	}
}

func TestSomeBranchesFail(t *testing.T) {
	d := open(t, apitest.New())
	j := d.running()
	s := d.taken(j, nil)
	refuse := func(bad ...string) func(string) error {
		return func(op string) error {
			for _, b := range bad {
				if op == b {
					return &fault.Error{Kind: fault.Exhausted, Err: errors.New("no memory"), Remedy: "free some"}
				}
			}
			return nil
		}
	}
	d.kept.Fail = refuse("branch 2")
	made := d.branched("/snapshots/"+string(s.ID), wire.Branch{Count: 3})
	if len(made.Jails) != 2 || len(made.Errors) != 1 || made.Errors[0].Number != 2 {
		t.Fatalf("got %+v, want the first and the third", made)
	}
	if p := made.Errors[0].Problem; p.Status != 429 || p.Remedy != "free some" {
		t.Errorf("the problem is %+v", p)
	}
	d.kept.Fail = func(op string) error {
		if op == "branch 1" {
			return errors.New("hunter2")
		}
		return nil
	}
	made = d.branched("/snapshots/"+string(s.ID), wire.Branch{Count: 2})
	if p := made.Errors[0].Problem; strings.Contains(fmt.Sprint(p), "hunter2") || p.ID == "" || !strings.Contains(d.log.String(), p.ID) {
		t.Errorf("an internal error is shown as %+v", p)
	}

	d.kept.Fail = refuse("branch 1", "branch 2")
	d.refused(429, req{as: access.Operator, method: "POST", path: "/snapshots/" + string(s.ID) + "/branch", body: wire.Branch{Count: 2}})
	d.refused(429, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/branch", body: wire.Branch{Count: 2}})
	var page wire.Page[wire.Snapshot]
	d.want(200, req{as: access.Viewer, method: "GET", path: "/jails/" + string(j) + "/snapshots"}, &page)
	if len(page.Items) != 1 || page.Items[0].ID != s.ID {
		t.Errorf("got %d snapshots; the snapshot of the failed branch was not deleted", len(page.Items))
	}
}

func TestSnapshotsArePaged(t *testing.T) {
	d := open(t, apitest.New())
	one, two := d.running(), d.running()
	var want []id.Snapshot
	for range 7 {
		want = append(want, d.taken(one, nil).ID)
		d.taken(two, nil)
	}
	for path, n := range map[string]int{"/jails/" + string(one) + "/snapshots": 7, "/snapshots": 14} {
		var got []wire.Snapshot
		for after := ""; ; {
			var page wire.Page[wire.Snapshot]
			d.want(200, req{as: access.Viewer, method: "GET", path: path + "?limit=3&usage=1&after=" + after}, &page)
			got = append(got, page.Items...)
			after = page.Next
			if after == "" {
				break
			}
		}
		if len(got) != n || got[0].ID != want[0] || got[0].Usage == nil {
			t.Errorf("%s: %d snapshots, the first %+v; want %d", path, len(got), got[0], n)
		}
	}
	d.want(204, req{as: access.Operator, method: "DELETE", path: "/jails/" + string(one)}, nil)
	var page wire.Page[wire.Snapshot]
	d.want(200, req{as: access.Viewer, method: "GET", path: "/jails/" + string(one) + "/snapshots"}, &page)
	if len(page.Items) != 7 {
		t.Errorf("the jail is gone and has %d snapshots, want 7", len(page.Items))
	}
	if got := d.want(200, req{as: access.Viewer, method: "GET", path: "/jails/" + string(d.running()) + "/snapshots"}, nil); !strings.Contains(string(got.body), `"items":[]`) {
		t.Errorf("a jail without snapshots has %s", got.body)
	}
	d.refused(404, req{as: access.Viewer, method: "GET", path: "/jails/j-aaaaaaaaaaaa/snapshots"})
	for query, field := range map[string]string{"limit=0x": "limit", "after=j-aaaaaaaaaaaa": "after", "after=s-aaaaaaaaaaaa": "after", "usage=maybe": "usage"} {
		if p := d.refused(400, req{as: access.Viewer, method: "GET", path: "/snapshots?" + query}); p.Field != field {
			t.Errorf("?%s: field %q, want %q", query, p.Field, field)
		}
	}
}

func TestInvalidSnapshotBodies(t *testing.T) {
	d := open(t, apitest.New())
	j := d.running()
	s := d.taken(j, nil)
	jail, snap := "/jails/"+string(j), "/snapshots/"+string(s.ID)
	for _, c := range []struct{ path, body, field string }{
		{jail + "/snapshot", `{"layering":"folded"}`, "layering"},
		{jail + "/snapshot", `{"name":"a\nb"}`, "name"},
		{jail + "/snapshot", `{"nmae":"a"}`, "nmae"},
		{jail + "/snapshot", `{"labels":{"a":1}}`, "labels"},
		{jail + "/branch", `{"count":0}`, "count"},
		{jail + "/branch", `{"count":257}`, "count"},
		{snap + "/branch", `{"count":-1}`, "count"},
		{snap + "/branch", `{"count":1,"network":"half"}`, "network"},
		{snap + "/branch", `{"count":1,"limits":{"memroy_mb":1}}`, "limits.memroy_mb"},
		{snap + "/branch", `{"count":1,"Overrides":{}}`, "Overrides"},
		{snap + "/branch", `{"count":1,"name":"a","name":"b"}`, "name"},
		{snap + "/restore", `{"count":1}`, "count"},
		{snap + "/restore", `{"network":"half"}`, "network"},
		{snap + "/warm", `{"count":0}`, "count"},
		{snap + "/warm", `{"count":100000}`, "count"},
		{jail + "/rewind", `{"snapshot":"../../etc"}`, "snapshot"},
		{jail + "/branch", `{"count":1,"keep_connections":true}`, "keep_connections"},
		{jail + "/rewind", `{}`, "snapshot"},
		{jail + "/rewind", `{"discard":true}`, "discard"},
		{jail + "/rewind", `{"back":-1}`, "back"},
		{jail + "/rewind", `{"back":1,"snapshot":"s-9d2kq7w4hxma"}`, "back"},
	} {
		if p := d.refused(400, req{as: access.Operator, method: "POST", path: c.path, body: c.body}); p.Field != c.field {
			t.Errorf("%s %s: field %q, want %q: %s", c.path, c.body, p.Field, c.field, p.Detail)
		}
	}
	if n := d.jails.Created(); n != 1 {
		t.Errorf("got %d jails, want only the first", n)
	}
}

func TestWarmSnapshot(t *testing.T) {
	d := open(t, apitest.New())
	j := d.running()
	s := d.taken(j, nil)
	var w wire.Warmed
	d.want(200, req{as: access.Operator, method: "POST", path: "/snapshots/" + string(s.ID) + "/warm", body: wire.Warm{Count: 2}}, &w)
	if w.Copies != 2 {
		t.Errorf("got %d warm copies, want 2", w.Copies)
	}
	d.want(200, req{as: access.Operator, method: "POST", path: "/snapshots/" + string(s.ID) + "/warm", body: wire.Warm{Count: 9}}, &w)
	if w.Copies != 3 {
		t.Errorf("got %d warm copies, want the limit of 3", w.Copies)
	}
	d.want(200, req{as: access.Viewer, method: "GET", path: "/snapshots/" + string(s.ID)}, &s)
	if s.Copies != 3 {
		t.Errorf("the snapshot shows %d copies", s.Copies)
	}
	d.want(200, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/stop"}, nil)
	files := d.taken(j, nil)
	d.refused(409, req{as: access.Operator, method: "POST", path: "/snapshots/" + string(files.ID) + "/warm", body: wire.Warm{Count: 1}})
}

func TestDeleteJailWithAndWithoutSnapshots(t *testing.T) {
	d := open(t, apitest.New())
	count := func() int {
		var page wire.Page[wire.Snapshot]
		d.want(200, req{as: access.Viewer, method: "GET", path: "/snapshots"}, &page)
		return len(page.Items)
	}
	keeps, loses := d.running(), d.running()
	for range 3 {
		d.taken(keeps, nil)
		d.taken(loses, nil)
	}
	d.want(204, req{as: access.Operator, method: "DELETE", path: "/jails/" + string(keeps)}, nil)
	if n := count(); n != 6 {
		t.Errorf("%d snapshots after a plain delete, want all 6", n)
	}
	d.kept.Fail = func(op string) error {
		if op == "delete" {
			return fault.Newf(fault.Conflict, "snapshot.Delete", "", "it is being used")
		}
		return nil
	}
	d.refused(409, req{as: access.Operator, method: "DELETE", path: "/jails/" + string(loses) + "?snapshots=true"})
	d.want(200, req{as: access.Viewer, method: "GET", path: "/jails/" + string(loses)}, nil) // the jail still exists, so the request can be repeated
	d.kept.Fail = nil
	d.want(204, req{as: access.Operator, method: "DELETE", path: "/jails/" + string(loses) + "?snapshots=true"}, nil)
	if n := count(); n != 3 {
		t.Errorf("%d snapshots after a delete with snapshots, want those of the other jail", n)
	}
	d.refused(404, req{as: access.Operator, method: "DELETE", path: "/jails/" + string(keeps) + "?snapshots=true"})
	if gone := d.kept.Gone(); len(gone) != 2 || gone[0] != keeps || gone[1] != loses {
		t.Errorf("JailDeleted was called for %v", gone)
	}
	// Leftovers must not make the deletion fail.
	j := d.running()
	d.kept.Fail = func(string) error { return errors.New("disk trouble") }
	d.want(204, req{as: access.Operator, method: "DELETE", path: "/jails/" + string(j)}, nil)
	if !strings.Contains(d.log.String(), "disk trouble") {
		t.Error("the log does not mention the leftovers")
	}
}

func TestLineage(t *testing.T) {
	d := open(t, apitest.New())
	a := d.running()
	s1 := d.taken(a, wire.TakeSnapshot{Name: "base"})
	kids := d.branched("/snapshots/"+string(s1.ID), wire.Branch{Count: 2}).Jails
	s2 := d.taken(kids[1].ID, nil)
	grandchild := d.branched("/snapshots/"+string(s2.ID), wire.Branch{Count: 1}).Jails[0].ID
	s3 := d.taken(a, nil)
	d.want(200, req{as: access.Operator, method: "POST", path: "/jails/" + string(a) + "/rewind", body: wire.Rewind{Snapshot: s1.ID}}, nil)
	s4 := d.taken(a, nil)
	other := d.running()

	draw := func(query string) string {
		var page wire.Page[wire.LineageJail]
		d.want(200, req{as: access.Viewer, method: "GET", path: "/lineage" + query}, &page)
		names := strings.NewReplacer(string(a), "a", string(kids[0].ID), "k1", string(kids[1].ID), "k2", string(grandchild), "g", string(other), "o",
			string(s1.ID), "s1", string(s2.ID), "s2", string(s3.ID), "s3", string(s4.ID), "s4")
		var text func(list []wire.LineageJail) string
		text = func(list []wire.LineageJail) string {
			var out []string
			for _, j := range list {
				line := string(j.ID)
				if j.State != "running" {
					line += ":" + j.State
				}
				var below []string
				for _, s := range j.Snapshots {
					below = append(below, string(s.ID)+"<"+string(s.Parent)+"("+text(s.Jails)+")")
				}
				out = append(out, line+"["+strings.Join(below, " ")+"]"+text(j.Jails))
			}
			return strings.Join(out, " ")
		}
		return names.Replace(text(page.Items))
	}
	const tree = "a[s1<(k1[] k2[s2<s1(g[])]) s3<s1() s4<s1()]"
	if got := draw(""); got != tree+" o[]" {
		t.Errorf("lineage %s", got)
	}
	for _, j := range []id.Jail{a, kids[0].ID, grandchild} {
		if got := draw("?jail=" + string(j)); got != tree {
			t.Errorf("the tree of %s is %s", j, got)
		}
	}
	// Snapshots keep the lineage of deleted jails.
	d.want(204, req{as: access.Operator, method: "DELETE", path: "/jails/" + string(a)}, nil)
	d.want(204, req{as: access.Operator, method: "DELETE", path: "/jails/" + string(kids[0].ID)}, nil)
	if got, want := draw("?jail="+string(a)), "a:gone[s1<(k2[s2<s1(g[])]) s3<s1() s4<s1()]"; got != want {
		t.Errorf("after its deletion the tree is %s, want %s", got, want)
	}
	d.want(204, req{as: access.Operator, method: "DELETE", path: "/snapshots/" + string(s1.ID)}, nil)
	if got, want := draw("?jail="+string(a)), "a:gone[s3<s1() s4<s1()]k2[s2<s1(g[])]"; got != want {
		t.Errorf("without the first snapshot the tree is %s, want %s", got, want)
	}
	d.refused(404, req{as: access.Viewer, method: "GET", path: "/lineage?jail=" + string(kids[0].ID)})
	d.refused(400, req{as: access.Viewer, method: "GET", path: "/lineage?jail=x"})
}

func TestOneKeyTakesOneSnapshot(t *testing.T) {
	d := open(t, apitest.New())
	j := d.running()
	key := map[string]string{"Idempotency-Key": "k"}
	var first, again wire.Snapshot
	d.want(201, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/snapshot", body: "{}", header: key}, &first)
	d.want(201, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/snapshot", body: "{}", header: key}, &again)
	if first.ID != again.ID {
		t.Errorf("one key took %s and %s", first.ID, again.ID)
	}
	for range 2 {
		d.want(201, req{as: access.Operator, method: "POST", path: "/snapshots/" + string(first.ID) + "/branch", body: wire.Branch{Count: 2}, header: key}, nil)
	}
	if n := d.jails.Created(); n != 3 {
		t.Errorf("got %d jails, want one and two branches", n)
	}
}

func TestDaemonWithoutSnapshots(t *testing.T) {
	d := open(t, apitest.New(), func(o *api.Options) { o.Snapshots = nil })
	j := d.running()
	for _, r := range []req{
		{method: "GET", path: "/snapshots"}, {method: "GET", path: "/lineage"}, {method: "GET", path: "/jails/" + string(j) + "/snapshots"},
		{method: "POST", path: "/jails/" + string(j) + "/snapshot"}, {method: "POST", path: "/jails/" + string(j) + "/branch", body: `{"count":1}`},
		{method: "DELETE", path: "/jails/" + string(j) + "?snapshots=1"},
	} {
		r.as = access.Admin
		if p := d.refused(501, r); p.Remedy == "" {
			t.Errorf("%s %s: no remedy in %+v", r.method, r.path, p)
		}
	}
	d.want(204, req{as: access.Admin, method: "DELETE", path: "/jails/" + string(j)}, nil)
}

var _ api.Snapshots = (*snapshot.Manager)(nil)
