package bundle

import (
	"errors"
	"fmt"

	"glasshouse/fault"
)

// A Reason is why a bundle is refused. It is an error itself: errors.Is(err,
// bundle.Tampered) works at any depth of wrapping.
type Reason string

func (r Reason) Error() string { return string(r) }

// What is wrong with an archive or a directory.
const (
	Malformed Reason = "malformed"         // it cannot be read as what it should be
	Traversal Reason = "traversal"         // a name leads out of the bundle
	Absolute  Reason = "absolute name"     // a name begins at the root
	BadName   Reason = "bad name"          // a name has what no name may have
	LongName  Reason = "long name"         // a name is too long or too deep
	Symlink   Reason = "symbolic link"     // only files and directories may be there
	HardLink  Reason = "hard link"         // as above
	Special   Reason = "special file"      // a device, a pipe, a socket, a mode bit beyond rwx
	Duplicate Reason = "duplicate"         // a name is there twice, or as a file and a directory
	Collision Reason = "colliding names"   // names that some filesystems take for one
	Bomb      Reason = "bomb"              // it unpacks to far more than it is
	TooLarge  Reason = "too large"         // more bytes than a bundle may have
	TooMany   Reason = "too many files"    // more entries than a bundle may have
	Trailing  Reason = "trailing data"     // there is more behind the archive's end
	Encrypted Reason = "encrypted archive" // nobody can look into it
)

// How a bundle differs from what was signed.
const (
	Unsigned      Reason = "unsigned"            // there is no signature.json
	BadSignature  Reason = "bad signature.json"  // it cannot be read
	WrongKey      Reason = "wrong signature"     // the key that it names did not sign this
	Unlisted      Reason = "unlisted file"       // a file was not signed
	Missing       Reason = "missing file"        // a file that was signed is not there
	Tampered      Reason = "tampered"            // a file has other bytes than were signed
	ModeChanged   Reason = "mode changed"        // a file became executable, or ceased to be
	BadMetadata   Reason = "bad metadata.json"   // it is missing, or cannot be read
	BadCapability Reason = "bad capability"      // a manifest cannot be read
	BadSkill      Reason = "bad skill"           // the skill cannot be read
	Exceeds       Reason = "exceeds its claims"  // manifests want more than metadata.json says
	OtherContent  Reason = "not what was signed" // signature.json and metadata.json disagree
)

// Why a publisher's word is not enough.
const (
	UnknownPublisher Reason = "unknown publisher"
	UnknownKey       Reason = "unknown key"    // of a publisher who is known
	RevokedKey       Reason = "revoked key"    // whatever it signed, whenever
	RetiredKey       Reason = "retired key"    // what it signed since it was replaced
	RevokedBundle    Reason = "revoked bundle" // this very content
	Expired          Reason = "expired"
	NotYet           Reason = "signed in the future"
	TierExceeded     Reason = "tier exceeded" // the publisher is not trusted so far
)

// Why it does not fit what is installed.
const (
	Downgrade      Reason = "downgrade"
	Republished    Reason = "republished"     // the same version with another content
	OtherPublisher Reason = "other publisher" // the name belongs to somebody else
)

// A rule is what a caller can do about a refusal.
type rule struct {
	kind   fault.Kind
	remedy string
}

const packAgain = "pack it again with glasshouse bundle sign -o"

// rules has every Reason. The documentation lists the same.
var rules = map[Reason]rule{
	Malformed: {fault.Invalid, packAgain},
	Traversal: {fault.Denied, "do not use it: somebody tried to write outside of the bundle"},
	Absolute:  {fault.Denied, "do not use it: somebody tried to write outside of the bundle"},
	BadName:   {fault.Invalid, "rename the file, and sign again"},
	LongName:  {fault.Invalid, "shorten the name, and sign again"},
	Symlink:   {fault.Denied, "put the file itself in its place, and sign again"},
	HardLink:  {fault.Denied, "put the file itself in its place, and sign again"},
	Special:   {fault.Denied, "leave it out, and sign again"},
	Duplicate: {fault.Denied, packAgain},
	Collision: {fault.Denied, "rename one of the two, and sign again"},
	Bomb:      {fault.Denied, "do not use it: it is made to fill memory or disk"},
	TooLarge:  {fault.TooLarge, "leave out what is not needed: models and data belong elsewhere"},
	TooMany:   {fault.TooLarge, "leave out what is not needed, such as caches and test data"},
	Trailing:  {fault.Denied, packAgain},
	Encrypted: {fault.Invalid, packAgain},

	Unsigned:      {fault.Denied, "ask its publisher for a signed one; your own you sign with glasshouse bundle sign"},
	BadSignature:  {fault.Invalid, "get the bundle again from its publisher"},
	WrongKey:      {fault.Denied, "do not use it: it is not from whom it says"},
	Unlisted:      {fault.Denied, "get the bundle again from its publisher"},
	Missing:       {fault.Denied, "get the bundle again from its publisher"},
	Tampered:      {fault.Denied, "get the bundle again from its publisher"},
	ModeChanged:   {fault.Denied, packAgain},
	BadMetadata:   {fault.Invalid, "correct metadata.json, and sign again"},
	BadCapability: {fault.Invalid, "correct the manifest, and sign again"},
	BadSkill:      {fault.Invalid, "correct the skill, and sign again"},
	Exceeds:       {fault.Denied, "say in metadata.json all that the capabilities need, and sign again"},
	OtherContent:  {fault.Denied, "get the bundle again from its publisher"},

	UnknownPublisher: {fault.Denied, "if you trust them, and have the key from them, glasshouse bundle trust"},
	UnknownKey:       {fault.Denied, "ask the publisher, on another way, whether the key is theirs; then glasshouse bundle trust"},
	RevokedKey:       {fault.Denied, "ask the publisher for one that is signed by their new key"},
	RetiredKey:       {fault.Denied, "ask the publisher for one that is signed by their new key"},
	RevokedBundle:    {fault.Denied, "ask the publisher for a newer version"},
	Expired:          {fault.Denied, "ask the publisher for a newer version, or one that is signed anew"},
	NotYet:           {fault.Denied, "look at the clocks, here and there"},
	TierExceeded:     {fault.Denied, "if you trust the publisher that far, glasshouse bundle trust with another tier"},

	Downgrade:      {fault.Conflict, "remove the installed version first, if the older one is really wanted"},
	Republished:    {fault.Conflict, "ask the publisher for a version of its own: what was approved was another content"},
	OtherPublisher: {fault.Conflict, "remove the installed bundle first, if it is to come from somebody else"},
}

// refuse is the error for a reason.
func refuse(r Reason, on, format string, args ...any) error {
	rule := rules[r]
	return &fault.Error{
		Op: "bundle", On: on, Kind: rule.kind, Remedy: rule.remedy,
		Err: fmt.Errorf("%w: "+format, append([]any{r}, args...)...),
	}
}

// ReasonOf returns why a bundle was refused, or "" if that is not what err says.
func ReasonOf(err error) Reason {
	r, _ := errors.AsType[Reason](err)
	return r
}
