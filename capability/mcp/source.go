package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"glasshouse/fault"
)

// A Source provides the data of resources and prompts for one caller. It decides what the
// caller may see.
type Source interface {
	Jails(ctx context.Context) ([]Jail, error)
	// Jail returns a jail as JSON.
	Jail(ctx context.Context, jail string) (json.RawMessage, error)
	// Events returns the last n events of a jail as JSON, the oldest first.
	Events(ctx context.Context, jail string, n int) ([]json.RawMessage, error)

	// Snapshots returns the snapshots that the caller may see, or those of one jail.
	Snapshots(ctx context.Context, jail string) ([]Snapshot, error)
	// Snapshot returns a snapshot as JSON.
	Snapshot(ctx context.Context, snapshot string) (json.RawMessage, error)

	Skills(ctx context.Context) ([]Skill, error)
	// Skill returns the instructions of a skill, in Markdown.
	Skill(ctx context.Context, name string) (string, error)
}

// A Skill is the list entry of a skill.
type Skill struct {
	Name, Description string
}

const (
	scheme = "glasshouse://"

	jailTemplate      = scheme + "jails/{jail}"
	eventsTemplate    = scheme + "jails/{jail}/events"
	snapshotsTemplate = scheme + "jails/{jail}/snapshots"
	snapshotTemplate  = scheme + "snapshots/{snapshot}"
	skillTemplate     = scheme + "skills/{skill}"

	jsonType     = "application/json"
	markdownType = "text/markdown"
	linesType    = "application/x-ndjson"

	// lastEvents and maxEventBytes bound the events of a jail that are one resource. The
	// last ones are kept.
	lastEvents    = 500
	maxEventBytes = 1 << 20
)

// OfferSource makes a server serve the jails, events, snapshots and skills of a source as
// resources, and its skills as prompts.
func (s *Server) OfferSource(of Source) { s.Offer(sourceResources{of}, sourcePrompts{of}) }

// A sourceResources serves a source as resources.
type sourceResources struct{ of Source }

func (r sourceResources) List(ctx context.Context) ([]*sdk.Resource, error) {
	jails, err := r.of.Jails(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the jails: %w", err)
	}
	snapshots, err := r.of.Snapshots(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("list the snapshots: %w", err)
	}
	skills, err := r.of.Skills(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the skills: %w", err)
	}
	all := []*sdk.Resource{}
	for _, j := range jails {
		title := strings.TrimSpace(j.ID + " " + j.Name)
		uri := fill(jailTemplate, j.ID)
		all = append(all,
			&sdk.Resource{URI: uri, Name: j.ID, Title: "Jail " + title, Description: "A jail: its state, limits and network.", MIMEType: jsonType},
			&sdk.Resource{URI: uri + "/events", Name: j.ID + "/events", Title: "Events of jail " + title, Description: fmt.Sprintf("The last %d events of the jail, one a line.", lastEvents), MIMEType: linesType},
			&sdk.Resource{URI: uri + "/snapshots", Name: j.ID + "/snapshots", Title: "Snapshots of jail " + title, Description: "The snapshots of the jail.", MIMEType: jsonType})
	}
	for _, s := range snapshots {
		all = append(all, &sdk.Resource{URI: fill(snapshotTemplate, s.ID), Name: s.ID, Title: strings.TrimSpace("Snapshot " + s.ID + " " + s.Name), Description: "A snapshot of jail " + s.Jail + ".", MIMEType: jsonType})
	}
	for _, s := range skills {
		all = append(all, &sdk.Resource{URI: fill(skillTemplate, s.Name), Name: s.Name, Title: "Skill " + s.Name, Description: s.Description, MIMEType: markdownType})
	}
	return all, nil
}

func (r sourceResources) Templates() []*sdk.ResourceTemplate {
	return []*sdk.ResourceTemplate{
		{URITemplate: jailTemplate, Name: "jail", Description: "A jail: its state, limits and network.", MIMEType: jsonType},
		{URITemplate: eventsTemplate, Name: "events", Description: "The last events of a jail, one a line.", MIMEType: linesType},
		{URITemplate: snapshotsTemplate, Name: "snapshots", Description: "The snapshots of a jail.", MIMEType: jsonType},
		{URITemplate: snapshotTemplate, Name: "snapshot", Description: "A snapshot.", MIMEType: jsonType},
		{URITemplate: skillTemplate, Name: "skill", Description: "The instructions of a skill.", MIMEType: markdownType},
	}
}

// fill puts a value into a template of one variable.
func fill(template, value string) string {
	before, rest, _ := strings.Cut(template, "{")
	_, after, _ := strings.Cut(rest, "}")
	return before + url.PathEscape(value) + after
}

// match returns the value of the variable of a template in a URI.
func match(template, uri string) (string, bool) {
	before, rest, _ := strings.Cut(template, "{")
	_, after, _ := strings.Cut(rest, "}")
	value, ok := strings.CutPrefix(uri, before)
	if ok {
		value, ok = strings.CutSuffix(value, after)
	}
	if !ok || value == "" || strings.Contains(value, "/") {
		return "", false
	}
	value, err := url.PathUnescape(value)
	return value, err == nil
}

func (r sourceResources) Read(ctx context.Context, uri string) ([]*sdk.ResourceContents, error) {
	for _, t := range r.Templates() {
		value, ok := match(t.URITemplate, uri)
		if !ok {
			continue
		}
		text, err := r.read(ctx, t.URITemplate, value)
		if err != nil {
			return nil, err
		}
		return []*sdk.ResourceContents{{URI: uri, MIMEType: t.MIMEType, Text: text}}, nil
	}
	return nil, fault.Newf(fault.NotFound, "mcp.Read", uri, "no resource has this URI")
}

func (r sourceResources) read(ctx context.Context, template, value string) (string, error) {
	switch template {
	case jailTemplate:
		text, err := r.of.Jail(ctx, value)
		return string(text), err
	case eventsTemplate:
		events, err := r.of.Events(ctx, value, lastEvents)
		if err != nil {
			return "", err
		}
		return lines(events), nil
	case snapshotsTemplate:
		all, err := r.of.Snapshots(ctx, value)
		if err != nil {
			return "", err
		}
		text, err := json.Marshal(append([]Snapshot{}, all...))
		return string(text), err
	case snapshotTemplate:
		text, err := r.of.Snapshot(ctx, value)
		return string(text), err
	}
	return r.of.Skill(ctx, value)
}

// lines returns the last events that fit into maxEventBytes, one per line.
func lines(events []json.RawMessage) string {
	first, size := len(events), 0
	for first > 0 && size+len(events[first-1])+1 <= maxEventBytes {
		first--
		size += len(events[first]) + 1
	}
	var b strings.Builder
	for _, e := range events[first:] {
		b.Write(e)
		b.WriteByte('\n')
	}
	return b.String()
}

func (r sourceResources) Complete(ctx context.Context, _, variable, prefix string) ([]string, error) {
	var values []string
	switch variable {
	case "jail":
		all, err := r.of.Jails(ctx)
		if err != nil {
			return nil, fmt.Errorf("list the jails: %w", err)
		}
		for _, j := range all {
			values = append(values, j.ID)
		}
	case "snapshot":
		all, err := r.of.Snapshots(ctx, "")
		if err != nil {
			return nil, fmt.Errorf("list the snapshots: %w", err)
		}
		for _, s := range all {
			values = append(values, s.ID)
		}
	case "skill":
		all, err := r.of.Skills(ctx)
		if err != nil {
			return nil, fmt.Errorf("list the skills: %w", err)
		}
		for _, s := range all {
			values = append(values, s.Name)
		}
	}
	return slices.DeleteFunc(values, func(v string) bool { return !strings.HasPrefix(v, prefix) }), nil
}

// A sourcePrompts serves the skills of a source as prompts.
type sourcePrompts struct{ of Source }

const taskArgument = "task"

func (p sourcePrompts) List(ctx context.Context) ([]*sdk.Prompt, error) {
	skills, err := p.of.Skills(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the skills: %w", err)
	}
	all := []*sdk.Prompt{}
	for _, s := range skills {
		all = append(all, &sdk.Prompt{Name: s.Name, Description: s.Description, Arguments: []*sdk.PromptArgument{
			{Name: taskArgument, Description: "What to do with the skill."},
		}})
	}
	return all, nil
}

func (p sourcePrompts) Get(ctx context.Context, name string, arguments map[string]string) ([]*sdk.PromptMessage, error) {
	for key := range arguments {
		if key != taskArgument {
			return nil, fault.Fieldf("mcp.GetPrompt", "arguments", "%.40q is not an argument; the only argument is %s", key, taskArgument)
		}
	}
	text, err := p.of.Skill(ctx, name)
	if err != nil {
		return nil, err
	}
	messages := []*sdk.PromptMessage{{Role: "user", Content: &sdk.TextContent{Text: text}}}
	if task := arguments[taskArgument]; task != "" {
		messages = append(messages, &sdk.PromptMessage{Role: "user", Content: &sdk.TextContent{Text: task}})
	}
	return messages, nil
}

func (p sourcePrompts) Complete(context.Context, string, string, string) ([]string, error) {
	return nil, nil // a task is free text
}

// Of returns a source that sees one jail: its events, its snapshots, and the skills. The
// ids of other jails and of their snapshots are not found, whether they exist or not.
func Of(jail string, all Source) Source { return jailSource{jail: jail, of: all} }

type jailSource struct {
	jail string
	of   Source
}

func (s jailSource) within(jail string) error {
	if jail != s.jail || jail == "" {
		return fault.Newf(fault.NotFound, "mcp.Read", jail, "no such jail")
	}
	return nil
}

func (s jailSource) Jails(ctx context.Context) ([]Jail, error) {
	all, err := s.of.Jails(ctx)
	return slices.DeleteFunc(slices.Clone(all), func(j Jail) bool { return j.ID != s.jail }), err
}

func (s jailSource) Jail(ctx context.Context, jail string) (json.RawMessage, error) {
	if err := s.within(jail); err != nil {
		return nil, err
	}
	return s.of.Jail(ctx, jail)
}

func (s jailSource) Events(ctx context.Context, jail string, n int) ([]json.RawMessage, error) {
	if err := s.within(jail); err != nil {
		return nil, err
	}
	return s.of.Events(ctx, jail, n)
}

func (s jailSource) Snapshots(ctx context.Context, jail string) ([]Snapshot, error) {
	if jail != "" {
		if err := s.within(jail); err != nil {
			return nil, err
		}
	}
	all, err := s.of.Snapshots(ctx, s.jail)
	return slices.DeleteFunc(slices.Clone(all), func(x Snapshot) bool { return x.Jail != s.jail }), err
}

func (s jailSource) Snapshot(ctx context.Context, snapshot string) (json.RawMessage, error) {
	all, err := s.Snapshots(ctx, "")
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(all, func(x Snapshot) bool { return x.ID == snapshot }) {
		return nil, fault.Newf(fault.NotFound, "mcp.Read", snapshot, "no such snapshot")
	}
	return s.of.Snapshot(ctx, snapshot)
}

func (s jailSource) Skills(ctx context.Context) ([]Skill, error) { return s.of.Skills(ctx) }

func (s jailSource) Skill(ctx context.Context, name string) (string, error) {
	skills, err := s.of.Skills(ctx)
	if err != nil {
		return "", fmt.Errorf("list the skills: %w", err)
	}
	if !slices.ContainsFunc(skills, func(x Skill) bool { return x.Name == name }) {
		return "", fault.Newf(fault.NotFound, "mcp.Read", name, "no such skill")
	}
	return s.of.Skill(ctx, name)
}
