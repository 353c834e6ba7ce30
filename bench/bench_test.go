package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// TestBench: everything is measured, and of no peer is a call left undone or made twice; the run
// itself fails where the tables say so.
func TestBench(t *testing.T) {
	const calls = 200
	var out bytes.Buffer
	args := []string{"-n", "200", "-singles", "200", "-rounds", "1", "-o", "json"}
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
	}
	for _, peer := range []string{"callq", "River"} {
		for _, measure := range []string{"single insert", "bulk insert", "drain"} {
			if got := measured[peer+" "+measure]; got != calls {
				t.Errorf("%s of %s: %d calls were measured, want %d", measure, peer, got, calls)
			}
		}
	}

	var table bytes.Buffer
	if err := writeTable(&table, figures); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"single insert: a second", "bulk insert: a second", "drain: a second", "drain: WAL"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, &table)
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
