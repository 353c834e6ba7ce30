//go:build linux || darwin

// Package boottime is a clock that is never set. It goes on while the machine is suspended, as Go's monotonic clock does
// not: after a night with the lid closed, Postgres's clock would seem to have been set forward by a night.
package boottime

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Now is the time since boot, as a time after the Unix epoch.
func Now() time.Time {
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
