package admin

import (
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/internal/pgtest"
)

// What the API says stands beside what callq counts; of a limit per key, that of the key that is shown.
func TestRemotes(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	exec(t, pool, `INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, per_key, slack, send_within, queues, applied_at, applied_by, epoch, complete_since)
		SELECT name, 1, 100, '1 h', '3.6 s', name = 'each', '1 s', '1 s', '{q}', now(), '', callq.epoch(), now() FROM unnest('{each,of all,old,silent}'::text[]) AS l (name)`)
	exec(t, pool, `INSERT INTO callq.call_usage VALUES ('each', 'k1', now(), 0, 5), ('each', 'k2', now(), 0, 7)`)
	exec(t, pool, `INSERT INTO callq.call_remotes (limit_name, key, most, remaining, reset_at, answered_at, lowered)
		VALUES ('each', 'k1', 1, 1, NULL, now(), NULL), ('each', 'k2', 100, 12, now() + interval '1 m', now(), 19), ('of all', '', NULL, 3, now() - interval '1 s', now(), 3),
			('old', '', 7, 7, NULL, now() - interval '25 h', NULL)`)
	limits, err := ReadLimits(t.Context(), pool)
	if err != nil || len(limits) != 4 {
		t.Fatal(limits, err)
	}
	each, all := limits[0], limits[1]
	if *each.RemoteLimit != 100 || *each.RemoteRemaining != 12 || *each.Lowered != 19 || each.RemoteReset == nil {
		t.Errorf("of the key: %+v", each.LimitRemote)
	}
	if all.RemoteLimit != nil || *all.RemoteRemaining != 3 || all.remains() != nil || all.Lowered != nil {
		t.Errorf("of all: %+v", all.LimitRemote)
	}
	if limits[2].LimitRemote != (LimitRemote{}) || limits[3].LimitRemote != (LimitRemote{}) {
		t.Errorf("of what is old or not said: %+v", limits[2:])
	}
	gauges, err := ReadGauges(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	if g := gauges.Limits; g[0].Remote != (LimitRemote{}) || g[1].Remote.RemoteRemaining != nil {
		t.Errorf("gauges of what is per key, and of what was reset: %+v", g)
	}
}

func TestRemoteText(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	later, before := new(now.Add(time.Minute)), new(now.Add(-time.Minute))
	for want, says := range map[string]LimitRemote{
		"": {RemoteReset: later},
		"the API says: 12 of 100 remain, until 2030-01-01": {RemoteLimit: new(int64(100)), RemoteRemaining: new(int64(12)), RemoteReset: later},
		"the API says: 12 remain":                          {RemoteRemaining: new(int64(12))},
		"the API says: 100 in all":                         {RemoteLimit: new(int64(100)), RemoteReset: later},
		"the API said: 12 remained, until 2030-01-01":      {RemoteRemaining: new(int64(12)), RemoteReset: before},
		"; at most 14 are used until then":                 {RemoteRemaining: new(int64(0)), RemoteReset: later, Lowered: new(int64(14))},
	} {
		l := Limit{LimitRemote: says, limitFacts: limitFacts{now: now}}
		if text := l.RemoteText(); !strings.Contains(text, want) || (text == "") != (want == "") {
			t.Errorf("%q, want %q", text, want)
		}
	}
}
