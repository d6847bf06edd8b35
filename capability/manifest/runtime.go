package manifest

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"glasshouse/capability/rtfs/form"
)

// jailed are the runtimes in jails, the weakest isolation first.
var jailed = []Runtime{Container, GVisor, MicroVM}

// runtimeKeys maps each key of :runtime to the runtimes that use it. A key without effect is
// an error.
var runtimeKeys = map[string][]Runtime{
	"image":              jailed,
	"rootfs":             jailed,
	"module":             {WASM},
	"entrypoint":         slices.Concat([]Runtime{WASM}, jailed, []Runtime{Native}),
	"env":                slices.Concat([]Runtime{WASM}, jailed, []Runtime{Native}),
	"workdir":            jailed,
	"stdio":              slices.Concat(jailed, []Runtime{Native}),
	"tool":               jailed,
	"port":               jailed,
	"path":               jailed,
	"startup-timeout-ms": jailed,
	"health-check":       jailed,
	"digest":             {Native},
	"warm":               slices.Concat([]Runtime{WASM}, jailed),
}

// runtimes lists all runtimes.
var runtimes = []string{string(RTFS), string(WASM), string(Container), string(GVisor), string(MicroVM), string(Native)}

func (s *sections) runtime(n *form.Node) {
	spec := &s.c.Runtime
	known := keys{
		"type":               func(n *form.Node) { spec.Type = Runtime(s.oneOf(n, "runtime.type", runtimes...)) },
		"image":              func(n *form.Node) { spec.Image = s.image(n) },
		"rootfs":             func(n *form.Node) { spec.Rootfs = s.within(n, "runtime.rootfs") },
		"module":             func(n *form.Node) { spec.Module = s.within(n, "runtime.module") },
		"entrypoint":         s.entrypoint,
		"env":                s.env,
		"workdir":            func(n *form.Node) { spec.Workdir = s.absolute(n, "runtime.workdir") },
		"stdio":              func(n *form.Node) { spec.Stdio = Stdio(s.oneOf(n, "runtime.stdio", "json", "text", "mcp")) },
		"tool":               s.tool,
		"port":               func(n *form.Node) { spec.Port = int(s.integer(n, "runtime.port", 1, 65535)) },
		"path":               func(n *form.Node) { spec.Path = s.urlPath(n, "runtime.path") },
		"startup-timeout-ms": func(n *form.Node) { spec.StartupTimeout = s.millis(n, "runtime.startup-timeout-ms") },
		"health-check":       func(n *form.Node) { spec.HealthCheck = s.urlPath(n, "runtime.health-check") },
		"digest":             func(n *form.Node) { spec.Digest = s.digest(n, "runtime.digest") },
		"warm":               s.warm,
	}
	if !s.entries(n, "runtime", known) {
		return
	}
	for i := 0; i+1 < len(n.Items); i += 2 {
		if k, ok := n.Items[i].Atom.(form.Keyword); ok {
			s.at["runtime."+string(k)] = n.Items[i+1]
		}
	}
	if s.at["runtime.type"] == nil {
		s.problem(n, "runtime.type", "is required; valid: %s", strings.Join(runtimes, ", "))
	}
}

// imageForm matches the name of an image with an optional tag and digest.
var imageForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,511}$`)

// image parses the name of an image or its path on this host. The operator configures where
// image files may be.
func (s *sections) image(n *form.Node) string {
	v := s.str(n, "runtime.image")
	if path.IsAbs(v) {
		return s.absolute(n, "runtime.image")
	}
	if v != "" && !imageForm.MatchString(v) {
		s.problem(n, "runtime.image", "%.80q is not a valid image name such as python:3.12-slim", v)
		return ""
	}
	return v
}

// maxArgument and the following constants limit the arguments and environment of a process.
const maxArgument = 128 << 10

func (s *sections) entrypoint(n *form.Node) {
	const field = "runtime.entrypoint"
	for i, item := range s.list(n, field) {
		at := fmt.Sprintf("%s[%d]", field, i)
		arg, ok := item.Atom.(string)
		switch {
		case !ok || item.Kind != form.AtomNode:
			s.problem(item, at, "must be a string, not %s", s.name(item))
		case i == 0 && strings.TrimSpace(arg) == "":
			s.problem(item, at, "the program is empty")
		case strings.ContainsRune(arg, 0):
			s.problem(item, at, "must not contain a zero byte")
		case len(arg) > maxArgument:
			s.problem(item, at, "longer than %d bytes", maxArgument)
		default:
			s.c.Runtime.Entrypoint = append(s.c.Runtime.Entrypoint, arg)
		}
	}
	if n.Kind == form.VectorNode && len(n.Items) == 0 {
		s.problem(n, field, "must not be empty")
	}
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

func (s *sections) env(n *form.Node) {
	const field = "runtime.env"
	if n.Kind != form.MapNode {
		s.problem(n, field, "must be a map, not %s", s.name(n))
		return
	}
	s.c.Runtime.Env = map[string]string{}
	for i := 0; i+1 < len(n.Items); i += 2 {
		key, ok := s.plainKey(n.Items[i], field)
		value, isString := n.Items[i+1].Atom.(string)
		_, twice := s.c.Runtime.Env[key]
		switch {
		case !ok:
		case !envName.MatchString(key):
			s.problem(n.Items[i], field, "%.60q is not a valid variable name", key)
		case twice:
			s.problem(n.Items[i], join(field, key), "duplicate variable")
		case !isString || n.Items[i+1].Kind != form.AtomNode:
			s.problem(n.Items[i+1], join(field, key), "must be a string, not %s", s.name(n.Items[i+1]))
		case strings.ContainsRune(value, 0):
			s.problem(n.Items[i+1], join(field, key), "must not contain a zero byte")
		default:
			s.c.Runtime.Env[key] = value
		}
	}
}

var digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

func (s *sections) digest(n *form.Node, field string) string {
	v := s.str(n, field)
	if v != "" && !digestForm.MatchString(v) {
		s.problem(n, field, "%.80q is not a digest: use sha256: and 64 hexadecimal digits", v)
		return ""
	}
	return v
}

// maxTool is the maximum length of a tool's name at an MCP server.
const maxTool = 128

func (s *sections) tool(n *form.Node) {
	t := &s.c.Runtime.Tool
	s.entries(n, "runtime.tool", keys{
		"name": func(n *form.Node) {
			if t.Name = s.str(n, "runtime.tool.name"); len(t.Name) > maxTool {
				s.problem(n, "runtime.tool.name", "longer than %d bytes", maxTool)
			}
		},
		"digest": func(n *form.Node) { t.Digest = s.digest(n, "runtime.tool.digest") },
	})
}

// agreeTool reports a tool without an MCP server, or the reverse.
func (s *sections) agreeTool(spec *Spec, n *form.Node) {
	at := s.at["runtime.tool"]
	switch {
	case at != nil && spec.Stdio != MCPStdio:
		s.problem(at, "runtime.tool", "it requires a tool server: use :stdio :mcp")
	case spec.Stdio == MCPStdio && !s.server && (spec.Tool.Name == "" || spec.Tool.Digest == ""):
		s.problem(n, "runtime.tool", "is required: {:name \"…\" :digest \"sha256:…\"}, as written by an import")
	case spec.Stdio == MCPStdio && spec.Type == Native:
		s.problem(s.at["runtime.stdio"], "runtime.stdio", "external tool servers run in jails: use :container")
	}
}

// maxWarm is the maximum size of a warm pool.
const maxWarm = 64

func (s *sections) warm(n *form.Node) {
	w := &s.c.Runtime.Warm
	s.entries(n, "runtime.warm", keys{
		"max":    func(n *form.Node) { w.Max = int(s.integer(n, "runtime.warm.max", 0, maxWarm)) },
		"ttl-ms": func(n *form.Node) { w.TTL = s.millis(n, "runtime.warm.ttl-ms") },
	})
	if w.Max == 0 && w.TTL > 0 {
		s.problem(n, "runtime.warm", "ttl %v has no effect without max", w.TTL)
	}
}

func (s *sections) millis(n *form.Node, field string) time.Duration {
	return time.Duration(s.integer(n, field, 1, dayMS)) * time.Millisecond
}

// implementation parses the code of :rtfs. In JSON it is a string.
func (s *sections) implementation(n *form.Node) {
	const field = "implementation"
	code := n
	if s.json {
		if code = s.embedded(n, field); code == nil {
			return
		}
		s.c.Runtime.code = strings.TrimSpace(n.Atom.(string))
	} else {
		s.c.Runtime.code = s.source(n)
	}
	if code.Kind != form.ListNode || len(code.Items) < 3 || code.Items[0].Atom != form.Value(form.Symbol("fn")) || parameters(code.Items[1]) != 1 {
		s.problem(n, field, "must be a function of one parameter: (fn [input] …)")
		return
	}
	s.c.Runtime.Code = code
}

// parameters returns the number of parameters of a function. A parameter may have a type: [x :
// T].
func parameters(n *form.Node) int {
	if n.Kind != form.VectorNode {
		return 0
	}
	count := len(n.Items)
	for _, item := range n.Items {
		if item.Atom == form.Value(form.Symbol(":")) {
			count -= 2
		}
	}
	return count
}

// embedded parses RTFS in a JSON string.
func (s *sections) embedded(n *form.Node, field string) *form.Node {
	text := s.str(n, field)
	if text == "" {
		return nil
	}
	nodes, err := form.Read(s.file+" "+field, []byte(text))
	switch {
	case err != nil:
		s.problem(n, field, "%v", err)
	case len(nodes) != 1:
		s.problem(n, field, "must contain one form, not %d", len(nodes))
	default:
		return nodes[0]
	}
	return nil
}

// agreeRuntime checks the consistency of :runtime.
func (s *sections) agreeRuntime() {
	spec, n := &s.c.Runtime, s.at["runtime"]
	if n == nil {
		n = s.at[""]
		if s.at["implementation"] == nil {
			s.problem(n, "runtime", "the runtime is missing: give runtime, or implementation with RTFS code")
			return
		}
		spec.Type = RTFS
	}
	if spec.Type == "" {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(runtimeKeys)) {
		if at := s.at["runtime."+key]; at != nil && !slices.Contains(runtimeKeys[key], spec.Type) {
			s.problem(at, "runtime."+key, "not applicable to :%s, only to %s", spec.Type, list(runtimeKeys[key]))
		}
	}
	if at := s.at["implementation"]; at != nil && spec.Type != RTFS {
		s.problem(at, "implementation", "only applicable to :rtfs, but the runtime is :%s", spec.Type)
	}
	s.needs(spec, n)
	s.agreeTool(spec, n)
	if spec.Port == 0 {
		for _, key := range []string{"path", "startup-timeout-ms", "health-check"} {
			if key == "startup-timeout-ms" && spec.Stdio == MCPStdio {
				continue
			}
			if at := s.at["runtime."+key]; at != nil && slices.Contains(runtimeKeys[key], spec.Type) {
				s.problem(at, "runtime."+key, "it requires a port")
			}
		}
	} else if at := s.at["runtime.stdio"]; at != nil {
		s.problem(at, "runtime.stdio", "not applicable with a port: requests use HTTP")
	}
	for _, name := range s.c.Secrets {
		if _, ok := spec.Env[name]; ok {
			s.problem(s.at["runtime.env"], "runtime.env."+name, "secrets are not passed in the environment: read the file /run/secrets/%s", name)
		}
	}
}

// needs reports missing keys of a runtime.
func (s *sections) needs(spec *Spec, n *form.Node) {
	missing := func(field, format string, args ...any) {
		if s.at[field] == nil {
			s.problem(n, field, format, args...)
		}
	}
	switch spec.Type {
	case RTFS:
		missing("implementation", "is required: (fn [input] …)")
	case WASM:
		missing("runtime.module", "is required: the file of the module, relative to the workspace")
	case Container, GVisor, MicroVM:
		image, rootfs := s.at["runtime.image"], s.at["runtime.rootfs"]
		switch {
		case image == nil && rootfs == nil:
			s.problem(n, "runtime.image", "image or rootfs is required")
		case image != nil && rootfs != nil:
			s.problem(rootfs, "runtime.rootfs", "image and rootfs are mutually exclusive")
		}
		missing("runtime.entrypoint", "is required: the program and its arguments")
		if spec.Port == 0 && spec.Stdio == "" {
			spec.Stdio = JSONStdio
		}
	case Native:
		missing("runtime.entrypoint", "is required: the program and its arguments")
		if spec.Stdio == "" {
			spec.Stdio = JSONStdio
		}
	}
}

func list(types []Runtime) string {
	var names []string
	for _, t := range types {
		names = append(names, ":"+string(t))
	}
	return strings.Join(names, ", ")
}

// within parses a path relative to the workspace that does not leave it.
func (s *sections) within(n *form.Node, field string) string {
	p := s.str(n, field)
	switch {
	case p == "":
		return ""
	case path.IsAbs(p) || strings.HasPrefix(p, "~"):
		s.problem(n, field, "%.80q is not relative to the workspace", p)
	case slices.Contains(strings.Split(p, "/"), ".."):
		s.problem(n, field, "%.80q leaves the workspace", p)
	case strings.Contains(p, `\`) || strings.ContainsFunc(p, unicode.IsControl) || len(p) > 1024:
		s.problem(n, field, "%.80q is not a path", p)
	default:
		return path.Clean(p)
	}
	return ""
}

// absolute parses an absolute path in the sandbox.
func (s *sections) absolute(n *form.Node, field string) string {
	p := s.str(n, field)
	switch {
	case p == "":
		return ""
	case !path.IsAbs(p):
		s.problem(n, field, "%.80q is not an absolute path in the sandbox, such as /app", p)
	case slices.Contains(strings.Split(p, "/"), "..") || strings.ContainsFunc(p, unicode.IsControl) || len(p) > 1024:
		s.problem(n, field, "%.80q is not a path", p)
	default:
		return path.Clean(p)
	}
	return ""
}

func (s *sections) urlPath(n *form.Node, field string) string {
	p := s.str(n, field)
	odd := func(r rune) bool { return r <= ' ' || r > '~' || r == '#' || r == '\\' }
	if p != "" && (!strings.HasPrefix(p, "/") || strings.HasPrefix(p, "//") || strings.ContainsFunc(p, odd) || len(p) > 1024) {
		s.problem(n, field, "%.80q is not a valid request path: it must begin with a single /", p)
		return ""
	}
	return p
}
