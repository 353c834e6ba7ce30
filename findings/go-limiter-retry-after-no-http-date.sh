#!/usr/bin/env bash
# sethvargo/go-limiter 0.7.1 (Go 1.26.8), httplimit: the date in Retry-After is one that Go's own http.ParseTime refuses.
#
# Guess: Retry-After is a number of seconds or an HTTP date, and net/http reads what a Go library writes.
# Seen: the date ends in UTC, where an HTTP date ends in GMT: the library formats it by time.RFC1123. http.ParseTime takes no zone
# but GMT and returns an error. A client that then waits as if it had been told nothing comes back too early.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'MOD'
module told
go 1.26
toolchain go1.26.8
MOD
go get github.com/sethvargo/go-limiter@v0.7.1 2>/dev/null
cat >main.go <<'GO'
package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/sethvargo/go-limiter/httplimit"
	"github.com/sethvargo/go-limiter/memorystore"
)

func main() {
	store, err := memorystore.New(&memorystore.Config{Tokens: 1, Interval: time.Hour})
	if err != nil {
		panic(err)
	}
	defer store.Close(context.Background())
	limits, err := httplimit.NewMiddleware(store, httplimit.IPKeyFunc())
	if err != nil {
		panic(err)
	}
	api := limits.Handle(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	var answer *httptest.ResponseRecorder
	for range 2 {
		answer = httptest.NewRecorder()
		api.ServeHTTP(answer, httptest.NewRequest("GET", "/", nil))
	}
	told := answer.Header().Get("Retry-After")
	_, err = http.ParseTime(told)
	fmt.Printf("%d, Retry-After ends in %s, read: %t\n", answer.Code, told[len(told)-3:], err == nil)
	at, err := http.ParseTime(strings.Replace(told, "UTC", "GMT", 1))
	fmt.Printf("with GMT, read: %t, in %s\n", err == nil, time.Until(at).Round(time.Hour))
}
GO
seen=$(go run .)
echo "$seen"
want='429, Retry-After ends in UTC, read: false
with GMT, read: true, in 1h0m0s'
[ "$seen" = "$want" ] || { echo "this has changed; it was:"; echo "$want"; exit 1; }
