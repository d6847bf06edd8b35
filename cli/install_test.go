package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBundleInstall(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "places-1.2.0.tar.gz")
	(&vendor{T: t}).write(archive, "ARCHIVE")
	type m = map[string]string
	const (
		installed = `{"name":"places","version":"1.2.0","capabilities":[]}`
		pending   = `{"name":"pla\u001bces","capabilities":[],"next":{"version":"1.2.0\u202e","state":"pending","approval":"a-1"}}`
		refused   = `{"name":"places","capabilities":[],"next":{"version":"1.2.0","state":"refused","why":"it wants ` + escapedName + `"}}`
		offer     = `{"name":"places","version":"1.2.0","installed":"1.1.0","publisher":"acme","tier":"standard","market":"https://m.example","description":"finds ` + escapedName + `"}`
	)
	post := "POST /bundles?name=places-1.2.0.tar.gz ARCHIVE"
	checkLines(t, []lineTest{
		{line: "bundle install " + archive, answers: m{"POST /bundles": installed}, want: post, out: "places 1.2.0 is installed"},
		{
			line: "bundle install " + archive, answers: m{"POST /bundles": pending}, want: post,
			out: `pla\x1bces 1.2.0\u202e is pending approval` + "\nto see what it may do: glasshouse approval show a-1\nto allow it: glasshouse approve a-1",
		},
		{line: "bundle install " + archive, answers: m{"POST /bundles": refused}, want: post, out: `places 1.2.0 is refused: it wants \x1b[31mred\u202e`},
		{line: "bundle install " + archive + ".none", errs: "no such file", code: 1},
		{
			line: "bundle install " + archive, want: post,
			answers: m{"POST /bundles": `403 {"type":"/problems/denied","title":"denied","status":403,"detail":"unknown publisher","remedy":"glasshouse bundle trust"}`},
			errs:    "glasshouse: denied: unknown publisher\n  try: glasshouse bundle trust\n", code: 1,
		},
		{
			line: "market install places@1.2.0", answers: m{"POST /market/install": installed},
			want: `POST /market/install {"name":"places","version":"1.2.0"}`, out: "places 1.2.0 is installed",
		},
		{
			line: "market install places", answers: m{"POST /market/install": pending},
			want: `POST /market/install {"name":"places"}`, out: "is pending approval",
		},
		{
			line: "market search coffee near me", answers: m{"GET /market": items(offer)},
			want: "GET /market?q=coffee+near+me",
			out:  "BUNDLE VERSION INSTALLED PUBLISHER TIER MARKET WHAT\n" + `places 1.2.0 1.1.0 acme standard https://m.example finds \x1b[31mred\u202e`,
		},
		{line: "market search", answers: m{"GET /market": items()}, want: "GET /market?q=", out: "BUNDLE VERSION INSTALLED PUBLISHER TIER MARKET WHAT"},
		{line: "market outdated", answers: m{"GET /market/outdated": items(offer)}, want: "GET /market/outdated", out: "places 1.2.0 1.1.0 acme"},
		{
			line: "bundle ls",
			answers: m{"GET /bundles": items(installed, pending, refused,
				`{"name":"old","version":"1.0.0","publisher":"acme","tier":"standard","capabilities":["a.b@1.0.0","a.c@1.0.0"],"skill":"old","barred":"its key was revoked","remedy":"install another"}`)},
			want: "GET /bundles",
			out: "BUNDLE VERSION PUBLISHER TIER STATE CAPABILITIES SKILL NEXT\n" +
				"places 1.2.0 installed\n" +
				`pla\x1bces - 1.2.0\u202e pending a-1` + "\n" +
				"places - 1.2.0 refused\n" +
				"old 1.0.0 acme standard not called a.b@1.0.0 a.c@1.0.0 old\n" +
				"old is disabled: its key was revoked\n→ install another",
		},
		{
			line:    "bundle publishers",
			answers: m{"GET /publishers": items(`{"name":"ac\u001bme","tier":"standard","keys":[{"id":"A","key":"k"},{"id":"B","key":"k","retired":"2026-01-02T15:04:05Z"},{"id":"C","key":"k","revoked":"2026-01-02T15:04:05Z","reason":"lost"}]}`, `{"name":"none","tier":"elevated"}`)},
			want:    "GET /publishers",
			out:     "PUBLISHER TIER KEY STATE REASON\n" + `ac\x1bme standard A good` + "\n" + `ac\x1bme standard B retired` + "\n" + `ac\x1bme standard C revoked lost`,
		},
		{line: "bundle rm places~x", answers: m{"DELETE /bundles/places%20x": "204 "}, want: "DELETE /bundles/places%20x"},
		{line: "bundle rm", errs: "accepts 1 arg(s), received 0", code: 2},
	})
}

func TestPublisherKeysAreCheckedBeforeRequest(t *testing.T) {
	v := newVendor(t)
	v.mustRun("bundle", "keygen", "--out", "old")
	v.mustRun("bundle", "keygen", "--out", "new")
	keyOf := func(name string) string {
		k, err := publicKey(name)
		if err != nil {
			t.Fatal(err)
		}
		return k.String()
	}
	old, next := keyOf("old.pub"), keyOf("new.pub")
	v.write("empty.pub", "")
	v.write("comment.pub", "untrusted comment: nothing below\n")
	secret, err := os.ReadFile("old.key")
	if err != nil {
		t.Fatal(err)
	}
	d := newScriptedDaemon(t, map[string]string{
		"PUT /publishers/acme": "204 ", "DELETE /publishers/acme": "204 ", "POST /publishers/rotate": "204 ", "POST /publishers/revoke": "204 ",
	})
	for _, c := range []struct {
		args       []string
		want, errs string
		code       int
	}{
		{args: []string{"trust", "acme", "standard", "old.pub"}, want: `PUT /publishers/acme {"tier":"standard","key":"` + old + `"}`},
		{args: []string{"trust", "acme", "standard", old}, want: `PUT /publishers/acme {"tier":"standard","key":"` + old + `"}`},
		{args: []string{"trust", "acme", "standard", "empty.pub"}, errs: "not a minisign public key: no base64 line", code: 1},
		{args: []string{"trust", "acme", "standard", "comment.pub"}, errs: "not a minisign public key", code: 1},
		{args: []string{"trust", "acme", "standard", "old.key"}, errs: "not a minisign public key", code: 1},
		{args: []string{"trust", "acme", "standard", "none.pub"}, errs: `"none.pub" is not a file: `, code: 1},
		{args: []string{"trust", "acme", "standard", "."}, errs: "is a directory", code: 1},
		{args: []string{"trust", "acme", "standard"}, errs: "accepts 3 arg(s), received 2", code: 2},
		{args: []string{"rotate", "old.pub", "new.pub"}, want: `POST /publishers/rotate {"old":"` + old + `","key":"` + next + `"}`},
		{args: []string{"rotate", "old.pub", "empty.pub"}, errs: "not a minisign public key", code: 1},
		{args: []string{"rotate", "empty.pub", "new.pub"}, errs: "not a minisign public key", code: 1},
		{args: []string{"distrust", "acme"}, want: "DELETE /publishers/acme"},
		{args: []string{"distrust", "--key", "old.pub", "--reason", "it was lost"}, want: `POST /publishers/revoke {"key":"` + old + `","reason":"it was lost"}`},
		{args: []string{"distrust", "--digest", "d"}, want: `POST /publishers/revoke {"digest":"d"}`},
		{args: []string{"distrust", "--key", "empty.pub"}, errs: "not a minisign public key", code: 1},
		{args: []string{"distrust"}, errs: "either a publisher, or --key, or --digest", code: 2},
		{args: []string{"distrust", "acme", "--digest", "d"}, errs: "either a publisher, or --key, or --digest", code: 2},
		{args: []string{"distrust", "--key", "old.pub", "--digest", "d"}, errs: "either a publisher, or --key, or --digest", code: 2},
	} {
		d.requests = nil
		code, out, errs := d.run("", append([]string{"bundle"}, c.args...)...)
		if got := d.asked(); code != c.code || out != "" || got != c.want || !strings.Contains(errs, c.errs) || c.errs == "" && errs != "" {
			t.Errorf("bundle %q: got exit code %d, %q, %q and the request %q, want %d, %q and %q", c.args, code, out, errs, got, c.code, c.errs, c.want)
		}
		if strings.Contains(errs, strings.Fields(string(secret))[len(strings.Fields(string(secret)))-1]) {
			t.Errorf("bundle %q: the error contains a secret key: %q", c.args, errs)
		}
	}
}

func TestKeyPasswordFromFile(t *testing.T) {
	d := newVendor(t)
	d.writeSkillBundle()
	d.write("password", "open sesame\r\n")
	d.write("empty", "\n")
	d.mustFail("an empty password does not protect the key", "bundle", "keygen", "--password-file", "empty")
	d.mustFail("no such file", "bundle", "keygen", "--password-file", "none")
	if _, err := os.Stat("bundle.key"); err == nil {
		t.Error("a key without a password: got a file, want none")
	}
	var made struct {
		ID, Public string
		Key        string `json:"key_file"`
		Pub        string `json:"public_file"`
	}
	if err := json.Unmarshal([]byte(d.mustRun("--json", "bundle", "keygen", "--password-file", "password")), &made); err != nil {
		t.Fatal(err)
	}
	if made.ID == "" || !strings.HasPrefix(made.Public, "RW") || made.Key != "bundle.key" || made.Pub != "bundle.pub" {
		t.Errorf("keygen --json: got %+v, want the key and its files", made)
	}
	d.mustFail("password", "bundle", "sign", "teacher", "--password-file", "empty")
	d.mustRun("bundle", "sign", "teacher", "--password-file", "password")
	d.stdin = "open sesame" // without a newline
	d.mustRun("bundle", "sign", "teacher")
}

func TestKeygenReplacesNoFile(t *testing.T) {
	d := newVendor(t)
	d.write("mine.pub", "precious")
	d.mustFail("mine.pub: file exists", "bundle", "keygen", "--out", "mine")
	if _, err := os.Stat("mine.key"); err == nil {
		t.Error("the secret half of a key that was not made: got a file, want none")
	}
	if got, err := os.ReadFile("mine.pub"); string(got) != "precious" {
		t.Errorf("mine.pub: got %q, %v, want it as it was", got, err)
	}
	d.mustFail("no such file or directory", "bundle", "keygen", "--out", "none/mine")
	d.mustFail("no such file or directory", "bundle", "sign", "teacher", "--key", "none.key")
}

func TestRegisterCapability(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "places.rtfs")
	(&vendor{T: t}).write(file, "(capability)")
	answer := items(`{"id":"places.search","version":"1.0.0","state":"pending","new":["reaches a.example","`+escapedName+`"],"approval":"a-1"}`, `{"id":"places.show","version":"1.0.0","state":"approved","new":["nothing"]}`)
	for _, c := range []struct{ flags, want string }{
		{"", `{"manifest":"(capability)","file":"places.rtfs","dir":"` + dir + `"}`},
		{"--again", `{"manifest":"(capability)","file":"places.rtfs","dir":"` + dir + `","again":true}`},
		{"--dir /srv/code", `{"manifest":"(capability)","file":"places.rtfs","dir":"/srv/code"}`},
	} {
		d := newScriptedDaemon(t, map[string]string{"POST /capabilities": answer})
		code, out, errs := d.run("", append([]string{"capability", "register", file}, strings.Fields(c.flags)...)...)
		want := "places.search@1.0.0 is pending\n  reaches a.example\n  \\x1b[31mred\\u202e\n  to allow this: glasshouse approve a-1\nplaces.show@1.0.0 is approved\n"
		if code != 0 || out != want {
			t.Errorf("register %s: got exit code %d, %q and %q, want 0 and %q", c.flags, code, out, errs, want)
		}
		if got := strings.TrimPrefix(d.asked(), "POST /capabilities "); got != c.want {
			t.Errorf("register %s: request: got %s, want %s", c.flags, got, c.want)
		}
	}
	d := newScriptedDaemon(t, nil)
	if code, _, errs := d.run("", "capability", "register", file+".none"); code != 1 || !strings.Contains(errs, "no such file") || d.asked() != "" {
		t.Errorf("a file that is not there: got exit code %d, %q and the request %q, want 1, why and none", code, errs, d.asked())
	}
}

func TestCallInput(t *testing.T) {
	file := filepath.Join(t.TempDir(), "input.json")
	(&vendor{T: t}).write(file, `{"from":"a file"}`)
	for _, c := range []struct {
		line, stdin string
		want, errs  string
		code        int
	}{
		{line: "call a.b", want: `{}`},
		{line: "call a.b 5", want: `{"input":5}`},
		{line: "call a.b null", want: `{"input":null}`},
		{line: "call a.b --file " + file, want: `{"input":{"from":"a file"}}`},
		{line: "call a.b --file -", stdin: "[1]", want: `{"input":[1]}`},
		{line: "call a.b -", stdin: `"` + strings.Repeat("x", maxInput-2) + `"`, want: `{"input":"` + strings.Repeat("x", maxInput-2) + `"}`},
		{line: "call a.b -", stdin: strings.Repeat("1", maxInput+1), errs: "the input is longer than 1 MiB", code: 1},
		{line: "call a.b -", stdin: "", errs: "the input is not JSON", code: 2},
		{line: "call a.b {", errs: "the input is not JSON", code: 2},
		{line: "call a.b --file " + file + ".none", errs: "no such file", code: 1},
		{line: "call a.b - --file " + file, errs: "give the input as an argument or in a file, not both", code: 2},
		{line: "call a.b --budget steps", errs: "is not DIMENSION=N", code: 2},
		{line: "call a.b --session s --run r --budget steps=5 --label pii,secret", want: `{"run":"r","session":"s","labels":["pii","secret"],"budget":{"steps":5}}`},
		{line: "call a.b --jail nobody", errs: `no jail has the id or the name "nobody"`, code: 1},
	} {
		d := newScriptedDaemon(t, map[string]string{"POST /capabilities/a.b/call": `{"capability":"a.b","state":"done"}`, "GET /jails": items()})
		code, out, errs := d.run(c.stdin, argsOf(c.line)...)
		if code != c.code || out != "" || !strings.Contains(errs, c.errs) || c.errs == "" && errs != "" {
			t.Errorf("%s: got exit code %d, %q and %.200q, want %d and %q", c.line, code, out, errs, c.code, c.errs)
		}
		_, got, _ := strings.Cut(d.asked(), "/call ")
		if c.code == 0 && !sameJSON(t, got, c.want) {
			t.Errorf("%s: request: got %.200s, want %.200s", c.line, got, c.want)
		}
	}
}

func TestCallPrintsWarning(t *testing.T) {
	d := newScriptedDaemon(t, map[string]string{"POST /capabilities/a.b/call": `{"capability":"a.b","state":"done","output":1,"warning":"2.0.0 is ` + escapedName + `"}`})
	code, out, errs := d.run("", "call", "a.b")
	if want := "glasshouse: warning: 2.0.0 is \\x1b[31mred\\u202e\n"; code != 0 || out != "1\n" || errs != want {
		t.Errorf("got exit code %d, %q and %q, want 0, %q and %q", code, out, errs, "1\n", want)
	}
}

func TestSkillAddAndImport(t *testing.T) {
	dir := t.TempDir()
	folder, doc := filepath.Join(dir, "pdf"), filepath.Join(dir, "skill.yaml")
	v := &vendor{T: t}
	v.write(doc, "---\nname: k\n---\n")
	v.write(filepath.Join(folder, "SKILL.md"), "---\nname: pdf\ndescription: reads\n---\n\nRead it.\n")
	v.write(filepath.Join(folder, "read.py"), "print(1)\n")

	d := newScriptedDaemon(t, map[string]string{"POST /skills": `{"name":"k\u001b","tier":"standard"}`})
	code, out, errs := d.run("", "skill", "add", doc)
	if want := "k\\x1b is a skill of tier standard\n"; code != 0 || out != want {
		t.Errorf("add: got exit code %d, %q and %q, want 0 and %q", code, out, errs, want)
	}
	if got, want := d.asked(), `POST /skills {"file":"skill.yaml","text":"---\nname: k\n---\n"}`; got != want {
		t.Errorf("add: request: got %s, want %s", got, want)
	}
	to := filepath.Join(dir, "bundle")
	if code, out, errs := d.run("", "skill", "import", folder, "-o", to); code != 0 || !strings.Contains(out, "read.py") {
		t.Errorf("import: got exit code %d, %q and %q, want 0 and a report on read.py", code, out, errs)
	}
	if _, err := os.Stat(filepath.Join(to, "skill.yaml")); err != nil {
		t.Errorf("import: %v, want a bundle", err)
	}
	for line, want := range map[string]struct {
		code int
		text string
	}{
		"skill import " + folder:                    {2, "give --output DIRECTORY"},
		"skill import " + folder + " -o " + folder:  {1, "glasshouse: "},
		"skill import " + folder + ".none -o " + to: {1, "no such file"},
		"skill add " + doc + ".none":                {1, "no such file"},
	} {
		if code, _, errs := d.run("", argsOf(line)...); code != want.code || !strings.Contains(errs, want.text) {
			t.Errorf("%s: got exit code %d and %q, want %d and %q", line, code, errs, want.code, want.text)
		}
	}
	_, out, _ = d.run("", "--json", "skill", "import", folder, "-o", to+"2")
	var report map[string]any
	if err := json.Unmarshal([]byte(out), &report); err != nil || len(report) == 0 {
		t.Errorf("import --json: got %s, %v, want a report", out, err)
	}
}
