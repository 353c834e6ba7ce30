package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// saved is the world as a standby has it that lags: what was committed, deleted, cancelled and set since
// then is lost when it is promoted.
type saved struct {
	fates     map[int64]fate
	operators operators
	starts    int // that are promised before it is too late
}

// failOver is a promotion: a new epoch. Some lose what was committed last.
func (w *world) failOver() {
	if w.chance(0.3) {
		w.beat()
		w.promote()
		return
	}
	w.lag()
}

// lag has the standby lag, and then promotes it.
func (w *world) lag() {
	if w.saved != nil { // another is about to happen
		return
	}
	w.beat()
	w.lane.copyTables(w, w.lane.saveSQL)
	w.savedAt = w.now
	w.saved = &saved{map[int64]fate{}, operators{w.set.rules, maps.Clone(w.overrides), maps.Clone(w.pauses)}, w.intBetween(1, 30)}
	for id, c := range w.calls {
		w.saved.fates[id] = c.fate
	}
	s, lag := w.saved, w.between(0, pick(w, 200*time.Millisecond, 2*time.Second, 10*time.Second, w.set.window))
	w.at(min(w.now+lag, w.set.span-1), func() { w.loseSince(s) })
}

// startedBefore promotes the standby at once, when enough has started that it does not know of.
func (w *world) startedBefore(s *saved) {
	if s == nil {
		return
	}
	if s.starts--; s.starts == 0 {
		w.at(min(w.now+w.between(0, 5*time.Millisecond), w.set.span-1), func() { w.loseSince(s) })
	}
}

// loseSince promotes the standby as it was saved.
func (w *world) loseSince(s *saved) {
	if w.saved != s {
		return
	}
	w.beat()
	w.lane.copyTables(w, w.lane.restoreSQL)
	for _, id := range slices.Sorted(maps.Keys(w.calls)) {
		if f, ok := s.fates[id]; ok {
			w.calls[id].fate = f
			continue
		}
		w.note(id, "", "is lost: no other server has it")
		delete(w.calls, id)
	}
	w.set.rules, w.overrides, w.pauses = s.operators.rules, s.operators.overrides, s.operators.pauses
	w.saved = nil
	w.learnDoors()
	w.note(0, "", "what was committed last is lost")
	w.promote()
	w.api.publish()
}

func (w *world) promote() {
	w.lane.epoch += "'"
	w.promotedAt = w.now
	w.failedOver = true
	w.note(0, "", "Postgres fails over")
	w.stir()
}

// unjudged says whether workers are still to say what a failover lost: until then nothing is applied.
func (w *world) unjudged() (waits bool) {
	w.must(w.lane.workers.QueryRow(w.ctx, unjudgedSQL).Scan(&waits))
	return waits
}

const unjudgedSQL = `SELECT NOT EXISTS (SELECT FROM callq.call_epochs WHERE epoch = callq.epoch() AND verdict IS NOT NULL)`

func (l *lane) copyTables(w *world, sql string) {
	w.must(l.workers.AcquireFunc(w.ctx, func(conn *pgxpool.Conn) error {
		return conn.Conn().PgConn().Exec(w.ctx, sql).Close()
	}))
}

// prepareCopies makes a table for the copy of each, and the statements that save and restore them. The
// ids that were given out since are given out again.
func (l *lane) prepareCopies(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, columnsSQL)
	if err != nil {
		return err
	}
	tables := map[string]string{}
	var name, columns string
	if _, err := pgx.ForEachRow(rows, []any{&name, &columns}, func() error {
		tables[name] = columns
		return nil
	}); err != nil {
		return err
	}
	var create, save, restore strings.Builder
	restore.WriteString("SELECT setval('call_queue_id_seq', value, called), setval('callq.call_audit_id_seq', audit, audited) FROM sim.ids;")
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		columns := tables[name]
		_, table, _ := strings.Cut(name, ".")
		fmt.Fprintf(&create, "CREATE UNLOGGED TABLE sim.copy_%s AS SELECT %s FROM %s LIMIT 0;", table, columns, name)
		fmt.Fprintf(&save, "DELETE FROM sim.copy_%s; INSERT INTO sim.copy_%s SELECT %s FROM %s;", table, table, columns, name)
		fmt.Fprintf(&restore, "DELETE FROM %s; INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT * FROM sim.copy_%s;", name, name, columns, table)
	}
	create.WriteString("CREATE UNLOGGED TABLE sim.ids (value bigint, called boolean, audit bigint, audited boolean)")
	save.WriteString("DELETE FROM sim.ids; INSERT INTO sim.ids SELECT q.last_value, q.is_called, a.last_value, a.is_called FROM call_queue_id_seq q, callq.call_audit_id_seq a")
	l.saveSQL, l.restoreSQL = "BEGIN;"+save.String()+";COMMIT", "BEGIN;SET LOCAL session_replication_role = replica;"+restore.String()+"COMMIT"
	_, err = conn.Exec(ctx, create.String())
	return err
}

const columnsSQL = `
SELECT format('%s.%s', c.relnamespace::regnamespace, c.relname), string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace IN ('callq'::regnamespace, 'public'::regnamespace) AND c.relkind = 'r' AND c.relname LIKE 'call\_%'
  AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
GROUP BY 1`
