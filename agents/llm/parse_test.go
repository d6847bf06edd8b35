package llm

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"glasshouse/capability/budget"
	"glasshouse/fault"
	"glasshouse/policy/chain"
)

func readAll(t testing.TB, r io.Reader, longest int) (list []sse, err error) {
	in := newEvents(bufio.NewReaderSize(r, 16), longest)
	for {
		ev, err := in.next()
		if len(ev.raw) > 0 {
			list = append(list, sse{bytes.Clone(ev.raw), ev.name, bytes.Clone(ev.data)})
		}
		if err != nil {
			return list, err
		}
	}
}

func TestReadEvents(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string // name=data
	}{
		{"data: a\n\n", []string{"=a"}},
		{"data:a\n\ndata:  b\n\n", []string{"=a", "= b"}},
		{"event: x\r\ndata: a\r\n\r\n", []string{"x=a"}},
		{"data: a\ndata: b\ndata\n\n", []string{"=a\nb\n"}},
		{": comment\n\n", []string{"="}},
		{"id: 1\nretry: 5\nevent:e\ndata: {\"a\": \"b: c\"}\n\ntail", []string{`e={"a": "b: c"}`, "="}},
		{"data: no end", []string{"=no end"}},
		{"\n\n", []string{"=", "="}},
	} {
		got, err := readAll(t, iotest.OneByteReader(strings.NewReader(c.text)), 1<<10)
		if err != io.EOF {
			t.Fatalf("%q: %v", c.text, err)
		}
		var names []string
		var raw []byte
		for _, ev := range got {
			names = append(names, ev.name+"="+string(ev.data))
			raw = append(raw, ev.raw...)
		}
		if !slices.Equal(names, c.want) || string(raw) != c.text {
			t.Errorf("%q reads as %q, want %q; raw %q", c.text, names, c.want, raw)
		}
	}
	if _, err := readAll(t, strings.NewReader("data: "+strings.Repeat("x", 100)), 50); !errors.Is(err, errEvent) {
		t.Errorf("a long event: %v, want %v", err, errEvent)
	}
}

func FuzzEvents(f *testing.F) {
	for _, s := range []string{"data: a\n\n", "event: x\r\ndata: {}\r\n\r\n", "\n", ":\n\n\n", "data: a\ndata: b\n\n", "data"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := readAll(t, bytes.NewReader(text), 64)
		var raw []byte
		for _, ev := range got {
			raw = append(raw, ev.raw...)
			if len(ev.raw) > 64 {
				t.Fatalf("event has %d bytes", len(ev.raw))
			}
		}
		switch {
		case err == io.EOF && !bytes.Equal(raw, text):
			t.Fatalf("%q was read as %q", text, raw)
		case err != io.EOF && !errors.Is(err, errEvent):
			t.Fatal(err)
		case !bytes.HasPrefix(text, raw):
			t.Fatalf("%q was read as %q", text, raw)
		}
	})
}

var formats = []*format{chat, responses, embeddings, messages, counting, generate, generateStream, countGemini}

// FuzzTally checks for arbitrary responses that the usage is valid and that its cost can be
// computed.
func FuzzTally(f *testing.F) {
	for _, s := range []string{
		`{"choices":[{"delta":{"content":"x","tool_calls":[{"function":{"arguments":"{"}}]},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":9}}}`,
		`{"type":"response.completed","response":{"usage":{"input_tokens":-5,"output_tokens":9223372036854775807}}}`,
		`{"type":"message_start","message":{"usage":{"input_tokens":1,"cache_read_input_tokens":2}}}`,
		`{"type":"message_delta","usage":{"output_tokens":3}}`,
		`[{"candidates":[{"content":{"parts":[{"text":"a"}]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":3,"thoughtsTokenCount":1e9}}]`,
		`{"usage":null,"error":null}`, `[DONE]`, `{"choices":{}}`, `{"usage":{"prompt_tokens":"7"}}`,
	} {
		f.Add([]byte(s), []byte(s))
	}
	dear := Price{Model: "m", Input: maxPrice, Output: maxPrice, CacheRead: maxPrice, CacheWrite: maxPrice}
	f.Fuzz(func(t *testing.T, one, two []byte) {
		for _, fm := range formats {
			ta := tally{ask: ask{input: 10}}
			for _, data := range [][]byte{one, two, one} {
				fm.event(&ta, sse{raw: data, data: data})
				fm.complete(&ta, data)
				u := ta.usage()
				for _, n := range []int64{u.Input, u.Output, u.CacheRead, u.CacheWrite, u.Reasoning} {
					if n < 0 || n > 4*maxTokens {
						t.Fatalf("%s: usage is %+v for %q, %q", fm.name, u, one, two)
					}
				}
				if ta.full == u.Estimated {
					t.Fatalf("%s: full is %v, estimated is %v", fm.name, ta.full, u.Estimated)
				}
				if dear.Cost(u) < 0 {
					t.Fatalf("%+v costs %d", u, dear.Cost(u))
				}
			}
			broken := fm.broken(&ta, problem{status: 500, message: "x"})
			for _, ev := range mustRead(t, broken) {
				if string(ev.data) != "[DONE]" && !json.Valid(ev.data) {
					t.Fatalf("%s ends with %q", fm.name, broken)
				}
			}
		}
	})
}

func mustRead(t testing.TB, text []byte) []sse {
	list, err := readAll(t, bytes.NewReader(text), maxEvent)
	if err != io.EOF || len(list) == 0 {
		t.Fatalf("%q reads as %v, %v", text, list, err)
	}
	return list
}

// FuzzRequest checks that an accepted request can be forwarded with one field changed and
// everything else unchanged.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","stream":true}`, `{"stream_options":{"x":1},"model":"m"}`, ` { "model" : "m" , "a":[{"model":"no"}] } `,
		`{"model":"m","model":"n"}`, `{"MODEL":"m"}`, `{"model":"m","max_tokens":1e9,"n":3}`, `{"model":"m","stream_options":null}`,
		`{"model":"\ud800"}`, `{"\u006dodel":"m"}`, `{}`, `{"model":"m"}x`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, fm := range formats {
			a, err := fm.read(body, "")
			if err != nil {
				continue
			}
			if a.limit < none || a.input < 0 || a.model == "" {
				t.Fatalf("%s reads %q as %+v", fm.name, body, a)
			}
			changed, err := withModel(body, "other/model")
			if err != nil {
				t.Fatalf("%q was accepted but cannot be changed: %v", body, err)
			}
			if fm == chat {
				if with, err := withUsage(changed); err == nil {
					changed = with
				}
			}
			var was, is map[string]any
			if json.Unmarshal(body, &was) != nil || json.Unmarshal(changed, &is) != nil {
				t.Fatalf("%q became %q", body, changed)
			}
			if is["model"] != "other/model" {
				t.Fatalf("%q became %q", body, changed)
			}
			delete(was, "model")
			delete(is, "model")
			delete(was, "stream_options")
			delete(is, "stream_options")
			x, _ := json.Marshal(was)
			y, _ := json.Marshal(is)
			if !bytes.Equal(x, y) {
				t.Fatalf("%q became %q", body, changed)
			}
		}
	})
}

// FuzzCutter checks for arbitrary streams that a budget is exceeded by at most the last event, and
// that nothing remains reserved.
func FuzzCutter(f *testing.F) {
	f.Add(int64(1000), int64(300), []byte{10, 200, 255, 255})
	f.Add(int64(1), int64(0), []byte{0, 1})
	f.Add(int64(0), int64(5), []byte{})
	f.Fuzz(func(t *testing.T, limit, first int64, parts []byte) {
		limit, first = limit&0xFFFFF, first&0xFFFF
		b, err := budget.New("b", nil, budget.State{Limits: budget.Amounts{budget.Tokens: limit, budget.Cost: limit * 2}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		a := account{budget: b, price: Price{Model: "m", Input: 3_000_000, Output: 1_500_000}}
		if a.open(1, first) != nil {
			if len(b.State().Held) > 0 {
				t.Fatal("a refused call holds a reservation")
			}
			return
		}
		u := Usage{Input: 1}
		last := int64(0)
		for _, p := range parts {
			last = int64(p) * 16
			u.Output += last
			if err := a.covers(u); err != nil {
				if !overdrawn(err) {
					t.Fatalf("covers fails without other reservations: %v", err)
				}
				break
			}
			if s := b.State(); s.Held[budget.Tokens] < u.Total() || s.Held[budget.Cost] < a.price.Cost(u) {
				t.Fatalf("%+v used, but %v reserved", u, s.Held)
			}
		}
		a.settle(u)
		s := b.State()
		if len(s.Held) > 0 || s.Consumed[budget.Tokens] != u.Total() {
			t.Fatalf("settled as %+v, want %d tokens and nothing reserved", s, u.Total())
		}
		if over := s.Consumed[budget.Tokens] - limit; over > last {
			t.Fatalf("%d tokens beyond the limit; the last event had %d", over, last)
		}
	})
}

func TestModelsAreMatchedByNameAndPattern(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"a", "a", true}, {"a", "ab", false}, {"*", "", true}, {"*", "a/b", true}, {"a*", "a", true}, {"a*c", "abc", true}, {"a*c", "ac", true},
		{"a*c", "acb", false}, {"*b*", "abc", true}, {"a*b*c", "a.b.b.c", true}, {"a*a", "a", false}, {"a*bc*c", "abc", false}, {"[a]", "a", false}, {"**", "x", true},
	} {
		if got := matches(c.pattern, c.name); got != c.want {
			t.Errorf("%q matches %q: %v, want %v", c.pattern, c.name, got, c.want)
		}
	}
}

func TestProviderThatIsNotReadyHasNoModels(t *testing.T) {
	ready := false
	g, err := New(Config{
		Caller: func(*http.Request) (Caller, error) { return Caller{}, nil },
		Providers: []Provider{
			{Name: "vendor", API: Anthropic, BaseURL: "https://vendor.example", Models: []string{"claude-*", "exact"}, Ready: func() bool { return ready }},
			{Name: "all", API: Anthropic, BaseURL: "https://all.example", Models: []string{"*"}},
		},
		Aliases: []Alias{{Name: "small", Provider: "vendor", Model: "exact"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"all", "vendor"} {
		for _, model := range []string{"claude-x", "exact", "small"} {
			if got, err := g.resolve(Caller{}, Anthropic, model); err != nil || got.provider.Name != want {
				t.Errorf("ready %t: %s is served by %+v, %v, want %s", ready, model, got, err, want)
			}
		}
		ready = true
	}

	ready = false
	g.providers = g.providers[:1]
	_, err = g.resolve(Caller{}, Anthropic, "claude-x")
	if !errors.Is(err, fault.NotFound) || !strings.Contains(fault.RemedyOf(err), "--models anthropic") {
		t.Errorf("without any provider, resolve = %v, want not found and how to configure one", err)
	}
}

func TestImageEstimate(t *testing.T) {
	text := estimateRequest([]byte(`{"content":"` + strings.Repeat("a word of text ", 1000) + `"}`))
	picture := estimateRequest([]byte(`{"content":"` + strings.Repeat("iVBORw0KGgo", 100_000) + `"}`))
	if text < 3500 || text > 4000 || picture < image || picture > image+100 {
		t.Errorf("text is %d tokens, image is %d", text, picture)
	}
	if got := estimate("中文字符"); got != 4 {
		t.Errorf("four characters are %d tokens", got)
	}
}

func TestDefaultPrices(t *testing.T) {
	g := &Gateway{prices: DefaultPrices()}
	for _, p := range g.prices {
		if err := p.check("x"); err != nil || p.Source == "" {
			t.Errorf("%+v: %v", p, err)
		}
	}
	million := Usage{Input: 1_000_000, Output: 1_000_000}
	for name, want := range map[string]int64{
		"claude-sonnet-4-5-20250929": 18_000_000, "gpt-5": 11_250_000, "gpt-5-mini": 2_250_000, "gpt-5-2025-08-07": 11_250_000, "gpt-4.1-mini": 2_000_000,
	} {
		if p, ok := g.price(name); !ok || p.Cost(million) != want {
			t.Errorf("a million tokens in and out of %s cost %d (%v), want %d", name, p.Cost(million), ok, want)
		}
	}
	if p, ok := g.price("gpt-5-pro"); ok {
		t.Errorf("gpt-5-pro has the price of %s", p.Model)
	}
	if got := (Price{Input: 1}).Cost(Usage{Input: 1}); got != 1 {
		t.Errorf("the smallest cost is %d, want it rounded up to 1", got)
	}
	most := Usage{Input: maxTokens, Output: maxTokens, CacheRead: maxTokens, CacheWrite: maxTokens}
	if got := (Price{Input: maxPrice, Output: maxPrice, CacheRead: maxPrice, CacheWrite: maxPrice}).Cost(most); got <= 0 || got > math.MaxInt64/2 {
		t.Errorf("the largest cost is %d", got)
	}
}

func TestEntryIsWithinSizeLimit(t *testing.T) {
	nasty := bytes.Repeat([]byte{0, 0xff, '"', 0xe4}, 100_000)
	e := Call{ID: "l-1", Request: nasty, Answer: nasty, Problem: strings.Repeat("p", 300), Caller: Caller{Run: "r-1", Parent: 7}}.Entry()
	if len(e.Body) > chain.MaxBody || !json.Valid(e.Body) || e.Parent != 7 || e.Run != "r-1" || e.Kind != chain.LLMCalled {
		t.Errorf("the entry has %d bytes", len(e.Body))
	}
	if _, err := chain.Canonical(e.Body); err != nil {
		t.Error(err)
	}
	if strings.Contains(string(Call{}.Entry().Body), `"request":`) {
		t.Error("bodies are recorded although they are disabled")
	}
}

func TestTotalsAreBounded(t *testing.T) {
	var g Gateway
	const n = maxTotals + 5000
	for i := range n {
		g.meters.add(Call{Model: "m", Cost: 2, Usage: Usage{Input: 1}, Priced: true, Caller: Caller{Session: "s", Run: string(rune(i))}})
	}
	all := g.Usage()
	if len(all) > maxTotals+1 {
		t.Errorf("%d totals are stored", len(all))
	}
	sum := Sum(all, func(k Key) Key { return Key{Model: k.Model} })
	if len(sum) != 1 || sum[0].Calls != n || sum[0].Cost != 2*n || sum[0].Usage.Input != n {
		t.Errorf("the sum is %+v, want %d calls", sum, n)
	}
	if runs := Sum(all, func(k Key) Key { return Key{Run: k.Run} }); len(runs) < 5000 {
		t.Errorf("%d runs have their own totals", len(runs))
	}
}

func TestRecordedBodyIsTruncatedBetweenCharacters(t *testing.T) {
	for n := range 4 {
		body := strings.Repeat("x", n) + strings.Repeat("€", 1000)
		if got := clip([]byte(body), 300); !strings.HasPrefix(body, got) || !utf8.ValidString(got) || len(got) < 100 || len(got) > 300 {
			t.Errorf("%d bytes are recorded, ending in %q", len(got), got[max(0, len(got)-6):])
		}
	}
}
