package pgleasesprom_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgleases/pgleases/pgleasesprom"
)

func TestCollectorsOfNilAreRefused(t *testing.T) {
	for what, c := range map[string]prometheus.Collector{
		"client":    pgleasesprom.NewCollector(nil),
		"scheduler": pgleasesprom.NewScheduleCollector(nil),
		"consumer":  pgleasesprom.NewConsumerCollector(nil),
	} {
		err := prometheus.NewRegistry().Register(c)
		if err == nil || !strings.Contains(err.Error(), "the "+what+" is nil") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
