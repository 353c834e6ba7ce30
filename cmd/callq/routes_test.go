package main

import "testing"

// Rules come from the file and hold for what is inserted next. Each says what it did, and what it would do to a call, or to those that wait.
func TestRoutesCommands(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const before = "queues: {dach: {}, mail: {max_waiting: 2}}\n"
	w.config = before
	w.do("config", "apply")
	w.do("enqueue", "--key", "test-0")
	w.config = before + `routes:
  - {match: {queue: default, json: {$.country: [CH, DE]}}, set: {queue: dach, priority: 3, key: $.customer}}
  - {match: {key: ["test-*"]}, discard: "no test keys"}
`
	w.answers(0, "config apply", "route 1: queue default, $.country CH or DE: queue dach, key $.customer, priority 3", "route 2: key test-*: discarded, no test keys")
	w.do("enqueue", "--data", `{"country": "CH", "customer": 42}`)
	w.do("enqueue", "--data", `{"country": "DE"}`)
	w.do("enqueue", "--key", "test-1")
	for _, c := range []struct {
		code int
		args string
		says []string
	}{
		{0, "calls get 2", []string{"dach", "42"}},
		{0, "calls get 4", []string{"cancelled", "discarded by a route: no test keys"}},
		{0, "routes list", []string{"NO  RULE", "call 3: its key is no text in call_data"}},
		{0, "routes list -o json", []string{`"moved": 1`, `"discarded": 1`, `"failed": 1`}},
		{0, "status", []string{"no test keys"}},
		{0, "routes test 3", []string{"fails     queue default", "because   its key is no text in call_data", "what it is"}},
		{0, "routes test --key test-9", []string{"matches   key test-*", "cancelled: discarded by a route: no test keys"}},
		{0, "routes test --key other", []string{"no rule changes it"}},
		{0, "routes test --queue default --data {\"country\":\"CH\",\"customer\":7} -o json", []string{`"queue": "dach"`, `"key": "7"`, `"priority": 3`}},
		{2, "routes test --data {", []string{"--data is not JSON"}},
		{4, "routes test 99", []string{"99"}},
		{2, "routes test x", []string{"is not the id of a call"}},
		{2, "routes apply", []string{"--waiting"}},
		{0, "routes apply --waiting --dry-run", []string{"key test-*"}},
		{0, "calls get 1", []string{"new"}},
		{0, "routes apply --waiting --yes", []string{"key test-*"}},
		{0, "calls get 1", []string{"cancelled"}},
	} {
		w.answers(c.code, c.args, c.says...)
	}
	w.config = before + "routes: [{match: {queue: x}, set: {queue: nowhere}}]\n"
	w.answers(2, "config check", "routes[0].set.queue", `"nowhere" is not a queue`)

	// A cap is seen, too.
	w.config = before
	w.do("config", "apply")
	w.exec(`UPDATE callq.call_caps SET counted = true`)
	for range 2 {
		w.do("enqueue", "--queue", "mail")
	}
	w.answers(1, "enqueue --queue mail", "queue 'mail' is full: 2 calls wait, of at most 2")
	w.answers(0, "queues list", "full: 2 calls may wait, more are refused")
	w.answers(0, "queues list -o json", `"max_waiting": 2`, `"when_full": "refuse"`)
}
