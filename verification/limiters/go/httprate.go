package main

import (
	"net/http"
	"time"

	"github.com/go-chi/httprate"
)

func httprateLimits(next http.Handler) http.Handler {
	return httprate.LimitBy(100, time.Second, httprate.Key("*"))(next)
}
