package probe

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"glasshouse/fault"
)

func TestPVMIsNotKVM(t *testing.T) {
	modules := t.TempDir()
	if err := os.MkdirAll(filepath.Join(modules, "kvm_intel"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := kvmKind(modules, "API 12"); err != nil || got != "API 12" {
		t.Errorf("with kvm_intel: %q, %v; want API 12", got, err)
	}
	if err := os.Rename(filepath.Join(modules, "kvm_intel"), filepath.Join(modules, "kvm_pvm")); err != nil {
		t.Fatal(err)
	}
	if _, err := kvmKind(modules, "API 12"); !errors.Is(err, fault.Unsupported) || fault.RemedyOf(err) == "" {
		t.Errorf("with kvm_pvm: %v, want unsupported, with a remedy", err)
	}
}
