package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Holder keeps VACUUM from removing dead rows, because it may still see them: a session, a prepared transaction or a
// replication slot.
type Holder struct {
	Kind string        `json:"kind" db:"kind"` // session, prepared transaction, replication slot
	Name string        `json:"name" db:"name"` // its pid, gid or name
	Who  string        `json:"who" db:"who"`   // user and application
	Does string        `json:"does" db:"does"` // its state and statement
	Age  time.Duration `json:"age_ns" db:"age"`
	Xids int64         `json:"transactions" db:"xids"` // that began since
}

// End is the statement that ends it.
func (h Holder) End() string {
	name := "'" + strings.ReplaceAll(h.Name, "'", "''") + "'"
	switch h.Kind {
	case "session":
		return "SELECT pg_terminate_backend(" + h.Name + ");"
	case "prepared transaction":
		return "ROLLBACK PREPARED " + name + ";"
	}
	return "SELECT pg_drop_replication_slot(" + name + ");"
}

func (h Holder) String() string {
	text := fmt.Sprintf("%s %s (%s) holds a snapshot", h.Kind, h.Name, h.Who)
	if h.Age > 0 {
		text += fmt.Sprintf(" that is %s old", tidy(h.Age))
	} else {
		text += fmt.Sprintf(", and %d transactions began since", h.Xids)
	}
	if h.Does != "" {
		text += ": " + h.Does
	}
	return text
}

// Holders returns all that hold a snapshot or a transaction, the oldest first.
func Holders(ctx context.Context, pool *pgxpool.Pool) ([]Holder, error) {
	return collect[Holder](ctx, pool, holdersSQL)
}

// Sessions of other databases do not matter to this one's tables, nor does a vacuum. A slot has no age in time. Of a
// slot only what a standby's feedback holds counts, not the catalog's xmin.
const holdersSQL = `
SELECT kind, name, who, does, greatest(age, '0') AS age, xids
FROM (
    SELECT 'session' AS kind, pid::text AS name, concat_ws(', ', usename, nullif(application_name, '')) AS who,
        concat_ws(': ', CASE WHEN state <> 'active' THEN state END,
            left(regexp_replace(query, '\s+', ' ', 'g'), 80)) AS does,
        clock_timestamp() - coalesce(xact_start, backend_start) AS age,
        coalesce(age(coalesce(backend_xmin, backend_xid)), 0)::bigint AS xids
    FROM pg_stat_activity
    WHERE (datname = current_database() OR backend_type = 'walsender') AND pid <> pg_backend_pid()
      AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL OR state LIKE 'idle in transaction%')
      AND backend_type <> 'autovacuum worker' AND query NOT ILIKE 'vacuum%'
    UNION ALL
    SELECT 'prepared transaction', gid, owner::text, '', clock_timestamp() - prepared, age(transaction)::bigint
    FROM pg_prepared_xacts WHERE database = current_database()
    UNION ALL
    SELECT 'replication slot', slot_name, coalesce(plugin, 'physical'),
        CASE WHEN active THEN 'active' ELSE 'nobody uses it' END, NULL,
        age(xmin)::bigint
    FROM pg_replication_slots WHERE xmin IS NOT NULL
) h
ORDER BY xids DESC, age DESC`

const (
	oldAge  = time.Minute
	oldXids = 1_000_000 // of slots, whose age in time is not known
)

func oldSnapshots(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	holders, err := Holders(ctx, pool)
	return judgeHolders(holders), err
}

// shownMost is how many old snapshots get a finding of their own.
const shownMost = 10

func judgeHolders(holders []Holder) (found []Finding) {
	old := slices.DeleteFunc(holders, func(h Holder) bool {
		return h.Age < oldAge && (h.Kind != "replication slot" || h.Xids < oldXids)
	})
	for _, h := range old[:min(len(old), shownMost)] {
		found = append(found, one(Problem, h.String()+"; what callq leaves behind cannot be vacuumed meanwhile", h.End())...)
	}
	if more := len(old) - shownMost; more > 0 {
		found = append(found, one(Problem, fmt.Sprintf("%d more hold old snapshots", more),
			"see pg_stat_activity and pg_prepared_xacts; set idle_in_transaction_session_timeout")...)
	}
	return found
}
