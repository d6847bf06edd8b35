package wire

import (
	"time"

	"glasshouse/id"
)

// CreateLoginLink creates a link that logs in a browser.
type CreateLoginLink struct {
	Role  string `json:"role,omitempty" enum:"admin,operator,viewer" description:"Role of the login. Default: the caller's role."`
	Label string `json:"label,omitempty" maxLength:"64" description:"Name of the login. Default: the caller's name."`
}

// LoginLink logs in one browser, once. The code is in the URL fragment, which browsers
// do not send to servers (RFC 9110, section 4.2.5).
type LoginLink struct {
	URLs      []string  `json:"urls" required:"true" description:"Login URLs. The first one works on this host, the others from elsewhere."`
	Code      string    `json:"code" required:"true" description:"The code to send to POST /login."`
	ExpiresAt time.Time `json:"expires_at" required:"true"`
}

// LogIn contains the code with which a browser logs in.
type LogIn struct {
	Code string `json:"code" required:"true"`
}

// Me identifies the caller.
type Me struct {
	Name  string   `json:"name" required:"true"`
	Role  string   `json:"role" required:"true" enum:"admin,operator,viewer"`
	Login id.Login `json:"login,omitempty" description:"The login, if the caller is a logged-in browser."`
}

// Login is a logged-in browser.
type Login struct {
	ID        id.Login  `json:"id" required:"true"`
	Name      string    `json:"name" required:"true"`
	Role      string    `json:"role" required:"true" enum:"admin,operator,viewer"`
	CreatedAt time.Time `json:"created_at" required:"true"`
	UsedAt    time.Time `json:"used_at" required:"true" description:"Time of the last use, rounded to an hour."`
	ExpiresAt time.Time `json:"expires_at" required:"true" description:"When the login expires. Each use extends it."`
}
