package callqueue

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
)

// waiting looks for what waits in the lines and news, which may speak of calls that have ended. Where those are
// many, what is to be retried is looked for among the attempts that were not done, and else the newest in the chunks
// and news that go up to the largest ids. Where rows of news are too many, or the list is upwards, what waits is met
// with soon.
func (s *search) waiting(ctx context.Context, in span, limit int) ([]int64, error) {
	args := s.filter.args()
	args["limit"] = s.most
	rows, err := s.tx.Query(ctx, s.filter.inLineSQL(), args)
	if err != nil {
		return nil, err
	}
	var inLine, news int64
	if _, err := pgx.ForEachRow(rows, []any{&inLine, &news, &s.queues}, func() error { return nil }); err != nil {
		return nil, err
	}
	all := s.oneByOne(waits) // with so many, they are met with soon
	if inLine < int64(s.most) {
		all = s.eachOf(s.filter.eachInLineSQL(), waits)
	}
	switch untried := slices.Contains(s.filter.Statuses, StatusNew); {
	case inLine == 0:
		return nil, nil
	case !untried && inLine >= int64(s.crowd):
		const tried = `SELECT DISTINCT call_id AS id FROM call_attempts WHERE outcome <> 'done' AND call_id BETWEEN @from AND @to`
		return s.query(ctx, s.eachOf(tried, waits), in, limit)
	case !s.up && inLine >= int64(s.crowd) && news < int64(s.most):
		ids, rest, err := s.newest(ctx, in, limit)
		if err != nil || len(ids) == limit || rest.empty() {
			return ids, err
		}
		more, err := s.query(ctx, all, rest, limit-len(ids))
		return append(ids, more...), err
	default:
		return s.query(ctx, all, in, limit)
	}
}

const waits = "c.status = ANY(@waiting::text[])"

// newest looks for what waits from the newest on, in the chunks that go up to the largest ids, so many of each queue
// and task, and in such news: above where the first of those break off, no other has a call. What they speak of may have
// ended: then it looks at more and more of them, until they have too many calls. rest is what it has not come to.
func (s *search) newest(ctx context.Context, in span, limit int) (ids []int64, rest span, err error) {
	for chunks := s.chunks; chunks <= s.most && len(ids) < limit && !in.empty(); chunks *= 8 {
		args := s.filter.args()
		args["from"], args["queues"], args["limit"] = in.from, s.queues, chunks/len(s.queues)+1
		args["calls"] = 64 * chunks // as many as folded news have
		var low, calls int64
		if err := s.tx.QueryRow(ctx, s.filter.newestSQL(), args).Scan(&low, &calls); err != nil {
			return nil, in, err
		}
		if calls > int64(s.most) {
			break
		}
		near := span{max(in.from, low), in.to}
		if near.empty() {
			continue
		}
		some, err := s.query(ctx, s.eachOf(s.filter.inNewestSQL(), waits), near, limit-len(ids))
		if err != nil {
			return nil, in, err
		}
		ids, in = append(ids, some...), span{in.from, near.from - 1}
	}
	return ids, in, nil
}

// waiting are those of its statuses that wait.
func (f Filter) waiting() []Status {
	return slices.DeleteFunc([]Status{StatusNew, StatusError}, func(s Status) bool { return !slices.Contains(f.Statuses, s) })
}

// inLineSQL says how many calls lines have, and news as far as that is below the limit, how many rows these are, and in
// which queues.
func (f Filter) inLineSQL() string {
	lines := `SELECT l.queue, l.calls, 0 AS news FROM call_line_totals l WHERE l.calls > 0` + f.lineSQL()
	news := `SELECT l.queue, l.calls, 1 FROM call_news l WHERE l.calls > 0` + f.lineSQL()
	if f.Key != nil {
		lines = `SELECT l.queue, l.calls, 0 AS news
    FROM (SELECT DISTINCT l.queue FROM call_line_totals l WHERE l.calls > 0` + f.lineSQL() + `) t
    CROSS JOIN LATERAL (
        SELECT l.queue, l.calls FROM call_lines l WHERE l.queue = t.queue AND l.calls > 0` + f.lineSQL() + f.keySQL() + ` OFFSET 0
    ) l`
		news = `SELECT l.queue, CASE WHEN l.keys IS NULL THEN l.calls ELSE cardinality(array_positions(l.keys, ` + keyName + `)) END, 1
    FROM call_news l
    WHERE l.calls > 0` + f.newsSQL()
	}
	return `
SELECT coalesce(sum(calls), 0)::bigint, coalesce(sum(news), 0)::bigint, array_agg(DISTINCT queue)
FROM (
    ` + lines + `
    UNION ALL
    (` + news + ` LIMIT @limit)
) l`
}

// eachInLineSQL gives all that lines and news speak of.
func (f Filter) eachInLineSQL() string {
	sql := `SELECT DISTINCT l.id FROM call_in_line l WHERE l.id BETWEEN @from AND @to AND l.queue = ANY(@queues::text[])` +
		f.lineSQL() + f.keySQL()
	if f.Key != nil {
		sql += " AND (l.keys IS NULL OR " + keyName + " = ANY(l.keys))"
	}
	return sql
}

// newestSQL goes through so many chunks of each queue and task, or line of the key, from the largest id on, and through
// news until they have so many calls; it says from which id on that is all there is, and how many calls it is.
func (f Filter) newestSQL() string {
	lines, chunks := f.chunksSQL()
	return `
SELECT coalesce(max(c.low), 0), coalesce(sum(c.calls), 0)::bigint
FROM (
    SELECT c.low, c.calls
    FROM ` + lines + `
    CROSS JOIN LATERAL (
        SELECT CASE count(*) WHEN @limit::bigint THEN min(last_id) END AS low, sum(calls) AS calls
        FROM (
            SELECT last_id, cardinality(ids) AS calls FROM ` + chunks + `
            ORDER BY last_id DESC
            LIMIT @limit
        ) w
    ) c
    UNION ALL
    SELECT max(last_id) FILTER (WHERE before >= @calls), sum(calls) FILTER (WHERE before < @calls)
    FROM (
        SELECT l.last_id, l.calls, sum(l.calls) OVER (ORDER BY l.last_id DESC) - l.calls AS before
        FROM ` + newsRows + `
        WHERE l.last_id >= @from AND l.queue = ANY(@queues::text[])` + f.newsSQL() + `
    ) n
) c`
}

// inNewestSQL gives what chunks and news have in a span that goes up to the newest.
func (f Filter) inNewestSQL() string {
	lines, chunks := f.chunksSQL()
	ofKey := ""
	if f.Key != nil {
		ofKey = " AND coalesce(i.key, l.key) = " + keyName
	}
	return `SELECT i.id
    FROM ` + lines + `
    CROSS JOIN LATERAL (SELECT ids FROM ` + chunks + ` OFFSET 0) w
    CROSS JOIN LATERAL unnest(w.ids) AS i (id)
    WHERE i.id BETWEEN @from AND @to
    UNION
    SELECT i.id
    FROM ` + newsRows + `
    CROSS JOIN LATERAL unnest(l.ids, l.keys) AS i (id, key)
    WHERE l.last_id >= @from AND l.queue = ANY(@queues::text[])` + f.newsSQL() + `
      AND i.id BETWEEN @from AND @to` + ofKey
}

// newsRows are the news l that are of calls.
const newsRows = `(SELECT queue, task, key, calls, ids, keys, coalesce(last_id, ids[1]) AS last_id FROM call_news WHERE calls > 0) l`

// newsSQL is of the news l.
func (f Filter) newsSQL() string {
	if f.Key == nil {
		return f.lineSQL()
	}
	return " AND CASE WHEN l.keys IS NULL THEN l.key = " + keyName + " ELSE " + keyName + " = ANY(l.keys) END" + f.lineSQL()
}

// chunksSQL are the lines l, all of a queue and task together unless they are of a key, and the chunks of one that
// have calls in a span that goes up to the newest.
func (f Filter) chunksSQL() (lines, chunks string) {
	lines = `(SELECT queue, task FROM call_line_totals l WHERE calls > 0` + f.lineSQL() + ` OFFSET 0) l`
	chunks = `call_waiting WHERE queue = l.queue AND task = l.task AND last_id >= @from AND last_id > 0` // call_waiting_last_idx
	if f.Key != nil {
		lines = `(
        SELECT queue, key, priority, task FROM call_lines l
        WHERE calls > 0 AND queue = ANY(@queues::text[])` + f.lineSQL() + f.keySQL() + ` OFFSET 0
    ) l`
		chunks += ` AND key = l.key AND priority = l.priority`
	}
	return lines, chunks
}

// lineSQL and keySQL are of the lines and news l.
func (f Filter) lineSQL() string {
	sql := ""
	if f.Queue != "" {
		sql += " AND l.queue = callq_line_name(@queue::text, '')"
	}
	if f.Task != "" {
		sql += " AND l.task = callq_line_name(@task::text, '')"
	}
	return sql
}

func (f Filter) keySQL() string {
	if f.Key == nil {
		return ""
	}
	return " AND l.key = " + keyName
}

const keyName = "callq_line_name(@key::text, '')"
