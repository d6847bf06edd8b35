package wire

import (
	"time"

	"glasshouse/id"
)

// Secret is the metadata of a secret. The value is never returned.
type Secret struct {
	Name     string     `json:"name" required:"true"`
	Owner    string     `json:"owner,omitempty" description:"The E2B key that owns the secret. It is part of the secret's name. Such a secret cannot be granted."`
	Provider string     `json:"provider" required:"true" description:"Where the value is stored; local is this daemon."`
	Path     string     `json:"path,omitempty" description:"Path of the secret at the provider."`
	Created  time.Time  `json:"created_at" required:"true"`
	Updated  time.Time  `json:"updated_at" required:"true"`
	Used     *time.Time `json:"used_at,omitempty" description:"When the secret was last used."`
	Grants   []Grant    `json:"grants" required:"true"`
}

// PutSecret stores a secret. Exactly one field must be set.
type PutSecret struct {
	Value     *string `json:"value,omitempty" maxLength:"65536" description:"The value. The daemon stores it encrypted."`
	Base64    *string `json:"base64,omitempty" maxLength:"87384" description:"The value in base64, if it is not text."`
	Reference string  `json:"reference,omitempty" maxLength:"1024" description:"Reference to a value stored elsewhere: env:NAME, file:PATH, vault:MOUNT/data/PATH#KEY."`
}

// Grant is a permission to use one secret.
type Grant struct {
	ID         id.Grant   `json:"id" required:"true"`
	Secret     string     `json:"secret" required:"true"`
	Jail       id.Jail    `json:"jail,omitempty" description:"The jail that may use the secret."`
	Session    string     `json:"session,omitempty"`
	Run        string     `json:"run,omitempty"`
	Capability string     `json:"capability,omitempty"`
	Delivery   string     `json:"delivery" required:"true" enum:"file,inject" description:"file: as /run/secrets/NAME in the jail. inject: added to requests by the egress proxy."`
	Hosts      []string   `json:"hosts,omitempty" description:"With delivery inject: hosts to which the secret may be sent."`
	Branches   bool       `json:"branches,omitempty" description:"Branches of the jail receive their own grant."`
	From       id.Grant   `json:"from,omitempty" description:"For a jail that is a branch: the parent's grant that this one was derived from."`
	By         string     `json:"by,omitempty" description:"Who created the grant."`
	Created    time.Time  `json:"created_at" required:"true"`
	Expires    *time.Time `json:"expires_at,omitempty"`
}

// GrantSecret grants the use of a secret.
type GrantSecret struct {
	Jail       id.Jail    `json:"jail,omitempty" description:"The jail that may use the secret."`
	Session    string     `json:"session,omitempty" maxLength:"256"`
	Run        string     `json:"run,omitempty" maxLength:"256"`
	Capability string     `json:"capability,omitempty" maxLength:"256"`
	Delivery   string     `json:"delivery,omitempty" enum:"file,inject" description:"file (the default): as /run/secrets/NAME in the jail. inject: the egress proxy adds the secret to requests, and it is never visible in the jail."`
	Hosts      []string   `json:"hosts,omitempty" description:"With delivery inject: hosts to which the secret may be sent, such as api.example.com."`
	Branches   bool       `json:"branches,omitempty" description:"Branches of the jail receive their own grant."`
	Expires    *time.Time `json:"expires_at,omitempty" description:"When the grant expires. Default: never."`
}
