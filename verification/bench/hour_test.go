package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestHour: a run has all its thirds, and each line has what it says. The run itself fails where a call is not done, a window
// of the limit was exceeded at the API, or verify finds a rule that does not hold.
func TestHour(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-hour", "-rates", "50", "-for", "12s", "-o", "json"}, &out, t.Output()); err != nil {
		t.Fatal(err)
	}
	var all []hourSample
	if err := json.Unmarshal(out.Bytes(), &all); err != nil {
		t.Fatalf("read the samples: %v", err)
	}
	var phases []string
	for _, s := range all {
		phases = append(phases, s.Snapshot)
		if s.Done <= 0 || s.PerSecond <= 0 || s.Claims <= 0 || s.Closes <= 0 || s.Postgres < s.Claims+s.Closes || s.Chores < 0 || s.Tables["call_queue"] <= 0 {
			t.Errorf("measured: %+v", s)
		}
	}
	if want := []string{"not yet", "not yet", "held", "held", "ended", "ended"}; !slices.Equal(phases, want) {
		t.Errorf("the snapshot was %q, want %q", phases, want)
	}
}

// hourOf are samples of a run of twelve minutes, with these costs of claims in µs. Each has 100 calls, but the last.
func hourOf(claims ...float64) (all []hourSample) {
	for n, us := range claims {
		all = append(all, hourSample{
			At: float64(60 * (n + 1)), Snapshot: hourPhase(n, len(claims)), Done: 100, Claims: us, Worker: float64(10 * n),
			Tables: map[string]float64{"call_open": float64(n)},
		})
	}
	all[len(all)-1].Done = 50
	return all
}

// TestSummarize: what each figure is taken from.
func TestSummarize(t *testing.T) {
	samples := hourOf(900, 500, 90, 110, 100, 200, 300, 200, 150, 120, 110, 90)
	samples[4].LockWait, samples[4].LockedIn = 30, "UPDATE"
	samples[7].LockWait, samples[7].LockedIn = 20, "DELETE"
	sum := summarize(samples)
	if sum.Before.claims != 100 || sum.Held.claims != 200 || sum.Back != 180 {
		t.Errorf("costs: %+v before, %+v held, back after %g s; want claims of 100 and 200, and 180 s", sum.Before, sum.Held, sum.Back)
	}
	if want := (lockWait{30, "UPDATE"}); sum.LockWait != want {
		t.Errorf("lock wait: %+v, want %+v", sum.LockWait, want)
	}
	for _, want := range []hourGrowth{{"worker, MiB", 10, 30, 70, 110}, {"call_open, MB", 1, 3, 7, 11}, {"Redis, MiB", 0, 0, 0, 0}} {
		if !slices.Contains(sum.Growth, want) {
			t.Errorf("growth lacks %+v: %+v", want, sum.Growth)
		}
	}
	if sum := summarize(hourOf(90, 100, 100, 200, 200, 111)); sum.Back >= 0 {
		t.Errorf("back after %g s, want never", sum.Back)
	}
	// The last line's calls are half as many.
	if got := costs(hourOf(100, 400)); got.claims != 200 {
		t.Errorf("costs are %+v, want 200 µs for claims", got)
	}
}

// TestSixth: it is an hour's tenth minute.
func TestSixth(t *testing.T) {
	sum := summarize(hourOf(make([]float64, 60)...))
	if got := sum.Growth[1].sixth; got != 90 {
		t.Errorf("at a sixth: %g, want that of the tenth line", got)
	}
}

// TestHourTable: the summary names what never came, and what verify says.
func TestHourTable(t *testing.T) {
	var table bytes.Buffer
	end := hourEnd{inserted: 1200, answered: 1200, most: 599, limit: 600, millionMB: 310, verified: "every rule holds"}
	if err := writeHour(&table, hourOf(100, 100, 100, 250, 250, 250), end); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| worker, MiB       | 0.0        | 10.0                | 30.0    | 50.0       | +50.0                   |",
		"| calls done ", "| 100; 175 ", "| 1.75 ", "| 1,200 ",
		"| not in this run ", "| 599 of 600 ",
		"verify: every rule holds",
	} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the summary lacks %s:\n%s", want, &table)
		}
	}
}

// TestHourFails: no figure fails a run, but what callq promises does.
func TestHourFails(t *testing.T) {
	fine := hourEnd{inserted: 10, answered: 11, most: 6, limit: 6}
	if err := fine.err(); err != nil {
		t.Errorf("a run in which all is well: %v", err)
	}
	for want, end := range map[string]hourEnd{
		"2 calls are not done": {inserted: 10, answered: 11, most: 6, limit: 6, left: 2},
		"9 requests of 10":     {inserted: 10, answered: 9, most: 6, limit: 6},
		"7 requests":           {inserted: 10, answered: 10, most: 7, limit: 6},
	} {
		if err := end.err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", end, err, want)
		}
	}
}

// TestCheckHour: what -rates and -for may be.
func TestCheckHour(t *testing.T) {
	for _, test := range []struct {
		size  sizes
		fails bool
	}{
		{sizes{rates: rates{500}, paceFor: time.Hour}, false},
		{sizes{rates: rates{500, 100}, paceFor: time.Hour}, true},
		{sizes{rates: rates{500}, paceFor: 11 * time.Second}, true},
	} {
		if err := test.size.checkHour(); (err != nil) != test.fails {
			t.Errorf("%v for %s: %v", test.size.rates, test.size.paceFor, err)
		}
	}
}

// TestWindowCounter: a window is as long as it is, wherever it begins.
func TestWindowCounter(t *testing.T) {
	c, begun := &windowCounter{window: time.Second}, time.Now()
	for _, ms := range []int{0, 900, 950, 999, 1000, 1899, 1900, 2500} {
		c.at(begun.Add(time.Duration(ms) * time.Millisecond))
	}
	if got := c.most(); got != 5 { // from 900 to 1899
		t.Errorf("%d in a second at most, want 5", got)
	}
}
