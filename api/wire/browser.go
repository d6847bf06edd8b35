package wire

import (
	"time"

	"glasshouse/id"
)

// PushKey is the key that browsers subscribe with.
type PushKey struct {
	Key string `json:"key" required:"true" description:"applicationServerKey, as base64url."`
}

// SubscribeBrowser is a browser's subscription, as its PushSubscription.toJSON has it.
type SubscribeBrowser struct {
	Endpoint   string      `json:"endpoint" required:"true" description:"An https address of the browser's push service."`
	Expiration *float64    `json:"expirationTime,omitempty" description:"Is not looked at: the service says when it is over."`
	Keys       BrowserKeys `json:"keys" required:"true"`
}

// BrowserKeys are what a browser reads messages with.
type BrowserKeys struct {
	P256dh string `json:"p256dh" required:"true"`
	Auth   string `json:"auth" required:"true"`
}

// PushBrowser is a browser that is told when a person is asked.
type PushBrowser struct {
	ID        id.Browser `json:"id" required:"true"`
	Login     id.Login   `json:"login" required:"true"`
	Name      string     `json:"name" required:"true" description:"Whose login it is."`
	Service   string     `json:"service" required:"true" description:"The host of its push service."`
	CreatedAt time.Time  `json:"created_at" required:"true"`
}
