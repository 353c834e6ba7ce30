#!/usr/bin/env bash
# Go 1.26.8 (time package, zones that change their clocks): Time.ZoneBounds returns an end that is
# not after the time it was asked about, on the last day of leap years from 2040 on; and from the end of 2037 on, where the
# database's list of changes ends and its rule begins, each last day of a year has an end at which no clock changes.
#
# Guess: the end of t.ZoneBounds() is the next moment at which the zone's clock changes, so it is after t, and a loop that goes on
# from bound to bound ends.
# Seen: for noon of 2040-12-31 in New York the end is 2040-12-30 19:00, 17 hours before. For noon of 2039-12-31 it is that day at
# 19:00, midnight UTC, though the clock changes in March. Years before are as guessed.
#
# A program that steps through the bounds of a zone has to test that a bound lies ahead. It meets such days as soon as it looks far
# enough ahead: forecasts, calendars, certificates.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'MOD'
module zonebounds
go 1.26
toolchain go1.26.8
MOD
cat >main.go <<'GO'
package main

import (
	"fmt"
	"time"
	_ "time/tzdata"
)

func main() {
	for _, name := range []string{"America/New_York", "Europe/Berlin"} {
		zone, err := time.LoadLocation(name)
		if err != nil {
			panic(err)
		}
		for _, year := range []int{2036, 2039, 2040, 2044} {
			noon := time.Date(year, 12, 31, 12, 0, 0, 0, zone)
			_, end := noon.ZoneBounds()
			_, before := end.Add(-time.Second).Zone()
			_, after := end.Zone()
			fmt.Printf("%s %d-12-31: until %s, after noon: %t, the clock changes: %t\n", name, year,
				end.UTC().Format("2006-01-02 15:04Z"), end.After(noon), before != after)
		}
	}
}
GO
go version
seen=$(go run .)
echo "$seen"
want='America/New_York 2036-12-31: until 2037-03-08 07:00Z, after noon: true, the clock changes: true
America/New_York 2039-12-31: until 2040-01-01 00:00Z, after noon: true, the clock changes: false
America/New_York 2040-12-31: until 2040-12-31 00:00Z, after noon: false, the clock changes: false
America/New_York 2044-12-31: until 2044-12-31 00:00Z, after noon: false, the clock changes: false
Europe/Berlin 2036-12-31: until 2037-03-29 01:00Z, after noon: true, the clock changes: true
Europe/Berlin 2039-12-31: until 2040-01-01 00:00Z, after noon: true, the clock changes: false
Europe/Berlin 2040-12-31: until 2040-12-31 00:00Z, after noon: false, the clock changes: false
Europe/Berlin 2044-12-31: until 2044-12-31 00:00Z, after noon: false, the clock changes: false'
[ "$seen" = "$want" ] || { echo "this has changed; it was:"; echo "$want"; exit 1; }
