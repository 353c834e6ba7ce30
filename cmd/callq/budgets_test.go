package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/budget"
)

// What the file has of budgets is in force, and status says what is free.
func TestStatusShowsBudgets(t *testing.T) {
	t.Parallel()
	w, server := newWorld(t).withRedis()
	const quiet = "http: {listen: 'off'}\nlog: {level: error}\n"
	wide, newer := w, w
	wide.config = quiet + "budgets: {mail: {rate: 1/h}, search-api: {rate: 2/h, burst: 40, on_outage: open}}\n"
	newer.config = quiet + "budgets: {search-api: {rate: 1/h, burst: 40}}\n"
	budgets := func() map[string]admin.Budget {
		rows := map[string]admin.Budget{}
		for _, b := range decode[admin.Status](t, w.do("status", "-o", "json")).Budgets {
			rows[b.Name] = b
		}
		return rows
	}
	if n := len(budgets()); n > 0 {
		t.Errorf("%d budgets before any was published", n)
	}
	wide.start("dispatch")
	eventually(t, "they are in force", func() bool { return len(budgets()) == 2 })

	options, err := redis.ParseURL(server.URL())
	must(t, err)
	client := redis.NewClient(options)
	defer client.Close()
	search, mail := budgets()["search-api"], budgets()["mail"]
	if _, err := budget.Draw(t.Context(), client, "search-api", search.Rule(), 3, 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := budget.Draw(t.Context(), client, "mail", mail.Rule(), 1, budget.Forever); err != nil {
			t.Fatal(err)
		}
	}
	if b := budgets()["search-api"]; b.Free == nil || *b.Free != 37 || b.Waiting != 0 || b.Rate != "2 per 1h" || b.Burst != 40 || b.OnOutage != "open" {
		t.Errorf("search-api is %+v", b)
	}
	if b := budgets()["mail"]; b.Free == nil || *b.Free != 0 || b.Waiting < 50*time.Minute || b.OnOutage != "closed" || b.Burst != 1 {
		t.Errorf("mail is %+v", b)
	}
	out := strings.Join(strings.Fields(w.do("status")), " ")
	has(t, out, "BUDGET RATE BURST ON OUTAGE FREE mail 1 per 1h 1 closed 0; draws wait for up to ", "search-api 2 per 1h 40 open 37 ")

	newer.do("config", "apply")
	if b := budgets()["search-api"]; len(budgets()) != 1 || b.Units != 1 || b.OnOutage != "closed" {
		t.Errorf("search-api is %+v", b)
	}

	server.Kill()
	if out := w.do("status"); strings.Count(out, "unknown: ") != 1 {
		t.Errorf("without Redis it does not say that what is free is unknown:\n%s", out)
	}
	if b := budgets()["search-api"]; b.Free != nil {
		t.Errorf("without Redis %d are free", *b.Free)
	}
}

// SIGHUP brings budgets too; a bad one changes nothing.
func TestBudgetsAreReloaded(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	const quiet = "http: {listen: 'off'}\n"
	w.config = quiet + "budgets: {api: {rate: 100/s}}\n"
	r := w.spawn("dispatch")
	holds := func(text string) {
		t.Helper()
		eventually(t, text, func() bool {
			for _, b := range decode[admin.Status](t, w.do("status", "-o", "json")).Budgets {
				if fmt.Sprintf("%s, burst %d, on_outage %s", b.Rate, b.Burst, b.OnOutage) == text {
					return true
				}
			}
			return false
		})
	}
	holds("100 per 1s, burst 1, on_outage closed")
	r.reload(quiet + "budgets: {api: {rate: 100/s, burst: 0}}\n")
	r.says("budgets.api.burst")
	r.reload(quiet + "budgets: {api: {rate: 50/s, on_outage: open}}\n")
	r.says(`changed="[budgets.api.on_outage budgets.api.rate]"`)
	holds("50 per 1s, burst 1, on_outage open")
}
