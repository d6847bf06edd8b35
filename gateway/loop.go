package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"sync"

	"glasshouse/autonomy"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/run"
)

// A loopDetector sees whether an agent goes around in circles, from what its run has done.
type loopDetector struct {
	mu sync.Mutex
	// +checklocks:mu
	detector *autonomy.Detector // nil: it has not looked yet
	// +checklocks:mu
	lastStep int64 // N of the last step that it was shown
	// +checklocks:mu
	warnings []string // warnings for the agent's next result
}

// actionLoop is what the rules are asked about an agent that seems lost.
const actionLoop = "doom_loop"

// checkForLoop shows a lookout a step that is about to end, and does what comes of it: the
// agent is warned, a person is asked, or the run is stopped. An error refuses the step.
func (g *Gateway) checkForLoop(ctx context.Context, r run.Run, c Caller, s run.Step) error {
	a := g.supervisionOf(r.ID)
	if a == nil {
		return nil
	}
	found, err := g.feedDetector(ctx, &a.loops, r, c.Level, s)
	if err != nil {
		return err
	}
	for _, f := range found {
		switch f.Rung {
		case autonomy.Warn:
			if err := g.warn(ctx, r.ID, string(f.Sign), f.Text); err != nil {
				return err
			}
		case autonomy.AskFirst:
			q := policy.Question{Subject: c.subject(), Action: actionLoop, Resource: s.Name}
			if _, err := g.evaluate(ctx, r, govern.Ask{Question: q}); err != nil {
				return errors.Join(err, g.stopLooping(ctx, r, f))
			}
		case autonomy.Stop:
			return g.stopLooping(ctx, r, f)
		}
	}
	return nil
}

// stopLooping has a run wait for a person, and refuses the step that led to it.
func (g *Gateway) stopLooping(ctx context.Context, r run.Run, f autonomy.Finding) error {
	if err := g.stopRun(ctx, r, f.Text); err != nil {
		return err
	}
	return fault.Newf(fault.Denied, "gateway.Call", f.Name, "%s", f.Text)
}

// feedDetector shows a step to a lookout, which first looks at all that was before.
func (g *Gateway) feedDetector(ctx context.Context, l *loopDetector, r run.Run, level policy.Level, s run.Step) ([]autonomy.Finding, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.detector == nil {
		l.detector, l.lastStep = autonomy.NewDetector(autonomy.DetectorConfig{Level: level}), 0
	}
	for { // also the answers of models since, which nobody has shown it
		list, err := g.cfg.Runs.Steps(ctx, run.StepFilter{Run: r.ID, After: l.lastStep, Limit: 1000})
		if err != nil {
			return nil, err
		}
		for _, was := range list {
			if was.State == run.Begun || was.Kind == run.Decision {
				continue // what is begun is shown when it ends; to ask is not to do
			}
			if l.lastStep = was.N; was.Key != s.Key {
				l.detector.Step(detectorStep(was))
			}
		}
		if len(list) < 1000 {
			break
		}
	}
	l.lastStep = max(l.lastStep, s.N)
	return l.detector.Step(detectorStep(s)), nil
}

// detectorStep is a step as a lookout sees it.
func detectorStep(s run.Step) autonomy.Step {
	if s.Kind == run.Model {
		return autonomy.Step{At: s.Ended, Kind: autonomy.ModelStep}
	}
	if s.Kind == run.Messaging {
		return autonomy.Step{At: s.Ended, Kind: autonomy.MessageStep}
	}
	out := autonomy.Step{
		At: s.Ended, Kind: autonomy.ToolStep, Name: s.Name, Input: s.Digest, Output: digest(s.Output), Wait: autonomy.WaitsOnly(s.Name, s.Input),
	}
	if s.State == run.StepFailed || s.State == run.StepRefused {
		var p Problem
		if json.Unmarshal(s.Output, &p) != nil || p.Kind == "" {
			p.Kind = "failed"
		}
		out.Error = p.Kind
	}
	return out
}

func digest(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// addNotices adds to a result what its agent is to be told.
func (g *Gateway) addNotices(r id.Run, text json.RawMessage) json.RawMessage {
	a := g.supervisionOf(r)
	if a == nil {
		return text
	}
	a.loops.mu.Lock()
	said := a.loops.warnings
	a.loops.warnings = nil
	a.loops.mu.Unlock()
	if len(said) == 0 {
		return text
	}
	var whole map[string]json.RawMessage
	if json.Unmarshal(text, &whole) != nil || whole == nil {
		whole = map[string]json.RawMessage{"output": text}
	}
	var err error
	if whole["notice"], err = json.Marshal(strings.Join(said, "\n")); err != nil {
		return text
	}
	with, err := json.Marshal(whole)
	if err != nil {
		return text
	}
	return with
}
