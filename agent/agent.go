// Package agent says how each agent is run: its command line, environment and
// configuration, such that its model traffic goes to the gateway, it updates and
// reports nothing, and it finds the gateway's tools; where its program comes from; and
// how to read what it printed.
//
// It starts nothing. What an agent's own configuration promises is a convenience; the
// jail around it is what holds.
package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"glasshouse/agent/acp"
	"glasshouse/fault"
)

const opLaunch = "agent.Launch"

// Protocol is how one talks to an agent.
type Protocol string

const (
	Run         Protocol = "run"         // it is given a goal, works, prints a result and ends
	ACP         Protocol = "acp"         // it speaks the Agent Client Protocol on its standard streams
	Interactive Protocol = "interactive" // a person talks to it, at a terminal
)

// DefaultDoor is where the gateway listens in every jail.
const DefaultDoor = "http://localhost:4097"

// A Preset is an agent that this package knows how to run.
type Preset struct {
	Name      string
	Title     string
	Protocols []Protocol // the first is the best where nobody asks for one
	Layer     Layer      // what it needs beyond the default root filesystem

	launch  func(*builder) error
	outcome func(io.Reader) (Outcome, error)
}

// presets are all there are, in the order in which they are listed.
var presets = []Preset{builtin, claude, codex, gemini, opencode, shell}

// Presets returns all presets.
func Presets() []Preset { return slices.Clone(presets) }

// Find returns the preset of that name.
func Find(name string) (Preset, error) {
	var names []string
	for _, p := range presets {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Preset{}, &fault.Error{
		Op: "agent.Find", Kind: fault.NotFound, Err: fmt.Errorf("there is no agent %q", name),
		Remedy: "use one of " + strings.Join(names, ", "),
	}
}

// A Request says what is to be done, and where. All paths are the agent's own.
type Request struct {
	Goal      string
	Model     string // as the model gateway knows it; empty: "default"
	Protocol  Protocol
	Resume    string // a session of the agent's to go on with, of an Outcome or acp.Result
	Workspace string // absolute; empty: /workspace
	Home      string // absolute, its own, not under /tmp; empty: /home/agent
	Door      string // the gateway; empty: DefaultDoor
	Level     int    // of autonomy, 1 to 3; 0 is 2
	Skills    string // that it is taught, as a text
	MCP       bool   // it finds the gateway's tools by the Model Context Protocol

	// Permissions is the content of an opencode.json whose agents it has. Its rules
	// are for the gateway to hold, not for the agent.
	Permissions json.RawMessage

	Args []string // of shell: what is run, instead of the goal; of others, but builtin: added
	Env  []string // K=V, over what is set here
}

// A Launch is how to start an agent.
type Launch struct {
	Argv     []string
	Env      []string // all of it, sorted; the caller adds nothing of its own but SANDBOX_ID
	Cwd      string
	Stdin    []byte // all that it reads, then the end; nil where the protocol uses it
	Protocol Protocol
	Files    []File         // written before it starts, with their directories, as the agent's own
	Prepare  []string       // a command that is run before, in Cwd, as the agent; nil if there is none
	Servers  []acp.Server   // for acp.Options: these agents are given them by the protocol
	Meta     map[string]any // for acp.Options
	Needs    []Need         // programs that must be there
	Notes    []string       // what holds less than it seems to
}

// A File is one to write, with the directories above it.
type File struct {
	Path string // absolute in the jail; of OpenCodeFiles relative to the project
	Mode fs.FileMode
	Data []byte
}

// A Need is a program without which an agent does not start.
type Need struct {
	Program string
	From    string // what brings it: an npm package with its version, a Debian package
}

// Launch returns how to start the agent for r.
//
// It returns fault.Invalid if r makes no sense, and fault.Unsupported if the agent does
// not speak the protocol or cannot go on with a session.
func (p Preset) Launch(r Request) (Launch, error) {
	if p.launch == nil {
		return Launch{}, fault.Fieldf(opLaunch, "preset", "none was found")
	}
	b, err := newBuilder(p, r)
	if err != nil {
		return Launch{}, err
	}
	if err := p.launch(b); err != nil {
		return Launch{}, err
	}
	return b.done(), nil
}

// Outcome reads what the agent printed in the protocol Run. It fails if there is no
// result in it: the agent was ended, or printed something else.
func (p Preset) Outcome(stdout io.Reader) (Outcome, error) {
	if p.outcome == nil {
		return Outcome{}, fault.Cannot("agent.Outcome", "the agent reports to the gateway itself", "ask the gateway for the run")
	}
	return p.outcome(stdout)
}

// A builder makes one Launch.
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
	}{{&r.Workspace, "/workspace"}, {&r.Home, "/home/agent"}, {&r.Door, DefaultDoor}, {&r.Model, "default"}}
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
	r.Door = strings.TrimRight(r.Door, "/")
	if err := r.check(p); err != nil {
		return nil, err
	}
	b := &builder{Request: r, preset: p}
	b.out = Launch{Protocol: r.Protocol, Cwd: r.Workspace}
	b.env = b.common()
	// Agents commit. Nobody has told this home who they are.
	b.file(".gitconfig", fmt.Appendf(nil, "[user]\n\tname = %s agent\n\temail = %s\n[init]\n\tdefaultBranch = main\n[safe]\n\tdirectory = \"%s\"\n", p.Name, mail, r.Workspace))
	return b, nil
}

// mail is the address of every agent, which nothing can be sent to.
const mail = "agent@glasshouse.invalid"

func (r *Request) check(p Preset) error {
	if !slices.Contains(p.Protocols, r.Protocol) {
		return fault.Cannot(opLaunch, fmt.Sprintf("%s has no protocol %q", p.Name, r.Protocol), fmt.Sprintf("use one of %v", p.Protocols))
	}
	for _, f := range []struct{ name, value string }{{"workspace", r.Workspace}, {"home", r.Home}} {
		if !path.IsAbs(f.value) || path.Clean(f.value) != f.value || strings.ContainsAny(f.value, "\x00\n\"'\\") {
			return fault.Fieldf(opLaunch, f.name, "%q is not a clean absolute path", f.value)
		}
	}
	if r.Home == "/tmp" || strings.HasPrefix(r.Home, "/tmp/") {
		return fault.Fieldf(opLaunch, "home", "agents do not keep their programs under /tmp")
	}
	if r.Level < 1 || r.Level > 3 {
		return fault.Fieldf(opLaunch, "level", "%d is not 1, 2 or 3", r.Level)
	}
	if strings.ContainsAny(r.Model, "\x00\n\"\\") || strings.HasPrefix(r.Model, "-") {
		return fault.Fieldf(opLaunch, "model", "%q cannot be a model's name", r.Model)
	}
	if strings.HasPrefix(r.Resume, "-") || strings.ContainsAny(r.Resume, "\x00\n") {
		return fault.Fieldf(opLaunch, "resume", "%q cannot be a session's name", r.Resume)
	}
	for _, e := range r.Env {
		if k, _, ok := strings.Cut(e, "="); !ok || k == "" {
			return fault.Fieldf(opLaunch, "env", "%q is not K=V", e)
		}
	}
	if r.Protocol == Run && r.Goal == "" && len(r.Args) == 0 && p.Name != "builtin" {
		return fault.Fieldf(opLaunch, "goal", "there is none")
	}
	return nil
}

// placeholder stands where agents want a key. The gateway has the real ones.
const placeholder = "glasshouse"

// common is what every agent is given.
func (b *builder) common() map[string]string {
	const direct = "localhost,127.0.0.1,::1"
	return map[string]string{
		"PATH": b.preset.Layer.Path() + "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME": b.Home, "USER": "agent", "LANG": "C.UTF-8", "TMPDIR": "/tmp",
		"XDG_CONFIG_HOME": b.Home + "/.config", "XDG_DATA_HOME": b.Home + "/.local/share",
		"XDG_STATE_HOME": b.Home + "/.local/state", "XDG_CACHE_HOME": b.Home + "/.cache",

		"GLASSHOUSE_DOOR":        b.Door,
		"OPENAI_BASE_URL":        b.Door + "/v1",
		"OPENAI_API_KEY":         placeholder,
		"ANTHROPIC_BASE_URL":     b.Door,
		"ANTHROPIC_API_KEY":      placeholder,
		"GOOGLE_GEMINI_BASE_URL": b.Door,
		"GEMINI_API_KEY":         placeholder,

		// The door is in the jail: no proxy leads to it.
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

// file adds one under the home directory.
func (b *builder) file(name string, data []byte) {
	b.out.Files = append(b.out.Files, File{Path: path.Join(b.Home, name), Mode: 0o644, Data: data})
}

// guidance is what the agent is taught beside its goal.
func (b *builder) guidance() []byte {
	text := Framework(b.Level)
	if b.Skills != "" {
		text += "\n" + strings.TrimRight(b.Skills, "\n") + "\n"
	}
	return []byte(text)
}

func (b *builder) mcpURL() string { return b.Door + "/mcp" }

func (b *builder) done() Launch {
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

// toJSON writes what this package made itself, which always can be.
func toJSON(v any) []byte {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(err)
	}
	return append(data, '\n')
}
