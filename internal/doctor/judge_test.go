package doctor

import (
	"strings"
	"testing"
	"time"
)

// What no test can stage on servers that it shares: judged from what they would say.
func TestJudgements(t *testing.T) {
	t.Parallel()
	setting := func(name, value, source string) []Finding {
		return judgeSettings([]settingRow{{Name: name, Value: value, Source: source, Version: 150004, Database: "app", Role: "callq"}})
	}
	old := []settingRow{{Name: "fsync", Value: "on", Version: 130010, Standby: true}}
	for name, c := range map[string]struct {
		found []Finding
		level Level // of the first; "": there is none
		what  string
		fix   string
	}{
		"fsync":                       {setting("fsync", "off", "configuration file"), Problem, "fsync is off", "ALTER SYSTEM SET fsync = on"},
		"fsync on":                    {setting("fsync", "on", "default"), "", "", ""},
		"autovacuum":                  {setting("autovacuum", "off", "default"), Problem, "grow without end", "ALTER SYSTEM"},
		"a role's setting":            {setting("synchronous_commit", "off", "user"), Problem, "lost in a crash", "ALTER ROLE callq SET"},
		"a standby of an old version": {judgeSettings(old)[1:], Problem, "standby", "primary"},
		"an old version":              {judgeSettings(old), Problem, "version 13", "14 or newer"},
		"connections":                 {[]Finding{headroom(95, 97)}, Problem, "95 of 97", "max_connections"},
		"enough connections":          {[]Finding{headroom(50, 97)}, OK, "50 of 97", ""},
		"an old slot":                 {judgeHolders([]Holder{{Kind: "replication slot", Name: "s'1", Xids: 5_000_000}}), Problem, "5000000 transactions", "pg_drop_replication_slot('s''1')"},
		"a young slot":                {judgeHolders([]Holder{{Kind: "replication slot", Xids: 5}}), "", "", ""},
		"a young transaction":         {judgeHolders([]Holder{{Kind: "session", Age: time.Second, Xids: 5_000_000}}), "", "", ""},
		"many old transactions":       {judgeHolders(make30()), Problem, "session 7", "pg_terminate_backend(7)"},
		"the rest of them":            {judgeHolders(make30())[10:], Problem, "20 more", "idle_in_transaction"},
		"clocks that agree":           {[]Finding{compareClocks(-2*time.Millisecond, time.Millisecond)}, OK, "2ms behind", ""},
		"clocks that do not":          {[]Finding{compareClocks(2*time.Second, time.Millisecond)}, Problem, "2s ahead", "NTP"},
		"a slow answer":               {[]Finding{compareClocks(2*time.Second, 3*time.Second)}, OK, "give or take 3s", ""},
		"an old Redis":                {readRedis("redis_version:6.0.16\r\n"), Problem, "6.0.16", "6.2"},
		"a new Redis":                 {readRedis("# Server\r\nredis_version:10.0.1\r\n"), OK, "10.0.1", ""},
		"a Redis that says nothing":   {readRedis(""), Note, "version", "6.2"},
		"its policy":                  {readRedis("")[1:], Note, "maxmemory-policy", "noeviction"},
		"a bloated table":             {judgeTables([]Table{{Name: "call_queue", Bytes: 90e6, FreeBytes: 80e6}}), Note, "90 MB, about 80 MB", "vacuum --full"},
		"a small one":                 {judgeTables([]Table{{Name: "call_queue", Bytes: 4e6, FreeBytes: 4e6}}), "", "", ""},
	} {
		switch {
		case c.level == "" && len(c.found) > 0, c.level != "" && len(c.found) == 0:
			t.Errorf("%s: found %+v", name, c.found)
		case c.level == "":
		case c.found[0].Level != c.level || !strings.Contains(c.found[0].What, c.what) || !strings.Contains(c.found[0].Fix, c.fix):
			t.Errorf("%s: found %+v, want %s, %q, %q", name, c.found[0], c.level, c.what, c.fix)
		}
	}
}

func make30() []Holder {
	list := make([]Holder, 30)
	for i := range list {
		list[i] = Holder{Kind: "session", Name: "7", Age: time.Hour}
	}
	return list
}
