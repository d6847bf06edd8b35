package llm

import (
	"glasshouse/fault"
)

// Usage is the number of tokens of a call. Input does not include tokens read from or written
// to the provider's cache.
type Usage struct {
	Input      int64 `json:"input_tokens"`
	Output     int64 `json:"output_tokens"`
	CacheRead  int64 `json:"cache_read_tokens,omitempty"`
	CacheWrite int64 `json:"cache_write_tokens,omitempty"`
	Reasoning  int64 `json:"reasoning_tokens,omitempty"` // part of Output
	Estimated  bool  `json:"estimated,omitempty"`        // partly estimated, because the provider's report is incomplete
}

// Total returns the tokens that count against budget.Tokens.
func (u Usage) Total() int64 { return u.Input + u.Output + u.CacheRead + u.CacheWrite }

func (u Usage) plus(v Usage) Usage {
	return Usage{
		Input: u.Input + v.Input, Output: u.Output + v.Output, CacheRead: u.CacheRead + v.CacheRead,
		CacheWrite: u.CacheWrite + v.CacheWrite, Reasoning: u.Reasoning + v.Reasoning, Estimated: u.Estimated || v.Estimated,
	}
}

// maxTokens is the upper bound for a provider's report.
const maxTokens = 1_000_000_000

// tokens clamps an untrusted number of tokens.
func tokens(n int64) int64 { return min(max(n, 0), maxTokens) }

// A Price is the price of a million tokens of a model, in millionths of a currency unit.
type Price struct {
	Model      string // a name, or a pattern in which * matches any characters
	Input      int64
	Output     int64
	CacheRead  int64
	CacheWrite int64
	Source     string // source and date of the price
}

// maxPrice keeps the cost of maxTokens within an int64.
const maxPrice = 1_000_000_000

func (p Price) check(op string) error {
	for _, n := range []int64{p.Input, p.Output, p.CacheRead, p.CacheWrite} {
		if p.Model == "" || n < 0 || n > maxPrice {
			return fault.Fieldf(op, "prices."+p.Model, "want a model, and prices from 0 to %d millionths for a million tokens", maxPrice)
		}
	}
	return nil
}

// Cost returns the cost of a usage, rounded up to a millionth.
func (p Price) Cost(u Usage) int64 {
	var micros int64
	for _, part := range [][2]int64{{u.Input, p.Input}, {u.Output, p.Output}, {u.CacheRead, p.CacheRead}, {u.CacheWrite, p.CacheWrite}} {
		micros += part[0] * part[1] // at most 4 × 10¹⁸
	}
	return (micros + 999_999) / 1_000_000
}

// price returns the first price that matches a model, and whether a price matches.
func (g *Gateway) price(model string) (Price, bool) {
	for _, p := range g.prices {
		if matches(p.Model, model) {
			return p, true
		}
	}
	return Price{Model: model}, false
}

// List prices of vendors in US dollars, for short contexts and short-lived caches.
const (
	listed = "the vendor's price list, as third parties listed it in March 2026"
	dollar = 1_000_000
	cent   = dollar / 100
)

// DefaultPrices returns a small default table. Prices change; configure current prices for
// accurate cost limits.
func DefaultPrices() []Price {
	return []Price{
		{"claude-opus-4-6*", 5 * dollar, 25 * dollar, 50 * cent, 625 * cent, "Anthropic: " + listed},
		{"claude-opus-4-5*", 5 * dollar, 25 * dollar, 50 * cent, 625 * cent, "Anthropic: " + listed},
		{"claude-opus-4-1*", 15 * dollar, 75 * dollar, 150 * cent, 1875 * cent, "Anthropic: " + listed},
		{"claude-sonnet-4*", 3 * dollar, 15 * dollar, 30 * cent, 375 * cent, "Anthropic: " + listed},
		{"claude-haiku-4-5*", 1 * dollar, 5 * dollar, 10 * cent, 125 * cent, "Anthropic: " + listed},
		{"gpt-5.1", 125 * cent, 10 * dollar, 125 * cent / 10, 0, "OpenAI: " + listed},
		{"gpt-5", 125 * cent, 10 * dollar, 125 * cent / 10, 0, "OpenAI: " + listed},
		{"gpt-5-20*", 125 * cent, 10 * dollar, 125 * cent / 10, 0, "OpenAI: " + listed},
		{"gpt-5-codex", 125 * cent, 10 * dollar, 125 * cent / 10, 0, "OpenAI: " + listed},
		{"gpt-5-mini*", 25 * cent, 2 * dollar, 25 * cent / 10, 0, "OpenAI: " + listed},
		{"gpt-5-nano*", 5 * cent, 40 * cent, 5 * cent / 10, 0, "OpenAI: " + listed},
		{"gpt-4.1", 2 * dollar, 8 * dollar, 50 * cent, 0, "OpenAI: " + listed},
		{"gpt-4.1-mini*", 40 * cent, 160 * cent, 10 * cent, 0, "OpenAI: " + listed},
		{"text-embedding-3-small", 2 * cent, 0, 0, 0, "OpenAI: " + listed},
		{"text-embedding-3-large", 13 * cent, 0, 0, 0, "OpenAI: " + listed},
		{"gemini-2.5-pro", 125 * cent, 10 * dollar, 125 * cent / 10, 0, "Google: " + listed},
		{"gemini-2.5-flash", 30 * cent, 250 * cent, 3 * cent, 0, "Google: " + listed},
	}
}
