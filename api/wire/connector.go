package wire

import (
	"time"

	"glasshouse/id"
)

// Connector connects sessions to other systems or to each other: an inbound webhook
// (hook), an outbound webhook (post), or a relay between sessions.
type Connector struct {
	Name     string   `json:"name" required:"true"`
	Kind     string   `json:"kind" required:"true" enum:"hook,post,relay" description:"hook: inbound webhook, which adds received messages to a session. post: outbound webhook, which sends a session's messages to a URL. relay: forwards messages of sessions to another session."`
	Address  string   `json:"address,omitempty" description:"For a hook: the URL to post to. For a post: the destination host."`
	Sessions []string `json:"sessions,omitempty" description:"Sessions whose messages are forwarded: names, or patterns with *."`
	Session  string   `json:"session,omitempty" description:"The receiving session, as configured."`
	Goal     string   `json:"goal,omitempty" description:"Goal of the run that a message starts, as configured."`
	Pending  int64    `json:"pending" required:"true" description:"Number of pending deliveries."`
	Dead     int64    `json:"dead" required:"true" description:"Number of deliveries that failed permanently."`
}

// Received is the result of a request to an inbound webhook.
type Received struct {
	Session string     `json:"session_id" required:"true"`
	Message id.Message `json:"message_id" required:"true"`
	Run     id.Run     `json:"run,omitempty" description:"The run that was started."`
}

// Delivery is a message that is delivered by a connector.
type Delivery struct {
	ID        string     `json:"id" required:"true" description:"Delivery id. It is the same for all attempts."`
	Session   string     `json:"session_id" required:"true"`
	Message   id.Message `json:"message_id" required:"true"`
	Connector string     `json:"connector" required:"true"`
	State     string     `json:"state" required:"true" enum:"pending,delivered,dead" description:"dead: the delivery failed permanently."`
	Attempts  int        `json:"attempts" required:"true"`
	Next      *time.Time `json:"next,omitempty" description:"Time of the next attempt."`
	Error     string     `json:"error,omitempty" description:"Error of the last attempt."`
}
