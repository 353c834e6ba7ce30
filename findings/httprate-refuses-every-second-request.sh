#!/usr/bin/env bash
# go-chi/httprate 0.16.1 (Go 1.26.8): with a limit of one request in each window, a client that sends exactly one in each window
# is refused every second time, or never: that depends on where in the window it began.
#
# Guess: one request every 2 s keeps to a limit of one in 2 s, so all get through.
# Seen: a client that began in the first half of a window gets every second request refused. One that began in the second half
# gets all through. The limiter estimates: it takes the former window's requests as spread over all of it, counts the share that
# would lie less than a window back, and rounds. So one request counts as one until half of the next window has passed.
#
# Nobody outside can tell where the windows lie; they begin with the program. With larger limits the error shrinks.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'MOD'
module even
go 1.26
toolchain go1.26.8
MOD
go get github.com/go-chi/httprate@v0.16.1 2>/dev/null
cat >main.go <<'GO'
package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/go-chi/httprate"
)

const window = 2 * time.Second

// send sends eight requests, one each window, and returns their statuses. The first comes when first of a window has passed.
func send(first time.Duration) (statuses []int) {
	began := time.Now()
	api := httprate.LimitAll(1, window)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for i := range 8 {
		time.Sleep(time.Until(began.Add(first + time.Duration(i)*window)))
		answer := httptest.NewRecorder()
		api.ServeHTTP(answer, httptest.NewRequest("GET", "/", nil))
		statuses = append(statuses, answer.Code)
	}
	return statuses
}

func main() {
	var early, late []int
	var both sync.WaitGroup
	both.Go(func() { early = send(window / 5) })
	both.Go(func() { late = send(window * 3 / 4) })
	both.Wait()
	fmt.Println("began early in a window:", early)
	fmt.Println("began late in a window: ", late)
}
GO
seen=$(go run .)
echo "$seen"
want='began early in a window: [200 429 200 429 200 429 200 429]
began late in a window:  [200 200 200 200 200 200 200 200]'
[ "$seen" = "$want" ] || { echo "this has changed; it was:"; echo "$want"; exit 1; }
