package main

import (
	"cmp"
	"os"
	"slices"
	"strings"
	"testing"
)

func deploying(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/deploying.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// docs/deploying.md has a row for each set-up, in their order: what it says of one is what was run.
func TestRowsOfSetups(t *testing.T) {
	t.Parallel()
	_, rest, _ := strings.Cut(deploying(t), "| set-up |")
	table, _, _ := strings.Cut(rest, "\n\n")
	var got, want []string
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if !strings.HasPrefix(line, "| ") || len(cells) != 7 || strings.Contains(cells[1], "---") {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		got = append(got, strings.Join(cells[1:5], " | "))
	}
	for _, s := range setups() {
		want = append(want, strings.Join([]string{s.name, s.version, cmp.Or(s.works, "yes"), s.settings}, " | "))
	}
	for _, row := range want {
		if !slices.Contains(got, row) {
			t.Errorf("docs/deploying.md has no row | %s |", row)
		}
	}
	for _, row := range got {
		if !slices.Contains(want, row) {
			t.Errorf("docs/deploying.md has the row | %s |, of which there is no set-up", row)
		}
	}
	if !t.Failed() && !slices.Equal(got, want) {
		t.Error("docs/deploying.md has the rows in another order")
	}
}

// The blocks of docs/deploying.md are what the suite gives the servers.
func TestSettingsOfServers(t *testing.T) {
	t.Parallel()
	var blocks []string
	for _, rest := range strings.Split(deploying(t), "```text\n")[1:] {
		block, _, _ := strings.Cut(rest, "```")
		blocks = append(blocks, strings.Join(strings.Fields(block), " "))
	}
	for _, want := range []string{ignoreParameters(), aclRules} {
		if !slices.Contains(blocks, want) {
			t.Errorf("docs/deploying.md has no block of\n%s", want)
		}
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, only string
		short      bool
		want       []string
	}{
		{"a beginning of names", "pgpool", false, []string{"pgpool-II without load balancing", "pgpool-II with load balancing"}},
		{"two", "Valkey,hot", false, []string{"hot standby as the URL", "Valkey"}},
		{"those that CI runs", "Redis", true, []string{"Redis over TLS", "Redis Sentinel", "Redis Cluster"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			chosen, err := choose(setups(), c.short, c.only)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range chosen {
				got = append(got, s.name)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	if _, err := choose(setups(), false, "Oracle"); err == nil {
		t.Error("a set-up that there is not is no mistake")
	}
}

// What else doctor finds is a problem of the set-up.
func TestOnlyLate(t *testing.T) {
	t.Parallel()
	const late = "problem  late requests: of the last 329 attempts of queue default, 29 were not sent\n"
	for said, want := range map[string]bool{
		"ok       schema\n" + late: true, late + "problem  settings: fsync is off\n": false, "ok       schema\n": false,
		"problem  limits: late requests: no\n": false,
	} {
		if got := onlyLate(said); got != want {
			t.Errorf("%q: %t, want %t", said, got, want)
		}
	}
}
