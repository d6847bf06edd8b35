package rtfs_test

import (
	"slices"
	"testing"

	"glasshouse/capability/rtfs"
)

func TestUndefined(t *testing.T) {
	p, err := rtfs.New(rtfs.Config{}).Compile("", []byte(`
		(defn f [x] (g (later x) (inc x) (let [y 1] y)))
		(defn later [x] (println x) zz)
		(map (fn [a & b] (f a b)) [1])`))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := p.Undefined(), []string{"g", "zz"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
