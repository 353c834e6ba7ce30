//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/verification/fakeapi"
)

// setUp is limits, one or two queues under them, and calls.
type setUp struct {
	limits, queues string // YAML
	calls          []callqueue.Call
	asked          []int64 // ids of calls
}

// randomSetUp draws a set-up whose calls take some 20 to 60 seconds.
func randomSetUp(random *rand.Rand, n int, url string) setUp {
	name := fmt.Sprintf("f%d", n)
	perSecond := 5 + random.IntN(25)
	seconds := 15 + random.IntN(40)
	cost := 1
	limits := []string{fmt.Sprintf("%s: {rate: %d/1s}", name, perSecond)}
	switch random.IntN(5) {
	case 0:
		limits[0] = fmt.Sprintf("%s: {rate: %d/4s}", name, 4*perSecond)
	case 1:
		limits[0] = fmt.Sprintf("%s: {rate: %d/1s, algorithm: token_bucket, burst: %d}", name, perSecond, 2*perSecond)
	case 2:
		limits[0] = fmt.Sprintf("%s: {rate: %d/2s, algorithm: fixed_window}", name, 2*perSecond)
	case 3:
		cost = 3
		limits[0] = fmt.Sprintf("%s: {rate: %d/1s, count: cost}", name, 2*perSecond)
	}
	names := []string{name}
	if random.IntN(3) == 0 {
		names, limits = append(names, name+"k"), append(limits, fmt.Sprintf("%sk: {rate: %d/1s, per: key}", name, 1+random.IntN(3)))
	}
	if random.IntN(4) == 0 {
		names, limits = append(names, name+"m"), append(limits, fmt.Sprintf("%sm: {rate: %d/1m}", name, perSecond*20))
	}
	hours := ""
	if random.IntN(5) == 0 {
		next := time.Now().UTC().Truncate(time.Minute).Add(time.Minute)
		hours = fmt.Sprintf(", hours: \"%s-%s UTC\"", next.Format("15:04"), next.Add(time.Hour).Format("15:04"))
	}
	s := setUp{limits: strings.Join(limits, ", "), queues: fmt.Sprintf("%s: {limits: [%s]%s}", name, strings.Join(names, ", "), hours)}
	queues := 1
	if random.IntN(4) == 0 {
		queues, s.queues = 2, s.queues+fmt.Sprintf(", %sb: {limits: [%s]}", name, name)
	}
	keys := 1 + random.IntN(12)
	for range perSecond * seconds * min(cost, 2) / 2 {
		queue := name
		if queues == 2 && random.IntN(3) == 0 {
			queue += "b"
		}
		s.calls = append(s.calls, callqueue.Call{
			Queue: queue, Key: fmt.Sprint("k", min(random.IntN(keys), random.IntN(keys))), Cost: int64(1 + random.IntN(2*cost-1)),
			Data: map[string]any{"url": url}, MaxAttempts: 1,
		})
	}
	return s
}

// Of three random calls of each of 20 random set-ups, `calls why` says when it starts; then it does. The figures are of the relative
// error.
func TestForecast(t *testing.T) {
	api, err := fakeapi.Start(fakeapi.Config{Latency: apiLatency})
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var all []setUp
	var limits, queues []string
	for n := range 20 {
		s := randomSetUp(random, n, api.URL())
		all, limits, queues = append(all, s), append(limits, s.limits), append(queues, s.queues)
	}
	s := newStack(t, fmt.Sprintf("limits: {%s}\nqueues: {%s}", strings.Join(limits, ", "), strings.Join(queues, ", ")), fakeapi.Config{})
	s.start(1, 4)
	s.await(time.Minute, `SELECT count(*) = 4 FROM callq.call_workers`)
	s.await(time.Minute, `SELECT bool_and(complete_since IS NOT NULL) FROM callq.call_limits`)
	warm := 0
	for _, a := range all { // how long calls take is known from those of late
		inserted, err := s.client.InsertMany(context.Background(), a.calls[:5])
		if err != nil {
			t.Fatal(err)
		}
		warm += len(inserted)
	}
	s.awaitDone(3*time.Minute, warm)
	total := warm
	for i := range all {
		a := &all[i]
		inserted, err := s.client.InsertMany(context.Background(), a.calls)
		if err != nil {
			t.Fatal(err)
		}
		total += len(inserted)
		for range 3 {
			a.asked = append(a.asked, inserted[random.IntN(len(inserted))])
		}
	}
	type foresight struct {
		setUp
		id       int64
		asked    time.Time
		Position int64      `json:"position"`
		StartsAt *time.Time `json:"starts_at"`
		Because  string     `json:"because"`
	}
	var said []foresight
	for _, a := range all {
		for _, id := range a.asked {
			out, code := s.command("calls", "why", fmt.Sprint(id), "-o", "json")
			f := foresight{setUp: a, id: id, asked: time.Now()}
			if err := json.Unmarshal([]byte(out), &f); code != 0 || err != nil {
				t.Fatalf("%d, %v: %s", code, err, out)
			}
			said = append(said, f)
		}
	}
	s.awaitDone(4*time.Minute, total)
	var errors []float64
	for _, f := range said {
		var started time.Time
		if err := s.pool.QueryRow(t.Context(), `SELECT started_at FROM call_attempts WHERE call_id = $1`, f.id).Scan(&started); err != nil {
			t.Fatal(err)
		}
		took := started.Sub(f.asked)
		if f.StartsAt == nil || took < time.Second { // it was about to start, or had started
			t.Logf("        in %5.1f s; %s | %s | %s", took.Seconds(), f.Because, f.limits, f.queues)
			continue
		}
		off := f.StartsAt.Sub(started).Seconds() / took.Seconds()
		errors = append(errors, max(off, -off))
		t.Logf("%5.1f %%: in %5.1f s; %s | %s | %s", 100*off, took.Seconds(), f.Because, f.limits, f.queues)
	}
	slices.Sort(errors)
	median, p95 := errors[len(errors)/2], errors[len(errors)*95/100]
	t.Logf("starts_at of %d calls: median error %.1f %%, p95 %.1f %%", len(errors), 100*median, 100*p95)
	if len(errors) < 20 || median > .05 || p95 > .15 {
		t.Error("that is not what is promised: at most 5 % and 15 %")
	}
}
