package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
)

// Processes that publish rules are rows of call_publishers. What is in force is what holds of all of
// them (stricter.go), and whoever changes it takes the publishers' lock. One that comes adds its row
// in the transaction that brings what is in force up to date; one that is gone, by its word or
// because its beats were missed, is taken out in that of a live dispatcher's tick. Where nobody
// lives, what was published last stays in force.

const (
	publisherBeat = 2 * time.Second
	publisherLife = 3 * publisherBeat // after a beat
	forgetAfter   = time.Minute       // since the last beat, though nobody was there to miss it
)

// presence is a process among those that publish. The zero one is gone at once: it leaves no row.
type presence struct {
	id    string
	name  string
	since *time.Time // when it came; nil: it is new
}

func newPresence() presence {
	name := processName()
	return presence{id: fmt.Sprintf("%s-%x", name, rand.Uint32()), name: name}
}

// publisherRow is a row of call_publishers.
type publisherRow struct {
	ID    string    `db:"id"`
	Name  string    `db:"name"`
	Since time.Time `db:"since"`
	Rules Rules     `db:"rules"`
}

// lock lets one publisher at a time through; claims do not take this lock.
func (p *publication) lock(ctx context.Context) error {
	if _, err := p.ask(ctx, true); err != nil {
		return fmt.Errorf("wait for other publishers: %w", err)
	}
	return nil
}

// ask says whether the publishers' lock is this publication's. Whatever the connection is set to, Postgres ends the
// transaction of a process that is frozen in it: it holds what claims and other publishers wait for.
func (p *publication) ask(ctx context.Context, wait bool) (mine bool, err error) {
	lock := mutex{name: "publish", wait: wait}
	var batch pgx.Batch
	batch.Queue(`SELECT set_config('idle_in_transaction_session_timeout', '5s', true)`)
	lock.ask(&batch)
	if err := p.tx.SendBatch(ctx, &batch).Close(); err != nil {
		return false, err
	}
	return lock.free(ctx, p.tx)
}

// admit puts a process's rules beside those of the others that live. The error is a ConflictError
// where they cannot hold together: then they are not let in.
func (p *publication) admit(ctx context.Context, self presence, rules Rules) error {
	if err := p.lock(ctx); err != nil {
		return err
	}
	if _, err := p.removeGone(ctx, goneWhere+forgottenWhere, publisherLife, forgetAfter); err != nil {
		return err
	}
	rows, err := collect[publisherRow](ctx, p.tx, publishersSQL, self.id)
	if err != nil {
		return fmt.Errorf("read the publishers: %w", err)
	}
	all, own := published(rows), Published{By: p.by, Rules: rules}
	place := len(all)
	if self.since != nil { // it had been taken for dead: others may be newer
		own.Since = *self.since
		if i := slices.IndexFunc(all, func(o Published) bool { return o.Since.After(own.Since) }); i >= 0 {
			place = i
		}
	}
	holds, err := stricter(slices.Insert(all, place, own))
	if err != nil {
		return err
	}
	return p.bring(ctx, holds)
}

// settle takes out processes that are gone, and says which; the rules of those that live hold then.
// Where another publishes meanwhile, a later turn does it.
func (p *publication) settle(ctx context.Context) (gone []string, err error) {
	if mine, err := p.ask(ctx, false); err != nil || !mine {
		return nil, err
	}
	if gone, err = p.removeGone(ctx, goneWhere, publisherLife); err != nil || len(gone) == 0 {
		return nil, err
	}
	rows, err := collect[publisherRow](ctx, p.tx, publishersSQL, "")
	if err != nil {
		return nil, fmt.Errorf("read the publishers: %w", err)
	}
	if len(rows) == 0 { // what the last of them said stays
		return gone, nil
	}
	holds, err := stricter(published(rows))
	if err != nil {
		return nil, err
	}
	if err := p.bring(ctx, holds); err != nil {
		return nil, err
	}
	return gone, p.wakeDispatchers(ctx)
}

func published(rows []publisherRow) []Published {
	all := make([]Published, len(rows))
	for i, row := range rows {
		all[i] = Published{By: row.Name, Since: row.Since, Rules: row.Rules}
	}
	return all
}

// removeGone takes away the rows of processes that are gone; it says whose.
func (p *publication) removeGone(ctx context.Context, where string, args ...any) ([]string, error) {
	gone, err := collect[struct{ Name string }](ctx, p.tx, `DELETE FROM call_publishers p WHERE `+where+` RETURNING name`, args...)
	if err != nil {
		return nil, fmt.Errorf("take out publishers that are gone: %w", err)
	}
	var names []string
	for _, g := range gone {
		names = append(names, g.Name)
	}
	return names, nil
}

// goneWhere: it said so, or it missed beats while another missed none. Without such a witness it was
// Postgres that was away, or its clock that was set forward, and all seem to be gone: then they are
// waited for. A beat that lies ahead is older than the clock's last step back, and bears no witness. A
// beat that is under way when a row is deleted saves the row.
const goneWhere = `p.beat_at = '-infinity'
    OR p.beat_at NOT BETWEEN clock_timestamp() - $1::interval AND clock_timestamp() + $1::interval AND EXISTS (
    SELECT FROM call_publishers w
    WHERE w.beat_at BETWEEN clock_timestamp() - $1::interval AND clock_timestamp()
      AND w.steady_since <= clock_timestamp() - $1::interval)`

// forgottenWhere: nobody lives on who would be a witness, for one that comes.
const forgottenWhere = ` OR p.beat_at <= clock_timestamp() - $2::interval`

const publishersSQL = `SELECT id, name, since, rules FROM call_publishers WHERE id <> $1 ORDER BY since, id`

// Live are the processes whose rules are part of what is in force, the oldest first.
func Live(ctx context.Context, db ledger.DB) ([]Published, error) {
	rows, err := db.Query(ctx, liveSQL, publisherLife)
	if err != nil {
		return nil, fmt.Errorf("read the publishers: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[publisherRow])
	if err != nil {
		return nil, fmt.Errorf("read the publishers: %w", err)
	}
	return published(list), nil
}

const liveSQL = `
SELECT id, name, since, rules FROM call_publishers
WHERE beat_at > clock_timestamp() - $1::interval
ORDER BY since, id`

// join publishes the dispatcher's rules, and from then on it is one of those that live.
func (d *Dispatcher) join(ctx context.Context) error {
	d.joining.Lock()
	defer d.joining.Unlock()
	err := d.enter(ctx, d.self, d.settings.Load().Rules)
	if err != nil {
		_, conflict := errors.AsType[*ConflictError](err)
		d.published.Store(d.published.Load() && !conflict)
	}
	return err
}

// enter puts this process with these rules among those that live, in place of the row that it may have
// there. The caller holds joining.
func (d *Dispatcher) enter(ctx context.Context, self presence, rules Rules) error {
	changes, err := publish(ctx, d.cfg.Pool, self.name, func(ctx context.Context, p *publication) error {
		if err := p.admit(ctx, self, rules); err != nil {
			return err
		}
		if err := p.wakeDispatchers(ctx); err != nil {
			return err
		}
		if _, err := p.tx.Exec(ctx, noteMaxDataSQL, d.cfg.MaxData); err != nil {
			return fmt.Errorf("note what call_data may have: %w", err)
		}
		// Last, so that what was waited for does not age the first beat.
		var since time.Time
		err := p.tx.QueryRow(ctx, joinSQL, pgx.StrictNamedArgs{
			"id": self.id, "name": self.name, "rules": rules, "since": self.since,
		}).Scan(&since)
		if err != nil {
			return fmt.Errorf("enter the publishers: %w", err)
		}
		d.self.since = &since
		return nil
	})
	if err != nil {
		return err
	}
	d.sayChanges(ctx, changes)
	d.published.Store(true)
	return nil
}

// Of the process that came last: enqueue_call reads it.
const noteMaxDataSQL = `
INSERT INTO call_marks AS m (name, position) VALUES ('max_data', $1)
ON CONFLICT (name) DO UPDATE SET position = excluded.position WHERE m.position IS DISTINCT FROM excluded.position`

const joinSQL = `
INSERT INTO call_publishers (id, name, rules, since, beat_at, steady_since)
VALUES (@id, @name, @rules, coalesce(@since, clock_timestamp()), clock_timestamp(), clock_timestamp())
ON CONFLICT (id) DO UPDATE
SET rules = excluded.rules, since = excluded.since, beat_at = excluded.beat_at, steady_since = excluded.steady_since
RETURNING since`

func (d *Dispatcher) sayChanges(ctx context.Context, changes []string) {
	for _, change := range changes {
		d.log.InfoContext(ctx, "rules published", "change", change)
	}
}

// present keeps the process's row alive while run runs, and says at its end that it is gone.
func (d *Dispatcher) present(ctx context.Context, run func() error) error {
	beating, stop := context.WithCancel(ctx)
	var beat sync.WaitGroup
	beat.Go(func() { d.beat(beating) })
	err := run()
	stop()
	beat.Wait()
	d.leave(ctx)
	return err
}

func (d *Dispatcher) beat(ctx context.Context) {
	failed := false
	for pause(ctx, publisherBeat) {
		err := d.beatOnce(ctx)
		if err != nil && !failed && ctx.Err() == nil {
			d.log.WarnContext(ctx, "publisher's beat missed", "err", err)
		}
		failed = err != nil
	}
}

// beatOnce says that the process lives. One that was taken for dead publishes anew: its rules are no
// longer part of what is in force.
func (d *Dispatcher) beatOnce(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, publisherBeat)
	defer cancel()
	tag, err := d.cfg.Pool.Exec(bounded, beatSQL, d.self.id, publisherLife)
	if err != nil || tag.RowsAffected() > 0 {
		return err
	}
	d.log.WarnContext(ctx, "publishing anew, for this process was taken for dead")
	again, cancelAgain := context.WithTimeout(ctx, tickTimeout)
	defer cancelAgain()
	return d.join(again)
}

const beatSQL = `
UPDATE call_publishers
SET beat_at = t.now, steady_since = CASE WHEN beat_at BETWEEN t.now - $2::interval AND t.now THEN steady_since ELSE t.now END
FROM (SELECT clock_timestamp() AS now OFFSET 0) t
WHERE id = $1`

// leave says that the process is gone, so that nobody waits for its beats to be missed. Its rules are
// taken out by a live dispatcher, and stay where there is none.
func (d *Dispatcher) leave(ctx context.Context) {
	d.joining.Lock()
	defer d.joining.Unlock()
	if d.self.since == nil {
		return // it never came
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), publisherBeat)
	defer cancel()
	if _, err := d.cfg.Pool.Exec(bounded, leaveSQL, d.self.id); err != nil {
		d.log.WarnContext(bounded, "publisher's row left to go stale", "err", err)
	}
}

const leaveSQL = `UPDATE call_publishers SET beat_at = '-infinity' WHERE id = $1`

// settle brings what is in force up to date when a process that published is gone. It looks first
// without a lock: that is all there is to do in nearly every tick.
func (d *Dispatcher) settle(ctx context.Context) error {
	some := false
	err := d.cfg.Pool.QueryRow(ctx, anyGoneSQL, publisherLife).Scan(&some)
	if err != nil {
		return fmt.Errorf("look for publishers that are gone: %w", err)
	}
	if !some {
		return nil
	}
	var gone []string
	changes, err := publish(ctx, d.cfg.Pool, d.self.name, func(ctx context.Context, p *publication) (err error) {
		gone, err = p.settle(ctx)
		return err
	})
	if err != nil {
		return err
	}
	if len(gone) > 0 {
		d.log.InfoContext(ctx, "publishers taken out", "gone", gone)
	}
	d.sayChanges(ctx, changes)
	return nil
}

const anyGoneSQL = `SELECT EXISTS (SELECT FROM call_publishers p WHERE ` + goneWhere + `)`
