package snapshot

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"glasshouse/observe/report"
)

// FuzzProcessesFile decodes a process list, which may be from another host, and checks that it
// encodes to the same value.
func FuzzProcessesFile(f *testing.F) {
	f.Add([]byte(`[{"pid":1,"born":"j-a/b/1","comm":{"base64":"/w=="},"argv":["a",{"base64":"/wA="}],"env":null}]`))
	f.Add([]byte(`[{"argv":[{}]}]`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, processesFile), b, 0o600); err != nil {
			t.Fatal(err)
		}
		list, err := readProcesses(dir)
		if err != nil {
			return
		}
		if err := writeProcesses(dir, list); err != nil {
			t.Fatal(err)
		}
		again, err := readProcesses(dir)
		x, _ := json.Marshal(list)
		y, _ := json.Marshal(again)
		if err != nil || !slices.Equal(x, y) {
			t.Errorf("%s decodes as %s, %v", x, y, err)
		}
	})
}

func TestEnvironmentDifferences(t *testing.T) {
	was := []text{"A=1", "B=2", "A=again", "API_TOKEN=hush", "GONE=", "no equals"}
	now := []text{"B=3", "A=1", "API_TOKEN=other", "NEW=\xff", "no equals"}
	all, cut := environment(was, now)
	if cut || len(all) != 4 {
		t.Fatalf("%d variables differ, want B, API_TOKEN, GONE and NEW: %+v", len(all), all)
	}
	for i, want := range []string{"API_TOKEN: (hidden) → (hidden)", "B: 2 → 3", "GONE: '' → unset", `NEW: unset → '\xff'`} {
		if got := all[i].Summary(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if b, _ := json.Marshal(all[0]); string(b) != `{"name":"API_TOKEN","from":"","to":"","hidden":true}` {
		t.Errorf("a secret is disclosed: %s", b)
	}
	for name, hidden := range map[string]bool{"AWS_SECRET_ACCESS_KEY": true, "DB_PASSWORD": true, "GITHUB_TOKEN": true, "SSH_KEY": true, "HOME": false, "KEYBOARD": false, "PATH": false} {
		if secret.MatchString(name) != hidden {
			t.Errorf("%s hidden: %v, want %v", name, !hidden, hidden)
		}
	}
	if all, _ := environment([]text{"DB=postgres://u:hush@host/db"}, nil); len(all) != 1 || !all[0].Hidden || *all[0].From != "" {
		t.Errorf("a password in a URL is disclosed: %+v", all)
	}
	var long []text
	for i := range 3 * maxChange {
		long = append(long, text(string(rune('a'+i%26))+string(rune('a'+i/26))+"=1"))
	}
	if all, cut := environment(nil, long); !cut || len(all) != maxChange {
		t.Errorf("%d of %d variables reported, cut %v", len(all), len(long), cut)
	}
}

func TestLongArgumentsAreClipped(t *testing.T) {
	p := process{Argv: []text{"a", text(make([]byte, maxArgv)), "b"}}
	if r := processReport(p); !r.Cut || len(r.Argv) != 2 || len(r.Argv[1]) >= maxArgv {
		t.Errorf("cut %v, %d arguments", r.Cut, len(r.Argv))
	}
	if r := processReport(process{Argv: []text{"a", ""}}); r.Cut || !slices.Equal(r.Argv, []report.Text{"a", ""}) {
		t.Errorf("%+v", r)
	}
}
