package main

import (
	"log"
	"net/http"

	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
)

func throttledLimits(next http.Handler, burst int) http.Handler {
	store, err := memstore.NewCtx(1000)
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerSec(100), MaxBurst: burst})
	if err != nil {
		log.Fatal(err)
	}
	by := throttled.HTTPRateLimiterCtx{RateLimiter: limiter, VaryBy: &throttled.VaryBy{Path: true}}
	return by.RateLimit(next)
}
