package migrations_test

import (
	"slices"
	"testing"

	"github.com/callq/callq/internal/pgtest"
	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/migrations"
)

// Up tells the version of the schema, step by step.
func TestUpTells(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	var told []int64
	_, err := migrations.UpAndTell(t.Context(), pool.Config().ConnConfig, schema.Names{Own: "callq2", Tables: "tables2"}, func(version, of int64) {
		if told = append(told, version); of != migrations.Version() {
			t.Errorf("version %d of %d", version, of)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	var want []int64
	for version := range migrations.Version() + 1 {
		want = append(want, version)
	}
	if !slices.IsSorted(told) || !slices.Equal(slices.Compact(told), want) {
		t.Errorf("it tells %v, want each of %v", told, want)
	}
}
