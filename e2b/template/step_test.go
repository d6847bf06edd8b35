package template

import (
	"reflect"
	"strings"
	"testing"

	"glasshouse/fault"
)

func TestParseStep(t *testing.T) {
	hash := strings.Repeat("0", 64)
	for _, c := range []struct {
		step Step
		want any // nil: the step is rejected
	}{
		{Step{Type: "RUN", Args: []string{"make"}}, running{"make", ""}},
		{Step{Type: "run", Args: []string{"make", "root"}}, running{"make", "root"}},
		{Step{Type: "RUN", Args: []string{"make", "root:x; id"}}, nil},
		{Step{Type: "RUN"}, nil},
		{Step{Type: "RUN", Args: []string{"a\x00b"}}, nil},
		{Step{Type: "RUN", Args: []string{strings.Repeat("x", maxCommand+1)}}, nil},
		{Step{Type: "ENV", Args: []string{"A", "1", "B", ""}}, assigning{[][2]string{{"A", "1"}, {"B", ""}}}},
		{Step{Type: "ENV", Args: []string{"A"}}, nil},
		{Step{Type: "ENV"}, nil},
		{Step{Type: "ENV", Args: []string{"A B", "1"}}, nil},
		{Step{Type: "ENV", Args: []string{"A=B", "1"}}, nil},
		{Step{Type: "WORKDIR", Args: []string{"a/b"}}, settingDir{"a/b"}},
		{Step{Type: "WORKDIR", Args: []string{""}}, nil},
		{Step{Type: "USER", Args: []string{"worker"}}, settingUser{"worker"}},
		{Step{Type: "USER", Args: []string{"0"}}, nil},
		{Step{Type: "USER", Args: []string{"a:b"}}, nil},
		{Step{Type: "USER", Args: []string{"../../etc"}}, nil},
		{Step{Type: "COPY", Args: []string{"a", "b"}, Files: hash}, copying{from: "a", to: "b", mode: -1}},
		{Step{Type: "COPY", Args: []string{"./src/", "/app", "root:www", "0755"}, Files: hash}, copying{from: "src", to: "/app", owner: "root:www", mode: 0o755}},
		{Step{Type: "COPY", Args: []string{"src/**/*.js", "/app", "", ""}, Files: hash}, copying{from: "src", pattern: true, to: "/app", mode: -1}},
		{Step{Type: "COPY", Args: []string{"*.txt", "."}, Files: hash}, copying{from: ".", pattern: true, to: ".", mode: -1}},
		{Step{Type: "COPY", Args: []string{"a", "b"}}, nil},
		{Step{Type: "COPY", Args: []string{"a", "b"}, Files: "../" + hash[3:]}, nil},
		{Step{Type: "COPY", Args: []string{"a", "b", "root:", ""}, Files: hash}, nil},
		{Step{Type: "COPY", Args: []string{"a", "b", "", "99"}, Files: hash}, nil},
		{Step{Type: "COPY", Args: []string{"a", "b", "", "77777"}, Files: hash}, nil},
		{Step{Type: "COPY", Args: []string{"a", "b", "", "-1"}, Files: hash}, nil},
		{Step{Type: "COPY", Args: []string{"a/../../b", "c"}, Files: hash}, nil},
		{Step{Type: "COPY", Args: []string{"/etc/passwd", "c"}, Files: hash}, nil},
		{Step{Type: "COPY", Args: []string{"a"}, Files: hash}, nil},
		{Step{Type: "VOLUME", Args: []string{"a"}}, nil},
		{Step{}, nil},
	} {
		got, err := c.step.parse()
		switch {
		case c.want == nil && fault.KindOf(err) != fault.Invalid:
			t.Errorf("%+v = %+v, %v, want an error", c.step, got, err)
		case c.want != nil && (err != nil || !reflect.DeepEqual(got, c.want)):
			t.Errorf("%+v = %+v, %v, want %+v", c.step, got, err, c.want)
		}
	}
}

func TestExpand(t *testing.T) {
	of := func(name string) string {
		return map[string]string{"PATH": "/bin", "A": "1", "LONG": strings.Repeat("x", maxValue/2)}[name]
	}
	for value, want := range map[string]string{
		"": "", "plain": "plain", "/opt:$PATH": "/opt:/bin", "${A}2": "12", "$A$A": "11", "$A2": "", "$none": "",
		`\$A`: "$A", `\\$A`: `\$A`, "$": "$", "a$": "a$", "$1": "$1", "${": "${", "${A": "${A", "${A:-x}": "${A:-x}", "$(id)": "$(id)", "`id`": "`id`",
	} {
		if got, err := expand(value, of); err != nil || got != want {
			t.Errorf("%q = %q, %v, want %q", value, got, err, want)
		}
	}
	if _, err := expand("$LONG$LONG$LONG", of); fault.KindOf(err) != fault.Invalid {
		t.Errorf("a value above the limit: %v", err)
	}
}

func TestParseName(t *testing.T) {
	for _, c := range []struct{ in, name, tag string }{
		{"a", "a", ""}, {" My-App_1 ", "my-app_1", ""}, {"a:v1.0", "a", "v1.0"}, {"a:Default", "a", "default"},
	} {
		if name, tag, err := parseName(c.in); err != nil || name != c.name || tag != c.tag {
			t.Errorf("%q = %q, %q, %v", c.in, name, tag, err)
		}
	}
	for _, in := range []string{"", ":a", "a:", "a b", "a/b", "../a", "a:b:c", "a:b/c", "a:0b5a4f66-7d4d-4d63-9c0c-1a0f8f4b7e11", strings.Repeat("a", 129), "ä"} {
		if name, tag, err := parseName(in); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%q = %q, %q, %v, want an error", in, name, tag, err)
		}
	}
}

func TestBuildStateChanges(t *testing.T) {
	for _, from := range []State{Waiting, Building, Ready, Failed} {
		for _, to := range []State{Waiting, Building, Ready, Failed} {
			b := Build{ID: "b", State: from}
			err := b.move(to)
			legal := from == Waiting && (to == Building || to == Failed) || from == Building && (to == Ready || to == Failed)
			if legal != (err == nil) || legal && b.State != to {
				t.Errorf("%s to %s: %v, %s", from, to, err, b.State)
			}
			if over := to == Ready || to == Failed; legal && over != (b.Finished != nil) {
				t.Errorf("%s to %s: finished %v", from, to, b.Finished)
			}
		}
	}
}

func TestStepStringIsClippedAtCharacter(t *testing.T) {
	got := Step{Type: "RUN", Args: []string{strings.Repeat("a", 995) + "äb"}}.String()
	if want := "RUN " + strings.Repeat("a", 995) + "…"; got != want {
		t.Errorf("String() ends in %q, want %q", got[990:], want[990:])
	}
}

func FuzzStep(f *testing.F) {
	f.Add("RUN", "make", "root", "", "", "")
	f.Add("COPY", "src/*.js", "/app", "root:www", "0755", strings.Repeat("0", 64))
	f.Add("COPY", "a/./b/../c", "../x", "", "", strings.Repeat("a", 64))
	f.Add("ENV", "A", "$A${B}\\$C", "B", "$", "")
	f.Add("USER", "worker", "", "", "", "")
	f.Fuzz(func(t *testing.T, kind, a, b, c, d, hash string) {
		s := Step{Type: kind, Args: []string{a, b, c, d}, Files: hash}
		_ = s.String()
		got, err := s.parse()
		if err != nil {
			if fault.KindOf(err) != fault.Invalid {
				t.Fatalf("rejected with %v", err)
			}
			return
		}
		switch got := got.(type) {
		case copying:
			if got.from == "" || got.from == ".." || strings.HasPrefix(got.from, "../") || strings.HasPrefix(got.from, "/") {
				t.Errorf("COPY %q copies %q", a, got.from)
			}
			if !filesHash.MatchString(hash) {
				t.Errorf("the hash %q", hash)
			}
		case running:
			if got.user != "" && !userName.MatchString(got.user) {
				t.Errorf("the user %q", got.user)
			}
		case settingUser:
			if !userName.MatchString(got.user) {
				t.Errorf("the user %q", got.user)
			}
		case assigning:
			for _, pair := range got.pairs {
				value, err := expand(pair[1], func(string) string { return "value" })
				if err == nil && len(value) > maxValue {
					t.Errorf("a value of %d bytes", len(value))
				}
			}
		}
	})
}
