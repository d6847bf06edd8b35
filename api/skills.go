package api

import (
	"context"

	"glasshouse/api/wire"
	"glasshouse/capability/registry"
	"glasshouse/capability/skill"
	"glasshouse/policy/access"
)

// Skills is the registry of skills as the API uses it.
type Skills interface {
	AddSkill(ctx context.Context, file string, text []byte, by, bundle string) (*skill.Skill, *skill.Checked, error)
	Skills() []registry.Skill
	Skill(name string) (registry.Skill, *skill.Skill, *skill.Checked, error)
	RemoveSkill(ctx context.Context, name string) error
}

// skillHandler serves the routes of skills.
type skillHandler struct{ skills Skills }

func (h *skillHandler) addSkill(ctx context.Context, _ none, b wire.AddSkill) (wire.Skill, error) {
	if b.File == "" {
		b.File = "SKILL.md"
	}
	k, _, err := h.skills.AddSkill(ctx, b.File, []byte(b.Text), access.CallerOf(ctx).Name, "")
	if err != nil {
		return wire.Skill{}, err
	}
	return skillOf(h.skills.Skill(k.Name))
}

func (h *skillHandler) listSkills(context.Context, none, none) (wire.Page[wire.Skill], error) {
	page := wire.Page[wire.Skill]{Items: []wire.Skill{}}
	for _, rec := range h.skills.Skills() {
		w, err := skillOf(h.skills.Skill(rec.Name))
		if err != nil {
			return page, err
		}
		w.Text, w.Tools = "", nil
		page.Items = append(page.Items, w)
	}
	return page, nil
}

type oneSkill struct {
	Name string `path:"name"`
}

func (h *skillHandler) getSkill(_ context.Context, p oneSkill, _ none) (wire.Skill, error) {
	return skillOf(h.skills.Skill(p.Name))
}

func (h *skillHandler) deleteSkill(ctx context.Context, p oneSkill, _ none) (none, error) {
	return none{}, h.skills.RemoveSkill(ctx, p.Name)
}

// skillOf converts a skill. A refused skill has the reason, and not the content that agents
// would receive.
func skillOf(rec registry.Skill, k *skill.Skill, c *skill.Checked, err error) (wire.Skill, error) {
	if k == nil {
		return wire.Skill{}, err
	}
	w := wire.Skill{
		Name: k.Name, Description: k.Description, Version: k.Version, Capabilities: append([]string{}, k.Capabilities...),
		Emoji: k.Display.Emoji, Category: k.Display.Category, Bundle: rec.Bundle, Created: rec.Created.UTC(),
	}
	if err != nil {
		w.Refused = err.Error()
		return w, nil
	}
	w.Tier, w.Effects, w.Secrets, w.PerUse = string(c.Tier), c.Effects, c.Secrets, c.PerUse
	r, err := skill.Render(k, c.Capabilities)
	if err != nil {
		return w, err
	}
	w.Text = r.Text
	for _, t := range r.Tools {
		w.Tools = append(w.Tools, wire.SkillTool{Name: t.Name, Capability: t.Capability, Description: t.Description, Input: t.Input})
	}
	return w, nil
}
