package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/callq/callq/callqueue"
)

func TestCallsCancel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`INSERT INTO call_queue (unique_key) SELECT 'u' || i FROM generate_series(1, 5) AS i`)
	w.exec(`UPDATE call_queue SET status = 'failed', unique_key = NULL, finished_at = now(), failed_at = now() WHERE id = 4`)
	for _, test := range []struct {
		args      string
		code      int
		ids       []int64
		cancelled int
		stderr    string
	}{
		{"1", exitDone, []int64{1}, 1, ""},
		{"2 1", exitDone, []int64{2, 1}, 1, ""},
		{"1 2", exitDone, []int64{1, 2}, 0, ""},
		{"4 3", exitFailed, []int64{4, 3}, 1, "not cancelled: 4 (failed)"},
		{"99 5 4 98", exitNotFound, []int64{5, 4}, 1, "no such call: 99, 98;"},
		{"99", exitNotFound, nil, 0, "no such call: 99;"},
		{"0", exitUsage, nil, 0, `"0" is not the id of a call`},
		{"1 x", exitUsage, nil, 0, `"x" is not the id of a call`},
		{"", exitUsage, nil, 0, "which calls?"},
	} {
		a := w.run(append([]string{"calls", "cancel", "-o", "json"}, strings.Fields(test.args)...)...)
		if a.code != test.code || !strings.Contains(a.stderr, test.stderr) || test.stderr == "" && a.stderr != "" {
			t.Errorf("calls cancel %s: exit code %d, want %d with %q:\n%s", test.args, a.code, test.code, test.stderr, a.stderr)
		}
		if test.code == exitUsage {
			continue
		}
		var ids []int64
		cancelled := 0
		for _, c := range decode[[]callqueue.Cancellation](t, a.stdout) {
			ids = append(ids, c.ID)
			if c.Cancelled {
				cancelled++
			}
			if want := callqueue.StatusCancelled; c.ID != 4 && c.Status != want {
				t.Errorf("call %d is %s, want %s", c.ID, c.Status, want)
			}
		}
		if !slices.Equal(ids, test.ids) || cancelled != test.cancelled {
			t.Errorf("calls cancel %s: %v, %d of them cancelled; want %v, %d", test.args, ids, cancelled, test.ids, test.cancelled)
		}
	}
	if table := w.run("calls", "cancel", "1", "4").stdout; !strings.Contains(table, "was already") || !strings.Contains(table, "failed") {
		t.Errorf("the table:\n%s", table)
	}
	w.do("verify")
}
