package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/verification/fakeapi"
)

// TestMain is the program itself where paced or limited starts it as a worker.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-as" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestBench: everything is measured, and of no peer is a call left undone or made twice; the run
// itself fails where the tables say so. Peers in Node.js are measured where npm can install them.
func TestBench(t *testing.T) {
	t.Parallel()
	const calls = 200
	names := []string{"callq", "River", "Asynq", "raw SQL"}
	installing, cancel := context.WithTimeout(t.Context(), 45*time.Second)
	defer cancel()
	if err := installNode(installing, t.Output()); err != nil {
		t.Logf("without peers in Node.js: %v", err)
	} else {
		names = append(names, "graphile-worker", "pg-boss")
	}
	var out bytes.Buffer
	picture := filepath.Join(t.TempDir(), "bench.svg")
	args := []string{
		"-n", "200", "-singles", "200", "-rounds", "1", "-o", "json", "-only", strings.Join(names, ","), "-plot", picture,
	}
	if err := run(t.Context(), args, &out, t.Output()); err != nil {
		t.Fatal(err)
	}
	var figures []figure
	if err := json.Unmarshal(out.Bytes(), &figures); err != nil {
		t.Fatalf("read the figures: %v", err)
	}
	measured := map[string]int{}
	for _, f := range figures {
		measured[f.Peer+" "+f.Measure] += f.Calls
		if f.PerSecond <= 0 || f.OwnMicros == nil || *f.OwnMicros <= 0 {
			t.Errorf("measured: %+v", f)
		}
	}
	for _, peer := range names {
		for _, measure := range measures() {
			if got := measured[peer+" "+measure]; got != calls {
				t.Errorf("%s of %s: %d calls were measured, want %d", measure, peer, got, calls)
			}
		}
	}
	if drawn, err := os.ReadFile(picture); err != nil || strings.Count(string(drawn), ">raw SQL<") != len(measures()) {
		t.Errorf("the picture lacks raw SQL: %v\n%s", err, drawn)
	}
}

// TestPaced: every peer makes the calls that come, in processes of its own.
func TestPaced(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-paced", "-rates", "50", "-for", "1s", "-rounds", "1", "-o", "json"}, &out, t.Output()); err != nil {
		t.Fatal(err)
	}
	var all []pacedFigure
	if err := json.Unmarshal(out.Bytes(), &all); err != nil {
		t.Fatalf("read the figures: %v", err)
	}
	var measured []string
	for _, f := range all {
		measured = append(measured, fmt.Sprintf("%s %d", f.Peer, f.Workers))
		if f.PerSecond <= 0 || f.WorkersCPU <= 0 || f.Peer == "callq" && (f.Dispatchers <= 0 || f.Statements <= 0) {
			t.Errorf("measured: %+v", f)
		}
	}
	if want := []string{"callq 1", "callq 4", "River 1", "River 4", "bare 1"}; !slices.Equal(measured, want) {
		t.Errorf("measured %q, want %q", measured, want)
	}
	var table bytes.Buffer
	if err := writePaced(&table, all); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(table.String(), "| 50/s |"); n != len(all) {
		t.Errorf("%d of %d lines in the table:\n%s", n, len(all), &table)
	}
}

// TestLimited: every peer finishes every call under its limit, and all that the table shows of it is measured. Peers in
// Node.js are measured where npm can install them.
func TestLimited(t *testing.T) {
	t.Parallel()
	var names []string
	installing, cancel := context.WithTimeout(t.Context(), 45*time.Second)
	defer cancel()
	err := installNode(installing, t.Output())
	if err != nil {
		t.Logf("without peers in Node.js: %v", err)
	}
	for _, p := range limitedPeers() {
		if err == nil || !p.node {
			names = append(names, p.name)
		}
	}
	var out bytes.Buffer
	picture := filepath.Join(t.TempDir(), "limited.svg")
	args := []string{"-limited", "-part", "0.03", "-rounds", "1", "-o", "json", "-only", strings.Join(names, ","), "-plot", picture}
	if err := run(t.Context(), args, &out, t.Output()); err != nil {
		t.Fatal(err)
	}
	var all []limitedFigure
	if err := json.Unmarshal(out.Bytes(), &all); err != nil {
		t.Fatalf("read the figures: %v", err)
	}
	measured := map[string]int{}
	for _, f := range all {
		measured[f.Peer] += f.Calls - f.Unfinished
		if f.Unfinished != 0 || f.Requests < f.Calls || f.Runs < 1 || f.Worst <= 0 || f.Use <= 0 || f.CPU <= 0 || f.Seconds <= 0 {
			t.Errorf("measured: %+v", f)
		}
		// callq is held to what it promises: never over, and no call twice.
		if f.Peer == "callq" && (f.Worst > 1 || f.Requests != f.Calls || f.Dispatchers <= 0 || *f.Statements <= 0) {
			t.Errorf("measured: %+v", f)
		}
	}
	for _, name := range names {
		if want := 150 + 600; measured[name] != want {
			t.Errorf("%s finished %d calls, want %d", name, measured[name], want)
		}
	}
	var table bytes.Buffer
	if err := writeLimited(&table, all); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(table.String(), "/s "); n != len(all) {
		t.Errorf("%d of %d lines in the table:\n%s", n, len(all), &table)
	}
	if drawn, err := os.ReadFile(picture); err != nil || strings.Count(string(drawn), ">callq<") != 2 {
		t.Errorf("the picture lacks callq: %v\n%s", err, drawn)
	}
}

// TestSeen: a call that comes twice is one, and came when it came first.
func TestSeen(t *testing.T) {
	begun := time.Now()
	at := func(ms int, path string) fakeapi.Request {
		return fakeapi.Request{At: begun.Add(time.Duration(ms) * time.Millisecond), Path: path}
	}
	got := seen([]fakeapi.Request{at(0, "/1"), at(5, "/2"), at(9, "/1")})
	if want := (arrivals{calls: 2, first: begun, last: begun.Add(5 * time.Millisecond)}); got != want {
		t.Errorf("seen: %+v, want %+v", got, want)
	}
}

// TestReads: every command gives what there is to see in each layout. The run itself fails where a list has
// more or fewer rows than the table, or `callq verify` finds a row that callq would not leave so.
func TestReads(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-reads", "-n", "2000", "-rounds", "1", "-o", "json"}, &out, t.Output()); err != nil {
		t.Fatal(err)
	}
	var all []told
	if err := json.Unmarshal(out.Bytes(), &all); err != nil {
		t.Fatalf("read the figures: %v", err)
	}
	rows := map[string]map[string]int{}
	for _, f := range all {
		if rows[f.Layout] == nil {
			rows[f.Layout] = map[string]int{}
		}
		rows[f.Layout][f.Command] = f.Rows
		if f.Median <= 0 || f.Slowest < f.Median {
			t.Errorf("%s: %s took %g ms, at most %g", f.Layout, f.Command, f.Median, f.Slowest)
		}
	}
	// Of 2,000 calls 10 are few. Call 100 was cancelled, 101 and 102 failed, and so on; call 1250 is rare.
	for layout, want := range map[string]map[string]int{
		"mostly ended": {
			"status": 1, "queues list": 20, "limits list": 2, "calls get 1": 1, "calls get 2000": 1,
			"calls list": 50, "calls list --status new": 10, "calls list --status done": 50, "calls list --status error": 0,
			"calls list --status failed": 40, "calls list --status cancelled": 19,
			"calls list --task rare": 1, "calls list --task rare --status done": 1, "calls list --task rare --status new": 0,
			"calls list --task none": 0, "calls list --queue none": 0, "calls list --key none": 0,
		},
		"backlog": {
			"calls list --status new": 50, "calls list --status done": 8, "calls list --status failed": 2, "calls list --status cancelled": 0,
			"calls list --task rare --status done": 0, "calls list --task rare --status new": 1,
		},
		"stuck": {
			"calls list --status new": 10, "calls list --queue stuck": 10, "calls list --queue stuck --status new": 10,
			"calls list --queue stuck --status done": 0, "calls list --queue q7 --status new": 0, "calls list --status cancelled": 20,
		},
		"a million keys": {
			"calls list": 50, "calls list --status new": 50, "calls list --status done": 0, "calls list --key k7": 1,
			"calls list --task rare --status new": 1,
		},
	} {
		for command, n := range want {
			if got, ok := rows[layout][command]; !ok || got != n {
				t.Errorf("%s: callq %s gave %d rows (asked: %v), want %d", layout, command, got, ok, n)
			}
		}
	}

	var table bytes.Buffer
	if err := writeTold(&table, all); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"status", "queues list", "limits list", "limits forecast", "calls get", "calls why", "calls list --task"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, &table)
		}
	}
}

// TestTold: a cell is the slowest command's, and what is above the promise is named.
func TestTold(t *testing.T) {
	var table bytes.Buffer
	if err := writeTold(&table, []told{
		{Layout: "a", Group: "get", Command: "calls get 1", Rows: 1, Median: 12, Slowest: 130},
		{Layout: "a", Group: "get", Command: "calls get 2", Rows: 1, Median: 14, Slowest: 15},
		{Layout: "b", Group: "get", Command: "calls get 1", Rows: 1, Median: 163, Slowest: 234},
	}); err != nil {
		t.Fatal(err)
	}
	want := `
| ms  | a   | b   |
| --- | --: | --: |
| get | 14  | 163 |

| too slow | command       | median | slowest | rows |
| ---      | ---           | --:    | --:     | --:  |
| b        | ` + "`calls get 1`" + ` | 163    | 234     | 1    |
`
	if got := table.String(); got != want[1:] {
		t.Errorf("the table is\n%s, want%s", got, want)
	}
}
