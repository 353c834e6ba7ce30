package usage

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/callq/callq/internal/ledger"
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
	Key        string
	Claimed    int
	Started    int // 0: not
	SendWithin int // -1: it has no gate
	Acked      int // 0: that is not known
	Overtaken  int // likewise
	Cost       int64
}

type usageCase struct {
	Limit, Bucket, Shard int
	Key                  string
	Used                 int64
}

// asking is what a claim asks about: a limit, a key where it is per key, and what still counts.
type asking struct {
	limit int
	key   string
	since int
}

// What a claim counts as occupied, and lists as coming free, is what an oracle adds up row by row.
//
//callq:guarantee 1
func TestOccupied(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	zero := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(ms int) time.Time { return zero.Add(time.Duration(ms) * time.Millisecond) }
	names, anchors, slacks := []string{"a", "b", "c", "d"}, []string{"", "start", "finish", "start"}, []int{3, 1, 2, 1}
	perKey, proofs := []bool{false, true, false, true}, []string{"slack", "later", "slack", "answer"}
	keys := rapid.SampledFrom([]string{"", "x", "y"})
	opens := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) openCase {
		return openCase{
			rapid.IntRange(0, 15).Draw(t, "limits"), rapid.Bool().Draw(t, "own"), rapid.IntRange(0, 4).Draw(t, "older") == 0,
			keys.Draw(t, "key"), rapid.IntRange(0, 30).Draw(t, "claimed"), rapid.IntRange(0, 30).Draw(t, "started"), rapid.IntRange(-1, 5).Draw(t, "send within"),
			rapid.IntRange(-20, 40).Draw(t, "acknowledged"), rapid.IntRange(-20, 40).Draw(t, "overtaken"), rapid.Int64Range(1, 3).Draw(t, "cost"),
		}
	}), 0, 12)
	usage := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) usageCase {
		u := usageCase{
			rapid.IntRange(0, 3).Draw(t, "limit"), rapid.IntRange(1, 40).Draw(t, "bucket"),
			rapid.IntRange(1, 3).Draw(t, "shard"), keys.Draw(t, "key"), rapid.Int64Range(1, 3).Draw(t, "used"),
		}
		if !perKey[u.Limit] {
			u.Key = ""
		}
		return u
	}), 0, 12, func(u usageCase) string { return fmt.Sprint(u.Limit, u.Bucket, u.Shard, u.Key) })
	rapid.Check(t, func(rt *rapid.T) {
		opens, usage := opens.Draw(rt, "open"), usage.Draw(rt, "usage")
		since := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 45), rapid.IntRange(4990, 5050)), 4, 4).Draw(rt, "since")
		const soon = 1_000_000                      // the tests' times are long ago
		const all100 = 100 * 365 * 24 * 3600 * 1000 // what has no end is listed as that
		upto := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 45), rapid.IntRange(4990, 5050), rapid.Just(2*all100)), 4, 4).Draw(rt, "upto")
		askings := []asking{{0, "", since[0]}, {1, "x", since[1]}, {1, "", since[1]}, {2, "", since[2]}, {3, "y", since[3]}}
		var all pgx.Batch
		all.Queue(`TRUNCATE callq.call_open, callq.call_usage, callq.call_limits`)
		for i, name := range names {
			all.Queue(`INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, per_key, count_cost, anchor, slack, proof, send_within, queues, applied_at, applied_by, epoch)
				VALUES ($1, 1, 1, '1 s', '1 ms', false, false, nullif($2, ''), $3, $4, '0', '{}', now(), 'test', 'now')`,
				name, anchors[i], time.Duration(slacks[i])*time.Millisecond, proofs[i])
		}
		for i, o := range opens {
			charged := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return o.Limits>>slices.Index(names, name)&1 == 0 })
			var started *time.Time
			if o.Started > 0 {
				v := at(o.Started)
				started = &v
			}
			var sendWithin *time.Duration
			if o.SendWithin >= 0 {
				sendWithin = new(time.Duration(o.SendWithin) * time.Millisecond)
			}
			var acked, overtaken *time.Time
			if o.Acked > 0 && o.Started > 0 {
				acked = new(at(o.Acked))
			}
			if o.Overtaken > 0 && o.Started > 0 {
				overtaken = new(at(o.Overtaken))
			}
			task, epoch := "http", "now"
			if o.Own {
				task = "own"
			}
			if o.Older {
				epoch = "older"
			}
			var ofKeys []string
			for _, name := range charged {
				ofKeys = append(ofKeys, map[bool]string{true: o.Key}[perKey[slices.Index(names, name)]])
			}
			all.Queue(`INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, started_at, send_within, epoch, pool, queue, task, key, limits, keys, costs, acked_at, overtaken_at)
				VALUES ($1, 1, 0, 1, 1, $9, now(), now(), $2, $3, $4, 'http', 'default', $5, $10, $6::text[],
					coalesce($8::text[], '{}'), array_fill($7::bigint, ARRAY[cardinality($6::text[])]), $11, $12)`,
				i+1, started, sendWithin, epoch, task, charged, o.Cost, ofKeys, at(o.Claimed), o.Key, acked, overtaken)
		}
		for _, u := range usage {
			all.Queue(`INSERT INTO callq.call_usage VALUES ($1, $5, $2, $3, $4)`, names[u.Limit], at(u.Bucket), u.Shard, u.Used, u.Key)
		}
		if err := pool.SendBatch(context.Background(), &all).Close(); err != nil {
			rt.Fatal(err)
		}
		var counts []*Count
		for _, a := range askings {
			counts = append(counts, &Count{Of: Of{names[a.limit], a.key}, since: at(a.since), upto: at(upto[a.limit])})
		}
		var reads pgx.Batch
		Read(&reads, counts, 0)
		if err := pool.SendBatch(context.Background(), &reads).Close(); err != nil {
			rt.Fatal(err)
		}
		got, want := "", ""
		for _, c := range counts {
			first, listed := math.MaxInt, int64(0)
			if !c.Use.FirstUntil.IsZero() {
				first = min(int(c.Use.FirstUntil.Sub(zero)/time.Millisecond), soon)
			}
			for _, ch := range c.Use.Charges {
				if listed += ch.Units; !ch.Until.After(at(since[slices.Index(names, c.Limit)])) {
					rt.Errorf("a charge of %v until %s, which counts no more", c.Of, ch.Until)
				}
			}
			got += fmt.Sprintln(c.Limit, c.Key, c.Use.Occupied, listed, first)
		}
		for _, a := range askings {
			i := a.limit
			sum, listed, first := int64(0), int64(0), math.MaxInt
			for _, o := range opens {
				until, from := math.MaxInt, 0
				bounded := anchors[i] == "start" || anchors[i] == "" && !o.Own
				switch {
				case o.Started > 0 && o.SendWithin >= 0 && proofs[i] == "later" && (o.Overtaken <= 0 || !bounded || o.Older):
					from = soon // an answer may have come just now
					if o.Overtaken > 0 {
						from = max(o.Started, o.Overtaken)
					}
				case o.Older:
				case o.Started > 0 && bounded && o.SendWithin >= 0 && proofs[i] == "later":
					until, from = max(o.Started+o.SendWithin+slacks[i], o.Overtaken), max(o.Started, o.Overtaken)
				case o.Started > 0 && bounded && o.SendWithin >= 0:
					until, from = o.Started+o.SendWithin+slacks[i], max(o.Started, o.Acked)
					if o.Acked > 0 && proofs[i] != "answer" {
						until = max(until, o.Acked)
					} else {
						until += 5000 // TCP may send it again
					}
				}
				if o.Limits>>i&1 == 1 && (!perKey[i] || o.Key == a.key) && until > a.since {
					sum += o.Cost
					switch {
					case min(until, all100) <= upto[i]:
						listed += o.Cost
					case until < math.MaxInt, from > 0:
						first = min(first, from)
					}
				}
			}
			for _, u := range usage {
				if u.Limit == i && u.Key == a.key && u.Bucket > a.since {
					sum += u.Used
					if u.Bucket <= upto[i] {
						listed += u.Used
					} else {
						first = min(first, u.Bucket)
					}
				}
			}
			want += fmt.Sprintln(names[i], a.key, sum, listed, first)
		}
		if got != want {
			rt.Fatalf("got\n%swant\n%s", got, want)
		}
	})
}

// What a claim counts costs as much as is open and asked about, not the one times the other.
func TestOccupiedIsLinear(t *testing.T) {
	t.Parallel()
	const open, keys = 1000, 256
	for name, analyzed := range map[string]struct{ before, after string }{
		"new": {"SELECT", "SELECT"}, "empty": {"ANALYZE", "SELECT"}, "full": {"SELECT", "ANALYZE"},
	} {
		pool := pgtest.New(t)
		for _, sql := range []string{
			analyzed.before,
			`INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, per_key, count_cost, slack, send_within, queues, applied_at, applied_by, epoch)
			SELECT name, 1, 9, '1 h', '3.6 s', true, false, '1 s', '1 s', '{}', now(), 'test', callq.epoch() FROM unnest('{a,b}'::text[]) name`,
			fmt.Sprintf(`INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, started_at, send_within, epoch, pool, queue, task, key, limits, keys, costs)
			SELECT i, 1, 0, 1, 1, now(), now(), now(), now(), '1 s', callq.epoch(), 'http', 'default', 'http', 'k' || i, '{a,b}', array_fill('k' || i, '{2}'), '{1,1}' FROM generate_series(1, %d) i`, open),
			fmt.Sprintf(`INSERT INTO callq.call_usage SELECT name, 'k' || i, now(), 1, 1 FROM unnest('{a,b}'::text[]) name, generate_series(1, %d) i`, open),
			analyzed.after,
		} {
			if _, err := pool.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		work := pgtest.Work(t, pool, ledger.Settings(), occupiedSQL, `array_fill('a'::text, '{256}')`, pgtest.Literals(keys, "k%d"), "array_fill(now() - interval '1 h', '{256}')", "0", "array_fill(now(), '{256}')", "array_fill(false, '{256}')")
		if most := 10 * (2*open + keys); work > most {
			t.Errorf("%s tables: %d rows were handled, want at most %d", name, work, most)
		}
	}
}

// What one key uses is read without all usage, by screens too, whose sessions have other settings.
func TestUsageOfOneKey(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for _, sql := range []string{
		`INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, per_key, slack, send_within, queues, applied_at, applied_by, epoch, complete_since)
			SELECT name, 1, 1000, '1 h', '18 s', true, '1 s', '1 s', '{q}', now(), '', callq.epoch(), now() FROM unnest('{each,other}'::text[]) AS l (name)`,
		`INSERT INTO callq.call_usage SELECT 'each', 'u' || i, now(), 0, 1 FROM generate_series(1, 30000) i`,
		`VACUUM ANALYZE`,
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for _, settings := range []map[string]string{ledger.Settings(), {"jit": "off", "plan_cache_mode": "force_custom_plan"}} {
		since := "ARRAY[now() - interval '1 h', now() - interval '1 h']"
		if n := pgtest.Work(t, pool, settings, occupiedSQL, "'{each,other}'", "'{u7,u7}'", since, "0", since, "'{false,false}'"); n > 2000 {
			t.Errorf("to read what one of 30,000 keys uses, plans handled %d", n)
		}
	}
}

//callq:guarantee 9
func TestPlans(t *testing.T) {
	t.Parallel()
	pgtest.CheckPlans(t, ledger.Settings(), pgtest.FillSQL, []string{"call_limits"}, map[string]pgtest.Planned{
		"occupied": {SQL: occupiedSQL},
	})
}
