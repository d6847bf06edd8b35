package cli

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"glasshouse/api/wire"

	"github.com/google/go-cmp/cmp"
)

func TestSnapshotsFlag(t *testing.T) {
	text := "every=10m,before=exec:git push,before=exec:npm publish,after=exec,keep=last:5/hourly:24/daily:7,connections=keep"
	want := wire.Snapshots{
		Every: "10m", Before: []string{"exec:git push", "exec:npm publish"}, After: "exec",
		Keep: wire.Keep{Last: 5, Hourly: 24, Daily: 7}, KeepConnections: true,
	}
	got, err := parsePolicy(text)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	if back := policyText(got); back != text {
		t.Errorf("formatted again = %s", back)
	}
	if got, err := parsePolicy(""); err != nil || policyText(got) != "" {
		t.Errorf("empty flag = %+v, %v", got, err)
	}
	for _, bad := range []string{"every", "every=", "=10m", "when=now", "every=1m,every=2m", "after=exec,after=exec", "keep=5", "keep=last:x", "keep=weekly:3", "keep=last:1/last:2", "connections=close", "every=1m,"} {
		if got, err := parsePolicy(bad); err == nil {
			t.Errorf("%q is accepted as %+v", bad, got)
		}
	}
}

func TestSnapshotExportImport(t *testing.T) {
	d := newTestEnv(t)
	d.wantOutput("jail start JAIL")
	sid := strings.TrimSpace(d.wantOutput("snapshot JAIL"))
	archive := d.wantOutput("snapshot export " + sid)
	back := strings.TrimSpace(d.runWithInput(archive, "snapshot", "import", "--files-only"))
	if back == sid || !strings.HasPrefix(back, "s-") {
		t.Errorf("imported as %q", back)
	}
	d.wantOutput("snapshot ls", sid, back, "imported")
	d.wantOutput("snapshot show "+back, "imported")
}

// runWithInput runs a command with text as standard input, and returns its output.
func (d *testEnv) runWithInput(text string, args ...string) string {
	d.t.Helper()
	var out, errs bytes.Buffer
	env := Env{Stdin: strings.NewReader(text), Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }, UID: os.Getuid()}
	if code := Run(d.t.Context(), append([]string{"--addr", d.addr}, args...), env); code != 0 {
		d.t.Fatalf("%v: exit code %d, %s", args, code, errs.String())
	}
	return out.String()
}
