package govern

import (
	"context"
	"encoding/json"

	"glasshouse/id"
	"glasshouse/policy"
)

// GovernRun has the questions of a run that is in no jail decided by the rules of a Spec,
// until ReleaseRun. Called again, it keeps what was remembered of people's answers.
func (k *Kernel) GovernRun(ctx context.Context, rid id.Run, raw json.RawMessage, workspace string) error {
	s, err := parse(raw)
	if err != nil {
		return err
	}
	k.mu.Lock()
	w := k.runs[rid]
	if w == nil {
		w = &ward{k: k}
		k.runs[rid] = w
	}
	k.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.govern(ctx, s, workspace)
}

// ReleaseRun ends it. What the run asked nobody needs to know any more.
func (k *Kernel) ReleaseRun(rid id.Run) {
	k.mu.Lock()
	_, governed := k.runs[rid]
	delete(k.runs, rid)
	k.mu.Unlock()
	if governed {
		k.withdrawOf(string(rid), "the run has ended", func(s policy.Subject) bool { return s.Jail == "" && s.Run == string(rid) })
	}
}

// over is whose rules count for a subject: its jail's or, where it is in none, its run's.
func (k *Kernel) over(s policy.Subject) *ward {
	if s.Jail != "" {
		return k.find(s.Jail)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.runs[id.Run(s.Run)]
}
