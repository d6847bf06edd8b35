package daemon

import "glasshouse/api"

// OpenAPI returns the OpenAPI document of this version.
func OpenAPI(version string) ([]byte, error) { return api.Document(version) }
