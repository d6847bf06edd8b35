package wire

import (
	"time"

	"glasshouse/id"
)

// Secret is what may be told of a secret: all but its value.
type Secret struct {
	Name     string     `json:"name" required:"true"`
	Owner    string     `json:"owner,omitempty" description:"The key of a client of E2B whose secret it is alone, which is part of its name. No grant is of it."`
	Provider string     `json:"provider" required:"true" description:"Who keeps it; local is this daemon."`
	Path     string     `json:"path,omitempty" description:"At the provider."`
	Created  time.Time  `json:"created_at" required:"true"`
	Updated  time.Time  `json:"updated_at" required:"true"`
	Used     *time.Time `json:"used_at,omitempty"`
	Grants   []Grant    `json:"grants" required:"true"`
}

// PutSecret keeps a secret. One of its fields is set.
type PutSecret struct {
	Value     *string `json:"value,omitempty" maxLength:"65536" description:"Kept sealed."`
	Base64    *string `json:"base64,omitempty" maxLength:"87384" description:"The value, if it is not text."`
	Reference string  `json:"reference,omitempty" maxLength:"1024" description:"Where others keep it: env:NAME, file:PATH, vault:MOUNT/data/PATH#KEY."`
}

// Grant is leave to use one secret.
type Grant struct {
	ID         id.Grant   `json:"id" required:"true"`
	Secret     string     `json:"secret" required:"true"`
	Jail       id.Jail    `json:"jail,omitempty"`
	Session    string     `json:"session,omitempty"`
	Run        string     `json:"run,omitempty"`
	Capability string     `json:"capability,omitempty"`
	Delivery   string     `json:"delivery" required:"true" enum:"file,inject"`
	Hosts      []string   `json:"hosts,omitempty"`
	Branches   bool       `json:"branches,omitempty"`
	From       id.Grant   `json:"from,omitempty" description:"That a branch has got this one by."`
	By         string     `json:"by,omitempty"`
	Created    time.Time  `json:"created_at" required:"true"`
	Expires    *time.Time `json:"expires_at,omitempty"`
}

// GrantSecret lets somebody have a secret.
type GrantSecret struct {
	Jail       id.Jail    `json:"jail,omitempty"`
	Session    string     `json:"session,omitempty" maxLength:"256"`
	Run        string     `json:"run,omitempty" maxLength:"256"`
	Capability string     `json:"capability,omitempty" maxLength:"256"`
	Delivery   string     `json:"delivery,omitempty" enum:"file,inject" description:"As /run/secrets/NAME in the jail (the default), or in requests on their way out, so that the jail never has it."`
	Hosts      []string   `json:"hosts,omitempty" description:"Of inject: where it may be sent, such as api.example.com."`
	Branches   bool       `json:"branches,omitempty" description:"A branch of the jail gets a grant of its own."`
	Expires    *time.Time `json:"expires_at,omitempty"`
}
