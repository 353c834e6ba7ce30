package limit

import (
	"strings"
	"testing"
	"time"
)

func TestParseRate(t *testing.T) {
	t.Parallel()
	cases := []struct {
		text string
		want Rate
		echo string
	}{
		{"100/h", Rate{Units: 100, Window: time.Hour}, "100 per 1h, sliding window"},
		{"100/1h", Rate{Units: 100, Window: time.Hour}, "100 per 1h, sliding window"},
		{"100 per 1h", Rate{Units: 100, Window: time.Hour}, "100 per 1h, sliding window"},
		{"100 per 1h, sliding window", Rate{Units: 100, Window: time.Hour}, "100 per 1h, sliding window"},
		{"5/s", Rate{Units: 5, Window: time.Second}, "5 per 1s, sliding window"},
		{" 5 / s ", Rate{Units: 5, Window: time.Second}, "5 per 1s, sliding window"},
		{"10/500ms", Rate{Units: 10, Window: 500 * time.Millisecond}, "10 per 500ms, sliding window"},
		{"1_000/d", Rate{Units: 1000, Window: 24 * time.Hour}, "1000 per 1d, sliding window"},
		{"3/90s", Rate{Units: 3, Window: 90 * time.Second}, "3 per 90s, sliding window"},
		{"3/3600s", Rate{Units: 3, Window: time.Hour}, "3 per 1h, sliding window"},
		{"3/7d", Rate{Units: 3, Window: 7 * 24 * time.Hour}, "3 per 1w, sliding window"},
		{"3/36h", Rate{Units: 3, Window: 36 * time.Hour}, "3 per 36h, sliding window"},
		{"1/10ms", Rate{Units: 1, Window: MinWindow}, "1 per 10ms, sliding window"},
		{"1_000_000_000_000/366d", Rate{Units: MaxUnits, Window: MaxWindow}, "1000000000000 per 366d, sliding window"},
	}
	for _, c := range cases {
		got, err := ParseRate(c.text)
		if err != nil || got != c.want {
			t.Errorf("ParseRate(%q) = %v, %v, want %v", c.text, got, err, c.want)
		}
		if got.String() != c.echo {
			t.Errorf("ParseRate(%q).String() = %q, want %q", c.text, got, c.echo)
		}
	}
}

func TestParseRateRefuses(t *testing.T) {
	t.Parallel()
	cases := []struct{ text, why string }{
		{"", "write units/window"},
		{"100", "write units/window"},
		{"100 in 1h", "write units/window"},
		{"0/h", "pause the limit instead"},
		{"unlimited", "needs no limit"},
		{"-5/s", "write units/window"},
		{"+5/s", "write units/window"},
		{"1.5/s", "write units/window"},
		{"_5/s", "write units/window"},
		{"5_/s", "write units/window"},
		{"5__0/s", "write units/window"},
		{"/s", "write units/window"},
		{"99999999999999999999/s", "more than 1e12"},
		{"1_000_000_000_001/s", "more than 1e12"},
		{"5/", "one of ms s m h d w"},
		{"5/10", "one of ms s m h d w"},
		{"5/1x", "one of ms s m h d w"},
		{"5/1H", "one of ms s m h d w"},
		{"5/1h30m", "one of ms s m h d w"},
		{"5/-1s", "one of ms s m h d w"},
		{"5/1.5s", "one of ms s m h d w"},
		{"5/0s", "from 10ms to 366d"},
		{"5/9ms", "from 10ms to 366d"},
		{"5/367d", "from 10ms to 366d"},
		{"5/9000000000000000000w", "from 10ms to 366d"},
		{"5/1mo", "fixed_window"},
	}
	for _, c := range cases {
		got, err := ParseRate(c.text)
		if err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("ParseRate(%q) = %v, %v, want an error with %q", c.text, got, err, c.why)
		}
	}
}

func TestLimitDefaults(t *testing.T) {
	t.Parallel()
	cases := []struct{ window, slack, sendWithin time.Duration }{
		{time.Second, 500 * time.Millisecond, 100 * time.Millisecond},
		{2 * time.Second, 500 * time.Millisecond, 100 * time.Millisecond},
		{10 * time.Second, 500 * time.Millisecond, 500 * time.Millisecond},
		{100 * time.Second, 5 * time.Second, 5 * time.Second},
		{10 * time.Minute, 30 * time.Second, 5 * time.Second},
		{24 * time.Hour, time.Minute, 5 * time.Second},
	}
	for _, c := range cases {
		if got := DefaultSlack(c.window); got != c.slack {
			t.Errorf("DefaultSlack(%v) = %v, want %v", c.window, got, c.slack)
		}
		if got := DefaultSendWithin(c.window); got != c.sendWithin {
			t.Errorf("DefaultSendWithin(%v) = %v, want %v", c.window, got, c.sendWithin)
		}
	}
}

// What is accepted is within bounds, and its echo means the same and is echoed unchanged.
func FuzzParseRate(f *testing.F) {
	for _, s := range []string{"100/h", "10/500ms", "1_000/d", "100 per 1h, sliding window", "0/s", "5/1mo", "unlimited"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRate(s)
		if err != nil {
			return
		}
		if r.Units < 1 || r.Units > MaxUnits || r.Window < MinWindow || r.Window > MaxWindow {
			t.Fatalf("ParseRate(%q) = %+v, out of bounds", s, r)
		}
		again, err := ParseRate(r.String())
		if err != nil || again != r || again.String() != r.String() {
			t.Fatalf("%q: %v echoed as %v, %v", s, r, again, err)
		}
	})
}
