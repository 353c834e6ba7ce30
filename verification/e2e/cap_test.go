//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/verification/fakeapi"
)

// Eight producers press against a cap, and are killed in the middle of transactions again and again, while calls are made: never do more
// wait than the cap and one statement of each, and in the end no place of it is lost. With -figures above 1 they do for a minute.
func TestCapUnderKills(t *testing.T) {
	const most, producers, each = 1000, 8, 5
	lasts := 8 * time.Second
	if *figures > 1 {
		lasts = time.Minute
	}
	s := newStack(t, fmt.Sprintf("limits: {api: {rate: 50/1s}}\nqueues: {default: {limits: [api], max_waiting: %d}}", most), fakeapi.Config{})
	s.start(2, 2)
	s.await(time.Minute, `SELECT counted FROM callq.call_caps`)
	s.insert("default", most-10*producers*each)
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	var all sync.WaitGroup
	kills := make([]int, producers)
	for p := range producers {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := s.produceUntilKilled(p, each); err != nil {
					t.Error(err)
					return
				}
				kills[p]++
			}
		})
	}
	highest, full := 0, false
	for ctx.Err() == nil {
		n := s.count(`SELECT count(*) FROM call_queue WHERE status IN ('new', 'error')`)
		highest, full = max(highest, n), full || n >= most-producers*each
		time.Sleep(20 * time.Millisecond)
	}
	all.Wait()
	sum := 0
	for _, n := range kills {
		sum += n
	}
	t.Logf("of %d that may wait, %d did at most; producers were killed %d times; %d calls were made", most, highest, sum, s.api.Count())
	if highest > most+producers*each || !full {
		t.Errorf("%d calls waited at most, want about %d, and no more than a statement of each producer beyond", highest, most)
	}
	if _, code := s.command("queues", "pause", "default", "--reason", "to count"); code != 0 {
		t.Fatal("the queue is not paused")
	}
	s.await(time.Minute, `SELECT count(*) = 0 FROM callq.call_open`)
	waiting := s.count(`SELECT count(*) FROM call_queue WHERE status IN ('new', 'error')`)
	backlog, err := s.client.Backlog(t.Context(), "default")
	if err != nil || backlog.Waiting != int64(waiting) {
		t.Errorf("the backlog says %+v, %v; %d calls wait", backlog, err, waiting)
	}
	s.exec(`INSERT INTO call_queue (call_data) SELECT jsonb_build_object('url', $1::text) FROM generate_series(1, $2)`, s.api.URL(), most-waiting)
	if _, err := s.client.Insert(t.Context(), callqueue.Call{Data: map[string]string{"url": s.api.URL()}}); !errors.Is(err, callqueue.ErrFull) {
		t.Errorf("one more than the cap: %v", err)
	}
	s.nothingTwice()
	s.verify()
}

// produceUntilKilled has a psql insert in one transaction after another, until it is killed.
func (s *stack) produceUntilKilled(seed, each int) error {
	psql := exec.Command("psql", "-qX", s.postgres.URL("postgres")) //nolint:noctx // it is killed
	psql.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := psql.StdinPipe()
	if err != nil {
		return err
	}
	if err := psql.Start(); err != nil {
		return err
	}
	ends := [...]string{"COMMIT", "COMMIT", "COMMIT", "ROLLBACK"}
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		time.Sleep(time.Duration(300+rand.IntN(2700)) * time.Millisecond)
		_ = psql.Process.Kill()
		_ = psql.Wait()
	}()
	for n := seed; err == nil; n++ {
		_, err = io.WriteString(in, fmt.Sprintf("BEGIN; INSERT INTO call_queue (key, call_data) SELECT '%d', '{\"url\": \"%s\"}' FROM generate_series(1, %d); %s;\n",
			seed, s.api.URL(), each, ends[n%len(ends)]))
	}
	<-killed
	return nil
}
