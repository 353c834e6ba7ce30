//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// load produces calls without pause, each way there is, until it is stopped. It keeps the limits
// busy and the backlog short: how long that would take to drain says nothing.
type load struct {
	s *stack

	mu           sync.Mutex
	acknowledged []int64
	failures     map[string]int // inserts that were not acknowledged, by error
}

const (
	backlogMost   = 40 // calls of a queue that wait
	insertWithin  = 3 * time.Second
	deletesByTest = "kill test" // application_name of the connections that delete
)

// run produces for each queue, and deletes, until ctx ends.
func (l *load) run(ctx context.Context, seed uint64, queues []killQueue) {
	var parts sync.WaitGroup
	for i, queue := range queues {
		parts.Go(func() { l.produce(ctx, rand.New(rand.NewPCG(seed, uint64(10+i))), queue) })
	}
	parts.Go(func() { l.delete(ctx, rand.New(rand.NewPCG(seed, 2))) })
	parts.Wait()
}

func (l *load) produce(ctx context.Context, random *rand.Rand, queue killQueue) {
	ways := []func(context.Context, []callqueue.Call) ([]int64, error){l.insertOne, l.insertMany, l.insertTx, l.insertSQL}
	for ctx.Err() == nil {
		way := ways[random.IntN(len(ways))]
		calls := make([]callqueue.Call, 1+random.IntN(8))
		for i := range calls {
			calls[i] = l.call(random, queue)
		}
		l.insert(queue.name, calls, way)
		select {
		case <-time.After(20*time.Millisecond + time.Duration(random.Int64N(int64(80*time.Millisecond)))):
		case <-ctx.Done():
		}
	}
}

// call makes one, whose URL tells the API what the oracle must know.
func (l *load) call(random *rand.Rand, queue killQueue) callqueue.Call {
	key, cost := "", 1
	if queue.keys > 0 && random.IntN(10) > 0 {
		key = fmt.Sprint("k", random.IntN(queue.keys))
	}
	if queue.cost > 0 {
		cost = 1 + random.IntN(queue.cost)
	}
	return callqueue.Call{
		Queue: queue.name, Key: key, Cost: int64(cost),
		Data: map[string]any{"url": fmt.Sprintf("%s%s?key=%s&cost=%d", l.s.api.URL(), queue.name, key, cost)},
	}
}

// insert inserts, unless enough calls wait, and notes what was acknowledged. An insert in hand is
// finished when the load ends.
func (l *load) insert(queue string, calls []callqueue.Call, way func(context.Context, []callqueue.Call) ([]int64, error)) {
	ctx, cancel := context.WithTimeout(context.Background(), insertWithin)
	defer cancel()
	var waiting int
	err := l.s.pool.QueryRow(ctx, `SELECT count(*) FROM call_queue WHERE queue = $1 AND status IN ('new', 'error')`, queue).Scan(&waiting)
	var ids []int64
	if err == nil && waiting < backlogMost {
		ids, err = way(ctx, calls)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.failures[fmt.Sprintf("%.60s", err)]++
		return
	}
	l.acknowledged = append(l.acknowledged, ids...)
}

func (l *load) insertOne(ctx context.Context, calls []callqueue.Call) ([]int64, error) {
	id, err := l.s.client.Insert(ctx, calls[0])
	return []int64{id}, err
}

func (l *load) insertMany(ctx context.Context, calls []callqueue.Call) ([]int64, error) {
	return l.s.client.InsertMany(ctx, calls)
}

func (l *load) insertTx(ctx context.Context, calls []callqueue.Call) ([]int64, error) {
	var ids []int64
	err := pgx.BeginFunc(ctx, l.s.pool, func(tx pgx.Tx) error {
		for _, call := range calls {
			id, err := l.s.client.InsertTx(ctx, tx, call)
			if err != nil {
				return err
			}
			ids = append(ids, id)
		}
		return nil
	})
	return ids, err
}

// insertSQL inserts as one does who knows nothing but the table.
func (l *load) insertSQL(ctx context.Context, calls []callqueue.Call) ([]int64, error) {
	var keys []string
	var costs []int64
	var data []any
	for _, c := range calls {
		keys, costs, data = append(keys, c.Key), append(costs, c.Cost), append(data, c.Data)
	}
	rows, err := l.s.pool.Query(ctx, `INSERT INTO call_queue (queue, key, cost, call_data)
		SELECT $1, * FROM unnest($2::text[], $3::bigint[], $4::jsonb[]) RETURNING id`, calls[0].Queue, keys, costs, data)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

// delete removes some calls that are done, and now and then one in whatever state it is.
func (l *load) delete(ctx context.Context, random *rand.Rand) {
	config, err := pgxpool.ParseConfig(l.s.postgres.URL("postgres"))
	if err != nil {
		l.s.t.Error(err)
		return
	}
	config.MaxConns = 1
	config.ConnConfig.RuntimeParams["application_name"] = deletesByTest
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		l.s.t.Error(err)
		return
	}
	defer pool.Close()
	for ctx.Err() == nil {
		within, cancel := context.WithTimeout(context.Background(), insertWithin)
		// Postgres may be away: then the next turn deletes.
		_, _ = pool.Exec(within, `DELETE FROM call_queue WHERE status = 'done' AND id % 5 = 0 OR id % 83 = 0`)
		cancel()
		select {
		case <-time.After(200*time.Millisecond + time.Duration(random.Int64N(int64(time.Second)))):
		case <-ctx.Done():
		}
	}
}

// known are the ids that were acknowledged.
func (l *load) known() []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.acknowledged)
}
