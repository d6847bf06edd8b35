package wire

import (
	"encoding/json"
	"time"

	"glasshouse/id"
)

// Policy is a set of policy files and the options with which they are evaluated.
type Policy struct {
	Files   []PolicyFile `json:"files,omitempty" maxItems:"16" description:"Permission files (opencode.json, .jsonc; later files take precedence over earlier ones) and decision frameworks (AGENTS.md)."`
	Match   string       `json:"match,omitempty" enum:"longest,last" description:"Which of several matching patterns takes precedence. Default: the convention that the files were written for."`
	Agent   string       `json:"agent,omitempty" maxLength:"128" description:"The agent whose rules apply when a request names no agent."`
	Level   int          `json:"level,omitempty" minimum:"0" maximum:"3" description:"Autonomy level: 1 guided (the default), 2 intelligent, 3 full."`
	Ceiling int          `json:"ceiling,omitempty" minimum:"0" maximum:"3" description:"The highest level that the jail can be raised to. Default: the level."`
	Answers []PolicyRule `json:"answers,omitempty" description:"Remembered answers to approval requests."`

	Tiers []PolicyTier `json:"tiers,omitempty" description:"Who must approve an action. The first match applies; without a match the tier is standard."`

	Home      string `json:"home,omitempty" description:"The home directory in the jail, which replaces ~ in patterns. Default: /root."`
	Workspace string `json:"workspace,omitempty" description:"The project directory in the jail, to which file patterns are relative."`
}

// PolicyTier sets who must approve matching actions: no person (preapproved), one person
// (standard), or one person who types a confirmation phrase, or two persons (elevated).
type PolicyTier struct {
	Action  string `json:"action" required:"true" description:"A tool name or pattern."`
	Pattern string `json:"pattern" required:"true" description:"Pattern for the resource."`
	Tier    string `json:"tier" required:"true" enum:"preapproved,standard,elevated"`
}

// PolicyFile is a policy file. Its name determines its format.
type PolicyFile struct {
	Name string `json:"name" required:"true" maxLength:"256"`
	Text string `json:"text" required:"true" description:"Content of the file."`
}

// PolicyRule is a rule of a policy file, of an autonomy level, or of a remembered
// answer.
type PolicyRule struct {
	Action  string `json:"action" required:"true" description:"A tool name or pattern."`
	Pattern string `json:"pattern" required:"true" description:"Pattern for the resource."`
	Effect  string `json:"effect" required:"true" enum:"allow,ask,deny"`
	File    string `json:"file,omitempty" description:"The policy file of the rule."`
	Line    int    `json:"line,omitempty" description:"The line in the file."`
}

// PolicyState is the policy of a jail and how it was interpreted.
type PolicyState struct {
	Policy   *Policy         `json:"policy,omitempty"`
	Match    string          `json:"match,omitempty" description:"Which of several matching patterns takes precedence."`
	Why      string          `json:"why,omitempty" description:"Why this precedence was chosen."`
	Level    int             `json:"level,omitempty"`
	Ceiling  int             `json:"ceiling,omitempty"`
	Advice   []PolicyAdvice  `json:"advice,omitempty" description:"Guidelines of decision frameworks that are not rules. The agent can read them."`
	Findings []PolicyFinding `json:"findings,omitempty" description:"Lint findings: parts of the files that have another effect than they seem to have."`
}

// PolicyAdvice is a guideline of a decision framework.
type PolicyAdvice struct {
	Text string `json:"text" required:"true"`
	File string `json:"file" required:"true"`
	Line int    `json:"line" required:"true"`
}

// PolicyFinding is a lint finding: a part of a file that has another effect than it
// seems to have.
type PolicyFinding struct {
	Kind    string `json:"kind" required:"true"`
	File    string `json:"file" required:"true"`
	Line    int    `json:"line,omitempty"`
	Message string `json:"message" required:"true"`
	Remedy  string `json:"remedy,omitempty"`
}

// PolicyLevel changes the autonomy level of a jail.
type PolicyLevel struct {
	Level int `json:"level" required:"true" minimum:"1" maximum:"3" description:"Autonomy level: 1 guided, 2 intelligent, 3 full."`
}

// Question is an action that the policy engine evaluates.
type Question struct {
	Action     string            `json:"action" required:"true" minLength:"1" maxLength:"128" description:"A tool name: bash, edit, read, webfetch, connect, …"`
	Resource   string            `json:"resource,omitempty" description:"The object of the action: a command line, path, URL or host:port."`
	Agent      string            `json:"agent,omitempty" maxLength:"128" description:"The agent that performs the action."`
	Attributes map[string]string `json:"attributes,omitempty" description:"Additional attributes of the action."`
}

// Decide evaluates an action in the context of a jail.
type Decide struct {
	Question
	WaitMS int64 `json:"wait_ms,omitempty" minimum:"0" maximum:"3600000" description:"How long to wait for a person's answer, in milliseconds, if approval is required. Default: one minute."`
}

// Decision is the result of evaluating the policy rules, with the reason.
type Decision struct {
	Effect string     `json:"effect" required:"true" enum:"allow,ask,deny" description:"Result of the rules."`
	Rule   PolicyRule `json:"rule" required:"true" description:"The rule that decided."`
	Reason string     `json:"reason" required:"true"`
	Remedy string     `json:"remedy,omitempty"`
	Listed bool       `json:"listed,omitempty" description:"The list of pre-approved actions allows it."`
	Final  bool       `json:"final,omitempty" description:"Remembered answers cannot override this decision."`
}

// Verdict is the final outcome for an action, after a person has answered if approval
// was required.
type Verdict struct {
	Allow    bool     `json:"allow" required:"true"`
	Tag      string   `json:"tag" required:"true" enum:"AUTONOMOUS,WHITELISTED,APPROVED,DENIED" description:"AUTONOMOUS: the rules allowed it. WHITELISTED: the list of pre-approved actions allowed it. APPROVED: a person approved it. DENIED: it was denied."`
	Decision Decision `json:"decision" required:"true"`
	By       string   `json:"by,omitempty" description:"The person who answered."`
	Instead  string   `json:"instead,omitempty" description:"The resource that is allowed instead of the requested one."`
	Entry    int64    `json:"entry" required:"true" description:"Number of the audit log entry."`
}

// Explain requests the evaluation of an action without performing it.
type Explain struct {
	Policy   *Policy  `json:"policy,omitempty" description:"The policy to evaluate. Default: the jail's policy."`
	Jail     id.Jail  `json:"jail,omitempty"`
	Question Question `json:"question" required:"true"`
}

// Explained is the result of an evaluation and the rules that were considered.
type Explained struct {
	Decision   Decision         `json:"decision" required:"true"`
	Considered []ConsideredRule `json:"considered,omitempty"`
	Egress     *ExplainedEgress `json:"egress,omitempty" description:"For a connection from a jail in network mode proxy: the result of the egress rules. They are evaluated before the policy, and a connection that they allow is not evaluated by the policy."`
}

// ExplainedEgress is the result of evaluating a jail's egress rules for a connection.
type ExplainedEgress struct {
	Allow  bool   `json:"allow" required:"true"`
	Asks   bool   `json:"asks,omitempty" description:"The egress rules defer to the policy."`
	Rule   string `json:"rule,omitempty" description:"The rule that allows the connection, or the closest one."`
	Reason string `json:"reason,omitempty"`
	Detail string `json:"detail,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

// ConsideredRule is a rule that was considered for a part of the action.
type ConsideredRule struct {
	Part    string     `json:"part" required:"true" description:"The part of the action, such as one command of a command line."`
	Rule    PolicyRule `json:"rule" required:"true"`
	Set     string     `json:"set" required:"true" description:"The rule set to which the rule belongs."`
	Matches bool       `json:"matches,omitempty" description:"The rule matches."`
	Decides bool       `json:"decides,omitempty" description:"The rule determines the result for this part."`
}

// Egress is the egress rules of a jail in network mode proxy.
type Egress struct {
	Allow []EgressRule `json:"allow,omitempty" maxItems:"4096" description:"Rules in order of precedence. The first matching rule applies."`
	Ask   bool         `json:"ask,omitempty" description:"Request approval for access that no rule allows, instead of denying it."`
	Limit EgressLimit  `json:"limit,omitzero" description:"Limit for all access together."`
	Query bool         `json:"query,omitempty" description:"Record the query strings of URLs, which may contain private data."`
}

// EgressRule allows network access.
type EgressRule struct {
	Name       string         `json:"name,omitempty" maxLength:"128" description:"Display name, used in messages."`
	Host       string         `json:"host" required:"true" maxLength:"256" description:"A host name, *.example.com, * for every name, or an IP address or prefix. A private address is allowed only by an address or prefix rule."`
	Ports      []uint16       `json:"ports,omitempty" description:"Destination ports. Default: 80 and 443."`
	Methods    []string       `json:"methods,omitempty" description:"Allowed HTTP methods. Default: all except TRACE."`
	Paths      []string       `json:"paths,omitempty" description:"URL path patterns, in which * matches any sequence of characters."`
	Capability string         `json:"capability,omitempty" maxLength:"256" description:"The capability to which the rule belongs."`
	Limit      EgressLimit    `json:"limit,omitzero"`
	Inject     []EgressInject `json:"inject,omitempty" description:"Secrets to add to requests. They are never visible in the jail."`
	Intercept  bool           `json:"intercept,omitempty" description:"Intercept TLS with a certificate authority that only this jail trusts. Implied by inject, methods and paths."`
	Internet   bool           `json:"internet,omitempty" description:"For an address or prefix: match only its public Internet addresses. Without ports, all ports match."`
	Deny       bool           `json:"deny,omitempty" description:"Deny the address or prefix, whatever name resolves to it, unless an earlier rule allows it. Without ports, all ports match."`
}

// EgressLimit limits requests and bytes.
type EgressLimit struct {
	Requests int   `json:"requests,omitempty" minimum:"0" description:"Requests per per_ms, or per minute if per_ms is omitted."`
	PerMS    int64 `json:"per_ms,omitempty" minimum:"0" description:"Period of the request limit, in milliseconds."`
	Bytes    int64 `json:"bytes,omitempty" minimum:"0" description:"Bytes, sent and received together."`
}

// EgressInject adds a secret to requests.
type EgressInject struct {
	Secret string `json:"secret" required:"true" maxLength:"128"`
	As     string `json:"as" required:"true" enum:"bearer,header,query,basic" description:"How the secret is added: as a bearer token, a header, a query parameter, or the password of HTTP Basic authentication."`
	Name   string `json:"name,omitempty" maxLength:"128" description:"Name of the header, query parameter or user."`
}

// EgressState is the egress rules of a jail and the statistics of its proxy.
type EgressState struct {
	Egress  Egress       `json:"egress" required:"true"`
	Version string       `json:"version,omitempty" description:"Version of the rules. It differs if the rules differ."`
	Stats   *EgressStats `json:"stats,omitempty" description:"Statistics since the jail was started."`
}

// EgressStats is the statistics of a jail's egress proxy.
type EgressStats struct {
	Open        int              `json:"open" required:"true" description:"Connections that are open now."`
	Connections int64            `json:"connections" required:"true"`
	Requests    int64            `json:"requests" required:"true"`
	Queries     int64            `json:"queries" required:"true" description:"DNS queries."`
	Sent        int64            `json:"sent" required:"true" description:"Bytes sent by the jail."`
	Received    int64            `json:"received" required:"true" description:"Bytes received by the jail."`
	Refused     map[string]int64 `json:"refused,omitempty" description:"Number of denied requests, by reason."`
}

// ClaimedDecision is a plugin's report of a tool call that its agent is about to make.
type ClaimedDecision struct {
	Tool      string          `json:"tool" required:"true" minLength:"1" maxLength:"128" description:"Name of the tool."`
	Args      json.RawMessage `json:"args,omitempty" description:"Arguments of the tool call."`
	Agent     string          `json:"agent,omitempty" maxLength:"128"`
	Timestamp string          `json:"timestamp,omitempty" maxLength:"64"`
	WaitMS    int64           `json:"wait_ms,omitempty" minimum:"0" maximum:"3600000" description:"How long to wait for a person's answer, in milliseconds, if approval is required."`
}

// TrailEntry is a policy decision in the audit log.
type TrailEntry struct {
	Seq      int64      `json:"seq" required:"true" description:"Number of the audit log entry."`
	At       time.Time  `json:"at" required:"true"`
	Action   string     `json:"action" required:"true"`
	Resource string     `json:"resource" required:"true"`
	Agent    string     `json:"agent,omitempty"`
	Allowed  bool       `json:"allowed" required:"true"`
	Tag      string     `json:"tag" required:"true"`
	Rule     PolicyRule `json:"rule" required:"true"`
	Reason   string     `json:"reason,omitempty"`
	By       string     `json:"by,omitempty"`
	Observed bool       `json:"observed,omitempty" description:"The Linux kernel reported the action; the agent did not."`
	Line     string     `json:"line" required:"true" description:"The entry as a line of text."`
}

// ChainEntry is an entry of the causal chain (the audit log), exactly as it is hashed.
type ChainEntry struct {
	Seq        int64           `json:"seq" required:"true"`
	Time       string          `json:"time" required:"true"`
	Kind       string          `json:"kind" required:"true"`
	Parent     int64           `json:"parent" required:"true" description:"The entry that caused this one, or 0."`
	Jail       string          `json:"jail" required:"true"`
	Session    string          `json:"session" required:"true"`
	Run        string          `json:"run" required:"true"`
	Capability string          `json:"capability" required:"true"`
	Agent      string          `json:"agent" required:"true"`
	Body       json.RawMessage `json:"body" required:"true"`
	Prev       string          `json:"prev" required:"true" description:"Hash of the previous entry."`
	Hash       string          `json:"hash" required:"true" description:"Hash of this entry."`
}

// ChainHead is the current state of the audit log.
type ChainHead struct {
	Entries    int64  `json:"entries" required:"true" description:"Number of entries."`
	Key        string `json:"key" required:"true" description:"The public key that verifies checkpoints."`
	Checkpoint string `json:"checkpoint,omitempty" description:"The newest signed checkpoint, in C2SP tlog-checkpoint format."`
}

// ChainReport is the result of verifying the audit log.
type ChainReport struct {
	Entries     int64     `json:"entries" required:"true" description:"Number of valid entries, from the first."`
	Checkpoints int64     `json:"checkpoints" required:"true" description:"Number of verified checkpoints."`
	Signed      int64     `json:"signed" required:"true" description:"Number of entries that the last verified checkpoint covers."`
	Key         string    `json:"key,omitempty" description:"The public key that was used."`
	KeyGiven    bool      `json:"key_given" required:"true" description:"true if the key was supplied for the verification, false if it was stored with the log."`
	Bad         *ChainBad `json:"bad,omitempty" description:"The first error; absent if the log is valid."`
}

// ChainBad is the first error found in an audit log.
type ChainBad struct {
	Seq    int64  `json:"seq,omitempty" description:"Number of the invalid entry. Omitted if all entries are valid."`
	Line   int64  `json:"line,omitempty" description:"Line of an export."`
	Reason string `json:"reason" required:"true"`
}

// StoredLog describes the copy of the audit log of a node in the object store.
type StoredLog struct {
	Node    string    `json:"node" required:"true" description:"ID of the node."`
	Entries int64     `json:"entries" required:"true" description:"Number of the newest entry of the copy."`
	Bytes   int64     `json:"bytes" required:"true" description:"Size of the copy, compressed."`
	At      time.Time `json:"at" required:"true" description:"Time of the newest part of the copy."`
}

// WitnessedLog is what a daemon knows of the audit log of another node of the fleet.
type WitnessedLog struct {
	Node       string         `json:"node" required:"true" description:"ID of the node."`
	Key        string         `json:"key" required:"true" description:"Public key of the log."`
	Checkpoint string         `json:"checkpoint" required:"true" description:"Newest signed checkpoint that contains all earlier ones."`
	Entries    int64          `json:"entries" required:"true" description:"Number of entries that the checkpoint covers."`
	At         time.Time      `json:"at" required:"true" description:"When the checkpoint was received."`
	Conflict   *ChainConflict `json:"conflict,omitempty" description:"How the log contradicts the checkpoint; absent if it does not."`
}

// ChainConflict says that an audit log does not contain what other nodes have seen of it.
type ChainConflict struct {
	Reason     string    `json:"reason" required:"true"`
	Checkpoint string    `json:"checkpoint,omitempty" description:"Newest checkpoint of the log when this was noticed."`
	Missing    int64     `json:"missing,omitempty" description:"How many entries fewer the log had, at most."`
	At         time.Time `json:"at" required:"true" description:"When this was noticed first."`
}

// ChainProof proves that an entry is in the audit log. It is verified with the public
// key.
type ChainProof struct {
	Entry      ChainEntry `json:"entry" required:"true"`
	Path       []string   `json:"path" required:"true" description:"Hashes in base64 from the entry to the root, as in RFC 6962."`
	Checkpoint string     `json:"checkpoint" required:"true" description:"Signed checkpoint that covers the entry."`
}

// ChainConsistency proves that the log of one checkpoint is a prefix of the log of
// another.
type ChainConsistency struct {
	From string   `json:"from" required:"true" description:"The earlier checkpoint."`
	To   string   `json:"to" required:"true" description:"The later checkpoint."`
	Path []string `json:"path" required:"true" description:"Hashes in base64, as in RFC 6962."`
}

// ChainFrom names an earlier checkpoint.
type ChainFrom struct {
	Checkpoint string `json:"checkpoint" required:"true" description:"Signed checkpoint, as returned by GET /chain/head."`
}
