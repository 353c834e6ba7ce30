package admin

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
)

func TestParseSearch(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	hour, day := now.Add(-time.Hour), time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
	for text, want := range map[string]Filter{
		"":                          {},
		"queue:pay":                 {Queue: "pay"},
		` queue:pay  key:"a b" `:    {Queue: "pay", Key: new("a b")},
		`key:""`:                    {Key: new("")},
		`key:`:                      {Key: new("")},
		`key:a:b`:                   {Key: new("a:b")},
		`error:"say \"no\"" TASK:x`: {Error: `say "no"`, Task: "x"},
		"status:waiting":            {Statuses: []callqueue.Status{"new", "error"}},
		"status:failed,cancelled":   {Statuses: []callqueue.Status{"failed", "cancelled"}},
		"code:402 limit:api":        {Codes: []int16{402}, Limit: "api"},
		"code:402,429":              {Codes: []int16{402, 429}},
		"since:60m":                 {Since: &hour},
		"since:2026-11-20":          {Since: &day},
	} {
		f, err := ParseSearch(text, now)
		if err != nil || !reflect.DeepEqual(f, want) {
			t.Errorf("%s: %+v, %v", text, f, err)
		}
		again, err := ParseSearch(f.Search(), now)
		if err != nil || !reflect.DeepEqual(again, want) {
			t.Errorf("%s: as %s: %+v, %v", text, f.Search(), again, err)
		}
	}
	if f, err := ParseSearch("code:429,5xx", now); err != nil || len(f.Codes) != 101 || f.Search() != "code:429,5xx" {
		t.Errorf("%s: %v, %v", f.Search(), f.Codes, err)
	}
	for text, want := range map[string]string{
		"pay":             `"pay": say what it is: key:pay`,
		"pay status:new":  `"pay": say what it is`,
		"queue:":          "queue: has no value",
		"queue:a queue:b": "queue: is there twice",
		"status:gone":     "status:gone is none",
		"code:7":          `"7" is no HTTP status`,
		"since:yesterday": "since:yesterday is neither",
		"since:-1h":       "since:-1h is neither",
		`error:"open`:     "a quotation mark is not closed",
		"color:red":       `"color" is no word of a search: queue: key:`,
	} {
		if _, err := ParseSearch(text, now); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
