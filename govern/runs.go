package govern

import (
	"context"
	"encoding/json"

	"glasshouse/id"
	"glasshouse/policy"
)

// GovernRun sets the Spec of a run outside of jails, until ReleaseRun. A repeated call keeps
// the rules set by Recall.
func (k *Engine) GovernRun(ctx context.Context, rid id.Run, raw json.RawMessage, workspace string) error {
	s, err := parse(raw)
	if err != nil {
		return err
	}
	k.mu.Lock()
	jp := k.runs[rid]
	if jp == nil {
		jp = &jailPolicy{k: k}
		k.runs[rid] = jp
	}
	k.mu.Unlock()
	jp.mu.Lock()
	defer jp.mu.Unlock()
	return jp.setSpec(ctx, s, workspace)
}

// ReleaseRun removes the Spec of a run and withdraws its pending approval requests.
func (k *Engine) ReleaseRun(rid id.Run) {
	k.mu.Lock()
	_, governed := k.runs[rid]
	delete(k.runs, rid)
	k.mu.Unlock()
	if governed {
		k.withdrawOf(string(rid), "the run has ended", func(s policy.Subject) bool { return s.Jail == "" && s.Run == string(rid) })
	}
}

// policyFor returns the jailPolicy of a subject's jail, or of its run if it is in no jail. It
// returns nil if the subject has none.
func (k *Engine) policyFor(s policy.Subject) *jailPolicy {
	if s.Jail != "" {
		return k.find(s.Jail)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.runs[id.Run(s.Run)]
}
