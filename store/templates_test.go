package store_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glasshouse/e2b/template"
	"glasshouse/id"
)

func templatesComeBack(t *testing.T, where string) {
	s := open(t, where)
	ts := s.Templates()
	now := time.Now().UTC().Truncate(time.Second)
	team := id.NewToken()
	of := template.Template{ID: "t1", Team: team, Name: "app", Tags: map[string]template.Tag{"default": {Build: "b1", At: now}}, Created: now, Updated: now}
	b := template.Build{ID: "b1", Template: "t1", Team: team, State: template.Waiting, Tags: []string{"default"}, CPU: 2, MemoryMB: 512, DiskMB: 4096, Created: now, Updated: now}
	l := template.Layer{Key: "k1", Team: team, Snapshot: id.NewSnapshot(), Setting: template.Setting{Env: map[string]string{"A": "ä\x00"}, User: "user"}, Used: now}
	save := func() {
		t.Helper()
		for _, err := range []error{ts.PutTemplate(t.Context(), of), ts.PutBuild(t.Context(), b), ts.PutLayer(t.Context(), l)} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	check := func() {
		t.Helper()
		templates, err := ts.Templates(t.Context())
		if err != nil || !cmp.Equal(templates, []template.Template{of}) {
			t.Errorf("templates: %v\n%s", err, cmp.Diff(templates, []template.Template{of}))
		}
		builds, err := ts.Builds(t.Context())
		if err != nil || !cmp.Equal(builds, []template.Build{b}) {
			t.Errorf("builds: %v\n%s", err, cmp.Diff(builds, []template.Build{b}))
		}
		layers, err := ts.Layers(t.Context())
		if err != nil || !cmp.Equal(layers, []template.Layer{l}) {
			t.Errorf("layers: %v\n%s", err, cmp.Diff(layers, []template.Layer{l}))
		}
	}
	save()
	check()
	of.Spawned, b.State, b.Finished, b.Reason, l.Setting.Dir = 3, template.Failed, &now, &template.Reason{Message: "no", Step: "1"}, "/app"
	save()
	check()
	if err := ts.PutTemplate(t.Context(), template.Template{ID: "t2", Team: team, Name: "app"}); err == nil {
		t.Error("two templates of a team have the same name")
	}
	for range 2 {
		for _, err := range []error{ts.DeleteTemplate(t.Context(), "t1"), ts.DeleteBuild(t.Context(), "b1"), ts.DeleteLayer(t.Context(), "k1")} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, n := range map[string]func() int{
		"templates": func() int { all, _ := ts.Templates(t.Context()); return len(all) },
		"builds":    func() int { all, _ := ts.Builds(t.Context()); return len(all) },
		"layers":    func() int { all, _ := ts.Layers(t.Context()); return len(all) },
	} {
		if got := n(); got != 0 {
			t.Errorf("%d %s remain", got, name)
		}
	}
}
