package mcp

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"glasshouse/fault"
)

// Resources are the resources that one caller may read. The implementation decides which these are.
type Resources interface {
	// List returns the resources that there are now.
	List(ctx context.Context) ([]*sdk.Resource, error)

	// Templates returns the templates of the URIs that Read accepts.
	Templates() []*sdk.ResourceTemplate

	// Read returns the contents of a resource. The error is of kind fault.NotFound if the
	// resource does not exist, and also if the caller must not learn that it exists.
	Read(ctx context.Context, uri string) ([]*sdk.ResourceContents, error)

	// Complete returns values of a variable of a template that begin with a prefix.
	Complete(ctx context.Context, template, variable, prefix string) ([]string, error)
}

// Prompts are the prompts that one caller may use.
type Prompts interface {
	// List returns the prompts that there are now.
	List(ctx context.Context) ([]*sdk.Prompt, error)

	// Get returns the messages of a prompt.
	Get(ctx context.Context, name string, arguments map[string]string) ([]*sdk.PromptMessage, error)

	// Complete returns values of an argument of a prompt that begin with a prefix.
	Complete(ctx context.Context, prompt, argument, prefix string) ([]string, error)
}

// Offer makes a server serve resources and prompts too. Either may be nil. Call it before
// the server serves anyone.
func (s *Server) Offer(r Resources, p Prompts) {
	s.resources, s.prompts = r, p
	if r == nil {
		return
	}
	for _, t := range r.Templates() {
		s.sdk.AddResourceTemplate(t, s.readResource)
	}
}

// refreshOffer reads the list that a request is about again.
func (s *Server) refreshOffer(ctx context.Context, method string) error {
	s.offering.Lock()
	defer s.offering.Unlock()
	switch method {
	case "resources/list", "resources/read", "resources/subscribe":
		if s.resources == nil {
			return nil
		}
		all, err := s.resources.List(ctx)
		if err != nil {
			return fmt.Errorf("list the resources: %w", tell(ctx, err))
		}
		update(s.listedResources, all, func(r *sdk.Resource) string { return r.URI },
			func(r *sdk.Resource) { s.sdk.AddResource(r, s.readResource) },
			func(uris []string) { s.sdk.RemoveResources(uris...) })
	case "prompts/list", "prompts/get":
		if s.prompts == nil {
			return nil
		}
		all, err := s.prompts.List(ctx)
		if err != nil {
			return fmt.Errorf("list the prompts: %w", tell(ctx, err))
		}
		update(s.listedPrompts, all, func(p *sdk.Prompt) string { return p.Name },
			func(p *sdk.Prompt) { s.sdk.AddPrompt(p, s.getPrompt) },
			func(names []string) { s.sdk.RemovePrompts(names...) })
	}
	return nil
}

// update updates the served list: it adds new and changed items and removes missing ones.
func update[T any](listed map[string]string, all []T, key func(T) string, add func(T), remove func([]string)) {
	there := map[string]bool{}
	for _, one := range all {
		k := key(one)
		there[k] = true
		text, err := json.Marshal(one)
		if err != nil || listed[k] == string(text) {
			continue
		}
		listed[k] = string(text)
		add(one)
	}
	var gone []string
	for k := range listed {
		if !there[k] {
			gone = append(gone, k)
			delete(listed, k)
		}
	}
	if len(gone) > 0 {
		remove(gone)
	}
}

func (s *Server) readResource(ctx context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	contents, err := s.resources.Read(ctx, req.Params.URI)
	if errors.Is(err, fault.NotFound) {
		return nil, sdk.ResourceNotFoundError(req.Params.URI)
	}
	if err != nil {
		return nil, tell(ctx, err)
	}
	return &sdk.ReadResourceResult{Contents: contents}, nil
}

func (s *Server) getPrompt(ctx context.Context, req *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
	messages, err := s.prompts.Get(ctx, req.Params.Name, req.Params.Arguments)
	if err != nil {
		return nil, tell(ctx, err)
	}
	return &sdk.GetPromptResult{Messages: messages}, nil
}

// maxCompletions bounds the values of one completion: the protocol allows no more.
const maxCompletions = 100

func (s *Server) complete(ctx context.Context, req *sdk.CompleteRequest) (*sdk.CompleteResult, error) {
	var values []string
	var err error
	ref, argument := req.Params.Ref, req.Params.Argument
	switch {
	case ref == nil:
	case ref.Type == "ref/prompt" && s.prompts != nil:
		values, err = s.prompts.Complete(ctx, ref.Name, argument.Name, argument.Value)
	case ref.Type == "ref/resource" && s.resources != nil:
		values, err = s.resources.Complete(ctx, ref.URI, argument.Name, argument.Value)
	}
	if err != nil {
		return nil, tell(ctx, err)
	}
	total := len(values)
	values = append([]string{}, values[:min(total, maxCompletions)]...)
	return &sdk.CompleteResult{Completion: sdk.CompletionResultDetails{Values: values, Total: total, HasMore: total > len(values)}}, nil
}

const (
	// maxWatched bounds the resources of one server that clients subscribe to.
	maxWatched = 64
	// watchEvery is how often a resource with subscribers is read.
	watchEvery = 2 * time.Second
)

// watches are the resources that clients subscribe to.
type watches struct {
	mu sync.Mutex
	// by are the sessions that subscribe to a URI. A goroutine watches each URI.
	// +checklocks:mu
	by map[string]map[*sdk.ServerSession]bool
}

func (s *Server) subscribe(ctx context.Context, req *sdk.SubscribeRequest) error {
	uri := req.Params.URI
	if s.resources == nil {
		return sdk.ResourceNotFoundError(uri)
	}
	// A client may only subscribe to what it may read.
	first, err := s.fingerprint(ctx, uri)
	if errors.Is(err, fault.NotFound) {
		return sdk.ResourceNotFoundError(uri)
	}
	if err != nil {
		return tell(ctx, err)
	}
	w := &s.watches
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by[uri] == nil {
		if len(w.by) >= maxWatched {
			return fmt.Errorf("clients subscribe to %d resources, which is the limit: unsubscribe from another", maxWatched)
		}
		if w.by == nil {
			w.by = map[string]map[*sdk.ServerSession]bool{}
		}
		w.by[uri] = map[*sdk.ServerSession]bool{}
		go s.watch(uri, first)
	}
	w.by[uri][req.Session] = true
	return nil
}

func (s *Server) unsubscribe(_ context.Context, req *sdk.UnsubscribeRequest) error {
	w := &s.watches
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.by[req.Params.URI], req.Session)
	return nil
}

// watch notifies the subscribers of a resource about changes, until it has no more subscribers.
func (s *Server) watch(uri string, last [32]byte) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.closing.Done():
			return
		case <-tick.C:
		}
		if !s.watches.keep(uri, slices.Collect(s.sdk.Sessions())) {
			return
		}
		now, err := s.fingerprint(s.closing, uri)
		if errors.Is(err, fault.NotFound) {
			now, err = [32]byte{}, nil // the deletion is reported as a change
		}
		if err != nil || now == last {
			continue
		}
		last = now
		if err := s.sdk.ResourceUpdated(s.closing, &sdk.ResourceUpdatedNotificationParams{URI: uri}); err != nil {
			slog.Warn("cannot notify the subscribers of a resource", "uri", uri, "err", err)
		}
	}
}

// keep removes the subscribers of a URI whose sessions have ended. It reports whether any
// are left; if not, the URI is no longer watched.
func (w *watches) keep(uri string, sessions []*sdk.ServerSession) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for session := range w.by[uri] {
		if !slices.Contains(sessions, session) {
			delete(w.by[uri], session)
		}
	}
	if len(w.by[uri]) == 0 {
		delete(w.by, uri)
		return false
	}
	return true
}

// fingerprint returns a digest of the current content of a resource.
func (s *Server) fingerprint(ctx context.Context, uri string) ([32]byte, error) {
	contents, err := s.resources.Read(ctx, uri)
	if err != nil {
		return [32]byte{}, err
	}
	text, err := json.Marshal(contents)
	if err != nil {
		return [32]byte{}, fmt.Errorf("encode the contents of %s: %w", uri, err)
	}
	return sha256.Sum256(text), nil
}
