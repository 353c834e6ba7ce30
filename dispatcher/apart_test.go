package dispatcher_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Whatever one call holds, the others of its queue are claimed, and it fails with the reason.
//
//callq:guarantee 12
func TestOneCallStopsNoOther(t *testing.T) {
	t.Parallel()
	const numbers = `INSERT INTO call_queue (key, call_data) SELECT 'bad', jsonb_agg(jsonb '1e131071') FROM generate_series(1, %d)`
	for name, c := range map[string]struct{ insert, reason string }{
		"a few bytes of numbers":         {fmt.Sprintf(numbers, 20), "call_data has 2621480 bytes, over the limit"},
		"numbers packed":                 {fmt.Sprintf(numbers, 2100), "call_data has more than 262144 bytes"},
		"text that takes long to make":   {fmt.Sprintf(numbers, 7500), "call_data has more than 262144 bytes"},
		"text that Postgres cannot make": {fmt.Sprintf(numbers, 9000), "call_data has more than 262144 bytes"},
		"numbers with many zeros": {
			`INSERT INTO call_queue (key, call_data) SELECT 'bad', jsonb_agg(jsonb '0e-16383') FROM generate_series(1, 90000)`,
			"call_data has more than 262144 bytes",
		},
		"stored in more than 7 MB": {
			`INSERT INTO call_queue (key, call_data) SELECT 'bad', jsonb_agg(md5(i::text)) FROM generate_series(1, 250000) AS i`,
			"call_data has more than 262144 bytes",
		},
		"attempts at their end":     {`INSERT INTO call_queue (key, attempts) VALUES ('bad', 2147483647)`, "attempts 2147483647 is the most there can be"},
		"a trigger that refuses it": {`INSERT INTO call_queue (key) VALUES ('bad')`, "cannot be dispatched: not this one"},
		"data that cannot be read":  {`INSERT INTO call_queue (key, call_data) VALUES ('bad', '{"unreadable": "data of some length"}')`, "call_data cannot be read: broken"},
	} {
		parallel(t, name, func(t *testing.T, s *system) {
			r := rules()
			s.once(r)
			switch {
			case strings.Contains(name, "trigger"):
				s.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''not this one''; END'`)
				s.exec(`CREATE TRIGGER refuse BEFORE UPDATE ON call_queue FOR EACH ROW WHEN (NEW.key = 'bad' AND NEW.status = 'dispatched') EXECUTE FUNCTION refuse()`)
			case strings.Contains(name, "read"): // in the place of Postgres's own function
				s.exec(`CREATE FUNCTION octet_length(data text) RETURNS integer LANGUAGE plpgsql AS $$ BEGIN
					IF data LIKE '%unreadable%' THEN RAISE EXCEPTION 'broken' USING ERRCODE = 'data_corrupted'; END IF;
					RETURN pg_catalog.octet_length(data); END $$`)
				s.exec(`ALTER ROLE CURRENT_USER IN DATABASE ` + one[string](s, `SELECT quote_ident(current_database())`) + ` SET search_path = public, pg_catalog`)
			}
			s.exec(`INSERT INTO call_queue (key, call_data) SELECT k, '{"fine": "data of some length"}' FROM unnest('{bad,good}'::text[]) AS k, generate_series(1, 10)`)
			s.exec(c.insert)
			s.exec(`INSERT INTO call_queue (key) SELECT k FROM unnest('{bad,good}'::text[]) AS k, generate_series(1, 10)`)
			if name == "a trigger that refuses it" {
				s.exec(`UPDATE call_queue SET key = 'beside' WHERE key = 'bad' AND id <> 21`)
			}
			d := s.another(r)
			began := time.Now()
			for range 20 {
				if err := d.Poll(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("20 looks took %s", took)
			}
			s.want(`SELECT count(*) = 40 FROM call_open WHERE call_id <> 21`)
			if got := one[string](s, `SELECT status || ': ' || coalesce(error_message, '') FROM call_queue WHERE id = 21`); !strings.HasPrefix(got, "failed: "+c.reason) {
				t.Errorf("the call is %s, want it failed: %s", got, c.reason)
			}
			if !strings.HasPrefix(c.reason, "attempts") { // verify says that such a counter is wrong
				s.verify()
			}
		})
	}
}
