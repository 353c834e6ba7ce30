//go:build linux || darwin

package dispatcher

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// sinceBoot is a clock that nobody sets and that goes on while the machine is suspended, as Go's own does not: after a
// night with the lid closed, Postgres's clock would seem to have been set forward by a night.
func sinceBoot() time.Time {
	clock := int32(7) // CLOCK_BOOTTIME
	if runtime.GOOS == "darwin" {
		clock = 6 // CLOCK_MONOTONIC
	}
	var at unix.Timespec
	if err := unix.ClockGettime(clock, &at); err != nil {
		return time.Now()
	}
	return time.Unix(at.Unix())
}
