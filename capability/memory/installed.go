package memory

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/capability/schema"
)

const (
	searchLimit = 10
	listLimit   = 100
)

// A capability is a memory capability with its description for agents.
type capability struct {
	id, description string
	input, output   string
	effects         []string
	takes           []manifest.Label
}

const (
	scopeType = `[:scope {:optional true :description "session (default): shared by all runs of this session; run: private to this run"} [:enum "session" "run"]]`
	keyType   = `[:key {:description "Name of the entry: 1 to 256 bytes of text. Use slashes to group entries: user/name"} [:and :string [:min-length 1] [:max-length 256]]]`
	entryType = `[:key :string] [:label :string] [:version :int] [:bytes :int] [:updated :string] [:tags {:optional true} [:vector :string]]`
	tagsType  = `[:vector :string]`
)

var capabilities = []capability{{
	id: "memory.put",
	description: "Stores a value under a key and replaces an existing one. The entry persists across runs of the session, restarts and checkpoints until it is deleted. " +
		"A value is at most 64 KiB of JSON; secrets are refused.",
	input: `[:map ` + keyType + ` [:value {:description "Any JSON"} :any]
		[:tags {:optional true :description "At most 16 tags for search"} ` + tagsType + `]
		[:label {:optional true :description "Raises the data class of the value above that of its inputs: pii or redacted, with dots for subclasses"} :string]
		[:if_version {:optional true :description "Store only if the entry has this version; 0: only if there is no entry"} [:and :int [:>= 0]]]
		` + scopeType + ` [:* :never]]`,
	output:  `[:map [:key :string] [:version :int] [:bytes :int] [:label :string]]`,
	effects: []string{"state"}, takes: []manifest.Label{highest},
}, {
	id:          "memory.get",
	description: "Returns the entry of a key: its value, its author and its time. found is false if there is no entry. The result has the label with which the value was stored.",
	input:       `[:map ` + keyType + ` ` + scopeType + ` [:* :never]]`,
	output: `[:map [:found :bool] [:key {:optional true} :string] [:value {:optional true} :any] [:label {:optional true} :string]
		[:version {:optional true} :int] [:tags {:optional true} ` + tagsType + `] [:from {:optional true} [:map]]]`,
	takes: []manifest.Label{highest},
}, {
	id: "memory.search",
	description: "Searches entries for words in keys, tags and values, best match first. Matches in keys rank above tags, and tags above values; a prefix match counts half. " +
		"All words must match, ignoring case; there is no semantic search. Returns the beginning of each value; use get for the full value.",
	input: `[:map [:query {:optional true :description "Search words; without words all entries match"} [:and :string [:max-length 1024]]]
		[:tags {:optional true :description "Tags that must all match"} ` + tagsType + `] [:prefix {:optional true :description "Prefix of the key"} :string]
		[:limit {:optional true :description "Default: 10"} [:and :int [:in-range 1 100]]] ` + scopeType + ` [:* :never]]`,
	output: `[:map [:total :int] [:found [:vector [:map ` + entryType + ` [:score :int] [:excerpt :string]]]]]`,
	takes:  []manifest.Label{highest},
}, {
	id:          "memory.list",
	description: "Lists entries by key, without values, and the remaining space.",
	input: `[:map [:prefix {:optional true :description "Prefix of the keys"} :string] [:after {:optional true :description "List keys after this one"} :string]
		[:limit {:optional true :description "Default: 100"} [:and :int [:in-range 1 1000]]] ` + scopeType + ` [:* :never]]`,
	output: `[:map [:entries [:vector [:map ` + entryType + `]]] [:more :bool]
		[:holds [:map [:entries :int] [:bytes :int] [:entries_limit :int] [:bytes_limit :int]]]]`,
	takes: []manifest.Label{highest},
}, {
	id:          "memory.forget",
	description: "Deletes the entry of a key. It is not an error if there is no entry.",
	input:       `[:map ` + keyType + ` ` + scopeType + ` [:* :never]]`,
	output:      `[:map [:key :string]]`,
	effects:     []string{"state"}, takes: []manifest.Label{highest},
}}

// Installed returns the memory capabilities for an Engine. They are built in and need no
// approval; policy rules decide whether an agent may call them.
func Installed() []*engine.Installed {
	var all []*engine.Installed
	for _, c := range capabilities {
		source := strings.Join([]string{c.id, version, c.description, c.input, c.output}, "\n")
		all = append(all, &engine.Installed{
			Digest: fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(source))),
			Capability: &manifest.Capability{
				ID: c.id, Description: c.description, Version: version,
				Input: mustParse(c.id+" input", c.input), Output: mustParse(c.id+" output", c.output),
				Effects: c.effects, Runtime: manifest.Spec{Type: manifest.Builtin},
				Filesystem: manifest.Filesystem{Mode: manifest.Ephemeral}, Network: manifest.Network{Mode: manifest.ModeNone},
				Resources:   manifest.Resources{Timeout: 10 * time.Second},
				Approval:    manifest.Approval{Tier: manifest.Preapproved},
				DataClasses: manifest.DataClasses{Input: c.takes},
			},
		})
	}
	return all
}

const version = "1.0.0"

func mustParse(name, text string) *schema.Type {
	t, err := schema.Parse(name, text)
	if err != nil {
		panic(err)
	}
	return t
}
