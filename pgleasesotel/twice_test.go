package pgleasesotel_test

import (
	"context"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/pgleasesotel"
)

// Two clients without attributes of their own would hide each other's gauges.
func TestClientsOfOneProviderNeedAttributes(t *testing.T) {
	reader := sdk.NewManualReader()
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	pool := testkit.Pool(t, pgtest.Database(t))
	var both [2]*pgleases.Client
	for i := range both {
		both[i] = testkit.Must(pgleases.NewClient(t.Context(), pool))(t)
		defer both[i].Close(context.WithoutCancel(t.Context()))
	}
	first := testkit.Must(pgleasesotel.Observe(provider, both[0]))(t)
	_, err := pgleasesotel.Observe(provider, both[1])
	if err == nil || !strings.Contains(err.Error(), "give each attributes of its own") {
		t.Fatalf("the second client: error %v", err)
	}
	second := testkit.Must(pgleasesotel.Observe(provider, both[1], attribute.String("client", "second")))(t)
	testkit.OK(t, both[1].Close(t.Context()))
	got := collect(t, reader)
	live, ended := got["pgleases.trust.remaining"], got["pgleases.trust.remaining second"]
	if live <= 0 || ended != 0 {
		t.Errorf("trust of the live client %v, and of the one that has ended %v", live, ended)
	}
	testkit.OK(t, second.Unregister())
	testkit.OK(t, first.Unregister())
	again := testkit.Must(pgleasesotel.Observe(provider, both[0]))(t)
	testkit.OK(t, again.Unregister())
	other := sdk.NewMeterProvider(sdk.WithReader(sdk.NewManualReader()))
	for _, p := range []*sdk.MeterProvider{provider, other} {
		r := testkit.Must(pgleasesotel.Observe(p, both[0]))(t)
		defer r.Unregister()
	}
}

// The second Unregister of one registration must not free the series of its successor.
func TestSecondUnregisterFreesNoSuccessor(t *testing.T) {
	provider := sdk.NewMeterProvider(sdk.WithReader(sdk.NewManualReader()))
	client := testkit.Must(pgleases.NewClient(t.Context(), testkit.Pool(t, pgtest.Database(t))))(t)
	defer client.Close(context.WithoutCancel(t.Context()))
	first := testkit.Must(pgleasesotel.Observe(provider, client))(t)
	testkit.OK(t, first.Unregister())
	second := testkit.Must(pgleasesotel.Observe(provider, client))(t)
	testkit.OK(t, first.Unregister())
	if _, err := pgleasesotel.Observe(provider, client); err == nil {
		t.Error("two sources have the same series")
	}
	testkit.OK(t, second.Unregister())
}

func TestNilProviderIsAnError(t *testing.T) {
	client := testkit.Must(pgleases.NewClient(t.Context(), testkit.Pool(t, pgtest.Database(t))))(t)
	defer client.Close(context.WithoutCancel(t.Context()))
	_, err := pgleasesotel.Observe(nil, client)
	if err == nil || !strings.Contains(err.Error(), "the provider is nil") {
		t.Errorf("error %v", err)
	}
}
