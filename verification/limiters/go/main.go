// Limiters is an API behind one of Go's limiters, which its argument names. PORT, ARRIVALS.
package main

import (
	"fmt"
	"log"
	"net/http"
	"os"
	"sync"
	"time"
)

func main() {
	limits := map[string]func(http.Handler) http.Handler{
		"httprate":        httprateLimits,
		"throttled":       func(h http.Handler) http.Handler { return throttledLimits(h, 0) },
		"throttled-burst": func(h http.Handler) http.Handler { return throttledLimits(h, 99) },
		"ulule":           ululeLimits,
	}[os.Args[1]]
	file, err := os.OpenFile(os.Getenv("ARRIVALS"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		log.Fatal(err)
	}
	api := limits(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), recorded(file, api)))
}

// recorded writes down when a request came and how it was answered: milliseconds since 1970, and the status.
func recorded(file *os.File, next http.Handler) http.Handler {
	var mu sync.Mutex
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at, answer := time.Now(), &answer{w, http.StatusOK}
		next.ServeHTTP(answer, r)
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(file, at.UnixMilli(), answer.status)
	})
}

// answer keeps the status.
type answer struct {
	http.ResponseWriter
	status int
}

func (a *answer) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}
