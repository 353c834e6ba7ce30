package maintenance

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
)

const (
	purgeBatch = 1000 // rows that one transaction reads, so that none is long

	// readAgain is when a stretch is read again at the latest. A run each day finds it over, and reads all.
	readAgain = 23 * time.Hour
)

// A Purger runs [Purge] over and over. It remembers which ids are worth reading again when: a run reads what may have become old
// since, and what is new, and not all that is kept. Its first run reads all. So does one for other ages, or after the longest window
// changed, or after an error. One goroutine uses it at a time.
//
// What a run cannot foresee, it finds within a day: rows that somebody edits, a call that commits after those with higher
// ids, and attempts whose call somebody else deleted.
//
// Ages are told by Postgres's clock: it says how long to wait, and this process's clock only waits.
type Purger struct {
	keep            Retention
	reach           time.Duration // how far windows reach back
	calls, attempts stretches
	versions        time.Time // when to look for versions of limits again
}

// stretches of ids, each beginning behind the one before it. 7 million rows are about 7,000 of them, 40 bytes each.
type stretches []stretch

type stretch struct {
	to    int64     // the last id
	rows  int       // that were left
	again time.Time // when one of them may have to go; zero: at the next run
}

// Purge does what the function Purge does, and may skip what it knows to be too young.
func (p *Purger) Purge(ctx context.Context, pool schema.DB, keep Retention) (Purged, error) {
	return p.run(ctx, pool, keep, nobody)
}

func (p *Purger) run(ctx context.Context, pool schema.DB, keep Retention, tell Progress) (purged Purged, err error) {
	defer func() {
		if err != nil {
			*p = Purger{}
		}
	}()
	var reach time.Duration
	if err := pool.QueryRow(ctx, reachSQL).Scan(&reach); err != nil {
		return purged, fmt.Errorf("read how far windows reach: %w", err)
	}
	if keep != p.keep || reach != p.reach {
		*p = Purger{keep: keep, reach: reach}
	}
	if err := p.calls.purge(ctx, pool, callRows(keep, p.attempts), &purged.Calls, &purged, tell); err != nil {
		return purged, fmt.Errorf("purge calls: %w", err)
	}
	if err := p.attempts.purge(ctx, pool, attemptRows(), &purged.Attempts, &purged, tell); err != nil {
		return purged, fmt.Errorf("purge attempts: %w", err)
	}
	tell("history", 0, 0)
	if err := purgeHistory(ctx, pool, keep); err != nil {
		return purged, err
	}
	if now := time.Now(); !now.Before(p.versions) { // it may read the whole ledger
		if _, err := pool.Exec(ctx, `SELECT callq.purge_versions()`); err != nil {
			return purged, fmt.Errorf("remove versions of limits: %w", err)
		}
		p.versions = now.Add(readAgain)
	}
	if err := purgeResults(ctx, pool, &purged.Results, tell); err != nil {
		return purged, err
	}
	_, err = pool.Exec(ctx, retentionEndedSQL)
	return purged, ledger.Wrap("note that retention ended", err)
}

// rows are those of a table, in the order of their calls' ids.
type rows struct {
	what                      string
	idsSQL, batchSQL, nextSQL string
	args                      pgx.StrictNamedArgs // of batchSQL, besides which ids
	with                      stretches           // of another table, to be read once rows of these ids are gone
}

func callRows(keep Retention, attempts stretches) rows {
	return rows{
		what:     "calls",
		idsSQL:   `SELECT coalesce(min(id), $1), coalesce(max(id), $1) FROM public.call_queue WHERE id > $1`,
		batchSQL: purgeCallsSQL,
		nextSQL:  `SELECT coalesce(min(id), $2) FROM public.call_queue WHERE id > $1 AND id <= $2`,
		args:     keep.args(),
		with:     attempts,
	}
}

func attemptRows() rows {
	return rows{
		what:     "attempts",
		idsSQL:   `SELECT coalesce(min(call_id), $1), coalesce(max(call_id), $1) FROM public.call_attempts WHERE call_id > $1`,
		batchSQL: purgeAttemptsSQL,
		nextSQL:  `SELECT coalesce(min(call_id), $2) FROM public.call_attempts WHERE call_id > $1 AND call_id <= $2`,
	}
}

// purge reads the stretches whose time has come, and what lies behind the last.
func (l *stretches) purge(ctx context.Context, pool schema.DB, r rows, removed *int64, purged *Purged, tell Progress) error {
	tell(r.what, 0, 0)
	var known, first, last int64 // 0: there are none
	if n := len(*l); n > 0 {
		known = (*l)[n-1].to
	}
	if err := pool.QueryRow(ctx, r.idsSQL, known).Scan(&first, &last); err != nil {
		return err
	}
	if last > known {
		*l = append(*l, stretch{to: last})
	}
	now, after := time.Now(), int64(0)
	var read stretches
	for _, s := range *l {
		if now.Before(s.again) {
			after = s.to
			read.add(s)
			continue
		}
		// Where a row spoils the statement, fewer are read, in the end that one alone, which is passed over.
		for most := purgeBatch; after < s.to; {
			part, gone, err := r.batch(ctx, pool, after, s.to, most)
			if ledger.Spoiled(err) && most > 1 {
				most /= 2
				continue
			}
			if ledger.Spoiled(err) {
				purged.Kept, purged.KeptFor = purged.Kept+1, ledger.Reason(err)
				part = stretch{rows: purgeBatch} // it counts as many, so that its neighbours need not be read with it
				err = pool.QueryRow(ctx, r.nextSQL, after, s.to).Scan(&part.to)
			}
			if err != nil {
				return err
			}
			if gone > 0 {
				r.with.due(after, part.to)
			}
			after, most = part.to, min(2*most, purgeBatch)
			read.add(part)
			*removed += gone
			tell(r.what, after-first+1, last-first+1)
		}
	}
	*l = slices.Clip(read)
	return nil
}

// batch reads up to most rows behind the id after, removes what has to go, and returns how far it came and how much it removed.
func (r rows) batch(ctx context.Context, pool schema.DB, after, to int64, most int) (s stretch, removed int64, err error) {
	args := pgx.StrictNamedArgs{"after": after, "to": to, "most": most}
	maps.Copy(args, r.args)
	begun := time.Now() // the wait is counted from here, so that its end is not too late
	var wait *time.Duration
	err = pool.QueryRow(ctx, r.batchSQL, args).Scan(&s.to, &s.rows, &removed, &wait)
	s.again = begun.Add(readAgain)
	if wait != nil {
		s.again = begun.Add(min(*wait, readAgain))
	}
	return s, removed, err
}

// add appends s, or merges it with the last where one batch reads both. So a stretch of which nothing is left goes.
func (l *stretches) add(s stretch) {
	if n := len(*l) - 1; n >= 0 && (*l)[n].rows+s.rows <= purgeBatch {
		last := &(*l)[n]
		if s.again.Before(last.again) {
			last.again = s.again
		}
		last.to, last.rows = s.to, last.rows+s.rows
		return
	}
	*l = append(*l, s)
}

// due has the stretches read that have ids behind after and up to to.
func (l stretches) due(after, to int64) {
	for i := sort.Search(len(l), func(i int) bool { return l[i].to > after }); i < len(l); i++ {
		l[i].again = time.Time{}
		if l[i].to >= to {
			return
		}
	}
}

// What it returns of the rows that stay is how many they are, and in how long the first of them may be old enough. One that has
// not ended, ends later than now. A time in the future is taken for now, so that none is too large to be added to.
const purgeCallsSQL = `
WITH seen AS MATERIALIZED (
    SELECT q.id, least(q.finished_at, clock_timestamp()) + ` + keptFor + ` AS until
    FROM public.call_queue q WHERE q.id > @after AND q.id <= @to ORDER BY q.id LIMIT @most
), old AS MATERIALIZED (
    SELECT q.id
    FROM public.call_queue q
    WHERE q.id = ANY (ARRAY(SELECT id FROM seen WHERE until < clock_timestamp())) AND ` + oldEnough + `
    ORDER BY q.id
    FOR UPDATE OF q SKIP LOCKED
), removed AS (
    DELETE FROM public.call_queue q
    WHERE q.id = ANY (ARRAY(SELECT id FROM old))
    RETURNING q.id, least(q.finished_at, clock_timestamp()) + ` + keptFor + ` AS until
), kept AS (
    SELECT id, until FROM seen EXCEPT SELECT id, until FROM removed
)
SELECT (SELECT CASE WHEN count(*) < @most THEN @to ELSE max(id) END FROM seen), (SELECT count(*) FROM kept), (SELECT count(*) FROM removed),
    (SELECT min(greatest(coalesce(until, clock_timestamp() + least(@done, @failed, @cancelled)), clock_timestamp())) - clock_timestamp() FROM kept)`

// The mark is up to where the ledger may lack rows. It keeps a limit shut whose window would reach behind it (policy.Backfill).
//
// What it returns of the rows that stay is how many they are, and in how long the first whose call is gone may be out of reach. Of a
// call that fills the batch there may be more, which the next run removes.
const purgeAttemptsSQL = `
WITH seen AS MATERIALIZED (
    SELECT call_id, attempt, coalesce(arrived_by, finished_at) AS at
    FROM public.call_attempts WHERE call_id > @after AND call_id <= @to ORDER BY call_id, attempt LIMIT @most
), whole AS MATERIALIZED (
    -- the last call of the batch may continue behind it: it is seen again by the next
    SELECT call_id, attempt, at FROM seen
    WHERE (SELECT count(*) FROM seen) < @most OR call_id < (SELECT max(call_id) FROM seen)
       OR (SELECT min(call_id) = max(call_id) FROM seen)
), reach AS MATERIALIZED (` + reachSQL + `
), gone AS MATERIALIZED (
    SELECT w.call_id, w.attempt, least(w.at, clock_timestamp()) + r.back AS until
    FROM reach r, whole w
    LEFT JOIN LATERAL (SELECT q.id FROM public.call_queue q WHERE q.id BETWEEN w.call_id AND w.call_id LIMIT 1) q ON true
    WHERE q.id IS NULL
), removed AS (
    DELETE FROM public.call_attempts a
    USING gone g, reach r
    WHERE a.call_id = ANY (ARRAY[g.call_id]) AND a.attempt = g.attempt
      AND g.until < clock_timestamp() AND ` + outOfReach + `
    RETURNING g.call_id, g.attempt, g.until, a.arrived_by
), marked AS (
    INSERT INTO callq.call_meta AS m (name, at)
    SELECT 'ledger', max(arrived_by) FROM removed HAVING max(arrived_by) IS NOT NULL
    ON CONFLICT (name) DO UPDATE SET at = greatest(m.at, excluded.at)
), kept AS (
    SELECT call_id, attempt, until FROM gone EXCEPT SELECT call_id, attempt, until FROM removed
)
SELECT (SELECT CASE WHEN (SELECT count(*) FROM seen) < @most THEN @to ELSE max(call_id) END FROM whole),
    (SELECT count(*) FROM whole) - (SELECT count(*) FROM removed), (SELECT count(*) FROM removed),
    CASE WHEN (SELECT count(*) = @most AND min(call_id) = max(call_id) FROM seen) AND EXISTS (SELECT FROM removed) THEN '0'
        ELSE (SELECT min(greatest(until, clock_timestamp())) - clock_timestamp() FROM kept) END`
