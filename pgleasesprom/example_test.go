package pgleasesprom_test

import (
	"context"
	"log"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/pgleasesprom"
	"github.com/pgleases/pgleases/schedule"
)

func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/postgres")
	if err != nil {
		log.Fatal(err)
	}
	client, err := pgleases.NewClient(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	scheduler, err := schedule.New(ctx, client, pool, "reports")
	if err != nil {
		log.Fatal(err)
	}

	prometheus.MustRegister(pgleasesprom.NewCollector(client))
	prometheus.MustRegister(pgleasesprom.NewScheduleCollector(scheduler))
	http.Handle("/metrics", promhttp.Handler())
	log.Fatal(http.ListenAndServe("127.0.0.1:9090", nil))
}
