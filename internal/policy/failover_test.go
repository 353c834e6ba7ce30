package policy

import (
	"testing"
	"time"
)

func TestVerdict(t *testing.T) {
	t.Parallel()
	said := func(change func(*testimony)) testimony {
		t := testimony{Found: 2, Former: []string{"1-1"}}
		change(&t)
		return t
	}
	for name, c := range map[string]struct {
		said  testimony
		mode  Failover
		asked time.Duration
		want  Verdict
	}{
		"all find what they wrote":           {said(func(*testimony) {}), Witnessed, 3 * time.Second, Whole},
		"strict":                             {said(func(*testimony) {}), Strict, 0, Missing},
		"lossless, though one lacks it":      {said(func(t *testimony) { t.Lacks = "w" }), Lossless, 0, Whole},
		"one lacks it":                       {said(func(t *testimony) { t.Lacks = "w" }), Witnessed, 3 * time.Second, Missing},
		"one lacks it, others have not said": {said(func(t *testimony) { t.Lacks, t.Silent = "w", "v" }), Witnessed, 0, Missing},
		"one has not said":                   {said(func(t *testimony) { t.Silent = "v" }), Witnessed, 3 * time.Second, Waiting},
		"one never says":                     {said(func(t *testimony) { t.Silent = "v" }), Witnessed, 10 * time.Second, Missing},
		"one may not be known here":          {said(func(*testimony) {}), Witnessed, time.Second, Waiting},
		"nobody lived":                       {said(func(t *testimony) { t.Found = 0 }), Witnessed, 3 * time.Second, Missing},
		"two failovers at once":              {said(func(t *testimony) { t.Former = []string{"1-1", "1-2"} }), Witnessed, 3 * time.Second, Missing},
	} {
		if verdict, why := c.mode.verdict(c.said, c.asked); verdict != c.want || (why == "") != (verdict == Waiting) {
			t.Errorf("%s: %q, want %q: %s", name, verdict, c.want, why)
		}
	}
}
