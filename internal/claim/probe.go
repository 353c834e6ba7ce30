package claim

import (
	"context"
	"math"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/internal/usage"
	"github.com/jackc/pgx/v5"
)

// A limit that the API closed (ledger.ShutLimit) opens by a probe: once its time is over, one call is claimed before the others, and
// they wait for its answer, for probeFor at most. If the API refuses it, the limit is closed again; any other answer opens it.

// probeFor is how long others wait for a probe: limiters answer at once, so a call that takes longer was let through.
const probeFor = 2 * time.Second

// door is a limit, or a key of one, that waits for a probe.
type door struct {
	Name, Key string
	Waits     bool // its probe is under way
	Late      bool // the others have waited for long enough
	Open      bool // its probe had an answer
}

// doors reads which limits of the queue wait for probes.
func (s *underLocks) doors(ctx context.Context, conn *schema.Conn) ([]door, error) {
	if !s.probes {
		return nil, nil
	}
	rows, _ := conn.Query(ctx, doorsSQL, s.queue.LimitNames, probeFor) // CollectRows returns its error
	doors, err := pgx.CollectRows(rows, pgx.RowToStructByPos[door])
	return doors, ledger.Wrap("look at closed limits", err)
}

// A probe that was not sent, or lost, is none.
const doorsSQL = `
SELECT p.name, p.key,
    o.call_id IS NOT NULL AND p.probed_at > clock_timestamp() - $2::interval, o.call_id IS NOT NULL AND p.probed_at <= clock_timestamp() - $2::interval,
    a.outcome NOT IN ('not_sent', 'lost', 'refused') IS TRUE
FROM callq.call_pauses p
LEFT JOIN callq.call_open o ON o.call_id = p.call_id AND o.attempt = p.attempt
LEFT JOIN public.call_attempts a ON a.call_id = p.call_id AND a.attempt = p.attempt
WHERE p.what = 'limit' AND p.name = ANY($1) AND p.spell IS NOT NULL AND p.until <= clock_timestamp()`

// knock has the headroom let one call through where a probe is to be claimed, and none where one is under way. It returns the doors
// that are open.
func (h *headroom) knock(doors []door, keys []string) (open []usage.Of) {
	of := map[string][]door{}
	for _, d := range doors {
		switch {
		case d.Open:
			open = append(open, usage.Of{Limit: d.Name, Key: d.Key})
			continue
		case d.Late:
			continue
		}
		if of[d.Name] = append(of[d.Name], d); !d.Waits {
			h.doors = append(h.doors, d)
		}
	}
	for _, l := range h.limits {
		if len(of[l.Name]) > 0 {
			h.guard(l, of[l.Name], keys)
		}
	}
	return open
}

// guard adds a limit of its own for the doors of one: it counts calls, whatever they cost.
func (h *headroom) guard(l policy.LockedLimit, doors []door, keys []string) {
	perKey := l.PerKey
	for _, d := range doors {
		perKey = perKey && d.Key != "" // an empty key is all of them
	}
	room := map[string]int64{}
	if perKey {
		for _, key := range keys {
			room[key] = math.MaxInt64
		}
	}
	l = policy.LockedLimit{Name: l.Name + doorSuffix, PerKey: perKey, Window: probeFor, Units: math.MaxInt64}
	for _, d := range doors {
		key := d.Key
		if !perKey {
			key = ""
		}
		most := int64(1)
		if d.Waits {
			most = 0
		}
		if had, is := room[key]; !is || most < had { // of doors that stand for the same calls, none lets more through than another
			room[key] = most
		}
		h.nextLook[usage.Of{Limit: l.Name, Key: key}] = h.now.Add(doorRetry)
	}
	h.limits = append(h.limits, l)
	h.Admission = append(h.Admission, limit.Quota{PerKey: perKey, Most: math.MaxInt64, Room: room})
}

// doorSuffix tells a door from its limit: no limit's name has a space.
const doorSuffix = " door"

// probed notes which of the chosen calls are probes.
func (h *headroom) probed(b *batch) {
	var names, keys []string
	var ids []int64
	for _, d := range h.doors {
		for _, call := range b.chosen {
			if d.Key == "" || d.Key == call.Key {
				names, keys, ids = append(names, d.Name), append(keys, d.Key), append(ids, call.ID)
				break
			}
		}
	}
	if len(ids) > 0 {
		b.writes.Queue(probedSQL, names, keys, ids)
	}
}

const probedSQL = `
UPDATE callq.call_pauses p SET call_id = o.call_id, attempt = o.attempt, probed_at = o.claimed_at
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS d (name, key, call_id)
JOIN callq.call_open o ON o.call_id = d.call_id
WHERE p.what = 'limit' AND p.name = d.name AND p.key = d.key AND p.spell IS NOT NULL AND p.until <= clock_timestamp()`

const openedSQL = `
DELETE FROM callq.call_pauses p USING unnest($1::text[], $2::text[]) AS d (name, key)
WHERE p.what = 'limit' AND p.name = d.name AND p.key = d.key AND p.spell IS NOT NULL AND p.until <= clock_timestamp()`

func split(of []usage.Of) (names, keys []string) {
	for _, k := range of {
		names, keys = append(names, k.Limit), append(keys, k.Key)
	}
	return names, keys
}
