package tasks

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// overBurst is by how many units a bucket of 100/s with burst 100 that began full would be overdrawn by these, one unit each.
func overBurst(at []time.Duration) (over float64) {
	level := 100.0
	for i, t := range at {
		if i > 0 {
			level = min(100, level+100*(t-at[i-1]).Seconds())
		}
		level--
		over = max(over, -level)
	}
	return over
}

// stateWritten is the state that a script wrote of budget api, as MONITOR shows it.
var stateWritten = regexp.MustCompile(`lua\] "SET" "callq:budget:\{api\}" ("(?:[^"\\]|\\.)*")`)

// Ten workers draw on one budget for as long as DRAW_FOR says (3s): by Redis's own record of what it granted no span has more than
// burst + rate x t, and by the API's none has more than that beside what was on its way.
//
//callq:guarantee 14
func TestTenWorkersOneBudget(t *testing.T) {
	t.Parallel()
	drawFor, err := time.ParseDuration(cmp.Or(os.Getenv("DRAW_FOR"), "3s"))
	if err != nil {
		t.Fatal(err)
	}
	d := newDrawing(t)
	d.publish("api", 100, time.Second, 100, "closed")
	options := d.client().Options()
	record, err := net.Dial(options.Network, options.Addr) //nolint:noctx // a server of the test
	if err != nil {
		t.Fatal(err)
	}
	defer record.Close()
	if _, err := record.Write([]byte("MONITOR\r\n")); err != nil {
		t.Fatal(err)
	}

	var mu sync.Mutex
	var arrived []time.Duration
	began := time.Now()
	api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		arrived = append(arrived, time.Since(began))
	}))
	defer api.Close()
	var all sync.WaitGroup
	for range 10 {
		call := d.worker(nil)
		for range 4 {
			all.Go(func() {
				for time.Since(began) < drawFor {
					if err := call.Draw(soon(t), "api", 1); err != nil {
						t.Error(err)
						return
					}
					answer, err := http.Get(api.URL) //nolint:noctx // a test's own server
					if err != nil {
						t.Error(err)
						return
					}
					_ = answer.Body.Close()
				}
			})
		}
	}
	all.Wait()
	granted := grants(t, record, len(arrived), began)
	slices.Sort(arrived)
	onItsWay, inTime := time.Duration(0), 0
	for i, at := range granted {
		onItsWay = max(onItsWay, arrived[i]-at)
		if at <= drawFor {
			inTime++
		}
	}
	could := 100 + 100*drawFor.Seconds()
	t.Logf("%d of %.0f units granted in %s, %.1f %%; by Redis's record %.3f too many, by the API's %.2f, requests were up to %s on their way",
		inTime, could, drawFor, 100*float64(inTime)/could, overBurst(granted), overBurst(arrived), onItsWay)
	if over := overBurst(granted); over > 1e-6 {
		t.Errorf("by Redis's record %f units too many", over)
	}
	if over := overBurst(arrived); over > 100*onItsWay.Seconds()+1e-6 {
		t.Errorf("by the API's record %f units too many", over)
	}
}

// grants are the moments of n grants, as Redis wrote them.
func grants(t *testing.T, record net.Conn, n int, began time.Time) (granted []time.Duration) {
	t.Helper()
	if err := record.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(record)
	for len(granted) < n && lines.Scan() {
		found := stateWritten.FindStringSubmatch(lines.Text())
		if found == nil {
			continue
		}
		state, err := strconv.Unquote(found[1])
		if err != nil {
			t.Fatal(err)
		}
		micros := math.Float64frombits(binary.LittleEndian.Uint64([]byte(state)[9:]))
		granted = append(granted, time.UnixMicro(int64(micros)).Sub(began))
	}
	if len(granted) < n {
		t.Fatalf("Redis has a record of %d of %d grants: %v", len(granted), n, lines.Err())
	}
	return granted
}
