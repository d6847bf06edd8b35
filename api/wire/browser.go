package wire

import (
	"time"

	"glasshouse/id"
)

// PushKey is the VAPID public key with which browsers subscribe to push notifications.
type PushKey struct {
	Key string `json:"key" required:"true" description:"The applicationServerKey, in base64url."`
}

// SubscribeBrowser is a browser's push subscription, in the form of
// PushSubscription.toJSON.
type SubscribeBrowser struct {
	Endpoint   string      `json:"endpoint" required:"true" description:"The https URL of the subscription at the browser's push service."`
	Expiration *float64    `json:"expirationTime,omitempty" description:"Ignored. The push service reports an expired subscription."`
	Keys       BrowserKeys `json:"keys" required:"true"`
}

// BrowserKeys are the keys that encrypt messages to a browser (RFC 8291).
type BrowserKeys struct {
	P256dh string `json:"p256dh" required:"true" description:"The browser's P-256 public key, in base64url."`
	Auth   string `json:"auth" required:"true" description:"The authentication secret, in base64url."`
}

// PushBrowser is a browser that receives push notifications for approval requests.
type PushBrowser struct {
	ID        id.Browser `json:"id" required:"true"`
	Login     id.Login   `json:"login" required:"true" description:"The login of the browser."`
	Name      string     `json:"name" required:"true" description:"Name of the logged-in user."`
	Service   string     `json:"service" required:"true" description:"Host name of the push service."`
	CreatedAt time.Time  `json:"created_at" required:"true"`
}
