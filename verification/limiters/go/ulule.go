package main

import (
	"log"
	"net/http"

	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	"github.com/ulule/limiter/v3/drivers/store/memory"
)

func ululeLimits(next http.Handler) http.Handler {
	rate, err := limiter.NewRateFromFormatted("100-S")
	if err != nil {
		log.Fatal(err)
	}
	return stdlib.NewMiddleware(limiter.New(memory.NewStore(), rate)).Handler(next)
}
