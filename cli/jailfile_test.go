package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestJailFile(t *testing.T) {
	const file = `# a jail for tests
name: web
labels: {team: core, number: 7}
limits:
  memory_mb: 2048
  cpu_shares: 512
network: proxy
egress:
  allow:
    - host: registry.npmjs.org
      ports: [443]
user: 1000
command: [npm, test]
observe: {syscalls: security, sample: 10}
start: true
`
	const want = `POST /jails {"name":"web","labels":{"number":"7","team":"core"},"limits":{"cpu_shares":512,"memory_mb":2048},"network":"proxy","egress":{"allow":[{"host":"registry.npmjs.org","ports":[443]}]},"user":"1000","command":["npm","test"],"observe":{"syscalls":"security","sample":10},"start":true}`
	at := filepath.Join(t.TempDir(), "jail.yaml")
	if err := os.WriteFile(at, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ args, stdin, want string }{
		{"-f " + at, "", want},
		{"--file -", file, want},
		{"-f -", `{"name": "j", "enforce": true}`, `POST /jails {"name":"j","enforce":true}`},
	} {
		d := newScriptedDaemon(t, map[string]string{"POST /jails": jailJSON})
		code, out, errs := d.run(tt.stdin, append([]string{"jail", "create"}, argsOf(tt.args)...)...)
		if code != 0 || out != aJail+"\n" || d.asked() != tt.want {
			t.Errorf("create %s: %d, %q, %q, request\n%s\nwant\n%s", tt.args, code, out, errs, d.asked(), tt.want)
		}
	}
}

func TestJailFileErrors(t *testing.T) {
	for file, want := range map[string]string{
		"name: a\nmemory: 5\n":                  "line 2: unknown field memory",
		"limits:\n  memory_mb: 5\n  cores: 1\n": "line 3: unknown field limits.cores",
		"egress:\n  allow:\n  - hots: a\n":      "line 3: unknown field egress.allow[0].hots",
		"name: a\nname: b\n":                    "line 2: name is set twice",
		"limits: {memory_mb: 2g}\n":             "line 1: limits.memory_mb must be a whole number",
		"start: maybe\n":                        "line 1: start must be true or false",
		"\ncommand: make\n":                     "line 2: command must be a list",
		"- name\n":                              "line 1: the description of a jail must be a mapping of fields",
		"labels: &a {b: c}\nenv: *a\n":          "line 2: aliases are not supported",
		"name: a\n---\nname: b\n":               "want one document",
		"name: [\n":                             "did not find expected node content",
		"":                                      "EOF",
		"name: {a: b}\n":                        "line 1: name must be a single value",
	} {
		d := newScriptedDaemon(t, nil)
		code, _, errs := d.run(file, "jail", "create", "-f", "-")
		if code != 2 || !strings.Contains(errs, want) || d.asked() != "" {
			t.Errorf("%q: exit code %d, %q, requests %q; want 2, %q and no request", file, code, errs, d.asked(), want)
		}
	}
	d := newScriptedDaemon(t, nil)
	for _, args := range []string{"--name web", "--memory 2g", "--start", "-- make"} {
		code, _, errs := d.run("name: a\n", append([]string{"jail", "create", "-f", "-"}, argsOf(args)...)...)
		if code != 2 || !strings.Contains(errs, "--file") {
			t.Errorf("-f and %s: %d, %q; want 2 and the option", args, code, errs)
		}
	}
	if code, _, errs := d.run("", "jail", "create", "-f", "/nowhere/jail.yaml"); code != 1 || !strings.Contains(errs, "no such file") {
		t.Errorf("a missing file: %d, %q", code, errs)
	}
}

func TestObservePresets(t *testing.T) {
	for preset, want := range map[string]string{
		"full":                    `{"syscalls":"all","files":"all","network":"packets"}`,
		"security":                `{"syscalls":"security","files":"all","network":"flows"}`,
		"flows":                   `{"syscalls":"off","files":"off","network":"flows"}`,
		"off":                     `{"syscalls":"off","files":"off","network":"off"}`,
		"security,files=off":      `{"syscalls":"security","files":"off","network":"flows"}`,
		"flows,on_overload=count": `{"syscalls":"off","files":"off","network":"flows","on_overload":"count"}`,
	} {
		d := newScriptedDaemon(t, map[string]string{"POST /jails": jailJSON})
		d.run("", "jail", "create", "--observe", preset)
		if got := d.asked(); !strings.Contains(got, `"observe":`+want) {
			t.Errorf("--observe %s: request %s, want %s", preset, got, want)
		}
	}
	d := newScriptedDaemon(t, nil)
	for _, bad := range []string{"none", "files=off,security", "full,security"} {
		if code, _, errs := d.run("", "jail", "create", "--observe", bad); code != 2 || !strings.Contains(errs, "--observe") {
			t.Errorf("--observe %s: %d, %q; want 2", bad, code, errs)
		}
	}
}
