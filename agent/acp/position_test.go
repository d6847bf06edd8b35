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

	"glasshouse/agent/acp"
)

// A jar keeps what an agent writes and how much it was given, as the init of a jail does,
// whoever comes and goes.
type jar struct {
	mu    sync.Mutex
	grown sync.Cond
	// +checklocks:mu
	out []byte // all that the agent wrote
	// +checklocks:mu
	ended bool
	// +checklocks:mu
	given int64
	in    io.Writer
}

func (j *jar) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.out = append(j.out, p...)
	j.grown.Broadcast()
	return len(p), nil
}

var errKilled = errors.New("the daemon was killed")

// A visit is one process's way to the agent in a jar. It is killed after so many acts.
type visit struct {
	*jar
	at     int64
	acts   int // that are left. guarded by jar.mu
	over   bool
	killed chan struct{}
	host   *book
	rnd    *rand.Rand
}

// act counts one act; the last one is the end. The caller holds mu.
func (v *visit) act() bool {
	if v.acts--; v.acts <= 0 && !v.over {
		v.over = true
		close(v.killed)
		v.grown.Broadcast()
	}
	return !v.over
}

func (v *visit) Next() (int64, []byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for int64(len(v.out)) == v.at && !v.over && !v.ended {
		v.grown.Wait()
	}
	if v.over || !v.act() {
		return 0, nil, errKilled
	}
	if int64(len(v.out)) == v.at {
		return 0, nil, io.EOF
	}
	at := v.at
	v.at += int64(1 + v.rnd.IntN(min(len(v.out)-int(at), 200)))
	return at, bytes.Clone(v.out[at:v.at]), nil
}

func (v *visit) Give(at int64, line []byte) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.over || !v.act() {
		return errKilled
	}
	done := v.given - at
	if done < 0 || done > int64(len(line)) {
		return fmt.Errorf("it was given %d bytes, and not %d", v.given, at)
	}
	part := line[done:]
	alive := v.act()
	if !alive && len(part) > 0 {
		part = part[:v.rnd.IntN(len(part)+1)] // in the middle of the line
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

func (v *visit) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.over = true
	v.grown.Broadcast()
	return nil
}

// A book is a host that keeps what it decided and was told, by its place.
type book struct {
	mu sync.Mutex
	v  *visit
	// +checklocks:mu
	last *acp.Position
	// +checklocks:mu
	told map[int64]string // what was recorded at a place
	// +checklocks:mu
	decided map[int64]bool
	// +checklocks:mu
	asked int // people
}

func (b *book) act() error {
	b.v.mu.Lock()
	defer b.v.mu.Unlock()
	if b.v.over || !b.v.act() {
		return errKilled
	}
	return nil
}

func (b *book) Keep(_ context.Context, p acp.Position) error {
	if err := b.act(); err != nil {
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

func (b *book) Decide(_ context.Context, c acp.ToolCall) (acp.Verdict, error) {
	if err := b.act(); err != nil {
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

func (b *book) Update(_ context.Context, u acp.Update) error {
	if err := b.act(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	what := fmt.Sprintf("%s %s %s %+v", u.Event, u.Text, u.Call.ID, u.Outcome)
	key := u.At*8 + int64(slices.Index([]acp.Event{acp.Message, acp.Thought, acp.Announced, acp.Refused, acp.Ended, acp.Planned, acp.Spent}, u.Event))
	if was, known := b.told[key]; known && was != what {
		return fmt.Errorf("at %d it was %q, and is %q", u.At, was, what)
	}
	b.told[key] = what
	return nil
}

func (b *book) Next(_ context.Context, t acp.Turn) (string, error) {
	if err := b.act(); err != nil {
		return "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(t.Refused) != 1 || t.Stop != "end_turn" || !strings.HasSuffix(t.Text, "done") {
		return "", fmt.Errorf("the turn was %+v", t)
	}
	if strings.Contains(t.Text, "third") {
		return "", nil
	}
	if strings.Contains(t.Text, "second") {
		return "third", nil
	}
	return "second", nil
}

// TestAConversationGoesOnWhereverItWasCutOff: the agent is told everything once, and all
// that it tells and asks is recorded once, whenever the processes that talk with it are
// killed.
func TestAConversationGoesOnWhereverItWasCutOff(t *testing.T) {
	whole, people := converse(t, 0)
	for seed := range uint64(60) {
		got, asked := converse(t, seed+1)
		if asked != people {
			t.Errorf("seed %d: %d questions were decided, want %d", seed+1, asked, people)
		}
		if strings.Join(got, "\n") != strings.Join(whole, "\n") {
			t.Fatalf("seed %d: recorded\n%s\nwant\n%s", seed+1, strings.Join(got, "\n"), strings.Join(whole, "\n"))
		}
	}
}

// converse has an agent work through three prompts, with kills at the moments that seed
// stands for; 0 is none. It returns what was recorded.
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
	j := &jar{in: toAgent}
	j.grown.L = &j.mu
	a.conn = sdk.NewAgentSideConnection(a, j, fromHost)
	a.conn.SetLogger(slog.New(slog.DiscardHandler))
	b := &book{told: map[int64]string{}, decided: map[int64]bool{}}
	for round := 0; ; round++ {
		acts := 1 << 30
		if seed > 0 && round < 12 {
			acts = 1 + rnd.IntN(30)
		}
		v := &visit{jar: j, acts: acts, killed: make(chan struct{}), rnd: rnd, host: b}
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
		t.Fatalf("seed %d: the agent was told %q", seed, prompts)
	}
	for _, at := range slices.Sorted(maps.Keys(b.told)) {
		recorded = append(recorded, b.told[at])
	}
	return recorded, b.asked
}

// FuzzLinesOfAnyPieces: nothing is lost, and each line says where it stands.
func FuzzLinesOfAnyPieces(f *testing.F) {
	f.Add([]byte("a\nbc\n\n{}"), uint64(3))
	f.Add([]byte("\n\n\n"), uint64(1))
	f.Fuzz(func(t *testing.T, data []byte, seed uint64) {
		j := &jar{out: data, ended: true}
		j.grown.L = &j.mu
		v := &visit{jar: j, acts: 1 << 30, killed: make(chan struct{}), rnd: rand.New(rand.NewPCG(seed, 1))}
		var got []byte
		for l := range acp.Lines(v) {
			at, next, text := l.At, l.Next, l.Text
			if len(text) > 0 && (int64(len(got)) != at || next != at+int64(len(text))) {
				t.Fatalf("%q stands at %d to %d, and %d bytes were before it", text, at, next, len(got))
			}
			if i := bytes.IndexByte(text, '\n'); i >= 0 && i != len(text)-1 {
				t.Fatalf("%q are several lines", text)
			}
			got = append(got, text...)
		}
		if !bytes.Equal(got, data) {
			t.Fatalf("read %q, want %q", got, data)
		}
	})
}
