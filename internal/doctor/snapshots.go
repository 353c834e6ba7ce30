package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Holder is what keeps VACUUM from removing what is dead: a session, a prepared transaction or a replication
// slot that may still see it.
type Holder struct {
	Kind string        `json:"kind" db:"kind"` // session, prepared transaction, replication slot
	Name string        `json:"name" db:"name"` // its pid, gid or name
	Who  string        `json:"who" db:"who"`   // user and application
	Does string        `json:"does" db:"does"` // its state and statement
	Age  time.Duration `json:"age_ns" db:"age"`
	Xids int64         `json:"transactions" db:"xids"` // that began since
}

// End is what ends it.
func (h Holder) End() string {
	switch h.Kind {
	case "session":
		return fmt.Sprintf("SELECT pg_terminate_backend(%s);", h.Name)
	case "prepared transaction":
		return fmt.Sprintf("ROLLBACK PREPARED '%s';", strings.ReplaceAll(h.Name, "'", "''"))
	}
	return fmt.Sprintf("SELECT pg_drop_replication_slot('%s');", strings.ReplaceAll(h.Name, "'", "''"))
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

// Holders are all that hold a snapshot or a transaction, the oldest first.
func Holders(ctx context.Context, pool *pgxpool.Pool) ([]Holder, error) {
	return collect[Holder](ctx, pool, holdersSQL)
}

// Sessions of other databases do not matter to this one's tables, nor does a vacuum. A slot has no age in
// time; only what a standby holds with feedback counts, not the catalog's xmin.
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
	if err != nil {
		return nil, err
	}
	return judgeHolders(holders), nil
}

// shownMost is how many findings of one kind are told apart.
const shownMost = 10

func judgeHolders(holders []Holder) (found []Finding) {
	more := 0
	for _, h := range holders {
		switch old := h.Age >= oldAge || h.Kind == "replication slot" && h.Xids >= oldXids; {
		case old && len(found) < shownMost:
			what := h.String() + "; what callq leaves behind cannot be vacuumed meanwhile"
			found = append(found, Finding{Level: Problem, What: what, Fix: h.End()})
		case old:
			more++
		}
	}
	if more > 0 {
		found = append(found, Finding{
			Level: Problem, What: fmt.Sprintf("%d more hold old snapshots", more),
			Fix: "see pg_stat_activity and pg_prepared_xacts; set idle_in_transaction_session_timeout",
		})
	}
	return found
}
