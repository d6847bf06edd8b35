package test_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"glasshouse/capability/bundle"
)

// A stall is a private market.
type stall struct {
	dir string
	key []byte // signs its index
}

// sells creates a stall, and returns it with the configuration of a daemon that uses it.
func sells(t *testing.T) (stall, string) {
	t.Helper()
	key, err := bundle.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	secret, err := key.File(nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	return stall{dir, secret}, fmt.Sprintf("markets: [{name: stall, base: %q, key: %q}]\n", dir, key.Public())
}

// offers publishes a version of a bundle that declares hosts.
func (s stall) offers(p *publisher, version string, hosts ...string) {
	p.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, "market.key"), s.key, 0o600); err != nil {
		p.Fatal(err)
	}
	p.does("bundle", "sign", places(version, hosts...).write(p.T), "--key", "acme.key", "-o", filepath.Join(s.dir, "local-places-"+version+".tar.gz"))
	p.does("market", "index", s.dir, "--key", "market.key")
}

func (u *ui) updatesABundle() {
	p := u.publisher()
	p.does("bundle", "trust", "acme", "standard", "acme.pub")
	u.stall.offers(p, "1.0.0", "a.example.com")
	p.does("market", "install", "local-places")
	p.allow("local-places")

	t := u.page
	t.open("/bundles")
	t.until("list what is installed", found("section[aria-label=Installed] tr", "1.0.0"))
	t.until("list what is offered", found("section[aria-label=Market]", "local-places"))
	if evaluate[bool](t, `document.querySelector("section[aria-label=Outdated]") !== null`) {
		u.Errorf("without a newer version the bundle is shown as outdated:\n%s", t.text())
	}

	u.stall.offers(p, "1.1.0", "a.example.com", "b.example.com")
	t.open("/bundles")
	t.until("say what is outdated", found("section[aria-label=Outdated] tr", "1.1.0"))
	t.press("section[aria-label=Outdated] button", "Update")
	t.until("show what is new", found("dialog", "b.example.com"))
	t.press("dialog form button", "Approve")
	t.waitText("Approved by")
	if now := u.bundleNow("local-places"); now.Version != "1.1.0" {
		u.Errorf("bundle after the update = %+v, want 1.1.0", now)
	}
	t.open("/bundles")
	t.until("list the new one", found("section[aria-label=Installed] tr", "1.1.0"))
	t.until("have nothing outdated", `document.querySelector("section[aria-label=Market] table") && !document.querySelector("section[aria-label=Outdated]")`)
}

// trustsAProgram trusts the digest of a host program, and revokes the trust.
func (u *ui) trustsAProgram() {
	c := u.registersEcho()

	t := u.page
	t.open("/capabilities/host.say")
	t.until("offer to trust it", found("button", "Trust on the host"))
	if got := u.echoes(); strings.HasPrefix(got, "done") {
		u.Errorf("not trusted yet: got %s", got)
	}
	t.press("button", "Trust on the host")
	t.until("say what is trusted", found("dialog", c.Digest))
	t.press("dialog button", "Cancel")
	if got := u.echoes(); strings.HasPrefix(got, "done") {
		u.Errorf("a cancelled dialog granted trust: got %s", got)
	}
	t.press("button", "Trust on the host")
	t.press("dialog button", "Trust")
	t.until("say that it is trusted", found("dd", "trusted by an operator"))
	if got := u.echoes(); got != `done {"said":"yes"} <nil>` {
		u.Errorf("trusted: got %s", got)
	}
	t.open("/capabilities")
	t.until("say so where all are listed", found("tr", "trusted on the host"))
	t.open("/capabilities/host.say")
	t.press("button", "Revoke trust")
	t.until("offer to trust it again", found("button", "Trust on the host"))
	if got := u.echoes(); strings.HasPrefix(got, "done") {
		u.Errorf("after trust was revoked: got %s", got)
	}
}
