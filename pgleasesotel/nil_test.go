package pgleasesotel_test

import (
	"strings"
	"testing"

	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/pgleases/pgleases/pgleasesotel"
)

func TestObservationsOfNilAreRefused(t *testing.T) {
	provider := metric.NewMeterProvider()
	_, client := pgleasesotel.Observe(provider, nil)
	_, scheduler := pgleasesotel.ObserveSchedules(provider, nil)
	_, consumer := pgleasesotel.ObserveConsumer(provider, nil)
	for what, err := range map[string]error{"client": client, "scheduler": scheduler, "consumer": consumer} {
		if err == nil || !strings.Contains(err.Error(), "observe "+what+": it is nil") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
