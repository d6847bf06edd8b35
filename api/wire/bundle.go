package wire

import (
	"encoding/json"
	"time"

	"glasshouse/id"
)

// Bundle is a signed package that is installed or whose installation is pending.
type Bundle struct {
	Name         string         `json:"name" required:"true"`
	Version      string         `json:"version,omitempty" description:"The installed version. Empty if no version is installed."`
	Publisher    string         `json:"publisher,omitempty"`
	Tier         string         `json:"tier,omitempty"`
	Digest       string         `json:"digest,omitempty" description:"Digest of the installed version."`
	Installed    *time.Time     `json:"installed,omitempty"`
	Capabilities []string       `json:"capabilities" required:"true" description:"Capabilities of the bundle, each as id@version."`
	Skill        string         `json:"skill,omitempty" description:"Name of the skill in the bundle."`
	Until        *time.Time     `json:"until,omitempty" description:"Time from which the bundle's capabilities cannot be called."`
	Barred       string         `json:"barred,omitempty" description:"Why the bundle's capabilities cannot be called now: the bundle is no longer trusted."`
	Remedy       string         `json:"remedy,omitempty" description:"How to make the bundle usable again."`
	Next         *BundleInstall `json:"next,omitempty" description:"An installation that is pending or was refused."`
}

// BundleInstall is a pending installation, or a refused one.
type BundleInstall struct {
	Version  string      `json:"version" required:"true"`
	Digest   string      `json:"digest" required:"true"`
	State    string      `json:"state" required:"true" enum:"pending,refused"`
	Approval id.Approval `json:"approval,omitempty" description:"The approval request of a pending installation."`
	Why      string      `json:"why,omitempty" description:"Why the installation is pending or was refused."`
}

// Publisher is a trusted publisher of bundles, with the highest tier that its bundles
// may have.
type Publisher struct {
	Name string         `json:"name" required:"true"`
	Tier string         `json:"tier" required:"true" enum:"informational,read-only,standard,elevated" description:"The highest tier that the publisher's bundles may have."`
	Keys []PublisherKey `json:"keys,omitempty"`
}

// PublisherKey is a signing key of a publisher and its state.
type PublisherKey struct {
	ID      string     `json:"id" required:"true"`
	Key     string     `json:"key" required:"true" description:"The public key, in minisign format."`
	Added   time.Time  `json:"added" required:"true"`
	Retired *time.Time `json:"retired,omitempty" description:"When the key was replaced by another one."`
	Revoked *time.Time `json:"revoked,omitempty" description:"When trust in the key was revoked."`
	Reason  string     `json:"reason,omitempty" description:"Why trust in the key was revoked."`
}

// AddPublisher trusts bundles that are signed with a key.
type AddPublisher struct {
	Tier string `json:"tier" required:"true" enum:"informational,read-only,standard,elevated" description:"The highest tier that the publisher's bundles may have."`
	Key  string `json:"key" required:"true" description:"Public key, in minisign format."`
}

// RotateKey replaces a publisher's key.
type RotateKey struct {
	Old string `json:"old" required:"true" description:"The public key to replace. Its existing signatures remain valid."`
	Key string `json:"key" required:"true" description:"The new public key."`
}

// RevokeTrust revokes the trust in a key or in the bundle with a digest.
type RevokeTrust struct {
	Key    string `json:"key,omitempty" description:"A public key. Bundles that it signed are no longer trusted."`
	Digest string `json:"digest,omitempty" description:"Digest of a bundle that is no longer trusted."`
	Reason string `json:"reason,omitempty"`
}

// Offer is a bundle version that a market offers.
type Offer struct {
	Market      string `json:"market" required:"true"`
	Name        string `json:"name" required:"true"`
	Version     string `json:"version" required:"true"`
	Installed   string `json:"installed,omitempty" description:"The installed version of the bundle from the same publisher."`
	Publisher   string `json:"publisher" required:"true"`
	Tier        string `json:"tier" required:"true"`
	Description string `json:"description,omitempty"`
	Digest      string `json:"digest" required:"true"`
}

// MarketInstall names a bundle of a market to install.
type MarketInstall struct {
	Name    string `json:"name" required:"true"`
	Version string `json:"version,omitempty" description:"Version to install. Default: the newest."`
}

// AddSkill adds a skill: a document that teaches agents which capabilities to use.
type AddSkill struct {
	File string `json:"file,omitempty" description:"File name, for error messages."`
	Text string `json:"text" required:"true" description:"Text of the skill document."`
}

// Skill is a document that can be given to agents.
type Skill struct {
	Name         string    `json:"name" required:"true"`
	Description  string    `json:"description,omitempty"`
	Version      string    `json:"version,omitempty"`
	Tier         string    `json:"tier,omitempty"`
	Capabilities []string  `json:"capabilities" required:"true"`
	Effects      []string  `json:"effects,omitempty"`
	Secrets      []string  `json:"secrets,omitempty"`
	PerUse       bool      `json:"per_use,omitempty" description:"Each use requires approval."`
	Emoji        string    `json:"emoji,omitempty"`
	Category     string    `json:"category,omitempty"`
	Bundle       string    `json:"bundle,omitempty" description:"The bundle that contains the skill."`
	Created      time.Time `json:"created" required:"true"`
	Refused      string    `json:"refused,omitempty" description:"Why the skill is not given to agents now."`

	Text  string      `json:"text,omitempty" description:"The text that an agent reads. Only in the response for a single skill."`
	Tools []SkillTool `json:"tools,omitempty" description:"Tool definitions of the skill's capabilities. Only in the response for a single skill."`
}

// SkillTool is a capability in the form of a model's tool definition.
type SkillTool struct {
	Name        string          `json:"name" required:"true"`
	Capability  string          `json:"capability" required:"true" description:"The capability, as id or id@version."`
	Description string          `json:"description" required:"true"`
	Input       json.RawMessage `json:"input_schema" required:"true"`
}
