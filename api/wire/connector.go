package wire

import (
	"time"

	"glasshouse/id"
)

// Connector joins sessions to others.
type Connector struct {
	Name     string   `json:"name" required:"true"`
	Kind     string   `json:"kind" required:"true" enum:"hook,post,relay" description:"A hook takes what others post, a post has what is said in sessions posted to others, a relay tells one session what is said in others."`
	Address  string   `json:"address,omitempty" description:"Of a hook: where others find it. Of a post: the host it goes to."`
	Sessions []string `json:"sessions,omitempty" description:"Whose words it carries: names, or patterns with *."`
	Session  string   `json:"session,omitempty" description:"Whom it tells, as it is configured."`
	Goal     string   `json:"goal,omitempty" description:"Of the run that it begins, as it is configured."`
	Pending  int64    `json:"pending" required:"true" description:"Deliveries that wait."`
	Dead     int64    `json:"dead" required:"true" description:"Deliveries that failed too often."`
}

// Received is what came of what was posted to a hook.
type Received struct {
	Session string     `json:"session_id" required:"true"`
	Message id.Message `json:"message_id" required:"true"`
	Run     id.Run     `json:"run,omitempty" description:"That was begun."`
}

// Delivery is a message on its way to a connector.
type Delivery struct {
	ID        string     `json:"id" required:"true" description:"The same at each attempt."`
	Session   string     `json:"session_id" required:"true"`
	Message   id.Message `json:"message_id" required:"true"`
	Connector string     `json:"connector" required:"true"`
	State     string     `json:"state" required:"true" enum:"pending,delivered,dead"`
	Attempts  int        `json:"attempts" required:"true"`
	Next      *time.Time `json:"next,omitempty" description:"When it is tried next, or may be."`
	Error     string     `json:"error,omitempty" description:"Of the last attempt."`
}
