package skill

import (
	"maps"
	"slices"
)

// ImportFiles imports an in-memory folder.
func ImportFiles(files map[string]string) (*Imported, error) {
	f := &folder{files: map[string]file{}}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !writable(name) {
			continue
		}
		f.files[name] = file{text: []byte(files[name])}
		f.order = append(f.order, name)
	}
	return importFolder(f)
}
