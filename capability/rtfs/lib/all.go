package lib

import "slices"

// All returns the whole library, in the order of its documentation.
func All() []Builtin {
	return slices.Concat(
		arithmetic, comparison, logic, texts, patterns,
		collections, sequences, maps, functions, kinds, jsonTexts, failures,
	)
}

// HostNames maps the functions that the host implements to the ids of their capabilities.
var HostNames = map[string]string{
	"println":             "ccos.io.println",
	"print":               "ccos.io.print",
	"log":                 "ccos.io.log",
	"tool/log":            "ccos.io.log",
	"file-exists?":        "ccos.io.file-exists",
	"read-file":           "ccos.io.read-file",
	"write-file":          "ccos.io.write-file",
	"delete-file":         "ccos.io.delete-file",
	"now":                 "ccos.system.now",
	"current-time-millis": "ccos.system.current-time-millis",
	"tool/time-ms":        "ccos.system.current-time-millis",
	"rand":                "ccos.system.rand",
	"uuid":                "ccos.system.uuid",
	"get-env":             "ccos.system.get-env",
	"thread/sleep":        "ccos.system.sleep-ms",
	"http-fetch":          "ccos.network.http-fetch",
	"tool/http-fetch":     "ccos.network.http-fetch",
	"kv/assoc!":           "ccos.state.kv.assoc",
	"kv/dissoc!":          "ccos.state.kv.dissoc",
	"kv/conj!":            "ccos.state.kv.conj",
}
