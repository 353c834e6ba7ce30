package main

import (
	"os/exec"
	"testing"
	"time"
)

// The CPU time of a family never falls, however many of its children end while they are counted.
func TestFamilyTimeNeverFalls(t *testing.T) {
	t.Parallel()
	family := exec.CommandContext(t.Context(), "sh", "-c",
		`while :; do sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; done`)
	if err := family.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = family.Process.Kill(); _ = family.Wait() }()
	if familyTime(family.Process.Pid) < 0 {
		t.Skip("it needs Linux: what processes use is read from /proc")
	}
	for last, looks := time.Duration(0), 0; last < time.Second; looks++ {
		now := familyTime(family.Process.Pid)
		if now < last {
			t.Fatalf("look %d: %s after %s", looks, now, last)
		}
		last = now
	}
}
