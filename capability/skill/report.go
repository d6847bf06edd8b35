package skill

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"strings"

	"glasshouse/fault"
	safetext "glasshouse/internal/text"
)

// String returns the report as text.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d scripts became capabilities; the skill is %s\n", r.Skill, len(r.Scripts), r.Tier)
	for _, w := range r.Scripts {
		fmt.Fprintf(&b, "\n%s runs %s in a jail\n", w.ID, w.Script)
		for _, may := range w.May {
			fmt.Fprintf(&b, "  %s\n", may)
		}
		b.WriteString("  has no network\n")
		if w.Needs != "" {
			fmt.Fprintf(&b, "  needs the image %s, or another that its manifest names\n", w.Needs)
		}
	}
	section := func(title string, n int, line func(i int) string) {
		if n == 0 {
			return
		}
		fmt.Fprintf(&b, "\n%s\n", title)
		for i := range n {
			fmt.Fprintf(&b, "  %s\n", line(i))
		}
	}
	section("Required programs, which must exist in the environment of its scripts", len(r.Programs), func(i int) string { return cut(safetext.OneLine(shown(r.Programs[i])), 60) })
	section("Hosts that it names but cannot reach; to allow them, add them to a manifest", len(r.Hosts), func(i int) string { return r.Hosts[i] })
	section("Left out", len(r.Dropped), func(i int) string { return shown(r.Dropped[i].What) + ": " + safetext.Visible(r.Dropped[i].Why) })
	section("Dangerous outside a jail", len(r.Dangers), func(i int) string {
		d := r.Dangers[i]
		return fmt.Sprintf("%s:%d: %s\n    %s", d.File, d.Line, d.Why, d.Text)
	})
	return b.String()
}

// Write writes the imported skill to a new or empty directory in the layout of a bundle:
// skill.yaml, metadata.json, capabilities/, and the folder itself as src/. The publisher must
// be filled in.
func (im *Imported) Write(dir string) error {
	const op = "skill.Write"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write the skill %s: %w", im.Skill.Name, err)
	}
	there, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("write the skill %s: %w", im.Skill.Name, err)
	}
	if len(there) > 0 {
		return fault.Newf(fault.Conflict, op, dir, "the directory is not empty")
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("write the skill %s: %w", im.Skill.Name, err)
	}
	defer root.Close()
	put := func(name string, text []byte, mode os.FileMode) {
		if err == nil {
			err = root.MkdirAll(path.Dir(name), 0o755)
		}
		if err == nil {
			err = root.WriteFile(name, text, mode)
		}
	}
	put("skill.yaml", []byte(im.Skill.Source), 0o644)
	put("metadata.json", im.metadata(), 0o644)
	for _, c := range im.Capabilities {
		put(path.Join("capabilities", c.ID+".rtfs"), []byte(c.Text()), 0o644)
	}
	for _, name := range im.folder.order {
		f := im.folder.files[name]
		mode := os.FileMode(0o644)
		if f.exec {
			mode = 0o755
		}
		put(path.Join(source, name), f.text, mode)
	}
	if err != nil {
		return fmt.Errorf("write the skill %s: %w", im.Skill.Name, err)
	}
	return nil
}

// metadata returns the metadata of the bundle, with all effects of its scripts.
func (im *Imported) metadata() []byte {
	b, err := json.MarshalIndent(struct {
		Name        string   `json:"name"`
		Version     string   `json:"version"`
		Publisher   string   `json:"publisher"`
		Description string   `json:"description"`
		Tier        Tier     `json:"tier"`
		Effects     []string `json:"effects"`
		Secrets     []string `json:"secrets"`
	}{im.Skill.Name, im.Skill.Version, "", cut(safetext.OneLine(im.Skill.Description), 300), im.Report.Tier, im.Skill.Shown.Effects, im.Skill.Shown.Secrets}, "", "  ")
	if err != nil {
		panic(err) // strings always marshal
	}
	return append(b, '\n')
}
