package dispatcher

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// What one process at a time may do stands as a row of call_locks, which only callq's daemons may lock. An advisory
// lock any login of the database may hold, for as long as it likes. A row's lock is written into the row in
// place: it leaves nothing dead.
//
// Processes of the release before took advisory locks of the same names. While some live, both exclude each other:
// claims, for the numbers of their batches rise in the order of their commits, and by them each finds what
// is in use (openfrom.go); publishers, for each goes by what the one before left. So the former lock is taken too, unless no
// login that may lock the row holds or awaits it: then whoever has it is nobody to wait for.

// mutex is a row of call_locks in a transaction.
type mutex struct {
	name   string
	wait   bool
	mine   bool // the row is locked; without wait, another may hold it
	former bool // so is the advisory lock
}

var errNoLock = errors.New("call_locks lacks a row: run `callq migrate up`")

func (m *mutex) ask(batch *pgx.Batch) {
	sql := lockRowSQL + `FOR UPDATE` + formerLockSQL
	if !m.wait {
		sql = lockRowSQL + `FOR UPDATE SKIP LOCKED` + formerLockSQL
	}
	batch.Queue(sql, m.name).QueryRow(func(row pgx.Row) error { return row.Scan(&m.mine, &m.former) })
}

// free lets the process in that has the row, or says that one of the release before is in.
func (m *mutex) free(ctx context.Context, tx pgx.Tx) (free bool, err error) {
	switch {
	case m.wait && !m.mine:
		return false, errNoLock
	case m.mine && !m.former:
		err := tx.QueryRow(ctx, awaitFormerSQL, m.name, m.wait).Scan(&free)
		return free, err
	}
	return m.mine, nil
}

const lockRowSQL = `
WITH mine AS MATERIALIZED (
    SELECT FROM call_locks WHERE name = $1::text `

const formerLockSQL = `
)
SELECT EXISTS (SELECT FROM mine),
    CASE WHEN EXISTS (SELECT FROM mine) THEN pg_try_advisory_xact_lock(hashtext('callq ' || $1)) ELSE false END`

const awaitFormerSQL = `
SELECT CASE
    WHEN NOT EXISTS (
        SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
        WHERE l.locktype = 'advisory' AND l.database = a.datid AND a.datname = current_database()
          AND l.objid::bigint = hashtext('callq ' || $1)::bigint & 4294967295 AND l.objsubid = 1
          AND EXISTS (SELECT FROM pg_roles r
              WHERE pg_has_role(a.usesysid, r.oid, 'MEMBER') AND has_any_column_privilege(r.oid, 'call_locks', 'UPDATE'))
    ) THEN true
    WHEN $2 THEN (SELECT true FROM pg_advisory_xact_lock(hashtext('callq ' || $1)))
    ELSE false END`
