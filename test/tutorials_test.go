package test_test

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"glasshouse/api/client"
	"glasshouse/jail/backend/backendtest"
)

// tutorials are the files of docs/tutorials, in the order in which they are read. agentTutorial
// installs agents, and has its own test.
var tutorials = []string{"first-jail.md", capabilityTutorial, agentTutorial, "approval-from-a-phone.md", "branch-and-pick.md", "secret.md", "e2b.md"}

const (
	agentTutorial      = "coding-agent.md"
	capabilityTutorial = "capability.md" // TestDocumentedCommands follows it
)

// TestTutorials follows the tutorials exactly as written, one after the other, with one daemon.
func TestTutorials(t *testing.T) {
	var found []string
	names, err := filepath.Glob("../docs/tutorials/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		found = append(found, filepath.Base(name))
	}
	if want := slices.Sorted(slices.Values(tutorials)); !slices.Equal(found, want) {
		t.Errorf("docs/tutorials has %q, want %q", found, want)
	}
	h, r := newcomer(t, "e2b: {listen: \"127.0.0.1:0\"}\n", "--listen", "127.0.0.1:0")
	e2b, err := url.Parse(h.e2bKey().URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range tutorials {
		if name == agentTutorial || name == capabilityTutorial {
			continue
		}
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath("npm"); name == "e2b.md" && err != nil {
				t.Skip("npm is not installed")
			}
			f := follows(t, r)
			// The addresses that make up configures.
			f.actual["127.0.0.1:8082"], f.actual["127.0.0.1:8083"] = h.tcpAddr(), e2b.Host
			f.tutorial(name)
			h.noJailsLeft(t)
		})
	}
}

// tutorial does all steps of a tutorial.
func (f *follower) tutorial(name string) {
	f.Helper()
	for _, l := range lessons(f.T, "../docs/tutorials/"+name, "") {
		f.follow(l)
	}
}

// noJailsLeft checks that a tutorial ends with the removal of its jails and snapshots.
func (h *daemonHarness) noJailsLeft(t *testing.T) {
	t.Helper()
	jails, err := client.Collect(h.Jails(t.Context(), client.JailFilter{}))
	if err != nil {
		t.Fatal(err)
	}
	snapshots, err := client.Collect(h.Snapshots(t.Context(), client.SnapshotFilter{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range jails {
		t.Errorf("jail %s %s is left", j.ID, j.Name)
	}
	for _, s := range snapshots {
		t.Errorf("snapshot %s %s is left", s.ID, s.Name)
	}
}

// onPhone does an action of a tutorial in a browser with the screen of a phone.
func (f *follower) onPhone(at, what string) {
	f.Helper()
	if strings.Contains(what, "open the link") {
		links := regexp.MustCompile(`http://\S+/login#\S+`).FindAllString(f.printed.String(), -1)
		if len(links) == 0 {
			f.Fatalf("%s: no command has printed a link", at)
		}
		link, err := url.Parse(links[len(links)-1])
		if err != nil {
			f.Fatal(err)
		}
		f.phone = blank(f.T, browse(f.T), "http://"+link.Host)
		f.phone.phone()
		f.phone.open("/login#" + link.Fragment)
		f.phone.waitText("Jails")
	}
	for _, m := range regexp.MustCompile(`(button )?\*\*(.+?)\*\*`).FindAllStringSubmatch(what, -1) {
		selector := "a"
		if m[1] != "" {
			selector = "button"
		}
		f.phone.tap(selector, m[2])
	}
}

// TestAgentTutorial follows the tutorial in which real agents fix a test. The tutorial starts the
// daemon itself.
func TestAgentTutorial(t *testing.T) {
	onlyThorough(t)
	r := agentReader(t, "opencode", "claude")
	r.env = append(r.env, "ANTHROPIC_API_KEY=a key that no step uses")
	follows(t, r).tutorial(agentTutorial)
}

// agentReader returns a reader of the tutorial, with installed agents and without a daemon.
func agentReader(t *testing.T, agents ...string) reader {
	t.Helper()
	data := agentData(t, agents...)
	if err := os.Chmod(filepath.Dir(data), 0o711); err != nil { // the daemon would require it
		t.Fatal(err)
	}
	h := &daemonHarness{T: t, bin: backendtest.Program(t), data: data, config: filepath.Join(data, "config.yaml")}
	if err := os.WriteFile(h.config, []byte(tools()), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.end) // with a daemon of its own
	r := h.newReader(t)
	r.env = append(r.env, "GLASSHOUSE_LISTEN=127.0.0.1:0")
	return r
}
