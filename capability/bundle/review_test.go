package bundle_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glasshouse/capability/bundle"
)

// reviewed installs bundles in order and returns the review of the last one.
func (s *scene) reviewed(versions ...map[string]string) *bundle.Review {
	s.Helper()
	for _, files := range versions {
		_, err := s.Install(s.Context(), s.signed(files))
		s.ok(err)
	}
	return s.seen[len(s.seen)-1]
}

// next returns files with the version after that of good.
func next(files map[string]string) map[string]string {
	return with(files, "metadata.json", strings.Replace(files["metadata.json"], "1.2.0", "1.3.0", 1))
}

func change(t *testing.T, r *bundle.Review, path string) bundle.FileReview {
	t.Helper()
	for _, f := range r.Files {
		if f.Path == path {
			return f
		}
	}
	t.Fatalf("%s is not in the review", path)
	return bundle.FileReview{}
}

func TestReviewOfFirstInstallation(t *testing.T) {
	s := newScene(t)
	r := s.reviewed(good())
	if r.Name != "local-places" || r.Version != "1.2.0" || r.Publisher != "acme" || r.Replaces != "" || r.Key != s.key.Public().ID() {
		t.Errorf("review = %+v", r)
	}
	for _, c := range []struct {
		what      string
		got, want []string
	}{
		{"effects", r.Effects, []string{"network"}},
		{"hosts", r.Hosts, []string{"places.googleapis.com"}},
		{"secrets", r.Secrets, []string{"GOOGLE_PLACES_API_KEY"}},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s:\n%s", c.what, diff)
		}
	}
	if len(r.Capabilities) != 1 || r.Capabilities[0].Change != bundle.Added || len(r.Capabilities[0].Widens) == 0 {
		t.Errorf("capabilities = %+v", r.Capabilities)
	}
	var order []string
	for _, f := range r.Files {
		order = append(order, f.Path)
		if f.Change != bundle.Added || !strings.Contains(f.Diff, "+++ b/"+f.Path) {
			t.Errorf("%s: %s\n%s", f.Path, f.Change, f.Diff)
		}
	}
	want := []string{"metadata.json", "skill.yaml", "capabilities/places.search.rtfs", "src/main.py", "src/run.sh"}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Errorf("the order of files:\n%s", diff)
	}
}

func TestReviewOfUpdate(t *testing.T) {
	s := newScene(t)
	after := next(good())
	after["metadata.json"] = strings.Replace(after["metadata.json"], `["places.googleapis.com"]`, `["places.googleapis.com", "evil.example"]`, 1)
	after["capabilities/places.search.rtfs"] = strings.Replace(manifestText, `["places.googleapis.com"]`, `["places.googleapis.com" "evil.example"]`, 1)
	after["src/main.py"] = "print('places')\nprint('more')\n"
	after["src/new.py"] = "pass\n"
	delete(after, "src/run.sh")
	r := s.reviewed(good(), after)

	if r.Replaces != "1.2.0" || len(r.ReplacesDigest) != 64 || r.ReplacesDigest == r.Digest {
		t.Errorf("replaces %s %s", r.Replaces, r.ReplacesDigest)
	}
	if len(r.Widens) != 1 || !strings.HasPrefix(r.Widens[0], "places.search: ") || !strings.Contains(r.Widens[0], "evil.example") {
		t.Errorf("widens = %q, want the new host", r.Widens)
	}
	if got := r.Capabilities[0].Change; got != bundle.Changed {
		t.Errorf("the capability is %s", got)
	}
	for path, want := range map[string]struct{ change, diff string }{
		"src/main.py":   {bundle.Changed, "+print('more')"},
		"src/new.py":    {bundle.Added, "--- /dev/null"},
		"src/run.sh":    {bundle.Removed, "+++ /dev/null"},
		"metadata.json": {bundle.Changed, "+  \"version\": \"1.3.0\""},
	} {
		f := change(t, r, path)
		if f.Change != want.change || !strings.Contains(f.Diff, want.diff) {
			t.Errorf("%s: %s, want %s and %q in\n%s", path, f.Change, want.change, want.diff, f.Diff)
		}
	}
	for _, f := range r.Files {
		if f.Path == "skill.yaml" {
			t.Error("unchanged files are listed")
		}
	}
	text := r.Text()
	for _, want := range []string{"replaces 1.2.0", "evil.example", "GOOGLE_PLACES_API_KEY", "+print('more')", "removed src/run.sh"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

func TestReviewOfAddedAndRemovedCapabilities(t *testing.T) {
	s := newScene(t)
	after := next(good())
	after["capabilities/places.find.rtfs"] = strings.Replace(manifestText, "places.search", "places.find", 1)
	delete(after, "capabilities/places.search.rtfs")
	after["skill.yaml"] = strings.ReplaceAll(skillText, "places.search", "places.find")
	r := s.reviewed(good(), after)
	var got []string
	for _, c := range r.Capabilities {
		got = append(got, c.ID+" "+c.Change)
	}
	if diff := cmp.Diff([]string{"places.find added", "places.search removed"}, got); diff != "" {
		t.Error(diff)
	}
	if len(r.Widens) == 0 || !strings.HasPrefix(r.Widens[0], "places.find: ") {
		t.Errorf("widens = %q", r.Widens)
	}
}

func TestDiffShowsHiddenCharacters(t *testing.T) {
	s := newScene(t)
	r := s.reviewed(with(good(), "src/main.py", "a = 'x\u202e' # \u2066 }\x1b[2J\r\u200b\n"))
	f := change(t, r, "src/main.py")
	for _, hidden := range []string{"\u202e", "\u2066", "\x1b", "\r", "\u200b"} {
		if strings.Contains(f.Diff, hidden) || strings.Contains(r.Text(), hidden) {
			t.Errorf("the review contains %q", hidden)
		}
	}
	if !strings.Contains(f.Diff, `\u202e`) || !strings.Contains(f.Diff, `\x1b`) {
		t.Errorf("hidden characters are not escaped:\n%s", f.Diff)
	}
}

func TestReviewIsBounded(t *testing.T) {
	s := newScene(t)
	files := good()
	files["src/large.txt"] = strings.Repeat("all work and no play\n", 20_000)
	files["src/long.txt"] = strings.Repeat("all work\n", 12_000)
	files["src/binary"] = "\x00\x01\x02"
	for i := range 60 {
		files["src/"+strings.Repeat("n", i+1)] = strings.Repeat("x y\n", 12_000)
	}
	r := s.reviewed(files)
	for path, want := range map[string]string{
		"src/large.txt":                  "too large to compare",
		"src/long.txt":                   "the diff is too large",
		"src/binary":                     "not text",
		"src/" + strings.Repeat("n", 60): "omitted: too many differences",
	} {
		if f := change(t, r, path); f.NoDiff != want || f.Diff != "" {
			t.Errorf("%s: %q, want %q", path, f.NoDiff, want)
		}
	}
	if n := len(r.Text()); n > 2<<20 {
		t.Errorf("the review has %d bytes", n)
	}
}
