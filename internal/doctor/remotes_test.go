package doctor

import (
	"strings"
	"testing"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/pgtest"
)

// Where the API says that its limit is lower than ours, in a window like ours, that is a problem.
func TestOwnLimits(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for name, c := range map[string]struct {
		sql       string
		level     admin.Level // "": there is nothing to find
		what, fix string
	}{
		"lower":              {``, Problem, "limit api allows 100 per 1m, the API says 60", "set rate: 60/1m"},
		"the same":           {`UPDATE callq.call_remotes SET most = 100`, "", "", ""},
		"higher":             {`UPDATE callq.call_remotes SET most = 120`, Note, "the API says 120", "to use all of it, set rate: 120/1m"},
		"of a longer window": {`UPDATE callq.call_remotes SET reset_at = now() + interval '2 m'`, "", "", ""},
		"soon":               {`UPDATE callq.call_remotes SET reset_at = now() + interval '1 s'`, Note, "the API says 60", "if it counts in the same window"},
		"no reset":           {`UPDATE callq.call_remotes SET reset_at = NULL`, Note, "the API says 60", "if it counts in the same window"},
		"a cut reset":        {`UPDATE callq.call_limits SET retry_after = '30 s'`, Note, "the API says 60", "if it counts in the same window"},
		"old":                {`UPDATE callq.call_remotes SET answered_at = now() - interval '25 h'`, "", "", ""},
		"by cost":            {`UPDATE callq.call_limits SET count_cost = true`, "", "", ""},
		"a bucket":           {`UPDATE callq.call_limits SET shape = '{"algorithm": "token_bucket", "burst": 5, "period": "1m"}'`, "", "", ""},
		"at once":            {`UPDATE callq.call_limits SET window_size = '0'`, "", "", ""},
		"set by hand":        {`UPDATE callq.call_limits SET rate = 7, config = '{"units": 60, "window": 60000000000}'`, "", "", ""},
		"a fixed window":     {`UPDATE callq.call_limits SET shape = '{"algorithm": "fixed_window", "period": "1m"}'`, Problem, "limit api allows 100 per 1m", "set rate: 60/1m"},
		"a key":              {`UPDATE callq.call_limits SET per_key = true, overrides = '{"k": 60}'; UPDATE callq.call_remotes SET key = 'k'`, "", "", ""},
		"another key":        {`UPDATE callq.call_limits SET per_key = true, overrides = '{"k": 80}'; UPDATE callq.call_remotes SET key = 'k'`, Problem, "limit api, key k allows 80 per 1m", "set its override to 60"},
	} {
		t.Run(name, func(t *testing.T) {
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(t.Context())
			if _, err := tx.Exec(t.Context(), `INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, slack, send_within, queues, applied_at, applied_by, epoch)
				VALUES ('api', 1, 100, '1 m', '60 ms', '1 s', '1 s', '{q}', now(), '', '');
				INSERT INTO callq.call_remotes (limit_name, key, most, reset_at, answered_at) VALUES ('api', '', 60, now() + interval '40 s', now());`+c.sql); err != nil {
				t.Fatal(err)
			}
			limits, err := admin.Collect[ownLimit](t.Context(), tx, "ask", ownLimitsSQL)
			if err != nil {
				t.Fatal(err)
			}
			var found []*Finding
			for _, l := range limits {
				if f := l.compare(); f != nil {
					found = append(found, f)
				}
			}
			switch {
			case c.level == "" && len(found) == 0:
			case len(found) != 1 || found[0].Level != c.level || !strings.Contains(found[0].What, c.what) || !strings.Contains(found[0].Fix, c.fix):
				t.Errorf("found %+v, want %s, %q, %q", found, c.level, c.what, c.fix)
			}
		})
	}
}
