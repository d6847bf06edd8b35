package bundle

import (
	"errors"
	"fmt"

	"glasshouse/fault"
)

// A Reason says why a bundle is rejected. It is an error: errors.Is(err, bundle.Tampered)
// works at any depth of wrapping.
type Reason string

func (r Reason) Error() string { return string(r) }

// Defects of an archive or a directory.
const (
	Malformed Reason = "malformed"         // not a valid archive or directory
	Traversal Reason = "traversal"         // a name is outside the bundle
	Absolute  Reason = "absolute name"     // an absolute path
	BadName   Reason = "bad name"          // a name contains invalid characters
	LongName  Reason = "long name"         // a name is too long or too deep
	Symlink   Reason = "symbolic link"     // only files and directories are allowed
	HardLink  Reason = "hard link"         // only files and directories are allowed
	Special   Reason = "special file"      // a device, pipe or socket, or mode bits other than rwx
	Duplicate Reason = "duplicate"         // a name occurs twice, or as a file and a directory
	Collision Reason = "colliding names"   // names that are equal on some filesystems
	Bomb      Reason = "bomb"              // it unpacks to far more than its size
	TooLarge  Reason = "too large"         // more bytes than allowed
	TooMany   Reason = "too many files"    // more entries than allowed
	Trailing  Reason = "trailing data"     // data after the end of the archive
	Encrypted Reason = "encrypted archive" // the content cannot be inspected
)

// Differences between a bundle and its signature.
const (
	Unsigned      Reason = "unsigned"            // signature.json is missing
	BadSignature  Reason = "bad signature.json"  // signature.json is invalid
	WrongKey      Reason = "wrong signature"     // not signed by the named key
	Unlisted      Reason = "unlisted file"       // a file is not in the signature
	Missing       Reason = "missing file"        // a signed file is missing
	Tampered      Reason = "tampered"            // the content of a file was changed
	ModeChanged   Reason = "mode changed"        // a file became executable or is no longer executable
	BadMetadata   Reason = "bad metadata.json"   // metadata.json is missing or invalid
	BadCapability Reason = "bad capability"      // a manifest is invalid
	BadSkill      Reason = "bad skill"           // the skill is invalid
	Exceeds       Reason = "exceeds its claims"  // manifests need more than metadata.json declares
	OtherContent  Reason = "not what was signed" // signature.json and metadata.json disagree
)

// Why a publisher or key is not trusted.
const (
	UnknownPublisher Reason = "unknown publisher"
	UnknownKey       Reason = "unknown key"    // the publisher is known, but not the key
	RevokedKey       Reason = "revoked key"    // all signatures by it are rejected
	RetiredKey       Reason = "retired key"    // signatures since its retirement are rejected
	RevokedBundle    Reason = "revoked bundle" // this content
	Expired          Reason = "expired"
	NotYet           Reason = "signed in the future"
	TierExceeded     Reason = "tier exceeded" // the publisher is trusted only for lower tiers
)

// Conflicts with the installed bundle.
const (
	Downgrade      Reason = "downgrade"
	Republished    Reason = "republished"     // the same version with different content
	OtherPublisher Reason = "other publisher" // the name belongs to another publisher
)

// A rule is the kind and the remedy of a rejection.
type rule struct {
	kind   fault.Kind
	remedy string
}

const packAgain = "pack it again with glasshouse bundle sign -o"

// rules contains every Reason. docs/how-to/bundles.md lists the same reasons.
var rules = map[Reason]rule{
	Malformed: {fault.Invalid, packAgain},
	Traversal: {fault.Denied, "do not use it: it tries to write outside the bundle"},
	Absolute:  {fault.Denied, "do not use it: it tries to write outside the bundle"},
	BadName:   {fault.Invalid, "rename the file, and sign again"},
	LongName:  {fault.Invalid, "shorten the name, and sign again"},
	Symlink:   {fault.Denied, "replace the link with the file, and sign again"},
	HardLink:  {fault.Denied, "replace the link with the file, and sign again"},
	Special:   {fault.Denied, "remove the file, and sign again"},
	Duplicate: {fault.Denied, packAgain},
	Collision: {fault.Denied, "rename one of the two, and sign again"},
	Bomb:      {fault.Denied, "do not use it: it is designed to exhaust memory or disk"},
	TooLarge:  {fault.TooLarge, "remove unneeded files; store models and data elsewhere"},
	TooMany:   {fault.TooLarge, "remove unneeded files, such as caches and test data"},
	Trailing:  {fault.Denied, packAgain},
	Encrypted: {fault.Invalid, packAgain},

	Unsigned:      {fault.Denied, "ask its publisher for a signed bundle, or sign your own with glasshouse bundle sign"},
	BadSignature:  {fault.Invalid, "get the bundle again from its publisher"},
	WrongKey:      {fault.Denied, "do not use it: it is not from the stated publisher"},
	Unlisted:      {fault.Denied, "get the bundle again from its publisher"},
	Missing:       {fault.Denied, "get the bundle again from its publisher"},
	Tampered:      {fault.Denied, "get the bundle again from its publisher"},
	ModeChanged:   {fault.Denied, packAgain},
	BadMetadata:   {fault.Invalid, "correct metadata.json, and sign again"},
	BadCapability: {fault.Invalid, "correct the manifest, and sign again"},
	BadSkill:      {fault.Invalid, "correct the skill, and sign again"},
	Exceeds:       {fault.Denied, "declare in metadata.json everything that the capabilities need, and sign again"},
	OtherContent:  {fault.Denied, "get the bundle again from its publisher"},

	UnknownPublisher: {fault.Denied, "if you trust the publisher and have verified the key, run glasshouse bundle trust"},
	UnknownKey:       {fault.Denied, "verify the key with the publisher over another channel, then run glasshouse bundle trust"},
	RevokedKey:       {fault.Denied, "ask the publisher for a bundle signed with their new key"},
	RetiredKey:       {fault.Denied, "ask the publisher for a bundle signed with their new key"},
	RevokedBundle:    {fault.Denied, "ask the publisher for a newer version"},
	Expired:          {fault.Denied, "ask the publisher for a newer version or a new signature"},
	NotYet:           {fault.Denied, "check the clocks of this host and of the publisher"},
	TierExceeded:     {fault.Denied, "if you trust the publisher that far, run glasshouse bundle trust with a higher tier"},

	Downgrade:      {fault.Conflict, "remove the installed version first to install the older one"},
	Republished:    {fault.Conflict, "ask the publisher for a new version number: the approved version has different content"},
	OtherPublisher: {fault.Conflict, "remove the installed bundle first to change the publisher"},
}

// refuse returns the error for a reason.
func refuse(r Reason, on, format string, args ...any) error {
	rule := rules[r]
	return &fault.Error{
		Op: "bundle.Verify", On: on, Kind: rule.kind, Remedy: rule.remedy,
		Err: fmt.Errorf("%w: "+format, append([]any{r}, args...)...),
	}
}

// ReasonOf returns the reason for which a bundle was rejected, or "" if err has none.
func ReasonOf(err error) Reason {
	r, _ := errors.AsType[Reason](err)
	return r
}
