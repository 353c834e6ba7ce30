package grafana

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	return string(text)
}

// The files are what the tables say. UPDATE=1 writes them anew.
func TestFiles(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{"alerts.yaml": Rules(), "dashboard.json": Dashboard()} {
		if os.Getenv("UPDATE") != "" {
			must(t, os.WriteFile(file, []byte(want), 0o644))
		}
		if read(t, file) != want {
			t.Errorf("%s is stale: run `make docs`", file)
		}
	}
}

// Each metric in an expression is one of those that docs/operating.md lists, which are all that callq registers.
func TestMetricsExist(t *testing.T) {
	t.Parallel()
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(callq_\\w+)` \\|").FindAllStringSubmatch(read(t, "../../docs/operating.md"), -1) {
		listed[m[1]] = true
	}
	exprs := map[string]string{}
	for _, a := range Alerts {
		exprs[a.Name] = a.Expr
	}
	for _, row := range Rows {
		for _, p := range row.Panels {
			for _, l := range p.Lines {
				exprs[p.Title] += l.Expr + "\n"
			}
		}
	}
	ofHistogram := regexp.MustCompile(`_(bucket|count|sum)$`)
	for of, expr := range exprs {
		found := regexp.MustCompile(`callq_\w+`).FindAllString(expr, -1)
		if len(found) == 0 {
			t.Errorf("%s has no metric", of)
		}
		for _, name := range found {
			if name = ofHistogram.ReplaceAllString(name, ""); !listed[name] && !strings.HasPrefix(name, "callq_verify_") {
				t.Errorf("%s: docs/operating.md has no metric %s", of, name)
			}
		}
	}
}

// Each alert has its section in the runbook, and no other is there.
func TestRunbook(t *testing.T) {
	t.Parallel()
	var sections, names []string
	for _, m := range regexp.MustCompile(`(?m)^## (Callq\w+)$`).FindAllStringSubmatch(read(t, "../../docs/runbook.md"), -1) {
		sections = append(sections, m[1])
	}
	for _, a := range Alerts {
		names = append(names, a.Name)
	}
	if got, want := strings.Join(sections, " "), strings.Join(names, " "); got != want {
		t.Errorf("docs/runbook.md has sections\n%s\nwant\n%s", got, want)
	}
}

// Each alert fires in alerts_test.yaml, and each stays silent there: `make alerts` runs it.
func TestAlertsAreTried(t *testing.T) {
	t.Parallel()
	var file struct {
		Tests []struct {
			Cases []struct {
				Name  string           `yaml:"alertname"`
				Fires []map[string]any `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		} `yaml:"tests"`
	}
	must(t, yaml.Unmarshal([]byte(read(t, "alerts_test.yaml")), &file))
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		for _, c := range test.Cases {
			fires[c.Name] = fires[c.Name] || len(c.Fires) > 0
			silent[c.Name] = silent[c.Name] || len(c.Fires) == 0
		}
	}
	for _, a := range Alerts {
		if !fires[a.Name] || !silent[a.Name] {
			t.Errorf("alerts_test.yaml: %s fires: %t, stays silent: %t; want both", a.Name, fires[a.Name], silent[a.Name])
		}
	}
}
