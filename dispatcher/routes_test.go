package dispatcher_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/policy"
	"github.com/jackc/pgx/v5"
)

// routed is rules with queues default, dach, slow and full, of which the last lets one call wait.
func routed(routes ...policy.Route) policy.Policy {
	r := rules()
	for _, name := range []string{"dach", "slow", "full"} {
		q := r.Queues[0]
		q.Name = name
		if name == "full" {
			q.MaxWaiting = 1
		}
		r.Queues = append(r.Queues, q)
	}
	r.Routes = routes
	return r
}

// A rule matches by each of what it names, and sets each of what it may; the first that matches ends, unless it goes on. However calls are
// inserted, they obey the same rules, and what is claimed is what they have become.
func TestRoutes(t *testing.T) {
	t.Parallel()
	three := 3
	for name, c := range map[string]struct {
		rules []policy.Route
		call  callqueue.Call
		want  string // over call_queue
	}{
		"queue":             {[]policy.Route{{Queues: []string{"default"}, Set: policy.RouteSet{Queue: "dach"}}}, callqueue.Call{}, `queue = 'dach'`},
		"another queue":     {[]policy.Route{{Queues: []string{"slow", "dach"}, Set: policy.RouteSet{Task: "t"}}}, callqueue.Call{}, `queue = 'default' AND task = 'http'`},
		"task and priority": {[]policy.Route{{Tasks: []string{"a", "b"}, Set: policy.RouteSet{Task: "c", Priority: &three}}}, callqueue.Call{Task: "b"}, `task = 'c' AND priority = 3`},
		"a key":             {[]policy.Route{{Keys: []string{"k"}, Set: policy.RouteSet{Cost: 7}}}, callqueue.Call{Key: "k"}, `cost = 7`},
		"a key's beginning": {[]policy.Route{{Keys: []string{`te_s%\*`}, Set: policy.RouteSet{Key: "x"}}}, callqueue.Call{Key: `te_s%\t`}, `key = 'x'`},
		"no beginning":      {[]policy.Route{{Keys: []string{`te_s%*`}, Set: policy.RouteSet{Key: "x"}}}, callqueue.Call{Key: "teist"}, `key = 'teist'`},
		"fields":            {[]policy.Route{{Fields: map[string][]string{"$.a.b": {"x", "5"}, "$.c": {"true"}}, Set: policy.RouteSet{Queue: "slow"}}}, callqueue.Call{Data: map[string]any{"a": map[string]any{"b": 5}, "c": true}}, `queue = 'slow'`},
		"one field lacks":   {[]policy.Route{{Fields: map[string][]string{"$.a.b": {"x", "5"}, "$.c": {"true"}}, Set: policy.RouteSet{Queue: "slow"}}}, callqueue.Call{Data: map[string]any{"a": map[string]any{"b": 5}}}, `queue = 'default'`},
		"a host":            {[]policy.Route{{Hosts: []string{"api.example.com"}, Set: policy.RouteSet{Queue: "slow"}}}, callqueue.Call{Data: map[string]any{"url": "https://user:pw@API.example.com:8443/a?b=//c"}}, `queue = 'slow'`},
		"another host":      {[]policy.Route{{Hosts: []string{"api.example.com"}, Set: policy.RouteSet{Queue: "slow"}}}, callqueue.Call{Data: map[string]any{"url": "https://x.example.com/api.example.com"}}, `queue = 'default'`},
		"a method":          {[]policy.Route{{Methods: []string{"GET"}, Set: policy.RouteSet{Queue: "slow"}}}, callqueue.Call{Data: map[string]any{"url": "https://x"}}, `queue = 'slow'`},
		"fields to key":     {[]policy.Route{{Set: policy.RouteSet{KeyField: []string{"who", "id"}, CostField: []string{"n"}}}}, callqueue.Call{Data: map[string]any{"who": map[string]any{"id": 42}, "n": 9}}, `key = '42' AND cost = 9`},
		"later":             {[]policy.Route{{Set: policy.RouteSet{RunIn: time.Hour, ExpiresIn: time.Minute}}}, callqueue.Call{}, `run_at = created_at + interval '1 h' AND expires_at = run_at + interval '1 min'`},
		"the first":         {[]policy.Route{{Set: policy.RouteSet{Queue: "slow"}}, {Set: policy.RouteSet{Queue: "dach"}}}, callqueue.Call{}, `queue = 'slow'`},
		"and on":            {[]policy.Route{{Set: policy.RouteSet{Queue: "slow"}, Continue: true}, {Queues: []string{"slow"}, Set: policy.RouteSet{Priority: &three}}}, callqueue.Call{}, `queue = 'slow' AND priority = 3`},
		"discarded":         {[]policy.Route{{Keys: []string{"test-*"}, Discard: "no test keys"}}, callqueue.Call{Key: "test-1", UniqueKey: "u"}, `status = 'cancelled' AND error_message = 'discarded by a route: no test keys' AND finished_at IS NOT NULL AND unique_key IS NULL AND ended_key = 'u'`},
		"a rule that errs":  {[]policy.Route{{Set: policy.RouteSet{Queue: "slow", KeyField: []string{"none"}}}}, callqueue.Call{Key: "k"}, `queue = 'default' AND key = 'k' AND status = 'new'`},
		"the next goes on":  {[]policy.Route{{Set: policy.RouteSet{Queue: "slow", CostField: []string{"none"}}}, {Set: policy.RouteSet{Queue: "dach"}}}, callqueue.Call{}, `queue = 'dach'`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			r := routed(c.rules...)
			s.publish(r)
			client, err := callqueue.New(s.pool)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := client.Insert(t.Context(), c.call); err != nil {
				t.Fatal(err)
			}
			c.call.UniqueKey = ""
			if _, err := client.InsertMany(t.Context(), []callqueue.Call{c.call, c.call}); err != nil {
				t.Fatal(err)
			}
			// As an ORM does, which names all columns; and by COPY.
			s.exec(`INSERT INTO call_queue (queue, task, key, call_data, cost, priority, run_at, expires_at, unique_key, max_attempts)
				SELECT nullif(n.queue, 'default'), nullif(n.task, 'http'), nullif($1, ''), call_data, NULL, NULL, NULL, NULL, NULL, NULL
				FROM (SELECT coalesce(nullif($2, ''), 'default') AS queue, coalesce(nullif($3, ''), 'http') AS task) n, call_queue LIMIT 1`, c.call.Key, c.call.Queue, c.call.Task)
			rows, err := s.pool.Query(t.Context(), `SELECT call_data FROM call_queue LIMIT 1`)
			if err != nil {
				t.Fatal(err)
			}
			data, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[map[string]any])
			if err != nil {
				t.Fatal(err)
			}
			task := c.call.Task
			if task == "" {
				task = "http"
			}
			if _, err := s.owner.CopyFrom(t.Context(), pgx.Identifier{"call_queue"}, []string{"task", "key", "call_data"},
				pgx.CopyFromRows([][]any{{task, c.call.Key, data}, {task, c.call.Key, data}})); err != nil {
				t.Fatal(err)
			}
			s.want(`SELECT count(*) = 6 AND bool_and(` + strings.ReplaceAll(strings.ReplaceAll(c.want, " AND ended_key = 'u'", ""), "queue", "coalesce(queue, 'default')") + `) FROM call_queue`)
			// Each is where the backlog looks for it.
			s.want(`SELECT count(*) = (SELECT count(*) FROM call_queue WHERE status = 'new') FROM callq.call_backlog b JOIN callq.call_effective q USING (id, queue, key, task, priority) WHERE q.status = 'new'`)
		})
	}
}

// A routed call's unique key is unique where the call has gone: one that is taken there makes it a duplicate, by every way in. Caps are those of the queue that
// a call has gone to. Rules say how many calls they changed, discarded, and left as they were for an error.
func TestRoutedCalls(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := routed(
		policy.Route{Fields: map[string][]string{"$.to": {"dach"}}, Set: policy.RouteSet{Queue: "dach", KeyField: []string{"key"}}},
		policy.Route{Fields: map[string][]string{"$.to": {"full"}}, Set: policy.RouteSet{Queue: "full"}},
	)
	s.capInForce(r)
	s.exec(`INSERT INTO call_queue (queue, unique_key) VALUES ('dach', 'u')`)
	duplicate := callqueue.Call{UniqueKey: "u", Data: map[string]string{"to": "dach", "key": "k"}}
	client, err := callqueue.New(s.pool)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := client.Insert(t.Context(), duplicate); id != 1 || !errors.Is(err, callqueue.ErrDuplicate) {
		t.Errorf("Insert of a duplicate: %d, %v", id, err)
	}
	if _, err := client.InsertMany(t.Context(), []callqueue.Call{{}, duplicate}); !reflect.DeepEqual(err, &callqueue.DuplicateError{Index: 1, ID: 1}) {
		t.Errorf("InsertMany with a duplicate: %v", err)
	}
	s.want(`SELECT id = 1 AND duplicate FROM enqueue_call(unique_key => 'u', call_data => '{"to": "dach", "key": "k"}')`)
	if _, err := s.pool.Exec(context.WithoutCancel(t.Context()), `INSERT INTO call_queue (unique_key, call_data) VALUES ('u', '{"to": "dach", "key": "k"}')`); err == nil || !strings.Contains(err.Error(), "23505") {
		t.Errorf("an INSERT of a duplicate: %v", err)
	}
	s.want(`SELECT count(*) = 1 FROM call_queue`)
	s.exec(`TRUNCATE callq.call_routed`)
	s.exec(`ALTER SEQUENCE call_queue_id_seq RESTART WITH 3`)
	s.exec(`INSERT INTO call_queue (unique_key, call_data) VALUES ('v', '{"to": "dach", "key": "k"}'), ('w', '{"to": "dach"}')`)
	s.want(`SELECT queue = 'dach' AND unique_key = 'v' AND key = 'k' FROM call_queue WHERE id = 3`)
	s.want(`SELECT coalesce(queue, 'default') = 'default' AND status = 'new' FROM call_queue WHERE id = 4`)
	s.want(`SELECT sum(moved) = 1 AND sum(discarded) = 0 AND sum(failed) = 1 AND max(error) LIKE 'call 4: its key%' FROM callq.call_routed`)

	s.exec(`INSERT INTO call_queue (call_data) VALUES ('{"to": "full"}')`)
	if _, err := s.pool.Exec(context.WithoutCancel(t.Context()), `INSERT INTO call_queue (call_data) VALUES ('{"to": "full"}')`); err == nil || !strings.Contains(err.Error(), "CQ001") {
		t.Errorf("beyond the cap of the queue that it goes to: %v", err)
	}
	s.alive(100)
	for range 4 {
		s.once(r)
	}
	s.want(`SELECT bool_and(o.queue = coalesce(q.queue, 'default') AND o.key = coalesce(q.key, '')) AND count(*) = 4 FROM callq.call_open o JOIN call_queue q ON q.id = o.call_id`)
	s.verify()
}

// Rules that change move no call that waits, until an operator has it so: then those that wait obey them, but for their times, and are where
// the backlog looks for them. What has started goes on.
func TestRouteWaiting(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(`INSERT INTO call_queue (key, run_at) SELECT (ARRAY['a', 'b', 'c'])[1 + n % 3], now() + n % 2 * interval '1 h' FROM generate_series(0, 299) n`)
	r := routed(policy.Route{Keys: []string{"a"}, Set: policy.RouteSet{Queue: "dach", RunIn: time.Hour}}, policy.Route{Keys: []string{"b"}, Discard: "no b"},
		policy.Route{Keys: []string{"c"}, Set: policy.RouteSet{CostField: []string{"none"}}})
	s.publish(r)
	for dry := range 2 {
		did, err := policy.RouteWaiting(t.Context(), s.pool, dry == 0)
		if err != nil || len(did) != 3 || did[0].Moved != 100 || did[1].Discarded != 100 {
			t.Errorf("%+v (%v); want 100 moved, and 100 discarded", did, err)
		}
		s.want(`SELECT count(*) = $1 FROM call_queue WHERE queue = 'dach' AND status = 'new' AND run_at < created_at + interval '61 min'`, 100*dry)
		s.want(`SELECT count(*) = $1 FROM call_queue WHERE status = 'cancelled' AND error_message LIKE '%no b'`, 100*dry)
	}
	if did, err := policy.RouteWaiting(t.Context(), s.pool, false); err != nil || len(did) != 1 || did[0].Failed != 100 {
		t.Errorf("again: %+v (%v)", did, err)
	}
	s.alive(1000)
	for range 4 {
		s.once(r)
	}
	s.want(`SELECT count(*) = 100 AND count(*) FILTER (WHERE queue = 'dach') = 50 FROM callq.call_open`)
	s.verify()
}
