package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"glasshouse/capability/manifest"
	"glasshouse/capability/schema"
	"glasshouse/fault"
)

// Imported is the result of importing an MCP server.
type Imported struct {
	Server       string                 // the name that the server reports
	Capabilities []*manifest.Capability // one per tool, sorted by ID; Source is the manifest to register
	Lost         map[string][]string    // by ID: the parts of its schemas that cannot be checked
	Refused      []Refused              // tools that cannot be imported
}

// Refused is a tool that cannot be imported.
type Refused struct {
	Tool string
	Why  string
}

// Import lists the tools of a server and creates a manifest for each. like is a manifest of
// the server: its ID is the prefix of the tools' IDs, its runtime starts the process, and its
// network, secrets, resources and approval apply to all tools. If like has no effects, the
// tools get all effects that are possible in such a jail, because a server's claims about its
// tools are not verified. The caller closes p.
func Import(ctx context.Context, like *manifest.Capability, p Process) (*Imported, error) {
	const op = "mcp.Import"
	if err := manifest.CheckID(like.ID); err != nil {
		return nil, fault.Fieldf(op, "id", "%v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(like.Runtime.StartupTimeout, startup))
	defer cancel()
	s, err := connect(ctx, like.Version, p)
	if err != nil {
		return nil, fault.New(fault.Unavailable, op, like.ID, withLog(err, p))
	}
	defer s.close()
	defer context.AfterFunc(ctx, s.kill)()
	tools, err := s.list(ctx)
	if err != nil {
		return nil, fault.New(fault.Unavailable, op, like.ID, withLog(err, p))
	}
	imported := convert(like, tools)
	if info := s.client.InitializeResult().ServerInfo; info != nil {
		imported.Server = plain(info.Name+" "+info.Version, 128)
	}
	return imported, nil
}

// withLog adds the end of a process's log to an error.
func withLog(err error, p Process) error {
	if log := strings.TrimSpace(p.Log()); log != "" {
		return fmt.Errorf("%w; server log: %s", err, plain(log, 2048))
	}
	return err
}

// convert creates manifests of tools. The tool descriptions are untrusted.
func convert(like *manifest.Capability, tools []*sdk.Tool) *Imported {
	in := &Imported{Lost: map[string][]string{}}
	names, ids := map[string]int{}, map[string]int{}
	for _, t := range tools {
		if t != nil {
			names[t.Name]++
			ids[idOf(like, t.Name)]++
		}
	}
	for _, t := range tools {
		if t == nil {
			continue
		}
		id := idOf(like, t.Name)
		var err error
		switch {
		case names[t.Name] > 1:
			err = fmt.Errorf("%d tools have this name", names[t.Name])
		case ids[id] > 1:
			err = fmt.Errorf("%d tools would have the id %s", ids[id], id)
		default:
			err = in.add(like, id, t)
		}
		if err != nil {
			in.Refused = append(in.Refused, Refused{Tool: plain(t.Name, 128), Why: plain(err.Error(), 1024)})
			delete(in.Lost, id)
		}
	}
	slices.SortFunc(in.Capabilities, func(a, b *manifest.Capability) int { return strings.Compare(a.ID, b.ID) })
	return in
}

// idOf returns the ID of a tool. Invalid characters become dashes.
func idOf(like *manifest.Capability, tool string) string {
	odd := func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '-'
	}
	var words []string
	for _, w := range strings.Split(strings.Map(odd, strings.ToLower(bounded(tool, 256))), "-") {
		if w != "" {
			words = append(words, w)
		}
	}
	return like.ID + "." + strings.Join(words, "-")
}

func (in *Imported) add(like *manifest.Capability, id string, t *sdk.Tool) error {
	if err := manifest.CheckID(id); err != nil {
		return err
	}
	sum := digest(t)
	if sum == "" {
		return fmt.Errorf("cannot compute the tool's digest")
	}
	c := *like
	c.ID, c.Description = id, describe(like, t)
	c.Runtime.Stdio = manifest.MCPStdio
	c.Runtime.Tool = manifest.Tool{Name: t.Name, Digest: sum}
	if c.Effects == nil {
		c.Effects = effects(like)
	}
	var err error
	if c.Input, err = in.typeOf(id, "input", t.InputSchema); err != nil {
		return fmt.Errorf("invalid input schema: %w", err)
	}
	c.Output = resultSchema
	if t.OutputSchema != nil {
		if c.Output, err = in.typeOf(id, "output", t.OutputSchema); err != nil {
			return fmt.Errorf("invalid output schema: %w", err)
		}
	}
	text, err := c.JSON()
	if err != nil {
		return fmt.Errorf("encode the manifest of %s: %w", id, err)
	}
	read, err := manifest.Read(id, text)
	if err != nil {
		return err
	}
	in.Capabilities = append(in.Capabilities, read...)
	return nil
}

func (in *Imported) typeOf(id, which string, s any) (*schema.Type, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode the %s schema: %w", which, err)
	}
	if len(text) > maxSchema {
		return nil, fmt.Errorf("%d bytes exceed the maximum of %d", len(text), maxSchema)
	}
	t, lost, err := schema.FromJSONSchema(text)
	for _, l := range lost {
		in.Lost[id] = append(in.Lost[id], which+": "+plain(l, 256))
	}
	return t, err
}

// describe marks a server's description of its tool as untrusted, because models read it. The
// description is quoted, on one line, and truncated.
func describe(like *manifest.Capability, t *sdk.Tool) string {
	s := fmt.Sprintf("The tool %q of %s, a server of others.", plain(t.Name, 128), like.ID)
	if words := plain(t.Description, 1024); words != "" {
		s += fmt.Sprintf(" It describes itself, unchecked, as: %q", words)
	}
	return s
}

// effects returns all effects that a program in such a jail can have.
func effects(like *manifest.Capability) []string {
	all := []string{"fs", "state", "exec"}
	if like.Network.Mode == manifest.ModeProxy && !like.NoEgress {
		all = append(all, "network")
	}
	if len(like.Secrets) > 0 {
		all = append(all, "secrets")
	}
	return all
}
