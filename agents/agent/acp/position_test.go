package acp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	sdk "github.com/coder/acp-go-sdk"

	"glasshouse/agents/agent/acp"
)

// An agentPipe stores the output of an agent and the size of its input across connections, as
// the init of a jail does.
type agentPipe struct {
	mu    sync.Mutex
	grown sync.Cond
	// +checklocks:mu
	out []byte // complete output of the agent
	// +checklocks:mu
	ended bool
	// +checklocks:mu
	given int64
	in    io.Writer
}

func (j *agentPipe) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.out = append(j.out, p...)
	j.grown.Broadcast()
	return len(p), nil
}

var errKilled = errors.New("the daemon was killed")

// A killableConn is the connection of one process to an agentPipe. It fails after a number of
// steps, as if the process was killed.
type killableConn struct {
	*agentPipe
	at     int64
	steps  int // remaining steps, guarded by agentPipe.mu
	over   bool
	killed chan struct{}
	host   *storingHost
	rnd    *rand.Rand
}

// step counts one step and reports whether the process is alive. The caller holds mu.
func (v *killableConn) step() bool {
	v.steps--
	if v.steps <= 0 && !v.over {
		v.over = true
		close(v.killed)
		v.grown.Broadcast()
	}
	return !v.over
}

func (v *killableConn) Next() (int64, []byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for int64(len(v.out)) == v.at && !v.over && !v.ended {
		v.grown.Wait()
	}
	if v.over || !v.step() {
		return 0, nil, errKilled
	}
	if int64(len(v.out)) == v.at {
		return 0, nil, io.EOF
	}
	at := v.at
	v.at += int64(1 + v.rnd.IntN(min(len(v.out)-int(at), 200)))
	return at, bytes.Clone(v.out[at:v.at]), nil
}

func (v *killableConn) Write(at int64, line []byte) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.over || !v.step() {
		return errKilled
	}
	done := v.given - at
	if done < 0 || done > int64(len(line)) {
		return fmt.Errorf("the input has %d bytes, want at least %d", v.given, at)
	}
	part := line[done:]
	alive := v.step()
	if !alive && len(part) > 0 {
		part = part[:v.rnd.IntN(len(part)+1)] // killed in the middle of the line
	}
	v.given += int64(len(part))
	v.mu.Unlock()
	v.in.Write(part)
	v.mu.Lock()
	if !alive {
		return errKilled
	}
	return nil
}

func (v *killableConn) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.over = true
	v.grown.Broadcast()
	return nil
}

// A storingHost is a PositionStore that stores decisions and updates by their offset.
type storingHost struct {
	mu sync.Mutex
	v  *killableConn
	// +checklocks:mu
	last *acp.Position
	// +checklocks:mu
	recorded map[int64]string // updates by offset and event
	// +checklocks:mu
	decided map[int64]bool
	// +checklocks:mu
	asked int // decisions by a person
}

func (b *storingHost) step() error {
	b.v.mu.Lock()
	defer b.v.mu.Unlock()
	if b.v.over || !b.v.step() {
		return errKilled
	}
	return nil
}

func (b *storingHost) SavePosition(_ context.Context, p acp.Position) error {
	if err := b.step(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	b.last = &acp.Position{}
	return json.Unmarshal(text, b.last)
}

func (b *storingHost) Decide(_ context.Context, c acp.ToolCall) (acp.Verdict, error) {
	if err := b.step(); err != nil {
		return acp.Verdict{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.decided[c.AskedAt]; !known {
		b.asked++
		b.decided[c.AskedAt] = !strings.Contains(c.Command, "rm")
	}
	return acp.Verdict{Allow: b.decided[c.AskedAt], Reason: "no"}, nil
}

func (b *storingHost) Update(_ context.Context, u acp.Update) error {
	if err := b.step(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	what := fmt.Sprintf("%s %s %s %+v", u.Event, u.Text, u.Call.ID, u.Outcome)
	key := u.At*8 + int64(slices.Index([]acp.Event{acp.Message, acp.Thought, acp.Announced, acp.Refused, acp.Ended, acp.PlanChanged, acp.UsageReported}, u.Event))
	if was, known := b.recorded[key]; known && was != what {
		return fmt.Errorf("update at %d changed from %q to %q", u.At, was, what)
	}
	b.recorded[key] = what
	return nil
}

func (b *storingHost) Next(_ context.Context, t acp.Turn) (string, error) {
	if err := b.step(); err != nil {
		return "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(t.Refused) != 1 || t.Stop != "end_turn" || !strings.HasSuffix(t.Text, "done") {
		return "", fmt.Errorf("unexpected turn %+v", t)
	}
	if strings.Contains(t.Text, "third") {
		return "", nil
	}
	if strings.Contains(t.Text, "second") {
		return "third", nil
	}
	return "second", nil
}

// Each prompt is sent once, and each update and request is recorded once, even if the driving
// processes are killed at random points.
func TestConversationSurvivesKillsAtAnyPoint(t *testing.T) {
	want, wantAsked := converse(t, 0)
	for seed := range uint64(60) {
		got, asked := converse(t, seed+1)
		if asked != wantAsked {
			t.Errorf("seed %d: %d decisions, want %d", seed+1, asked, wantAsked)
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Fatalf("seed %d: recorded\n%s\nwant\n%s", seed+1, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// converse runs an agent through three prompts. seed determines when the driving processes
// are killed; 0 is never. It returns the recorded updates and the number of decisions.
func converse(t *testing.T, seed uint64) (recorded []string, asked int) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 7))
	var prompts []string
	a := &agentSide{
		hello: sdk.InitializeResponse{ProtocolVersion: 1}, cancelled: make(chan struct{}),
		prompt: func(ctx context.Context, a *agentSide, text string) (sdk.StopReason, error) {
			prompts = append(prompts, text)
			a.say(ctx, "s1", "I will ")
			a.say(ctx, "s1", text+" ")
			var wg sync.WaitGroup
			for _, command := range []string{"ls", "rm"} {
				wg.Go(func() {
					id := text + "-" + command
					a.conn.SessionUpdate(ctx, sdk.SessionNotification{SessionId: "s1", Update: sdk.StartToolCall(sdk.ToolCallId(id), "bash", sdk.WithStartStatus(sdk.ToolCallStatusInProgress))})
					out, err := a.ask(ctx, id, command, usual...)
					status := sdk.ToolCallStatusFailed
					if err == nil && out.Selected != nil && out.Selected.OptionId == "once" {
						status = sdk.ToolCallStatusCompleted
					}
					a.conn.SessionUpdate(ctx, sdk.SessionNotification{SessionId: "s1", Update: sdk.UpdateToolCall(sdk.ToolCallId(id), sdk.WithUpdateStatus(status))})
				})
				wg.Wait()
			}
			a.say(ctx, "s1", "done")
			return sdk.StopReasonEndTurn, nil
		},
	}
	fromHost, toAgent := io.Pipe()
	j := &agentPipe{in: toAgent}
	j.grown.L = &j.mu
	a.conn = sdk.NewAgentSideConnection(a, j, fromHost)
	a.conn.SetLogger(slog.New(slog.DiscardHandler))
	b := &storingHost{recorded: map[int64]string{}, decided: map[int64]bool{}}
	for round := 0; ; round++ {
		steps := 1 << 30
		if seed > 0 && round < 12 {
			steps = 1 + rnd.IntN(30)
		}
		v := &killableConn{agentPipe: j, steps: steps, killed: make(chan struct{}), rnd: rnd, host: b}
		if b.last != nil {
			v.at = b.last.At
		}
		b.v = v
		_, err := acp.Drive(t.Context(), v, b, acp.Options{Cwd: "/", Prompt: "first", From: b.last})
		if err == nil {
			break
		}
		select {
		case <-v.killed:
		default:
			t.Fatalf("seed %d, round %d: %v", seed, round, err)
		}
	}
	toAgent.Close()
	<-a.conn.Done()
	if want := []string{"first", "second", "third"}; !slices.Equal(prompts, want) {
		t.Fatalf("seed %d: prompts %q, want first, second, third", seed, prompts)
	}
	for _, at := range slices.Sorted(maps.Keys(b.recorded)) {
		recorded = append(recorded, b.recorded[at])
	}
	return recorded, b.asked
}

// FuzzFramer checks that no output is lost and that each line has the right offsets.
func FuzzFramer(f *testing.F) {
	f.Add([]byte("a\nbc\n\n{}"), uint64(3))
	f.Add([]byte("\n\n\n"), uint64(1))
	f.Fuzz(func(t *testing.T, data []byte, seed uint64) {
		j := &agentPipe{out: data, ended: true}
		j.grown.L = &j.mu
		v := &killableConn{agentPipe: j, steps: 1 << 30, killed: make(chan struct{}), rnd: rand.New(rand.NewPCG(seed, 1))}
		var got []byte
		for l := range acp.Lines(v) {
			at, next, text := l.At, l.Next, l.Text
			if len(text) > 0 && (int64(len(got)) != at || next != at+int64(len(text))) {
				t.Fatalf("%q has the offsets %d to %d, after %d bytes", text, at, next, len(got))
			}
			if i := bytes.IndexByte(text, '\n'); i >= 0 && i != len(text)-1 {
				t.Fatalf("%q contains several lines", text)
			}
			got = append(got, text...)
		}
		if !bytes.Equal(got, data) {
			t.Fatalf("read %q, want %q", got, data)
		}
	})
}
