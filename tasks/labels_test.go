package tasks_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/callq/callq/internal/pgtest"
	"github.com/callq/callq/internal/redistest"
	"github.com/callq/callq/tasks"
)

// Each claim reads the labels of all workers, so they are bounded, in the table too.
func TestLabelsAreBounded(t *testing.T) {
	t.Parallel()
	pool, redis := pgtest.New(t), redistest.New(t)
	many := slices.Repeat([]string{strings.Repeat("x", 255)}, 65)
	for _, c := range []struct {
		labels []string
		fits   bool
	}{{nil, true}, {many[:64], true}, {many, false}, {[]string{strings.Repeat("x", 256)}, false}} {
		_, err := tasks.New(tasks.Config{Pool: pool, Redis: redis, Labels: c.labels})
		if (err == nil) != c.fits {
			t.Errorf("%d labels: %v", len(c.labels), err)
		}
	}
	register := func(labels []string) error {
		_, err := pool.Exec(t.Context(), `INSERT INTO call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at)
			VALUES (gen_random_uuid(), 'http', '{http}', $1, 1, now(), now())`, labels)
		return err
	}
	if err := register(many[:64]); err != nil {
		t.Error(err)
	}
	for _, labels := range [][]string{many, {strings.Repeat("x", 64*255+1)}} {
		if err := register(labels); err == nil || !strings.Contains(err.Error(), "call_workers_labels_check") {
			t.Errorf("%d labels in the table: %v", len(labels), err)
		}
	}
}
