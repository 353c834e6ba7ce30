package callqueue

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/callq/callq/internal/pgtest"
)

// What inspect lets through, jsonb must take: else a bad call would abort the caller's transaction.
// What it refuses, jsonb must refuse, but for numbers, where inspect is the stricter.
func FuzzInspect(f *testing.F) {
	pool := pgtest.New(f)
	for _, seed := range []string{
		``, ` `, `{}`, `null`, `"a"`, "\t[1, 2]\r\n", `{"a":{"b":[true,false,null]}}`, `{}{}`, `[1,]`, `{"a"}`, `01`, `-`, `1.`, `.5`, `+1`,
		`"\u0000"`, `"\\u0000"`, `"\\\u0000"`, `{"\u0000":1}`, "\x00", "\"\x00\"", "{}\x00", "\"\x01\"", "\"\x7f\"",
		`"\ud800"`, `"\udc00"`, `"\ud83d\ude00"`, `"\ude00\ud83d"`, `"\ud800\ud800"`, `"\ud83d\ude00\udc00"`, `"\ud83dx\ude00"`,
		`"\ud83d\n\ude00"`, `"\ud83d\\ude00"`, `"\\ud83d"`, `"\ufffd"`, `"\uD83D\uDE00"`, `"\ud83d\u0000"`, `"\ud83d`, `"\u00`, `"\x"`,
		"\"\xff\"", "\"\xed\xa0\x80\"", "\"\xc0\x80\"", "\"\ufffd\u2028\"", "\ufeff{}",
		`1e1000`, `-1E-1000`, `1e+1001`, `1e131071`, `1e131072`, `0e-16384`, `1e99999999999999999999`, `[1e5,-0.0,1E+2]`,
		strings.Repeat("1", maxNumberBytes), "0." + strings.Repeat("1", maxNumberBytes-7) + "e-999", strings.Repeat("1", 200_000),
		strings.Repeat("[", 5000) + strings.Repeat("]", 5000), strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		flaw, _ := inspect(text)
		var ok bool
		err := pool.QueryRow(t.Context(), `SELECT $1::jsonb IS NOT NULL`, string(text)).Scan(&ok)
		if _, refused := errors.AsType[*pgconn.PgError](err); err != nil && !refused {
			t.Fatal(err)
		}
		switch {
		case flaw == "" && err != nil:
			t.Errorf("%q: let through, but Postgres says %v", text, err)
		case flaw != "" && err == nil && !strings.Contains(flaw, "number") && !strings.HasPrefix(string(text), "[[["):
			t.Errorf("%q: %s, but Postgres takes it", text, flaw)
		}
	})
}

func TestInspectTellsEscapedReplacement(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`"\ufffd"`: true, `{"a":["x\ufffdy"]}`: true, `"\uFFFD"`: true,
		`"\\ufffd"`: false, "\"\ufffd\"": false, `"\ufffe"`: false, `"\n"`: false,
	} {
		if flaw, got := inspect([]byte(text)); flaw != "" || got != want {
			t.Errorf("%s: %q, %v; want %v", text, flaw, got, want)
		}
	}
}
