package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"
)

// TestJailByName runs every command that takes a jail with the jail's name, against a daemon
// that accepts only its id in paths.
func TestJailByName(t *testing.T) {
	const jid = "j-4k2v9c7m1xqe"
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	arguments := strings.NewReplacer("JAIL|SNAPSHOT [JAIL|SNAPSHOT | PATH...]", "box", "SNAPSHOT|JAIL", "box", "SNAPSHOT|--last", "s-9d2kq7w4hxma", "JAIL", "box",
		"[--] COMMAND [ARG...]", "true", "1|2|3", "1", ":PATH", ":/etc", ":FROM TO", ":/from /to", "HOST[:PORT,...]...", "192.0.2.1", "HOST...", "192.0.2.1", "ACTION", "bash", "NAME", "KEY", "...", "", "[flags] ", "")
	optional := regexp.MustCompile(` ?\[[^\]]*\]+`)
	also := map[string]string{ // other arguments of the command
		"glasshouse policy set":  " --policy " + file,
		"glasshouse egress set":  " --ask",
		"glasshouse branch":      " -n 1",
		"glasshouse jail limits": " --memory 1g",
	}
	typed := 0
	types := func(line string) {
		typed++
		t.Run(line, func(t *testing.T) {
			asked := &asked{id: jid, name: "box"}
			s := httptest.NewServer(asked)
			defer s.Close()
			var out, errs strings.Builder
			args := append([]string{"--addr", s.URL}, strings.Fields(line)...)
			Run(t.Context(), args, Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }, UID: 1000})
			if !asked.about(jid) {
				t.Errorf("requests = %q; want one about %s (%s)", asked.urls, jid, errs.String())
			}
			if asked.about("/box") {
				t.Errorf("requests = %q, which use the name as an id", asked.urls)
			}
		})
	}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		_, takes, _ := strings.Cut(cmd.Use, " ")
		if strings.Contains(takes, "JAIL") && cmd.Runnable() {
			takes = optional.ReplaceAllStringFunc(arguments.Replace(takes), func(s string) string {
				if strings.Contains(s, "box") {
					return " box"
				}
				return ""
			})
			types(strings.TrimPrefix(cmd.CommandPath(), "glasshouse ") + " " + strings.TrimSpace(takes) + also[cmd.CommandPath()])
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk((&command{env: Env{Getenv: func(string) string { return "" }}}).root())
	types("cp box:/etc/hostname " + file)
	types("cp " + file + " box:/tmp/file")
	if typed < 35 {
		t.Errorf("%d commands take a jail", typed)
	}
}

// asked is a daemon with one jail that records requests and has no other data.
type asked struct {
	id   string
	name string

	mu sync.Mutex
	// +checklocks:mu
	urls []string
}

func (a *asked) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/jails") && r.URL.Query().Get("name") == a.name {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"items":[{"id":%q,"name":%q,"state":"running"}]}`, a.id, a.name)
		return
	}
	if strings.HasSuffix(r.URL.Path, "/snapshots") && !strings.Contains(r.URL.Path, "/jails/") {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"items":[]}`)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.urls = append(a.urls, r.URL.String()+" "+string(body))
	http.NotFound(w, r)
}

func (a *asked) about(s string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, u := range a.urls {
		if strings.Contains(u, s) {
			return true
		}
	}
	return false
}
