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
	Before, Held hourCosts // in the second half of the first third, and in the middle third
	Back         float64   // seconds from the snapshot's end to that of the first line with the cost of before; below 0: none has it
	LockWait     lockWait
	Growth       []hourGrowth
}

// hourCosts are of a call, in µs.
type hourCosts struct{ claims, closes, chores float64 }

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
	sum.Before, sum.Held, sum.Back = costs(first[len(first)/2:]), costs(middle), -1
	begins, ends := first[len(first)-1], middle[len(middle)-1]
	for _, s := range last {
		if s.Claims <= hourBack*sum.Before.claims {
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

// costs are those of a call, over all calls of the samples.
func costs(samples []hourSample) (c hourCosts) {
	var calls float64
	for _, s := range samples {
		calls += s.Done
		c.claims, c.closes, c.chores = c.claims+s.Claims*s.Done, c.closes+s.Closes*s.Done, c.chores+s.Chores*s.Done
	}
	calls = max(calls, 1)
	return hourCosts{c.claims / calls, c.closes / calls, c.chores / calls}
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
		{"claims, µs a call: before the snapshot; under it", pair(sum.Before.claims, sum.Held.claims)},
		{"closes", pair(sum.Before.closes, sum.Held.closes)},
		{"vacuum, retention and history", pair(sum.Before.chores, sum.Held.chores)},
		{"claims under the snapshot / before it", ratio(sum.Held.claims / sum.Before.claims)},
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
	fmt.Fprintf(w, "\nAttempts in the ledger: %s\n", end.outcomes)
	if end.verified != "" {
		fmt.Fprintf(w, "\nverify: %s\n", end.verified)
	}
	return nil
}

func pair(before, held float64) string { return whole(before) + "; " + whole(held) }
