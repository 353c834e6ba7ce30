package schema

import (
	"strings"
	"testing"
)

func TestSQL(t *testing.T) {
	t.Parallel()
	elsewhere := Names{Own: "second", Tables: "The shop"}
	for text, want := range map[string]string{
		`SELECT FROM callq.call_open JOIN public.call_queue q ON q.id = call_id`: `SELECT FROM "second".call_open JOIN "The shop".call_queue q ON q.id = call_id`,
		`SELECT callq.epoch(), to_regclass('callq.call_open')`:                   `SELECT "second".epoch(), to_regclass('"second".call_open')`,
		`SELECT pg_notify('callq_wake', '')`:                                     `SELECT pg_notify('second_wake', '')`,
		`LISTEN callq_wake`:                                                      `LISTEN second_wake`,
		`SELECT set_config('callq.woke', 'on', true)`:                            `SELECT set_config('callq.woke', 'on', true)`,
		`SET callq.repair = on`:                                                  `SET callq.repair = on`,
		`SELECT set_config('callq.session_epoch', '', true)`:                     `SELECT set_config('callq.session_epoch', '', true)`,
		`GRANT SELECT ON ALL TABLES IN SCHEMA callq TO callq_viewer`:             `GRANT SELECT ON ALL TABLES IN SCHEMA "second" TO callq_viewer`,
		`CREATE SCHEMA public`:                                                   `CREATE SCHEMA "The shop"`,
		`REVOKE ALL ON FUNCTION public.enqueue_call FROM PUBLIC`:                 `REVOKE ALL ON FUNCTION "The shop".enqueue_call FROM PUBLIC`,
	} {
		if got := elsewhere.SQL(text); got != want {
			t.Errorf("%s\nbecame %s\nwant   %s", text, got, want)
		}
		if got := elsewhere.SQL(elsewhere.SQL(text)); got != want {
			t.Errorf("%s\ntwice became %s", text, got)
		}
		if got := (Names{}).SQL(text); got != text {
			t.Errorf("by default %s\nbecame %s", text, got)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, good := range []Names{{}, {"callq", "public"}, {"q2", "The shop"}, {"", "shop"}, {strings.Repeat("q", 40), strings.Repeat("s", 63)}} {
		if err := good.Check(); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
	for _, bad := range []Names{
		{"Callq", ""},
		{"pg_callq", ""},
		{"call q", ""},
		{strings.Repeat("q", 41), ""},
		{"2q", ""},
		{"", `a"b`},
		{"", "a'b"},
		{"", "pg_shop"},
		{"", strings.Repeat("s", 64)},
		{"public", ""},
		{"shop", "shop"},
	} {
		if bad.Check() == nil {
			t.Errorf("%+v is not refused", bad)
		}
	}
}
