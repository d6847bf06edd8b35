package backendtest

import (
	"errors"
	"os"
	"strings"
	"testing"

	"glasshouse/fault"
	"glasshouse/jail"
)

// A value is a secret of a test.
type value struct{ name, clear string }

func (v value) Name() string { return v.name }
func (v value) Bytes() []byte {
	if v.clear == "" {
		return nil
	}
	return []byte(v.clear)
}
func (v value) Zero() {}

func file(name, clear string) jail.SecretFile {
	return jail.SecretFile{Secret: value{name, clear}}
}

// secrets checks that a jail sees the secrets that it is given and can only read them.
func (s *suite) secrets(t *testing.T) {
	b := s.newBox(t, func(p *jail.Plan) { p.SecretFiles = !s.restored }) // not every backend can dump such a jail
	holder, ok := b.inst.(jail.SecretHolder)
	if !ok {
		t.Fatal("its instances do not implement SecretHolder")
	}
	nobodys := file("KEY", "one")
	if err := holder.ShowSecrets(t.Context(), []jail.SecretFile{nobodys}); errors.Is(err, fault.Unsupported) {
		if fault.RemedyOf(err) == "" {
			t.Errorf("refused without a remedy: %v", err)
		}
		if err := errors.Join(holder.ShowSecrets(t.Context(), nil), holder.HideSecrets(t.Context())); err != nil {
			t.Errorf("ShowSecrets without secrets: %v", err)
		}
		t.Logf("not supported: %v", err)
		return
	}
	show := func(files ...jail.SecretFile) {
		t.Helper()
		if err := holder.ShowSecrets(t.Context(), files); err != nil {
			t.Fatalf("ShowSecrets: %v", err)
		}
	}
	says := func(script, want string) {
		t.Helper()
		if got := strings.TrimSpace(b.try(t, script).stdout); got != want {
			t.Errorf("%q printed %q, want %q", script, got, want)
		}
	}

	theirs := file("THEIRS", "two")
	theirs.UID, theirs.GID = 33, 33
	show(nobodys, theirs)
	says("cat /run/secrets/KEY /run/secrets/THEIRS", "onetwo")
	says("stat -c '%a %u %g' /run/secrets /run/secrets/KEY /run/secrets/THEIRS", "755 0 0\n400 0 0\n400 33 33")
	flags := "ro,nosuid,nodev,noexec"
	if s.opts.Runtime == "runsc" {
		flags = "ro" // gVisor's mountinfo lacks nosuid and nodev
	}
	says("grep ' /run/secrets ' /proc/self/mountinfo | head -1 | cut -d' ' -f6 | grep -o '^"+flags+"'", flags)

	for what, script := range map[string]string{
		"unmount":         "umount /run/secrets || umount -l /run/secrets",
		"remount":         "mount -o remount,rw /run/secrets || mount -o remount,bind,rw /run/secrets",
		"cover":           "mount -t tmpfs none /run/secrets",
		"show elsewhere":  "mkdir -p /tmp/s && mount --bind /run/secrets /tmp/s",
		"write":           "echo x > /run/secrets/KEY",
		"add":             "touch /run/secrets/NEW",
		"remove":          "rm -f /run/secrets/KEY",
		"rename":          "mv /run/secrets/KEY /run/secrets/OTHER",
		"link":            "ln /run/secrets/KEY /tmp/KEY",
		"open to others":  "chmod 444 /run/secrets/KEY",
		"give to others":  "chown 33 /run/secrets/KEY",
		"move the place":  "mv -T /run/secrets /run/elsewhere",
		"move what holds": "rm -rf /tmp/r; mv -T /run /tmp/r && ls /tmp/r/secrets/KEY && ! ls /run/secrets/KEY",
		"unshare":         "unshare -m true || unshare -Um true",
		"another's root":  "chroot /run/secrets /bin/true",
	} {
		if r := b.try(t, "("+script+") 2>/dev/null"); r.status.Code == 0 {
			t.Errorf("%s: not refused: %v", what, r)
		}
	}
	says("cat /run/secrets/KEY /run/secrets/THEIRS; ls /run/secrets", "onetwoKEY\nTHEIRS")

	other := s.newBox(t)
	if got := other.sh(t, "ls /run/secrets"); got != "" {
		t.Errorf("another jail sees secrets %q", got)
	}
	if _, err := os.Stat("/run/secrets/KEY"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the secret is visible on the host: %v", err)
	}
	b.nothingChanged(t)

	if _, lacking := s.backend.Lacks()["freeze"]; !lacking {
		if err := b.inst.Freeze(t.Context()); err != nil {
			t.Fatal(err)
		}
		show(file("KEY", "changed"))
		if err := b.inst.Thaw(t.Context()); err != nil {
			t.Fatal(err)
		}
		says("ls /run/secrets; cat /run/secrets/KEY", "KEY\nchanged")
	}
	show(file("KEY", "one"), theirs)
	show(jail.SecretFile{Secret: value{"KEY", ""}}) // unchanged
	says("ls /run/secrets; cat /run/secrets/KEY", "KEY\none")
	if err := holder.HideSecrets(t.Context()); err != nil {
		t.Fatalf("HideSecrets: %v", err)
	}
	show(jail.SecretFile{Secret: value{"KEY", ""}}) // unchanged, and absent
	says("ls /run/secrets", "")
	show(file("KEY", "again"))
	says("cat /run/secrets/KEY", "again")
	b.kill(t)
	if err := holder.ShowSecrets(t.Context(), []jail.SecretFile{nobodys}); err == nil {
		t.Error("ShowSecrets of an ended jail succeeded")
	}
}

// nothingChanged checks that the jail's changes do not include its secrets.
func (b *box) nothingChanged(t *testing.T) {
	t.Helper()
	d, ok := b.suite.backend.(jail.Differ)
	if !ok {
		return
	}
	changes, err := d.Changes(t.Context(), b.plan, jail.ChangesOptions{Text: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		if strings.HasPrefix(c.Path, jail.SecretsDir) {
			t.Errorf("%s %s", c.Kind, c.Path)
		}
	}
}
