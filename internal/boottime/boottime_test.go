package boottime

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"
)

// The kernel's uptime counts the time that the machine was suspended.
func TestNow(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux: it compares with /proc/uptime")
	}
	before := Now()
	data, err := os.ReadFile("/proc/uptime")
	if err != nil {
		t.Fatal(err)
	}
	var up float64
	if _, err := fmt.Sscan(string(data), &up); err != nil {
		t.Fatal(err)
	}
	at := time.Unix(0, 0).Add(time.Duration(up * float64(time.Second)))
	if after := Now(); at.Before(before.Add(-20*time.Millisecond)) || at.After(after.Add(20*time.Millisecond)) { // it has two decimals
		t.Errorf("uptime %s is not between %s and %s", at, before, after)
	}
}
