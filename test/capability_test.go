package test_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/api/wire"
	"glasshouse/fault"
)

// manifests declares a capability that computes and one that is a script.
const manifests = `(capability "math.double" :version "1.0.0" :description "Twice a number"
  :input-schema [:map [:x :int]] :output-schema [:map [:y :int]] :effects []
  :runtime {:type :rtfs} :implementation (fn [{:keys [x]}] {:y (* 2 x)}))

(capability "text.count" :version "1.0.0" :description "Counts, and remembers nothing"
  :input-schema [:map [:text :string]] :output-schema [:map [:bytes :int] [:before :string]] :effects [:exec]
  :runtime {:type :container :rootfs "root" :entrypoint ["/bin/sh" "/app/count.sh"]}
  :filesystem {:mode :ephemeral :mounts [{:host "src" :guest "/app" :mode :ro}]}
  :resources {:timeout-ms 30000 :memory-mb 128})
`

const countScript = `before=$(cat /tmp/seen 2>/dev/null)
touch /app/x 2>/dev/null && echo "/app can be written" >&2
cat > /tmp/seen
printf '{"bytes":%d,"before":"%s"}' "$(wc -c < /tmp/seen)" "$before"
`

// shop writes the manifests and their files to a directory and returns it.
func shop(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"m.rtfs": manifests, "src/count.sh": countScript} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(rootfsWith(t), filepath.Join(dir, "root")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// approved waits until a capability can be called.
func (h *daemonHarness) approved(cid string) {
	h.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		c, err := h.Capability(h.Context(), cid, "")
		if err != nil {
			h.Fatal(err)
		}
		if c.State == "approved" {
			return
		}
		if time.Now().After(end) {
			h.Fatalf("%s is %s", cid, c.State)
		}
	}
}

func TestRegisterApproveAndCallCapability(t *testing.T) {
	h := open(t, "")
	dir := shop(t)
	out, stderr, code := h.glasshouse(dir, "capability", "register", "m.rtfs")
	if code != 0 || !strings.Contains(out, "math.double@1.0.0 is approved") || !strings.Contains(out, "text.count@1.0.0 is pending") {
		t.Fatalf("capability register: exit code %d\n%s%s", code, out, stderr)
	}
	if out, stderr, code := h.glasshouse(dir, "call", "math.double", `{"x":21}`); code != 0 || out != "{\"y\":42}\n" {
		t.Errorf("math.double: exit code %d, %q, %s", code, out, stderr)
	}
	if _, err := h.Call(h.Context(), "text.count", wire.Call{Input: json.RawMessage(`{"text":"x"}`)}); fault.KindOf(err) != fault.Denied {
		t.Errorf("call without approval: got %v, want denied", err)
	}
	c, err := h.Capability(h.Context(), "text.count", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := h.glasshouse(dir, "approve", string(c.Approval)); code != 0 {
		t.Fatal(stderr)
	}
	h.approved("text.count")
	for range 2 { // the second call sees nothing of the first
		got, err := h.Call(h.Context(), "text.count", wire.Call{Input: json.RawMessage(`{"text":"hello"}`)})
		if err != nil || got.State != "done" || string(got.Output) != `{"bytes":16,"before":""}` {
			t.Fatalf("text.count: got %+v, %+v, %v\n%s", got, got.Error, err, got.Output)
		}
		if strings.Contains(got.Log, "can be written") {
			t.Error(got.Log)
		}
	}
	if _, stderr, code := h.glasshouse(dir, "call", "text.count", `{"text":7}`); code == 0 || !strings.Contains(stderr, "[:text]") {
		t.Errorf("an invalid input: exit code %d, %s", code, stderr)
	}
	h.kill()
	h.start()
	if got, err := h.Call(h.Context(), "text.count", wire.Call{Input: json.RawMessage(`{"text":"hello"}`)}); err != nil || got.State != "done" {
		t.Errorf("after a daemon kill: got %+v, %v, want done", got, err)
	}
}

// registersEcho registers a program of the host, and approves it.
func (h *daemonHarness) registersEcho() wire.Capability {
	h.Helper()
	dir := h.TempDir()
	program, err := os.ReadFile("/bin/echo")
	if err != nil {
		h.Fatal(err)
	}
	text := fmt.Sprintf(`(capability "host.say" :version "1.0.0" :description "Says yes" :effects [:exec]
		:input-schema [:map [:x :int]] :output-schema [:map [:said :string]]
		:runtime {:type :native :entrypoint ["say" "{\"said\":\"yes\"}"] :digest "sha256:%x"})`, sha256.Sum256(program))
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "say"), program, 0o755), os.WriteFile(filepath.Join(dir, "m.rtfs"), []byte(text), 0o644)); err != nil {
		h.Fatal(err)
	}
	if _, stderr, code := h.glasshouse(dir, "capability", "register", "m.rtfs"); code != 0 {
		h.Fatal(stderr)
	}
	c, err := h.Capability(h.Context(), "host.say", "")
	if err != nil {
		h.Fatal(err)
	}
	a, err := h.Approval(h.Context(), c.Approval, 0)
	if err != nil {
		h.Fatal(err)
	}
	if _, err := h.Answer(h.Context(), a.ID, wire.AnswerApproval{Answer: "allow", Typed: a.Phrase}); err != nil {
		h.Fatal(err)
	}
	h.approved("host.say")
	return c
}

// echoes calls it and returns the result.
func (h *daemonHarness) echoes() string {
	got, err := h.Call(h.Context(), "host.say", wire.Call{Input: json.RawMessage(`{"x":1}`)})
	if got.Error != nil {
		return fmt.Sprintf("%s: %+v", got.State, *got.Error)
	}
	return fmt.Sprintf("%s %s %v", got.State, got.Output, err)
}

func TestHostProgramNeedsTrustedDigest(t *testing.T) {
	h := open(t, "")
	c := h.registersEcho()
	if got := h.echoes(); !strings.Contains(got, "no operator trusts it") {
		t.Errorf("approved but not trusted: got %s", got)
	}
	if _, _, code := h.glasshouse(h.data, "capability", "trust", "host.say", "sha256:"+strings.Repeat("0", 64)); code == 0 {
		t.Error("a wrong digest was accepted")
	}
	if _, stderr, code := h.glasshouse(h.data, "capability", "trust", "host.say", c.Digest); code != 0 {
		t.Fatal(stderr)
	}
	if got := h.echoes(); got != `done {"said":"yes"} <nil>` {
		t.Errorf("trusted: got %s", got)
	}
	h.kill()
	h.start()
	if got := h.echoes(); got != `done {"said":"yes"} <nil>` {
		t.Errorf("trusted, after a restart: got %s", got)
	}
	if _, err := h.TrustCapability(t.Context(), "host.say", wire.TrustCapability{Digest: c.Digest}); err != nil {
		t.Fatal(err)
	}
	if got := h.echoes(); !strings.Contains(got, "no operator trusts it") {
		t.Errorf("after trust was revoked: got %s", got)
	}
}

func TestReplayCall(t *testing.T) {
	h := open(t, "")
	dir := shop(t)
	if _, stderr, code := h.glasshouse(dir, "capability", "register", "m.rtfs"); code != 0 {
		t.Fatal(stderr)
	}
	if _, err := h.Call(h.Context(), "math.double", wire.Call{Input: json.RawMessage(`{"x":4}`)}); err != nil {
		t.Fatal(err)
	}
	seq := ""
	for end := time.Now().Add(30 * time.Second); seq == "" && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		out, _, _ := h.glasshouse(dir, "--json", "audit", "ls", "--kind", "call.ended")
		var entries []struct {
			Seq json.Number `json:"seq"`
		}
		if json.Unmarshal([]byte(out), &entries) == nil && len(entries) > 0 {
			seq = entries[0].Seq.String()
		} else {
			var one struct {
				Seq json.Number `json:"seq"`
			}
			if json.NewDecoder(strings.NewReader(out)).Decode(&one) == nil {
				seq = one.Seq.String()
			}
		}
	}
	if out, stderr, code := h.glasshouse(dir, "replay", seq); code != 0 || out != "{\"y\":8}\n" {
		t.Errorf("replay of entry %q: exit code %d, %q, %s", seq, code, out, stderr)
	}
}

func TestCallsOfRunStayWithinBudget(t *testing.T) {
	h := open(t, "")
	if _, stderr, code := h.glasshouse(shop(t), "capability", "register", "m.rtfs"); code != 0 {
		t.Fatal(stderr)
	}
	call := wire.Call{Input: json.RawMessage(`{"x":1}`), Run: "r1", Budget: map[string]int64{"steps": 2}}
	for range 2 {
		got, err := h.Call(h.Context(), "math.double", call)
		if err != nil || got.Budget == nil {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	if _, err := h.Call(h.Context(), "math.double", call); fault.KindOf(err) != fault.Exhausted {
		t.Errorf("third call: got %v, want exhausted", err)
	}
}
