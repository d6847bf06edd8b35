package test_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
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

// executed runs a cell in the code interpreter of a sandbox and returns what it printed.
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

// Contexts of the code interpreter that have drawn random numbers are in a snapshot, and
// draw others in each sandbox that is made of it.
func TestContextsDrawDifferentRandomNumbersInEachSandbox(t *testing.T) {
	var more []string
	if _, err := exec.LookPath("openssl"); err == nil {
		more = append(more, "openssl") // has the library that Python's ssl needs
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
					t.Errorf("%s: %s draws %s, as %s did", language, name, n, other)
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
