package daemon

import "glasshouse/api"

// OpenAPI is the document of the API that this version's daemons serve.
func OpenAPI(version string) ([]byte, error) { return api.Document(version) }
