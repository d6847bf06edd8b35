package test_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// draws are cells of the code interpreter that print random numbers, by language.
var draws = map[string]string{
	"python": `
import random, secrets, uuid
print(random.random(), secrets.token_hex(8), uuid.uuid4())
try:
    import numpy
    print(numpy.random.random())
except ImportError:
    pass
try:
    import ssl
    print(ssl.RAND_bytes(8).hex())
except ImportError:
    pass
`,
	"javascript": `console.log(Math.random(), require('crypto').randomInt(2 ** 40), require('crypto').randomBytes(8).toString('hex'), require('crypto').randomUUID(), globalThis.crypto.randomUUID(), globalThis.crypto.getRandomValues(new Uint32Array(2)).join())`,
	"bash":       `echo $RANDOM-$RANDOM-$RANDOM $SRANDOM-$SRANDOM`,
}

// executed runs a cell in the code interpreter of a sandbox and returns its output.
func (b box) executed(language, code string) string {
	b.h.Helper()
	body, err := json.Marshal(map[string]string{"language": language, "code": code})
	if err != nil {
		b.h.Fatal(err)
	}
	r, err := http.NewRequestWithContext(b.h.Context(), "POST", b.url+"/execute", strings.NewReader(string(body)))
	if err != nil {
		b.h.Fatal(err)
	}
	r.Header.Set("E2b-Sandbox-Id", b.id)
	r.Header.Set("E2b-Sandbox-Port", "49999")
	if token, ok := b.do("GET", "", nil, http.StatusOK)["envdAccessToken"].(string); ok {
		r.Header.Set("X-Access-Token", token)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		b.h.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, err := io.ReadAll(resp.Body)
		b.h.Fatalf("%s: %s %s, %v", language, resp.Status, text, err)
	}
	var printed string
	for d := json.NewDecoder(resp.Body); d.More(); {
		var item struct{ Type, Text, Name, Value string }
		if err := d.Decode(&item); err != nil {
			b.h.Fatal(resp.Status, err)
		}
		switch item.Type {
		case "stdout":
			printed += item.Text
		case "error", "stderr":
			b.h.Fatalf("%s: %+v", language, item)
		}
	}
	return printed
}

// A snapshot contains code interpreter contexts that have already drawn random numbers. They
// draw different numbers in each sandbox created from it.
func TestContextRandomnessDiffersBetweenSandboxes(t *testing.T) {
	var more []string
	if _, err := exec.LookPath("openssl"); err == nil {
		more = append(more, "openssl") // has the library that Python's ssl module needs
	}
	h := open(t, tools()+fmt.Sprintf("e2b: {listen: \"127.0.0.1:0\"}\nrootfs: {default: {dir: %q}}\n", treeWithPython(t, more...)))
	k := h.e2bKey()
	b := h.newBox(k.URL, k.Key, map[string]any{"timeout": 600})
	drawn := map[string]string{}
	draw := func(name string, b box) {
		t.Helper()
		for language, cell := range draws {
			for n := range strings.FieldsSeq(b.executed(language, cell)) {
				if other := drawn[n]; other != "" {
					t.Errorf("%s: %s draws %s, the same as %s", language, name, n, other)
				}
				drawn[n] = name
			}
		}
	}
	draw("the sandbox", b)
	if want := 3 + 6 + 2; len(drawn) < want {
		t.Fatalf("the cells draw %d numbers, want %d", len(drawn), want)
	}
	of := b.do("POST", "/snapshots", map[string]any{}, http.StatusCreated)["snapshotID"]
	draw("the sandbox after its snapshot", b)
	first := h.newBox(k.URL, k.Key, map[string]any{"templateID": of, "timeout": 600})
	draw("a sandbox of the snapshot", first)
	draw("another sandbox of the snapshot", h.newBox(k.URL, k.Key, map[string]any{"templateID": of, "timeout": 600}))
	for i, fork := range first.forks(2) {
		draw(fmt.Sprint("fork ", i), fork)
	}
}

// Each sandbox of a template contains the process of the template's start command. It requests a
// fork notification as the documentation describes, and reseeds its generator.
func TestStartCommandForkNotification(t *testing.T) {
	doc, err := os.ReadFile("../docs/reference/snapshots.md")
	if err != nil {
		t.Fatal(err)
	}
	recipe := regexp.MustCompile("(?s)```python\n(import os, random, signal\n.*?)```").FindSubmatch(doc)
	if recipe == nil {
		t.Fatal("docs/reference/snapshots.md does not have the recipe")
	}
	program := string(recipe[1]) + `
import time
other = random.Random()
open("/tmp/ready", "w").close()
state = random.getstate()
while random.getstate() == state:
    time.sleep(0.01)
with open("/tmp/new", "w") as f:
    print(random.random(), other.random(), file=f)
os.rename("/tmp/new", "/tmp/drawn")
`
	h := open(t, tools()+fmt.Sprintf("e2b: {listen: \"127.0.0.1:0\"}\nrootfs: {default: {dir: %q}}\n", treeWithPython(t)))
	k := h.e2bKey()
	ts := h.templates(k.URL, k.Key)
	plan := map[string]any{"startCmd": "exec python3 -c '" + program + "'", "readyCmd": "test -e /tmp/ready"}
	if state, reason, log := ts.built(ts.begin("drawer", plan)); state != "ready" || strings.Contains(log, "cannot") {
		t.Fatal(state, reason, log)
	}
	var drawn [2][]string
	for i := range drawn {
		b := h.newBox(k.URL, k.Key, map[string]any{"templateID": "drawer", "timeout": 600})
		if !within(30*time.Second, func() bool {
			drawn[i] = strings.Fields(b.sh("cat /tmp/drawn 2>/dev/null || true"))
			return len(drawn[i]) == 2
		}) {
			t.Fatalf("timed out: sandbox %d drew %q", i, drawn[i])
		}
	}
	if drawn[0][0] == drawn[1][0] {
		t.Errorf("both sandboxes draw %s, want different numbers", drawn[0][0])
	}
	if drawn[0][1] != drawn[1][1] { // otherwise the test would prove nothing
		t.Errorf("the generator without reseeding draws %s and %s, want the same", drawn[0][1], drawn[1][1])
	}
}
