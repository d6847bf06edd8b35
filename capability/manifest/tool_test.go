package manifest_test

import (
	"errors"
	"strings"
	"testing"

	"glasshouse/capability/manifest"
	"glasshouse/fault"
)

var toolDigest = "sha256:" + strings.Repeat("0a", 32)

func toolManifest(runtime string) string {
	return `(capability "files.read" :runtime {:type :container :image "node:22" :entrypoint ["npx" "server"] ` + runtime + `})`
}

func TestServerToolHasDigest(t *testing.T) {
	text := toolManifest(`:stdio :mcp :startup-timeout-ms 60000 :tool {:name "Read File" :digest "` + toolDigest + `"}`)
	all, err := manifest.Read("a.rtfs", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := manifest.Tool{Name: "Read File", Digest: toolDigest}
	if all[0].Runtime.Tool != want || all[0].Runtime.Stdio != manifest.MCPStdio {
		t.Errorf("the runtime is %+v, want stdio mcp and the tool %+v", all[0].Runtime, want)
	}
	twin, err := all[0].JSON()
	if err != nil {
		t.Fatal(err)
	}
	again, err := manifest.Read("a.json", twin)
	if err != nil {
		t.Fatal(err)
	}
	if again[0].Runtime.Tool != want {
		t.Errorf("from %s the tool is %+v, want %+v", twin, again[0].Runtime.Tool, want)
	}
	again[0].Runtime.Tool.Digest = "sha256:" + strings.Repeat("0b", 32)
	if words := manifest.Widens(all[0], again[0]); len(words) != 1 || !strings.Contains(words[0], "whose server has changed") {
		t.Errorf("another digest widens it by %q, want what its server says", words)
	}
}

func TestToolWithoutServerIsRefused(t *testing.T) {
	for runtime, want := range map[string]string{
		`:stdio :mcp`:                   `runtime.tool: is required`,
		`:stdio :mcp :tool {:name "x"}`: `runtime.tool: is required`,
		`:stdio :mcp :tool {:name "x" :digest "sha256:00"}`:                                    `"sha256:00" is not a digest`,
		`:stdio :mcp :health-check "/" :tool {:name "x" :digest "` + toolDigest + `"}`:         `runtime.health-check: it requires a port`,
		`:stdio :json :tool {:name "x" :digest "` + toolDigest + `"}`:                          `runtime.tool: it requires a tool server`,
		`:tool {:name "x" :digest "` + toolDigest + `"}`:                                       `runtime.tool: it requires a tool server`,
		`:stdio :mcp :tool {:name "` + strings.Repeat("x", 129) + `" :digest "sha256:` + `0"}`: `longer than 128 bytes`,
	} {
		_, err := manifest.Read("a.rtfs", []byte(toolManifest(runtime)))
		if !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\nis refused with %v\nwant %q", runtime, err, want)
		}
	}
}

func TestReadServer(t *testing.T) {
	server := func(more string) string {
		return `(capability "files" :version "1.0.0" :effects [:exec]
			:runtime {:type :container :rootfs "debian" :entrypoint ["serve"] ` + more + `})`
	}
	c, err := manifest.ReadServer("s.rtfs", []byte(server(":stdio :mcp")))
	if err != nil || c.ID != "files" {
		t.Errorf("it is %+v, %v", c, err)
	}
	for _, text := range []string{
		server(""), server(":stdio :mcp") + server(":stdio :mcp"),
		server(`:stdio :mcp :tool {:name "x" :digest "` + toolDigest + `"}`),
	} {
		if _, err := manifest.ReadServer("s.rtfs", []byte(text)); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s is %v, want it invalid", text, err)
		}
	}
}
