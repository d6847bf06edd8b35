package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"glasshouse/capability/bundle"
	"glasshouse/daemon"
)

// A vendor runs bundle commands in its own directory.
type vendor struct {
	*testing.T
	data  string
	stdin string
}

// run runs a command. It returns its output, including errors, and the exit code.
func (d *vendor) run(args ...string) (string, int) {
	d.Helper()
	var out bytes.Buffer
	env := Env{Stdin: strings.NewReader(d.stdin), Stdout: &out, Stderr: &out, UID: 1000, Getenv: func(k string) string {
		if k == "GLASSHOUSE_DATA" {
			return d.data
		}
		return ""
	}}
	code := Run(d.Context(), args, env)
	return out.String(), code
}

// mustRun runs a command that must succeed.
func (d *vendor) mustRun(args ...string) string {
	d.Helper()
	out, code := d.run(args...)
	if code != 0 {
		d.Fatalf("glasshouse %s: exit code %d\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

// mustFail runs a command that must fail and print want.
func (d *vendor) mustFail(want string, args ...string) {
	d.Helper()
	out, code := d.run(args...)
	if code == 0 || !strings.Contains(out, want) {
		d.Errorf("glasshouse %s: exit code %d, want 1 and %q in\n%s", strings.Join(args, " "), code, want, out)
	}
}

func (d *vendor) write(name, text string) {
	d.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		d.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		d.Fatal(err)
	}
}

// writeSkillBundle writes a bundle with a skill and no capabilities.
func (d *vendor) writeSkillBundle() {
	d.write("teacher/metadata.json", `{"name": "teacher", "version": "1.0.0", "publisher": "acme", "tier": "informational"}`)
	d.write("teacher/skill.yaml", "---\nname: teacher\ndescription: teaches\nversion: \"1.0.0\"\n---\n\n# Teacher\n\nThink first.\n")
}

func newVendor(t *testing.T) *vendor {
	t.Chdir(t.TempDir())
	return &vendor{T: t, data: t.TempDir()}
}

func TestBundleSignPackVerify(t *testing.T) {
	d := newVendor(t)
	d.writeSkillBundle()
	if out := d.mustRun("bundle", "keygen", "--out", "acme"); !strings.Contains(out, "RW") {
		t.Errorf("keygen does not show the public key:\n%s", out)
	}
	if st, err := os.Stat("acme.key"); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the secret key: %v, %v", st, err)
	}
	d.mustFail("exists", "bundle", "keygen", "--out", "acme")

	d.mustRun("bundle", "sign", "teacher", "--key", "acme.key", "-o", "teacher.tar.gz")
	d.mustRun("bundle", "sign", "teacher", "--key", "acme.key", "-o", "teacher.zip")
	for _, what := range []string{"teacher", "teacher.tar.gz", "teacher.zip"} {
		out := d.mustRun("bundle", "verify", what, "--key", "acme.pub")
		if !strings.Contains(out, "teacher 1.0.0 by acme") {
			t.Errorf("output of verify %s:\n%s", what, out)
		}
		d.mustFail("unknown publisher", "bundle", "verify", what)
	}
	d.mustRun("bundle", "keygen", "--out", "other")
	d.mustFail("unknown key", "bundle", "verify", "teacher.zip", "--key", "other.pub")
	d.mustFail("is not a file", "bundle", "verify", "teacher.zip", "--key", "nobody.pub")

	d.write("teacher/skill.yaml", "---\nname: evil\n---\n")
	d.mustFail("tampered", "bundle", "verify", "teacher", "--key", "acme.pub")
	d.mustFail("try: ", "bundle", "verify", "teacher", "--key", "acme.pub")
}

func TestTrustStore(t *testing.T) {
	d := newVendor(t)
	d.writeSkillBundle()
	d.mustRun("bundle", "keygen")
	d.mustRun("bundle", "sign", "teacher")
	trust, err := bundle.OpenTrust(filepath.Join(d.data, bundle.TrustFile))
	if err != nil {
		t.Fatal(err)
	}
	key, err := publicKey("bundle.pub")
	if err != nil {
		t.Fatal(err)
	}
	if err := trust.Add(t.Context(), "acme", bundle.Informational, key); err != nil {
		t.Fatal(err)
	}
	d.mustRun("bundle", "verify", "teacher")
	if err := trust.RevokeKey(t.Context(), key, "lost"); err != nil {
		t.Fatal(err)
	}
	d.mustFail("revoked key", "bundle", "verify", "teacher")
	// The nodes of a fleet share their publishers, so those of the data directory do not count.
	if _, err := daemon.InitFleet(d.data); err != nil {
		t.Fatal(err)
	}
	d.mustFail("bundle publishers", "bundle", "verify", "teacher")
}

func TestBundleVerifyJSON(t *testing.T) {
	d := newVendor(t)
	d.writeSkillBundle()
	d.mustRun("bundle", "keygen")
	d.mustRun("bundle", "sign", "teacher", "--expires", "1h")
	var whole struct{ Name, Version, Digest, Until string }
	if err := json.Unmarshal([]byte(d.mustRun("bundle", "verify", "teacher", "--key", "bundle.pub", "--json")), &whole); err != nil {
		t.Fatal(err)
	}
	if whole.Name != "teacher" || len(whole.Digest) != 64 || whole.Until == "" {
		t.Errorf("a complete bundle: %+v", whole)
	}
	d.write("teacher/evil.py", "x")
	out, code := d.run("bundle", "verify", "teacher", "--key", "bundle.pub", "--json")
	var refused struct{ Refused, Remedy string }
	if err := json.Unmarshal([]byte(out), &refused); err != nil || code != exitError {
		t.Fatalf("exit code %d, %v in\n%s", code, err, out)
	}
	if refused.Refused != string(bundle.Unlisted) || refused.Remedy == "" {
		t.Errorf("rejected as %+v", refused)
	}
}

func TestSealedKeyNeedsPassword(t *testing.T) {
	d := newVendor(t)
	d.writeSkillBundle()
	d.stdin = "open sesame\n"
	d.mustRun("bundle", "keygen", "--seal")
	d.mustRun("bundle", "sign", "teacher")
	d.stdin = "sesame\n"
	d.mustFail("password", "bundle", "sign", "teacher")
	d.stdin = ""
	d.mustFail("empty password", "bundle", "keygen", "--out", "x", "--seal")
}

func TestKeyReadableByOthersIsRejected(t *testing.T) {
	d := newVendor(t)
	d.writeSkillBundle()
	d.mustRun("bundle", "keygen")
	if err := os.Chmod("bundle.key", 0o644); err != nil {
		t.Fatal(err)
	}
	d.mustFail("other users can read", "bundle", "sign", "teacher")
}

func TestUnpackableNameIsReported(t *testing.T) {
	d := newVendor(t)
	d.writeSkillBundle()
	d.mustRun("bundle", "keygen")
	d.mustFail("does not end in one of", "bundle", "sign", "teacher", "-o", "teacher.rar")
	d.mustFail("would be inside the bundle", "bundle", "sign", "teacher", "-o", "teacher/teacher.zip")
	d.mustRun("bundle", "verify", "teacher", "--key", "bundle.pub")
}

func TestMarketIndex(t *testing.T) {
	d := newVendor(t)
	d.writeSkillBundle()
	d.mustRun("bundle", "keygen")
	d.mustRun("bundle", "keygen", "--out", "market")
	if err := os.Mkdir("stall", 0o755); err != nil {
		t.Fatal(err)
	}
	d.mustRun("bundle", "sign", "teacher", "-o", "stall/teacher-1.0.0.zip")
	out := d.mustRun("market", "index", "stall")
	if !strings.Contains(out, "teacher 1.0.0 by acme: teacher-1.0.0.zip") {
		t.Errorf("output of market index:\n%s", out)
	}
	var x struct{ Offers []struct{ Name, File string } }
	if err := json.Unmarshal([]byte(d.mustRun("market", "index", "stall", "--json")), &x); err != nil || len(x.Offers) != 1 {
		t.Errorf("%+v, %v", x, err)
	}
	d.mustFail("no such file", "market", "index", "nowhere")
}
