// Package agent describes how to launch each supported agent: its command line, environment
// and configuration files, the source of its program, and the format of its output. The
// configuration routes model traffic to the gateway, disables updates and telemetry, and
// registers the gateway's tools.
//
// The package starts no processes. The configuration of an agent is not a security
// boundary; the jail is.
package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"glasshouse/agents/agent/acp"
	"glasshouse/fault"
)

const opLaunch = "agent.Launch"

// Protocol is the way to communicate with an agent.
type Protocol string

const (
	Run         Protocol = "run"         // the agent works towards a goal, prints a result and exits
	ACP         Protocol = "acp"         // Agent Client Protocol on the standard streams
	Interactive Protocol = "interactive" // a person uses the agent at a terminal
)

// DefaultEndpoint is the address of the agent endpoint in every jail.
const DefaultEndpoint = "http://localhost:4097"

// A Preset is an agent that this package can launch.
type Preset struct {
	Name      string
	Title     string
	Protocols []Protocol // the first is the default
	Layer     Layer      // programs that the default root filesystem lacks

	launch  func(*builder) error
	outcome func(io.Reader) (Outcome, error)
}

// presets lists all presets in display order.
var presets = []Preset{builtin, claude, codex, gemini, opencode, shell}

// Presets returns all presets.
func Presets() []Preset { return slices.Clone(presets) }

// Find returns the preset with the given name, or fault.NotFound.
func Find(name string) (Preset, error) {
	var names []string
	for _, p := range presets {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Preset{}, &fault.Error{
		Op: "agent.Find", Kind: fault.NotFound, Err: fmt.Errorf("unknown agent %q", name),
		Remedy: "use one of " + strings.Join(names, ", "),
	}
}

// A Request describes the agent to launch. All paths are as the agent sees them.
type Request struct {
	Goal      string
	Model     string // name of the model in the model gateway; empty: "default"
	Protocol  Protocol
	Resume    string // session to resume, from an Outcome or acp.Result
	Workspace string // absolute; empty: /workspace
	Home      string // absolute, used by this agent alone, not under /tmp; empty: /home/agent
	Endpoint  string // address of the agent endpoint; empty: DefaultEndpoint
	Level     int    // autonomy level, 1 to 3; 0 is 2
	Skills    string // text of the skills, added to the guidance
	MCP       bool   // provide the gateway's tools over the Model Context Protocol (MCP)

	// Permissions is the content of an opencode.json that defines agents. The gateway
	// enforces its rules; the agent does not.
	Permissions json.RawMessage

	Args []string // shell: the command instead of the goal; builtin: unused; others: appended
	Env  []string // K=V, overrides the defaults
}

// A Launch is the description of a process that runs an agent.
type Launch struct {
	Argv     []string
	Env      []string // complete and sorted; the caller adds only SANDBOX_ID
	Cwd      string
	Stdin    []byte // complete standard input; nil if the protocol uses standard input
	Protocol Protocol
	Files    []File         // to write before the start, owned by the agent
	Prepare  []string       // command to run first, in Cwd, as the agent; may be nil
	Servers  []acp.Server   // for acp.Options
	Meta     map[string]any // for acp.Options
	Needs    []Need         // required programs
	Notes    []string       // limitations of the launch, for the user
}

// A File is a file to write. Missing parent directories are created.
type File struct {
	Path string // absolute path in the jail; from OpenCodeFiles relative to the project
	Mode fs.FileMode
	Data []byte
}

// A Need is a program that an agent requires.
type Need struct {
	Program string
	From    string // source: an npm package with its version, or a Debian package
}

// Launch returns the description of the process for r.
//
// It returns fault.Invalid if r is invalid, and fault.Unsupported if the agent does not
// support the protocol or cannot resume a session.
func (p Preset) Launch(r Request) (Launch, error) {
	if p.launch == nil {
		return Launch{}, fault.Fieldf(opLaunch, "preset", "the preset is empty")
	}
	b, err := newBuilder(p, r)
	if err != nil {
		return Launch{}, err
	}
	if err := p.launch(b); err != nil {
		return Launch{}, err
	}
	return b.build(), nil
}

// Outcome parses the output of an agent that was started with the protocol Run. It returns
// fault.Unavailable if the output has no result, for example because the agent was killed.
func (p Preset) Outcome(stdout io.Reader) (Outcome, error) {
	if p.outcome == nil {
		return Outcome{}, fault.Cannot("agent.Outcome", "the agent reports its result to the gateway", "read the run from the gateway")
	}
	return p.outcome(stdout)
}

// A builder builds a Launch.
type builder struct {
	Request
	preset Preset
	out    Launch
	env    map[string]string
}

func newBuilder(p Preset, r Request) (*builder, error) {
	defaults := []struct {
		field *string
		value string
	}{{&r.Workspace, "/workspace"}, {&r.Home, "/home/agent"}, {&r.Endpoint, DefaultEndpoint}, {&r.Model, "default"}}
	for _, d := range defaults {
		if *d.field == "" {
			*d.field = d.value
		}
	}
	if r.Protocol == "" {
		r.Protocol = p.Protocols[0]
	}
	if r.Level == 0 {
		r.Level = 2
	}
	r.Endpoint = strings.TrimRight(r.Endpoint, "/")
	if err := r.check(p); err != nil {
		return nil, err
	}
	b := &builder{Request: r, preset: p}
	b.out = Launch{Protocol: r.Protocol, Cwd: r.Workspace}
	b.env = b.common()
	// Agents create git commits, which require a name and an address.
	b.file(".gitconfig", fmt.Appendf(nil, "[user]\n\tname = %s agent\n\temail = %s\n[init]\n\tdefaultBranch = main\n[safe]\n\tdirectory = \"%s\"\n", p.Name, agentEmail, r.Workspace))
	return b, nil
}

// agentEmail is the address of every agent. The domain .invalid is reserved (RFC 2606).
const agentEmail = "agent@glasshouse.invalid"

func (r *Request) check(p Preset) error {
	if !slices.Contains(p.Protocols, r.Protocol) {
		return fault.Cannot(opLaunch, fmt.Sprintf("%s does not support the protocol %q", p.Name, r.Protocol), fmt.Sprintf("use one of %v", p.Protocols))
	}
	for _, f := range []struct{ name, value string }{{"workspace", r.Workspace}, {"home", r.Home}} {
		if !path.IsAbs(f.value) || path.Clean(f.value) != f.value || strings.ContainsAny(f.value, "\x00\n\"'\\") {
			return fault.Fieldf(opLaunch, f.name, "%q is not a clean absolute path", f.value)
		}
	}
	if r.Home == "/tmp" || strings.HasPrefix(r.Home, "/tmp/") {
		return fault.Fieldf(opLaunch, "home", "%q is under /tmp", r.Home)
	}
	if r.Level < 1 || r.Level > 3 {
		return fault.Fieldf(opLaunch, "level", "%d is not 1, 2 or 3", r.Level)
	}
	if strings.ContainsAny(r.Model, "\x00\n\"\\") || strings.HasPrefix(r.Model, "-") {
		return fault.Fieldf(opLaunch, "model", "%q is not a valid model name", r.Model)
	}
	if strings.HasPrefix(r.Resume, "-") || strings.ContainsAny(r.Resume, "\x00\n") {
		return fault.Fieldf(opLaunch, "resume", "%q is not a valid session id", r.Resume)
	}
	for _, e := range r.Env {
		if k, _, ok := strings.Cut(e, "="); !ok || k == "" {
			return fault.Fieldf(opLaunch, "env", "%q is not K=V", e)
		}
	}
	if r.Protocol == Run && r.Goal == "" && len(r.Args) == 0 && p.Name != "builtin" {
		return fault.Fieldf(opLaunch, "goal", "the goal is empty")
	}
	return nil
}

// placeholder is the API key in the configuration of agents. The gateway has the real keys.
const placeholder = "glasshouse"

// common returns the environment variables of every agent.
func (b *builder) common() map[string]string {
	const direct = "localhost,127.0.0.1,::1"
	return map[string]string{
		"PATH": b.preset.Layer.Path() + "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME": b.Home, "USER": "agent", "LANG": "C.UTF-8", "TMPDIR": "/tmp",
		"XDG_CONFIG_HOME": b.Home + "/.config", "XDG_DATA_HOME": b.Home + "/.local/share",
		"XDG_STATE_HOME": b.Home + "/.local/state", "XDG_CACHE_HOME": b.Home + "/.cache",

		"GLASSHOUSE_DOOR":        b.Endpoint,
		"OPENAI_BASE_URL":        b.Endpoint + "/v1",
		"OPENAI_API_KEY":         placeholder,
		"ANTHROPIC_BASE_URL":     b.Endpoint,
		"ANTHROPIC_API_KEY":      placeholder,
		"GOOGLE_GEMINI_BASE_URL": b.Endpoint,
		"GEMINI_API_KEY":         placeholder,

		// The agent endpoint is on the loopback of the jail, so requests need no proxy.
		"NO_PROXY": direct, "no_proxy": direct,
		"DO_NOT_TRACK": "1",
	}
}

func (b *builder) set(kv ...string) {
	for i := 0; i+1 < len(kv); i += 2 {
		b.env[kv[i]] = kv[i+1]
	}
}

func (b *builder) argv(words ...string) { b.out.Argv = append(b.out.Argv, words...) }

func (b *builder) note(text string) { b.out.Notes = append(b.out.Notes, text) }

// file adds a file under the home directory.
func (b *builder) file(name string, data []byte) {
	b.out.Files = append(b.out.Files, File{Path: path.Join(b.Home, name), Mode: 0o644, Data: data})
}

// guidance returns the instructions for the agent: the decision framework and the skills.
func (b *builder) guidance() []byte {
	text := Framework(b.Level)
	if b.Skills != "" {
		text += "\n" + strings.TrimRight(b.Skills, "\n") + "\n"
	}
	return []byte(text)
}

func (b *builder) mcpURL() string { return b.Endpoint + "/mcp" }

// build returns the finished Launch.
func (b *builder) build() Launch {
	if b.preset.Name != "shell" && b.preset.Name != "builtin" {
		b.argv(b.Args...)
	}
	for _, e := range b.Env {
		k, v, _ := strings.Cut(e, "=")
		b.env[k] = v
	}
	for k, v := range b.env {
		b.out.Env = append(b.out.Env, k+"="+v)
	}
	slices.Sort(b.out.Env)
	b.out.Needs = append(b.out.Needs, Need{Program: b.out.Argv[0], From: b.preset.Layer.String()})
	return b.out
}

// toJSON encodes a value that this package has created. It panics on an error.
func toJSON(v any) []byte {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(err)
	}
	return append(data, '\n')
}
