package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"glasshouse/agents/autonomy"
	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/policy"
)

// A loopDetector detects from the steps of a run whether its agent repeats itself without
// progress.
type loopDetector struct {
	mu sync.Mutex
	// +checklocks:mu
	detector *autonomy.Detector // nil before the first step
	// +checklocks:mu
	lastStep int64 // N of the last step that it has seen
	// +checklocks:mu
	warnings []string // to add to the agent's next result
}

// actionLoop is the policy action for an agent that seems to loop.
const actionLoop = "doom_loop"

// checkForLoop passes a step that is about to end to the loop detector and acts on its
// findings: it warns the agent, requests an approval, or stops the run. An error refuses the
// step.
func (tc *toolCalls) checkForLoop(ctx context.Context, r run.Run, c Caller, s run.Step) error {
	sup := tc.supervisions.of(r.ID)
	if sup == nil {
		return nil
	}
	found, err := tc.feedDetector(ctx, &sup.loops, r, c.Level, s)
	if err != nil {
		return err
	}
	for _, f := range found {
		switch f.Rung {
		case autonomy.Warn:
			if err := tc.watcher.warn(ctx, r.ID, string(f.Sign), f.Text); err != nil {
				return err
			}
		case autonomy.AskFirst:
			q := policy.Question{Subject: c.subject(), Action: actionLoop, Resource: s.Name}
			if _, err := tc.evaluate(ctx, r, govern.Ask{Question: q}); err != nil {
				return errors.Join(err, tc.stopLooping(ctx, r, f))
			}
		case autonomy.Stop:
			return tc.stopLooping(ctx, r, f)
		}
	}
	return nil
}

// stopLooping pauses a run for a person and returns an error that refuses the step.
func (tc *toolCalls) stopLooping(ctx context.Context, r run.Run, f autonomy.Finding) error {
	if err := tc.watcher.stopRun(ctx, r, f.Text); err != nil {
		return err
	}
	return fault.Newf(fault.Denied, "gateway.Call", f.Name, "%s", f.Text)
}

// feedDetector passes a step to the detector, after all earlier steps that it has not seen.
func (tc *toolCalls) feedDetector(ctx context.Context, l *loopDetector, r run.Run, level policy.Level, s run.Step) ([]autonomy.Finding, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.detector == nil {
		l.detector, l.lastStep = autonomy.NewDetector(autonomy.DetectorConfig{Level: level}), 0
	}
	for { // includes model steps, which do not pass through checkForLoop
		list, err := tc.cfg.Runs.Steps(ctx, run.StepFilter{Run: r.ID, After: l.lastStep, Limit: 1000})
		if err != nil {
			return nil, fmt.Errorf("read the recent steps of run %s: %w", r.ID, err)
		}
		for _, earlier := range list {
			if earlier.State == run.Begun || earlier.Kind == run.Decision {
				continue // open steps follow when they end; a decision is not an action
			}
			l.lastStep = earlier.N
			if earlier.Key != s.Key {
				l.detector.Step(detectorStep(earlier))
			}
		}
		if len(list) < 1000 {
			break
		}
	}
	l.lastStep = max(l.lastStep, s.N)
	return l.detector.Step(detectorStep(s)), nil
}

// detectorStep converts a step for the detector.
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

// addNotices adds pending warnings to a result for the agent.
func (tc *toolCalls) addNotices(r id.Run, text json.RawMessage) json.RawMessage {
	sup := tc.supervisions.of(r)
	if sup == nil {
		return text
	}
	sup.loops.mu.Lock()
	warnings := sup.loops.warnings
	sup.loops.warnings = nil
	sup.loops.mu.Unlock()
	if len(warnings) == 0 {
		return text
	}
	var result map[string]json.RawMessage
	if json.Unmarshal(text, &result) != nil || result == nil {
		result = map[string]json.RawMessage{"output": text}
	}
	var err error
	result["notice"], err = json.Marshal(strings.Join(warnings, "\n"))
	if err != nil {
		return text
	}
	merged, err := json.Marshal(result)
	if err != nil {
		return text
	}
	return merged
}
