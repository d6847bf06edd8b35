// Package llm is the model gateway: the one way from a jail to language models.
//
//	agent ──▶ caller ▸ model ▸ journal ▸ limits ▸ budget ──▶ provider
//	      ◀── meters ◀ record ◀ journal ◀ settled ◀ counted ◀──┘
//
// Agents speak the APIs they know: OpenAI's, Anthropic's, Google's Gemini. Nothing is
// translated; a request goes to a provider that speaks the same API, byte for byte
// where nothing has to change, and so does the answer, event by event. What the
// provider's key is only the gateway knows.
package llm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"glasshouse/budget"
	"glasshouse/fault"
	"glasshouse/id"
)

// An API is a wire format that agents and providers speak.
type API string

const (
	OpenAI    API = "openai"    // chat completions, responses, embeddings
	Anthropic API = "anthropic" // messages
	Gemini    API = "gemini"    // generateContent
)

// A Provider answers requests for models.
type Provider struct {
	Name string
	API  API

	// BaseURL is what an SDK of this API would be given: with the version for
	// OpenAI, "https://api.openai.com/v1", and without one for the others.
	BaseURL string

	// Key returns the secret that requests are made with. It is asked for each, so
	// that a new one counts at once. nil: none is needed.
	Key func(ctx context.Context) ([]byte, error)

	Models  []string          // names, or patterns in which * is any run of characters
	Headers map[string]string // added to each request
	Timeout time.Duration     // how long it may be silent, at first and later; 0 is 10 minutes
	Limit   Limit             // of all that is asked of it
}

// An Alias is another name for a model.
type Alias struct {
	Name     string // or a pattern
	Provider string // empty: whichever has the model and speaks the caller's API
	Model    string // what the provider calls it; empty: what the caller does
}

// A Caller is who makes a request. All of it comes from the door it came through.
type Caller struct {
	Session string
	Run     string
	Branch  string
	Jail    id.Jail
	Agent   string
	Parent  int64 // the entry of the chain that calls are recorded under

	Models  []string       // names and patterns it may use; empty: all
	Budget  *budget.Budget // what it may spend; nil: without limit
	Journal Journal        // what it was answered; nil: not kept
}

// who tells callers apart whose rates are counted.
func (c Caller) who() string { return string(c.Jail) + "\x00" + c.Session + "\x00" + c.Run }

// Config is what a Gateway works with.
type Config struct {
	Providers []Provider
	Aliases   []Alias
	Prices    []Price // the first that names a model counts; nil: DefaultPrices
	Limit     Limit   // of each caller

	// Caller says who is asking. Its errors are answered.
	Caller func(r *http.Request) (Caller, error)

	// Record keeps a call before its end is seen by the caller. What cannot be
	// recorded is not answered, or, of a stream, ends with an error. nil: no record.
	Record func(ctx context.Context, c Call) error

	// Exceeded is told of each call that was refused or ended because too little is
	// left of its budget, before the caller is; not of one that only has to wait until
	// others have ended. It must not wait for the caller. nil: nobody is told.
	Exceeded func(ctx context.Context, c Caller, err error)

	RecordBodies int           // bytes of a request and of its answer that Record is given; 0: none
	Output       int64         // tokens reserved for an answer that the request does not limit; 0 is 8192
	Retries      int           // how often a request is made again; 0 is 3, less than 0 never
	Wait         time.Duration // for how long a caller waits its turn at a limit; 0 is 30 seconds

	Transport http.RoundTripper // nil: a usual one
	Log       *slog.Logger      // nil: nothing is logged
}

// What is never exceeded.
const (
	maxRequest = 32 << 20  // bytes of a request
	maxAnswer  = 64 << 20  // bytes of an answer that is not a stream
	maxStream  = 256 << 20 // bytes of a stream
	maxEvent   = 4 << 20   // bytes of one event of a stream
	maxProblem = 1 << 20   // bytes of a provider's error
	maxKey     = 255       // bytes of an idempotency key
)

// A Gateway is the http.Handler of the model APIs. It is safe for concurrent use.
type Gateway struct {
	cfg       Config
	mux       *http.ServeMux
	transport http.RoundTripper
	providers []*provider
	prices    []Price
	callers   callers
	meters    meters
	flights   flights
}

// provider is a Provider with what is counted of it.
type provider struct {
	Provider
	base *url.URL
	turn *turnstile
}

// New returns the gateway to cfg's providers, or an error that says which of its
// settings makes no sense. It makes no request.
func New(cfg Config) (*Gateway, error) {
	const op = "llm.New"
	if cfg.Caller == nil {
		return nil, fault.Fieldf(op, "caller", "nobody says who is calling")
	}
	cfg.Output = cmp.Or(cfg.Output, 8192)
	cfg.Retries = cmp.Or(cfg.Retries, 3)
	cfg.Wait = cmp.Or(cfg.Wait, 30*time.Second)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	g := &Gateway{cfg: cfg, transport: cfg.Transport, prices: cfg.Prices}
	if g.prices == nil {
		g.prices = DefaultPrices()
	}
	for _, p := range g.prices {
		if err := p.check(op); err != nil {
			return nil, err
		}
	}
	if g.transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.DisableCompression = true // what is counted has to be read
		t.MaxResponseHeaderBytes = 64 << 10
		g.transport = t
	}
	if cfg.Output < 0 || cfg.Output > maxTokens {
		return nil, fault.Fieldf(op, "output", "want a number of tokens up to %d", maxTokens)
	}
	for _, p := range cfg.Providers {
		made, err := newProvider(op, p)
		if err != nil {
			return nil, err
		}
		for _, other := range g.providers {
			if other.Name == made.Name && other.API == made.API {
				return nil, fault.Fieldf(op, "providers."+p.Name, "there are two of this name for the API of %s", p.API)
			}
		}
		g.providers = append(g.providers, made)
	}
	for _, a := range cfg.Aliases {
		if err := g.checkAlias(op, a); err != nil {
			return nil, err
		}
	}
	g.callers.limit = cfg.Limit
	g.mux = g.routes()
	return g, nil
}

func newProvider(op string, p Provider) (*provider, error) {
	if p.Name == "" {
		return nil, fault.Fieldf(op, "providers.name", "a provider has no name")
	}
	switch p.API {
	case OpenAI, Anthropic, Gemini:
	default:
		return nil, fault.Fieldf(op, "providers."+p.Name+".api", "%q is not one of %s, %s, %s", p.API, OpenAI, Anthropic, Gemini)
	}
	base, err := url.Parse(strings.TrimSuffix(p.BaseURL, "/"))
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" || base.User != nil || base.RawQuery != "" {
		// The text is not repeated: who put a key into it shall not find it in a log.
		return nil, fault.Fieldf(op, "providers."+p.Name+".base_url", "want http:// or https:// with a host, without a user and without a query")
	}
	if len(p.Models) == 0 {
		return nil, fault.Fieldf(op, "providers."+p.Name+".models", "it has no models")
	}
	p.Timeout = cmp.Or(p.Timeout, 10*time.Minute)
	return &provider{Provider: p, base: base, turn: newTurnstile(p.Limit)}, nil
}

func (g *Gateway) checkAlias(op string, a Alias) error {
	if a.Name == "" {
		return fault.Fieldf(op, "aliases.name", "an alias has no name")
	}
	if a.Provider != "" && g.named(a.Provider) == nil {
		return fault.Fieldf(op, "aliases."+a.Name+".provider", "there is no provider %q", a.Provider)
	}
	return nil
}

// ServeHTTP answers one request.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) { g.mux.ServeHTTP(w, r) }

func (g *Gateway) routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", g.call(chat))
	mux.HandleFunc("POST /v1/responses", g.call(responses))
	mux.HandleFunc("POST /v1/embeddings", g.call(embeddings))
	mux.HandleFunc("POST /v1/messages", g.call(messages))
	mux.HandleFunc("POST /v1/messages/count_tokens", g.call(counting))
	mux.HandleFunc("POST /v1beta/models/{call...}", g.gemini)
	mux.HandleFunc("GET /v1/models", g.listModels)
	mux.HandleFunc("GET /v1beta/models", g.listGemini)
	return mux
}

// call returns the handler of one format.
func (g *Gateway) call(f *format) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { g.serve(w, r, f, "", f.path) }
}

// gemini is called with the model and what to do in its path.
func (g *Gateway) gemini(w http.ResponseWriter, r *http.Request) {
	call := r.PathValue("call")
	i := strings.LastIndexByte(call, ':')
	if i < 0 {
		i = len(call)
	}
	f := map[string]*format{
		":generateContent": generate, ":streamGenerateContent": generateStream, ":countTokens": countGemini,
	}[call[i:]]
	if f == nil {
		generate.refuse(w, fault.Newf(fault.NotFound, "llm", "", "of a model there are :generateContent, :streamGenerateContent and :countTokens"))
		return
	}
	g.serve(w, r, f, call[:i], "")
}

// readBody reads a request of bounded size.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > maxRequest {
		return nil, tooLarge()
	}
	var body bytes.Buffer
	body.Grow(int(min(max(r.ContentLength, 0), 1<<20)) + bytes.MinRead)
	if _, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, maxRequest)); err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, tooLarge()
		}
		return nil, fault.New(fault.Invalid, "llm", "", err)
	}
	return body.Bytes(), nil
}

func tooLarge() error {
	return fault.Newf(fault.TooLarge, "llm", "", "a request has at most %d bytes", maxRequest)
}
