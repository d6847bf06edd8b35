package api_test

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"glasshouse/api/apitest"
	"glasshouse/api/wire"
	"glasshouse/jail"
	"glasshouse/observe/report"
	"glasshouse/policy/access"
)

// comparisons counts the comparisons of jails' files.
func comparisons(d *harness) *int {
	n := new(int)
	count := func(op string) error {
		if op == "changes" || op == "compare" {
			*n++
		}
		return nil
	}
	d.jails.Fail, d.kept.Fail = count, count
	return n
}

func TestPagesOfChangesUseOneComparison(t *testing.T) {
	jails := apitest.New()
	d := open(t, jails)
	j := d.running()
	s := d.taken(j, nil)
	k := d.branched("/snapshots/"+string(s.ID), wire.Branch{Count: 1}).Jails[0].ID
	for n := range 9 {
		jails.Diff = append(jails.Diff, apitestChange(fmt.Sprintf("/f%d", n)))
	}
	compared := comparisons(d)
	for _, query := range []string{"", "&workspace=1", "&path=/f", "&against=" + string(s.ID), "&against=" + string(k)} {
		*compared = 0
		var got []string
		for after := ""; ; {
			var page wire.Page[wire.Change]
			d.want(200, req{as: access.Viewer, method: "GET", path: "/jails/" + string(j) + "/fs/diff?limit=2" + query + "&after=" + after}, &page)
			for _, c := range page.Items {
				got = append(got, c.Path)
			}
			after = page.Next
			if after == "" {
				break
			}
		}
		if want := "/f0 /f1 /f2 /f3 /f4 /f5 /f6 /f7 /f8"; strings.Join(got, " ") != want {
			t.Errorf("%q: changes %v, want %s", query, got, want)
		}
		if *compared != 1 {
			t.Errorf("%q: %d comparisons for five pages, want 1", query, *compared)
		}
	}
}

func TestChangeBetweenPagesIsInNextList(t *testing.T) {
	jails := apitest.New()
	jails.Diff = []jail.Change{apitestChange("/a"), apitestChange("/b"), apitestChange("/c")}
	d := open(t, jails)
	j := d.running()
	paths := func(query string) (string, string) {
		t.Helper()
		var page wire.Page[wire.Change]
		d.want(200, req{as: access.Viewer, method: "GET", path: "/jails/" + string(j) + "/fs/diff?limit=1" + query}, &page)
		if len(page.Items) != 1 {
			t.Fatalf("%d items", len(page.Items))
		}
		return page.Items[0].Path, page.Next
	}
	_, next := paths("")
	jails.Diff = []jail.Change{apitestChange("/a"), apitestChange("/aa"), apitestChange("/c")}
	if got, _ := paths("&after=" + next); got != "/b" {
		t.Errorf("the second page has %s, want /b from the list of the first page", got)
	}
	if got, _ := paths("&path=/&after=" + next); got != "/aa" {
		t.Errorf("a page of another list has %s, want /aa", got)
	}
	if got, _ := paths("&after=/0"); got != "/a" {
		t.Errorf("a page after a path that is no cursor has %s, want /a", got)
	}
	_, next = paths("")
	if got, _ := paths("&after=" + next); got != "/aa" {
		t.Errorf("the second page of a new list has %s, want /aa", got)
	}
}

func TestDeletedJailHasNoFurtherPages(t *testing.T) {
	jails := apitest.New()
	jails.Diff = []jail.Change{apitestChange("/a"), apitestChange("/b"), apitestChange("/c")}
	d := open(t, jails)
	j := d.running()
	s := d.taken(j, nil)
	k := d.branched("/snapshots/"+string(s.ID), wire.Branch{Count: 1}).Jails[0].ID
	for _, page := range []string{"/jails/" + string(j) + "/fs/diff?limit=1&against=" + string(k), "/jails/" + string(k) + "/fs/diff?limit=1"} {
		d.want(200, req{as: access.Viewer, method: "GET", path: page}, nil)
		d.want(200, req{as: access.Viewer, method: "GET", path: page + "&after=/a"}, nil)
	}
	if err := jails.Delete(t.Context(), k); err != nil { // not by the API, which drops its lists
		t.Fatal(err)
	}
	for _, page := range []string{"/jails/" + string(j) + "/fs/diff?limit=1&against=" + string(k), "/jails/" + string(k) + "/fs/diff?limit=1"} {
		d.refused(404, req{as: access.Viewer, method: "GET", path: page + "&after=/b"})
	}
}

func TestComparisonInEveryFormat(t *testing.T) {
	jails := apitest.New()
	jails.Diff = []jail.Change{
		{Path: "/a", Kind: "added", Type: "file", Diff: "--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+one\n"},
		{Path: "/z\xff", Kind: "renamed", Type: "file", From: "/y"},
	}
	d := open(t, jails)
	j := d.running()
	s := d.taken(j, nil)
	k := d.branched("/snapshots/"+string(s.ID), wire.Branch{Count: 1}).Jails[0].ID
	self := "/snapshots/" + string(s.ID) + "/diff"

	var c wire.Comparison
	d.want(200, req{as: access.Viewer, method: "GET", path: self}, &c)
	if c.From.Snapshot != s.ID || c.To.Jail != j || c.To.Snapshot != "" || len(c.Files.List) != 2 || c.Files.List[0].Diff != "" || len(c.Processes.Started) != 1 {
		t.Errorf("a snapshot and its jail: %+v", c)
	}
	c = wire.Comparison{}
	d.want(200, req{as: access.Viewer, method: "GET", path: self + "?against=" + string(k) + "&only=files&content=unified"}, &c)
	if c.To.Jail != k || c.Processes != nil || !strings.Contains(c.Files.List[0].Diff, "+one") {
		t.Errorf("a snapshot and a branch: %+v", c)
	}
	c = wire.Comparison{}
	d.want(200, req{as: access.Viewer, method: "GET", path: "/jails/" + string(j) + "/diff?against=" + string(k)}, &c)
	if c.From.Jail != j || c.To.Jail != k {
		t.Errorf("two jails: %+v", c)
	}
	var page wire.Page[wire.Change]
	d.want(200, req{as: access.Viewer, method: "GET", path: "/jails/" + string(k) + "/fs/diff?limit=1&against=" + string(s.ID)}, &page)
	if len(page.Items) != 1 || page.Next == "" {
		t.Errorf("a page of a branch against its snapshot: %+v", page)
	}

	for _, form := range []struct{ path, accept, kind, has string }{
		{self, "text/plain", "text/plain; charset=utf-8", "added     file     /a\n"},
		{self + "?format=text", "", "text/plain; charset=utf-8", `/y → /z\xff`},
		{self, "text/html", "text/html; charset=utf-8", "<!doctype html>"},
		{self + "?format=json", "text/html", "application/json", `/z\udcff`},
		{"/jails/" + string(j) + "/diff?against=" + string(s.ID), "text/html", "text/html; charset=utf-8", string(s.ID)},
		{"/jails/" + string(k) + "/fs/diff?against=" + string(s.ID), "text/plain", "text/plain; charset=utf-8", "From snapshot " + string(s.ID)},
		{"/jails/" + string(k) + "/fs/diff?against=" + string(s.ID) + "&workspace=1", "text/html", "text/html; charset=utf-8", "</html>"},
		{"/jails/" + string(k) + "/fs/diff?against=" + string(s.ID), "", "application/json", `"items"`},
	} {
		resp := d.send(req{as: access.Viewer, method: "GET", path: form.path, header: map[string]string{"Accept": form.accept}})
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if kind := resp.Header.Get("Content-Type"); err != nil || resp.StatusCode != 200 || kind != form.kind || !strings.Contains(string(body), form.has) {
			t.Errorf("%s as %q: %d %s, %v:\n%s", form.path, form.accept, resp.StatusCode, kind, err, body)
		}
		if policy := resp.Header.Get("Content-Security-Policy"); form.accept == "text/html" && form.kind != "application/json" && !strings.HasPrefix(policy, report.ComparisonPolicy) {
			t.Errorf("%s: got Content-Security-Policy %q", form.path, policy)
		}
	}
	for query, field := range map[string]string{
		"against=x": "against", "against=j-1": "against", "only=files,all": "only", "only=,": "only", "content=side": "content", "format=pdf": "format", "limit=1": "limit",
	} {
		if p := d.refused(400, req{as: access.Viewer, method: "GET", path: self + "?" + query}); p.Field != field {
			t.Errorf("?%s: field %q, want %q: %s", query, p.Field, field, p.Detail)
		}
	}
	d.refused(400, req{as: access.Viewer, method: "GET", path: "/jails/" + string(j) + "/diff"})
	d.refused(400, req{as: access.Viewer, method: "GET", path: "/jails/" + string(j) + "/fs/diff?against=x"})
	for _, path := range []string{"/snapshots/s-aaaaaaaaaaaa/diff", self + "?against=j-aaaaaaaaaaaa", "/jails/j-aaaaaaaaaaaa/diff?against=" + string(s.ID), "/jails/" + string(j) + "/fs/diff?against=s-aaaaaaaaaaaa"} {
		d.refused(404, req{as: access.Viewer, method: "GET", path: path})
	}
}
