package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/tasks"
)

// A snooze counts as no failure, but each attempt uses the limit.
func TestSnooze(t *testing.T) {
	t.Parallel()
	b := newBench(t, map[string]tasks.Handler{
		"twice": func(_ context.Context, call *tasks.Call) error {
			switch call.Attempt {
			case 1:
				return tasks.Snooze(0)
			case 2:
				return fmt.Errorf("the report is not ready: %w", tasks.Snooze(-time.Hour))
			case 3:
				return errors.New("one of the two failures that the queue allows")
			case 4:
				return tasks.Snooze(time.Millisecond)
			}
			return nil
		},
		"later": func(context.Context, *tasks.Call) error { return tasks.Snooze(time.Hour) },
		"never": func(context.Context, *tasks.Call) error { return tasks.Snooze(math.MaxInt64) },
		"late": func(ctx context.Context, _ *tasks.Call) error {
			<-ctx.Done()
			return tasks.Snooze(time.Hour)
		},
	})
	twice := b.insert("twice")
	b.await(`SELECT status = 'done' AND attempts = 5 AND failed_count = 1 AND error_message IS NULL FROM call_queue WHERE id = $1`, twice)
	b.await(`SELECT array_agg(outcome ORDER BY attempt) = '{snoozed,snoozed,error,snoozed,done}'
			AND bool_and(jsonb_array_length(charged) = 1 AND arrived_by BETWEEN started_at AND finished_at + interval '90 s')
		FROM call_attempts WHERE call_id = $1`, twice)
	b.await(`SELECT sum(used) = 5 FROM call_usage`)

	later := b.insertCall(callqueue.Call{Task: "later", UniqueKey: "u"})
	for _, id := range []int64{later, b.insertCall(callqueue.Call{Queue: "short", Task: "late"})} {
		b.await(`SELECT count(*) = 1 FROM call_attempts WHERE call_id = $1 AND outcome = 'snoozed' AND error IS NULL`, id)
		b.await(`SELECT status = 'new' AND run_at BETWEEN now() + interval '55 min' AND now() + interval '1 h' AND failed_count = 0
			AND finished_at IS NULL FROM call_queue WHERE id = $1`, id)
	}
	b.await(`SELECT unique_key = 'u' FROM call_queue WHERE id = $1`, later) // it has not ended
	b.await(`SELECT status = 'new' AND attempts = 1 AND run_at > now() + interval '99 years' FROM call_queue WHERE id = $1`, b.insert("never"))
	b.verify()
}
