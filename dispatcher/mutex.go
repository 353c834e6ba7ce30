package dispatcher

import (
	"errors"

	"github.com/jackc/pgx/v5"
)

// mutex is a row of call_locks in a transaction: what one process at a time may do. Only callq's daemons may lock such
// a row, where an advisory lock is any login's, for as long as it likes. The lock leaves nothing dead: it is written
// into the row in place.
type mutex struct {
	name string
	wait bool
	mine bool // without wait, another may hold it
}

var errNoLock = errors.New("call_locks lacks a row: run `callq migrate up`")

func (m *mutex) ask(batch *pgx.Batch) {
	sql := lockRowSQL
	if !m.wait {
		sql += ` SKIP LOCKED`
	}
	batch.Queue(sql, m.name).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&m.mine)
		if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if m.wait {
			return errNoLock
		}
		return nil
	})
}

const lockRowSQL = `SELECT true FROM call_locks WHERE name = $1 FOR UPDATE`
