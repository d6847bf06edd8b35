package skill

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/schema"
	"glasshouse/fault"
	safetext "glasshouse/internal/text"
)

const opImport = "skill.Import"

// An Imported is a folder with a SKILL.md, in the format of other agents, converted to a skill
// whose scripts are capabilities.
type Imported struct {
	Skill        *Skill
	Capabilities []*manifest.Capability
	Report       Report

	folder *folder
	before int // lines of SKILL.md before its Markdown
}

// A Report describes the result of an import to the person who decides about it.
type Report struct {
	Skill    string
	Tier     Tier
	Scripts  []Wrapped
	Programs []string // required programs, which must exist in the environment of its scripts
	Hosts    []string // hosts named in its text; its scripts cannot reach them
	Dropped  []Dropped
	Dangers  []Danger
}

// Wrapped is a script that became a capability.
type Wrapped struct {
	ID     string
	Script string
	May    []string // effects; none: it only computes
	Needs  string   // a required image
}

// Dropped is a part of the folder that was not imported.
type Dropped struct {
	What string
	Why  string
}

// guest is the read-only mount point of the folder for scripts.
const guest = "/skill"

// source is the directory of the folder's files in the bundle.
const source = "src"

// Default limits of a script.
const (
	scriptMemoryMB = 512
	scriptTimeout  = time.Minute
	scriptPIDs     = 64
	scriptQuotaMB  = 64
)

// Import converts a folder. Its scripts become capabilities that run in jails without network,
// with a read-only view of the folder and only the secrets that the document requests.
// Instructions to run commands are removed from the text. Import executes nothing and reads
// nothing outside the folder.
func Import(dir string) (*Imported, error) {
	f, err := readFolder(dir)
	if err != nil {
		return nil, err
	}
	return importFolder(f)
}

func importFolder(f *folder) (*Imported, error) {
	doc, ok := f.files["SKILL.md"]
	if !ok {
		return nil, fault.Newf(fault.Invalid, opImport, "", "the folder contains no SKILL.md")
	}
	im := &Imported{folder: f}
	secrets, err := im.document(doc.text)
	if err != nil {
		return nil, err
	}
	im.Report.Skill = im.Skill.Name
	im.Report.Dropped = append(im.Report.Dropped, f.dropped...)
	for _, name := range f.order {
		if err := im.take(name, secrets); err != nil {
			return nil, err
		}
	}
	im.teach()
	im.hosts()
	return im, im.settle()
}

func (im *Imported) drop(what, format string, args ...any) {
	im.Report.Dropped = append(im.Report.Dropped, Dropped{What: what, Why: fmt.Sprintf(format, args...)})
}

// document parses SKILL.md and returns the names of the secrets that it requests.
func (im *Imported) document(text []byte) (secrets []string, err error) {
	f := &front{file: "SKILL.md", text: text}
	top, body, err := f.open(opImport)
	if err != nil {
		return nil, err
	}
	s := &Skill{Version: "0.0.0", Body: body, Source: string(text)}
	im.Skill, im.before = s, f.before
	f.each(top, "", func(key, value *yaml.Node) {
		switch key.Value {
		case "name":
			if s.Name = slug(f.str(value, "name"), 40); s.Name == "" {
				f.problem(value, "name", "no character of it is valid in a name")
			}
		case "description":
			s.Description = cut(safetext.OneLine(f.str(value, "description")), 1000)
		case "version":
			if value.Kind == yaml.ScalarNode && manifest.ValidVersion(value.Value) {
				s.Version = value.Value
			} else {
				im.drop("version", "not a semantic version")
			}
		case "license", "homepage", "author", "compatibility":
			im.drop(key.Value, "it contains no supported setting")
		case "allowed-tools", "tools":
			im.drop(key.Value+": "+cut(safetext.OneLine(scalars(value)), 120), "the skill can use only its own capabilities")
		case "metadata":
			secrets = im.requirements(value)
		default:
			im.drop(clip(key.Value), "unknown key")
		}
	})
	if top.Kind == yaml.MappingNode && !has(top, "name") {
		f.problem(top, "name", "is required")
	}
	return secrets, f.problems.Fault(opImport)
}

// requirements parses the requirements in the metadata: at the top level, or under the name of
// the program it was written for.
func (im *Imported) requirements(n *yaml.Node) (secrets []string) {
	var all []*yaml.Node
	var find func(n *yaml.Node, depth int)
	find = func(n *yaml.Node, depth int) {
		if n.Kind != yaml.MappingNode {
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == "requires" {
				all = append(all, n.Content[i+1])
			} else if depth == 0 {
				find(n.Content[i+1], 1)
			}
		}
	}
	if n.Kind == yaml.ScalarNode { // JSON in a string
		var inner yaml.Node
		if yaml.Unmarshal([]byte(n.Value), &inner) == nil && len(inner.Content) == 1 {
			n = inner.Content[0]
		}
	}
	find(n, 0)
	if len(all) == 0 {
		im.drop("metadata", "it requires nothing")
	}
	for _, n := range all {
		for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
			key, words := n.Content[i].Value, strings.Fields(scalars(n.Content[i+1]))
			switch key {
			case "bins", "anyBins":
				im.Report.Programs = append(im.Report.Programs, words[:min(len(words), maxList)]...)
			case "env":
				for _, w := range words[:min(len(words), maxList)] {
					if err := manifest.CheckSecret(w); err != nil {
						im.drop("metadata.requires.env", "%v", err)
					} else if !slices.Contains(secrets, w) {
						secrets = append(secrets, w)
					}
				}
			default:
				im.drop("metadata.requires."+clip(key), "unknown key")
			}
		}
	}
	return secrets
}

// scalars returns the words of a node and its children, up to a depth.
func scalars(n *yaml.Node) string {
	var words []string
	var walk func(n *yaml.Node, depth int)
	walk = func(n *yaml.Node, depth int) {
		if n.Kind == yaml.ScalarNode {
			words = append(words, n.Value)
		}
		for _, c := range n.Content {
			if depth < maxDepth && len(words) < maxList {
				walk(c, depth+1)
			}
		}
	}
	walk(n, 0)
	return strings.Join(words, " ")
}

var unslug = regexp.MustCompile(`[^a-z0-9]+`)

// slug converts a text to a part of an id.
func slug(s string, most int) string {
	s = strings.Trim(unslug.ReplaceAllString(strings.ToLower(s), "-"), "-")
	return strings.Trim(s[:min(len(s), most)], "-")
}

// take processes one file: its dangers, and whether it becomes a capability.
func (im *Imported) take(name string, secrets []string) error {
	f := im.folder.files[name]
	if name != "SKILL.md" && f.isText() {
		im.Report.Dangers = append(im.Report.Dangers, look(name, string(f.text))...)
	}
	in, why := runs(name, f)
	switch {
	case why != "":
		im.drop(name, "not converted to a capability: %s", why)
		return nil
	case in == nil:
		return nil
	case im.folder.isLibrary(name):
		im.drop(name, "not converted to a capability: a library of other scripts")
		return nil
	}
	c, err := im.wrap(name, in, secrets)
	if err != nil {
		return fmt.Errorf("wrap %s: %w", name, err)
	}
	im.Capabilities = append(im.Capabilities, c)
	im.Skill.Capabilities = append(im.Skill.Capabilities, c.ID)
	w := Wrapped{ID: c.ID, Script: name, May: manifest.Widens(nil, c), Needs: in.image}
	im.Report.Scripts = append(im.Report.Scripts, w)
	return nil
}

// The input and output types of a script.
const (
	scriptInput = `[:map [:args {:optional true} [:vector :string]] [:stdin {:optional true} :string]]`

	scriptOutput = `[:map [:stdout :string] [:stderr :string] [:exit_code :int]]`
)

// wrap returns the manifest of a script.
func (im *Imported) wrap(name string, in *interpreter, secrets []string) (*manifest.Capability, error) {
	input, err := schema.Parse("", scriptInput)
	if err != nil {
		return nil, fmt.Errorf("parse the input type of a script: %w", err)
	}
	output, err := schema.Parse("", scriptOutput)
	if err != nil {
		return nil, fmt.Errorf("parse the output type of a script: %w", err)
	}
	c := &manifest.Capability{
		ID:          im.id(name),
		Description: fmt.Sprintf("Runs %s of the skill %s with the arguments args, and stdin as its standard input.", name, im.Skill.Name),
		Version:     im.Skill.Version,
		Input:       input,
		Output:      output,
		Runtime: manifest.Spec{
			Type: manifest.Container, Entrypoint: append(slices.Clone(in.argv), path.Join(guest, name)),
			Workdir: guest, Stdio: manifest.TextStdio,
		},
		Filesystem: manifest.Filesystem{Mode: manifest.Ephemeral, QuotaMB: scriptQuotaMB, Mounts: []manifest.Mount{{Host: source, Guest: guest}}},
		Network:    manifest.Network{Mode: manifest.ModeNone},
		NoEgress:   true,
		Secrets:    secrets,
		Resources:  manifest.Resources{MemoryMB: scriptMemoryMB, Timeout: scriptTimeout, PIDs: scriptPIDs},
		Approval:   manifest.Approval{Tier: manifest.Standard},
		Metadata:   map[string]form.Value{"script": name},
	}
	if c.Runtime.Image = in.image; in.image == "" {
		c.Runtime.Rootfs = "debian"
	}
	if len(secrets) > 0 {
		c.Effects = []string{"secrets"}
	}
	// The generated text is parsed again, so that a script's author cannot inject anything
	// into the manifest.
	all, err := manifest.Read(c.ID+".rtfs", []byte(c.Text()))
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// id returns an unused id for a script: the names of the skill and the script, with its
// folders if that is taken.
func (im *Imported) id(name string) string {
	stem := strings.TrimSuffix(name, path.Ext(name))
	prefix := im.Skill.Name
	if prefix[0] >= '0' && prefix[0] <= '9' {
		prefix = "skill-" + prefix
	}
	prefix = slug(prefix, 36)
	base := cmp.Or(slug(path.Base(stem), 24), "script")
	for i := 0; ; i++ {
		last := base
		switch {
		case i == 1:
			last = cmp.Or(slug(stem, 24), base)
		case i > 1:
			last = fmt.Sprintf("%s-%d", slug(base, 18), i)
		}
		if id := prefix + "." + last; !slices.Contains(im.Skill.Capabilities, id) {
			return id
		}
	}
}

// teach removes instructions that an agent must not follow and describes the capabilities
// instead.
func (im *Imported) teach() {
	var out []string
	var markdown scan
	all := slices.Concat(dangers, commands) // commands for lines of code only
	for i, line := range strings.Split(im.Skill.Body, "\n") {
		signs := dangers
		if markdown.isCode(line) {
			signs = all
		}
		why := danger(line, signs)
		if why == "" {
			out = append(out, line)
			continue
		}
		im.Report.Dangers = append(im.Report.Dangers, Danger{File: "SKILL.md", Line: im.before + i + 1, Text: shown(line), Why: why})
		out = append(out, "(A line was removed: "+why+".)")
	}
	var b strings.Builder
	b.WriteString(strings.Join(out, "\n"))
	if len(im.Report.Scripts) > 0 {
		b.WriteString("\n\n## Scripts\n\nThe scripts are not run as commands. Each is a capability that takes `args`, a list, and\n`stdin`, a string, and returns `stdout`, `stderr` and `exit_code`. It has no network.\n\n")
	}
	for _, w := range im.Report.Scripts {
		fmt.Fprintf(&b, "- `%s` is `%s`\n", w.Script, w.ID)
	}
	im.Skill.Body = strings.TrimSpace(b.String())
}

var address = regexp.MustCompile(`https?://[A-Za-z0-9.-]+`)

// hosts records the hosts that the texts of a folder name.
func (im *Imported) hosts() {
	for _, name := range im.folder.order {
		f := im.folder.files[name]
		if !f.isText() {
			continue
		}
		for _, found := range address.FindAllString(string(f.text), 1000) {
			u, err := url.Parse(found)
			if err == nil && !slices.Contains(im.Report.Hosts, u.Hostname()) && len(im.Report.Hosts) < 100 {
				im.Report.Hosts = append(im.Report.Hosts, u.Hostname())
			}
		}
	}
	slices.Sort(im.Report.Hosts)
}

// settle derives the properties of the skill and writes its document.
func (im *Imported) settle() error {
	s := im.Skill
	if s.Description == "" {
		s.Description = s.Name
	}
	k, err := s.Check(func(id string) (*manifest.Capability, bool) {
		i := slices.Index(s.Capabilities, id)
		return im.Capabilities[i], true
	})
	if err != nil {
		return err
	}
	im.Report.Tier = k.Tier
	s.Shown = Shown{Effects: k.Effects, Secrets: k.Secrets, Tier: k.Tier}
	text, err := s.text()
	if err != nil {
		return fmt.Errorf("encode the skill: %w", err)
	}
	im.Skill, err = Read("skill.yaml", text)
	return err
}

// text returns a skill as a document.
func (s *Skill) text() ([]byte, error) {
	type governed struct {
		Capabilities []string          `yaml:"capabilities"`
		Effects      []string          `yaml:"effects"`
		Secrets      []string          `yaml:"secrets"`
		Approval     map[string]string `yaml:"approval"`
	}
	head, err := yaml.Marshal(struct {
		Name        string   `yaml:"name"`
		Description string   `yaml:"description"`
		Version     string   `yaml:"version"`
		Glasshouse  governed `yaml:"glasshouse"`
	}{s.Name, s.Description, s.Version, governed{s.Capabilities, s.Shown.Effects, s.Shown.Secrets, map[string]string{"tier": string(s.Shown.Tier)}}})
	if err != nil {
		return nil, fmt.Errorf("write the skill %s: %w", s.Name, err)
	}
	text := "---\n" + string(head) + "---\n\n" + s.Body + "\n"
	if !utf8.ValidString(text) {
		return nil, errors.New("write the skill: a YAML key is not text")
	}
	return []byte(text), nil
}
