package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// The parts of a CycloneDX document that are used (https://cyclonedx.org/docs/1.6/json/).
type bom struct {
	Format       string       `json:"bomFormat"`
	SpecVersion  string       `json:"specVersion"`
	Serial       string       `json:"serialNumber"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type       string      `json:"type"`
	Ref        string      `json:"bom-ref"`
	Name       string      `json:"name"`
	Version    string      `json:"version"`
	PURL       string      `json:"purl,omitempty"`
	Hashes     []hash      `json:"hashes,omitempty"`
	Licenses   []licensing `json:"licenses,omitempty"`
	Components []component `json:"components,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type licensing struct {
	Expression string `json:"expression"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn"`
}

// writeSBOM writes the document for the program in binaries[0] and the programs that it contains.
// It has no time, and its serial number is derived from its content, so that it is reproducible.
func writeSBOM(out io.Writer, version string, binaries []string) error {
	doc := bom{Format: "CycloneDX", SpecVersion: "1.6", Version: 1}
	doc.Metadata.Component = component{
		Type: "application", Ref: "glasshouse", Name: "glasshouse", Version: version,
		Licenses: []licensing{{"Apache-2.0"}},
	}
	for _, name := range binaries {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		program := component{
			Type: "file", Ref: "file:" + filepath.Base(name), Name: filepath.Base(name), Version: version,
			Hashes: []hash{{"SHA-256", hex.EncodeToString(sum[:])}},
		}
		doc.Metadata.Component.Components = append(doc.Metadata.Component.Components, program)
	}

	info, err := buildinfo.ReadFile(binaries[0])
	if err != nil {
		return err
	}
	golang := strings.TrimPrefix(info.GoVersion, "go")
	doc.add(component{Name: "std", Version: golang, PURL: purl("golang", "std", golang), Licenses: []licensing{{"BSD-3-Clause"}}})
	if err := doc.addModules(binaries); err != nil {
		return err
	}
	packages, err := uiPackages()
	if err != nil {
		return err
	}
	for _, p := range packages {
		sum, err := fromBase64(p.Integrity, "sha512-", "SHA-512")
		if err != nil {
			return fmt.Errorf("web/ui/package-lock.json: %s: %w", p.Name, err)
		}
		doc.add(component{
			Name: p.Name, Version: p.Version, PURL: purl("npm", p.Name, p.Version),
			Hashes: []hash{sum}, Licenses: []licensing{{p.License}},
		})
	}
	all := dependency{Ref: "glasshouse", DependsOn: []string{}}
	for _, c := range doc.Components {
		all.DependsOn = append(all.DependsOn, c.Ref)
	}
	doc.Dependencies = []dependency{all}

	content, err := json.Marshal(doc)
	if err != nil {
		return fmt.Errorf("encode the SBOM: %w", err)
	}
	// RFC 9562, section 5.8: a UUID with the content of its author's choice has version 8.
	id := sha256.Sum256(content)
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
	doc.Serial = fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:16])
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(doc)
}

func (b *bom) add(c component) {
	c.Type, c.Ref = "library", c.PURL
	b.Components = append(b.Components, c)
}

// addModules adds the modules in the binaries. Their hash is that of go.sum, a SHA-256 of the names
// and hashes of their files.
func (b *bom) addModules(binaries []string) error {
	modules, err := modulesOf(binaries)
	if err != nil {
		return err
	}
	sums, err := goSums()
	if err != nil {
		return err
	}
	for _, m := range modules {
		sum, err := fromBase64(sums[m.Path+" "+m.Version], "h1:", "SHA-256")
		if err != nil {
			return fmt.Errorf("go.sum: %s %s: %w", m.Path, m.Version, err)
		}
		b.add(component{Name: m.Path, Version: m.Version, PURL: purl("golang", m.Path, m.Version), Hashes: []hash{sum}})
	}
	return nil
}

// goSums returns the hashes in go.sum, by module and version.
func goSums() (map[string]string, error) {
	data, err := os.ReadFile("go.sum")
	if err != nil {
		return nil, err
	}
	sums := make(map[string]string)
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) == 3 {
			sums[f[0]+" "+f[1]] = f[2]
		}
	}
	return sums, nil
}

// fromBase64 converts a hash such as h1:BASE64.
func fromBase64(s, prefix, algorithm string) (hash, error) {
	encoded, ok := strings.CutPrefix(s, prefix)
	if !ok {
		return hash{}, fmt.Errorf("no hash with the prefix %q: %q", prefix, s)
	}
	sum, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return hash{}, fmt.Errorf("decode the %s hash: %w", algorithm, err)
	}
	return hash{algorithm, hex.EncodeToString(sum)}, nil
}

// purl returns a package URL (https://github.com/package-url/purl-spec).
func purl(kind, name, version string) string {
	segments := strings.Split(name, "/")
	for i, s := range segments {
		segments[i] = strings.ReplaceAll(url.PathEscape(s), "@", "%40")
	}
	return "pkg:" + kind + "/" + strings.Join(segments, "/") + "@" + strings.ReplaceAll(url.PathEscape(version), "+", "%2B")
}
