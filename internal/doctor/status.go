package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/admin"
)

// status judges what `callq status` shows: which processes are alive and whether they agree, which calls nobody takes,
// and which limits are shut.
func status(ctx context.Context, pool *pgxpool.Pool) (findings, error) {
	s, err := admin.ReadStatus(ctx, pool)
	if err != nil {
		return nil, err
	}
	return slices.Concat(workers(s).of("workers"), dispatchers(s).of("dispatchers"), otherPolicy(s).of("rules"),
		httpSettings(s).of("http settings"), tasks(s).of("tasks"), queues(s).of("queues"), limits(s).of("limits")), nil
}

func workers(s *admin.Status) (found findings) {
	live, slots, running := 0, 0, int64(0)
	for _, w := range s.Workers {
		if w.Live {
			live, slots, running = live+1, slots+w.Slots, running+w.Running
		}
	}
	found.judge(live > 0, fmt.Sprintf("%d live, %d of %d slots in use", live, running, slots),
		"no worker is alive: nothing is sent", "callq serve, or callq work")
	return found
}

func dispatchers(s *admin.Status) (found findings) {
	found.judge(len(s.Dispatchers) > 0, fmt.Sprintf("%d live", len(s.Dispatchers)), "no dispatcher is alive: nothing is claimed",
		"callq serve, or callq dispatch (or callq dispatch --once each minute, from cron)")
	return found
}

func otherPolicy(s *admin.Status) (found findings) {
	if text := s.OthersText(); text != "" {
		found.add(Problem, "give them the newer file, or put theirs in force: callq config apply, or SIGHUP", "%s", text)
	}
	return found
}

// httpSettings judges whether live workers agree on what the task http may do. The worker that gets a call decides.
func httpSettings(s *admin.Status) (found findings) {
	for _, key := range slices.Sorted(maps.Keys(s.HTTPTask)) {
		var said []string
		for _, w := range s.HTTPTask[key] {
			said = append(said, strings.Join(w.By, ", ")+" says: "+w.Rule)
		}
		found.add(Problem, "give them the same http_task, or Config.HTTP, and send each SIGHUP, or restart those with the old one",
			"live workers differ on http_task.%s (a call goes where any of them may send it, and back unsent from one that may not): %s",
			key, strings.Join(said, "; "))
	}
	return found
}

// tasks are those of waiting calls that no live worker handles, or none that carries their queue's label.
func tasks(s *admin.Status) (found findings) {
	slices.SortStableFunc(s.Unhandled, func(a, b admin.Unhandled) int { return cmp.Compare(b.Waiting, a.Waiting) })
	for _, t := range s.Unhandled[:min(len(s.Unhandled), namedMost)] {
		fix := fmt.Sprintf(`start a worker whose program has w.Handle("%s", …), or cancel them: callq calls cancel`, t.Task)
		switch {
		case t.Label != "":
			fix = "start one with worker.labels: [" + t.Label + "]"
		case t.Task == "http":
			fix = "callq work"
		}
		found.add(Problem, fix, "%s", t)
	}
	return found
}

// queues are those that are not in force. Calls that are not yet due count too: nobody would notice until they are.
func queues(s *admin.Status) (found findings) {
	others := slices.DeleteFunc(slices.Clone(s.Queues), func(q admin.Queue) bool { return q.Configured || q.Waiting == 0 })
	slices.SortStableFunc(others, func(a, b admin.Queue) int { return cmp.Compare(b.Waiting, a.Waiting) })
	for _, q := range others[:min(len(others), namedMost)] {
		found.add(Problem, "add it under queues in the configuration, and send the processes SIGHUP",
			"%d calls wait in queue %s, which is not in force", q.Waiting, admin.Short(q.Name))
	}
	return found
}

// limits are those that let nothing through, and those whose rate an operator set. One that no queue uses is left out.
func limits(s *admin.Status) (found findings) {
	for _, l := range s.Limits {
		const lost = "Postgres failed over or was restored"
		opens := "nothing: it opens by itself; sooner, where you know what was sent: callq limits open " + l.Name + " --reason …"
		until := admin.Instant(l.MissingUntil)
		switch {
		case l.Idle():
			continue
		case l.MissingUntil != nil && l.KnownAt != nil:
			found.add(Note, opens, "what was left of limit %s at %s counts as used until %s: %s, and of what was given out last "+
				"some may be missing", l.Name, admin.Instant(l.KnownAt), until, lost)
		case l.MissingUntil != nil:
			found.add(Problem, opens, "limit %s is shut until %s: of what was sent before, some may be missing (%s, or retention had "+
				"removed it before the limit was as it is)", l.Name, until, lost)
		case strings.HasPrefix(l.State, "shut"):
			found.add(Problem, "start a dispatcher, which counts what was used; that waits until attempts under a former rule have ended",
				"limit %s is %s; what it has used is not yet counted", l.Name, l.State)
		}
		if l.Config != nil {
			found.add(Note, "callq limits reset "+l.Name, "limit %s has a rate that an operator set, not the configuration's", l.Name)
		}
	}
	return found
}

// Pauses are easily forgotten.
const pausesSQL = `
SELECT 'note' AS level,
    CASE WHEN keys > 0 THEN format('%s keys of %s %s are paused', keys, what, name)
    ELSE format('%s %s is paused (%s)', what, name, left(reason, 160)) END
    || coalesce(' until ' || to_char(until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"'), '') AS what,
    format('callq %ss resume %s', what, name) || CASE WHEN keys > 0 THEN ' --key …' ELSE '' END AS fix
FROM (
    SELECT what, name, nullif(max(until), 'infinity') AS until, count(*) FILTER (WHERE key <> '') AS keys, max(reason) AS reason
    FROM call_pauses WHERE until > clock_timestamp()
    GROUP BY what, name, key = ''
    ORDER BY what, name, key = '' DESC
    LIMIT 10
) p`
