package wire

import (
	"encoding/json"
	"time"

	"glasshouse/id"
)

// Policy is files that decide what a jail may do, and how they are read.
type Policy struct {
	Files   []PolicyFile `json:"files,omitempty" maxItems:"16" description:"Permission files (opencode.json, .jsonc; later ones count over earlier ones) and decision frameworks (AGENTS.md)."`
	Match   string       `json:"match,omitempty" enum:"longest,last" description:"Which of several matching patterns counts. The default is what the files were written for."`
	Agent   string       `json:"agent,omitempty" maxLength:"128" description:"Whose rules count where nobody says who asks."`
	Level   int          `json:"level,omitempty" minimum:"0" maximum:"3" description:"Of autonomy: 1 guided (the default), 2 intelligent, 3 full."`
	Ceiling int          `json:"ceiling,omitempty" minimum:"0" maximum:"3" description:"To which the level may be raised. The default is the level."`
	Answers []PolicyRule `json:"answers,omitempty" description:"What people wanted remembered."`

	Tiers []PolicyTier `json:"tiers,omitempty" description:"What it takes to allow what is asked. The first that matches counts; without one it is standard."`

	Home      string `json:"home,omitempty" description:"The home directory in the jail, for ~ in patterns; the default is /root."`
	Workspace string `json:"workspace,omitempty" description:"The project's directory in the jail, which patterns of files are relative to."`
}

// PolicyTier says what it takes to allow some of what is asked: nobody
// (preapproved), a person (standard), or one who types a phrase, or two (elevated).
type PolicyTier struct {
	Action  string `json:"action" required:"true"`
	Pattern string `json:"pattern" required:"true"`
	Tier    string `json:"tier" required:"true" enum:"preapproved,standard,elevated"`
}

// PolicyFile is a file that decides, by its name.
type PolicyFile struct {
	Name string `json:"name" required:"true" maxLength:"256"`
	Text string `json:"text" required:"true"`
}

// PolicyRule is one thing that a file, a level or a person says.
type PolicyRule struct {
	Action  string `json:"action" required:"true"`
	Pattern string `json:"pattern" required:"true"`
	Effect  string `json:"effect" required:"true" enum:"allow,ask,deny"`
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
}

// PolicyState is the policy of a jail and what follows from it.
type PolicyState struct {
	Policy   *Policy         `json:"policy,omitempty"`
	Match    string          `json:"match,omitempty" description:"How the files are read."`
	Why      string          `json:"why,omitempty" description:"Why they are read so."`
	Level    int             `json:"level,omitempty"`
	Ceiling  int             `json:"ceiling,omitempty"`
	Advice   []PolicyAdvice  `json:"advice,omitempty" description:"What decision frameworks say that is no rule, for the agent to read."`
	Findings []PolicyFinding `json:"findings,omitempty" description:"What in the files does not do what it seems to."`
}

// PolicyAdvice is something that a decision framework says.
type PolicyAdvice struct {
	Text string `json:"text" required:"true"`
	File string `json:"file" required:"true"`
	Line int    `json:"line" required:"true"`
}

// PolicyFinding is something in a file that does not do what it seems to.
type PolicyFinding struct {
	Kind    string `json:"kind" required:"true"`
	File    string `json:"file" required:"true"`
	Line    int    `json:"line,omitempty"`
	Message string `json:"message" required:"true"`
	Remedy  string `json:"remedy,omitempty"`
}

// PolicyLevel changes a jail's level of autonomy.
type PolicyLevel struct {
	Level int `json:"level" required:"true" minimum:"1" maximum:"3"`
}

// Question is one thing that somebody wants to do.
type Question struct {
	Action     string            `json:"action" required:"true" minLength:"1" maxLength:"128" description:"A tool's name: bash, edit, read, webfetch, connect, …"`
	Resource   string            `json:"resource,omitempty" description:"What it is done to: a command line, a path, a URL, host:port."`
	Agent      string            `json:"agent,omitempty" maxLength:"128"`
	Attributes map[string]string `json:"attributes,omitempty"`
}

// Decide asks a question about a jail.
type Decide struct {
	Question
	WaitMS int64 `json:"wait_ms,omitempty" minimum:"0" maximum:"3600000" description:"How long to wait for a person, if one is to be asked. The default is a minute."`
}

// Decision is the answer to a question, and why.
type Decision struct {
	Effect string     `json:"effect" required:"true" enum:"allow,ask,deny" description:"What the rules say."`
	Rule   PolicyRule `json:"rule" required:"true" description:"That decided."`
	Reason string     `json:"reason" required:"true"`
	Remedy string     `json:"remedy,omitempty"`
	Listed bool       `json:"listed,omitempty" description:"The list of pre-approved actions allows it."`
	Final  bool       `json:"final,omitempty" description:"No remembered answer changes it."`
}

// Verdict is what became of a question.
type Verdict struct {
	Allow    bool     `json:"allow" required:"true"`
	Tag      string   `json:"tag" required:"true" enum:"AUTONOMOUS,WHITELISTED,APPROVED,DENIED"`
	Decision Decision `json:"decision" required:"true"`
	By       string   `json:"by,omitempty" description:"The person who answered."`
	Instead  string   `json:"instead,omitempty" description:"What is allowed in the place of what was asked."`
	Entry    int64    `json:"entry" required:"true" description:"Of the chain."`
}

// Explain asks what a policy would say to a question.
type Explain struct {
	Policy   *Policy  `json:"policy,omitempty" description:"The default is the jail's."`
	Jail     id.Jail  `json:"jail,omitempty"`
	Question Question `json:"question" required:"true"`
}

// Explained is what a policy would say, and which rules were looked at.
type Explained struct {
	Decision   Decision         `json:"decision" required:"true"`
	Considered []ConsideredRule `json:"considered,omitempty"`
	Egress     *ExplainedEgress `json:"egress,omitempty" description:"Of a connection from a jail behind the proxy, whose rules come first: what they allow leaves without a question."`
}

// ExplainedEgress is what the egress rules of a jail say to a connection.
type ExplainedEgress struct {
	Allow  bool   `json:"allow" required:"true"`
	Asks   bool   `json:"asks,omitempty" description:"They leave it to the policy."`
	Rule   string `json:"rule,omitempty" description:"That allows it, or comes nearest."`
	Reason string `json:"reason,omitempty"`
	Detail string `json:"detail,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

// ConsideredRule is a rule that was looked at for a part of a question.
type ConsideredRule struct {
	Part    string     `json:"part" required:"true"`
	Rule    PolicyRule `json:"rule" required:"true"`
	Set     string     `json:"set" required:"true"`
	Matches bool       `json:"matches,omitempty"`
	Decides bool       `json:"decides,omitempty"`
}

// Egress is what leaves a jail in network mode proxy.
type Egress struct {
	Allow []EgressRule `json:"allow,omitempty" maxItems:"4096" description:"The first rule that matches counts."`
	Ask   bool         `json:"ask,omitempty" description:"What no rule allows a person is asked about, rather than refused."`
	Limit EgressLimit  `json:"limit,omitzero" description:"For everything together."`
	Query bool         `json:"query,omitempty" description:"Paths are recorded with their query, which may hold what is private."`
}

// EgressRule allows something to leave.
type EgressRule struct {
	Name       string         `json:"name,omitempty" maxLength:"128" description:"As people know it, for messages."`
	Host       string         `json:"host" required:"true" maxLength:"256" description:"A name, *.example.com, * for every name, or an address or prefix. Only what is listed as an address may be one of a private network."`
	Ports      []uint16       `json:"ports,omitempty" description:"The default is 80 and 443."`
	Methods    []string       `json:"methods,omitempty"`
	Paths      []string       `json:"paths,omitempty" description:"Patterns, in which * is any run of characters."`
	Capability string         `json:"capability,omitempty" maxLength:"256"`
	Limit      EgressLimit    `json:"limit,omitzero"`
	Inject     []EgressInject `json:"inject,omitempty" description:"Secrets put into requests. The jail never has them."`
	Intercept  bool           `json:"intercept,omitempty" description:"Look into TLS, with a certificate authority that this jail alone trusts. Implied by inject, methods and paths."`
	Internet   bool           `json:"internet,omitempty" description:"Of an address or prefix: only what of it is on the Internet. Without ports, every port."`
	Deny       bool           `json:"deny,omitempty" description:"Refuse the address or prefix, by whatever name it is reached, unless a rule before this one allows it. Without ports, every port."`
}

// EgressLimit bounds requests and bytes.
type EgressLimit struct {
	Requests int   `json:"requests,omitempty" minimum:"0" description:"In a minute, or in per_ms."`
	PerMS    int64 `json:"per_ms,omitempty" minimum:"0"`
	Bytes    int64 `json:"bytes,omitempty" minimum:"0" description:"Both ways together."`
}

// EgressInject puts a secret into requests.
type EgressInject struct {
	Secret string `json:"secret" required:"true" maxLength:"128"`
	As     string `json:"as" required:"true" enum:"bearer,header,query,basic"`
	Name   string `json:"name,omitempty" maxLength:"128" description:"Of the header, parameter or user."`
}

// EgressState is what leaves a jail, by rule and in numbers.
type EgressState struct {
	Egress Egress       `json:"egress" required:"true"`
	Stats  *EgressStats `json:"stats,omitempty" description:"Of this life of the jail."`
}

// EgressStats are numbers of a jail's proxy.
type EgressStats struct {
	Open        int              `json:"open" required:"true" description:"Connections at this moment."`
	Connections int64            `json:"connections" required:"true"`
	Requests    int64            `json:"requests" required:"true"`
	Queries     int64            `json:"queries" required:"true" description:"Of DNS."`
	Sent        int64            `json:"sent" required:"true" description:"Bytes from the jail."`
	Received    int64            `json:"received" required:"true"`
	Refused     map[string]int64 `json:"refused,omitempty" description:"By reason."`
}

// ClaimedDecision is what a plugin says that its agent is about to do.
type ClaimedDecision struct {
	Tool      string          `json:"tool" required:"true" minLength:"1" maxLength:"128"`
	Args      json.RawMessage `json:"args,omitempty"`
	Agent     string          `json:"agent,omitempty" maxLength:"128"`
	Timestamp string          `json:"timestamp,omitempty" maxLength:"64"`
	WaitMS    int64           `json:"wait_ms,omitempty" minimum:"0" maximum:"3600000"`
}

// TrailEntry is a decision, as the audit trail has it.
type TrailEntry struct {
	Seq      int64      `json:"seq" required:"true" description:"Of the entry in the chain."`
	At       time.Time  `json:"at" required:"true"`
	Action   string     `json:"action" required:"true"`
	Resource string     `json:"resource" required:"true"`
	Agent    string     `json:"agent,omitempty"`
	Allowed  bool       `json:"allowed" required:"true"`
	Tag      string     `json:"tag" required:"true"`
	Rule     PolicyRule `json:"rule" required:"true"`
	Reason   string     `json:"reason,omitempty"`
	By       string     `json:"by,omitempty"`
	Observed bool       `json:"observed,omitempty" description:"The machine's kernel saw it; nobody said it."`
	Line     string     `json:"line" required:"true" description:"As the trail is printed."`
}

// ChainEntry is an entry of the causal chain, exactly as it is hashed.
type ChainEntry struct {
	Seq        int64           `json:"seq" required:"true"`
	Time       string          `json:"time" required:"true"`
	Kind       string          `json:"kind" required:"true"`
	Parent     int64           `json:"parent" required:"true" description:"The entry that caused this one; 0 if none did."`
	Jail       string          `json:"jail" required:"true"`
	Session    string          `json:"session" required:"true"`
	Run        string          `json:"run" required:"true"`
	Capability string          `json:"capability" required:"true"`
	Agent      string          `json:"agent" required:"true"`
	Body       json.RawMessage `json:"body" required:"true"`
	Prev       string          `json:"prev" required:"true"`
	Hash       string          `json:"hash" required:"true"`
}

// ChainHead is what the chain is at this moment.
type ChainHead struct {
	Entries    int64  `json:"entries" required:"true"`
	Key        string `json:"key" required:"true" description:"The public key that checkpoints are verified with."`
	Checkpoint string `json:"checkpoint,omitempty" description:"The newest, signed, in the format of C2SP tlog-checkpoint."`
}

// ChainReport is what verifying found.
type ChainReport struct {
	Entries     int64     `json:"entries" required:"true" description:"That are right, from the first."`
	Checkpoints int64     `json:"checkpoints" required:"true" description:"That were checked."`
	Signed      int64     `json:"signed" required:"true" description:"Entries that the last of them vouches for."`
	Key         string    `json:"key,omitempty"`
	KeyGiven    bool      `json:"key_given" required:"true" description:"Rather than found beside what it vouches for."`
	Bad         *ChainBad `json:"bad,omitempty" description:"The first thing that is wrong, if anything is."`
}

// ChainBad is the first thing in a chain that is wrong.
type ChainBad struct {
	Seq    int64  `json:"seq,omitempty" description:"Of the entry; none if all entries are right."`
	Line   int64  `json:"line,omitempty" description:"Of an export."`
	Reason string `json:"reason" required:"true"`
}

// ChainProof proves that an entry is in the chain, to who has the public key.
type ChainProof struct {
	Entry      ChainEntry `json:"entry" required:"true"`
	Path       []string   `json:"path" required:"true" description:"Hashes, base64, from the entry to the root, as in RFC 6962."`
	Checkpoint string     `json:"checkpoint" required:"true"`
}

// ChainConsistency proves that one checkpoint's chain goes on in another's.
type ChainConsistency struct {
	From string   `json:"from" required:"true"`
	To   string   `json:"to" required:"true"`
	Path []string `json:"path" required:"true"`
}

// ChainFrom names an earlier checkpoint.
type ChainFrom struct {
	Checkpoint string `json:"checkpoint" required:"true"`
}
