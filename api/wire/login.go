package wire

import (
	"time"

	"glasshouse/id"
)

// CreateLoginLink asks for a link by which a browser logs in.
type CreateLoginLink struct {
	Role  string `json:"role,omitempty" enum:"admin,operator,viewer" description:"What the login may do; default: what who asks may."`
	Label string `json:"label,omitempty" maxLength:"64" description:"Whose login it is; default: of who asks."`
}

// LoginLink logs one browser in, once. Its code is in the fragment of the
// address, which browsers send to nobody.
type LoginLink struct {
	URLs      []string  `json:"urls" required:"true" description:"Where to go with it; the first is on this machine, others by which it is reached from elsewhere."`
	Code      string    `json:"code" required:"true" description:"What is to be sent to POST /login."`
	ExpiresAt time.Time `json:"expires_at" required:"true"`
}

// LogIn is what a browser logs in with.
type LogIn struct {
	Code string `json:"code" required:"true"`
}

// Me is who the caller is.
type Me struct {
	Name  string   `json:"name" required:"true"`
	Role  string   `json:"role" required:"true" enum:"admin,operator,viewer"`
	Login id.Login `json:"login,omitempty" description:"Of a browser that is logged in."`
}

// Login is a browser that is logged in.
type Login struct {
	ID        id.Login  `json:"id" required:"true"`
	Name      string    `json:"name" required:"true"`
	Role      string    `json:"role" required:"true" enum:"admin,operator,viewer"`
	CreatedAt time.Time `json:"created_at" required:"true"`
	UsedAt    time.Time `json:"used_at" required:"true" description:"To the hour."`
	ExpiresAt time.Time `json:"expires_at" required:"true" description:"Unless it is used before."`
}
