package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

// drained are figures of three rounds: callq is twice as quick as River in the median, half as quick as raw SQL.
func drained() (all []figure) {
	for peer, perSecond := range map[string][]float64{"callq": {2000, 3000, 2000}, "River": {1000, 1000, 1000}, "raw SQL": {4000, 4000, 6000}} {
		for i, v := range perSecond {
			f := figure{Round: i + 1, Peer: peer, Measure: "drain", Calls: 5000, PerSecond: v, OwnMicros: new(20.0), WALBytes: 100}
			all = append(all, f)
		}
	}
	return all
}

// TestTable: each peer has its median, and callq's ratio to it.
func TestTable(t *testing.T) {
	var table bytes.Buffer
	if err := writeTable(&table, drained()); err != nil {
		t.Fatal(err)
	}
	_, got, _ := strings.Cut(table.String(), "| drain   |")
	want := ` a second                   | own CPU, µs a call        | Postgres's CPU, µs a call | Redis's CPU, µs a call | WAL, bytes a call        |
| ---     | --:                        | --:                       | --:                       | --:                    | --:                      |
| callq   | 2,000                      | 20.0                      | -                         | -                      | 100                      |
| River   | 1,000; 2.00 (2.00 to 3.00) | 20.0; 1.00 (1.00 to 1.00) | -                         | -                      | 100; 1.00 (1.00 to 1.00) |
| raw SQL | 4,000; 0.50 (0.33 to 0.75) | 20.0; 1.00 (1.00 to 1.00) | -                         | -                      | 100; 1.00 (1.00 to 1.00) |
`
	if got != want {
		t.Errorf("the table is\n%s, want\n%s", &table, want)
	}
}

// TestDrawBars: a peer that is slower has a bar from the line at 1 to the right, one that is quicker to the left.
func TestDrawBars(t *testing.T) {
	svg := drawBars(barGroups(drained()), 3)
	for decoder := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
	}
	// From 1/4 to 4, so 1 is in the middle, and 2 half of the way from there.
	for _, want := range []string{
		`>drain, 5,000 calls<`, `>2.00 (2.00 to 3.00)<`, `>0.50 (0.33 to 0.75)<`,
		`<rect x="450.0" y="96" width="145.0" height="16" fill="#1a7f37"/>`,
		`<rect x="305.0" y="120" width="145.0" height="16" fill="#8c959f"/>`,
		`text-anchor="middle">1/4<`, `text-anchor="middle">4<`,
	} {
		if !strings.Contains(svg, want) {
			t.Errorf("the picture lacks %s:\n%s", want, svg)
		}
	}
}

// TestOnly: what -only and -plot may be.
func TestOnly(t *testing.T) {
	for _, test := range []struct {
		only, plot, fails string
		peers             int
	}{
		{peers: len(peers())},
		{only: "raw SQL", peers: 1},
		{only: "callq,pg-boss", plot: "bench.svg", peers: 2},
		{only: "callq,River,Sidekiq", fails: `names "Sidekiq"`, peers: 2},
		{only: "River,Asynq", plot: "bench.svg", fails: "beside others", peers: 2},
		{only: "callq", plot: "bench.svg", fails: "beside others", peers: 1},
	} {
		s := sizes{calls: 1, singles: producers, rounds: 1, only: test.only, plot: test.plot}
		err := s.check()
		if test.fails == "" && err != nil || test.fails != "" && (err == nil || !strings.Contains(err.Error(), test.fails)) {
			t.Errorf("-only %q -plot %q: %v, want %q", test.only, test.plot, err, test.fails)
		}
		if got := len(s.peers()); got != test.peers {
			t.Errorf("-only %q: %d peers, want %d", test.only, got, test.peers)
		}
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0.0", 12.34: "12.3", 99.96: "100", 812.4: "812", 999.9: "1,000", 10_043.2: "10,043", 1_234_567: "1,234,567",
	} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %q, want %q", v, got, want)
		}
	}
}

func TestSpread(t *testing.T) {
	for _, test := range []struct {
		values map[int]float64
		want   string
	}{
		{nil, "-"},
		{map[int]float64{1: 3, 2: 1, 3: 2}, "2.00 (1.00 to 3.00)"},
		{map[int]float64{1: 1, 2: 2}, "1.50 (1.00 to 2.00)"},
	} {
		if got := spread(test.values, ratio); got != test.want {
			t.Errorf("spread(%v) = %q, want %q", test.values, got, test.want)
		}
	}
}
