package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

const hourBack = 1.1 // a claim's cost of before the snapshot, times this, is as good as that

// hourSummary is what the samples of a run come to.
type hourSummary struct {
	Before, Held float64 // a claim's cost, µs a call: in the second half of the first third, and in the middle third
	Back         float64 // seconds from the snapshot's end to that of the first line with the cost of before; below 0: none has it
	LockWait     lockWait
	Growth       []hourGrowth
}

// hourGrowth is a size at four moments: at a sixth of the run, which is an hour's tenth minute, as the snapshot begins, as it
// ends, and at the run's end.
type hourGrowth struct {
	name                       string
	sixth, begins, ends, atEnd float64
}

// grown is from a sixth of the run to its end, without a sign where it is nearly nothing.
func (g hourGrowth) grown() float64 { return math.Round(10*(g.atEnd-g.sixth))/10 + 0 }

// summarize needs samples of each third.
func summarize(samples []hourSample) (sum hourSummary) {
	third := func(snapshot string) []hourSample {
		return slices.DeleteFunc(slices.Clone(samples), func(s hourSample) bool { return s.Snapshot != snapshot })
	}
	first, middle, last := third(snapshotNotYet), third(snapshotHeld), third(snapshotEnded)
	sum.Before, sum.Held, sum.Back = claimCost(first[len(first)/2:]), claimCost(middle), -1
	begins, ends := first[len(first)-1], middle[len(middle)-1]
	for _, s := range last {
		if s.Claims <= hourBack*sum.Before {
			sum.Back = s.At - ends.At
			break
		}
	}
	for _, s := range samples {
		if s.LockWait > sum.LockWait.ms {
			sum.LockWait = lockWait{s.LockWait, s.LockedIn}
		}
	}
	grows := hourMemory()
	for _, name := range hourTables() {
		grows = append(grows, hourGrowing{name + ", MB", func(s hourSample) float64 { return s.Tables[name] }})
	}
	sixth, end := samples[(len(samples)-1)/6], samples[len(samples)-1]
	for _, g := range grows {
		sum.Growth = append(sum.Growth, hourGrowth{g.name, g.of(sixth), g.of(begins), g.of(ends), g.of(end)})
	}
	return sum
}

// claimCost is that of a call, over all calls of the samples.
func claimCost(samples []hourSample) float64 {
	var us, calls float64
	for _, s := range samples {
		us, calls = us+s.Claims*s.Done, calls+s.Done
	}
	return us / max(calls, 1)
}

// writeHour writes the summary: a table of sizes, and a line for each of the rest.
func writeHour(w io.Writer, samples []hourSample, end hourEnd) error {
	sum := summarize(samples)
	out := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintf(out, "|\tsize\t|\tat a sixth\t|\tthe snapshot begins\t|\tit ends\t|\tat the end\t|\tfrom a sixth to the end\t|\n|\t---\t|%s\n",
		strings.Repeat("\t--:\t|", 5))
	for _, g := range sum.Growth {
		fmt.Fprintf(out, "|\t%s\t|\t%.1f\t|\t%.1f\t|\t%.1f\t|\t%.1f\t|\t%+.1f\t|\n", g.name, g.sixth, g.begins, g.ends, g.atEnd, g.grown())
	}
	fmt.Fprintf(out, "\n|\tfigure\t|\t\t|\n|\t---\t|\t--:\t|\n")
	back := "not in this run"
	if sum.Back >= 0 {
		back = fmt.Sprintf("%.0f s", sum.Back)
	}
	for _, row := range [][2]string{
		{"calls done", number(float64(end.inserted - end.left))},
		{"claims before the snapshot, µs a call", number(sum.Before)},
		{"claims under the snapshot, µs a call", number(sum.Held)},
		{"under it / before it", ratio(sum.Held / sum.Before)},
		{"claims back within 1.1x after its end", back},
		{"longest wait for a lock, ms", whole(sum.LockWait.ms)},
		{"a million attempts in the ledger, MB", whole(end.millionMB)},
		{"most requests in a second, of the limit", strconv.Itoa(end.most) + " of " + strconv.Itoa(end.limit)},
	} {
		fmt.Fprintf(out, "|\t%s\t|\t%s\t|\n", row[0], row[1])
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if sum.LockWait.query != "" {
		fmt.Fprintf(w, "\nThe longest wait for a lock: %s\n", sum.LockWait.query)
	}
	if end.verified != "" {
		fmt.Fprintf(w, "\nverify: %s\n", end.verified)
	}
	return nil
}
