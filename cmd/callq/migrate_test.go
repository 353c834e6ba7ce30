package main

import (
	"sync"
	"testing"

	"github.com/callq/callq/migrations"
)

func TestMigrate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.do("migrate", "down", "--yes")
	w.empty()
	w.refuses(0, "nothing to take back", "migrate", "down", "--yes")

	applied := make([]int, 4)
	var all sync.WaitGroup
	for i := range applied {
		all.Go(func() {
			applied[i] = len(decode[[]migrations.Migration](t, w.do("migrate", "up", "-o", "json")))
		})
	}
	all.Wait()
	sum := 0
	for _, n := range applied {
		sum += n
	}
	if want := len(decode[[]migrations.Migration](t, w.do("migrate", "status", "-o", "json"))); sum != want {
		t.Errorf("four at once applied %v steps, want %d in all", applied, want)
	}
}

// The SQL for other tools leaves a database that callq takes for its own.
func TestMigrateSQL(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	text := w.do("migrate", "sql")
	w.empty()
	w.exec(text)
	for _, m := range decode[[]migrations.Migration](t, w.do("migrate", "status", "-o", "json")) {
		if !m.Applied {
			t.Errorf("%s is not applied", m.File)
		}
	}
	w.do("migrate", "up")
	w.do("enqueue")
	w.do("verify")
}
