package claim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/internal/backlog"
)

func TestKnownFlows(t *testing.T) {
	t.Parallel()
	flow := func(key string, calls int64) backlog.Flow {
		return backlog.Flow{Key: key, Priority: 5, Task: "http", Calls: calls}
	}
	now := time.Unix(1000, 0)
	read := readFlows([]backlog.Flow{flow("b", 1), flow("a", 0), flow("c", 1)}, false, []string{"http", "mail"}, "", now, now)
	var many []backlog.Flow
	for i := range knownMost + 1 {
		many = append(many, flow(fmt.Sprint(i), 1))
	}
	for name, c := range map[string]struct {
		flows  knownFlows
		tasks  []string
		behind string
		at     time.Time
		want   string // keys in their order; "unknown"
	}{
		"from the first on":        {read, []string{"http"}, "", now, "a b c"},
		"behind a key":             {read, []string{"http"}, "a", now, "b c a"},
		"behind the last":          {read, []string{"http"}, "c", now, "a b c"},
		"of another task":          {read, []string{"mail"}, "", now, ""},
		"of a task not read":       {read, []string{"http", "new"}, "", now, "unknown"},
		"for a while":              {read, []string{"http"}, "", now.Add(knownFor - 1), "a b c"},
		"not for longer":           {read, []string{"http"}, "", now.Add(knownFor), "unknown"},
		"longer if reads are":      {readFlows(nil, false, []string{"http"}, "", now.Add(-time.Second), now), []string{"http"}, "", now.Add(knownRest*time.Second - 1), ""},
		"not where there are more": {readFlows(read.list, true, read.tasks, "", now, now), []string{"http"}, "", now, "unknown"},
		"with what was filed":      {read.filed(backlog.Drained{Filed: []backlog.Flow{flow("bb", 1), flow("b", 2)}}), []string{"http"}, "", now, "a b bb c"},
		"but for other tasks":      {read.filed(backlog.Drained{Filed: []backlog.Flow{{Key: "bb", Task: "new"}}}), []string{"http"}, "", now, "a b c"},
		"not once others changed":  {read.filed(backlog.Drained{Else: true}), []string{"http"}, "", now, "unknown"},
		"once consumed":            {read.consumed(1, []backlog.Flow{flow("a", 0)}, 0, "a"), []string{"http"}, "", now, "a b c"},
		"not once one was gone":    {read.consumed(2, []backlog.Flow{flow("a", 0)}, 0, "a"), []string{"http"}, "", now, "unknown"},
		"not once one is parked":   {read.consumed(0, nil, 1, "a"), []string{"http"}, "", now, "unknown"},
		"not where nothing was":    {knownFlows{}.filed(backlog.Drained{Filed: read.list}), []string{"http"}, "", now, "unknown"},
		"not so many":              {readFlows(many, false, []string{"http"}, "", now, now), []string{"http"}, "", now, "unknown"},
	} {
		k := known{}
		k.keep("q", c.flows)
		list, is := k.take("q").first(c.tasks, c.behind, c.at)
		got := "unknown"
		if is {
			var keys []string
			for _, f := range list {
				keys = append(keys, f.Key)
			}
			got = strings.Join(keys, " ")
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if len(k) > 0 {
			t.Errorf("%s: known while a claim changes them", name)
		}
	}
	for n, want := range map[int]int{0: 0, placed: placed, placed + 1: 0} {
		if got := len(readFlows(many[:n], false, nil, "", now, now).places()); got != want {
			t.Errorf("of %d flows a drain is told %d places, want %d", n, got, want)
		}
	}
	k := known{"calls wait": read, "none": read.with([]backlog.Flow{flow("b", 0), flow("c", 0)})}
	for queue, want := range map[string]string{"calls wait": "true", "none": "false", "another": "nil"} {
		got := "nil"
		if active := k.active(queue, now); active != nil {
			got = fmt.Sprint(*active)
		}
		if got != want {
			t.Errorf("%s: active: %s, want %s", queue, got, want)
		}
	}
	if k.active("calls wait", now.Add(knownFor)) != nil {
		t.Error("known for too long")
	}
}

func TestServedKeyIsNoted(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	known := readFlows(nil, false, nil, "", now, now)
	var unknown knownFlows
	for _, step := range []struct {
		what  string
		flows *knownFlows
		after time.Duration
		want  bool
	}{
		{"at first", &known, 0, true},
		{"soon after", &known, servedLag - 1, false},
		{"later", &known, servedLag, true},
		{"after the clock was set back", &known, 0, true},
		{"of many flows", &unknown, 0, true},
		{"of many flows, each time", &unknown, 0, true},
	} {
		if got := step.flows.noteServed(now.Add(step.after)); got != step.want {
			t.Errorf("%s: %v, want %v", step.what, got, step.want)
		}
	}
}
