package llm

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"glasshouse/fault"
)

// A target is the provider of a request and its name for the model.
type target struct {
	provider *provider
	model    string // the provider's name of the model
}

// matches reports whether a model's name matches a pattern, in which * matches any characters.
func matches(pattern, name string) bool {
	first, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == name
	}
	if !strings.HasPrefix(name, first) {
		return false
	}
	name = name[len(first):]
	for {
		part, after, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(name, part)
		}
		i := strings.Index(name, part)
		if i < 0 {
			return false
		}
		name, rest = name[i+len(part):], after
	}
}

func isPattern(s string) bool { return strings.Contains(s, "*") }

// has reports whether one of names matches the model: by name if exact, otherwise by pattern.
func has(names []string, model string, exact bool) bool {
	return slices.ContainsFunc(names, func(n string) bool {
		return isPattern(n) != exact && matches(n, model)
	})
}

func (g *Gateway) named(name string) *provider {
	for _, p := range g.providers {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// usable reports whether the provider can be used now.
func (p *provider) usable() bool { return p.Ready == nil || p.Ready() }

// allowed reports whether c may use a model by this name.
func (c Caller) allowed(model string) bool {
	return len(c.Models) == 0 || has(c.Models, model, true) || has(c.Models, model, false)
}

// resolve finds the provider of a model for a caller with this API. Exact names take
// precedence over patterns, and earlier configuration over later.
func (g *Gateway) resolve(c Caller, api API, model string) (target, error) {
	if !c.allowed(model) {
		return target{}, &fault.Error{Op: "llm.resolve", On: "model " + quoted(model), Kind: fault.Denied, Remedy: "use one of these: " + g.known(c),
			Err: fmt.Errorf("this caller may not use the model")}
	}
	var others []string
	for _, exact := range []bool{true, false} {
		for _, t := range g.candidates(model, exact) {
			if t.provider.API == api {
				return t, nil
			}
			others = append(others, fmt.Sprintf("%s, which speaks the API of %s", t.provider.Name, t.provider.API))
		}
	}
	if len(others) > 0 {
		return target{}, &fault.Error{Op: "llm.resolve", On: "model " + quoted(model), Kind: fault.NotFound, Remedy: "use that API, or a model of another provider",
			Err: fmt.Errorf("the model is served by %s; this request uses the API of %s", others[0], api)}
	}
	e := &fault.Error{Op: "llm.resolve", On: "model " + quoted(model), Kind: fault.NotFound, Remedy: "use one of these: " + g.known(c), Err: fmt.Errorf("there is no such model")}
	if !slices.ContainsFunc(g.providers, (*provider).usable) {
		e.Err = fmt.Errorf("no provider of models is configured")
		e.Remedy = "grant the key of one: glasshouse secret grant NAME --models anthropic (or openai, gemini); or set gateway.models in the configuration"
	}
	return target{}, e
}

// candidates returns the providers of a model with any API.
func (g *Gateway) candidates(model string, exact bool) []target {
	var found []target
	for _, a := range g.cfg.Aliases {
		if has([]string{a.Name}, model, exact) {
			found = append(found, g.meant(a, model)...)
		}
	}
	for _, p := range g.providers {
		if has(p.Models, model, exact) && p.usable() {
			found = append(found, target{p, model})
		}
	}
	return found
}

// meant returns the targets of an alias that a request names. Aliases are not resolved recursively.
func (g *Gateway) meant(a Alias, asked string) []target {
	model := a.Model
	if model == "" {
		model = asked
	}
	if a.Provider != "" {
		var found []target
		for _, p := range g.providers { // providers of the same name can exist for each API
			if p.Name == a.Provider && p.usable() {
				found = append(found, target{p, model})
			}
		}
		return found
	}
	var found []target
	for _, exact := range []bool{true, false} {
		for _, p := range g.providers {
			if has(p.Models, model, exact) && p.usable() {
				found = append(found, target{p, model})
			}
		}
	}
	return found
}

// A model is an entry of the model list.
type model struct {
	name   string
	owner  string
	gemini bool // can be called with the Gemini API
}

// models returns the models that a caller may use, and patterns separately.
func (g *Gateway) models(c Caller) (list []model, patterns []string) {
	add := func(name string, p *provider) {
		if isPattern(name) {
			patterns = append(patterns, name)
			return
		}
		if !c.allowed(name) {
			return
		}
		if i := slices.IndexFunc(list, func(m model) bool { return m.name == name }); i >= 0 {
			list[i].gemini = list[i].gemini || p.API == Gemini
			return
		}
		list = append(list, model{name: name, owner: p.Name, gemini: p.API == Gemini})
	}
	for _, a := range g.cfg.Aliases {
		for _, t := range g.meant(a, a.Name) {
			add(a.Name, t.provider)
		}
	}
	for _, p := range g.providers {
		if !p.usable() {
			continue
		}
		for _, name := range p.Models {
			add(name, p)
		}
	}
	slices.SortStableFunc(list, func(a, b model) int { return strings.Compare(a.name, b.name) })
	slices.Sort(patterns)
	return list, slices.Compact(patterns)
}

// known lists the names and patterns that a caller may use, for a message.
func (g *Gateway) known(c Caller) string {
	list, patterns := g.models(c)
	var names []string
	for _, m := range list {
		names = append(names, m.name)
	}
	if names = append(names, patterns...); len(names) == 0 {
		return "none is configured"
	}
	if len(names) > 40 {
		names = append(names[:40], "…")
	}
	return strings.Join(names, ", ")
}

// quoted returns untrusted text for a message.
func quoted(s string) string { return fmt.Sprintf("%.100q", s) }

// listModels responds in a format that clients of OpenAI and Anthropic both accept.
func (g *Gateway) listModels(w http.ResponseWriter, r *http.Request) {
	c, err := g.cfg.Caller(r)
	if err != nil {
		chat.refuse(w, err)
		return
	}
	type entry struct {
		ID          string `json:"id"`
		Object      string `json:"object"`
		Created     int64  `json:"created"`
		OwnedBy     string `json:"owned_by"`
		Type        string `json:"type"`
		DisplayName string `json:"display_name"`
		CreatedAt   string `json:"created_at"`
	}
	list, patterns := g.models(c)
	data := []entry{}
	for _, m := range list {
		data = append(data, entry{m.name, "model", 0, m.owner, "model", m.name, "1970-01-01T00:00:00Z"})
	}
	answer := map[string]any{"object": "list", "data": data, "has_more": false, "first_id": nil, "last_id": nil, "patterns": patterns}
	if len(data) > 0 {
		answer["first_id"], answer["last_id"] = data[0].ID, data[len(data)-1].ID
	}
	writeJSON(w, http.StatusOK, answer)
}

func (g *Gateway) listGemini(w http.ResponseWriter, r *http.Request) {
	c, err := g.cfg.Caller(r)
	if err != nil {
		generate.refuse(w, err)
		return
	}
	type entry struct {
		Name    string   `json:"name"`
		Display string   `json:"displayName"`
		Methods []string `json:"supportedGenerationMethods"`
	}
	list, _ := g.models(c)
	data := []entry{}
	for _, m := range list {
		if m.gemini {
			data = append(data, entry{"models/" + m.name, m.name, []string{"generateContent", "streamGenerateContent", "countTokens"}})
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{"models": data})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, "", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(body)
}
