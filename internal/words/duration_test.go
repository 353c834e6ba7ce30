package words

import (
	"testing"
	"time"
)

func TestParseDuration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"0": 0, "7d": 168 * time.Hour, "1h0m5s": time.Hour + 5*time.Second, "1d12h": 36 * time.Hour, "1.5d": 36 * time.Hour, "2w": 336 * time.Hour, "10d100ms": 240*time.Hour + 100*time.Millisecond,
	} {
		if d, err := ParseDuration(text); err != nil || d != want {
			t.Errorf("ParseDuration(%q) = %s, %v, want %s", text, d, err, want)
		}
	}
	for _, text := range []string{"", "d", "1", "-1s", "+1s", "1d-1h", "1.2.3d", "99999999999w", "1h 30m", "1y"} {
		if d, err := ParseDuration(text); err == nil {
			t.Errorf("ParseDuration(%q) = %s", text, d)
		}
	}
}
