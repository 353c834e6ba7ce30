package dispatcher

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/callq/callq/internal/pgtest"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"
)

// openCase is an open attempt, and usageCase a charge, of the limits with these bits. Times are
// ms on one line.
type openCase struct {
	Limits     int
	Own        bool // a handler of one's own, not http
	Older      bool // of an older epoch
	Started    int  // 0: not
	SendWithin int
	Cost       int64
}

type usageCase struct {
	Limit, Bucket, Shard int
	Used                 int64
}

// What a claim counts as occupied is what an oracle adds up row by row.
func TestOccupied(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	zero := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(ms int) time.Time { return zero.Add(time.Duration(ms) * time.Millisecond) }
	names, anchors, slacks := []string{"a", "b", "c"}, []string{"", "start", "finish"}, []int{3, 1, 2}
	opens := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) openCase {
		return openCase{
			rapid.IntRange(0, 7).Draw(t, "limits"), rapid.Bool().Draw(t, "own"), rapid.IntRange(0, 4).Draw(t, "older") == 0,
			rapid.IntRange(0, 30).Draw(t, "started"), rapid.IntRange(0, 5).Draw(t, "send within"), rapid.Int64Range(1, 3).Draw(t, "cost"),
		}
	}), 0, 12)
	usage := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) usageCase {
		return usageCase{
			rapid.IntRange(0, 2).Draw(t, "limit"), rapid.IntRange(1, 40).Draw(t, "bucket"),
			rapid.IntRange(1, 3).Draw(t, "shard"), rapid.Int64Range(1, 3).Draw(t, "used"),
		}
	}), 0, 12, func(u usageCase) [3]int { return [3]int{u.Limit, u.Bucket, u.Shard} })
	rapid.Check(t, func(rt *rapid.T) {
		opens, usage := opens.Draw(rt, "open"), usage.Draw(rt, "usage")
		since := rapid.SliceOfN(rapid.IntRange(0, 35), 3, 3).Draw(rt, "since")
		var all pgx.Batch
		all.Queue(`TRUNCATE call_open, call_usage, call_limits`)
		for i, name := range names {
			all.Queue(`INSERT INTO call_limits (name, version, rate, window_size, anchor, slack, send_within, queues, published_at, published_by, epoch)
				VALUES ($1, 1, 1, '1 s', nullif($2, ''), $3, '0', '{}', now(), 'test', 'now')`, name, anchors[i], time.Duration(slacks[i])*time.Millisecond)
		}
		for i, o := range opens {
			charged := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return o.Limits>>slices.Index(names, name)&1 == 0 })
			var started *time.Time
			if o.Started > 0 {
				v := at(o.Started)
				started = &v
			}
			task, epoch := "http", "now"
			if o.Own {
				task = "own"
			}
			if o.Older {
				epoch = "older"
			}
			all.Queue(`INSERT INTO call_open (call_id, attempt, parcel_no, batch, cost, claimed_at, handed_at, start_by, started_at, send_within, epoch, pool, queue, task, key, limits, keys, costs)
				VALUES ($1, 1, 0, 1, 1, now(), now(), now(), $2, $3, $4, 'http', 'default', $5, '', $6::text[],
					array_fill(''::text, ARRAY[cardinality($6::text[])]), array_fill($7::bigint, ARRAY[cardinality($6::text[])]))`,
				i+1, started, time.Duration(o.SendWithin)*time.Millisecond, epoch, task, charged, o.Cost)
		}
		for _, u := range usage {
			all.Queue(`INSERT INTO call_usage VALUES ($1, '', $2, $3, $4)`, names[u.Limit], at(u.Bucket), u.Shard, u.Used)
		}
		if err := pool.SendBatch(context.Background(), &all).Close(); err != nil {
			rt.Fatal(err)
		}
		rows, err := pool.Query(context.Background(), occupiedSQL, names, []time.Time{at(since[0]), at(since[1]), at(since[2])})
		if err != nil {
			rt.Fatal(err)
		}
		counted, err := pgx.CollectRows(rows, pgx.RowToStructByName[occupied])
		if err != nil {
			rt.Fatal(err)
		}
		slices.SortFunc(counted, func(a, b occupied) int { return cmp.Compare(a.Name, b.Name) })
		got, want := "", ""
		for _, c := range counted {
			first := math.MaxInt
			if c.FreedAt != nil {
				first = int(c.FreedAt.Sub(zero) / time.Millisecond)
			}
			got += fmt.Sprintln(c.Name, c.Occupied, first)
		}
		for i, name := range names {
			sum, first := int64(0), math.MaxInt
			for _, o := range opens {
				until := math.MaxInt
				bounded := anchors[i] == "start" || anchors[i] == "" && !o.Own
				if o.Started > 0 && !o.Older && bounded {
					until = o.Started + o.SendWithin + slacks[i]
				}
				if o.Limits>>i&1 == 1 && until > since[i] {
					sum += o.Cost
					if until < math.MaxInt {
						first = min(first, o.Started)
					}
				}
			}
			for _, u := range usage {
				if u.Limit == i && u.Bucket > since[i] {
					sum += u.Used
					first = min(first, u.Bucket)
				}
			}
			want += fmt.Sprintln(name, sum, first)
		}
		if got != want {
			rt.Fatalf("got\n%swant\n%s", got, want)
		}
	})
}
