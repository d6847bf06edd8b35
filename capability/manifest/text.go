package manifest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/schema"
)

// JSON returns the canonical JSON form of the manifest. Read accepts it and returns an equal
// manifest.
func (c *Capability) JSON() (json.RawMessage, error) {
	var b bytes.Buffer
	if err := writeJSON(&b, c.written()); err != nil {
		return nil, fmt.Errorf("write %s as JSON: %w", c.ID, err)
	}
	return b.Bytes(), nil
}

// Text returns the manifest in RTFS, with one key per line.
func (c *Capability) Text() string {
	var b strings.Builder
	for i, e := range c.written() {
		if i == 0 {
			b.WriteString("(capability " + form.Text(e.value))
			continue
		}
		b.WriteString("\n  :" + e.key + " " + rtfs(e.value))
	}
	b.WriteString(")\n")
	return b.String()
}

// Digest returns the digest of the manifest's content, independent of its syntax.
func (c *Capability) Digest() (string, error) {
	b, err := c.JSON()
	if err != nil {
		return "", fmt.Errorf("encode the manifest: %w", err)
	}
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// An object is an ordered map. Its values are those of package form, other objects, types of
// package schema, and code.
type object []entry

type entry struct {
	key   string
	value any
}

// code is the source text of a program.
type code string

func (o *object) put(key string, value any) { *o = append(*o, entry{key, value}) }

// number adds n unless it is zero.
func (o *object) number(key string, n int64) {
	if n != 0 {
		o.put(key, n)
	}
}

func (o *object) millis(key string, d time.Duration) { o.number(key, d.Milliseconds()) }

func (o *object) text(key, s string) {
	if s != "" {
		o.put(key, s)
	}
}

func (o *object) word(key, s string) {
	if s != "" {
		o.put(key, form.Keyword(s))
	}
}

func (o *object) section(key string, in object) {
	if len(in) > 0 {
		o.put(key, in)
	}
}

func words[S ~string](all []S) form.Vector {
	v := form.Vector{}
	for _, s := range all {
		v = append(v, form.Keyword(s))
	}
	return v
}

func texts(all []string) form.Vector {
	v := form.Vector{}
	for _, s := range all {
		v = append(v, s)
	}
	return v
}

// written returns the keys and values of the manifest without defaults.
func (c *Capability) written() object {
	var o object
	o.put("capability", c.ID)
	o.text("description", c.Description)
	o.text("version", c.Version)
	if c.Input != nil {
		o.put("input-schema", c.Input)
	}
	if c.Output != nil {
		o.put("output-schema", c.Output)
	}
	if len(c.Effects) > 0 {
		o.put("effects", words(c.Effects))
	}
	o.section("runtime", c.Runtime.written())
	if text := c.Runtime.implementation(); text != "" {
		o.put("implementation", code(text))
	}
	o.section("filesystem", c.Filesystem.written())
	o.section("network", c.Network.written())
	if c.NoEgress {
		o.put("egress", form.Vector{form.Keyword("none")})
	}
	if len(c.Secrets) > 0 {
		o.put("secrets", words(c.Secrets))
	}
	o.section("resources", c.Resources.written())
	var estimates object
	for _, name := range slices.Sorted(maps.Keys(c.Estimates)) {
		estimates.put(name, form.Vector{c.Estimates[name].Typical, c.Estimates[name].Worst})
	}
	o.section("resource-estimates", estimates)
	o.section("approval", c.Approval.written())
	o.section("data-classes", c.DataClasses.written())
	if c.DataClasses.Declassifies {
		o.put("declassifier", true)
	}
	var metadata object
	for _, key := range slices.Sorted(maps.Keys(c.Metadata)) {
		metadata.put(key, c.Metadata[key])
	}
	o.section("metadata", metadata)
	return o
}

func (s Spec) written() object {
	var o object
	o.word("type", string(s.Type))
	o.text("image", s.Image)
	o.text("rootfs", s.Rootfs)
	o.text("module", s.Module)
	if len(s.Entrypoint) > 0 {
		o.put("entrypoint", texts(s.Entrypoint))
	}
	var env object
	for _, key := range slices.Sorted(maps.Keys(s.Env)) {
		env.put(key, s.Env[key])
	}
	o.section("env", env)
	o.text("workdir", s.Workdir)
	o.word("stdio", string(s.Stdio))
	var tool object
	tool.text("name", s.Tool.Name)
	tool.text("digest", s.Tool.Digest)
	o.section("tool", tool)
	o.number("port", int64(s.Port))
	o.text("path", s.Path)
	o.millis("startup-timeout-ms", s.StartupTimeout)
	o.text("health-check", s.HealthCheck)
	o.text("digest", s.Digest)
	var warm object
	warm.number("max", int64(s.Warm.Max))
	warm.millis("ttl-ms", s.Warm.TTL)
	o.section("warm", warm)
	return o
}

// implementation returns the source text of the code.
func (s Spec) implementation() string {
	if s.code == "" && s.Code != nil {
		return form.Text(s.Code.Value())
	}
	return s.code
}

func (f Filesystem) written() object {
	var o object
	if f.Mode != Ephemeral {
		o.word("mode", string(f.Mode))
	}
	var mounts []any
	for _, m := range f.Mounts {
		mode := form.Keyword("ro")
		if m.Write {
			mode = "rw"
		}
		mounts = append(mounts, object{{"host", m.Host}, {"guest", m.Guest}, {"mode", mode}})
	}
	if len(mounts) > 0 {
		o.put("mounts", mounts)
	}
	o.number("quota-mb", int64(f.QuotaMB))
	return o
}

func (n Network) written() object {
	if n.Mode != ModeProxy {
		return nil
	}
	o := object{{"mode", form.Keyword(n.Mode)}, {"allowed-hosts", texts(n.Hosts)}}
	ports := form.Vector{}
	for _, p := range n.Ports {
		ports = append(ports, int64(p))
	}
	if len(ports) > 0 {
		o.put("allowed-ports", ports)
	}
	o.number("egress-rate-limit", int64(n.Rate))
	var inject []any
	for _, in := range n.Inject {
		i := object{{"secret", form.Keyword(in.Secret)}}
		i.text("host", in.Host)
		if in.As == "bearer" {
			i.put("bearer", true)
		} else {
			i.put(in.As, in.Name)
		}
		inject = append(inject, i)
	}
	if len(inject) > 0 {
		o.put("inject", inject)
	}
	return o
}

func (r Resources) written() object {
	var o object
	o.number("cpu-shares", int64(r.CPUShares))
	o.number("memory-mb", int64(r.MemoryMB))
	o.millis("timeout-ms", r.Timeout)
	o.number("network-bytes", r.NetworkBytes)
	o.number("pids", int64(r.PIDs))
	return o
}

func (a Approval) written() object {
	var o object
	if a.Tier != Standard {
		o.word("tier", string(a.Tier))
	}
	if a.PerUse {
		o.put("requires-per-use", true)
	}
	return o
}

func (d DataClasses) written() object {
	var o object
	if len(d.Input) > 0 {
		o.put("input", words(d.Input))
	}
	if len(d.Output) > 0 {
		o.put("output", words(d.Output))
	}
	return o
}

// writeJSON encodes a value of an object. The keys keep their order.
func writeJSON(b *bytes.Buffer, v any) error {
	var text []byte
	var err error
	switch v := v.(type) {
	case object:
		return writeAll(b, "{}", len(v), func(i int) error {
			name, err := marshal(v[i].key)
			b.Write(name)
			b.WriteByte(':')
			if err != nil {
				return err
			}
			return writeJSON(b, v[i].value)
		})
	case []any:
		return writeAll(b, "[]", len(v), func(i int) error { return writeJSON(b, v[i]) })
	case *schema.Type:
		text, err = schemaJSON(v)
	case code:
		text, err = marshal(string(v))
	default:
		text, err = schema.ToJSON(v)
	}
	b.Write(text)
	return err
}

func writeAll(b *bytes.Buffer, brackets string, n int, one func(i int) error) error {
	b.WriteByte(brackets[0])
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := one(i); err != nil {
			return err
		}
	}
	b.WriteByte(brackets[1])
	return nil
}

// marshal encodes JSON without escaping < and &.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// rtfs returns a value of an object in RTFS syntax.
func rtfs(v any) string {
	switch v := v.(type) {
	case object:
		var parts []string
		for _, e := range v {
			parts = append(parts, keyText(e.key)+" "+rtfs(e.value))
		}
		return "{" + strings.Join(parts, " ") + "}"
	case []any:
		var parts []string
		for _, e := range v {
			parts = append(parts, rtfs(e))
		}
		return "[" + strings.Join(parts, " ") + "]"
	case *schema.Type:
		return form.Text(v.Form())
	case code:
		return string(v)
	}
	return form.Text(v)
}

// keyText returns a key as a keyword if possible, otherwise as a string, which is equivalent in env
// and metadata.
func keyText(key string) string {
	if dotted.MatchString(key) || envName.MatchString(key) {
		return ":" + key
	}
	return form.Text(key)
}
