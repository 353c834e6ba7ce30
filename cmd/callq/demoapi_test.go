package main

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/callq/callq/internal/limit"
)

// A timeline of requests against 2 per second. Of 5 in 1.5 s two are too many; the limit allows 2 x (1.5 + 1).
func TestDemoAPICounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &demoAPI{rate: limit.Rate{Units: 2, Window: time.Second}}
		if v := a.verdict(); v != (demoVerdict{}) {
			t.Errorf("before the first request: %+v", v)
		}
		for _, step := range []struct {
			after   time.Duration
			allowed bool
		}{{0, true}, {100 * time.Millisecond, true}, {899 * time.Millisecond, false}, {501 * time.Millisecond, true}, {0, false}} {
			time.Sleep(step.after)
			if got := a.arrived(); got != step.allowed {
				t.Errorf("request %d: allowed %v", len(a.arrivals), got)
			}
		}
		if v, want := a.verdict(), (demoVerdict{Requests: 5, Max: 3, R429: 2, Used: 1}); v != want {
			t.Errorf("verdict %+v, want %+v", v, want)
		}
		time.Sleep(999 * time.Millisecond)
		if inWindow, r429 := a.seen(); inWindow != 2 || r429 != 2 {
			t.Errorf("%d in the window, %d answers 429", inWindow, r429)
		}
	})
}

func TestDemoAPIAnswers(t *testing.T) {
	t.Parallel()
	a, err := startDemoAPI(t.Context(), limit.Rate{Units: 1, Window: time.Minute}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	for _, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
		answer, err := http.Get(a.url) //nolint:noctx // of this process
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("status %d, want %d", answer.StatusCode, want)
		}
	}
}
