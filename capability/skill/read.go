package skill

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/problem"
)

const opRead = "skill.Read"

// Read parses a document: YAML between two lines of ---, followed by Markdown. An error of
// kind fault.Invalid wraps a problem.List with all problems.
func Read(file string, text []byte) (*Skill, error) {
	f := &front{file: file, text: text}
	top, body, err := f.open(opRead)
	if err != nil {
		return nil, err
	}
	s := &Skill{Version: "0.0.0", Body: body, Source: string(text)}
	var governed *yaml.Node
	block := func(name string) func(n *yaml.Node) {
		return func(n *yaml.Node) {
			if governed != nil {
				f.problem(n, name, "duplicate block: ccos and glasshouse are synonyms")
				return
			}
			governed = n
			f.governed(s, n, name)
		}
	}
	f.entries(top, "", keys{
		"name":        func(n *yaml.Node) { s.Name = f.name(n) },
		"description": func(n *yaml.Node) { s.Description = f.description(n) },
		"version":     func(n *yaml.Node) { s.Version = f.version(n) },
		"ccos":        block("ccos"),
		"glasshouse":  block("glasshouse"),
		"display":     func(n *yaml.Node) { f.display(s, n) },
	})
	if top.Kind == yaml.MappingNode {
		for _, field := range []string{"name", "description"} {
			if !has(top, field) {
				f.problem(top, field, "is required")
			}
		}
	}
	f.seen()
	slices.SortStableFunc(f.problems, func(a, b problem.Problem) int { return a.Pos.Offset - b.Pos.Offset })
	if err := f.problems.Fault(opRead); err != nil {
		return nil, err
	}
	return s, nil
}

func has(n *yaml.Node, key string) bool {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return true
		}
	}
	return false
}

// governed parses the part about capabilities.
func (f *front) governed(s *Skill, n *yaml.Node, field string) {
	f.entries(n, field, keys{
		"capabilities": func(n *yaml.Node) {
			s.Capabilities = f.list(n, field+".capabilities", manifest.CheckID)
		},
		"effects": func(n *yaml.Node) {
			s.Shown.Effects = f.list(n, field+".effects", oneOf(manifest.Effects))
		},
		"secrets": func(n *yaml.Node) {
			s.Shown.Secrets = f.list(n, field+".secrets", manifest.CheckSecret)
		},
		"data_classes": func(n *yaml.Node) {
			f.entries(n, field+".data_classes", keys{
				"input":  func(n *yaml.Node) { s.Shown.Input = f.labels(n, field+".data_classes.input") },
				"output": func(n *yaml.Node) { s.Shown.Output = f.labels(n, field+".data_classes.output") },
			})
		},
		"approval": func(n *yaml.Node) {
			f.entries(n, field+".approval", keys{
				"tier":             func(n *yaml.Node) { s.Shown.Tier = f.tier(n, field+".approval.tier") },
				"requires_per_use": func(n *yaml.Node) { s.Shown.PerUse = f.flag(n, field+".approval.requires_per_use") },
			})
		},
	})
}

func (f *front) display(s *Skill, n *yaml.Node) {
	f.entries(n, "display", keys{
		"emoji":    func(n *yaml.Node) { s.Display.Emoji = f.short(n, "display.emoji", 16) },
		"category": func(n *yaml.Node) { s.Display.Category = f.short(n, "display.category", 64) },
	})
}

// short parses a string for lists and terminals.
func (f *front) short(n *yaml.Node, field string, most int) string {
	s := f.str(n, field)
	if utf8.RuneCountInString(s) > most || strings.ContainsFunc(s, unicode.IsControl) {
		f.problem(n, field, "must be one line of at most %d characters", most)
		return ""
	}
	return s
}

var nameForm = regexp.MustCompile(`^[a-z0-9]+(?:[-_.][a-z0-9]+)*$`)

func (f *front) name(n *yaml.Node) string {
	s := f.str(n, "name")
	if s != "" && (len(s) > 64 || !nameForm.MatchString(s)) {
		f.problem(n, "name", "%q is not a valid skill name: use lower-case letters, digits and - in between, at most 64 characters", clip(s))
		return ""
	}
	return s
}

func (f *front) description(n *yaml.Node) string {
	s := f.str(n, "description")
	if utf8.RuneCountInString(s) > 1024 {
		f.problem(n, "description", "longer than 1024 characters")
	}
	return s
}

func (f *front) version(n *yaml.Node) string {
	s := f.str(n, "version")
	if s != "" && !manifest.ValidVersion(s) {
		f.problem(n, "version", "%q is not a semantic version such as 1.0.0", clip(s))
	}
	return s
}

func (f *front) labels(n *yaml.Node, field string) []manifest.Label {
	all := []manifest.Label{}
	for _, s := range f.list(n, field, func(s string) error {
		_, err := manifest.ParseLabel(s)
		return err
	}) {
		all = append(all, manifest.Label(s))
	}
	return all
}

func (f *front) tier(n *yaml.Node, field string) Tier {
	s := f.str(n, field)
	var words []string
	for _, t := range Tiers {
		words = append(words, string(t))
	}
	if s == "" {
		return ""
	}
	if err := oneOf(words)(s); err != nil {
		f.problem(n, field, "%v", err)
		return ""
	}
	return Tier(s)
}

func oneOf(words []string) func(s string) error {
	return func(s string) error {
		if slices.Contains(words, s) {
			return nil
		}
		hint := problem.Meant(s, words...)
		if hint == "" {
			hint = "; valid: " + strings.Join(words, ", ")
		}
		return fmt.Errorf("%q is not a valid value%s", clip(s), hint)
	}
}
