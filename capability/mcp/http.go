package mcp

import (
	"fmt"
	"net/http"
	"net/url"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// maxFrame bounds one message in either direction, on all transports.
const maxFrame = 4 << 20

// idle is how long a session without requests is kept.
const idle = time.Hour

// stateless is the first version of the protocol without sessions.
const stateless = "2026-07-28"

// Handler serves the protocol over streamable HTTP to the server's one caller. The caller of
// Handler must authenticate requests. Cross-origin browser requests are rejected.
func (s *Server) Handler() http.Handler {
	// The event store lets a client read the messages that it missed while its connection was
	// broken.
	sessions := guarded(sdk.NewStreamableHTTPHandler(s.pick, &sdk.StreamableHTTPOptions{SessionTimeout: idle, MaxRequestBodyBytes: maxFrame, EventStore: sdk.NewMemoryEventStore(nil)}))
	single := s.Stateless()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Mcp-Protocol-Version") >= stateless {
			single.ServeHTTP(w, r)
			return
		}
		sessions.ServeHTTP(w, r)
	})
}

// Stateless is like Handler, but without sessions in every version of the protocol. No state is
// kept between requests, so clients can continue with a restarted server.
func (s *Server) Stateless() http.Handler {
	return guarded(sdk.NewStreamableHTTPHandler(s.pick, &sdk.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true, MaxRequestBodyBytes: maxFrame}))
}

func (s *Server) pick(*http.Request) *sdk.Server { return s.sdk }

// guarded rejects cross-origin browser requests.
func guarded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := sameOrigin(r); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// sameOrigin returns an error for a cross-origin browser request. Programs send no Origin
// header.
func sameOrigin(r *http.Request) error {
	origins := r.Header.Values("Origin")
	if len(origins) == 0 {
		return nil
	}
	origin, err := url.Parse(origins[0])
	if err != nil || len(origins) > 1 || origin.Host == "" || origin.Host != r.Host {
		return fmt.Errorf("requests from origin %.200q are not allowed", origins[0])
	}
	return nil
}
