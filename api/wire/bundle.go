package wire

import (
	"encoding/json"
	"time"

	"glasshouse/id"
)

// Bundle is a signed package that is installed, or that somebody is asked about.
type Bundle struct {
	Name         string         `json:"name" required:"true"`
	Version      string         `json:"version,omitempty" description:"Of what is installed; empty if nothing is."`
	Publisher    string         `json:"publisher,omitempty"`
	Tier         string         `json:"tier,omitempty"`
	Digest       string         `json:"digest,omitempty"`
	Installed    *time.Time     `json:"installed,omitempty"`
	Capabilities []string       `json:"capabilities" required:"true" description:"id@version"`
	Skill        string         `json:"skill,omitempty"`
	Until        *time.Time     `json:"until,omitempty" description:"From then on nothing of it is called."`
	Barred       string         `json:"barred,omitempty" description:"Why nothing of it is called now: nobody vouches for it any more."`
	Remedy       string         `json:"remedy,omitempty" description:"What can be done about that."`
	Next         *BundleInstall `json:"next,omitempty" description:"An installation that waits, or that was refused."`
}

// BundleInstall is an installation on its way, or how the last one ended.
type BundleInstall struct {
	Version  string      `json:"version" required:"true"`
	Digest   string      `json:"digest" required:"true"`
	State    string      `json:"state" required:"true" enum:"pending,refused"`
	Approval id.Approval `json:"approval,omitempty"`
	Why      string      `json:"why,omitempty"`
}

// Publisher is somebody whose bundles are taken, up to a tier.
type Publisher struct {
	Name string         `json:"name" required:"true"`
	Tier string         `json:"tier" required:"true" enum:"informational,read-only,standard,elevated"`
	Keys []PublisherKey `json:"keys,omitempty"`
}

// PublisherKey is a key of a publisher, and what has become of it.
type PublisherKey struct {
	ID      string     `json:"id" required:"true"`
	Key     string     `json:"key" required:"true"`
	Added   time.Time  `json:"added" required:"true"`
	Retired *time.Time `json:"retired,omitempty"`
	Revoked *time.Time `json:"revoked,omitempty"`
	Reason  string     `json:"reason,omitempty"`
}

// AddPublisher has bundles taken that are signed by a key.
type AddPublisher struct {
	Tier string `json:"tier" required:"true" enum:"informational,read-only,standard,elevated" description:"What is taken from them at the most."`
	Key  string `json:"key" required:"true" description:"A public key of minisign's format."`
}

// RotateKey gives a publisher a new key in place of an old one.
type RotateKey struct {
	Old string `json:"old" required:"true" description:"The public key that is replaced. What it signed until now stays good."`
	Key string `json:"key" required:"true" description:"The public key in its place."`
}

// RevokeTrust has nothing taken any more that a key has signed, or that has a digest.
type RevokeTrust struct {
	Key    string `json:"key,omitempty"`
	Digest string `json:"digest,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Offer is a version of a bundle that a market offers.
type Offer struct {
	Market      string `json:"market" required:"true"`
	Name        string `json:"name" required:"true"`
	Version     string `json:"version" required:"true"`
	Installed   string `json:"installed,omitempty" description:"The version that is installed, from the same publisher."`
	Publisher   string `json:"publisher" required:"true"`
	Tier        string `json:"tier" required:"true"`
	Description string `json:"description,omitempty"`
	Digest      string `json:"digest" required:"true"`
}

// MarketInstall names what a market offers.
type MarketInstall struct {
	Name    string `json:"name" required:"true"`
	Version string `json:"version,omitempty" description:"Without it the newest."`
}

// AddSkill is a document that teaches which capabilities to use.
type AddSkill struct {
	File string `json:"file,omitempty" description:"What it is called where something is wrong in it."`
	Text string `json:"text" required:"true"`
}

// Skill is a document that agents may be given.
type Skill struct {
	Name         string    `json:"name" required:"true"`
	Description  string    `json:"description,omitempty"`
	Version      string    `json:"version,omitempty"`
	Tier         string    `json:"tier,omitempty"`
	Capabilities []string  `json:"capabilities" required:"true"`
	Effects      []string  `json:"effects,omitempty"`
	Secrets      []string  `json:"secrets,omitempty"`
	PerUse       bool      `json:"per_use,omitempty"`
	Emoji        string    `json:"emoji,omitempty"`
	Category     string    `json:"category,omitempty"`
	Bundle       string    `json:"bundle,omitempty"`
	Created      time.Time `json:"created" required:"true"`
	Refused      string    `json:"refused,omitempty" description:"Why agents are not given it now."`

	Text  string      `json:"text,omitempty" description:"As an agent reads it; of one skill only."`
	Tools []SkillTool `json:"tools,omitempty" description:"Its capabilities, as models are told of tools; of one skill only."`
}

// SkillTool is a capability as models are told of tools.
type SkillTool struct {
	Name        string          `json:"name" required:"true"`
	Capability  string          `json:"capability" required:"true"`
	Description string          `json:"description" required:"true"`
	Input       json.RawMessage `json:"input_schema" required:"true"`
}
