package test_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestSudoInTemplateSteps builds a template with unprivileged steps that use sudo, and
// checks that no files of sudo remain.
func TestSudoInTemplateSteps(t *testing.T) {
	h := open(t, tools()+fmt.Sprintf("e2b: {listen: \"127.0.0.1:0\"}\nrootfs: {default: {dir: %q}}\n", treeWithUser(t, "mkfifo", "mktemp", "sed", "tee", "stat", "printenv", "ls", "wc")))
	key := h.e2bKey()
	ts := h.templates(key.URL, key.Key)
	state, reason, log := ts.built(ts.begin("raised", runs(
		`id -un | grep -x user`,
		`test "$(sudo id -u)" = 0`,
		`echo text | sudo tee /etc/by-root >/dev/null && test "$(stat -c %U /etc/by-root)" = root`,
		`export A="it's b"; test "$(sudo -E printenv A)" = "it's b" && test "$(sudo B=c printenv B)" = c`,
		`cd /tmp && test "$(sudo sh -c pwd)" = /tmp`,
		`sudo sh -c 'exit 7'; test $? = 7`,
		`echo mine > ~/mine && test "$(stat -c %U ~/mine)" = user`,
	)))
	if state != "ready" {
		t.Fatalf("the build is %s: %s\n%s", state, reason, log)
	}
	state, reason, _ = ts.built(ts.begin("fails", runs(`sudo false`)))
	if state != "error" || !strings.Contains(reason, "exit status 1") {
		t.Errorf("a step whose sudo fails: got %s %q, want an error with exit status 1", state, reason)
	}
	status, box := h.e2b(key.URL, key.Key, "POST", "/sandboxes", map[string]any{"templateID": "raised"})
	if status != http.StatusCreated {
		t.Fatalf("sandbox of the template: got %d %v, want 201", status, box)
	}
	jail := h.jailIn(box["sandboxID"].(string))
	if got := h.says("jail", "exec", jail, "--", "sh", "-c", "ls -d /usr/local/bin/sudo /run/glasshouse-sudo 2>/dev/null; cat /etc/by-root"); got != "text" {
		t.Errorf("sudo files and the text written with sudo in a sandbox: got %q, want %q", got, "text")
	}
}
