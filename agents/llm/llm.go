// Package llm is the model gateway: the proxy through which jails reach language models.
//
//	agent ──▶ caller ▸ model ▸ journal ▸ limits ▸ budget ──▶ provider
//	      ◀── meters ◀ record ◀ journal ◀ settled ◀ counted ◀──┘
//
// Agents use the APIs of OpenAI, Anthropic or Google Gemini. Requests are not translated: each goes
// to a provider with the same API, with as few changes as possible, and the response is forwarded
// event by event. Only the gateway has the provider's key.
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

	"glasshouse/capability/budget"
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

// A Provider is a server of models.
type Provider struct {
	Name string
	API  API

	// BaseURL is the base URL that an SDK of this API expects: with the version for OpenAI,
	// "https://api.openai.com/v1", and without it for the others.
	BaseURL string

	// Key returns the provider's API key. It is called for each request, so that a new key
	// takes effect immediately. nil: no key.
	Key func(ctx context.Context) ([]byte, error)

	// Ready reports whether the provider can be used now. One that cannot has no models. nil: it
	// always can.
	Ready func() bool

	Models  []string          // names, or patterns in which * matches any characters
	Headers map[string]string // added to each request
	Timeout time.Duration     // maximum time without data; 0: 10 minutes
	Limit   Limit             // limit of all requests to the provider
}

// An Alias is an alternative name of a model.
type Alias struct {
	Name     string // or a pattern
	Provider string // empty: any provider of the model with the caller's API
	Model    string // the provider's name of the model; empty: the requested name
}

// A Caller is the origin of a request. All fields are set by the endpoint that received it.
type Caller struct {
	Session string
	Run     string
	Branch  string
	Jail    id.Jail
	Agent   string
	Parent  int64 // audit log entry that causes the entries of calls

	Models  []string       // allowed names and patterns; empty: all
	Budget  *budget.Budget // nil: no limit
	Journal Journal        // nil: answers are not stored
}

// who returns the key of the caller's rate limiter.
func (c Caller) who() string { return string(c.Jail) + "\x00" + c.Session + "\x00" + c.Run }

// Config configures a Gateway.
type Config struct {
	Providers []Provider
	Aliases   []Alias
	Prices    []Price // the first match counts; nil: DefaultPrices
	Limit     Limit   // limit of each caller

	// Caller identifies the caller of a request. Its error is returned to the client.
	Caller func(r *http.Request) (Caller, error)

	// Record records a call before the caller sees the end of the answer. If it fails, the
	// answer is not sent, or its stream ends with an error. nil: calls are not recorded.
	Record func(ctx context.Context, c Call) error

	// Exceeded is called for each call that is refused or ended because its budget is
	// exhausted, before the caller is notified. It is not called if the call only has to wait
	// for other calls. It must not block on the caller. It may be nil.
	Exceeded func(ctx context.Context, c Caller, err error)

	RecordBodies int           // bytes of request and answer passed to Record; 0: none
	Output       int64         // tokens reserved for an answer without a limit; 0: 8192
	Retries      int           // number of retries; 0: 3, negative: none
	Wait         time.Duration // longest wait for a rate limit; 0: 30 seconds

	Transport http.RoundTripper // nil: a default transport
	Log       *slog.Logger      // nil: no log
}

// Size limits.
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

// SetShare sets which share of the providers' limits this gateway may use, if several use the same
// providers.
func (g *Gateway) SetShare(share float64) {
	for _, p := range g.providers {
		p.limiter.setShare(share)
	}
}

// provider is a Provider with its rate limiter.
type provider struct {
	Provider
	base    *url.URL
	limiter *rateLimiter
}

// New returns a gateway, or an error that names the invalid setting. It sends no requests.
func New(cfg Config) (*Gateway, error) {
	const op = "llm.New"
	if cfg.Caller == nil {
		return nil, fault.Fieldf(op, "caller", "the function Caller is required")
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
		t.DisableCompression = true // usage must be read from the body
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
				return nil, fault.Fieldf(op, "providers."+p.Name, "duplicate provider for the API of %s", p.API)
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
		// The error does not repeat the URL, which might contain a key and would be logged.
		return nil, fault.Fieldf(op, "providers."+p.Name+".base_url", "want http:// or https:// with a host, without a user and without a query")
	}
	if len(p.Models) == 0 {
		return nil, fault.Fieldf(op, "providers."+p.Name+".models", "no models configured")
	}
	p.Timeout = cmp.Or(p.Timeout, 10*time.Minute)
	return &provider{Provider: p, base: base, limiter: newRateLimiter(p.Limit)}, nil
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

// ServeHTTP handles one request.
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

// call returns the handler of a format.
func (g *Gateway) call(f *format) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { g.serve(w, r, f, "", f.path) }
}

// gemini handles requests whose path has the model and the action.
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
		generate.refuse(w, fault.Newf(fault.NotFound, "llm.gemini", "", "use :generateContent, :streamGenerateContent or :countTokens"))
		return
	}
	g.serve(w, r, f, call[:i], "")
}

// readBody reads a request body of limited size.
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
		return nil, fault.New(fault.Invalid, "llm.readBody", "", err)
	}
	return body.Bytes(), nil
}

func tooLarge() error {
	return fault.Newf(fault.TooLarge, "llm.tooLarge", "", "a request has at most %d bytes", maxRequest)
}
