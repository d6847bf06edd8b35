package registry

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/problem"
	"glasshouse/capability/skill"
	"glasshouse/fault"
)

// A Skill is the stored record of a skill, a document that is offered to agents.
type Skill struct {
	Name    string    `json:"name"`
	File    string    `json:"file"`
	Text    string    `json:"text"`
	Bundle  string    `json:"bundle,omitempty"` // name@version of the bundle it came with
	By      string    `json:"by,omitempty"`
	Created time.Time `json:"created"`
}

// AddSkill adds a skill or replaces the one with the same name. It refuses a skill that names
// a capability that is not approved.
func (r *Registry) AddSkill(ctx context.Context, file string, text []byte, by, from string) (s *skill.Skill, k *skill.Checked, err error) {
	err = r.change(ctx, func() error {
		rec := Skill{File: file, Text: string(text), By: by, Bundle: from}
		s, k, err = r.admitSkill(&rec, r.lookup)
		if err != nil {
			return err
		}
		if err := r.write(ctx, Change{Skill: &rec}); err != nil {
			return err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.skills[s.Name] = rec
		return nil
	})
	return s, k, err
}

// admitSkill parses a skill and completes its record.
func (r *Registry) admitSkill(rec *Skill, lookup func(cid string) (*manifest.Capability, bool)) (*skill.Skill, *skill.Checked, error) {
	s, err := skill.Read(rec.File, []byte(rec.Text))
	if err != nil {
		return nil, nil, err
	}
	k, err := s.Check(lookup)
	if err != nil {
		return nil, nil, err
	}
	if was, ok := r.skill(s.Name); ok && was.Bundle != "" && bundleName(was.Bundle) != bundleName(rec.Bundle) {
		return nil, nil, fault.Newf(fault.Conflict, "registry.AddSkill", s.Name, "the bundle %s has a skill with the same name", was.Bundle)
	}
	rec.Name, rec.Created = s.Name, time.Now().UTC()
	return s, k, nil
}

// lookup returns a callable capability for the check of a skill.
func (r *Registry) lookup(cid string) (*manifest.Capability, bool) {
	v, err := r.findNow(cid)
	if err != nil {
		return nil, false
	}
	return v.installed.Capability, v.State == Approved
}

func (r *Registry) skill(name string) (Skill, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	s, ok := r.skills[name]
	return s, ok
}

// Skills lists the skills by name.
func (r *Registry) Skills() []Skill {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var all []Skill
	for _, name := range slices.Sorted(maps.Keys(r.skills)) {
		all = append(all, r.skills[name])
	}
	return all
}

// Skill returns a skill and the result of checking it now: its capabilities may have changed
// since it was added, and the skill is refused if one of them is no longer callable.
func (r *Registry) Skill(name string) (Skill, *skill.Skill, *skill.Checked, error) {
	rec, ok := r.skill(name)
	if !ok {
		return rec, nil, nil, fault.Newf(fault.NotFound, "registry.Skill", name, "no such skill%s", problem.Meant(name, r.skillNames()...))
	}
	s, err := skill.Read(rec.File, []byte(rec.Text))
	if err != nil {
		return rec, nil, nil, fmt.Errorf("read skill %s: %w", name, err)
	}
	if rec.Bundle != "" {
		if why := r.NotCallableReason(bundleName(rec.Bundle)); why != nil {
			return rec, s, nil, fmt.Errorf("it came with the bundle %s: %w", rec.Bundle, why)
		}
	}
	k, err := s.Check(r.lookup)
	return rec, s, k, err
}

func (r *Registry) skillNames() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Collect(maps.Keys(r.skills))
}

// RemoveSkill removes a skill. Its capabilities stay registered.
func (r *Registry) RemoveSkill(ctx context.Context, name string) error {
	return r.change(ctx, func() error {
		if _, ok := r.skill(name); !ok {
			return fault.Newf(fault.NotFound, "registry.RemoveSkill", name, "no such skill%s", problem.Meant(name, r.skillNames()...))
		}
		if err := r.write(ctx, Change{GoneSkill: name}); err != nil {
			return err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.skills, name)
		return nil
	})
}
