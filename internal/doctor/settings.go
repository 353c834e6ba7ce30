package doctor

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"
)

const oldestPostgres = 14

// setting is one of Postgres's that callq cares for. callq's own connections set some for themselves; what
// counts here is what producers and Postgres's processes get.
type setting struct {
	name  string
	is    func(value string) bool // whether the value is wrong
	level Level
	why   string
}

func is(bad string) func(string) bool { return func(value string) bool { return value == bad } }

// caredFor are they, with what to set instead.
func caredFor() []setting {
	return []setting{
		{"fsync", is("off"), Problem, "a crash can corrupt the database, and forget what limits have used"},
		{"full_page_writes", is("off"), Problem, "a crash can corrupt the database, and forget what limits have used"},
		{"synchronous_commit", is("off"), Problem, "an insert that was acknowledged may be lost in a crash"},
		{"autovacuum", is("off"), Problem, "tables that callq changes all the time grow without end"},
		{"track_counts", is("off"), Problem, "autovacuum does nothing without it"},
		{
			"default_transaction_isolation", func(v string) bool { return v != "read committed" }, Problem,
			"callq's statements count on read committed",
		},
		{"default_transaction_read_only", is("on"), Problem, "nothing can be inserted or claimed"},
		{"session_replication_role", is("replica"), Problem, "triggers do not fire: calls that are inserted are not found"},
		{"statement_timeout", func(v string) bool {
			ms, err := strconv.Atoi(v)
			return err == nil && ms > 0 && ms < 30_000
		}, Note, "retention and vacuum may be cut short"},
	}
}

// good is what a setting should be.
func good(name string) string {
	switch name {
	case "default_transaction_isolation":
		return "'read committed'"
	case "default_transaction_read_only":
		return "off"
	case "session_replication_role":
		return "origin"
	case "statement_timeout":
		return "0"
	}
	return "on"
}

type settingRow struct {
	Name     string `db:"name"`
	Value    string `db:"setting"`
	Source   string `db:"source"` // default, database, user, …
	Standby  bool   `db:"standby"`
	Version  int    `db:"version"`
	Database string `db:"database"`
	Role     string `db:"role"`
}

const settingsSQL = `
SELECT name, setting, source, pg_is_in_recovery() AS standby, current_setting('server_version_num')::integer AS version,
    quote_ident(current_database()) AS database, quote_ident(current_user) AS role
FROM pg_settings WHERE name = ANY($1)
ORDER BY array_position($1, name)`

func settings(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	var names []string
	for _, s := range caredFor() {
		names = append(names, s.name)
	}
	rows, err := collect[settingRow](ctx, pool, settingsSQL, names)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return judgeSettings(rows), nil
}

func judgeSettings(rows []settingRow) []Finding {
	var found []Finding
	if v := rows[0].Version / 10000; v < oldestPostgres {
		found = append(found, one(Problem, fmt.Sprintf("Postgres is version %d", v), fmt.Sprintf("upgrade it to %d or newer",
			oldestPostgres))...)
	}
	if rows[0].Standby {
		found = append(found, one(Problem, "this Postgres is a standby: nothing can be inserted or claimed",
			"set postgres.url to the primary")...)
	}
	for _, s := range caredFor() {
		for _, r := range rows {
			if r.Name != s.name || !s.is(r.Value) || rows[0].Standby && s.name == "default_transaction_read_only" {
				continue
			}
			found = append(found, Finding{Level: s.level, What: fmt.Sprintf("%s is %s: %s",
				s.name, r.Value, s.why), Fix: r.set(good(s.name))})
		}
	}
	return found
}

// set says how to change a setting where it was made.
func (r settingRow) set(value string) string {
	switch r.Source {
	case "database":
		return fmt.Sprintf("ALTER DATABASE %s SET %s = %s;", r.Database, r.Name, value)
	case "user":
		return fmt.Sprintf("ALTER ROLE %s SET %s = %s;", r.Role, r.Name, value)
	case "database user":
		return fmt.Sprintf("ALTER ROLE %s IN DATABASE %s SET %s = %s;", r.Role, r.Database, r.Name, value)
	case "client":
		return fmt.Sprintf("take %s out of the connection's options", r.Name)
	}
	return fmt.Sprintf("ALTER SYSTEM SET %s = %s; SELECT pg_reload_conf();", r.Name, value)
}

// connections looks whether Postgres has room for more of them.
func connections(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	var used, most int
	if err := pool.QueryRow(ctx, connectionsSQL).Scan(&used, &most); err != nil {
		return nil, err
	}
	return []Finding{headroom(used, most)}, nil
}

const connectionsSQL = `
SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
    current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer`

func headroom(used, most int) Finding {
	f := Finding{Level: OK, What: fmt.Sprintf("%d of %d in use", used, most)}
	if used*10 > most*9 {
		f.Level = Problem
		f.Fix = "raise max_connections (it needs a restart), make pools smaller (postgres.pool), or put pgbouncer before Postgres"
	}
	return f
}
